"""Which rows a training step uses: a pure function of the seed and the step, so nothing has to be remembered."""

from __future__ import annotations

from functools import lru_cache

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


EPOCHS, STEPS = 1, 2
"""Streams of randomness: numbers of two streams never share a seed."""


class BatchOrder:
    """Every epoch is a permutation of the rows; a batch takes the next rows, across the end of an epoch if need be."""

    def __init__(self, n_rows: int, batch_size: int, *, seed: int):
        self.n_rows = n_rows
        self.batch_size = min(batch_size, n_rows)
        self.seed = seed
        self._permutation = lru_cache(maxsize=2)(self._permute)

    def __call__(self, step: int) -> Int64[Tensor, " B"]:
        """Positions of the rows of a step."""
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
        return torch.randperm(self.n_rows, generator=generator)
