"""Whether a new table still looks like the one a model learned from, or like another one: column by column, and row by
row.

A column moved, or rows did, if that is no chance (`alpha` bounds the probability of a single false alarm among all
tests, see `Drift`) and no trifle (`min_effect`): among many rows every difference is certain. The tests are in
`tabmoco.evaluation.two_samples`, what they compare in `tabmoco.evaluation.drift_sides`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats

from tabmoco.errors import ConfigError
from tabmoco.evaluation.drift_result import ColumnDrift, Drift, Finding, percent
from tabmoco.evaluation.drift_sides import Sample, Side, as_numbers, has_time
from tabmoco.evaluation.two_samples import (
    N_HALF,
    by_forest,
    by_logistic,
    classifier_test,
    hashed_texts,
    holm,
    is_testable,
    kernel_test,
    kolmogorov_smirnov,
    never_seen,
    proportions,
    shares,
)
from tabmoco.model import RowModel
from tabmoco.neighbors.index import NO_NEIGHBOUR
from tabmoco.neighbors.reference import SEARCH_SPACE, Reference
from tabmoco.nn.columns import untemper
from tabmoco.tables.encoders import read_cells
from tabmoco.tables.names import require_columns
from tabmoco.tables.schema import Column
from tabmoco.training.indexing import directions

CLASSIFIER_ROWS, KERNEL_ROWS, SCORED_ROWS, TEXTS = 4_000, 1_000, 2_000, 1_000
"""Rows of each side that the tests of whole rows, and texts that the test of a text column see at most."""

FEW_KNOWN = 0.01
"""Where a larger share of the rows are exact copies of reference rows, they may have been trained on."""

STRANGE_P = 0.01
"""Rows whose anomaly score has a p-value up to this count as strange: one in a hundred like those of training."""

N_NAMED = 5
"""New values that are kept of a column."""


def drift(
    model: RowModel,
    table: Any,
    *,
    against: Any = None,
    ignore: Sequence[str] = (),
    alpha: float = 0.01,
    min_effect: float = 0.05,
    seed: int = 0,
    progress: Callable[[int], None] = lambda n_rows: None,
) -> Drift:
    """Compare a table with the rows a model learned from, or with another table.

    Numbers and timestamps are compared by the Kolmogorov-Smirnov test, categories and booleans by the chi-squared test
    with rare values pooled, shares of missing cells by Fisher's exact or the chi-squared test, and values that occur
    only in the new table by how often they do. Texts are compared, by a classifier on their letters, where `against`
    gives those of the old side; a model keeps none. Whole rows are compared by a classifier and by a kernel, on their
    cells; by their anomaly scores with those of rows kept out of training; and by a kernel on their embeddings, which
    is told but does not count where rows of either side may have been trained on: nothing promises that others lie
    where those do.

    A timestamp column at least half of which lies later than all old rows goes on in time. That is told but does not
    count, and neither do anomaly scores and embeddings, in which it is.

    Parameters
    ----------
    table, against
        Anything `open_table` reads, with the model's columns. Without `against` the table is compared with the rows
        that the model learned from.
    ignore
        Columns that are meant to differ, such as the month of monthly tables.
    alpha
        Probability of any false alarm, over all columns and tests together.
    min_effect
        Smallest share of the cells or rows, 0 to 1, that must have changed; see `tabmoco.evaluation.two_samples`.
    progress
        Told the number of rows just read.

    Raises
    ------
    TabmocoError
        If a table is empty or lacks columns, the model has no reference rows and `against` is not given, or a setting
        is out of range.
    """
    if not 0 < alpha < 1 or not 0 <= min_effect < 1:
        raise ConfigError(
            f"alpha must lie between 0 and 1 and min_effect from 0 to below 1, got alpha={alpha:g} and "
            f"min_effect={min_effect:g}."
        )
    require_columns(ignore, model.preprocessor.layout.columns, option="ignore", where="the model")
    if against is None:
        old = Side.of_model(model, seed=seed)
    else:
        old = Side.of_table(model, against, seed=seed, progress=progress)
    new = Side.of_table(model, table, seed=seed + 1, progress=progress)
    old = old.named(model, new)
    columns = [
        _column_drift(model, place, column, old, new, is_ignored=column.name in ignore, seed=seed)
        for place, column in enumerate(model.schema.used)
    ]
    n_permutations = int(np.clip(math.ceil(10 / alpha), 200, 10_000)) - 1
    is_whole = not any(column.goes_on or column.ignored for column in columns)
    learned, strange, old_strange = _learned_findings(
        model, old, new, is_whole=is_whole, n_permutations=n_permutations, seed=seed
    )
    rows = [*_row_findings(model, columns, old, new, n_permutations=n_permutations, seed=seed), *learned]
    found = Drift(
        name=new.name,
        compared_with=old.name,
        n_rows=new.n_rows,
        n_old_rows=old.n_rows,
        n_sampled=len(new.sample),
        n_old_sampled=len(old.sample),
        alpha=alpha,
        min_effect=min_effect,
        columns=tuple(columns),
        rows=tuple(rows),
        strange_share=strange,
        old_strange_share=old_strange,
    )
    return _adjusted(found)


def _adjusted(found: Drift) -> Drift:
    """The findings with p-values that count all tests, and the columns in order: those that moved first, the largest
    effect first.

    Tests of columns and of whole rows each have half of `alpha`, shared out by Holm's procedure: p-values of the kernel
    test are never below one in the number of permutations, too coarse to be one of hundreds.
    """
    counted = [[f for f in column.findings if f.counts] for column in found.columns]
    by_column = iter(_doubled([f.p for findings in counted for f in findings]))
    columns = []
    for column in found.columns:
        findings = tuple(dataclasses.replace(f, adjusted=next(by_column)) if f.counts else f for f in column.findings)
        columns.append(dataclasses.replace(column, findings=findings, moved=any(map(found.is_move, findings))))
    by_row = iter(_doubled([f.p for f in found.rows if f.counts]))
    rows = tuple(dataclasses.replace(f, adjusted=next(by_row)) if f.counts else f for f in found.rows)
    columns.sort(key=lambda column: (not column.moved, -column.effect))
    return dataclasses.replace(found, columns=tuple(columns), rows=rows)


def _doubled(p: list[float]) -> list[float]:
    return np.minimum(2 * holm(np.array(p)), 1.0).tolist()


# ---------------------------------------------------------------- columns


def _column_drift(
    model: RowModel, place: int, column: Column, old: Side, new: Side, *, is_ignored: bool, seed: int
) -> ColumnDrift:
    name, before, now = column.name, old.columns[column.name], new.columns[column.name]
    facts: dict[str, Any] = {}
    findings: list[Finding] = []
    gone = proportions(before.n_missing, old.n_rows, now.n_missing, new.n_rows)
    if gone is not None:
        told = f"missing {percent(old.share_missing(name))} -> {percent(new.share_missing(name))}"
        findings.append(Finding("missing", *gone, told))
    if column.kind in ("number", "timestamp"):
        found, facts = _moved_numbers(model, place, column, old, new)
    elif column.kind == "text":
        found = _moved_texts(name, old, new, seed)
    else:
        found, facts = _moved_values(name, old, new)
    findings += found
    if is_ignored:
        findings = [dataclasses.replace(finding, counts=False) for finding in findings]
    n_present = new.n_rows - now.n_missing
    facts["is_constant"] = now.n_distinct == 1 < before.n_distinct and n_present > 1
    return ColumnDrift(
        name,
        column.kind,
        tuple(findings),
        ignored=is_ignored,
        missing=new.share_missing(name),
        old_missing=old.share_missing(name),
        **facts,
    )


def _moved_numbers(
    model: RowModel, place: int, column: Column, old: Side, new: Side
) -> tuple[list[Finding], dict[str, Any]]:
    slot = model.preprocessor.layout.number_owner.index(place)
    present = [~side.sample.missing[:, place] for side in (old, new)]
    a, b = (side.sample.number[kept, slot] for side, kept in zip((old, new), present, strict=True))
    if not len(a) or not len(b):
        return [], {}
    levels = (0.25, 0.5, 0.75)
    quartiles = [np.quantile(values, levels, method="inverted_cdf") for values in (a, b)]
    words = [[_told_number(model, column, slot, _plain(t)) for t in three] for three in quartiles]
    plain = [[_plain(t) for t in three] for three in quartiles]
    spread = plain[0][2] - plain[0][0]
    shift = (plain[1][1] - plain[0][1]) / spread if spread > 0 else None
    before, now = old.columns[column.name], new.columns[column.name]
    outside = _outside(column, new, before.low, before.high)
    goes_on = False
    if column.kind == "timestamp" and before.high is not None and now.high is not None:
        goes_on = _share_after(column, new, before.high) >= 0.5
    if shift is not None and abs(shift) >= 0.1:
        told = f"median {words[0][1]} -> {words[1][1]} ({shift:+.1f} IQR)"
    else:
        told = f"middle half {words[0][0]} to {words[0][2]} -> {words[1][0]} to {words[1][2]}"
    findings = [Finding("values", *kolmogorov_smirnov(a, b), told, counts=not goes_on)]
    if has_time(model, place):
        seconds = [side.sample.seconds_of_day(slot)[kept] for side, kept in zip((old, new), present, strict=True)]
        findings.append(Finding("time of day", *kolmogorov_smirnov(*seconds), "other times of day"))
    facts = {
        "before": words[0][1],
        "now": words[1][1],
        "median_shift": shift,
        "wasserstein": float(stats.wasserstein_distance(a, b)),
        "outside": outside,
        "goes_on": goes_on,
    }
    return findings, facts


def _plain(tempered: float) -> float:
    """The standardised value of a tempered one."""
    return float(untemper(torch.tensor(tempered, dtype=torch.float64)))


def _told_number(model: RowModel, column: Column, slot: int, value: float) -> str:
    """A standardised value in the column's own unit, without the digits that float32 makes up."""
    number = model.preprocessor.decode_number(slot, value)
    scale = model.preprocessor.decode_number(slot, 1.0) if column.kind == "number" else 0
    if column.kind == "number" and math.isfinite(number):
        step = abs(scale - model.preprocessor.decode_number(slot, 0.0))
        number = round(number, 5 - math.floor(math.log10(step))) if step > 0 else number
    return model.preprocessor.describe(column.name, number)


