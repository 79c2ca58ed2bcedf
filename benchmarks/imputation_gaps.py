"""The tables of the imputation benchmark, how their cells are hidden, and how far off those filled in are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool

TABLES = (
    "credit_g",
    "california_housing",
    "phoneme",
    "mice_protein",
    "jm1",
    "churn",
    "adult",
    "bank_marketing",
)

LOOKED_AT = ("california_housing", "credit_g", "churn", "phoneme")
"""Tables on which choices were made."""

Mechanism = Literal["random", "dependent"]
MECHANISMS: tuple[Mechanism, ...] = ("random", "dependent")

DRIVER_SHARE = 1 / 3
"""Share of the columns that are never hidden where gaps depend on another column: it is one of these."""

MOST_CATEGORIES = 100
"""A column of more categories is left out, as one-hot neighbours would drown in it."""


@dataclass(frozen=True)
class Gapped:
    """A table, the same with gaps, and which cells were hidden; cells missing from the start are not among them."""

    whole: pa.Table
    given: pa.Table
    hidden: Bool[np.ndarray, "N C"]


def read_rows(path: Path, seed: int, max_rows: int) -> pa.Table:
    """At most so many rows, drawn at random, without columns of one value or of very many categories."""
    table = pq.read_table(path)
    rows = np.sort(np.random.default_rng(seed).permutation(table.num_rows)[:max_rows])
    table = table.take(pa.array(rows)).combine_chunks()
    kept = []
    for name in table.column_names:
        n_values = len(set(_plain(table[name]).drop_null().to_pylist()))
        if n_values > 1 and (is_number(table, name) or n_values <= MOST_CATEGORIES):
            kept.append(name)
    return table.select(kept)


def is_number(table: pa.Table, name: str) -> bool:
    arrow_type = table.schema.field(name).type
    return pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type)


def hide(table: pa.Table, mechanism: Mechanism, rate: float, seed: int) -> Gapped:
    """Hide about `rate` of the cells.

    `random`: each cell with the same probability. `dependent`: a third of the columns, numbers if there are any, are
    never hidden; each other column's cells are hidden with a probability that rises from 0 to twice the rate with the
    rank of the row in one of these.
    """
    generator = np.random.default_rng([seed, MECHANISMS.index(mechanism), round(100 * rate)])
    n_rows, n_columns = table.shape
    probability = np.full((n_rows, n_columns), rate)
    if mechanism == "dependent":
        numbers = [place for place, name in enumerate(table.column_names) if is_number(table, name)]
        among = numbers or list(range(n_columns))
        n_drivers = min(len(among), max(1, round(DRIVER_SHARE * n_columns)))
        drivers = generator.choice(among, n_drivers, replace=False)
        ranks = {driver: _rank(table.column(int(driver))) for driver in drivers}
        for place in range(n_columns):
            probability[:, place] = 0 if place in ranks else np.minimum(2 * rate * ranks[generator.choice(drivers)], 1)
    present = np.stack([column.is_valid().to_numpy() for column in table.columns], axis=1)
    hidden = (generator.random(probability.shape) < probability) & present
    columns = [_without(column, gone) for column, gone in zip(table.columns, hidden.T, strict=True)]
    return Gapped(table, pa.table(columns, schema=table.schema), hidden)


@dataclass(frozen=True)
class Misses:
    """How far filled cells are from the hidden ones."""

    rmse: dict[str, float]
    """By number column, in its standard deviations."""

    accuracy: dict[str, float]
    """By column of categories, the share that is right."""

    def figures(self) -> dict[str, float | None]:
        """Means over columns; none where there is no such column."""
        return {
            name: float(np.mean(list(values.values()))) if values else None
            for name, values in (("rmse", self.rmse), ("accuracy", self.accuracy))
        }


def measure(gapped: Gapped, filled: pd.DataFrame) -> Misses:
    """Compare what was filled in with what was hidden; a cell still missing counts as the mean or the mode."""
    rmse, accuracy = {}, {}
    given = to_frame(gapped.given)
    whole = to_frame(gapped.whole)
    for place, name in enumerate(whole.columns):
        gone = gapped.hidden[:, place]
        if not gone.any():
            continue
        if is_number(gapped.whole, name):
            true, told = whole[name].to_numpy(), filled[name].to_numpy(dtype=np.float64)
            told = np.where(np.isnan(told), np.nanmean(given[name]), told)
            rmse[name] = float(np.sqrt(np.mean(np.square(told - true)[gone])) / np.nanstd(true))
        else:
            told = filled[name].where(filled[name].notna(), given[name].mode().iloc[0])
            accuracy[name] = float((told.to_numpy() == whole[name].to_numpy())[gone].mean())
    return Misses(rmse, accuracy)


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Numbers as floats with NaN, all else as words with None."""
    columns = {}
    for name in table.column_names:
        if is_number(table, name):
            columns[name] = table[name].cast(pa.float64()).to_numpy()
        else:
            columns[name] = np.array(_plain(table[name]).cast(pa.string()).to_pylist(), dtype=object)
    return pd.DataFrame(columns)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _rank(column: pa.ChunkedArray) -> np.ndarray:
    """Share of rows with a smaller value, 0 to 1; half where it is missing."""
    values = _plain(column).to_pandas()
    return values.rank(pct=True).fillna(0.5).to_numpy()


def _without(column: pa.ChunkedArray, gone: np.ndarray) -> pa.Array:
    place = pa.array(np.arange(len(gone)), mask=gone)
    return column.combine_chunks().take(place)
