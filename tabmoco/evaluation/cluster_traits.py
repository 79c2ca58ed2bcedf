"""What sets groups of rows apart from the others, column by column, in words.

All effects share one scale, Cliff's delta ("Dominance statistics", 1993, eq. 1), 0 to 1: how much more often than not
a cell of the group is larger than a cell of the others; 2 AUROC - 1. Of a value that is there or not it is the
difference of its two shares. Pairs with a missing cell count as ties, so that a column says little of a group in which
it is hardly ever filled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Float64, Int64
from scipy import stats
from sklearn.feature_extraction.text import CountVectorizer

from tabmoco.config import Kind
from tabmoco.evaluation.drift_result import percent
from tabmoco.tables.convert import to_strings
from tabmoco.tables.display import describe
from tabmoco.tables.encoders import read_cells
from tabmoco.tables.schema import Column

LEAST_EFFECT = 0.1
"""Smaller effects are not worth telling."""

SURE_EFFECT = 0.8
"""Effects from here on are told however few rows a group has."""

N_STANDARD_ERRORS = 3.0
"""How far beyond chance an effect must lie, in standard errors of Cliff's delta among like rows."""

MOST_TOLD = 5
"""Traits of a group that are told."""

MOST_VALUES = 3
"""Values of a column that are named."""

MOST_WORDS = 2_000
"""Words of a text column that are counted, the most frequent first."""

What = Literal["number", "value", "word", "missing"]


@dataclass(frozen=True)
class Trait:
    """How one column differs in a group from the other rows."""

    column: str
    kind: Kind

    what: What
    """Whether the size of numbers or instants differs, the share of a value, of a word in a text, or of missing
    cells."""

    effect: float
    """Cliff's delta without its sign, 0 to 1."""

    here: str
    """Median of a number or timestamp in the group, its middle half, or the shares of values."""

    elsewhere: str
    """The same of all other rows."""

    lift: float | None
    """How many times as frequent the first value named is as elsewhere; None for numbers and where it is nowhere
    else."""

    told: str
    """All of it in words."""


@dataclass(frozen=True)
class _Contrast:
    """How far each group differs in one respect, and how to tell it."""

    effect: Float64[np.ndarray, " K"]
    n_here: Float64[np.ndarray, " K"]
    n_elsewhere: Float64[np.ndarray, " K"]
    tell: Callable[[int, float], Trait]
    """The trait of a group, given the effect."""

    def with_ties(self, n_rows: Float64[np.ndarray, " K"], n_all: int) -> _Contrast:
        """The same with effects among all rows of each group, `n_rows`, and all others, present or not."""
        filled = self.n_here * self.n_elsewhere / np.maximum(n_rows * (n_all - n_rows), 1)
        return dataclasses.replace(self, effect=self.effect * filled)

    def is_worth_telling(self, group: int) -> bool:
        """Whether the effect is neither chance nor a trifle."""
        n, m = self.n_here[group], self.n_elsewhere[group]
        if not n or not m:
            return False
        chance = N_STANDARD_ERRORS * math.sqrt((n + m + 1) / (3 * n * m))
        return bool(self.effect[group] >= max(LEAST_EFFECT, min(chance, SURE_EFFECT)))


def traits(
    columns: Sequence[Column], raw: pa.Table | pa.RecordBatch, label: Int64[np.ndarray, " N"], n_groups: int
) -> list[tuple[Trait, ...]]:
    """Of each group what sets it apart the most, the largest effect first; nothing that may be chance.

    Parameters
    ----------
    raw
        The rows as they were given.
    label
        The group of each row; -1 for rows in none, which are among the others of every group.
    """
    n_rows = _counts(label, n_groups)
    contrasts = [
        contrast.with_ties(n_rows, len(label))
        for column in columns
        for contrast in _contrasts(column, raw, label, n_groups)
    ]
    found = []
    for group in range(n_groups):
        worth = [contrast for contrast in contrasts if contrast.is_worth_telling(group)]
        worth.sort(key=lambda contrast: -round(contrast.effect[group], 9))
        told = worth[:MOST_TOLD]
        found.append(tuple(one.tell(group, float(one.effect[group])) for one in told))
    return found