def _new_cells(column: Column, new: Side) -> np.ndarray:
    assert new.raw is not None, "the new side is a table"
    cells = read_cells(column.kind, new.raw.column(column.name), column.name)
    return cells[~np.isnat(cells)] if column.kind == "timestamp" else cells[~np.isnan(cells)]


def _outside(column: Column, new: Side, low: Any, high: Any) -> float | None:
    """Share of the new cells beyond the old extremes."""
    cells = _new_cells(column, new)
    if low is None or high is None or not len(cells):
        return None
    return float(np.mean((cells < low) | (cells > high)))


def _share_after(column: Column, new: Side, high: Any) -> float:
    return float(np.mean(_new_cells(column, new) > high))


def _moved_values(name: str, old: Side, new: Side) -> tuple[list[Finding], dict[str, Any]]:
    before, now = old.columns[name], new.columns[name]
    all_named = old.raw is not None
    values = sorted({*before.counts, *(now.counts if all_named else ())})
    a = np.array([before.counts.get(value, 0) for value in values], dtype=np.int64)
    b = np.array([now.counts.get(value, 0) for value in values], dtype=np.int64)
    n_present = new.n_rows - now.n_missing
    if not n_present or not a.sum() + before.n_other:
        return [], {}
    findings = []
    told = shares(a, b, n_old_other=before.n_other, n_new_other=n_present - int(b.sum()))
    share_before, share_now = a / (a.sum() + before.n_other), b / n_present
    order = np.argsort(-np.abs(share_now - share_before), kind="stable")[:2]
    changes = [f"{values[i]!r} {percent(share_before[i])} -> {percent(share_now[i])}" for i in order]
    if told is not None:
        findings.append(Finding("values", *told, ", ".join(changes)))
    facts: dict[str, Any] = {}
    if len(order):
        facts = {
            "before": f"{values[order[0]]} {percent(share_before[order[0]])}",
            "now": f"{values[order[0]]} {percent(share_now[order[0]])}",
        }
    if before.vocabulary is None:
        return findings, facts
    known = before.vocabulary
    unseen = sorted((-n, value) for value, n in now.counts.items() if value not in known and n)
    share = sum(-n for n, _ in unseen) / n_present
    if unseen:
        names = sorted({*known, *now.counts})
        each_old, each_new = (np.array([n.get(value, 0) for value in names]) for n in (known, now.counts))
        more = f" and {len(unseen) - 1:,} more" if len(unseen) > 1 else ""
        told_new = f"new value {unseen[0][1]!r}{more} in {percent(share * n_present / new.n_rows)} of the rows"
        findings.append(Finding("new values", *never_seen(each_old, each_new, before.n_seen, n_present), told_new))
    facts["new_share"] = share
    facts["new_values"] = tuple((value, -n) for n, value in unseen[:N_NAMED])
    return findings, facts


