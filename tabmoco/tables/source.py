"""Any table as a stream of Arrow record batches with stable row positions and ids."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
from jaxtyping import Int64

from tabmoco.errors import SchemaError, TableError
from tabmoco.tables.files import find_files
from tabmoco.tables.frames import to_arrow
from tabmoco.tables.names import refuse_duplicates, require_columns
from tabmoco.tables.readers import DatasetReader, FilesReader, MemoryReader, Reader, content_digest
from tabmoco.tables.rebatch import one_batch, rebatch

TableLike: TypeAlias = Any
"""A path, glob, directory or URL (or a list of them), a pandas or polars frame, a pyarrow Table, RecordBatch or
Dataset, a 2-D NumPy array, a list of rows or of dicts, a dict of columns, or a `TableSource`."""


@dataclass(frozen=True)
class TableBatch:
    """Some rows of a table."""

    rows: Int64[np.ndarray, " N"]
    """Positions in the whole table, from 0."""

    ids: pa.Array | None
    """Values of the id column, if there is one."""

    table: pa.RecordBatch
    """The cells, without the id column."""

    def __len__(self) -> int:
        return self.table.num_rows


class TableSource:
    """A table that can be read again and again; made by `open_table`.

    A row's position counts from 0 through the files sorted by path, and does not depend on how the table is batched.

    Attributes
    ----------
    name
        What messages and model cards call the table: its file names, or the type of the object.
    n_rows
        Number of rows.
    arrow_schema
        Names and types of the columns in use, in table order, without the id column.
    id_column
        Name of the column whose values come along as ids, if any.
    id_type
        Arrow type of these ids.
    """

    def __init__(self, reader: Reader, *, name: str, names: Sequence[str], id_column: str | None) -> None:
        self._reader = reader
        self._names = [*names, *([id_column] if id_column is not None else [])]
        self.name = name
        self.n_rows = reader.n_rows
        self.id_column = id_column
        self.arrow_schema = pa.schema([reader.schema.field(name) for name in names])
        self.id_type = None if id_column is None else reader.schema.field(id_column).type
        self._read_schema = pa.schema([reader.schema.field(name) for name in self._names])
        self._watch: Callable[[int], None] | None = None

    def __repr__(self) -> str:
        return f"TableSource({self.name!r}, {len(self.arrow_schema)} columns, {self.n_rows} rows)"

    def count_rows(self) -> int:
        """Number of rows."""
        return self.n_rows

    def batches(self, *, batch_rows: int = 65_536, first: int = 0) -> Iterator[TableBatch]:
        """Read the table from row `first` on, `batch_rows` rows at a time (the last batch may be shorter)."""
        if batch_rows < 1:
            raise TableError(f"batch_rows must be at least 1, got {batch_rows}.")
        for batch in rebatch(_from(first, self._reader.batches(self._names)), self._read_schema, batch_rows):
            yield self._table_batch(np.arange(first, first + batch.num_rows), batch)
            first += batch.num_rows
            if self._watch is not None:
                self._watch(batch.num_rows)

    def watched(self, watch: Callable[[int], None]) -> TableSource:
        """The same table, which tells `watch` how many rows were just done with, batch by batch."""
        source = copy.copy(self)
        source._watch = watch
        return source

    def take(self, rows: Int64[np.ndarray, " N"]) -> TableBatch:
        """Read the rows at the given positions, in the given order; positions may repeat.

        Raises
        ------
        TableError
            If a position lies outside the table.
        """
        rows = np.asarray(rows, dtype=np.int64).reshape(-1)
        outside = rows[(rows < 0) | (rows >= self.n_rows)]
        if len(outside):
            raise TableError(f"Row positions of {self.name} must lie in 0 to {self.n_rows - 1}, got {outside[0]}.")
        ascending, place = np.unique(rows, return_inverse=True)
        if len(rows) == 0:
            table = self._read_schema.empty_table()
        else:
            table = self._reader.take(self._names, ascending).take(pa.array(place))
        return self._table_batch(rows, one_batch(table, self._read_schema))

    def fingerprint(self) -> str:
        """SHA-256 in hex over column names, types and content, the same wherever the table lies.

        Files are hashed byte by byte, so the same rows written differently count as another table.
        """
        return content_digest(self._read_schema, self._reader.content())

    def _table_batch(self, rows: np.ndarray, batch: pa.RecordBatch) -> TableBatch:
        if self.id_column is None:
            return TableBatch(rows, None, batch)
        return TableBatch(rows, batch.column(self.id_column), batch.select(self.arrow_schema.names))


def _from(first: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches from a row on."""
    for batch in batches:
        if first < batch.num_rows:
            yield batch.slice(first)
        first = max(0, first - batch.num_rows)


def open_table(
    data: TableLike,
    *,
    columns: Sequence[str] = (),
    exclude: Sequence[str] = (),
    id_column: str | None = None,
) -> TableSource:
    """Open any table for reading.

    Parameters
    ----------
    data
        See `TableLike`. Files may be Parquet, CSV or TSV (plain, ``.gz``, ``.zst``, ``.bz2``), Arrow IPC or Feather.
    columns
        Columns to use, kept in the order of the table; empty means all.
    exclude
        Columns to leave out.
    id_column
        Column whose values name the rows; never among the cells.

    Raises
    ------
    TableError
        If there is no table, or it cannot be read.
    SchemaError
        If column names repeat, or an option names a column that is not there.
    """
    if isinstance(data, TableSource):
        return _narrow(data, columns=columns, exclude=exclude, id_column=id_column)
    reader, name = _open_reader(data, id_column)
    return _select(reader, name, reader.schema.names, columns=columns, exclude=exclude, id_column=id_column)


def _open_reader(data: TableLike, id_column: str | None) -> tuple[Reader, str]:
    is_list_of_paths = isinstance(data, list | tuple) and data and all(isinstance(i, str | os.PathLike) for i in data)
    if isinstance(data, str | os.PathLike) or is_list_of_paths:
        files = find_files(data)
        more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        return FilesReader(files), files[0].label + more
    if isinstance(data, pads.Dataset):
        refuse_duplicates(data.schema.names, "the pyarrow Dataset")
        return DatasetReader(data), "pyarrow Dataset"
    table, name = to_arrow(data, id_column=id_column)
    return MemoryReader(table), name


def _narrow(
    source: TableSource, *, columns: Sequence[str], exclude: Sequence[str], id_column: str | None
) -> TableSource:
    if not columns and not exclude and id_column in (None, source.id_column):
        return source
    names = source._names
    keep_id = id_column if id_column is not None else source.id_column
    return _select(source._reader, source.name, names, columns=columns, exclude=exclude, id_column=keep_id)


def _select(
    reader: Reader,
    name: str,
    names: Sequence[str],
    *,
    columns: Sequence[str],
    exclude: Sequence[str],
    id_column: str | None,
) -> TableSource:
    require_columns(columns, names, option="columns", where=name)
    require_columns(exclude, names, option="exclude", where=name)
    require_columns([id_column] if id_column is not None else [], names, option="id_column", where=name)
    left_out = {*exclude, id_column}
    kept = [column for column in names if column not in left_out and (not columns or column in columns)]
    if not kept:
        raise SchemaError(f"{name} has no column left to use; name fewer in exclude, or more in columns.")
    return TableSource(reader, name=name, names=kept, id_column=id_column)