def _contrasts(
    column: Column, raw: pa.Table | pa.RecordBatch, label: Int64[np.ndarray, " N"], n_groups: int
) -> Iterator[_Contrast]:
    cells = read_cells(column.kind, raw.column(column.name), column.name)
    if column.kind in ("number", "timestamp"):
        assert isinstance(cells, np.ndarray), "as read_cells promises"
        missing = np.isnat(cells) if column.kind == "timestamp" else np.isnan(cells)
        yield from _by_size(column, cells, missing, label, n_groups)
    elif column.kind == "boolean":
        code = np.asarray(cells, dtype=np.int64)
        missing = code < 0
        yield from _by_value(column, code, ["false", "true"], label, n_groups)
    else:
        strings = to_strings(raw.column(column.name), column.name)
        code = np.array(strings.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
        missing = code < 0
        if column.kind == "category":
            names = [describe(name, "string") for name in strings.dictionary.to_pylist()]
            yield from _by_value(column, code, names, label, n_groups)
        else:
            yield from _by_word(column, strings, label, n_groups)
    if missing.any() and not missing.all():
        yield _by_gap(column, missing, label, n_groups)


# ---------------------------------------------------------------- numbers and instants


def _by_size(
    column: Column, cells: np.ndarray, missing: Bool[np.ndarray, " N"], label: np.ndarray, n_groups: int
) -> Iterator[_Contrast]:
    values, group = cells[~missing], label[~missing]
    if not len(values):
        return
    order = values.astype(np.int64) if column.kind == "timestamp" else values
    rank = stats.rankdata(order)
    n_here = _counts(group, n_groups)
    n_elsewhere = len(group) - n_here
    rank_sum = np.bincount(group + 1, weights=rank, minlength=n_groups + 1)[1:]
    wins = rank_sum - n_here * (n_here + 1) / 2
    effect = 2 * wins / np.maximum(n_here * n_elsewhere, 1) - 1

    def tell(which: int, told_effect: float) -> Trait:
        here, elsewhere = _told_sizes(column, order[group == which], order[group != which])
        told = f"{column.name}: {here} (others {elsewhere})"
        return Trait(column.name, column.kind, "number", told_effect, here, elsewhere, lift=None, told=told)

    yield _Contrast(np.abs(effect), n_here, n_elsewhere, tell)


def _told_sizes(column: Column, here: np.ndarray, elsewhere: np.ndarray) -> tuple[str, str]:
    """Medians; where these are equal the middle halves, and where those are too the means."""
    levels = (0.25, 0.5, 0.75)
    quartiles = [np.quantile(values, levels, method="inverted_cdf") for values in (here, elsewhere)]
    words = [[_told_size(column, value) for value in three] for three in quartiles]
    if words[0][1] != words[1][1]:
        return words[0][1], words[1][1]
    if words[0] != words[1]:
        first, second = (f"middle half {low} to {high}" for low, _, high in words)
        return first, second
    first, second = (f"mean {_told_size(column, values.mean())}" for values in (here, elsewhere))
    return first, second


def _told_size(column: Column, value: Any) -> str:
    if column.kind != "timestamp":
        return describe(float(value), column.arrow_type)
    instant: Any = np.int64(value).astype("datetime64[us]")
    return describe(instant.astype("datetime64[s]"), column.arrow_type)


# ---------------------------------------------------------------- values, words and gaps


def _by_value(
    column: Column, code: Int64[np.ndarray, " N"], names: Sequence[str], label: np.ndarray, n_groups: int
) -> Iterator[_Contrast]:
    """Values that a group has more often than the others; or one that it has less often, if that says more."""
    present = code >= 0
    if not present.any():
        return
    width = len(names)
    counts = np.bincount((label[present] + 1) * width + code[present], minlength=(n_groups + 1) * width)
    counts = counts.reshape(n_groups + 1, width).astype(np.float64)
    here, elsewhere, n_here, n_elsewhere = _shares(counts)
    excess = here - elsewhere
    named = [_named(more) for more in excess]
    effect = np.array([abs(excess[group, values].sum()) for group, values in enumerate(named)])

    def tell(which: int, told_effect: float) -> Trait:
        return _told_shares(column, "value", names, named[which], here[which], elsewhere[which], told_effect)

    yield _Contrast(effect, n_here, n_elsewhere, tell)


def _named(excess: Float64[np.ndarray, " V"]) -> Int64[np.ndarray, " v"]:
    """The values worth naming, given by how much their shares exceed those elsewhere."""
    most = np.argsort(-excess, kind="stable")[:MOST_VALUES]
    more = most[excess[most] >= max(LEAST_EFFECT, excess[most[0]] / 4)]
    more = more if len(more) else most[:1]
    least = int(excess.argmin())
    return np.array([least]) if -excess[least] > excess[more].sum() + 1e-9 else more


def _by_word(column: Column, strings: pa.DictionaryArray, label: np.ndarray, n_groups: int) -> Iterator[_Contrast]:
    """The one word whose share of a group's texts differs the most from that of the others'."""
    given = np.asarray(strings.is_valid())
    texts, group = strings.drop_null().to_pylist(), label[given]
    counter = CountVectorizer(binary=True, max_features=MOST_WORDS)
    try:
        found = counter.fit_transform(texts)
    except ValueError:  # not a word in any of them
        return
    names = [f"'{word}'" for word in counter.get_feature_names_out()]
    counts = np.stack([np.asarray(found[group == which].sum(0)).ravel() for which in range(-1, n_groups)])
    n_texts = np.bincount(group + 1, minlength=n_groups + 1)
    here, elsewhere, n_here, n_elsewhere = _shares(counts.astype(np.float64), n_texts.astype(np.float64))
    excess = here - elsewhere
    best = np.where(excess < 0, -excess * (1 - 1e-9), excess).argmax(1)  # rather a word that is there
    effect = np.abs(excess)[np.arange(n_groups), best]

    def tell(which: int, told_effect: float) -> Trait:
        named = best[which, None]
        return _told_shares(column, "word", names, named, here[which], elsewhere[which], told_effect)

    yield _Contrast(effect, n_here, n_elsewhere, tell)


def _by_gap(column: Column, missing: Bool[np.ndarray, " N"], label: np.ndarray, n_groups: int) -> _Contrast:
    n_rows = np.bincount(label + 1, minlength=n_groups + 1).astype(np.float64)
    counts = np.bincount(label[missing] + 1, minlength=n_groups + 1).astype(np.float64)
    here, elsewhere, n_here, n_elsewhere = _shares(counts[:, None], n_rows)
    effect = np.abs(here - elsewhere)[:, 0]

    def tell(which: int, told_effect: float) -> Trait:
        named = np.zeros(1, dtype=np.int64)
        return _told_shares(column, "missing", ["missing"], named, here[which], elsewhere[which], told_effect)

    return _Contrast(effect, n_here, n_elsewhere, tell)


def _told_shares(
    column: Column,
    what: What,
    names: Sequence[str],
    named: Int64[np.ndarray, " v"],
    here: Float[np.ndarray, " V"],
    elsewhere: Float[np.ndarray, " V"],
    effect: float,
) -> Trait:
    lift = here[named[0]] / elsewhere[named[0]] if elsewhere[named[0]] > 0 else None
    own, other = (", ".join(f"{names[v]} {percent(side[v])}" for v in named) for side in (here, elsewhere))
    told = ", ".join(f"{names[v]} {percent(here[v])} (others {percent(elsewhere[v])})" for v in named)
    return Trait(
        column.name,
        column.kind,
        what,
        effect,
        own,
        other,
        lift=None if lift is None else float(lift),
        told=f"{column.name}: {told}",
    )


def _counts(group: Int64[np.ndarray, " N"], n_groups: int) -> Float64[np.ndarray, " K"]:
    return np.bincount(group + 1, minlength=n_groups + 1)[1:].astype(np.float64)


def _shares(
    counts: Float64[np.ndarray, "K1 V"], n_rows: Float64[np.ndarray, " K1"] | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Shares of values in each group and in all other rows, and the rows of both; the first line of `counts` is that of
    rows in no group."""
    n_rows = counts.sum(1) if n_rows is None else n_rows
    n_here, n_elsewhere = n_rows[1:], n_rows.sum() - n_rows[1:]
    here = counts[1:] / np.maximum(n_here, 1)[:, None]
    elsewhere = (counts.sum(0) - counts[1:]) / np.maximum(n_elsewhere, 1)[:, None]
    return here, elsewhere, n_here, n_elsewhere
