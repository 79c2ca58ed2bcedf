"""Rows a second that get an anomaly score: tabmoco's, from file to file, and those of other detectors, from a matrix.

All know the same rows; tabmoco compares with as many of them as `index.score_rows` says.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Float
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import NearestNeighbors

from tabmoco.config import PretrainConfig
from tabmoco.model import RowModel
from tabmoco.tables.sink import write_table
from tabmoco.tables.source import open_table
from tabmoco.training.pretrain import pretrain

N_SCORED = 4_096
OWN = "tabmoco score"
N_NEIGHBORS = 5
"""PyOD's default."""


def ways(path: Path, config: PretrainConfig) -> dict[str, Callable[[], object]]:
    """What scores the first rows of a Parquet file of numbers, by name; everything is fitted to all of them."""
    table = pq.read_table(path)
    asked = path.with_name("asked.parquet")
    pq.write_table(table.slice(0, N_SCORED), asked)
    model = pretrain(str(path), config.override(["optimize.steps=20"]))
    known = np.stack([column.to_numpy() for column in table.columns], axis=1)
    known = (known - known.mean(0)) / known.std(0)
    few = known[:N_SCORED]
    found: dict[str, Callable[[], object]] = {OWN: lambda: _score(model, asked)}
    for name, build in _detectors().items():
        found[name] = _asked(build().fit(known), few)
    return found


def n_scored(path: Path) -> int:
    return min(N_SCORED, open_table(path).n_rows)


def _score(model: RowModel, asked: Path) -> None:
    source = open_table(asked)
    batches, schema = model.iter_scores(source), model.score_schema(source)
    write_table(batches, asked.with_name("scores.parquet"), schema=schema, overwrite=True)


def _detectors() -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {
        "scikit-learn NearestNeighbors": lambda: NearestNeighbors(n_neighbors=N_NEIGHBORS),
        "scikit-learn IsolationForest": lambda: IsolationForest(random_state=0),
    }
    if importlib.util.find_spec("pyod"):
        from pyod.models.iforest import IForest
        from pyod.models.knn import KNN

        found |= {"PyOD KNN": lambda: KNN(n_neighbors=N_NEIGHBORS), "PyOD IForest": lambda: IForest(random_state=0)}
    return found


def _asked(detector: Any, rows: Float[np.ndarray, "N W"]) -> Callable[[], object]:
    if isinstance(detector, NearestNeighbors):
        return lambda: detector.kneighbors(rows)
    return lambda: detector.decision_function(rows)
