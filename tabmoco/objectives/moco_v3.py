"""Momentum contrast without a queue.

Chen, Xie, He, "An Empirical Study of Training Self-Supervised Vision Transformers", ICCV 2021, section 3, equation 1
and algorithm 1: two views, each the other's key, a predictor on the query's side, the batch's own keys as negatives and
a momentum that rises to 1. Against the instability of transformers (section 4.2) `objective.freeze_tokens` keeps the
layer that makes the tokens as it was drawn.

NOTE[DIFF]: the key view, clean by default, is the second view. Heads have no batch normalisation and the projection has
unit length before the predictor. Exact duplicates of a row are never its negatives.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tabmoco.config import ObjectiveConfig
from tabmoco.corruption import View
from tabmoco.nn.ema import EmaCopy, momentum_at
from tabmoco.nn.encoder import RowEncoder
from tabmoco.nn.heads import Predictor, ProjectionHead, Projector
from tabmoco.nn.losses import info_nce
from tabmoco.nn.norms import encode_shuffled
from tabmoco.objectives.base import Objective, Step
from tabmoco.tables.cells import CellBatch


class MoCoV3(Objective):
    """InfoNCE of each view's prediction against the target's keys of the other view."""

    def __init__(self, encoder: RowEncoder, config: ObjectiveConfig):
        super().__init__()
        self.config = config
        self.head = ProjectionHead(encoder.d_embedding, config.d_projection, "mlp")
        self.predictor = Predictor(config.d_projection, encoder.d_embedding)
        self.target = EmaCopy(Projector(encoder, self.head))

    def forward(self, encoder: RowEncoder, step: Step) -> dict[str, Tensor]:
        first = self.predictor(self.head(step.embedding))
        second = self.predictor(self.head(encoder(step.key.cells, step.key.masked)))
        first_key, second_key = (self._keys(encoder, view) for view in (step.query, step.key))
        loss = self._contrast(first, second_key, step.content) + self._contrast(second, first_key, step.content)
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

    def _keys(self, encoder: RowEncoder, view: View) -> Float[Tensor, "N P"]:
        if encoder.shares_statistics and self.training and self.config.shuffle_keys:
            return encode_shuffled(self.target, view.cells, view.masked)
        return self.target(view.cells, view.masked)

    def _contrast(
        self, query: Float[Tensor, "N P"], key: Float[Tensor, "N P"], content: Int64[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        """`ctr(q, k)` of algorithm 1, with its factor of 2τ."""
        temperature = self.config.temperature
        others = content.unsqueeze(1) != self.gather(content)
        return 2 * temperature * info_nce(query, key, self.gather(key), allowed=others, temperature=temperature)
