"""Momentum contrast over columns.

He, Fan, Wu, Xie, Girshick, "Momentum Contrast for Unsupervised Visual Representation Learning", CVPR 2020, section 3
and algorithm 1. Two samples of one column, drawn without a common row, are the positive pair; the queue's past keys of
other columns are the negatives.

NOTE[DIFF]: three departures. There is no head: the contrast acts on the embedding itself. The keys of the batch are
negatives beside the queue's, since a batch holds tables whole and the columns of one table are the hardest to tell
apart. Columns of equal values, which copies of a table have, are never each other's negatives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tabmoco.columns.network import ColumnNetwork
from tabmoco.columns.pool import Pool
from tabmoco.errors import TrainingError
from tabmoco.nn.ema import EmaCopy
from tabmoco.nn.key_queue import KeyQueue
from tabmoco.nn.losses import info_nce

MIN_COLUMNS = 8
"""Columns below which there is nothing to tell apart."""


@dataclass(frozen=True)
class ColumnTraining:
    """How a column encoder is trained."""

    steps: int = 1_200
    batch_size: int = 256
    queue_size: int = 4_096
    temperature: float = 0.1
    ema_momentum: float = 0.99
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2

    d_hidden: int = 192
    d_embedding: int = 64


def train_network(
    pool: Pool,
    config: ColumnTraining,
    *,
    seed: int,
    progress: Callable[[int], None] = lambda n_steps: None,
) -> ColumnNetwork:
    """Learn to tell columns apart; the same seed and columns give the same network.

    Raises
    ------
    TrainingError
        If there are fewer than 8 columns.
    """
    if len(pool) < MIN_COLUMNS:
        raise TrainingError(
            f"a column encoder must have at least {MIN_COLUMNS} columns to learn from, got {len(pool)}; give more "
            "tables, with 20 rows or more each."
        )
    pair, content = torch.from_numpy(pool.pair), torch.from_numpy(pool.content)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = new_network(pool, config)
        target = EmaCopy(network.train())
        queue = KeyQueue(config.queue_size, config.d_embedding)
        optimizer = torch.optim.AdamW(network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
        batches = _Batches(pool, config.batch_size, seed)
        for step in range(config.steps):
            column = batches.columns(step)
            query_side, key_side = _sides(pair, column, np.random.default_rng([seed, step]))
            query, key = network(query_side), target(key_side)
            own = content[column]
            loss = contrast(query, key, own, queue, temperature=config.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            target.update(network, config.ema_momentum)
            queue.push(key, column, own)
            progress(1)
    return network.eval()


def contrast(
    query: Float[Tensor, "N D"],
    key: Float[Tensor, "N D"],
    content: Int64[Tensor, " N"],
    queue: KeyQueue,
    *,
    temperature: float,
) -> Float[Tensor, ""]:
    """Mean InfoNCE of the queries against their keys; negatives are the keys of the queue and of the batch that are of
    columns with other values."""
    queued = queue.filled & (queue.content != content.unsqueeze(1))
    beside = content.unsqueeze(1) != content.unsqueeze(0)
    allowed = torch.cat([queued, beside], dim=1)
    return info_nce(query, key, torch.cat([queue.key, key]), allowed=allowed, temperature=temperature).mean()


def new_network(pool: Pool, config: ColumnTraining) -> ColumnNetwork:
    """A network before its first step, its scale taken from the pool."""
    network = ColumnNetwork(pool.pair.shape[-1], d_hidden=config.d_hidden, d_embedding=config.d_embedding)
    network.fit_scale(torch.from_numpy(pool.pair[:, -1].reshape(-1, pool.pair.shape[-1])))
    return network.eval()


class _Batches:
    """Which columns stand in which step: a function of seed and step alone. The columns of a table follow one another,
    the tables in a new order each round."""

    def __init__(self, pool: Pool, batch_size: int, seed: int):
        self.table = pool.table
        self.n_tables = len(pool.tables)
        self.batch_size = min(batch_size, len(pool))
        self.seed = seed
        self.per_round = max(1, len(pool) // self.batch_size)
        self._round = -1
        self._order = np.zeros(0, dtype=np.int64)

    def columns(self, step: int) -> Int64[Tensor, " N"]:
        number, place = divmod(step, self.per_round)
        if number != self._round:
            rank = np.random.default_rng([self.seed, number]).permutation(self.n_tables)
            self._order, self._round = np.argsort(rank[self.table], kind="stable"), number
        start = place * self.batch_size
        return torch.from_numpy(self._order[start : start + self.batch_size])


def _sides(pair: Tensor, column: Int64[Tensor, " N"], generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """One pair of each column, either sample first."""
    which = torch.from_numpy(generator.integers(pair.shape[1], size=len(column)))
    first = torch.from_numpy(generator.integers(2, size=len(column)))
    return pair[column, which, first], pair[column, which, 1 - first]
