"""From a model, and a table if there is one, to a report: gather what there is to tell, and write the page."""

from __future__ import annotations

import datetime
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tabmoco.errors import TabmocoError
from tabmoco.evaluation.clusters import Clusters, cluster
from tabmoco.evaluation.drift import drift
from tabmoco.evaluation.drift_sides import Side
from tabmoco.model import RowModel
from tabmoco.report import MAX_ROWS
from tabmoco.report.distributions import ColumnPicture, draw_columns
from tabmoco.report.files import write_page
from tabmoco.report.groups import (
    ClustersTold,
    DriftsTold,
    DuplicatesTold,
    tell_clusters,
    tell_drift,
    tell_duplicates,
)
from tabmoco.report.row_map import RowMap, draw_map
from tabmoco.report.rows import ReportedRows
from tabmoco.report.strange import (
    CalibrationPicture,
    Scores,
    StrangeRow,
    draw_calibration,
    score_rows,
    strangest_rows,
)
from tabmoco.report.training import Curve, training_curves
from tabmoco.tables.schema import Schema
from tabmoco.tables.source import TableSource, open_table

MOST_COLUMNS = 200
"""Columns drawn, and that the map can be coloured by."""

MOST_STRANGE = 100
"""Rows listed."""

NO_TABLE = "The model keeps no rows of the table as they were, so this part needs a table: give one to the report."
NO_REFERENCE = "This model was trained without reference rows to compare with, so it has no anomaly scores."

Found = TypeVar("Found")
Progress = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class Report:
    """What a model learned of a table, and what it says of the rows of one, ready to be written as a page."""

    record: dict[str, Any]
    schema: Schema
    d_embedding: int
    created: str

    columns: tuple[ColumnPicture, ...]
    """The first `MOST_COLUMNS` in use."""

    curves: tuple[Curve, ...]

    name: str | None = None
    """What the table reported on is called; None without one, and all below is empty."""

    n_rows: int = 0
    n_drawn: int = 0
    """Rows of it that were scored, mapped, clustered and searched for duplicates."""

    share_missing: float = 0.0
    """Of all its cells."""

    is_training_table: bool = False
    are_positions: bool = True
    """Whether rows are called by their positions, from 0, rather than by ids."""

    scores: Scores | None = None
    strangest: tuple[StrangeRow, ...] = ()
    row_map: RowMap | None = None
    duplicates: DuplicatesTold | None = None
    clusters: ClustersTold | None = None
    calibration: CalibrationPicture | None = None
    drift: DriftsTold | None = None
    notes: dict[str, str] = field(default_factory=dict)
    """Why a section has nothing to show, by its name."""

    @cached_property
    def html(self) -> str:
        """The page: one file, which loads nothing from elsewhere."""
        from tabmoco.report.page import render

        return render(self)

    @property
    def n_anomalies(self) -> int | None:
        return None if self.scores is None else int(self.scores.is_anomaly.sum())

    def write(self, path: str | Path, *, overwrite: bool = False) -> int:
        """Write the page aside and rename it when it is whole; its size in bytes.

        Raises
        ------
        TabmocoError
            If the file exists and `overwrite` is false, or cannot be written.
        """
        return write_page(self.html, path, overwrite=overwrite)

    def to_json(self) -> dict[str, Any]:
        """The main figures, JSON-safe."""
        calibration = [] if self.calibration is None else self.calibration.limits
        return {
            "learned_from": self.record.get("table"),
            "worked": self.record.get("worked"),
            "verdict": self.record.get("verdict"),
            "table": self.name,
            "n_rows": self.n_rows,
            "n_drawn": self.n_drawn,
            "n_columns": len(self.schema.used),
            "share_missing": self.share_missing,
            "is_training_table": self.is_training_table,
            "n_anomalies": self.n_anomalies,
            "flagged": [{"fpr": limit.fpr, "held_out": limit.held_out, "here": limit.share} for limit in calibration],
            "strangest": [{"row": row.name, "anomaly_score": row.score, "p_value": row.p} for row in self.strangest],
            "n_duplicate_groups": None if self.duplicates is None else self.duplicates.n_groups,
            "n_duplicates": None if self.duplicates is None else self.duplicates.n_repeated,
            "n_clusters": None if self.clusters is None else self.clusters.n_clusters,
            "is_drift": None if self.drift is None else self.drift.is_drift,
            "drift": None if self.drift is None else self.drift.verdict,
            "notes": self.notes,
        }