def _moved_texts(name: str, old: Side, new: Side, seed: int) -> list[Finding]:
    a, b = (side.texts(name, TEXTS, seed=seed) for side in (old, new))
    is_new = np.arange(len(a) + len(b)) >= len(a)
    if not is_testable(is_new):
        return []
    auroc, p = classifier_test(hashed_texts([*a, *b]), is_new, by_logistic, seed=seed)
    return [Finding("texts", _lift(auroc), p, f"old and new texts told apart with AUROC {auroc:.2f}")]


def _lift(auroc: float) -> float:
    """How far above chance, 0 to 1."""
    return max(0.0, 2 * auroc - 1)


# ---------------------------------------------------------------- whole rows


def _row_findings(
    model: RowModel, columns: Sequence[ColumnDrift], old: Side, new: Side, *, n_permutations: int, seed: int
) -> list[Finding]:
    """Tests of whole rows that rest on their cells alone."""
    random = np.random.default_rng(seed)
    findings = []
    few = [_some(side.sample, CLASSIFIER_ROWS, random) for side in (old, new)]
    is_new = np.repeat([False, True], [len(sample) for sample in few])
    if not is_testable(is_new):
        return []
    traits, coordinates = as_numbers(model, columns, few[0], few[1])
    if not traits.shape[1]:
        return []
    auroc, p = classifier_test(traits, is_new, by_forest(seed), seed=seed)
    findings.append(Finding("classifier", _lift(auroc), p, f"old and new rows told apart with AUROC {auroc:.2f}"))
    picked = [np.flatnonzero(is_new == side)[:KERNEL_ROWS] for side in (False, True)]
    square, effect, p = kernel_test(*(coordinates[rows] for rows in picked), n_permutations=n_permutations, seed=seed)
    findings.append(Finding("kernel", effect, p, f"squared discrepancy (MMD) of the cells {square:.2g}"))
    return findings


