"""The column to be predicted: what it asks for, and each row's answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from tabmoco.errors import ConfigError, SchemaError, TableError
from tabmoco.tables.hidden import is_untold
from tabmoco.tables.labels import read_classes, read_numbers
from tabmoco.tables.schema import natural_kind
from tabmoco.tables.source import TableSource

Task = Literal["auto", "classification", "regression"]

MOST_GRADES = 10
"""Whole numbers of at most so many distinct values are classes."""


@dataclass(frozen=True)
class Target:
    """The rows that have an answer, and what it is."""

    task: Literal["classification", "regression"]

    rows: Int64[np.ndarray, " n"]
    """Positions of the rows with a value."""

    y: np.ndarray
    """Each one's class, from 0, or its number."""

    n_classes: int
    """0 for numbers."""


def read_target(source: TableSource, task: Task = "auto") -> Target:
    """Read a table's only column as what is to be predicted.

    `auto` takes numbers for regression, but for whole numbers of at most `MOST_GRADES` values, and all else for
    classification.

    Raises
    ------
    TableError
        If it has no value, or but one class.
    SchemaError
        If it holds times.
    """
    if task not in ("auto", "classification", "regression"):
        raise ConfigError(f"task must be auto, classification or regression, got task={task!r}.")
    (target,) = source.arrow_schema.names
    values = pa.chunked_array([batch.table.column(0) for batch in source.batches()], source.arrow_schema.types[0])
    if values.null_count == len(values):
        raise TableError(f"the target must have values, {target!r} has none.")
    kind = natural_kind(values.type)
    if task == "auto" and kind == "timestamp":
        raise SchemaError(f"the target must hold numbers or classes, {target!r} holds {values.type}; name another.")
    if task == "regression" or (task == "auto" and kind == "number" and not _are_grades(values)):
        numbers = read_numbers(values)
        return Target("regression", numbers.rows, numbers.value, 0)
    labels = read_classes(values, marked=False)
    if len(labels.classes) < 2:
        found = "one value" if is_untold() else labels.classes[0]
        raise TableError(f"the target must have at least two values, {target!r} holds {found} alone.")
    return Target("classification", labels.rows, labels.code, len(labels.classes))


def _are_grades(values: pa.ChunkedArray) -> bool:
    """Whether numbers are whole and few."""
    numbers = np.array([value for value in values.unique().to_pylist() if value is not None], dtype=np.float64)
    return bool(len(numbers) <= MOST_GRADES + 1 and (numbers[~np.isnan(numbers)] % 1 == 0).all())
