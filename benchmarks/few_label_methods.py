"""The methods that are compared, and the encoders they look at.

An encoder is trained once for a table and seed, on all training rows without labels, and serves every budget and draw.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import few_label_rivals as rivals
from benchmarks.few_label_protocol import FRACTIONS, Task, checked, measure
from benchmarks.few_label_rivals import Predict, probe
from benchmarks.few_label_store import Store
from benchmarks.runs import Run

INDEX = ("index.rows=1000", "index.score_rows=1000")
"""An index is not looked at here, so it is a small one."""

UNLABELLED = -1


@dataclass(frozen=True)
class Method:
    """One way to predict."""

    name: str
    family: str
    """What it belongs to; `tabmoco` is no rival, all others are."""

    sees: str
    predict: Predict
    package: str = "sklearn"
    """The module it needs."""

    source: str | None = None
    """What makes the embeddings it looks at, see `SOURCES`."""

    budgets: tuple[str, ...] = ()
    """Budgets it is tried at; none means all."""

    usual_seconds: float = 1.0
    """What a run takes, roughly; for the first estimate of the time that is left."""

    @property
    def is_rival(self) -> bool:
        return self.family != "tabmoco"


def evaluate(name: str, task: Task, truth: np.ndarray) -> Run:
    """What a method's predictions are worth. The test rows' labels are looked at only when they are made."""
    started = time.monotonic()
    prediction = METHODS[name].predict(task)
    seconds = time.monotonic() - started
    prediction = checked(task, prediction, Store(task.folder).n_rows("test"))
    return {**measure(task.kind, truth, prediction), "predict_seconds": round(seconds, 3)}


def fail(reason: str) -> Run:
    """A run whose encoder could not be made."""
    raise RuntimeError(reason)


# ------------------------------------------------------------------ tabmoco


def pretrained(path: Path, settings: Sequence[str], seed: int) -> Run:
    """Pretrain on the training rows; keep the model, its embeddings and those of the same encoder untrained."""
    import tabmoco

    store = Store(path)
    config = dataclasses.replace(tabmoco.PretrainConfig().override([*INDEX, *settings]), seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = tabmoco.pretrain(store.table("train"), config)
        model.save(store.model_path, overwrite=True)
        for name, encoder in (("tabmoco", model), ("untrained", untrained_twin(model))):
            store.keep(name, *(encoder.embed(store.table(part)) for part in ("train", "test")))
    return {"n_steps": model.record["steps_done"], "verdict": model.record["verdict"]}


def untrained_twin(model: Any) -> Any:
    """The model as it was before the first step, its preprocessor fitted all the same."""
    from tabmoco.model import RowModel, build_untrained

    return RowModel(model.config, model.preprocessor, build_untrained(model.preprocessor, model.config))


def estimator(head: str, *, from_scratch: bool = False) -> Predict:
    """tabmoco's own classifier or regressor over the pretrained encoder, or over the untrained one."""

    def predict(task: Task) -> np.ndarray:
        import tabmoco

        kind = tabmoco.TabMoCoRegressor if task.is_regression else tabmoco.TabMoCoClassifier
        store = Store(task.folder)
        model = tabmoco.RowModel.load(store.model_path, device="cpu")
        model = untrained_twin(model) if from_scratch else model
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            fitted = kind(model=model, head=head, random_state=task.seed).fit(store.table("train"), partly(task))
            if task.is_regression:
                return fitted.predict(store.table("test"))
            spread = np.zeros((store.n_rows("test"), task.n_classes))
            spread[:, np.asarray(fitted.classes_, dtype=np.int64)] = fitted.predict_proba(store.table("test"))
        return spread

    return predict


def partly(task: Task) -> np.ndarray:
    """Labels of all training rows as scikit-learn's semi-supervised estimators take them: -1, or NaN, where there is
    none."""
    n_rows = Store(task.folder).n_rows("train")
    label = np.full(n_rows, np.nan) if task.is_regression else np.full(n_rows, UNLABELLED)
    label[task.labelled] = task.label
    return label


