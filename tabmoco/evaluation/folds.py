"""Splits of labelled rows that keep the classes' shares, whatever their sizes."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64


def fold_of_each(y: Int64[np.ndarray, " N"] | None, n_rows: int, *, n_folds: int, seed: int) -> Int64[np.ndarray, " N"]:
    """A fold for each row, sizes equal to within one; members of a class are dealt out in turn.

    A class of fewer members than folds is in some folds and not in others; one with a single member is learned by all
    folds but the one that holds it out. `y` None deals out all rows alike.
    """
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(n_rows)
    order = shuffled if y is None else shuffled[np.argsort(y[shuffled], kind="stable")]
    fold = np.empty(n_rows, dtype=np.int64)
    fold[order] = (np.arange(n_rows) + generator.integers(n_folds)) % n_folds
    return fold


def draw_labelled(
    y: Int64[np.ndarray, " N"] | None, n_rows: int, n_labelled: int, *, seed: int
) -> Int64[np.ndarray, " n"]:
    """Positions of `n_labelled` random rows, one of each class first and then in the classes' shares."""
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(n_rows)
    if y is None:
        return np.sort(shuffled[:n_labelled])
    _, code, size = np.unique(y[shuffled], return_inverse=True, return_counts=True)
    place = np.empty(n_rows)
    for label, n_members in enumerate(size):
        turn = np.arange(n_members, dtype=np.float64)
        place[code == label] = np.where(turn == 0, -1.0, (turn + generator.random()) / n_members)
    return np.sort(shuffled[np.argsort(place, kind="stable")[:n_labelled]])
