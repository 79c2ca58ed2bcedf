"""What a comparison of two tables found: figures, sentences and a verdict."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from tabmoco.config import Kind
from tabmoco.tables.names import counted, list_names

COLUMN_TABLE = pa.schema(
    [
        ("column", pa.string()),
        ("kind", pa.string()),
        ("moved", pa.bool_()),
        ("effect", pa.float64()),
        ("p_value", pa.float64()),
        ("change", pa.string()),
        ("before", pa.string()),
        ("now", pa.string()),
        ("median_shift", pa.float64()),
        ("wasserstein", pa.float64()),
        ("outside", pa.float64()),
        ("old_missing", pa.float64()),
        ("missing", pa.float64()),
        ("new_share", pa.float64()),
        ("new_values", pa.list_(pa.struct([("value", pa.string()), ("n_rows", pa.int64())]))),
        ("is_constant", pa.bool_()),
        ("ignored", pa.bool_()),
        ("goes_on", pa.bool_()),
    ]
)
"""The columns of `Drift.table`."""

SMALL_SAMPLE = 0.2
"""Where moves of a number up to this effect would go unnoticed, the verdict says so."""


@dataclass(frozen=True)
class Finding:
    """The result of one test."""

    name: str
    """`values`, `missing`, `new values`, `time of day`, `texts`; for whole rows `classifier`, `kernel`, `anomaly
    score`, `embedding`."""

    effect: float
    """0 to 1: about the share of cells or rows that became different."""

    p: float
    """p-value of this test by itself."""

    told: str
    """What changed, in words."""

    counts: bool = True
    """Whether it is one of the tests that decide."""

    adjusted: float | None = None
    """p-value that takes all tests into account; None for those that do not count."""


@dataclass(frozen=True)
class ColumnDrift:
    """How one column of the new table compares with the old."""

    name: str
    kind: Kind
    findings: tuple[Finding, ...]
    moved: bool = False

    ignored: bool = False
    """Whether the user said that it is meant to differ."""

    goes_on: bool = False
    """Whether at least half of its instants lie later than all old ones; only its time of day is compared then."""

    is_constant: bool = False
    """Whether it holds one value now, and held several."""

    missing: float = 0.0
    """Share of missing cells now."""

    old_missing: float = 0.0

    before: str | None = None
    """Median of a number or timestamp; of a category the value whose share changed most, with its share."""

    now: str | None = None

    median_shift: float | None = None
    """Shift of the median, in interquartile ranges of the old cells."""

    wasserstein: float | None = None
    """Wasserstein distance in standard deviations of training, extremes tempered."""

    outside: float | None = None
    """Share of new cells beyond the smallest and largest old ones."""

    new_share: float | None = None
    """Share of the cells with values never seen before; None where that cannot be known."""

    new_values: tuple[tuple[str, int], ...] = ()
    """Some of them and their counts, the most frequent first."""

    @property
    def effect(self) -> float:
        """The largest effect among the tests that count."""
        return max((finding.effect for finding in self.findings if finding.counts), default=0.0)

    @property
    def p_value(self) -> float | None:
        """The smallest p-value among the tests that count, all tests taken into account."""
        return min((finding.adjusted for finding in self.findings if finding.adjusted is not None), default=None)


@dataclass(frozen=True)
class Drift:
    """What `drift` found.

    A column moved if a test of it that counts has an adjusted p-value up to `alpha` and an effect of at least
    `min_effect`; rows moved likewise. The p-values are adjusted by Holm's procedure, whose promise is for an alarm:
    without drift, `is_drift` is true with probability `alpha` at most. (Procedures for the rate of false discoveries
    promise less, that most of many columns said to have moved did.)
    """

    name: str
    """What the new table is called."""

    compared_with: str
    n_rows: int
    n_old_rows: int

    n_sampled: int
    """Rows that numbers and whole rows were compared on; all else was counted over all rows."""

    n_old_sampled: int
    alpha: float
    min_effect: float

    columns: tuple[ColumnDrift, ...]
    """Those that moved first, the largest effect first."""

    rows: tuple[Finding, ...]
    """Tests of whole rows."""

    strange_share: float | None = None
    """Share of new rows whose anomaly score has a p-value up to 0.01; about 0.01 without drift."""

    old_strange_share: float | None = None
    """The same of the table compared with, if one was given."""

    def __getitem__(self, name: str) -> ColumnDrift:
        """The column of that name."""
        return next(column for column in self.columns if column.name == name)

    @property
    def moved(self) -> list[str]:
        """Names of the columns that moved."""
        return [column.name for column in self.columns if column.moved]

    @property
    def rows_moved(self) -> list[str]:
        """Names of the tests that tell new rows from old ones."""
        return [finding.name for finding in self.rows if self.is_move(finding)]

    @property
    def is_drift(self) -> bool:
        return bool(self.moved or self.rows_moved)

    def is_move(self, finding: Finding) -> bool:
        """Whether a finding is neither chance nor a trifle."""
        return finding.adjusted is not None and finding.adjusted <= self.alpha and finding.effect >= self.min_effect

    def change(self, column: ColumnDrift) -> str:
        """What changed in a column, in words; empty if nothing worth telling did. New values are worth telling however
        few they are, unless half of them or more are to be expected."""
        findings = column.findings
        if column.moved:
            findings = tuple(finding for finding in findings if self.is_move(finding))
        elif not column.ignored:
            findings = tuple(f for f in findings if f.name == "new values" and 2 * f.effect >= (column.new_share or 0))
        else:
            findings = ()
        told = [finding.told for finding in sorted(findings, key=lambda finding: -finding.effect)]
        if column.is_constant and column.moved:
            told.append("one value only now")
        if column.moved and column.outside is not None and column.outside >= 0.01 and not column.goes_on:
            told.append(f"{percent(column.outside)} outside the old range")
        if column.goes_on:
            told.append(f"goes on in time, {column.before} -> {column.now}, not counted")
        elif column.ignored:
            told.append("ignored")
        return "; ".join(told)

    @cached_property
    def sentences(self) -> list[str]:
        """What changed, one sentence per column and test of whole rows, the verdict last."""
        lines = []
        for column in self.columns:
            change = self.change(column)
            if column.moved:
                lines.append(f"{column.name} moved: {change}; effect {column.effect:.2f}, {told_p(column.p_value)}.")
            elif change and not column.ignored:
                lines.append(f"{column.name}: {change}.")
        lines += [
            f"Rows moved: {finding.told}; effect {finding.effect:.2f}, {told_p(finding.adjusted)}."
            for finding in self.rows
            if self.is_move(finding)
        ]
        return [*lines, self.verdict]

    @property
    def verdict(self) -> str:
        """Whether there is drift, in a sentence."""
        if self.moved:
            rows = ", and whole rows differ" if self.rows_moved else ""
            n_moved = len(self.moved)
            return (
                f"Drift: {n_moved:,} of {counted(len(self.columns), 'column')} moved ({list_names(self.moved)}){rows}."
            )
        if self.rows_moved:
            return "Drift: no column moved by itself, but whole rows differ: columns may go together in another way."
        told = f"No drift: nothing moved by {self.min_effect:g} or more beyond chance."
        if self.noticeable > max(SMALL_SAMPLE, self.min_effect):
            n_few = min(self.n_sampled, self.n_old_sampled)
            told += f" With {counted(n_few, 'row')} only effects of about {self.noticeable:.1f} or more would show."
        return told

    @property
    def noticeable(self) -> float:
        """Effect from which on the Kolmogorov-Smirnov test would find that a number moved, in most cases."""
        n_tests = max(1, sum(finding.counts for column in self.columns for finding in column.findings))
        level = self.alpha / 2 / n_tests
        size = self.n_sampled * self.n_old_sampled / (self.n_sampled + self.n_old_sampled)
        return min(1.0, math.sqrt(-math.log(level / 2) / 2 / size))

    def to_json(self) -> dict[str, Any]:
        """JSON-safe values."""
        facts = asdict(self)
        columns = [
            {**told, "effect": column.effect, "p_value": column.p_value, "change": self.change(column)}
            for told, column in zip(facts["columns"], self.columns, strict=True)
        ]
        rows = [
            {**told, "moved": self.is_move(finding)} for told, finding in zip(facts["rows"], self.rows, strict=True)
        ]
        return {
            "is_drift": self.is_drift,
            "moved": self.moved,
            "rows_moved": self.rows_moved,
            "sentences": self.sentences,
            **facts,
            "columns": columns,
            "rows": rows,
        }

    def table(self) -> pa.Table:
        """A row per column of the tables compared, see `COLUMN_TABLE`."""
        lines = []
        for column in self.columns:
            line = {name: getattr(column, name, None) for name in COLUMN_TABLE.names}
            pairs = [{"value": value, "n_rows": n_rows} for value, n_rows in column.new_values]
            lines.append({**line, "column": column.name, "change": self.change(column), "new_values": pairs})
        return pa.Table.from_pylist(lines, schema=COLUMN_TABLE)


def told_p(p: float | None) -> str:
    """A p-value in words."""
    if p is None:
        return "not tested"
    return "p < 1e-6" if p < 1e-6 else f"p = {p:.2g}"


def percent(share: float) -> str:
    """A share in percent, two significant digits below ten."""
    return f"{100 * share:.2g} %" if share < 0.0995 else f"{100 * share:.0f} %"
