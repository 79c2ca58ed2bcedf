"""Momentum contrast.

He, Fan, Wu, Xie, Girshick, "Momentum Contrast for Unsupervised Visual Representation Learning", CVPR 2020, section 3
and algorithm 1; the MLP head is that of Chen, Fan, Girshick, He, "Improved Baselines with Momentum Contrastive
Learning", 2020.

NOTE[DIFF]: four departures, each for tables. By default there is no head: the contrast acts on the embedding itself, at
unit length. Rows of a table repeat, so a row's own past keys and those of its exact
duplicates are never its negatives. Rows made to lie outside the data are instances of their own and further negatives,
so that the embedding knows where the data ends. No normalisation here shares statistics across a batch, so keys need
no shuffling.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from tabmoco.config import ObjectiveConfig
from tabmoco.nn.ema import EmaCopy
from tabmoco.nn.encoder import RowEncoder
from tabmoco.nn.heads import ProjectionHead
from tabmoco.nn.key_queue import NO_ROW, KeyQueue
from tabmoco.nn.losses import info_nce
from tabmoco.objectives.base import Objective, Step
from tabmoco.tables.cells import CellBatch

MOVED = -1
"""Content of a row that truly lies outside; no row of a table has it, as content hashes are never negative."""


def momentum_at(progress: float, start: float, end: float | None) -> float:
    """The target's momentum: constant, or a cosine ramp from `start` to `end` (Grill et al. 2020, section 3.2)."""
    return start if end is None else end - (end - start) * (math.cos(math.pi * progress) + 1) / 2


class MoCo(Objective):
    """InfoNCE of query projections against the target's keys, the queue as negatives."""

    def __init__(self, encoder: RowEncoder, config: ObjectiveConfig):
        super().__init__()
        self.config = config
        self.head = ProjectionHead(encoder.d_embedding, config.d_projection, config.head)
        self.target = EmaCopy(nn.Sequential(encoder, self.head))
        self.queue = KeyQueue(config.queue_size, self.head.d_projection)
        self._pending: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, encoder: RowEncoder, step: Step) -> dict[str, Tensor]:
        n_rows, n_outside = len(step.clean), len(step.outside)
        query, content, row = self.head(step.embedding), step.content, step.row
        key = self.target(CellBatch.cat([step.key.cells, step.outside]))
        if n_outside:
            query = torch.cat([query, self.head(encoder(step.outside))])
            content = torch.cat([content, _outside_content(step)])
            row = torch.cat([row, row.new_full((n_outside,), NO_ROW)])

        # The queue's keys repel all; of the batch's own, those outside repel those inside and the other way round.
        outside = torch.arange(n_rows + n_outside, device=row.device) >= n_rows
        opposite = (outside.unsqueeze(1) != outside) & (content.unsqueeze(1) != content)
        loss = info_nce(
            query,
            key,
            torch.cat([self.queue.key, key]),
            allowed=torch.cat([self._queued_others(row, content), opposite], dim=1),
            temperature=self.config.temperature,
        )
        if self.training:
            self._pending = (key[:n_rows], step.row, step.content)
        figures = {
            "loss": loss.sum() / n_rows,
            "positive_similarity": torch.einsum("np,np->n", query[:n_rows], key[:n_rows]).mean(),
            "negative_similarity": query[:n_rows].mean(0) @ self.queue.mean_key(),
        }
        return figures | ({"outside_loss": loss[n_rows:].mean()} if n_outside else {})

    @torch.no_grad()
    def after_step(self, encoder: RowEncoder, progress: float) -> None:
        momentum = momentum_at(progress, self.config.ema_momentum, self.config.ema_momentum_end)
        self.target.update(nn.Sequential(encoder, self.head), momentum)
        assert self._pending is not None, "after_step follows forward"
        self.queue.push(*self._pending)
        self._pending = None

    def _queued_others(self, row: Int64[Tensor, " N"], content: Int64[Tensor, " N"]) -> Bool[Tensor, "N K"]:
        """True where a queued key is of another row, and of one with other cells."""
        queue = self.queue
        return queue.filled & (queue.row != row.unsqueeze(1)) & (queue.content != content.unsqueeze(1))


def _outside_content(step: Step) -> Int64[Tensor, " n_outside"]:
    """Content of each outside row: `MOVED`, or that of its origin where the damage happened to change nothing."""
    outside, n_outside = step.outside, len(step.outside)
    origin = step.clean[:n_outside]
    unchanged = (
        (outside.number == origin.number).all(1)
        & (outside.code == origin.code).all(1)
        & (outside.missing == origin.missing).all(1)
    )
    return torch.where(unchanged, step.content[:n_outside], MOVED)
