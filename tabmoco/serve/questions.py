"""What a client may ask about rows: each question with its options, and the answer of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import pyarrow as pa

from tabmoco.config import Space
from tabmoco.model import RowModel


class Question(Protocol):
    """Equal questions about rows of equal columns can be answered in one call."""

    @property
    def is_by_row(self) -> bool:
        """Whether the answer for a row depends on that row alone, so that requests may be answered together."""

    def answer(self, model: RowModel, table: pa.Table) -> pa.Table:
        """Rows whose first column, `row_id`, says by position which row of the table each is about, ascending."""


@dataclass(frozen=True)
class Score:
    """How strange is each row, and why? See `RowModel.score`."""

    fpr: float | None = None
    fdr: float | None = None
    explain: bool | Literal["all"] = False
    top_cells: int = 5

    @property
    def is_by_row(self) -> bool:
        return self.fdr is None

    def answer(self, model: RowModel, table: pa.Table) -> pa.Table:
        return model.score(table, fpr=self.fpr, fdr=self.fdr, explain=self.explain, top_cells=self.top_cells)


@dataclass(frozen=True)
class Search:
    """Which reference rows are most like each row? See `RowModel.search`."""

    k: int = 10

    @property
    def is_by_row(self) -> bool:
        return True

    def answer(self, model: RowModel, table: pa.Table) -> pa.Table:
        return model.search(table, k=self.k)


@dataclass(frozen=True)
class Embed:
    """Where does each row lie? See `RowModel.embed`."""

    space: Space = "embedding"

    @property
    def is_by_row(self) -> bool:
        return True

    def answer(self, model: RowModel, table: pa.Table) -> pa.Table:
        vectors = pa.array(model.embed(table, space=self.space).ravel())
        rows = pa.array(range(table.num_rows), pa.int64())
        return pa.table(
            {"row_id": rows, self.space: pa.FixedSizeListArray.from_arrays(vectors, model.width(self.space))}
        )
