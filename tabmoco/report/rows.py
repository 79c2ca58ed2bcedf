"""The rows that a report is about, in memory: all of a table, or as many as are drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from tabmoco.errors import TableError
from tabmoco.model import RowModel
from tabmoco.tables.source import TableSource, open_table


@dataclass(frozen=True)
class ReportedRows:
    """Some rows of a table, each with its name."""

    table: pa.RecordBatch
    """The cells of the columns that the model knows."""

    names: pa.Array
    """What each row is called: its id, or its position in the whole table."""

    are_positions: bool
    n_all: int
    """Rows of the whole table."""

    def __len__(self) -> int:
        return self.table.num_rows

    @classmethod
    def draw(cls, model: RowModel, source: TableSource, *, most: int, seed: int) -> ReportedRows:
        """At most `most` rows, in the table's order."""
        if most < 1:
            raise TableError(f"max_rows must be at least 1, got max_rows={most}.")
        if source.n_rows == 0:
            raise TableError(f"{source.name} must have rows to report on, found none.")
        model.preprocessor.align(source.arrow_schema, name=source.name)
        rows = np.arange(source.n_rows)
        if source.n_rows > most:
            rows = np.sort(np.random.default_rng(seed).choice(source.n_rows, most, replace=False))
        batch = source.take(rows)
        names = pa.array(rows) if batch.ids is None else batch.ids
        used = [column.name for column in model.schema.used]
        return cls(batch.table.select(used), names, batch.ids is None, source.n_rows)

    def source(self, places: Int64[np.ndarray, " n"] | None = None) -> TableSource:
        """The rows, or those at some places among them, as a table whose id column has their names."""
        id_name = "row"
        while id_name in self.table.schema.names:
            id_name += "_"
        fields = [*self.table.schema, pa.field(id_name, self.names.type)]
        table = pa.Table.from_arrays([*self.table.columns, self.names], schema=pa.schema(fields))
        return open_table(table if places is None else table.take(pa.array(places)), id_column=id_name)

    def called(self, place: int) -> str:
        """The name of one row in words."""
        return told_name(self.names[place].as_py())


def told_name(name: Any) -> str:
    """A row's id or position in words; positions without commas, as commands take them."""
    return "(no id)" if name is None else str(name)
