"""How much two rows' cells speak for their being one thing recorded twice.

The log-likelihood ratio of Fellegi and Sunter ("A theory for record linkage", 1969, eq. 8 and their "method I" for
values of different frequency): in every column the pair reaches a level of agreement, and what that level says is the
logarithm of `m`, its probability among duplicates, over `u`, its probability among rows of different things. Cells that
are equal have `u` the frequency of their value, so that a rare value says more than a common one. Levels between equal
and different are Winkler's ("String comparator metrics and enhanced decision rules in the Fellegi-Sunter model of
record linkage", 1990). A missing cell says nothing.

No labels are needed: `u` is counted in random pairs, and `m` is one choice for all tables.

NOTE[DIFF]: `m` is not fitted by EM. The pairs that are worth scoring are neighbours, alike in many columns at once, and
a mixture that takes columns for independent counts them as duplicates: on planted duplicates EM lowered the best F1 on
three of five tables and raised it a little on one. NOTE[DIFF]: to differ never speaks for a pair, and nothing says more
than to be equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations

import numpy as np
from jaxtyping import Float, Float32, Int8, Int64

from tabmoco.duplicates.compared import ComparedRows

Rows = Int64[np.ndarray, " P"]

PAIRS_AT_ONCE = 100_000


class Level(IntEnum):
    """How far two cells of a column agree."""

    MISSING = 0
    """One of them holds nothing."""

    EQUAL = 1
    CLOSE = 2
    """Alike in spelling, or numbers very near on the scale of the column."""

    SIMILAR = 3
    SLIPPED = 4
    """Numbers that are ten, a hundred or a thousand times one another, or opposite."""

    SWAPPED = 5
    """Equal crosswise to the cells of another column."""

    DIFFERENT = 6


SPELLED_ALIKE = {Level.CLOSE: 0.75, Level.SIMILAR: 0.5}
"""Lowest similarity of the spellings."""

NUMBERS_NEAR = {Level.CLOSE: 0.002, Level.SIMILAR: 0.02}
"""Farthest distance, as a share of the range in which nine tenths of the column's different values lie."""

UNIT_SLIPS = (-1.0, 10.0, 100.0, 1000.0)

MOST_SWAPPABLE = 40
"""Columns of strings, or of numbers, among which swapped cells are looked for; no tables of more: their pairs of
columns grow with the square."""

USUAL_M = {
    Level.EQUAL: 0.84,
    Level.CLOSE: 0.04,
    Level.SIMILAR: 0.02,
    Level.SLIPPED: 0.01,
    Level.SWAPPED: 0.01,
    Level.DIFFERENT: 0.08,
}
"""How often duplicates reach each level in a column nothing is known of."""

N_RANDOM_PAIRS = 200_000
"""Most random pairs that `u` is counted in."""


def levels(rows: ComparedRows, first: Rows, second: Rows) -> Int8[np.ndarray, "P C"]:
    """The level of every cell of pairs of rows."""
    found = [_column_levels(rows, column, first, second) for column in range(len(rows.columns))]
    return _swapped(rows, first, second, np.stack(found, axis=1))


def _column_levels(rows: ComparedRows, column: int, i: Rows, j: Rows) -> Int8[np.ndarray, " P"]:
    a, b = rows.values[column][i], rows.values[column][j]
    missing = rows.missing(column)
    level = np.full(len(i), Level.DIFFERENT, dtype=np.int8)
    level[a == b] = Level.EQUAL
    level[missing[i] | missing[j]] = Level.MISSING
    unequal = np.flatnonzero(level == Level.DIFFERENT)
    if len(unequal):
        compare = _spelling_levels if rows.is_string(column) else _number_levels
        level[unequal] = compare(rows, column, a[unequal], b[unequal])
    return level


