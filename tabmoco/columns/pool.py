"""Samples of many columns of many tables: what a column encoder learns from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float32, Int64

from tabmoco.columns.traits import SAMPLE_ROWS, traits
from tabmoco.columns.values import Values
from tabmoco.errors import SchemaError

READ_ROWS = 2 * SAMPLE_ROWS
"""Rows of a table that samples are drawn from."""

MIN_ROWS = 20
"""Rows of a table below which it is left out."""

MAX_COLUMNS = 40
"""Columns of a table at most, so that no wide table decides."""

N_RANDOM_PAIRS = 3
"""Pairs of random samples of each column; one more pair is made of its first and its last rows."""

SMALLEST_SAMPLE = 10


@dataclass(frozen=True, eq=False)
class Pool:
    """Columns, each with pairs of samples that share no row; the last pair is of its first and its last rows."""

    pair: Float32[np.ndarray, "M pairs 2 T"]
    """Traits of the samples."""

    table: Int64[np.ndarray, " M"]
    """Which table each column is of; columns of a table follow one another."""

    content: Int64[np.ndarray, " M"]
    """A hash of each column's values: the columns of tables that are copies have equal ones."""

    names: tuple[str, ...]
    """What each column is called, for labels and never for traits."""

    tables: tuple[str, ...]
    """What the tables are called."""

    def __len__(self) -> int:
        return len(self.names)

    def of_tables(self, kept: Bool[np.ndarray, " tables"]) -> Pool:
        """The columns of some tables."""
        place = np.flatnonzero(kept[self.table])
        number = np.cumsum(kept) - 1
        return Pool(
            self.pair[place],
            number[self.table[place]],
            self.content[place],
            tuple(self.names[column] for column in place),
            tuple(name for name, keep in zip(self.tables, kept, strict=True) if keep),
        )


def build_pool(tables: Iterable[tuple[str, pa.Table]], seed: int) -> Pool:
    """Draw pairs of samples from every column of the tables that holds two different values or more.

    Tables of fewer than 20 rows are left out, and of the columns of a wide table all but 40.
    """
    pairs, owner, content = [], [], []
    names: list[str] = []
    kept: list[str] = []
    for number, (name, table) in enumerate(tables):
        generator = np.random.default_rng([seed, number])
        if table.num_rows < MIN_ROWS:
            continue
        rows = draw_rows(table.num_rows, READ_ROWS, generator)
        found = list(_columns(table, rows, generator))
        for column, values in found:
            pairs.append(_pairs(values, generator))
            owner.append(len(kept))
            content.append(values.content())
            names.append(column)
        if found:
            kept.append(name)
    return Pool(
        np.array(pairs, dtype=np.float32),
        np.array(owner, dtype=np.int64),
        np.array(content, dtype=np.int64),
        tuple(names),
        tuple(kept),
    )


def draw_rows(n_rows: int, most: int, generator: np.random.Generator) -> Int64[np.ndarray, " n"]:
    """Positions of some rows at random, in the order of the table; all of them if there are no more."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(generator.choice(n_rows, most, replace=False))


def _columns(
    table: pa.Table, rows: Int64[np.ndarray, " n"], generator: np.random.Generator
) -> Iterator[tuple[str, Values]]:
    order = generator.permutation(table.num_columns)
    n_found = 0
    for place in order:
        column = table.column(int(place)).take(pa.array(rows))
        try:
            values = Values.read(column, table.column_names[place])
        except SchemaError:
            continue
        if values.n_distinct > 1:
            yield table.column_names[place], values
            n_found += 1
        if n_found == MAX_COLUMNS:
            return


def _pairs(values: Values, generator: np.random.Generator) -> Float32[np.ndarray, "pairs 2 T"]:
    n_rows = len(values.code)
    halves = []
    for number in range(N_RANDOM_PAIRS + 1):
        order = np.arange(n_rows) if number == N_RANDOM_PAIRS else generator.permutation(n_rows)
        one, other = order[: n_rows // 2], order[n_rows // 2 :]
        if number < N_RANDOM_PAIRS:
            sizes = _size(len(one), generator), _size(len(other), generator)
            one, other = one[: sizes[0]], other[: sizes[1]]
        halves.append([traits(values, one), traits(values, other)])
    return np.array(halves)


def _size(most: int, generator: np.random.Generator) -> int:
    """A sample size: one time in two the largest, else every order of magnitude as likely as another."""
    if generator.random() < 0.5:
        return most
    smallest = min(SMALLEST_SAMPLE, most)
    return round(float(np.exp(generator.uniform(np.log(smallest), np.log(most)))))
