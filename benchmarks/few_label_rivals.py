"""Predictors on points and on cells, with the defaults of their libraries where few labels allow them.

Trees' leaf minima follow the number of labels: with their stock values LightGBM, XGBoost and HistGradientBoosting
return constants at ten labels. Every predictor is called with a task and gives probabilities `[N, n_classes]`, or
numbers `[N]`, for the test rows; classes that no label shows have probability 0.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.preprocessing import StandardScaler

from benchmarks.cell_matrix import MAX_LEVELS, MISSING, as_frame
from benchmarks.few_label_protocol import Task
from benchmarks.few_label_store import Store

Predict = Callable[[Task], np.ndarray]
Fit = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

STRENGTHS = (0.01, 0.1, 1.0, 10.0)
"""Values of C that cross-validation chooses from."""

MIN_CHOICE_LABELS = 50
"""Labels from which on C is chosen, if every class has a row for each fold; else it is 1."""

MAX_CHOICE_LABELS = 4_000
"""Labels that C is chosen on at most."""

N_FOLDS = 3
RIDGE_STRENGTHS = tuple(np.logspace(-2, 5, 15))
N_TREES = 300
N_COMPONENTS = 256
"""Most principal components, as many as an embedding has numbers."""

SEARCH_SECONDS = 60.0
"""Time of a random search, about what pretraining takes."""

N_CANDIDATES = 20

MANY_LABELS = 1_000
"""Labels from which on CatBoost treats categories its own way."""


def leaf_minimum(n_labels: int) -> int:
    """Rows a leaf must hold: 1 up to 99 labels, 2 at 100, 10 at 500, the libraries' usual 20 from 1,000 on."""
    return int(np.clip(n_labels // 50, 1, 20))


# ------------------------------------------------------------------ linear predictors


def linear(points: Mapping[str, np.ndarray], task: Task) -> np.ndarray:
    """Logistic regression, or ridge, on points standardised by all training rows."""
    scaler = StandardScaler().fit(points["train"])
    known, asked = scaler.transform(points["train"][task.labelled]), scaler.transform(points["test"])
    if task.is_regression:
        middle, scale = task.label.mean(), task.label.std() or 1.0
        ridge = RidgeCV(RIDGE_STRENGTHS).fit(known, (task.label - middle) / scale)
        return middle + scale * ridge.predict(asked)
    return _classified(task, logistic(task), known, asked)


def logistic(task: Task) -> Any:
    """Logistic regression, its strength chosen by cross-validation when there are labels enough."""
    model = LogisticRegression(C=1.0, max_iter=300)
    counts = np.unique(task.label, return_counts=True)[1]
    if len(task.label) < MIN_CHOICE_LABELS or counts.min() < N_FOLDS:
        return model
    chosen = np.random.default_rng(task.seed).permutation(len(task.label))[:MAX_CHOICE_LABELS]
    if np.unique(task.label[chosen], return_counts=True)[1].min() < N_FOLDS:
        return model
    return _Chosen(model, chosen, task.seed)


class _Chosen:
    """A logistic regression whose C is chosen on some of the labels, and which is then fitted on all."""

    def __init__(self, model: LogisticRegression, rows: np.ndarray, seed: int):
        self.model, self.rows, self.seed = model, rows, seed

    def fit(self, points: np.ndarray, code: np.ndarray) -> _Chosen:
        folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=self.seed)
        search = GridSearchCV(self.model, {"C": STRENGTHS}, scoring="neg_log_loss", cv=folds, refit=False)
        search.fit(points[self.rows], code[self.rows])
        self.model.set_params(**search.best_params_).fit(points, code)
        return self

    def predict_proba(self, points: np.ndarray) -> np.ndarray:
        return self.model.predict_proba(points)


def probe(*names: str) -> Predict:
    """A linear predictor on cells or embeddings, side by side."""

    def predict(task: Task) -> np.ndarray:
        store = Store(task.folder)
        joined = {
            part: np.concatenate([np.asarray(store.points(name, part)) for name in names], axis=1)
            for part in ("train", "test")
        }
        return linear(joined, task)

    return predict


def principal_components(task: Task) -> np.ndarray:
    """A linear predictor on the principal components of the cells of all training rows."""
    store = Store(task.folder)
    train, test = (np.asarray(store.points("both", part)) for part in ("train", "test"))
    pca = PCA(min(N_COMPONENTS, *train.shape), random_state=task.seed).fit(train)
    return linear({"train": pca.transform(train), "test": pca.transform(test)}, task)


# ------------------------------------------------------------------ neighbours and trees of scikit-learn


def neighbours(task: Task) -> np.ndarray:
    """Five neighbours on cells in both scalings, nearer ones counting more."""
    kind = KNeighborsRegressor if task.is_regression else KNeighborsClassifier
    return _on_cells("both", lambda task: kind(min(5, len(task.label)), weights="distance"))(task)


def _forest(classifier: type, regressor: type) -> Predict:
    def build(task: Task) -> Any:
        kind = regressor if task.is_regression else classifier
        return kind(N_TREES, random_state=task.seed, n_jobs=n_threads())

    return _on_cells("plain", build)


def _histogram_boosting(task: Task) -> Any:
    kind = HistGradientBoostingRegressor if task.is_regression else HistGradientBoostingClassifier
    return kind(min_samples_leaf=leaf_minimum(len(task.label)), random_state=task.seed)


# ------------------------------------------------------------------ trees of other libraries


def _lightgbm(task: Task) -> Any:
    import lightgbm

    kind = lightgbm.LGBMRegressor if task.is_regression else lightgbm.LGBMClassifier
    leaf = leaf_minimum(len(task.label))
    return kind(
        min_child_samples=leaf,
        min_data_in_bin=min(3, leaf),
        random_state=task.seed,
        n_jobs=n_threads(),
        verbose=-1,
    )


def _xgboost(task: Task) -> Any:
    import xgboost

    kind = xgboost.XGBRegressor if task.is_regression else xgboost.XGBClassifier
    weight = leaf_minimum(len(task.label)) / 20  # of a leaf's second derivatives; the default is 1
    return kind(min_child_weight=weight, random_state=task.seed, n_jobs=n_threads(), verbosity=0)


def catboost(task: Task) -> np.ndarray:
    """CatBoost on the cells as they come, strings as categories."""
    known, asked, words = _catboost_cells(task)
    return _predicted(task, _catboost_model(task, words, few_label_settings(task)), known, asked)


def few_label_settings(task: Task) -> dict[str, Any]:
    """One indicator per level where labels are few.

    CatBoost's own statistics of the target by level need more of them: on splice with 25 labels they cost more than 20
    AUROC points, and a hundred times the seconds.
    """
    return {"one_hot_max_size": MAX_LEVELS} if len(task.label) < MANY_LABELS else {}


def searched_catboost(task: Task) -> np.ndarray:
    """CatBoost with the best of a few random settings by cross-validation, the defaults among them, as many as a
    minute allows."""
    generator, deadline = np.random.default_rng(task.seed), time.monotonic() + SEARCH_SECONDS
    known, asked, words = _catboost_cells(task)
    smallest = len(task.label) if task.is_regression else np.unique(task.label, return_counts=True)[1].min()
    n_folds, usual, least = min(N_FOLDS, smallest), few_label_settings(task), np.inf
    best = usual
    for number in range(N_CANDIDATES if n_folds > 1 else 0):
        settings = usual if number == 0 else usual | _candidate(generator)
        cost = _cost(task, known, words, settings, n_folds)
        best, least = (settings, cost) if cost < least else (best, least)
        if time.monotonic() > deadline:
            break
    return _predicted(task, _catboost_model(task, words, best), known, asked)


def _candidate(generator: np.random.Generator) -> dict[str, Any]:
    return {
        "iterations": int(generator.choice([100, 200, 400, 800])),
        "depth": int(generator.integers(3, 9)),
        "learning_rate": float(10 ** generator.uniform(-2, -0.5)),
        "l2_leaf_reg": float(10 ** generator.uniform(0, 1.5)),
    }


def _cost(task: Task, known: Any, words: list[str], settings: Mapping[str, Any], n_folds: int) -> float:
    """Log loss, or squared error, of rows kept out."""
    kind = KFold if task.is_regression else StratifiedKFold
    costs = []
    for kept, out in kind(n_folds, shuffle=True, random_state=task.seed).split(known, task.label):
        part = Task(task.kind, task.folder, task.labelled[kept], task.label[kept], task.n_classes, task.seed)
        found = _predicted(part, _catboost_model(part, words, settings), known.iloc[kept], known.iloc[out])
        if task.is_regression:
            costs.append(np.mean((found - task.label[out]) ** 2))
        else:
            costs.append(-np.mean(np.log(np.clip(found[np.arange(len(out)), task.label[out]], 1e-4, 1))))
    return float(np.mean(costs))


def _catboost_cells(task: Task) -> tuple[Any, Any, list[str]]:
    """Labelled rows, test rows, and the names of the columns that hold words."""
    store = Store(task.folder)
    known, asked = as_frame(store.table("train")).iloc[task.labelled].copy(), as_frame(store.table("test")).copy()
    words = []
    for name in known.columns:
        if known[name].dtype.kind == "M":
            known[name], asked[name] = (frame[name].astype("int64").astype(float) for frame in (known, asked))
        elif known[name].dtype.kind in "iuf":
            known[name], asked[name] = (frame[name].astype(float) for frame in (known, asked))
        else:
            words.append(name)
            for frame in (known, asked):
                frame[name] = np.where(frame[name].isna(), MISSING, frame[name].astype(object).map(str))
    return known, asked, words


def _catboost_model(task: Task, words: list[str], settings: Mapping[str, Any]) -> Any:
    import catboost

    kind = catboost.CatBoostRegressor if task.is_regression else catboost.CatBoostClassifier
    usual = {"cat_features": words, "random_seed": task.seed, "thread_count": n_threads()}
    return kind(verbose=False, allow_writing_files=False, **usual, **settings)


# ------------------------------------------------------------------ fitting


def _on_cells(name: str, build: Callable[[Task], Any]) -> Predict:
    def predict(task: Task) -> np.ndarray:
        store = Store(task.folder)
        known, asked = store.points(name, "train")[task.labelled], np.asarray(store.points(name, "test"))
        return _predicted(task, build(task), known, asked)

    return predict


def _predicted(task: Task, model: Any, known: Any, asked: Any) -> np.ndarray:
    if not task.is_regression:
        return _classified(task, model, known, asked)
    return model.fit(known, task.label).predict(asked) if np.ptp(task.label) else np.full(len(asked), task.label[0])


def _classified(task: Task, model: Any, known: Any, asked: Any) -> np.ndarray:
    """Probabilities of all classes; certain where the labels show a single one."""
    present, code = np.unique(task.label, return_inverse=True)
    spread = np.zeros((len(asked), task.n_classes))
    if len(present) == 1:
        spread[:, present] = 1.0
        return spread
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)
        spread[:, present] = model.fit(known, code).predict_proba(asked)
    return spread


