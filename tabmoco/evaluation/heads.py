"""Heads by name: what turns a row's embedding, cells, expected cells or traits into class probabilities or a number.

Each is one estimator set for few labels, such as trees whose leaves may hold a single row. `blend` averages several.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from tabmoco.evaluation.boosted import Boosted, BoostedOnBoth
from tabmoco.evaluation.finetune import FineTuned
from tabmoco.evaluation.inputs import HeadInput
from tabmoco.evaluation.problem import Head

N_TREES = 200
"""Trees of a forest."""

MAX_NEIGHBOURS = 15

RIDGE_PENALTIES = tuple(float(10.0**power) for power in range(-2, 5))
"""Penalties among which leave-one-out error chooses, per coordinate of the space."""


class Linear(Head):
    """Logistic or ridge regression on the embedding."""

    strength = 3.0
    """Inverse penalty `C` of a space of one coordinate; every space is divided by the square root of its width."""

    def read(self, rows: HeadInput) -> np.ndarray:
        blocks = [rows.spaces[name].astype(np.float64) for name in self.spaces]
        return np.concatenate([block / np.sqrt(max(1, block.shape[1])) for block in blocks], axis=1)

    def make(self, x: np.ndarray, y: np.ndarray) -> Any:
        if self.problem.is_regression:
            return RidgeCV(alphas=np.array(RIDGE_PENALTIES) / 10)
        return LogisticRegression(C=self.strength, max_iter=2_000)


class LinearOnExpected(Linear):
    """Logistic or ridge regression on the cells that are expected of the row."""

    spaces: ClassVar[tuple[str, ...]] = ("expected",)


class LinearOnBoth(Linear):
    """Logistic or ridge regression on the cells and on those expected."""

    spaces: ClassVar[tuple[str, ...]] = ("cells", "expected")


class LinearOnCells(Linear):
    """Logistic or ridge regression on the cells alone."""

    spaces: ClassVar[tuple[str, ...]] = ("cells",)


class TreesOnCells(Head):
    """Extremely randomised trees on the cells' traits."""

    spaces: ClassVar[tuple[str, ...]] = ("traits",)

    def make(self, x: np.ndarray, y: np.ndarray) -> Any:
        kind = ExtraTreesRegressor if self.problem.is_regression else ExtraTreesClassifier
        return kind(N_TREES, max_features="sqrt", min_samples_leaf=1, random_state=self.problem.seed)


class Trees(TreesOnCells):
    """Extremely randomised trees on the cells' traits and the expected cells."""

    spaces: ClassVar[tuple[str, ...]] = ("traits", "expected")


class Neighbours(Head):
    """The nearest labelled rows in the embedding, by distance."""

    def read(self, rows: HeadInput) -> np.ndarray:
        return rows.joined(self.spaces).astype(np.float64)

    def make(self, x: np.ndarray, y: np.ndarray) -> Any:
        kind = KNeighborsRegressor if self.problem.is_regression else KNeighborsClassifier
        k = int(np.clip(np.sqrt(len(x)), 1, MAX_NEIGHBOURS))
        return kind(k, weights="distance", algorithm="brute")


HEADS: dict[str, type[Head]] = {
    "linear": Linear,
    "expected": LinearOnExpected,
    "cells": LinearOnBoth,
    "linear_on_cells": LinearOnCells,
    "neighbours": Neighbours,
    "trees": Trees,
    "trees_on_cells": TreesOnCells,
    "boosted": Boosted,
    "boosted_on_both": BoostedOnBoth,
    "finetune": FineTuned,
}
"""Every head by its name."""