def ts3l_source(name: str) -> Callable[[Path, Sequence[str], int], Run]:
    def make(path: Path, settings: Sequence[str], seed: int) -> Run:
        from benchmarks.few_label_ts3l import embed

        store = Store(path)
        n_steps = json.loads((path / "encoder.json").read_text(encoding="utf-8"))["n_steps"]
        found = embed(name, store.table("train"), store.table("test"), n_steps=n_steps, seed=seed)
        store.keep(name, *found)
        return {"n_steps": n_steps}

    return make


@dataclass(frozen=True)
class Source:
    """Something that makes embeddings of a table's rows, from a folder, settings and a seed."""

    make: Callable[[Path, Sequence[str], int], Run]
    after: tuple[str, ...] = ()
    """Sources that must have run before."""


SOURCES = {
    "encoder": Source(pretrained),
    "scarf": Source(ts3l_source("SCARF"), after=("encoder",)),
    "vime": Source(ts3l_source("VIME"), after=("encoder",)),
}
"""SCARF and VIME train for as many steps as tabmoco did, so they run after it."""


def make_source(name: str, path: Path, settings: Sequence[str], seed: int) -> Run:
    """Run a source; called in a process of its own."""
    torch.manual_seed(seed)
    return SOURCES[name].make(path, settings, seed)


BOTH, PLAIN, RAW = "cells in both scalings", "cells, one-hot", "cells as they come"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("linear", "cells", BOTH, rivals.part_of_average("linear")),
        Method("5NN", "cells", BOTH, rivals.neighbours),
        Method("PCA", "control", "principal components of the cells", rivals.principal_components),
        Method("random-forest", "trees", PLAIN, rivals.random_forest, usual_seconds=2),
        Method("extra-trees", "trees", PLAIN, rivals.part_of_average("extra-trees"), usual_seconds=2),
        Method("HistGradientBoosting", "trees", PLAIN, rivals.histogram_boosting, usual_seconds=2),
        Method("LightGBM", "trees", PLAIN, rivals.lightgbm, "lightgbm"),
        Method("XGBoost", "trees", PLAIN, rivals.xgboost, "xgboost"),
        Method("CatBoost", "trees", RAW, rivals.part_of_average("CatBoost"), "catboost", usual_seconds=5),
        Method(
            "CatBoost-search", "trees", RAW, rivals.searched_catboost, "catboost", budgets=("100", "1000"),
            usual_seconds=60,
        ),
        Method("average", "blend", "cells", rivals.average, "catboost"),
        Method("untrained", "control", "the untrained encoder", probe("untrained"), source="encoder"),
        Method("SCARF", "ssl", "ts3l's encoder", probe("SCARF"), "ts3l", "scarf"),
        Method("VIME", "ssl", "ts3l's encoder", probe("VIME"), "ts3l", "vime"),
        Method("tabmoco-embedding", "tabmoco", "the embedding", probe("tabmoco"), source="encoder"),
        Method("tabmoco-cells", "tabmoco", "cells and the embedding", probe("both", "tabmoco"), source="encoder"),
        Method(
            "from-scratch", "scratch", "the table", estimator("finetune", from_scratch=True), source="encoder",
            usual_seconds=20,
        ),
        Method(
            "tabmoco-finetuned", "tabmoco", "the table", estimator("finetune"), source="encoder", usual_seconds=20
        ),
        Method("tabmoco", "tabmoco", "the table", estimator("auto"), source="encoder", usual_seconds=20),
    )
}  # fmt: skip
"""Every method by its name. `linear` is logistic regression or ridge; so are all that see one kind of points only."""

SCARF_METHODS = (
    "linear", "CatBoost", "average", "untrained", "SCARF", "tabmoco-embedding", "from-scratch", "tabmoco-finetuned",
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
