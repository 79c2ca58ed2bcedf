"""A forest that learns from rows without labels what a blend says of them.

Few labels make heads that change with every label; what they say together of thousands of rows, learned once more by
trees on the cells, keeps what agrees from row to row (Bucila, Caruana and Niculescu-Mizil, "Model Compression", 2006,
with rows that exist in place of made-up ones; as self-training, Xie et al., "Self-training with Noisy Student improves
ImageNet classification", 2020). What it is worth: benchmarks/LOG.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from sklearn.ensemble import ExtraTreesRegressor

from tabmoco.evaluation.inputs import HeadInput

MAX_ROWS, MIN_ROWS = 2_000, 200
"""Rows without a label that are learned from at most, and that it takes at least."""

SPACES = ("traits",)
N_TREES = 100
MIN_LEAF = 3
SHARE_TRIED = 1 / 3
"""Share of the traits that a split may be made of."""


@dataclass(frozen=True)
class Student:
    """A forest that gives the probabilities of a blend."""

    forest: ExtraTreesRegressor

    @classmethod
    def fit(cls, rows: HeadInput, told: Float64[np.ndarray, "N K"], *, seed: int) -> Student:
        """Learn what was `told` of the rows."""
        forest = ExtraTreesRegressor(N_TREES, max_features=SHARE_TRIED, min_samples_leaf=MIN_LEAF, random_state=seed)
        return cls(forest.fit(rows.joined(SPACES), told))

    def predict(self, rows: HeadInput) -> Float64[np.ndarray, "N K"]:
        """Class probabilities: means of what was told, so they are above 0 and sum to 1 as those do."""
        return self.forest.predict(rows.joined(SPACES))


def draw_unlabelled(n_rows: int, labelled: Int64[np.ndarray, " n"], *, seed: int) -> Int64[np.ndarray, " m"]:
    """Positions of rows to learn from, among `n_rows` of which some are labelled; none if there are too few."""
    others = np.setdiff1d(np.arange(n_rows), labelled)
    if len(others) < MIN_ROWS:
        return others[:0]
    return np.sort(np.random.default_rng(seed).permutation(others)[:MAX_ROWS])
