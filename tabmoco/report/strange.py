"""The strangest rows with the cells that make them strange, and how the scores are calibrated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from tabmoco.model import BATCH_ROWS, RowModel
from tabmoco.neighbors.anomaly import Calibration
from tabmoco.report.charts import Histogram, histogram
from tabmoco.report.rows import ReportedRows, told_name
from tabmoco.tables.display import describe

LIMITS = (0.01, 0.05, 0.1)
"""Shares of ordinary rows flagged, for which the calibration is told."""

TOP_CELLS = 5
"""Cells of a row that are marked."""

MOST_CELLS_LISTED = 4_000
"""Cells of whole rows that are listed, all rows together: of many columns fewer each."""

P_BINS, SCORE_BINS = 20, 24


@dataclass(frozen=True)
class MarkedCell:
    """A cell that makes its row strange."""

    column: int
    """Place among the columns in use."""

    name: str
    found: str
    expected: str
    """Empty where nothing can be said."""

    is_as_expected: bool
    share: float
    """Share of the row's anomaly score."""


@dataclass(frozen=True)
class StrangeRow:
    """One of the strangest rows."""

    place: int
    """Among the rows reported on."""

    name: str
    score: float
    p: float
    is_anomaly: bool
    nearest: str
    marked: tuple[MarkedCell, ...]

    cells: tuple[tuple[str, str, bool], ...]
    """Name and value of the row's first columns, and whether the cell is marked."""


@dataclass(frozen=True)
class Limit:
    """What flagging a certain share of ordinary rows means."""

    fpr: float
    score: float | None
    """Anomaly score from which on rows are flagged; None where there are too few calibration rows."""

    held_out: float
    """Share of the calibration rows flagged."""

    n_rows: int | None
    """Rows reported on that are flagged."""

    share: float | None


@dataclass(frozen=True)
class CalibrationPicture:
    """What the scores of ordinary rows look like, and those of the rows reported on."""

    n_rows: int
    is_held_out: bool
    limits: tuple[Limit, ...]
    scores: Histogram | None
    p_values: Histogram | None

    @property
    def least_p(self) -> float:
        """The smallest p-value that there can be."""
        return 1 / (1 + self.n_rows)


@dataclass(frozen=True, eq=False)
class Scores:
    """Anomaly scores of all rows reported on."""

    score: Float64[np.ndarray, " N"]
    p: Float64[np.ndarray, " N"]
    fpr: float

    @property
    def is_anomaly(self) -> np.ndarray:
        return self.p <= self.fpr

    @property
    def order(self) -> np.ndarray:
        """Places of the rows, the strangest first."""
        return np.argsort(-self.score, kind="stable")


def score_rows(model: RowModel, rows: ReportedRows, progress: Callable[[int], None]) -> Scores:
    """Score all rows."""
    scores, p_values = [np.zeros(0)], [np.zeros(0)]
    for batch in model.iter_scores(rows.source(), batch_rows=BATCH_ROWS):
        scores.append(batch.column("anomaly_score").to_numpy())
        p_values.append(batch.column("p_value").to_numpy())
        progress(batch.num_rows)
    return Scores(np.concatenate(scores), np.concatenate(p_values), model.config.index.fpr)


