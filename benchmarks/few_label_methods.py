"""The methods that are compared: heads on what a source (`benchmarks.few_label_sources`) made of the rows."""

from __future__ import annotations

import hashlib
import importlib.util
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.few_label_protocol import FRACTIONS, Task, checked, measure
from benchmarks.few_label_rivals import CellNeighbours, FromScratch, RandomForest, SearchedCatBoost
from benchmarks.few_label_sources import SOURCES
from benchmarks.few_label_store import Store
from benchmarks.runs import Run
from tabmoco.evaluation.blend import Blend, build_head
from tabmoco.evaluation.heads import TreesOnCells
from tabmoco.evaluation.problem import Head, Problem
from tabmoco.evaluation.rivals import (
    CatBoost,
    HistogramBoosting,
    LightGBM,
    Logistic,
    LogisticOnBoth,
    LogisticOnCells,
    LogisticOnComponents,
    LogisticOnExpected,
    LogisticOnUntrained,
    XGBoost,
    predictions,
)
from tabmoco.evaluation.student import draw_unlabelled

PARTS = ("linear", "extra-trees", "CatBoost")
"""What the average is made of."""


@dataclass(frozen=True)
class Method:
    """One way to predict."""

    name: str
    family: str
    """What it belongs to; `tabmoco` is no rival, all others are."""

    sees: str
    head: Callable[[Problem], Head | Blend] | None = None
    """None for the average of others."""

    package: str = "sklearn"
    """The module it needs."""

    source: str = "cells"
    """What makes the rows it looks at."""

    budgets: tuple[str, ...] = ()
    """Budgets it is tried at; none means all."""

    usual_seconds: float = 1.0
    """What a run takes, roughly; for the first estimate of the time that is left."""

    @property
    def is_rival(self) -> bool:
        return self.family != "tabmoco"

    @property
    def has_encoder(self) -> bool:
        """Whether it looks at an encoder, which takes time to train and depends on settings."""
        return self.source != "cells"

    def predict(self, task: Task) -> np.ndarray:
        """Probabilities `[N, n_classes]`, or numbers `[N]`, for the test rows."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            if self.head is None:
                return np.mean([_part_of_average(name, task) for name in PARTS], axis=0)
            store = Store(task.folder)
            problem = Problem(task.n_classes, store.model(SOURCES[self.source].model), task.seed)
            known = store.rows(self.source, "train")
            others = known[draw_unlabelled(len(known), task.labelled, seed=task.seed)]
            tested = store.rows(self.source, "test")
            return predictions(self.head(problem), known[task.labelled], task.label, tested, others)


def evaluate(name: str, task: Task, truth: np.ndarray) -> Run:
    """What a method's predictions are worth. The test rows' labels are looked at only when they are made."""
    started = time.monotonic()
    prediction = METHODS[name].predict(task)
    seconds = time.monotonic() - started
    prediction = checked(task, prediction, Store(task.folder).n_rows("test"))
    if name in PARTS:
        np.save(_kept_prediction(name, task), prediction)
    return {**measure(task.kind, truth, prediction), "predict_seconds": round(seconds, 3)}


def fail(reason: str) -> Run:
    """A run whose rows could not be made."""
    raise RuntimeError(reason)


def _part_of_average(name: str, task: Task) -> np.ndarray:
    """What a method predicts, kept beside the rows when it ran, so that nobody makes it twice."""
    path = _kept_prediction(name, task)
    return np.load(path) if path.exists() else METHODS[name].predict(task)


def _kept_prediction(name: str, task: Task) -> Path:
    labels = hashlib.sha256(task.labelled.tobytes() + task.label.tobytes()).hexdigest()[:16]
    return task.folder / f"{name}-{labels}-{task.seed}.npy"


CELLS, PLAIN = "cells in both scalings, standardised", "cells in both scalings"
TRAITS, RAW = "traits of the cells", "cells as they come"
DEFAULT, TUNED = partial(build_head, "auto"), partial(build_head, "finetune")

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("linear", "cells", CELLS, LogisticOnCells),
        Method("5NN", "cells", PLAIN, partial(CellNeighbours, n_neighbours=5)),
        Method("15NN", "cells", PLAIN, partial(CellNeighbours, n_neighbours=15)),
        Method("PCA", "control", "principal components of the cells", LogisticOnComponents),
        Method("random-forest", "trees", TRAITS, RandomForest, usual_seconds=2),
        Method("extra-trees", "trees", TRAITS, TreesOnCells, usual_seconds=2),
        Method("HistGradientBoosting", "trees", TRAITS, HistogramBoosting, usual_seconds=2),
        Method("LightGBM", "trees", TRAITS, LightGBM, "lightgbm"),
        Method("XGBoost", "trees", TRAITS, XGBoost, "xgboost"),
        Method("CatBoost", "trees", RAW, CatBoost, "catboost", usual_seconds=5),
        Method(
            "CatBoost-search", "trees", RAW, SearchedCatBoost, "catboost", budgets=("100", "1000"), usual_seconds=60
        ),
        Method("average", "blend", "cells", package="catboost"),
        Method("untrained", "control", "the untrained encoder", LogisticOnUntrained, source="encoder"),
        Method("SCARF", "ssl", "ts3l's encoder", Logistic, "ts3l", "SCARF"),
        Method("VIME", "ssl", "ts3l's encoder", Logistic, "ts3l", "VIME"),
        Method("tabmoco-embedding", "tabmoco", "the embedding", Logistic, source="encoder"),
        Method("tabmoco-expected", "tabmoco", "the expected cells", LogisticOnExpected, source="encoder"),
        Method("tabmoco-cells", "tabmoco", "cells and expected cells", LogisticOnBoth, source="encoder"),
        Method("from-scratch", "scratch", "the table", FromScratch, source="encoder", usual_seconds=20),
        Method("tabmoco-finetuned", "tabmoco", "the table", TUNED, source="encoder", usual_seconds=20),
        Method("tabmoco", "tabmoco", "the table", DEFAULT, source="encoder", usual_seconds=20),
    )
}
"""Every method by its name. `linear` is logistic regression or ridge; so are all that see one kind of points only."""

SCARF_METHODS = (
    "linear", "CatBoost", "average", "untrained", "SCARF", "tabmoco-expected", "from-scratch", "tabmoco-finetuned",
    "tabmoco",
)  # fmt: skip
"""Methods that are tried with a quarter of the labels and with flipped ones."""


def is_tried(method: Method, budget: str) -> bool:
    """Whether a method is worth its time at a budget."""
    if budget in FRACTIONS:
        return method.name in SCARF_METHODS
    return not method.budgets or budget in method.budgets


def missing_package(method: Method) -> str | None:
    """Why a method cannot run here, if it cannot."""
    return None if importlib.util.find_spec(method.package) else f"{method.package} is not installed"
