"""Momentum contrast.

He, Fan, Wu, Xie, Girshick, "Momentum Contrast for Unsupervised Visual Representation Learning", CVPR 2020, section 3
and algorithm 1; Chen, Fan, Girshick, He, "Improved Baselines with Momentum Contrastive Learning", 2020. Version 1 is
`objective.head = linear`, version 2 `objective.head = mlp` with higher rates of `corruption`.

NOTE[DIFF]: three departures, each for tables. By default there is no head: the contrast acts on the embedding itself,
at unit length. Rows of a table repeat, so a row's own past keys and those of its exact duplicates are, unless asked
for, never its negatives. Rows made to lie outside the data are instances of their own and further negatives, so that
the embedding knows where the data ends. Keys are shuffled where the encoder's norm has statistics of the batch, as in
the paper; elsewhere they need not be.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from tabmoco.config import ObjectiveConfig
from tabmoco.nn.ema import EmaCopy, momentum_at
from tabmoco.nn.encoder import RowEncoder
from tabmoco.nn.heads import ProjectionHead, Projector
from tabmoco.nn.key_queue import KeyQueue
from tabmoco.nn.losses import info_nce
from tabmoco.nn.norms import encode_shuffled
from tabmoco.objectives.base import Objective, Step
from tabmoco.tables.cells import CellBatch


class MoCo(Objective):
    """InfoNCE of query projections against the target's keys, the queue as negatives."""

    def __init__(self, encoder: RowEncoder, config: ObjectiveConfig):
        super().__init__()
        self.config = config
        self.head = ProjectionHead(encoder.d_embedding, config.d_projection, config.head)
        self.target = EmaCopy(Projector(encoder, self.head))
        self.queue = KeyQueue(config.queue_size, self.head.d_projection, config.queue_replacement)
        self._pending: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, encoder: RowEncoder, step: Step) -> dict[str, Tensor]:
        n_rows, n_outside = len(step.clean), len(step.outside)
        query, content = self.head(step.embedding), step.content
        key = self._keys(encoder, step)
        if n_outside:
            query = torch.cat([query, self.head(encoder(step.outside))])
            content = torch.cat([content, step.outside_content])

        # The queue's keys repel all; of the batch's own, those outside repel those inside and the other way round.
        outside = torch.arange(n_rows + n_outside, device=content.device) >= n_rows
        batch_key, batch_outside, batch_content = (self.gather(tensor) for tensor in (key, outside, content))
        opposite = (outside.unsqueeze(1) != batch_outside) & (content.unsqueeze(1) != batch_content)
        loss = info_nce(
            query,
            key,
            torch.cat([self.queue.key, batch_key]),
            allowed=torch.cat([self._queued_others(content), opposite], dim=1),
            temperature=self.config.temperature,
        )
        if self.training:
            self._pending = (self.gather(key[:n_rows]), self.gather(step.row), self.gather(step.content))
        figures = {
            "loss": loss.sum() / n_rows,
            "positive_similarity": torch.einsum("np,np->n", query[:n_rows], key[:n_rows]).mean(),
            "negative_similarity": query[:n_rows].mean(0) @ self.queue.mean_key(),
        }
        return figures | ({"outside_loss": loss[n_rows:].mean()} if n_outside else {})

    def figures(self, embedding: Float[Tensor, "N D"], clean: CellBatch) -> dict[str, Tensor]:
        """How far the target's keys lag behind: one minus the cosine with the query encoder's projections."""
        query, key = self.head(embedding), self.target(clean)
        return {"key_query_gap": 1 - torch.einsum("np,np->n", query, key).mean()}

    @torch.no_grad()
    def after_step(self, encoder: RowEncoder, progress: float) -> None:
        momentum = momentum_at(progress, self.config.ema_momentum, self.config.ema_momentum_end)
        self.target.update(Projector(encoder, self.head), momentum)
        assert self._pending is not None, "after_step follows forward"
        self.queue.push(*self._pending)
        self._pending = None

    def _keys(self, encoder: RowEncoder, step: Step) -> Float[Tensor, "M P"]:
        """Keys of the key view and, below them, of the outside rows."""
        if not encoder.shares_statistics:
            return self.target(CellBatch.cat([step.key.cells, step.outside]))
        parts = [cells for cells in (step.key.cells, step.outside) if len(cells)]
        if self.training and self.config.shuffle_keys:
            return torch.cat([encode_shuffled(self.target, cells) for cells in parts])
        return torch.cat([self.target(cells) for cells in parts])

    def _queued_others(self, content: Int64[Tensor, " N"]) -> Bool[Tensor, "N K"]:
        """True where a queued key is of a row with other cells, and so of another row; or of any, if so asked."""
        if not self.config.mask_duplicates:
            return self.queue.filled.expand(len(content), -1)
        return self.queue.filled & (self.queue.content != content.unsqueeze(1))
