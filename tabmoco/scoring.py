"""Anomaly scores of a table, batch by batch, with the cells behind them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from tabmoco.errors import TableError
from tabmoco.expectation import STRANGE_CELLS
from tabmoco.neighbors.anomaly import false_discoveries_below
from tabmoco.neighbors.explain import contributions
from tabmoco.results import id_field, names_of, to_arrow
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.notices import warn
from tabmoco.tables.source import TableBatch, TableSource

if TYPE_CHECKING:
    from tabmoco.model import RowModel

EXPLAINED_P = 0.1
"""Rows with a p-value up to this are explained: the strangest tenth."""


@dataclass(frozen=True)
class Scoring:
    """What is asked of a model about the rows of a table; the settings are those of `RowModel.score`."""

    model: RowModel
    fpr: float | None = None
    fdr: float | None = None
    explain: bool | Literal["all"] = False
    top_cells: int = 5

    def schema(self, source: TableSource) -> pa.Schema:
        """The columns of the answer."""
        fields = [
            id_field(source),
            pa.field("anomaly_score", pa.float64()),
            pa.field("p_value", pa.float64()),
            pa.field("is_anomaly", pa.bool_()),
            pa.field("nearest_row_id", self.model.name_type),
        ]
        return pa.schema([*fields, pa.field("cells", STRANGE_CELLS)] if self.explain else fields)

    def batches(self, source: TableSource, *, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The answer; with `fdr` the table is read twice.

        Raises
        ------
        TableError
            If `fpr` or `fdr` is no share, or both are given.
        """
        schema = self.schema(source)
        fpr = self._fpr() if self.fdr is None else self._limit(source, self.fdr, batch_rows)
        for batch, cells in self.model.encoded_batches(source, batch_rows):
            yield pa.record_batch([to_arrow(column) for column in self._columns(batch, cells, fpr)], schema=schema)

    def _columns(self, batch: TableBatch, cells: CellBatch, fpr: float) -> list[pa.Array | np.ndarray]:
        model, reference = self.model, self.model.known_reference
        points = model.scored_points(cells)
        evidence = reference.evidence(points)
        score = reference.calibration.score(evidence.pieces)
        p_value = reference.calibration.p_value(score)
        nearest = evidence.neighbours["cells"][:, 0]
        columns = [names_of(batch), score, p_value, p_value <= fpr, reference.names(nearest)]
        if self.explain:
            told = np.arange(len(score)) if self.explain == "all" else np.flatnonzero(p_value <= max(fpr, EXPLAINED_P))
            share = contributions(reference, model.cell_space, points[told], evidence[told])
            strange = model.expectation.strange_cells(
                batch, model.as_scored(cells), told, share, reference.expected_error, top_cells=self.top_cells
            )
            place = np.full(len(score), -1)
            place[told] = np.arange(len(told))
            columns.append(strange.take(pa.array(place, mask=place < 0)))
        return columns

    def _fpr(self) -> float:
        """The share of ordinary rows that may be flagged, the model's own by default."""
        fpr = self.model.config.index.fpr if self.fpr is None else self.fpr
        if not 0 <= fpr <= 1:
            raise TableError(f"fpr must lie between 0 and 1, got fpr={fpr:g}.")
        n_calibration = len(self.model.known_reference.calibration.scores)
        if 0 < fpr * (n_calibration + 1) < 1 - 1e-9:
            warn(
                f"fpr={fpr:g} needs at least {math.ceil(1 / fpr) - 1:,} calibration rows, the model has "
                f"{n_calibration:,}: no row can be flagged; use an fpr of at least 1/{n_calibration + 1}."
            )
        return fpr

    def _limit(self, source: TableSource, fdr: float, batch_rows: int) -> float:
        """The largest p-value to flag so that a share of at most `fdr` of the flagged rows is expected to be normal."""
        if self.fpr is not None:
            raise TableError(f"give either fpr or fdr, got fpr={self.fpr:g} and fdr={fdr:g}; leave one out.")
        if not 0 <= fdr <= 1:
            raise TableError(f"fdr must lie between 0 and 1, got fdr={fdr:g}.")
        batches = Scoring(self.model, fpr=1.0).batches(source, batch_rows=batch_rows)
        p_value = np.concatenate([np.zeros(0), *(batch["p_value"].to_numpy() for batch in batches)])
        limit = float(p_value[false_discoveries_below(p_value, fdr)].max(initial=0.0))
        n_calibration = len(self.model.known_reference.calibration.scores)
        n_beyond = int((p_value * (1 + n_calibration) < 1.5).sum())
        if limit == 0 < fdr and n_beyond:
            n_needed = math.ceil(len(p_value) / (fdr * (1 + n_calibration)))
            warn(
                f"Of {len(p_value):,} rows {n_beyond:,} are stranger than all {n_calibration:,} calibration rows, but "
                f"fdr={fdr:g} flags only from {n_needed:,} such rows on, so none is flagged; raise fdr or "
                "index.calibration_rows, or use fpr."
            )
        return limit
