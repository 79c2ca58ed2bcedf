"""Plant anomalies of four kinds in clean rows of a mixed table, and keep a note of every damaged cell.

- `extreme`: numbers far out in the tail or beyond all values seen;
- `rare`: categories replaced by a level that hardly occurs, or by a word never seen;
- `contextual`: every cell is ordinary by itself, but columns that depend on each other disagree;
- `format`: a slipped unit, a lost sign or decimal point, two columns swapped, a shifted date.

What is ordinary is measured on a clean table (`benchmarks.clean_table`), usually the rows that detectors learn from.
Columns keep their type, whole numbers stay whole, decimals keep their number. Identifiers, free text and missing cells
are left alone. A fault that nobody could see (an ordinary value that agrees with the rest of its row) is drawn again.

    planted = plant(rows, "contextual", seed=0, clean=CleanTable.measure(train))
    planted.rows, planted.cells
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int64

from benchmarks.clean_table import DISAGREEMENT, VISIBLE, CleanColumn, CleanTable, Row, is_present

KINDS = ("extreme", "rare", "contextual", "format")

CONTEXTUAL_SHARE = 0.3
"""Share of the dependent columns' cells that are damaged in a contextual anomaly."""

COMMON = 0.9
"""Values of a contextual anomaly are within the most ordinary 90 % of their column."""

N_DONORS = 16

RARE_SHARE = 0.01
RARE_TAIL = 0.05
"""A rare level is one of those that together make up no more than this share of the column."""

UNIT_SLIPS = (10, 100, 1000, 0.1, 0.01, 0.001)
NEW_WORDS = ("other", "misc", "n/a", "tbc", "not stated", "test", "various", "default")
MAX_DRAWS = 60


@dataclass(frozen=True)
class Planted:
    """Rows with anomalies, and which of their cells were damaged."""

    rows: pa.Table
    cells: Bool[np.ndarray, "N C"]
    source: Int64[np.ndarray, " N"]
    """Positions of the rows before the damage."""


def plant(rows: pa.Table, kind: str, seed: int, clean: CleanTable | None = None) -> Planted:
    """Damage every row: 1 to 3 cells, up to a tenth of the cells of a wide table; of a contextual anomaly about 30 %
    of the cells in dependent columns. Rows without a cell that could be damaged so are left out.

    Parameters
    ----------
    rows
        Clean rows.
    kind
        One of `KINDS`.
    clean
        What is ordinary; measured on `rows` themselves if not given.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    clean = CleanTable.measure(rows) if clean is None else clean
    generator = np.random.default_rng([seed, KINDS.index(kind)])
    given = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    damaged = [_damage(list(row), _PLANTERS[kind], clean, generator) for row in given]
    source = [i for i, row in enumerate(damaged) if row is not None]
    if not source:
        raise ValueError(f"{kind} anomalies need a row with a cell that can be damaged so, found none.")
    columns = zip(*(damaged[i] for i in source), strict=True)
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, rows.schema, strict=True)]
    cells = np.array([_changed(given[i], damaged[i]) for i in source])
    return Planted(pa.table(arrays, schema=rows.schema), cells, np.array(source))


def _damage(row: Row, planter: Planter, clean: CleanTable, generator: np.random.Generator) -> Row | None:
    for _ in range(MAX_DRAWS):
        damaged = planter(row, clean, generator)
        if damaged is not None and any(_changed(row, damaged)):
            return damaged
    return None


def _changed(before: Sequence[Any], after: Sequence[Any]) -> list[bool]:
    return [old is not new and old != new for old, new in zip(before, after, strict=True)]


def _n_cells(n_columns: int, generator: np.random.Generator) -> int:
    return int(generator.integers(1, max(3, round(0.1 * n_columns)) + 1))


def _choose(columns: list[int], generator: np.random.Generator, row: Row) -> Iterator[int]:
    """As many of the columns as are to be damaged, the row's missing cells left alone."""
    present = [j for j in columns if is_present(row[j])]
    n_cells = min(_n_cells(len(row), generator), len(present))
    return iter(generator.choice(present, n_cells, replace=False).tolist() if present else [])