def n_threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


random_forest = _forest(RandomForestClassifier, RandomForestRegressor)
extra_trees = _forest(ExtraTreesClassifier, ExtraTreesRegressor)
histogram_boosting = _on_cells("plain", _histogram_boosting)
lightgbm = _on_cells("plain", _lightgbm)
xgboost = _on_cells("plain", _xgboost)


PARTS: dict[str, Predict] = {"linear": probe("both"), "extra-trees": extra_trees, "CatBoost": catboost}
"""What the average is made of."""


def part_of_average(name: str) -> Predict:
    """One of these; its prediction is kept beside the rows, so that nobody makes it twice."""

    def predict(task: Task) -> np.ndarray:
        found = PARTS[name](task)
        np.save(_kept_prediction(name, task), found)
        return found

    return predict


def average(task: Task) -> np.ndarray:
    """Plain average of the linear predictor, extra trees and CatBoost, all on cells: the best that nobody learned."""
    found = []
    for name, predict in PARTS.items():
        path = _kept_prediction(name, task)
        found.append(np.load(path) if path.exists() else predict(task))
    return np.mean(found, axis=0)


def _kept_prediction(name: str, task: Task) -> Path:
    labels = hashlib.sha256(task.labelled.tobytes() + task.label.tobytes()).hexdigest()[:16]
    return task.folder / f"{name}-{labels}-{task.seed}.npy"
