"""Which rows a training step uses: a pure function of the seed and the step, so nothing has to be remembered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor


def derive_seed(*numbers: int) -> int:
    """One seed from several numbers; different numbers give unrelated seeds (splitmix64's mixing steps)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state & 0x7FFFFFFFFFFFFFFF


EPOCHS, STEPS, MONITOR, SPLIT, REFERENCE, PLAUSIBILITY, PROBE, WINDOWS, DONORS, UPDATES = range(1, 11)
"""Streams of randomness: numbers of two streams never share a seed."""


class BatchOrder:
    """Every epoch is a permutation of the rows; a batch takes the next rows, across the end of an epoch if need be."""

    def __init__(self, n_rows: int, batch_size: int, *, seed: int, device: torch.device | str = "cpu"):
        self.n_rows = n_rows
        self.batch_size = min(batch_size, n_rows)
        self.seed = seed
        self.device = device
        self._permutation = lru_cache(maxsize=2)(self._permute)

    def __call__(self, step: int) -> Int64[Tensor, " B"]:
        """Positions of the rows of a step, on the device."""
        first = step * self.batch_size
        parts, wanted = [], self.batch_size
        while wanted:
            epoch, offset = divmod(first, self.n_rows)
            part = self._permutation(epoch)[offset : offset + wanted]
            parts.append(part)
            wanted -= len(part)
            first += len(part)
        return torch.cat(parts)

    def steps_of(self, epochs: float) -> int:
        """Steps that pass over the rows `epochs` times, at least one."""
        return max(1, round(epochs * self.n_rows / self.batch_size))

    def _permute(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, EPOCHS, epoch))
        return torch.randperm(self.n_rows, generator=generator).to(self.device)  # the same order on every device


@dataclass(frozen=True)
class Piece:
    """Some of a window's rows."""

    epoch: int
    window: int
    places: Int64[Tensor, " n"]
    """Places among the window's rows, as the order of its blocks has them."""


class WindowOrder:
    """Every epoch passes over all rows, without a permutation of all of them.

    Rows are cut into blocks of `block_rows` that stand side by side in the table; an epoch shuffles the blocks, puts so
    many into a window as it holds, and shuffles the window's rows. Only a window has to be in memory, and reading it is
    reading whole blocks. With hundreds of blocks a window is a fair sample even of a sorted table.
    """

    def __init__(self, n_rows: int, batch_size: int, *, seed: int, block_rows: int, window_blocks: int):
        self.n_rows = n_rows
        self.batch_size = min(batch_size, n_rows)
        self.seed = seed
        self.block_rows = block_rows
        self.window_blocks = window_blocks
        self.n_blocks = -(-n_rows // block_rows)
        self.n_windows = -(-self.n_blocks // window_blocks)
        self._epoch = lru_cache(maxsize=2)(self._shuffle_blocks)
        self._permutation = lru_cache(maxsize=2)(self._shuffle_rows)

    def __call__(self, step: int) -> list[Piece]:
        """The rows of a step, in order."""
        first, wanted, pieces = step * self.batch_size, self.batch_size, []
        while wanted:
            epoch, offset = divmod(first, self.n_rows)
            ends = self._epoch(epoch)[1]
            window = int(np.searchsorted(ends, offset, side="right"))
            start = int(ends[window - 1]) if window else 0
            places = self._permutation(epoch, window)[offset - start : offset - start + wanted]
            pieces.append(Piece(epoch, window, places))
            wanted -= len(places)
            first += len(places)
        return pieces

    def after(self, epoch: int, window: int) -> tuple[int, int]:
        """The epoch and number of the window that follows."""
        return (epoch, window + 1) if window + 1 < self.n_windows else (epoch + 1, 0)

    def rows(self, epoch: int, window: int) -> Int64[np.ndarray, " n"]:
        """Numbers of the rows of a window, block after block."""
        blocks = self._epoch(epoch)[0][window * self.window_blocks : (window + 1) * self.window_blocks]
        rows = (blocks[:, None] * self.block_rows + np.arange(self.block_rows)).ravel()
        return rows[rows < self.n_rows]

    def steps_of(self, epochs: float) -> int:
        """Steps that pass over the rows `epochs` times, at least one."""
        return max(1, round(epochs * self.n_rows / self.batch_size))

    def _shuffle_blocks(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The blocks in the order of an epoch, and the number of rows up to the end of each of its windows."""
        order = np.random.default_rng(derive_seed(self.seed, EPOCHS, epoch)).permutation(self.n_blocks)
        size = np.full(self.n_blocks, self.block_rows)
        size[-1] = self.n_rows - (self.n_blocks - 1) * self.block_rows
        return order, np.cumsum(np.add.reduceat(size[order], np.arange(0, self.n_blocks, self.window_blocks)))

    def _shuffle_rows(self, epoch: int, window: int) -> Tensor:
        ends = self._epoch(epoch)[1]
        n_rows = int(ends[window] - (ends[window - 1] if window else 0))
        generator = torch.Generator().manual_seed(derive_seed(self.seed, WINDOWS, epoch, window))
        return torch.randperm(n_rows, generator=generator)