def make_report(
    model: RowModel,
    table: Any = None,
    *,
    against: Any = None,
    max_rows: int = MAX_ROWS,
    seed: int = 0,
    progress: Progress = lambda n_rows: None,
) -> Report:
    """Gather all that a model has to tell, of what it learned and of the rows of a table.

    Parameters
    ----------
    table
        The rows to report on: anything `open_table` reads, with the model's columns. A model keeps no rows as they
        were, so without a table the report tells of columns, training and calibration alone.
    against
        Compare the columns and rows of `table` with these rows, rather than with those the model learned from.
    max_rows
        Of a longer table so many rows, drawn at random, are scored, mapped, clustered and searched for duplicates.
        Columns and drift are told of all rows.
    seed
        Which rows are drawn, and where the search for clusters starts.
    progress
        Told the number of rows just read, `n_read` in all.

    Raises
    ------
    TabmocoError
        If the table lacks columns or rows, `against` is given without it, or jinja2 is not installed.
    """
    require_jinja()
    if table is None and against is not None:
        raise TabmocoError("against needs a table to compare with it, got none; give a table to report on.")
    known = Side.of_model(model, seed=seed) if model.reference is not None else None
    common: dict[str, Any] = {
        "record": model.record,
        "schema": model.schema,
        "d_embedding": model.d_embedding,
        "created": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "curves": tuple(training_curves(model.record.get("metrics", []))),
    }
    if table is None:
        columns = draw_columns(model, known, None, most=MOST_COLUMNS)
        calibration = None if model.reference is None else draw_calibration(model.reference.calibration, None)
        notes = dict.fromkeys(("map", "strange", "duplicates", "clusters", "drift"), NO_TABLE)
        if calibration is None:
            notes["calibration"] = NO_REFERENCE
        return Report(**common, columns=tuple(columns), calibration=calibration, notes=notes)
    source = table if isinstance(table, TableSource) else open_table(table)
    rows = ReportedRows.draw(model, source, most=max_rows, seed=seed)
    given = Side.of_table(model, source, seed=seed, progress=progress)
    known = None if known is None else known.named(model, given)
    n_missing = sum(given.columns[column.name].n_missing for column in model.schema.used)
    told = _Teller(model, rows, seed, progress)
    return Report(
        **common,
        columns=tuple(draw_columns(model, known, given, most=MOST_COLUMNS)),
        name=given.name,
        n_rows=source.n_rows,
        n_drawn=len(rows),
        share_missing=n_missing / (source.n_rows * len(model.schema.used)),
        is_training_table=(is_same := model.is_training_table(source)),
        are_positions=rows.are_positions,
        **told.of_rows(),
        drift=told.drift(source, against, is_training_table=is_same),
        notes=told.notes,
    )


def n_read(n_rows: int, n_against: int, max_rows: int) -> int:
    """How many rows `make_report` reads, those read more than once counted as often."""
    return 2 * n_rows + n_against + 3 * min(n_rows, max_rows)


def require_jinja() -> None:
    """Raise unless the one package is there that a report needs beyond the others."""
    if importlib.util.find_spec("jinja2") is None:
        raise TabmocoError("a report needs the package jinja2, which is not installed; pip install 'tabmoco[report]'.")


@dataclass
class _Teller:
    """Asks a model about the rows reported on; a question that it cannot answer becomes a note."""

    model: RowModel
    rows: ReportedRows
    seed: int
    progress: Progress
    notes: dict[str, str] = field(default_factory=dict)

    def of_rows(self) -> dict[str, Any]:
        """All that rests on the rows themselves."""
        clusters = self._asked("clusters", self._cluster)
        told: dict[str, Any] = {"clusters": None if clusters is None else tell_clusters(clusters)}
        if self.model.reference is None:
            self.notes |= dict.fromkeys(("map", "strange", "duplicates", "calibration"), NO_REFERENCE)
            return told
        scores = score_rows(self.model, self.rows, self.progress)
        strangest = strangest_rows(self.model, self.rows, scores, most=MOST_STRANGE)
        row_map = draw_map(
            self.model,
            self.rows,
            scores,
            None if clusters is None else clusters.labels.tolist(),
            strangest=[row.place for row in strangest],
            most_columns=MOST_COLUMNS,
            seed=self.seed,
        )
        if row_map is None:
            self.notes["map"] = "A map needs three rows or more."
        return {
            **told,
            "scores": scores,
            "strangest": tuple(strangest),
            "row_map": row_map,
            "calibration": draw_calibration(self.model.reference.calibration, scores),
            "duplicates": self._asked("duplicates", self._duplicates),
        }

    def drift(self, source: TableSource, against: Any, *, is_training_table: bool) -> DriftsTold | None:
        if is_training_table and against is None:
            self.notes["drift"] = "This is the very table that the model learned from, so there is nothing to compare."
            return None

        def compare() -> DriftsTold:
            return tell_drift(drift(self.model, source, against=against, seed=self.seed, progress=self.progress))

        return self._asked("drift", compare)

    def _cluster(self) -> Clusters:
        return cluster(self.model, self.rows.source(), seed=self.seed, progress=self.progress)

    def _duplicates(self) -> DuplicatesTold:
        return tell_duplicates(self.model.duplicates(self.rows.source(), progress=self.progress))

    def _asked(self, section: str, ask: Callable[[], Found]) -> Found | None:
        try:
            return ask()
        except TabmocoError as error:
            self.notes[section] = f"Nothing can be said here: {error}"
            return None
