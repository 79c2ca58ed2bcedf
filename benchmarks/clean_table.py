"""What is ordinary in a table: the values of every column, and how the columns depend on one another.

clean = CleanTable.measure(train)
clean.columns[0].is_within(value, VISIBLE), clean.is_visible(0, row)
"""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int64

MAX_LEVELS = 1_000
"""A string column with more distinct values, or mostly distinct ones, is an identifier or free text."""

N_BINS = 10
MIN_LEVEL_SHARE = 0.01
"""A category level that is rarer shares a bin with the other rare ones."""

N_PARTNERS = 3
MIN_STRENGTH = 0.05
"""Normalised mutual information from which on two columns count as dependent."""

DISAGREEMENT = np.log(0.5)
"""Agreement up to which a cell contradicts its partners: it is half as likely beside them as by itself."""

VISIBLE = 0.99
"""Values outside the most ordinary 99 % of a column can be seen to be odd."""

Row = list[Any]


@dataclass(frozen=True)
class CleanColumn:
    """What is ordinary in one column."""

    type: pa.DataType
    kind: Literal["number", "category", "timestamp", "untouched"]
    ordered: Float[np.ndarray, " n"]
    """Present values of a number or timestamp column (in days), ascending."""

    counts: Counter[str]
    """Levels of a category column and how often they occur."""

    words: frozenset[str]
    """Levels of a category column, those of its dictionary that do not occur among them."""

    edges: Float[np.ndarray, " b"]
    """Where the bins of a number or timestamp column meet."""

    level_bin: dict[str, int]
    tail: dict[str, float]
    """Of a level, the share of the cells whose level is at most as frequent."""

    n_distinct: int
    decimals: int

    @classmethod
    def measure(cls, column: pa.ChunkedArray) -> CleanColumn:
        values = [value for value in column.to_pylist() if is_present(value)]
        kind = _kind(column.type, values)
        is_ordered = kind in ("number", "timestamp")
        ordered = np.sort(np.array([_measure(value) for value in values] if is_ordered else [], dtype=np.float64))
        counts = Counter(values if kind == "category" else [])
        common = [level for level, n in counts.most_common() if n >= MIN_LEVEL_SHARE * len(values)]
        return cls(
            type=column.type,
            kind=kind,
            ordered=ordered,
            counts=counts,
            words=frozenset(counts) | _dictionary_words(column),
            edges=_edges(ordered),
            level_bin={level: 2 + number for number, level in enumerate(common)},
            tail=_tail(counts),
            n_distinct=len(set(values)),
            decimals=_decimals(ordered) if pa.types.is_floating(column.type) else 0,
        )

    @property
    def n_bins(self) -> int:
        return 2 + max(len(self.level_bin), len(self.edges))

    def bin(self, value: Any) -> int:
        """0 for a missing cell, 1 for a rare level or the lowest numbers, and so on."""
        if not is_present(value) or self.kind == "untouched":
            return 0
        if self.kind == "category":
            return self.level_bin.get(value, 1)
        return 1 + int(np.searchsorted(self.edges, _measure(value), side="right"))

    def quantile(self, share: float) -> float:
        return float(self.ordered[round(share * (len(self.ordered) - 1))])

    def is_within(self, value: Any, share: float) -> bool:
        """Whether a value is among the most ordinary ones that make up this share of the column: numbers nearest to
        the median in rank, the most frequent levels. Missing values and unseen levels never are."""
        if not is_present(value):
            return False
        if self.kind == "category":
            return self.tail.get(value, 0.0) > 1 - share
        return self.quantile((1 - share) / 2) <= _measure(value) <= self.quantile((1 + share) / 2)

    @property
    def spread(self) -> float:
        """Robust standard deviation, of mostly constant columns too."""
        low, quarter, middle, three_quarters, high = np.quantile(self.ordered, [0.01, 0.25, 0.5, 0.75, 0.99])
        deviation = 1.4826 * float(np.median(np.abs(self.ordered - middle)))
        return max(deviation, (three_quarters - quarter) / 1.349, (high - low) / 4.652) or float(self.ordered.std())

    def like_the_others(self, number: float) -> int | float:
        """A number as this column writes it: whole, or with so many decimals, and within the type."""
        if pa.types.is_integer(self.type):
            largest = 2 ** (self.type.bit_width - 1) - 1
            return int(np.clip(round(number), -largest, largest))
        return round(float(number), self.decimals)