# ---------------------------------------------------------------- extreme numbers


def plant_extreme(row: Row, clean: CleanTable, generator: np.random.Generator) -> Row | None:
    damaged = list(row)
    numbers = [j for j in clean.of_kind("number") if clean.columns[j].n_distinct > 2]
    for j in _choose(numbers, generator, row):
        damaged[j] = clean.columns[j].like_the_others(_extreme(clean.columns[j], generator))
    return damaged


def _extreme(column: CleanColumn, generator: np.random.Generator) -> float:
    """Four to twelve robust spreads from the median, or beyond all values; upwards where values are never negative."""
    low, high = column.ordered[[0, -1]]
    side = 1 if low >= 0 else generator.choice([-1, 1])
    if generator.random() < 0.5:
        value = column.quantile(0.5) + side * generator.uniform(4, 12) * column.spread
        if not column.is_within(value, VISIBLE):
            return value
    return (high if side > 0 else low) + side * generator.uniform(0.1, 1.0) * max(high - low, 1.0)


# ---------------------------------------------------------------- rare levels


def plant_rare(row: Row, clean: CleanTable, generator: np.random.Generator) -> Row | None:
    damaged = list(row)
    for j in _choose(clean.of_kind("category"), generator, row):
        rare = _rare_levels(clean.columns[j])
        if rare and generator.random() < 0.5:
            weight = np.array([1 / n for n in rare.values()])
            damaged[j] = str(generator.choice(list(rare), p=weight / weight.sum()))
        else:
            damaged[j] = _new_word(row[j], clean.columns[j].words, generator)
    return damaged


def _rare_levels(column: CleanColumn) -> dict[str, int]:
    """The levels below 1 % that even together are rare: in a long tail no single one is strange."""
    largest = RARE_SHARE * column.counts.total()
    return {level: n for level, n in column.counts.items() if n < largest and column.tail[level] <= RARE_TAIL}


def _new_word(word: str, known: frozenset[str], generator: np.random.Generator) -> str:
    """A typing error, or a word of another vocabulary."""
    for _ in range(MAX_DRAWS):
        new = _typo(word, generator) if word and generator.random() < 0.7 else str(generator.choice(NEW_WORDS))
        if new.strip() and new not in known:
            return new
    return f"{word}?"


def _typo(word: str, generator: np.random.Generator) -> str:
    at = int(generator.integers(len(word)))
    if word.isdigit() or len(word) < 3:
        return word[: at + 1] + word[at:]
    neighbour = chr(ord("a") + int(generator.integers(26)))
    faults = (
        word[:at] + word[at + 1 :],
        word[: at + 1] + word[at:],
        word[:at] + (neighbour.upper() if word[at].isupper() else neighbour) + word[at + 1 :],
        word[:at] + word[at : at + 2][::-1] + word[at + 2 :],
    )
    return faults[generator.integers(len(faults))]


# ---------------------------------------------------------------- contradictions


def plant_contextual(row: Row, clean: CleanTable, generator: np.random.Generator) -> Row | None:
    """Values of other rows in the place of a few: each common by itself and unlikely beside its partners."""
    damaged = list(row)
    dependent = [j for j in clean.dependent.tolist() if is_present(row[j])]
    weight = clean.strength[dependent].max(1, initial=0.0)
    n_cells = max(1, round(CONTEXTUAL_SHARE * len(clean.dependent)))
    for j in generator.choice(dependent, len(dependent), replace=False, p=weight / weight.sum()).tolist():
        donors = generator.integers(0, len(clean.bins), N_DONORS)
        donors = donors[clean.agreement(j, clean.bins[donors, j], damaged) <= DISAGREEMENT].tolist()
        values = [clean.values[j][donor] for donor in donors]
        values = [value for value in values if clean.columns[j].is_within(value, COMMON) and value != row[j]]
        if values:
            damaged[j] = values[0]
            n_cells -= 1
        if not n_cells:
            break
    changed = np.flatnonzero(_changed(row, damaged)).tolist()
    return damaged if any(clean.disagrees(j, damaged) for j in changed) else None


