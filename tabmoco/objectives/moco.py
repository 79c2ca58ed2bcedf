"""Momentum contrast.

He, Fan, Wu, Xie, Girshick, "Momentum Contrast for Unsupervised Visual Representation Learning", CVPR 2020, section 3 and
algorithm 1; with the MLP head of Chen, Fan, Girshick, He, "Improved Baselines with Momentum Contrastive Learning", 2020.

NOTE[DIFF]: three departures, each for tables. Rows of a table repeat, so a row's own past keys and those of its exact
duplicates are never its negatives. Rows made to lie outside the data are instances of their own and further negatives,
so that the embedding knows where the data ends. No normalisation here shares statistics across a batch, so keys need
no shuffling.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from tabmoco.config import ObjectiveConfig
from tabmoco.nn.ema import EmaCopy
from tabmoco.nn.encoder import RowEncoder
from tabmoco.nn.heads import ProjectionHead
from tabmoco.nn.key_queue import KeyQueue
from tabmoco.nn.losses import info_nce
from tabmoco.objectives.base import Objective, Step

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
        query = self.head(step.embedding)
        key = self.target(step.key.cells)
        n_outside = len(step.outside)
        outside_key = self.target(step.outside)
        outside_content = _outside_content(step)

        negative = torch.cat([self.queue.key, outside_key])
        other = step.content.unsqueeze(1) != outside_content
        allowed = torch.cat([self._may_repel(step.row, step.content), other], dim=1)
        loss = info_nce(query, key, negative, allowed=allowed, temperature=self.config.temperature)
        figures = {
            "loss": loss.mean(),
            "positive_similarity": torch.einsum("np,np->n", query, key).mean(),
            "negative_similarity": _masked_mean(query.detach() @ negative.T, allowed),
        }

        if n_outside:
            outside_query = self.head(encoder(step.outside))
            negative = torch.cat([self.queue.key, key])
            queued = self.queue.filled & (self.queue.content != outside_content.unsqueeze(1))
            outside_loss = info_nce(
                outside_query,
                outside_key,
                negative,
                allowed=torch.cat([queued, other.T], dim=1),
                temperature=self.config.temperature,
            )
            figures["outside_loss"] = outside_loss.mean()
            figures["loss"] = figures["loss"] + n_outside / len(query) * outside_loss.mean()

        self._pending = (key, step.row, step.content)
        return figures

    @torch.no_grad()
    def after_step(self, encoder: RowEncoder, progress: float) -> None:
        momentum = momentum_at(progress, self.config.ema_momentum, self.config.ema_momentum_end)
        self.target.update(nn.Sequential(encoder, self.head), momentum)
        assert self._pending is not None, "after_step follows forward"
        self.queue.push(*self._pending)
        self._pending = None

    def _may_repel(self, row: Tensor, content: Tensor) -> Tensor:
        """`[N, K]`: True where a queued key belongs to another row with other cells."""
        other_row = self.queue.row != row.unsqueeze(1)
        other_content = self.queue.content != content.unsqueeze(1)
        return self.queue.filled & other_row & other_content


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


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum().clamp(min=1)
