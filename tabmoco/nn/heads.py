"""Heads over embeddings. Each returns float32, so losses, queue and scores never see half precision."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from tabmoco.tables.cells import CellBatch, Layout


class ProjectionHead(nn.Module):
    """An embedding to a unit-length projection `[N, P]`; thrown away after training.

    `linear` is the head of MoCo (He et al. 2020), `mlp` that of MoCo v2 (Chen et al. 2020), `none` none at all.
    """

    def __init__(self, d_embedding: int, d_projection: int, kind: Literal["none", "linear", "mlp"]):
        super().__init__()
        self.layers: nn.Module
        if kind == "mlp":
            self.layers = nn.Sequential(
                nn.Linear(d_embedding, d_embedding), nn.ReLU(), nn.Linear(d_embedding, d_projection)
            )
        elif kind == "linear":
            self.layers = nn.Linear(d_embedding, d_projection)
        else:
            self.layers = nn.Identity()
        self.d_projection = d_embedding if kind == "none" else d_projection

    def forward(self, embedding: Float[Tensor, "N D"]) -> Float[Tensor, "N P"]:
        return normalize(self.layers(embedding).float(), dim=-1)


class Projector(nn.Sequential):
    """An encoder and its head in one: cells, some of them hidden, to projections."""

    def forward(self, cells: CellBatch, masked: Bool[Tensor, "N C"] | None = None) -> Float[Tensor, "N P"]:
        encoder, head = self
        return head(encoder(cells, masked))


class Predictor(nn.Module):
    """A projection to what the target's projection of another view should be, at unit length; thrown away after
    training.

    Grill et al., "Bootstrap Your Own Latent", 2020, section 3.1.

    NOTE[DIFF]: the paper's hidden layer has batch normalisation; here it is layer normalisation, so that no row sees
    the others.
    """

    def __init__(self, d_projection: int, d_hidden: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(d_projection, d_hidden), nn.LayerNorm(d_hidden), nn.ReLU(), nn.Linear(d_hidden, d_projection)
        )

    def forward(self, projection: Float[Tensor, "N P"]) -> Float[Tensor, "N P"]:
        return normalize(self.layers(projection).float(), dim=-1)


class PrototypeHead(nn.Module):
    """An embedding to its cosines with learned prototypes; thrown away after training.

    Caron et al., "Emerging Properties in Self-Supervised Vision Transformers", 2021, section 3.1 and appendix C: an
    MLP, unit length, then a layer whose weights have unit length as well.

    NOTE[DIFF]: two layers instead of three before the unit length, as in the other heads.
    """

    def __init__(self, d_embedding: int, d_projection: int, n_prototypes: int):
        super().__init__()
        self.project = ProjectionHead(d_embedding, d_projection, "mlp")
        self.prototype = nn.Parameter(torch.randn(n_prototypes, d_projection) * d_projection**-0.5)

    def forward(self, embedding: Float[Tensor, "N D"]) -> Float[Tensor, "N n_prototypes"]:
        return (self.project(embedding) @ normalize(self.prototype, dim=-1).T).float()


class CellDecoder(nn.Module):
    """An embedding to what every cell of the row should be: both scalings of each number, logits of each code."""

    def __init__(self, d_embedding: int, d_block: int, layout: Layout):
        super().__init__()
        self.cardinalities = list(layout.cardinalities)
        self.n_numbers = layout.n_numbers
        self.trunk = nn.Sequential(nn.Linear(d_embedding, d_block), nn.ReLU())
        n_codes = sum(layout.cardinalities)
        self.number = nn.Linear(d_block, 2 * layout.n_numbers) if layout.n_numbers else _Nothing()
        self.code = nn.Linear(d_block, n_codes) if n_codes else _Nothing()

    def forward(self, embedding: Float[Tensor, "N D"]) -> tuple[Float[Tensor, "N Sn 2"], list[Tensor]]:
        """Expected numbers (tempered standardised value and normal score) and one `[N, cardinality]` of logits per
        code slot."""
        hidden = self.trunk(embedding)
        number = self.number(hidden).float().unflatten(-1, (self.n_numbers, 2))
        logits = self.code(hidden).float()
        return number, list(torch.split(logits, self.cardinalities, dim=-1)) if self.cardinalities else []


class _Nothing(nn.Module):
    """A linear layer without outputs, about which PyTorch would warn."""

    def forward(self, hidden: Float[Tensor, "N H"]) -> Float[Tensor, "N 0"]:
        return hidden[:, :0]