# ---------------------------------------------------------------- format faults


def plant_format(row: Row, clean: CleanTable, generator: np.random.Generator) -> Row | None:
    """Faults of one or more sorts, each of which can be seen: by the value itself or by the rest of the row."""
    damaged, touched = list(row), set[int]()
    n_cells = _n_cells(len(row), generator)
    for _ in range(MAX_DRAWS):
        faulty = _FAULTS[generator.integers(len(_FAULTS))](damaged, clean, generator)
        changes = {j for j, value in faulty.items() if value != damaged[j]}
        if not changes or changes & touched or len(touched | changes) > max(2, n_cells):
            continue
        candidate = [faulty.get(j, value) for j, value in enumerate(damaged)]
        if any(clean.is_visible(j, candidate) for j in changes):
            damaged, touched = candidate, touched | changes
        if len(touched) >= n_cells:
            break
    return damaged


def _slip_unit(row: Row, clean: CleanTable, generator: np.random.Generator) -> dict[int, Any]:
    """Kilometres taken for metres, thousands for ones; not where rounding leaves nothing."""
    return _replace(row, clean, generator, lambda value, _: value * float(generator.choice(UNIT_SLIPS)))


def _flip_sign(row: Row, clean: CleanTable, generator: np.random.Generator) -> dict[int, Any]:
    return _replace(row, clean, generator, lambda value, _: -value)


def _lose_point(row: Row, clean: CleanTable, generator: np.random.Generator) -> dict[int, Any]:
    """The decimal point or comma of a number with up to four decimals read over."""
    return _replace(
        row, clean, generator, lambda value, column: value * 10**column.decimals if column.decimals <= 4 else value
    )


def _replace(
    row: Row,
    clean: CleanTable,
    generator: np.random.Generator,
    fault: Callable[[float, CleanColumn], float],
) -> dict[int, Any]:
    present = [j for j in clean.of_kind("number") if is_present(row[j])]
    if not present:
        return {}
    j = int(generator.choice(present))
    faulty = clean.columns[j].like_the_others(fault(row[j], clean.columns[j]))
    return {j: faulty} if faulty else {}


def _swap_columns(row: Row, clean: CleanTable, generator: np.random.Generator) -> dict[int, Any]:
    """Two cells of one type, each in the other's place."""
    present = [j for j in clean.of_kind("number", "category", "timestamp") if is_present(row[j])]
    if len(present) < 2:
        return {}
    i, j = generator.choice(present, 2, replace=False).tolist()
    return {i: row[j], j: row[i]} if clean.columns[i].type == clean.columns[j].type else {}


def _shift_date(row: Row, clean: CleanTable, generator: np.random.Generator) -> dict[int, Any]:
    """By a year or a century, day and month exchanged, or the date that computers begin with."""
    present = [j for j in clean.of_kind("timestamp") if is_present(row[j])]
    if not present:
        return {}
    j = int(generator.choice(present))
    date = row[j]
    day = min(date.day, 28)
    shifted = (
        date.replace(year=date.year - 1, day=day),
        date.replace(year=date.year + 1, day=day),
        date.replace(year=date.year - 100, day=day),
        date.replace(year=date.year + 100, day=day),
        date.replace(month=date.day, day=date.month) if date.day <= 12 else date,
        date.replace(year=1970, month=1, day=1),
    )
    return {j: shifted[generator.integers(len(shifted))]}


Planter = Callable[[Row, CleanTable, np.random.Generator], Row | None]

_PLANTERS: dict[str, Planter] = {
    "extreme": plant_extreme,
    "rare": plant_rare,
    "contextual": plant_contextual,
    "format": plant_format,
}
_FAULTS = (_slip_unit, _flip_sign, _lose_point, _swap_columns, _shift_date)
