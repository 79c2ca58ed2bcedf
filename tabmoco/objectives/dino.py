"""Agreement with the target on prototypes, without negatives.

Caron et al., "Emerging Properties in Self-Supervised Vision Transformers", ICCV 2021, section 3.1, equations 1 to 4:
the target's distribution over prototypes, seen from the query and the key view, is learned from every other view.
Centring keeps one prototype from taking all rows, sharpening keeps them from becoming all alike; the monitor's
effective rank tells if all rows became one.

NOTE[DIFF]: local views are not smaller crops but copies with more cells swapped, `corruption.local_swap`; the last
layer learns from the first step on; the target's temperature does not rise at the start.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tabmoco.config import ObjectiveConfig
from tabmoco.nn.ema import EmaCopy, momentum_at
from tabmoco.nn.encoder import RowEncoder
from tabmoco.nn.heads import Projector, PrototypeHead
from tabmoco.objectives.base import Objective, Step
from tabmoco.tables.cells import CellBatch

TEMPERATURE = 0.1
"""Temperature of the query encoder's distribution, as in all of the paper."""


class Dino(Objective):
    """Cross-entropy between the target's centred, sharpened distribution and those of the other views."""

    centre: Tensor

    def __init__(self, encoder: RowEncoder, config: ObjectiveConfig):
        super().__init__()
        self.config = config
        self.n_local_views = config.n_local_views
        self.head = PrototypeHead(encoder.d_embedding, config.d_projection, config.n_prototypes)
        self.target = EmaCopy(Projector(encoder, self.head))
        self.register_buffer("centre", torch.zeros(config.n_prototypes))
        self._pending: Tensor | None = None

    def forward(self, encoder: RowEncoder, step: Step) -> dict[str, Tensor]:
        further = [encoder(view.cells, view.masked) for view in (step.key, *step.local)]
        views = [self.head(embedding) / TEMPERATURE for embedding in (step.embedding, *further)]
        targets = [self.target(view.cells, view.masked) for view in (step.query, step.key)]
        shares = [torch.softmax((t - self.centre) / self.config.target_temperature, dim=1) for t in targets]
        losses = [
            -(share * torch.log_softmax(view, dim=1)).sum(1)
            for i, share in enumerate(shares)
            for j, view in enumerate(views)
            if i != j
        ]
        if self.training:
            self._pending = torch.cat(targets).mean(0, keepdim=True)
        mean_share = self.gather(shares[1].mean(0, keepdim=True)).mean(0, keepdim=True)
        entropy, used = (_entropy(share).mean() for share in (shares[1], mean_share))
        return {
            "loss": torch.stack(losses).mean(0).mean(),
            "target_entropy": entropy,
            "prototypes_used": used.exp(),
        }

    def figures(self, embedding: Float[Tensor, "N D"], clean: CellBatch) -> dict[str, Tensor]:
        """How far the target lags behind: one minus the cosine of its projections with the encoder's."""
        project, behind = self.head.project, self.target.module
        query, key = project(embedding), behind[1].project(behind[0](clean))
        return {"key_query_gap": 1 - torch.einsum("np,np->n", query, key).mean()}

    @torch.no_grad()
    def after_step(self, encoder: RowEncoder, progress: float) -> None:
        end = self.config.ema_momentum_end
        momentum = momentum_at(progress, self.config.ema_momentum, 1.0 if end is None else end)
        self.target.update(Projector(encoder, self.head), momentum)
        assert self._pending is not None, "after_step follows forward"
        self.centre.lerp_(self.gather(self._pending).mean(0), 1 - self.config.centre_momentum)
        self._pending = None


def _entropy(share: Float[Tensor, "N n_prototypes"]) -> Float[Tensor, " N"]:
    """In nats, 0 to log(n_prototypes)."""
    return torch.special.entr(share).sum(1)
