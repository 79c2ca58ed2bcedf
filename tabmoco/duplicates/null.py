"""From which similarity on two rows are duplicates, told without labels from how similar different things get.

Of a row's candidates, sorted by similarity, all but a few are different things. The largest of many draws from a tail
that falls off exponentially lie on average `scale / r` apart from rank r to r + 1 (Rényi, "On the theory of order
statistics", 1953). So the spacing of the ranks tells the scale, and a rank that no duplicate holds tells how likely the
ranks above it are to pass a threshold by chance. The threshold is the lowest at which at most `FALSE_ROWS` of the rows
that pass are expected to do so by chance (the false discovery rate of Benjamini and Hochberg 1995, with an empirical
null as in Efron 2004).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int64

RANKS = (2, 4, 6)
"""Ranks, counted from 1, of which each row's chance is told by the one that says least: a row with one duplicate has
different things from the second rank on, one with five from the sixth."""

SPACING = 3
"""Ranks over which the spacing is measured; the smallest of the medians over all rows counts."""

DEPTH = max(RANKS) + SPACING
"""Ranks of a row's candidates that are looked at."""

FEWEST_ROWS = 30
"""Rows with so many candidates, so that there is something to measure."""

FALSE_ROWS = 0.05

CHANCE = 0.1
"""Rows that may be expected to pass by chance in any case."""

LOWEST = 0.3
"""Never a lower threshold, however different all other rows are: duplicates share a third of what equal rows do."""

USUAL = 0.7
"""The threshold of tables too small to measure one."""

_GRID = np.round(np.arange(LOWEST, 1.0, 0.01), 2)


def auto_threshold(owner: Int64[np.ndarray, " P"], similarity: Float[np.ndarray, " P"], n_rows: int) -> float:
    """The threshold for candidates of these similarities, each belonging to a row; 1 if none will do.

    Parameters
    ----------
    owner
        The row that each candidate was found for; a pair within one table belongs to both of its rows.
    similarity
        As `Weights.similarity` gives it, negative values included.
    """
    ranked = _ranked(owner, similarity, n_rows)
    if len(ranked) < FEWEST_ROWS:
        return USUAL
    scale = max(1e-3, min(_scale(ranked, rank) for rank in RANKS))
    best = np.sort(ranked[:, 0])
    for threshold in _GRID:
        n_by_chance = np.min([_chance(ranked[:, rank - 1], rank, threshold, scale) for rank in RANKS], axis=0).sum()
        n_passing = len(best) - np.searchsorted(best, threshold)
        if n_by_chance <= max(FALSE_ROWS * n_passing, CHANCE):
            return float(threshold)
    return 1.0


def _scale(ranked: Float[np.ndarray, "N DEPTH"], rank: int) -> float:
    """The scale of the tail by the median spacing below a rank."""
    expected = (1 / np.arange(rank, rank + SPACING)).sum()
    return float(np.median(ranked[:, rank - 1] - ranked[:, rank + SPACING - 1]) / expected)


def _chance(similarity: Float[np.ndarray, " N"], rank: int, threshold: float, scale: float) -> Float[np.ndarray, " N"]:
    """How likely the best of the candidates above the one of this rank and similarity is to pass the threshold."""
    within = -np.expm1(-np.maximum(threshold - similarity, 0.0) / scale)
    all_within = within
    for _ in range(rank - 2):
        all_within = all_within * within
    return 1 - all_within


def _ranked(
    owner: Int64[np.ndarray, " P"], similarity: Float[np.ndarray, " P"], n_rows: int
) -> Float[np.ndarray, "N DEPTH"]:
    """The similarities of the best candidates, descending, of the rows that have as many."""
    order = np.lexsort((-similarity, owner))
    owner, similarity = owner[order], similarity[order]
    rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
    ranked = np.full((n_rows, DEPTH), np.nan)
    kept = rank < DEPTH
    ranked[owner[kept], rank[kept]] = similarity[kept]
    return ranked[~np.isnan(ranked).any(1)]
