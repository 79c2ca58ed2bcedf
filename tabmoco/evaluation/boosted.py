"""Boosted trees set for few labels: a leaf may hold one row, and steps are many and small.

CatBoost is used where it is installed, else LightGBM, else scikit-learn's own; the extra `trees` installs the first
two.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from tabmoco.evaluation.problem import Head

N_ROUNDS = 200


class Boosted(Head):
    """Boosted trees on the cells' traits."""

    spaces: ClassVar[tuple[str, ...]] = ("traits",)

    def make(self, x: np.ndarray, y: np.ndarray) -> Any:
        return BOOSTERS[boosting_library()](self.problem.is_regression, len(x), self.problem.seed)


class BoostedOnBoth(Boosted):
    """Boosted trees on the leading components of the expected cells and the cells' traits."""

    spaces: ClassVar[tuple[str, ...]] = ("components", "traits")


def boosting_library() -> str:
    """The best library at hand: "catboost", "lightgbm" or "sklearn"."""
    return next(name for name in BOOSTERS if importlib.util.find_spec(name) is not None)


def smallest_leaf(n_labels: int) -> int:
    """1 row up to some hundred labels, 20 from some thousand on."""
    return int(np.clip(n_labels // 200, 1, 20))


def _catboost(is_regression: bool, n_labels: int, seed: int) -> Any:
    import catboost

    kind = catboost.CatBoostRegressor if is_regression else catboost.CatBoostClassifier
    return kind(
        iterations=N_ROUNDS,
        depth=6 if n_labels >= 1_000 else 4,
        min_data_in_leaf=smallest_leaf(n_labels),
        random_seed=seed % 2**31,
        allow_writing_files=False,
        verbose=False,
    )


def _lightgbm(is_regression: bool, n_labels: int, seed: int) -> Any:
    import lightgbm

    kind = lightgbm.LGBMRegressor if is_regression else lightgbm.LGBMClassifier
    return kind(
        n_estimators=N_ROUNDS,
        learning_rate=0.05,
        num_leaves=8 if n_labels < 1_000 else 31,
        min_child_samples=smallest_leaf(n_labels),
        min_child_weight=1e-3,
        min_data_in_bin=1,
        colsample_bytree=0.5,
        reg_lambda=1.0,
        random_state=seed % 2**31,
        n_jobs=1,
        deterministic=True,
        verbose=-1,
    )


def _sklearn(is_regression: bool, n_labels: int, seed: int) -> Any:
    kind = HistGradientBoostingRegressor if is_regression else HistGradientBoostingClassifier
    return kind(
        max_iter=N_ROUNDS // 2,
        learning_rate=0.1,
        max_leaf_nodes=8 if n_labels < 1_000 else 31,
        min_samples_leaf=smallest_leaf(n_labels),
        l2_regularization=1.0,
        max_features=0.5,
        early_stopping=False,
        random_state=seed,
    )


BOOSTERS: dict[str, Callable[[bool, int, int], Any]] = {
    "catboost": _catboost,
    "lightgbm": _lightgbm,
    "sklearn": _sklearn,
}
