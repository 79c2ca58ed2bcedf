"""Rivals that `tabmoco benchmark` does not have: neighbours, a random forest, CatBoost with a search, and the encoder
trained from scratch. All others are those of `tabmoco.evaluation.rivals`.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from benchmarks.few_label_protocol import LEAST_PROBABILITY
from benchmarks.few_label_sources import untrained_twin
from tabmoco.evaluation.finetune import FineTuned
from tabmoco.evaluation.inputs import HeadInput
from tabmoco.evaluation.problem import Head, Problem
from tabmoco.evaluation.rivals import CatBoost

N_TREES = 300
N_FOLDS = 3

SEARCH_SECONDS = 60.0
"""Time of a random search, about what pretraining takes."""

N_CANDIDATES = 20


class CellNeighbours(Head):
    """The nearest labelled rows by their cells, nearer ones counting more.

    Categories count the same however rare they are: standardised, they cost up to 8 points where numbers are predicted.
    """

    spaces: ClassVar[tuple[str, ...]] = ("plain_cells",)

    def __init__(self, problem: Problem, *, n_neighbours: int):
        super().__init__(problem)
        self.n_neighbours = n_neighbours

    def make(self, x: np.ndarray, y: np.ndarray) -> Any:
        kind = KNeighborsRegressor if self.problem.is_regression else KNeighborsClassifier
        return kind(min(self.n_neighbours, len(y)), weights="distance")


class RandomForest(Head):
    spaces: ClassVar[tuple[str, ...]] = ("traits",)

    def make(self, x: np.ndarray, y: np.ndarray) -> Any:
        kind = RandomForestRegressor if self.problem.is_regression else RandomForestClassifier
        n_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        return kind(N_TREES, random_state=self.problem.seed, n_jobs=n_threads)


class FromScratch(FineTuned):
    """The same encoder, trained on the labels alone."""

    def __init__(self, problem: Problem):
        super().__init__(dataclasses.replace(problem, model=untrained_twin(problem.model)))


class SetCatBoost(CatBoost):
    """CatBoost with some other settings."""

    def __init__(self, problem: Problem, settings: Mapping[str, Any]):
        super().__init__(problem)
        self.settings = settings

    def make(self, x: Any, y: np.ndarray) -> Any:
        model = super().make(x, y)
        return model if isinstance(model, DummyClassifier | DummyRegressor) else model.set_params(**self.settings)


class SearchedCatBoost(SetCatBoost):
    """CatBoost with the best of a few random settings by cross-validation, the usual ones among them, as many as a
    minute allows."""

    def __init__(self, problem: Problem):
        super().__init__(problem, {})

    def fit(self, rows: HeadInput, y: np.ndarray) -> Head:
        generator, deadline = np.random.default_rng(self.problem.seed), time.monotonic() + SEARCH_SECONDS
        smallest = len(y) if self.problem.is_regression else np.unique(y, return_counts=True)[1].min()
        n_folds, least = min(N_FOLDS, smallest), np.inf
        for number in range(N_CANDIDATES if n_folds > 1 else 0):
            settings = {} if number == 0 else _candidate(generator)
            cost = _cost(self.problem, settings, rows, y, n_folds)
            self.settings, least = (settings, cost) if cost < least else (self.settings, least)
            if time.monotonic() > deadline:
                break
        return super().fit(rows, y)


def _candidate(generator: np.random.Generator) -> dict[str, Any]:
    return {
        "iterations": int(generator.choice([100, 200, 400, 800])),
        "depth": int(generator.integers(3, 9)),
        "learning_rate": float(10 ** generator.uniform(-2, -0.5)),
        "l2_leaf_reg": float(10 ** generator.uniform(0, 1.5)),
    }


def _cost(problem: Problem, settings: Mapping[str, Any], rows: HeadInput, y: np.ndarray, n_folds: int) -> float:
    """Log loss, or squared error, of rows kept out."""
    kind = KFold if problem.is_regression else StratifiedKFold
    costs = []
    for kept, out in kind(n_folds, shuffle=True, random_state=problem.seed).split(y, y):
        found = SetCatBoost(problem, settings).fit(rows[kept], y[kept]).predict(rows[out])
        if problem.is_regression:
            costs.append(np.mean((found - y[out]) ** 2))
        else:
            costs.append(-np.mean(np.log(np.clip(found[np.arange(len(out)), y[out]], LEAST_PROBABILITY, 1))))
    return float(np.mean(costs))
