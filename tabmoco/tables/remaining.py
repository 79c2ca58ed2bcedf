"""All rows of a table but some, without a list of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64


@dataclass(frozen=True)
class RemainingRows:
    """The rows of a table of `n_table` rows, but for those at the positions `without`, ascending and distinct.

    They are numbered from 0 as they stand in the table. What this takes grows with `without`, not with the table.
    """

    n_table: int
    without: Int64[np.ndarray, " m"]

    def __len__(self) -> int:
        return self.n_table - len(self.without)

    def positions(self, numbers: Int64[np.ndarray, ...]) -> Int64[np.ndarray, ...]:
        """Where in the table the rows of these numbers stand."""
        n_before = self.without - np.arange(len(self.without))  # remaining rows before each that is left out
        return numbers + np.searchsorted(n_before, numbers, side="right")

    def span(self, first: int, last: int) -> Int64[np.ndarray, " n"]:
        """The remaining positions from `first` up to, not including, `last`."""
        low, high = np.searchsorted(self.without, [first, last])
        here = np.ones(last - first, dtype=bool)
        here[self.without[low:high] - first] = False
        return first + np.flatnonzero(here)

    def draw(self, n_rows: int, random: np.random.Generator) -> Int64[np.ndarray, " n"]:
        """Positions of so many random rows, or of all, none twice, in random order."""
        return self.positions(random.choice(len(self), min(n_rows, len(self)), replace=False))
