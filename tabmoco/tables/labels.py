"""Labels as users hold them, with gaps: which rows have one, and what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from tabmoco.errors import TableError
from tabmoco.tables.hidden import is_untold, quoted_cell
from tabmoco.tables.notices import warn

UNLABELLED = -1
"""What marks a row without label where labels are numbers, as in scikit-learn's semi-supervised estimators."""


@dataclass(frozen=True)
class Classes:
    """Rows with a class."""

    rows: Int64[np.ndarray, " n"]
    """Positions of the rows that have one."""

    code: Int64[np.ndarray, " n"]
    """Position of each one's class in `classes`."""

    classes: np.ndarray
    """The distinct classes, sorted."""


@dataclass(frozen=True)
class Numbers:
    """Rows with a number to be predicted."""

    rows: Int64[np.ndarray, " n"]
    value: Float64[np.ndarray, " n"]


def read_classes(y: Any, *, marked: bool = True) -> Classes:
    """Classes of rows; None, NaN and their like mean that a row has none, and so does -1 among numbers if `marked`.

    NOTE[DIFF]: in scikit-learn's semi-supervised estimators -1 is never a class. Here it is one where 1 is the only
    other value: so are two classes often coded, and without it there would be nothing to tell apart.

    Raises
    ------
    TableError
        If no row has a label, or labels are of several kinds or no classes at all.
    """
    values = _as_array(y)
    missing = pd.isna(values)
    rows = np.flatnonzero(~missing)
    present = _one_type(values[rows])
    if present.dtype.kind == "f" and not np.isfinite(present).all():
        raise TableError("labels must be finite, got an infinite one; write None or NaN for rows without a label.")
    try:
        check_classification_targets(present)
    except ValueError as error:
        raise TableError(f"labels must be words, whole numbers or truth values: {error}") from error
    if marked and present.dtype.kind in "iuf":
        has_label = present != UNLABELLED
        if not has_label.all():
            if set(present[has_label].tolist()) == {1}:
                warn("the labels -1 and 1 are taken for two classes; write None or NaN for rows without a label.")
            else:
                rows, present = rows[has_label], present[has_label]
    if len(rows) == 0:
        raise TableError(f"at least one row must have a label, got none among {len(values):,} rows.")
    classes, code = np.unique(present, return_inverse=True)
    return Classes(rows, code.astype(np.int64), classes)


def read_numbers(y: Any) -> Numbers:
    """Numbers of rows; None, NaN and their like mean that a row has none.

    Raises
    ------
    TableError
        If no row has a number, a value is infinite or no number.
    """
    values = _as_array(y)
    rows = np.flatnonzero(~pd.isna(values))
    try:
        present = values[rows].astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TableError(
            f"targets must be numbers, got {quoted_cell(values[rows[0]])}; use a classifier for classes."
        ) from (None if is_untold() else error)
    if not np.isfinite(present).all():
        raise TableError("targets must be finite, got an infinite one; leave it out with NaN.")
    if len(rows) == 0:
        raise TableError(f"at least one row must have a target, got none among {len(values):,} rows.")
    return Numbers(rows, present)


def _as_array(y: Any) -> np.ndarray:
    """One label per row, as NumPy holds it; lists and columns of tables keep the type of each value."""
    if hasattr(y, "to_pylist"):
        y = y.to_pylist()
    elif hasattr(y, "to_list") and not isinstance(y, np.ndarray):
        y = y.to_list()
    elif hasattr(y, "iloc"):
        y = y.to_numpy()
    if isinstance(y, list | tuple) and not any(isinstance(value, list | tuple | np.ndarray) for value in y):
        values = np.empty(len(y), dtype=object)
        values[:] = y
        return values
    return column_or_1d(y, warn=True)


def _one_type(present: np.ndarray) -> np.ndarray:
    """Labels that Python held one by one, as an array of their type."""
    if present.dtype != object:
        return present
    kinds = {"words" if isinstance(value, str) else type(value).__name__ for value in present.tolist()}
    if len(kinds) > 1 and not all(isinstance(value, int | float | np.number | np.bool_) for value in present):
        raise TableError(f"labels must be of one kind, got {' and '.join(sorted(kinds))}; convert them.")
    return np.array(present.tolist()) if len(present) else present