def _spelling_levels(rows: ComparedRows, column: int, a: np.ndarray, b: np.ndarray) -> Int8[np.ndarray, " P"]:
    """Every two strings compared once, however many rows hold them."""
    pair, place = np.unique(np.minimum(a, b) * len(rows.words.texts) + np.maximum(a, b), return_inverse=True)
    alike = rows.words.similarity(pair // len(rows.words.texts), pair % len(rows.words.texts))
    level = np.full(len(pair), Level.DIFFERENT, dtype=np.int8)
    for name, least in reversed(SPELLED_ALIKE.items()):
        level[alike >= least] = name
    return level[place]


def _number_levels(rows: ComparedRows, column: int, a: np.ndarray, b: np.ndarray) -> Int8[np.ndarray, " P"]:
    level = np.full(len(a), Level.DIFFERENT, dtype=np.int8)
    with np.errstate(invalid="ignore", over="ignore"):
        if rows.columns[column].kind == "number":
            for slip in UNIT_SLIPS:
                level[_is_times(a, b, slip) | _is_times(b, a, slip)] = Level.SLIPPED
        if rows.columns[column].kind != "boolean":
            distance = np.abs(a - b)
            for name, most in reversed(NUMBERS_NEAR.items()):
                level[distance <= most * rows.usual_ranges[column]] = name
    return level


def _is_times(a: np.ndarray, b: np.ndarray, factor: float) -> np.ndarray:
    """Whether a is so many times b, but for the digits that a whole number of two digits or more has lost."""
    exactly = np.isclose(a, factor * b, rtol=1e-6, atol=0.0) & (b != 0)
    if factor < 0:
        return exactly
    whole = (np.rint(a) == a) & (np.rint(b) == b) & (np.abs(b) >= 10)
    return exactly | (whole & (np.abs(a / factor - b) < 1))


def _swapped(rows: ComparedRows, i: Rows, j: Rows, level: Int8[np.ndarray, "P C"]) -> Int8[np.ndarray, "P C"]:
    """Levels with the cells marked that stand in each other's column."""
    unequal = level > Level.EQUAL
    own = {column: rows.values[column][i] for column in {c for pair in _swappable(rows) for c in pair}}
    other = {column: rows.values[column][j] for column in own}
    for c, d in _swappable(rows):
        crossed = (own[c] == other[d]) & (own[d] == other[c]) & unequal[:, c] & unequal[:, d]
        if crossed.any():
            level[crossed, c] = level[crossed, d] = Level.SWAPPED
    return level


def _swappable(rows: ComparedRows) -> Iterator[tuple[int, int]]:
    kinds = [("category", "text"), ("number",), ("timestamp",)]
    for kind in kinds:
        alike = [column for column, facts in enumerate(rows.columns) if facts.kind in kind]
        if len(alike) <= MOST_SWAPPABLE:
            yield from combinations(alike, 2)


@dataclass(frozen=True)
class Weights:
    """What the cells of each row are worth, and what each level says in each column, in nats."""

    equal: Float32[np.ndarray, "N C"]
    """What it says that another row holds the same value, 0 or more; 0 for a missing cell."""

    ratio: Float[np.ndarray, "C 7"]
    """What the other levels say."""

    @classmethod
    def fit(cls, rows: ComparedRows, seed: int = 0) -> Weights:
        """Count values in all rows, and levels in random pairs of them."""
        first, second = _random_pairs(len(rows), seed)
        u = _shares(levels(rows, first, second))
        m = np.array([USUAL_M.get(level, 1.0) for level in Level])
        ratio = np.log(m / u)
        ratio[:, Level.MISSING] = 0.0
        ratio[:, Level.DIFFERENT] = np.minimum(ratio[:, Level.DIFFERENT], 0.0)
        surprise = [_surprise(rows.values[column], rows.missing(column)) for column in range(len(rows.columns))]
        equal = np.maximum(np.stack(surprise, axis=1) + np.log(USUAL_M[Level.EQUAL]), 0.0)
        return cls(equal.astype(np.float32), ratio)

    def evidence(self, level: Int8[np.ndarray, "P C"], first: Rows, second: Rows) -> Float[np.ndarray, "P C"]:
        """The logarithm of how much likelier each cell's level is among duplicates."""
        most = np.maximum(self.equal[first], self.equal[second])
        said = np.take_along_axis(self.ratio.T, level.astype(np.int64), axis=0)
        return np.where(level == Level.EQUAL, self.equal[first], np.minimum(said, most))

    def similarity(self, rows: ComparedRows, first: Rows, second: Rows) -> Float[np.ndarray, " P"]:
        """The evidence of pairs as a share of what their rows would have if they were equal: 1 at most; negative where
        more speaks against it than for it."""
        total = self.equal.sum(1, dtype=np.float64)
        parts = [np.zeros(0)]
        for start in range(0, len(first), PAIRS_AT_ONCE):
            i, j = first[start : start + PAIRS_AT_ONCE], second[start : start + PAIRS_AT_ONCE]
            found = self.evidence(levels(rows, i, j), i, j).sum(1)
            parts.append(found / np.maximum((total[i] + total[j]) / 2, np.finfo(np.float32).tiny))
        return np.concatenate(parts)


def _random_pairs(n_rows: int, seed: int) -> tuple[Rows, Rows]:
    """Pairs of different rows: all of them where there are few."""
    if n_rows * (n_rows - 1) // 2 <= N_RANDOM_PAIRS:
        first, second = np.triu_indices(n_rows, 1)
        return first.astype(np.int64), second.astype(np.int64)
    generator = np.random.default_rng(seed)
    first = generator.integers(0, n_rows, N_RANDOM_PAIRS)
    return first, (first + generator.integers(1, n_rows, N_RANDOM_PAIRS)) % n_rows


def _shares(level: Int8[np.ndarray, "P C"]) -> Float[np.ndarray, "C 7"]:
    """How often each level is reached in each column where neither cell is missing, as if each had been reached half
    a time more."""
    counts = np.stack([(level == name).sum(0) for name in Level], axis=1) + 0.5
    counts[:, Level.MISSING] = 0.0
    share = counts / counts.sum(1, keepdims=True)
    share[:, Level.MISSING] = 1.0
    return share


def _surprise(values: np.ndarray, missing: np.ndarray) -> Float[np.ndarray, " N"]:
    """Minus the logarithm of the frequency of each cell's value; 0 for a missing cell."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.where(missing, 0.0, -np.log(count[place] / max(1, int((~missing).sum()))))
