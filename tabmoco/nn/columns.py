"""Cells to tokens: every column of a batch becomes one vector."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from rtdl_num_embeddings import PeriodicEmbeddings, PiecewiseLinearEmbeddings
from torch import Tensor, nn

from tabmoco.config import EncoderConfig
from tabmoco.tables.cells import CellBatch, Layout
from tabmoco.tables.scalings import normal_scores

LINEAR_UP_TO = 3.0
"""Standardised values enter the encoder unchanged up to about here and grow like a logarithm beyond."""

N_FREQUENCIES = 16
"""Sine and cosine pairs per number slot."""

FREQUENCY_SCALES = (0.25, 1.0, 3.0)
"""Standard deviations from which the frequencies start, in periods per standard deviation: from wide to narrow, so that
both "about the same" and "the very same" number are near in some of them."""

N_BINS = 24
"""Bins of the piecewise-linear embedding, equally wide on the scale of the quantile-normal score; few enough for small
tables."""

TOKEN_SCALE = 0.7
"""Standard deviation that category, missing and mask tokens start with; that of a number's token is about the same."""


def temper(number: Tensor) -> Tensor:
    """Standardised values whose extremes stay visible and ordered, but no longer drown everything else."""
    return torch.asinh(number / LINEAR_UP_TO) * LINEAR_UP_TO


def untemper(number: Tensor) -> Tensor:
    """The inverse of `temper`."""
    return torch.sinh(number / LINEAR_UP_TO) * LINEAR_UP_TO


class NumberSlots(nn.Module):
    """Number slots to vectors: two scalings enter linearly, the quantile-normal one also through an embedding.

    The standardised value shows how extreme a cell is, the quantile-normal one where it lies among the others.
    The periodic and piecewise-linear embeddings (Gorishniy et al., "On Embeddings for Numerical Features in Tabular
    Deep Learning", 2022, sections 3.2 and 3.3) act on the latter, so that one set of bins and of frequencies fits every
    column whatever its distribution.

    NOTE[DIFF]: the paper embeds one scaling of a number and draws frequencies from one width, tuned per table; here
    the linear part sees two scalings, and the frequencies start from three widths at once, untuned.
    """

    def __init__(self, knots: Float[np.ndarray, "Sn Q"], knot_scores: Float[np.ndarray, "Sn Q"], config: EncoderConfig):
        super().__init__()
        n_slots = len(knots)
        self.register_buffer("knots", torch.from_numpy(np.asarray(knots, dtype=np.float32)))
        self.register_buffer("knot_scores", torch.from_numpy(np.asarray(knot_scores, dtype=np.float32)))
        scale = (2 * N_FREQUENCIES + 2) ** -0.5
        self.weight = nn.Parameter(torch.randn(n_slots, 2, config.d_token) * scale)
        self.bias = nn.Parameter(torch.zeros(n_slots, config.d_token))
        self.embedding: nn.Module | None = None
        if n_slots and config.number_embedding == "periodic":
            self.embedding = PeriodicEmbeddings(
                n_slots, config.d_token, n_frequencies=N_FREQUENCIES, activation=False, lite=False
            )
            scales = torch.tensor(FREQUENCY_SCALES)[torch.arange(N_FREQUENCIES) % len(FREQUENCY_SCALES)]
            with torch.no_grad():
                self.embedding.periodic.weight.copy_(torch.randn(n_slots, N_FREQUENCIES) * scales)
                self.embedding.linear.weight.normal_(std=scale)
        elif n_slots and config.number_embedding == "piecewise":
            edges = torch.linspace(-2.5, 2.5, N_BINS + 1)
            self.embedding = PiecewiseLinearEmbeddings([edges] * n_slots, config.d_token, activation=False, version="B")

    def forward(self, number: Float[Tensor, "N Sn"]) -> Float[Tensor, "N Sn E"]:
        scalings = self.scalings(number)
        slots = torch.einsum("nsi,sie->nse", scalings, self.weight) + self.bias
        return slots if self.embedding is None else slots + self.embedding(scalings[..., 1])

    def scalings(self, number: Float[Tensor, "N Sn"]) -> Float[Tensor, "N Sn 2"]:
        """Both scalings of each number: tempered standardised value and quantile-normal score."""
        return torch.stack([temper(number), normal_scores(number, self.knots, self.knot_scores)], dim=-1)


class ColumnEncoder(nn.Module):
    """A `CellBatch` to tokens `[N, C, E]`, one per column; missing and masked cells have learned tokens of their
    own."""

    def __init__(
        self,
        layout: Layout,
        knots: Float[np.ndarray, "Sn Q"],
        knot_scores: Float[np.ndarray, "Sn Q"],
        config: EncoderConfig,
    ):
        super().__init__()
        d_token = config.d_token
        self.number = NumberSlots(knots, knot_scores, config)
        offsets = np.concatenate([[0], np.cumsum(layout.cardinalities)[:-1]]).astype(np.int64)
        self.register_buffer("code_offset", torch.from_numpy(offsets[: layout.n_codes]), persistent=False)
        self.code = nn.Embedding(sum(layout.cardinalities), d_token)
        nn.init.normal_(self.code.weight, std=TOKEN_SCALE)
        self.bias = nn.Parameter(torch.zeros(layout.n_columns, d_token))
        self.missing_token = nn.Parameter(torch.randn(layout.n_columns, d_token) * TOKEN_SCALE)
        self.mask_token = nn.Parameter(torch.randn(layout.n_columns, d_token) * TOKEN_SCALE)
        owner = torch.tensor([*layout.number_owner, *layout.code_owner], dtype=torch.int64)
        self.register_buffer("slot_owner", owner, persistent=False)
        n_slots = torch.bincount(owner, minlength=layout.n_columns)
        self.register_buffer("slot_weight", n_slots[owner].rsqrt().unsqueeze(-1), persistent=False)
        self.n_columns = layout.n_columns

    def forward(self, cells: CellBatch, masked: Bool[Tensor, "N C"] | None = None) -> Float[Tensor, "N C E"]:
        slots = torch.cat([self.number(cells.number), self.code(cells.code + self.code_offset)], dim=1)
        tokens = self.bias.to(slots.dtype).expand(len(cells), -1, -1)
        tokens = tokens.index_add(1, self.slot_owner, slots * self.slot_weight)  # a column's token sums its slots
        tokens = torch.where(cells.missing.unsqueeze(-1), self.missing_token.to(tokens.dtype), tokens)
        return tokens if masked is None else self.hide(tokens, masked)

    def hide(self, tokens: Float[Tensor, "N C E"], masked: Bool[Tensor, "N C"]) -> Float[Tensor, "N C E"]:
        """The tokens with those of masked cells replaced, so that nothing of the cells is left."""
        return torch.where(masked.unsqueeze(-1), self.mask_token.to(tokens.dtype), tokens)