def _some(sample: Sample, n_rows: int, random: np.random.Generator) -> Sample:
    return sample[random.permutation(len(sample))[:n_rows]]


def _learned_findings(
    model: RowModel, old: Side, new: Side, *, is_whole: bool, n_permutations: int, seed: int
) -> tuple[list[Finding], float | None, float | None]:
    """Tests of whole rows that rest on what the model learned, and the shares of strange rows, new and old.

    The anomaly scores of new rows are compared with those of rows kept out of training, and the embeddings with those
    of the old side. The former count where the model's rows are the old side, the latter where no row of either side is
    likely to have been trained on. `is_whole` tells whether all columns are meant to be compared.
    """
    if model.reference is None or not len(model.reference.calibration.scores):
        return [], None, None
    reference, calibration = model.reference, model.reference.calibration
    now = _Encoded.of(model, reference, new, seed)
    strange, old_strange = float(np.mean(calibration.p_value(now.score) <= STRANGE_P)), None
    if old.cells is None:
        index = reference.indexes[SEARCH_SPACE].vectors
        direction, is_fresh = index[np.random.default_rng(seed).permutation(len(index))[:KERNEL_ROWS]], False
    else:
        before = _Encoded.of(model, reference, old, seed)
        old_strange = float(np.mean(calibration.p_value(before.score) <= STRANGE_P))
        direction, is_fresh = before.direction, max(before.share_known, now.share_known) < FEW_KNOWN
    told = f"{percent(strange)} of the rows are stranger than 99 % of those like training"
    distance, p = kolmogorov_smirnov(calibration.scores, now.score)
    findings = [Finding("anomaly score", distance, p, told, counts=is_whole and old.cells is None)]
    if min(len(direction), len(now.direction)) >= 2 * N_HALF:
        square, effect, p = kernel_test(direction, now.direction, n_permutations=n_permutations, seed=seed)
        told = f"squared discrepancy (MMD) of the embeddings {square:.2g}"
        findings.append(Finding("embedding", effect, p, told, counts=is_whole and is_fresh))
    return findings, strange, old_strange


@dataclasses.dataclass(frozen=True)
class _Encoded:
    """Some rows of a table as the model sees them."""

    score: np.ndarray
    direction: np.ndarray
    share_known: float
    """Share of the rows that are exact copies of reference rows."""

    @classmethod
    def of(cls, model: RowModel, reference: Reference, side: Side, seed: int) -> _Encoded:
        assert side.cells is not None, "rows of a table"
        rows = np.random.default_rng(seed).permutation(len(side.cells))[:SCORED_ROWS]
        cells = side.cells[torch.from_numpy(rows)]
        evidence = reference.evidence(model.scored_points(cells))
        score = reference.calibration.score(evidence.pieces)
        share_known = float(np.mean(evidence.twin != NO_NEIGHBOUR))
        return cls(score, directions(model, cells[:KERNEL_ROWS]), share_known)
