"""How rare the rarest category of a row is.

Distances count every other category alike, and a forest seldom splits on one column of many: a level that hardly occurs
would drown among them. What it is worth beside them: benchmarks/LOG.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Rarity:
    """The surprise of every level of `S` code slots, by its rank."""

    surprise: Float[np.ndarray, "S L"]
    """The negative logarithm of the share of reference cells whose level is at most as frequent as that of this rank,
    the cell itself among them; 0 for rank 0, a missing cell."""

    @classmethod
    def fit(cls, ranks: Float[np.ndarray, "n S"], n_ranks: int) -> Rarity:
        """Count the levels of the reference rows; ranks lie in 0 to `n_ranks - 1`, whether there are such rows or
        not."""
        whole = ranks.astype(np.int64)
        surprise = np.zeros((whole.shape[1], n_ranks), dtype=np.float32)
        for slot, levels in enumerate(whole.T):
            count = np.bincount(levels[levels > 0], minlength=n_ranks)[1:]
            ascending = np.sort(count)
            at_most = np.searchsorted(ascending, count, side="right")
            n_cells = np.concatenate([[0], np.cumsum(ascending)])
            surprise[slot, 1:] = -np.log((1 + n_cells[at_most]) / (1 + n_cells[-1]))
        return cls(surprise)

    def __call__(self, ranks: Float[np.ndarray, "N S"]) -> Float[np.ndarray, " N"]:
        """The surprise of each row's rarest level."""
        return self._surprise(ranks).max(1, initial=0.0)

    def blame(self, ranks: Float[np.ndarray, "N S"]) -> Float[np.ndarray, "N S"]:
        """The same, at the slot that holds this level; at several if they are as rare."""
        surprise = self._surprise(ranks)
        return np.where(surprise == surprise.max(1, keepdims=True, initial=0.0), surprise, 0.0)

    def _surprise(self, ranks: Float[np.ndarray, "N S"]) -> Float[np.ndarray, "N S"]:
        return self.surprise[np.arange(len(self.surprise)), ranks.astype(np.int64)].astype(np.float64)
