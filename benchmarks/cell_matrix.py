"""Any table as a matrix of numbers, for detectors that know nothing else.

Numbers and dates stay one column, gaps filled with the training rows' median and flagged in a column of their own;
categories become one indicator per level. Indicators stay 0 and 1 in every scaling, so that a differing category weighs
about as much as a differing number. Nothing is fitted on test rows: they only decide whether a column for gaps or
levels that no training row has is there at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.preprocessing import QuantileTransformer, StandardScaler

MAX_LEVELS = 50
"""Most indicators of a category column; the rarest levels share one when there are more."""

MISSING = "\0missing"

Table: TypeAlias = "pa.Table | pd.DataFrame | np.ndarray"
Matrix: TypeAlias = np.ndarray
Scale: TypeAlias = "Callable[[CellMatrix], tuple[Matrix, Matrix | None]]"


@dataclass(frozen=True)
class CellMatrix:
    """Training and test rows side by side; `owner[j]` is the source column of matrix column `j`."""

    train: Matrix
    test: Matrix | None
    owner: np.ndarray
    is_number: np.ndarray

    def scaled(self, scaler: Any) -> tuple[Matrix, Matrix | None]:
        """Both matrices with their numbers through a scaler fitted on the training rows."""
        train, test = self.train.copy(), None if self.test is None else self.test.copy()
        if self.is_number.any():
            train[:, self.is_number] = scaler.fit_transform(train[:, self.is_number])
            if test is not None:
                test[:, self.is_number] = scaler.transform(test[:, self.is_number])
        return train, test


def encode_cells(train: Table, test: Table | None = None) -> tuple[Matrix, Matrix | None, np.ndarray]:
    """Unscaled matrices of training and test rows, and the source column of every matrix column."""
    cells = cell_matrix(train, test)
    return cells.train, cells.test, cells.owner


def cell_matrix(train: Table, test: Table | None = None) -> CellMatrix:
    """Encode training rows, and test rows the same way."""
    known, asked = as_frame(train), None if test is None else as_frame(test)
    if asked is not None and list(asked.columns) != list(known.columns):
        raise ValueError(f"test rows must have the columns {list(known.columns)}, got {list(asked.columns)}.")
    blocks = []
    for j in range(known.shape[1]):
        encode = _numbers if _is_number(known.iloc[:, j]) else _levels
        blocks.append((j, *encode(known.iloc[:, j], None if asked is None else asked.iloc[:, j])))
    return CellMatrix(
        np.concatenate([block for _, block, _, _ in blocks], axis=1),
        None if asked is None else np.concatenate([block for _, _, block, _ in blocks], axis=1),
        np.concatenate([np.full(len(is_number), j) for j, _, _, is_number in blocks]),
        np.concatenate([is_number for _, _, _, is_number in blocks]),
    )


def standardised(cells: CellMatrix) -> tuple[Matrix, Matrix | None]:
    """Numbers with mean 0 and standard deviation 1 on training rows."""
    return cells.scaled(StandardScaler())


def quantile_normal(cells: CellMatrix) -> tuple[Matrix, Matrix | None]:
    """Numbers by their rank among training rows, spread like a normal distribution."""
    n_quantiles = min(1_000, len(cells.train))
    return cells.scaled(QuantileTransformer(n_quantiles=n_quantiles, output_distribution="normal", subsample=None))


def as_frame(table: Table) -> pd.DataFrame:
    """The same rows as a pandas frame."""
    if isinstance(table, pa.Table):
        return table.to_pandas(date_as_object=False)
    return table if isinstance(table, pd.DataFrame) else pd.DataFrame(np.asarray(table))


def _is_number(column: pd.Series) -> bool:
    kinds = pd.api.types
    if kinds.is_bool_dtype(column.dtype):
        return False
    return kinds.is_numeric_dtype(column.dtype) or kinds.is_datetime64_any_dtype(column.dtype)


def _numbers(train: pd.Series, test: pd.Series | None) -> tuple[Matrix, Matrix | None, list[bool]]:
    known, asked = _floats(train), None if test is None else _floats(test)
    finite = known[np.isfinite(known)]
    low, middle, high = (finite.min(), np.median(finite), finite.max()) if finite.size else (0.0, 0.0, 0.0)
    has_gaps = any(values is not None and np.isnan(values).any() for values in (known, asked))

    def encode(values: np.ndarray) -> Matrix:
        filled = np.nan_to_num(values, nan=middle, posinf=high, neginf=low)
        return np.column_stack([filled, np.isnan(values)] if has_gaps else [filled])

    return encode(known), None if asked is None else encode(asked), [True, False][: 1 + has_gaps]


def _levels(train: pd.Series, test: pd.Series | None) -> tuple[Matrix, Matrix | None, list[bool]]:
    known, asked = _words(train), None if test is None else _words(test)
    counts = known.value_counts()
    levels = counts.sort_index().sort_values(ascending=False, kind="stable").index
    if len(levels) > MAX_LEVELS:
        levels = levels[: MAX_LEVELS - 1]
    codes = levels.get_indexer(known)
    asked_codes = None if asked is None else levels.get_indexer(asked)
    has_others = any(found is not None and (found < 0).any() for found in (codes, asked_codes))
    width = len(levels) + has_others

    def encode(found: np.ndarray) -> Matrix:
        return np.eye(width)[np.where(found < 0, width - 1, found)]

    return encode(codes), None if asked_codes is None else encode(asked_codes), [False] * width


def _floats(column: pd.Series) -> np.ndarray:
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        seconds = column.to_numpy(dtype="datetime64[us]").astype("int64") / 1e6
        return np.where(column.isna(), np.nan, seconds)
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def _words(column: pd.Series) -> pd.Series:
    missing = column.isna().to_numpy()
    return pd.Series(np.where(missing, MISSING, column.astype(object).map(str).to_numpy(dtype=object)), dtype=object)
