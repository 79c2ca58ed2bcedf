"""A table of Parquet files cut into pieces that are read apart, each row with its position in the whole table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from tabmoco.errors import TableError
from tabmoco.tables.readers import FilesReader, ParquetPart, PieceReader
from tabmoco.tables.source import TableBatch, TableSource

LARGEST = 16
"""A row group is cut into pieces, which all read it from its start, if it has more than so many times the rows of the
smallest piece."""


@dataclass(frozen=True)
class Extent:
    """Rows that follow one another."""

    first: int
    n_rows: int


class Piece(TableSource):
    """Some rows of a table, known by their positions in the whole of it."""

    def __init__(self, whole: TableSource, extent: Extent) -> None:
        reader, names = _files(whole), whole.arrow_schema.names
        super().__init__(
            PieceReader(reader, extent.first, extent.n_rows), name=whole.name, names=names, id_column=whole.id_column
        )
        self._whole = whole
        self._first = extent.first

    def batches(self, *, batch_rows: int = 65_536, first: int = 0) -> Iterator[TableBatch]:
        """Read the piece from its row `first` on."""
        for batch in super().batches(batch_rows=batch_rows, first=first):
            yield dataclasses.replace(batch, rows=batch.rows + self._first)

    def take(self, rows: Int64[np.ndarray, " N"]) -> TableBatch:
        """Read the rows at the given positions in the whole table."""
        return self._whole.take(rows)


def cut(source: TableSource, *, at_least: int, multiple: int) -> list[Extent]:
    """Cut a table where its row groups end, or shortly before.

    Every piece but the last has at least `at_least` rows, and begins at a multiple of `multiple`: read in batches of
    that size, the pieces have the batches of the whole table. What lies between that place and the end of the row group
    is read for two pieces. An empty table is one empty piece.

    Raises
    ------
    TableError
        If the table is not of Parquet files, which alone can be read from the middle.
    """
    reader = _files(source)
    step = max(at_least, multiple)
    cuts, end = [0], 0
    parts = [part for part in reader.parts if isinstance(part, ParquetPart)]
    for n_rows in [n_rows for part in parts for n_rows in part.group_rows()]:
        ends = [*range(end + LARGEST * step, end + n_rows, LARGEST * step), end + n_rows]
        end += n_rows
        for place in (place // multiple * multiple for place in ends):
            if place - cuts[-1] >= step and place < reader.n_rows:
                cuts.append(place)
    return [Extent(first, last - first) for first, last in zip(cuts, [*cuts[1:], reader.n_rows], strict=True)]


def _files(source: TableSource) -> FilesReader:
    reader = source._reader
    formats = [part.file.format for part in reader.parts] if isinstance(reader, FilesReader) else ["in memory"]
    if not isinstance(reader, FilesReader) or set(formats) != {"Parquet"}:
        raise TableError(
            f"a table that is read in pieces must be in Parquet files, but {source.name} is {formats[0]}; write it as "
            "Parquet first."
        )
    return reader
