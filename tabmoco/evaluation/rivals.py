"""The methods that `benchmark` compares: rivals on the cells, controls, probes of the embedding, and the default.

Rivals are set as their users would set them for so many labels, not as their libraries come: with the stock minimum of
20 rows a leaf, boosted trees say the same of every row at ten labels, and beating them would prove nothing. All read
the same cells, in the form that suits them best. Of forms and settings tried on five tables at 25 to 2,500 labels the
best are used: penalties of linear models that grow with the width (against a fixed one +1.5 to +3 AUROC points up to
100 labels), traits for trees (+1 to +2), and small steps for boosting (+1 to +2).
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from tabmoco.evaluation.blend import Blend, build_head
from tabmoco.evaluation.boosted import BOOSTERS, smallest_leaf
from tabmoco.evaluation.figures import METRICS, class_figures, number_figures
from tabmoco.evaluation.folds import fold_of_each
from tabmoco.evaluation.heads import Linear, TreesOnCells
from tabmoco.evaluation.inputs import HeadInput
from tabmoco.evaluation.problem import Head, Problem
from tabmoco.evaluation.verdict import Family

CHOSEN_FROM = 1_000
"""Labels from which on cross-validation chooses the penalty of logistic regression; with fewer it chooses no better
than a fixed one."""

CHOSEN_ON = 2_000
"""Labels it chooses on at most."""

STRENGTHS = (0.3, 3.0, 30.0, 300.0, 3_000.0)
N_FOLDS = 3

FEW_LABELS = 1_000
"""With fewer labels CatBoost has an indicator for every value of a category; its own statistics of the target by value
need more of them. It takes fewer and larger steps, too."""

N_PARTS = 10
"""Parts of the tested rows that are left out in turn, to see how much a figure depends on them."""

INDICATORS = 50
FEW_ROUNDS = 300


class Guess(Head):
    """The classes' shares, or the mean, whatever the row."""

    spaces: ClassVar[tuple[str, ...]] = ("cells",)

    def make(self, x: np.ndarray, y: np.ndarray) -> Any:
        return DummyRegressor() if self.problem.is_regression else DummyClassifier()


class Logistic(Linear):
    """Logistic or ridge regression, its penalty chosen by cross-validation where there are labels enough."""

    def make(self, x: np.ndarray, y: np.ndarray) -> Any:
        model = super().make(x, y)
        if self.problem.is_regression or len(y) < CHOSEN_FROM:
            return model
        return _Chosen(model, self.problem.seed)


class _Chosen:
    """A logistic regression whose penalty is chosen on some of the labels, and which is then fitted on all."""

    def __init__(self, model: LogisticRegression, seed: int):
        self.model, self.seed = model, seed

    def fit(self, x: np.ndarray, y: np.ndarray) -> LogisticRegression:
        some = np.random.default_rng(self.seed).permutation(len(y))[:CHOSEN_ON]
        if np.bincount(y[some], minlength=y.max() + 1).min() >= N_FOLDS:
            folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=self.seed)
            search = GridSearchCV(self.model, {"C": STRENGTHS}, scoring="neg_log_loss", cv=folds, refit=False)
            self.model.set_params(**search.fit(x[some], y[some]).best_params_)
        return self.model.fit(x, y)


class LogisticOnCells(Logistic):
    spaces: ClassVar[tuple[str, ...]] = ("cells",)


class LogisticOnUntrained(Logistic):
    spaces: ClassVar[tuple[str, ...]] = ("untrained",)


class LogisticOnComponents(Logistic):
    spaces: ClassVar[tuple[str, ...]] = ("cell_components",)


class LogisticOnExpected(Logistic):
    spaces: ClassVar[tuple[str, ...]] = ("expected",)


class LogisticOnBoth(Logistic):
    spaces: ClassVar[tuple[str, ...]] = ("cells", "expected")


class HistogramBoosting(Head):
    spaces: ClassVar[tuple[str, ...]] = ("traits",)

    def make(self, x: np.ndarray, y: np.ndarray) -> Any:
        return BOOSTERS["sklearn"](self.problem.is_regression, len(y), self.problem.seed)


class LightGBM(Head):
    spaces: ClassVar[tuple[str, ...]] = ("traits",)

    def make(self, x: np.ndarray, y: np.ndarray) -> Any:
        return BOOSTERS["lightgbm"](self.problem.is_regression, len(y), self.problem.seed)


class XGBoost(Head):
    spaces: ClassVar[tuple[str, ...]] = ("traits",)

    def make(self, x: np.ndarray, y: np.ndarray) -> Any:
        import xgboost

        kind = xgboost.XGBRegressor if self.problem.is_regression else xgboost.XGBClassifier
        return kind(
            n_estimators=200,
            learning_rate=0.05,
            max_depth=4 if len(y) < FEW_LABELS else 6,
            min_child_weight=smallest_leaf(len(y)) / 20,  # of a leaf's second derivatives; the default is 1
            colsample_bytree=0.5,
            random_state=self.problem.seed,
            n_jobs=1,
            verbosity=0,
        )


