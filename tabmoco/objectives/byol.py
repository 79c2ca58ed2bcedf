"""Prediction of the target, without negatives.

Grill et al., "Bootstrap Your Own Latent: A New Approach to Self-Supervised Learning", NeurIPS 2020, section 3.1,
equation 2: from each view the target's projection of the other is predicted. Nothing but the predictor and the slow
target keeps all rows from becoming one; the monitor's effective rank tells if they do.

NOTE[DIFF]: the key view, clean by default, is the second view. Heads have layer normalisation in place of batch
normalisation, without which Richemond et al., "BYOL works even without batch statistics", 2020, train as well; the
projection has unit length before the predictor.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tabmoco.config import ObjectiveConfig
from tabmoco.nn.ema import EmaCopy, momentum_at
from tabmoco.nn.encoder import RowEncoder
from tabmoco.nn.heads import Predictor, ProjectionHead, Projector
from tabmoco.objectives.base import Objective, Step
from tabmoco.tables.cells import CellBatch


class Byol(Objective):
    """Squared distance of each view's prediction to the target's projection of the other view."""

    def __init__(self, encoder: RowEncoder, config: ObjectiveConfig):
        super().__init__()
        self.config = config
        self.head = ProjectionHead(encoder.d_embedding, config.d_projection, "mlp")
        self.predictor = Predictor(config.d_projection, encoder.d_embedding)
        self.target = EmaCopy(Projector(encoder, self.head))

    def forward(self, encoder: RowEncoder, step: Step) -> dict[str, Tensor]:
        first = self.predictor(self.head(step.embedding))
        second = self.predictor(self.head(encoder(step.key.cells, step.key.masked)))
        first_key, second_key = (self.target(view.cells, view.masked) for view in (step.query, step.key))
        loss = _distance(first, second_key) + _distance(second, first_key)
        return {"loss": loss.mean(), "positive_similarity": torch.einsum("np,np->n", first, second_key).mean()}

    def figures(self, embedding: Float[Tensor, "N D"], clean: CellBatch) -> dict[str, Tensor]:
        """How far the target lags behind: one minus the cosine of its projections with the encoder's."""
        query, key = self.head(embedding), self.target(clean)
        return {"key_query_gap": 1 - torch.einsum("np,np->n", query, key).mean()}

    @torch.no_grad()
    def after_step(self, encoder: RowEncoder, progress: float) -> None:
        end = self.config.ema_momentum_end
        momentum = momentum_at(progress, self.config.ema_momentum, 1.0 if end is None else end)
        self.target.update(Projector(encoder, self.head), momentum)


def _distance(prediction: Float[Tensor, "N P"], key: Float[Tensor, "N P"]) -> Float[Tensor, " N"]:
    """`‖q − z‖²` of unit vectors, 0 to 4."""
    return 2 - 2 * torch.einsum("np,np->n", prediction, key)
