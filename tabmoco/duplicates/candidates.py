"""Which pairs of rows are worth comparing cell by cell: few for each row, never all.

Neighbours in vector spaces find pairs that agree in most cells. Equal rare values, the blocking of record linkage
(Newcombe et al. 1959, "Automatic linkage of vital records"), find pairs that share little else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int64

from tabmoco.duplicates.compared import ComparedRows
from tabmoco.neighbors.index import FLAT_UP_TO, NO_NEIGHBOUR, RowIndex

Rows = Int64[np.ndarray, " P"]

RARE_UP_TO = 5
"""A value that so many rows hold, or fewer, makes each two of them a candidate."""

NARROW = 128
"""Width of the space that many long vectors are searched in: random directions, which keep distances nearly equal
(Johnson and Lindenstrauss 1984). Pairs found are compared by their cells, so near enough is good enough."""


def candidates(
    rows: ComparedRows, spaces: Sequence[Float[np.ndarray, "N _"]], is_other: Bool[np.ndarray, " N"], *, k: int
) -> tuple[Rows, Rows]:
    """Pairs of different rows, each once, the smaller position first.

    Parameters
    ----------
    spaces
        Vectors of the rows; the `k` nearest in each are candidates, and so are the `k` with which a row shares most
        rare values.
    is_other
        Which rows belong to the other table: then pairs are between the two. All false within one table.
    """
    across = bool(is_other.any())
    own, others = (np.flatnonzero(~is_other), np.flatnonzero(is_other)) if across else (np.arange(len(rows)),) * 2
    found = [_keys(*_nearest(_narrowed(vectors, len(rows)), own, others, k), len(rows)) for vectors in spaces]
    found.append(_sharing_rare_values(rows, is_other if across else None, k))
    key = np.unique(np.concatenate(found))
    return key // max(1, len(rows)), key % max(1, len(rows))


def _keys(first: Rows, second: Rows, n_rows: int) -> Rows:
    """One number per pair, whichever of its rows comes first."""
    return np.minimum(first, second) * n_rows + np.maximum(first, second)


def _nearest(vectors: np.ndarray, own: Rows, others: Rows, k: int) -> tuple[Rows, Rows]:
    index = RowIndex.build(vectors[others], others)
    _, found = index.search(vectors[own], min(k, max(1, len(others))), exclude=own)
    first = np.repeat(own, found.shape[1])
    second = found.ravel()
    return first[second != NO_NEIGHBOUR], second[second != NO_NEIGHBOUR]


def _narrowed(vectors: np.ndarray, n_rows: int) -> np.ndarray:
    if n_rows <= FLAT_UP_TO or vectors.shape[1] <= NARROW:
        return vectors
    directions = np.random.default_rng(0).normal(size=(vectors.shape[1], NARROW)) / np.sqrt(NARROW)
    return vectors @ directions.astype(np.float32)


def _sharing_rare_values(rows: ComparedRows, is_other: np.ndarray | None, k: int) -> Rows:
    """Of each row, the `k` pairs with the most values that at most `RARE_UP_TO` rows hold."""
    keys = [np.zeros(0, dtype=np.int64)]
    for column in range(len(rows.columns)):
        present = np.flatnonzero(~rows.missing(column))
        order = present[np.argsort(rows.values[column][present], kind="stable")]
        _, start, count = np.unique(rows.values[column][order], return_index=True, return_counts=True)
        size = np.repeat(count, count)
        rank = np.arange(len(order)) - np.repeat(start, count)
        for step in range(1, RARE_UP_TO):
            place = np.flatnonzero((size <= RARE_UP_TO) & (rank + step < size))
            keys.append(_keys(order[place], order[place + step], len(rows)))
    key, n_shared = np.unique(np.concatenate(keys), return_counts=True)
    if is_other is not None:
        across = is_other[key // len(rows)] != is_other[key % len(rows)]
        key, n_shared = key[across], n_shared[across]
    return key[_among_best(key // max(1, len(rows)), key % max(1, len(rows)), n_shared, k)]


def _among_best(first: Rows, second: Rows, score: np.ndarray, k: int) -> Bool[np.ndarray, " P"]:
    """Which pairs are among the `k` best of either of their rows."""
    kept = np.zeros(len(first), dtype=bool)
    for owner in (first, second):
        order = np.lexsort((-score, owner))
        rank = np.arange(len(order)) - np.searchsorted(owner[order], owner[order])
        kept[order[rank < k]] = True
    return kept