def strangest_rows(model: RowModel, rows: ReportedRows, scores: Scores, *, most: int) -> list[StrangeRow]:
    """The `most` strangest rows, strangest first, each with its cells."""
    places = scores.order[:most]
    told = model.score(rows.source(places), explain="all", top_cells=TOP_CELLS)
    number_of = {name: number for number, name in enumerate(model.preprocessor.layout.columns)}
    n_listed = max(TOP_CELLS, MOST_CELLS_LISTED // max(1, len(places)))
    found = []
    for place, line in zip(places.tolist(), told.to_pylist(), strict=True):
        marked = tuple(
            MarkedCell(
                number_of[cell["column"]],
                cell["column"],
                cell["found"],
                cell["expected"] or "",
                is_as_expected(cell["found"], cell["expected"]),
                cell["share"],
            )
            for cell in line["cells"]
            if cell["share"] >= 0.005
        )
        found.append(
            StrangeRow(
                place,
                rows.called(place),
                float(scores.score[place]),
                float(scores.p[place]),
                bool(scores.is_anomaly[place]),
                told_name(line["nearest_row_id"]),
                marked,
                _listed(model, rows, place, {cell.name for cell in marked}, n_listed),
            )
        )
    return found


def is_as_expected(found: str, expected: str | None) -> bool:
    """Whether a cell holds what was expected of it first."""
    return expected is not None and (expected == found or expected.startswith(f"{found} ("))


def _listed(
    model: RowModel, rows: ReportedRows, place: int, marked: set[str], most: int
) -> tuple[tuple[str, str, bool], ...]:
    """Name and value of the first columns, in the table's order."""
    return tuple(
        (column.name, describe(rows.table.column(column.name)[place], column.arrow_type), column.name in marked)
        for column in model.schema.used[:most]
    )


# ---------------------------------------------------------------- calibration


def draw_calibration(calibration: Calibration, scores: Scores | None) -> CalibrationPicture:
    """How many rows are flagged at which limit, and how scores and p-values are spread."""
    own_p = calibration.p_value(calibration.scores)
    limits = []
    for fpr in LIMITS:
        score = calibration.threshold(fpr)
        n_rows = None if scores is None else int((scores.p <= fpr).sum())
        share = None if scores is None or n_rows is None else n_rows / max(1, len(scores.p))
        held_out = float(np.mean(own_p <= fpr)) if len(own_p) else 0.0
        limits.append(Limit(fpr, score if np.isfinite(score) else None, held_out, n_rows, share))
    return CalibrationPicture(
        len(calibration.scores),
        calibration.held_out,
        tuple(limits),
        _draw_scores(calibration.scores, None if scores is None else scores.score),
        None if scores is None else _draw_p_values(scores.p),
    )


def _draw_scores(held_out: Float64[np.ndarray, " m"], given: Float64[np.ndarray, " N"] | None) -> Histogram | None:
    samples = [sample for sample in (given, held_out) if sample is not None and len(sample)]
    if not samples:
        return None
    highest = max(float(np.quantile(sample, 0.995)) for sample in samples) or 1.0
    edges = np.linspace(0.0, highest, SCORE_BINS + 1)
    shares = [_binned(sample, edges) for sample in samples]
    words = [f"score {low:.2g} to {high:.2g}" for low, high in zip(edges, edges[1:], strict=False)]
    words[-1] = f"score {edges[-2]:.2g} and more"
    return histogram(
        shares[0],
        shares[1] if len(shares) > 1 else None,
        words,
        ("0", "anomaly score", f"≥ {edges[-2]:.2g}"),
        told="anomaly scores",
        names=("here", "of ordinary rows"),
    )


def _draw_p_values(p: Float64[np.ndarray, " N"]) -> Histogram:
    edges = np.linspace(0.0, 1.0, P_BINS + 1)
    words = [f"p-value {low:.2f} to {high:.2f}" for low, high in zip(edges, edges[1:], strict=False)]
    even = np.full(P_BINS, 1 / P_BINS)
    told = "p-values; level if the rows are like ordinary ones"
    names = ("here", "expected")
    return histogram(_binned(p, edges), even, words, ("0", "p-value", "1"), told=told, names=names)


def _binned(values: Float64[np.ndarray, " n"], edges: Float64[np.ndarray, " b"]) -> Float64[np.ndarray, " B"]:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return counts / max(1, len(values))


def columns_marked(rows: Sequence[StrangeRow]) -> list[tuple[int, str]]:
    """Places and names of the columns with a marked cell in any of the rows, in the table's order."""
    return sorted({(cell.column, cell.name) for row in rows for cell in row.marked})