class CatBoost(Head):
    """CatBoost on numbers and categories as they come; gaps are its own business too."""

    def read(self, rows: HeadInput) -> Any:
        layout, cells = self.problem.model.preprocessor.layout, rows.cells
        missing = cells.missing.numpy()
        number = np.where(missing[:, list(layout.number_owner)], np.nan, cells.number.numpy())
        code = np.where(missing[:, list(layout.code_owner)], -1, cells.code.numpy())
        numbers = pd.DataFrame(number).add_prefix("number_")
        return pd.concat([numbers, pd.DataFrame(code).add_prefix("code_")], axis=1)

    def make(self, x: Any, y: np.ndarray) -> Any:
        import catboost

        if not (x.nunique() > 1).any():  # CatBoost refuses such rows
            return Guess(self.problem).make(x, y)
        kind = catboost.CatBoostRegressor if self.problem.is_regression else catboost.CatBoostClassifier
        few = {"one_hot_max_size": INDICATORS, "iterations": FEW_ROUNDS} if len(y) < FEW_LABELS else {}
        return kind(
            cat_features=[name for name in x.columns if name.startswith("code_")],
            random_seed=self.problem.seed % 2**31,
            allow_writing_files=False,
            verbose=False,
            **few,
        )


@dataclass(frozen=True)
class Method:
    """One way to predict."""

    name: str
    family: Family
    learner: str
    reads: str = "the cells"
    head: Callable[[Problem], Head | Blend] | None = None
    """None for the average of other methods."""

    package: str = "sklearn"
    """The module it needs."""

    parts: tuple[str, ...] = ()
    """Methods whose predictions are averaged."""

    @property
    def is_there(self) -> bool:
        """Whether its package is installed."""
        return importlib.util.find_spec(self.package) is not None


def all_methods(*, is_regression: bool, has_decoder: bool = True) -> tuple[Method, ...]:
    """Every method, whether its package is installed or not, in the order they are shown in.

    The last is what `TabMoCoClassifier` and `TabMoCoRegressor` do by default. Of an encoder without a decoder there are
    embeddings alone.
    """
    learned = "expected cells" if has_decoder else "the embedding"
    linear = "ridge regression" if is_regression else "logistic regression"
    trees = (
        Method("hist_boosting", "trees", "HistGradientBoosting", head=HistogramBoosting),
        Method("lightgbm", "trees", "LightGBM", head=LightGBM, package="lightgbm"),
        Method("xgboost", "trees", "XGBoost", head=XGBoost, package="xgboost"),
        Method("catboost", "trees", "CatBoost", head=CatBoost, package="catboost"),
    )
    boosted = next(method for method in reversed(trees) if method.is_there)
    return (
        Method("guess", "guess", "the mean" if is_regression else "the classes' shares", "", Guess),
        Method("logistic", "linear", linear, head=LogisticOnCells),
        Method("extra_trees", "trees", "extra trees", head=TreesOnCells),
        *trees,
        Method(
            "average",
            "average",
            f"the average of {linear}, extra trees and {boosted.learner}",
            parts=("logistic", "extra_trees", boosted.name),
        ),
        Method("untrained", "control", linear, "the untrained encoder", LogisticOnUntrained),
        Method("components", "control", linear, "PCA of the cells", LogisticOnComponents),
        Method("embedding", "probe", linear, "the embedding", Logistic),
        *([Method("expected", "probe", linear, learned, LogisticOnExpected)] if has_decoder else []),
        Method("both", "probe", linear, f"cells and {learned}", LogisticOnBoth),
        Method(
            "tabmoco",
            "tabmoco",
            "TabMoCoRegressor" if is_regression else "TabMoCoClassifier",
            f"cells and {learned}",
            lambda problem: build_head("auto", problem),
        ),
    )


@dataclass(frozen=True)
class Run:
    """One method on the labels of one draw."""

    predicted: np.ndarray
    """Probabilities or numbers for the tested rows."""

    figures: Mapping[str, float]
    partial: tuple[float, ...]
    """The leading figure without each part of the tested rows."""

    seconds: float


def run_all(
    methods: Sequence[Method],
    problem: Problem,
    rows: HeadInput,
    y: np.ndarray,
    unlabelled: HeadInput,
    tested: HeadInput,
    truth: np.ndarray,
    *,
    say: Callable[[str], None],
) -> dict[str, Run]:
    """Every method on the same labelled rows `rows` and `y`, and others without; `truth` is looked at only when there
    are predictions."""
    found: dict[str, Run] = {}
    for method in methods:
        say(method.learner)
        start = time.perf_counter()
        if method.head is None:
            predicted = np.mean([found[part].predicted for part in method.parts], axis=0)
        else:
            predicted = predictions(method.head(problem), rows, y, tested, unlabelled)
        seconds = time.perf_counter() - start + sum(found[part].seconds for part in method.parts)
        found[method.name] = Run(predicted, *_measured(truth, predicted), seconds)
    return found


def predictions(
    head: Head | Blend, rows: HeadInput, y: np.ndarray, tested: HeadInput, unlabelled: HeadInput | None = None
) -> np.ndarray:
    """What a head, taught class numbers or standardised targets, says of tested rows: probabilities or numbers."""
    if not head.problem.is_regression:
        taught = head.fit(rows, y, unlabelled) if isinstance(head, Blend) else head.fit(rows, y)
        return taught.predict(tested)
    centre, scale = float(y.mean()), float(y.std()) or 1.0
    return centre + scale * head.fit(rows, (y - centre) / scale).predict(tested)


def _measured(truth: np.ndarray, predicted: np.ndarray) -> tuple[dict[str, float], tuple[float, ...]]:
    """All figures, and the leading one without each part of the rows."""
    is_regression = predicted.ndim == 1
    measure: Callable[..., dict[str, float]] = number_figures if is_regression else class_figures
    name = METRICS["regression" if is_regression else "classification"][0]
    part = fold_of_each(None if is_regression else truth, len(truth), n_folds=N_PARTS, seed=0)
    partial = tuple(measure(truth[part != n], predicted[part != n])[name] for n in range(N_PARTS))
    return measure(truth, predicted), partial