@dataclass(frozen=True)
class CleanTable:
    """What is ordinary in a table: every column, and how columns depend on each other."""

    columns: tuple[CleanColumn, ...]
    values: tuple[Row, ...]
    """The cells of each column, from which contextual anomalies take theirs."""

    bins: Int64[np.ndarray, "n C"]
    strength: Float[np.ndarray, "C C"]
    """Bias-corrected mutual information over the geometric mean of the entropies, 0 to 1."""

    partners: tuple[tuple[int, ...], ...]
    """Of each column, those it depends on most."""

    @classmethod
    def measure(cls, table: pa.Table) -> CleanTable:
        columns = tuple(CleanColumn.measure(column) for column in table.columns)
        values = tuple(column.to_pylist() for column in table.columns)
        bins = np.array([[clean.bin(value) for value in cells] for clean, cells in zip(columns, values, strict=True)]).T
        strength = dependence(bins)
        order = np.argsort(-strength, axis=1, kind="stable")[:, :N_PARTNERS]
        partners = tuple(tuple(int(i) for i in row if strength[j, i] >= MIN_STRENGTH) for j, row in enumerate(order))
        return cls(columns, values, bins, strength, partners)

    @property
    def dependent(self) -> Int64[np.ndarray, " d"]:
        """Columns that depend on some other."""
        return np.array([j for j, partners in enumerate(self.partners) if partners], dtype=np.int64)

    def of_kind(self, *kinds: str) -> list[int]:
        return [j for j, column in enumerate(self.columns) if column.kind in kinds]

    def agreement(self, column: int, bins: Int64[np.ndarray, " k"], row: Row) -> Float[np.ndarray, " k"]:
        """How much likelier values of the given bins are beside the row's partner cells than by themselves: the sum of
        the logarithms over the partners."""
        total = np.zeros(len(bins))
        share = np.bincount(self.bins[:, column], minlength=self.columns[column].n_bins) / len(self.bins)
        for partner in self.partners[column]:
            beside = self.bins[self.bins[:, partner] == self.columns[partner].bin(row[partner]), column]
            smoothed = np.bincount(beside, minlength=len(share)) + 5 * share
            ratio = smoothed / max(smoothed.sum(), 1e-9) / np.maximum(share, 1e-9)
            total += np.log(np.where(share > 0, np.maximum(ratio, 1e-9), 1.0))[bins]
        return total

    def disagrees(self, column: int, row: Row) -> bool:
        """Whether a cell is at most half as likely beside its partners as by itself."""
        bins = np.array([self.columns[column].bin(row[column])])
        return bool(self.agreement(column, bins, row)[0] <= DISAGREEMENT)

    def is_visible(self, column: int, row: Row) -> bool:
        """Whether a cell is far from ordinary by itself, or beside its partners."""
        return not self.columns[column].is_within(row[column], VISIBLE) or self.disagrees(column, row)


def is_present(value: Any) -> bool:
    """Whether a cell holds a value: neither null nor NaN."""
    return value is not None and value == value  # noqa: PLR0124 (NaN is not)


def dependence(bins: Int64[np.ndarray, "n C"]) -> Float[np.ndarray, "C C"]:
    """Mutual information of every two columns over the geometric mean of their entropies, 0 to 1; 0 on the diagonal.

    The bias of the plug-in estimate, `(cells in use − rows − columns + 1) / 2n`, is taken off (Miller and Madow, 1955).
    """
    n_rows, n_columns = bins.shape
    _, codes = zip(*(np.unique(column, return_inverse=True) for column in bins.T), strict=True)
    entropy, n_used = zip(*(_entropy(code) for code in codes), strict=True)
    strength = np.zeros((n_columns, n_columns))
    for i in range(n_columns):
        for j in range(i):
            joint, n_joint = _entropy(codes[i] * n_used[j] + codes[j])
            bias = (n_joint - n_used[i] - n_used[j] + 1) / (2 * n_rows)
            information = entropy[i] + entropy[j] - joint - bias
            largest = np.sqrt(entropy[i] * entropy[j])
            strength[i, j] = strength[j, i] = np.clip(information / largest, 0.0, 1.0) if largest > 0 else 0.0
    return strength


def _measure(value: Any) -> float:
    return float(value.toordinal() if isinstance(value, datetime.date) else value)


def _kind(arrow_type: pa.DataType, values: list[Any]) -> Literal["number", "category", "timestamp", "untouched"]:
    types = pa.types
    if types.is_integer(arrow_type) or types.is_floating(arrow_type):
        return "number" if values else "untouched"
    if types.is_timestamp(arrow_type) or types.is_date(arrow_type):
        return "timestamp" if values else "untouched"
    is_word = types.is_dictionary(arrow_type) or types.is_string(arrow_type) or types.is_large_string(arrow_type)
    few = len(set(values)) <= min(MAX_LEVELS, 0.5 * len(values))
    return "category" if is_word and few else "untouched"


def _dictionary_words(column: pa.ChunkedArray) -> frozenset[str]:
    if not pa.types.is_dictionary(column.type):
        return frozenset()
    return frozenset(word for chunk in column.chunks for word in chunk.dictionary.to_pylist())


def _tail(counts: Counter[str]) -> dict[str, float]:
    n_smaller = {n: sum(other for other in counts.values() if other <= n) for n in set(counts.values())}
    return {level: n_smaller[n] / counts.total() for level, n in counts.items()}


def _edges(ordered: Float[np.ndarray, " n"]) -> Float[np.ndarray, " b"]:
    """Between all values of a column of few, else quantiles; a value that fills a fifth of the column has its own
    bin."""
    distinct, counts = np.unique(ordered, return_counts=True)
    if len(distinct) <= N_BINS + 2:
        return (distinct[1:] + distinct[:-1]) / 2
    mode = distinct[counts.argmax()]
    own = [mode, np.nextafter(mode, np.inf)] if counts.max() > 0.2 * len(ordered) else []
    rest = ordered[ordered != mode] if own else ordered
    return np.unique([*own, *np.quantile(rest, np.arange(1, N_BINS) / N_BINS)])


def _decimals(ordered: Float[np.ndarray, " n"]) -> int:
    """Decimals that all values need, 12 at most."""
    return next((d for d in range(12) if np.allclose(ordered, ordered.round(d), rtol=1e-12, atol=1e-9)), 12)


def _entropy(code: Int64[np.ndarray, " n"]) -> tuple[float, int]:
    """In nats, and the number of codes in use."""
    counts = np.bincount(code)
    share = counts[counts > 0] / len(code)
    return float(-(share * np.log(share)).sum()), len(share)
