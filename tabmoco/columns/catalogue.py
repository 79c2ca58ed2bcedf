"""Known columns of many tables, to say which of them the columns of another table resemble."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int64

from tabmoco.columns.encoder import ColumnEncoder, ColumnView, TableView
from tabmoco.columns.folders import Tables, each_table
from tabmoco.errors import ConfigError, TableError, TabmocoError
from tabmoco.tables.notices import warn

N_LIKE = 3
"""Known columns and tables that are told of each column and of the whole table."""


@dataclass(frozen=True)
class KnownColumn:
    """A column of a catalogue that another resembles."""

    table: str
    column: str
    similarity: float
    """Cosine of the embeddings, -1 to 1."""


@dataclass(frozen=True, eq=False)
class Likeness:
    """What of a catalogue a table resembles."""

    view: TableView
    columns: tuple[tuple[KnownColumn, ...], ...]
    """Of each column of `view`, the most similar first."""

    tables: tuple[tuple[str, float], ...]
    """Tables and the cosines of their embeddings, the most similar first."""

    threshold: float
    """Similarity from which on two columns are taken for the same."""

    def told(self, place: int) -> str:
        """What a column looks like, in words."""
        best = self.columns[place][0]
        if best.similarity < self.threshold:
            return "looks like no known column"
        return f"looks like {best.column} of {best.table}"

    def table(self) -> pa.Table:
        """A row for each column and known column."""
        rows = [
            {"column": view.name, "rank": rank, "known_table": known.table, "known_column": known.column}
            | {"similarity": known.similarity}
            for view, found in zip(self.view.columns, self.columns, strict=True)
            for rank, known in enumerate(found, start=1)
        ]
        names = {"column": pa.string(), "rank": pa.int64(), "known_table": pa.string(), "known_column": pa.string()}
        return pa.Table.from_pylist(rows, pa.schema(names | {"similarity": pa.float64()}))

    def to_json(self) -> dict[str, Any]:
        """JSON-safe values."""
        return {
            "name": self.view.name,
            "threshold": self.threshold,
            "tables": [{"table": name, "similarity": similarity} for name, similarity in self.tables],
            "columns": [
                {
                    **dataclasses.asdict(view),
                    "told": self.told(place),
                    "like": [dataclasses.asdict(known) for known in self.columns[place]],
                }
                for place, view in enumerate(self.view.columns)
            ],
            "skipped": self.view.skipped,
        }


@dataclass(frozen=True, eq=False)
class Catalogue:
    """The embeddings of known columns; made by `ColumnEncoder.learn`. No cell of their tables is kept."""

    encoder: ColumnEncoder = field(repr=False)
    tables: tuple[str, ...]
    columns: tuple[ColumnView, ...] = field(repr=False)
    owner: Int64[np.ndarray, " M"] = field(repr=False)
    """Place of each column's table among `tables`."""

    vectors: Float32[np.ndarray, "M D"] = field(repr=False)
    embeddings: Float32[np.ndarray, "tables D"] = field(repr=False)
    """Of the tables."""

    def __len__(self) -> int:
        """Number of columns."""
        return len(self.columns)

    @classmethod
    def load(cls, folder: str | Path, *, encoder: ColumnEncoder | None = None) -> Catalogue:
        """Read what `save` wrote; `encoder` is the one it was made with, by default the one that tabmoco ships.

        Raises
        ------
        ModelFileError
            If the folder is damaged, altered or of another format version.
        IndexMismatchError
            If another encoder made the catalogue.
        """
        from tabmoco.columns.files import load_catalogue

        return load_catalogue(Path(folder), encoder if encoder is not None else ColumnEncoder.load())

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that `load` reads."""
        from tabmoco.columns.files import save_catalogue

        save_catalogue(self, Path(folder), overwrite=overwrite)

    def like(self, table: Any, *, k: int = N_LIKE) -> Likeness:
        """The `k` known columns that each column of a table is most like, and the `k` tables most like it."""
        if k < 1:
            raise ConfigError(f"k must be at least 1, got k={k}.")
        view = table if isinstance(table, TableView) else self.encoder.read(table)
        similarity = view.vectors @ self.vectors.T
        columns = [
            tuple(
                KnownColumn(self.tables[self.owner[place]], self.columns[place].name, float(row[place]))
                for place in np.argsort(-row, kind="stable")[:k]
            )
            for row in similarity
        ]
        of_tables = self.embeddings @ view.embedding
        nearest = np.argsort(-of_tables, kind="stable")[:k]
        tables = tuple((self.tables[place], float(of_tables[place])) for place in nearest)
        return Likeness(view, tuple(columns), tables, self.encoder.threshold)


def learn_catalogue(
    tables: Tables,
    *,
    encoder: ColumnEncoder | None = None,
    progress: Callable[[int], None] = lambda n_tables: None,
) -> Catalogue:
    """Remember the columns of many tables.

    Parameters
    ----------
    tables
        A folder, every file of which is a table, or pairs of a name and anything `open_table` reads. Tables that cannot
        be read or have no column with values are passed over with a warning.
    encoder
        The one that tabmoco ships by default.
    progress
        Is told the number of tables just read.

    Raises
    ------
    TableError
        If no table is left.
    """
    encoder = encoder if encoder is not None else ColumnEncoder.load()
    views = []
    for name, source in each_table(tables):
        try:
            views.append(encoder.read(source, name=name))
        except TabmocoError as error:
            warn(f"{name} is passed over: {error}")
        progress(1)
    if not views:
        raise TableError(f"a catalogue must have a table to remember, found none that can be read in {tables}.")
    return Catalogue(
        encoder,
        tuple(view.name for view in views),
        tuple(column for view in views for column in view.columns),
        np.repeat(np.arange(len(views)), [len(view.columns) for view in views]),
        np.concatenate([view.vectors for view in views]),
        np.stack([view.embedding for view in views]),
    )
