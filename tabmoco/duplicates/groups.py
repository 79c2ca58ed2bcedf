"""What was found: which rows are duplicates of one another at a threshold, as groups and as pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Int64
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from tabmoco.duplicates.compared import ComparedRows
from tabmoco.errors import TableError

Threshold = float | Literal["auto"]

EXACT = 1.0
NEARLY_EXACT = 1.0 - 1e-6
"""Highest similarity of rows that differ in some cell."""

DIFFERING_CELLS = pa.list_(pa.struct([("column", pa.string()), ("value", pa.string()), ("other_value", pa.string())]))
"""The cells in which the rows of a pair differ."""

PAIR_COLUMNS = ("group", "similarity", "match", "cells")
"""Columns of the table of pairs besides the ids."""


@dataclass(frozen=True)
class Copies:
    """The rows of all tables, exact copies put together: `n` kinds of rows, sorted by content, so that nothing
    depends on the order of the tables' rows."""

    order: Int64[np.ndarray, " N"]
    """All rows, those of the second table after those of the first, sorted by kind and then by position."""

    start: Int64[np.ndarray, " starts"]
    """Where each kind begins in `order`."""

    is_other: Bool[np.ndarray, " n"]
    """Which kinds are the second table's: a row of each table that are equal are two kinds."""

    @classmethod
    def of(cls, content: Int64[np.ndarray, " N"], is_other: Bool[np.ndarray, " N"]) -> Copies:
        order = np.lexsort((np.arange(len(content)), content, is_other))
        ordered, side = content[order], is_other[order]
        begins = np.flatnonzero(np.r_[len(order) > 0, (ordered[1:] != ordered[:-1]) | (side[1:] != side[:-1])])
        return cls(order, np.append(begins, len(order)), side[begins])

    def __len__(self) -> int:
        return len(self.is_other)

    @property
    def first(self) -> Int64[np.ndarray, " n"]:
        """The first row of each kind."""
        return self.order[self.start[:-1]]

    @property
    def size(self) -> Int64[np.ndarray, " n"]:
        return np.diff(self.start)

    def members(self, kind: int) -> Int64[np.ndarray, " m"]:
        return self.order[self.start[kind] : self.start[kind + 1]]


@dataclass(frozen=True)
class RowPairs:
    """Pairs of rows, counted through both tables."""

    left: Int64[np.ndarray, " P"]
    right: Int64[np.ndarray, " P"]
    link: Int64[np.ndarray, " P"]
    """Which pair of kinds of rows each comes from; -1 for copies within a table."""

    similarity: Float[np.ndarray, " P"]
    group: Int64[np.ndarray, " P"]

    @property
    def in_order(self) -> Int64[np.ndarray, " P"]:
        """Group by group, the most similar first."""
        return np.lexsort((self.right, self.left, -self.similarity, self.group))


@dataclass(frozen=True)
class Duplicates:
    """Groups of duplicates and their pairs, at one threshold; `at` gives them at another."""

    threshold: float
    """Lowest similarity of a pair of duplicates."""

    auto: float
    """The threshold chosen without being told one."""

    names: tuple[str, ...]
    """What the table is called, and the other one if there is one."""

    id_names: tuple[str, ...]
    ids: tuple[pa.Array, ...]
    copies: Copies

    rows: ComparedRows
    """The first row of each kind."""

    first: Int64[np.ndarray, " P"]
    """Every pair of kinds that was compared, or is equal in two tables: one of them, and the other."""

    second: Int64[np.ndarray, " P"]
    similarity: Float[np.ndarray, " P"]
    """0 to 1; 1 only if all cells are equal."""

    @property
    def n_rows(self) -> tuple[int, ...]:
        """Rows of each table."""
        return tuple(len(ids) for ids in self.ids)

    @property
    def across(self) -> bool:
        """Whether pairs are between two tables."""
        return len(self.ids) > 1

    def at(self, threshold: Threshold) -> Duplicates:
        """The same pairs, grouped at another threshold."""
        return dataclasses.replace(self, threshold=self.auto if threshold == "auto" else checked(threshold))

    @cached_property
    def linked(self) -> Int64[np.ndarray, " L"]:
        """Which of the scored pairs are duplicates."""
        return np.flatnonzero(self.similarity >= self.threshold)

    @cached_property
    def group_of_kind(self) -> Int64[np.ndarray, " n"]:
        """The group of each kind of row, from 0, the largest first; -1 for rows without a duplicate."""
        n = len(self.copies)
        link = sparse.coo_matrix(
            (np.ones(len(self.linked)), (self.first[self.linked], self.second[self.linked])), shape=(n, n)
        )
        n_components, component = connected_components(link, directed=False) if n else (0, np.zeros(0, np.int64))
        size = np.bincount(component, weights=self.copies.size, minlength=n_components)
        earliest = np.full(n_components, len(self.copies.order))
        np.minimum.at(earliest, component, self.copies.first)
        alone = np.bincount(component, minlength=n_components) == 1 if self.across else size == 1
        order = np.lexsort((earliest, -size, alone))
        group = np.empty(n_components, dtype=np.int64)
        group[order] = np.where(alone[order], -1, np.arange(n_components))
        return group[component]

    @cached_property
    def group_of_row(self) -> tuple[Int64[np.ndarray, " N"], ...]:
        """The group of each row of each table; -1 for rows without a duplicate."""
        group = np.empty(len(self.copies.order), dtype=np.int64)
        group[self.copies.order] = np.repeat(self.group_of_kind, self.copies.size)
        return tuple(np.split(group, np.cumsum(self.n_rows)[:-1]))

    @cached_property
    def repeated(self) -> Int64[np.ndarray, " r"]:
        """Positions of the rows to leave out so that each group stays once: all but its first; between two tables, all
        rows of the first table that the other one has too."""
        group = self.group_of_row[0]
        places = np.flatnonzero(group >= 0)
        if self.across:
            return places
        _, firsts = np.unique(group[places], return_index=True)
        return np.delete(places, firsts)

    @cached_property
    def groups(self) -> pa.Table:
        """One row per group, the largest first: `group`, `n_rows`, `n_different` (exact copies counted once),
        `lowest` and `linked` (lowest similarity of its pairs, and the share of the pairs of its different rows that
        are above the threshold themselves: less than 1 where rows hang together in a chain), and the ids of its rows;
        between two tables those of each table."""
        n_groups = int(self.group_of_kind.max(initial=-1)) + 1
        inside = self.group_of_kind >= 0
        kinds, is_other = self.group_of_kind[inside], self.copies.is_other[inside]
        n_different = np.bincount(kinds, minlength=n_groups)
        n_others = np.bincount(kinds[is_other], minlength=n_groups)
        n_pairs = (n_different - n_others) * n_others if self.across else n_different * (n_different - 1) // 2
        group_of_link = self.group_of_kind[self.first[self.linked]]
        lowest = np.full(n_groups, EXACT)
        np.minimum.at(lowest, group_of_link, self.similarity[self.linked])
        n_links = np.bincount(group_of_link, minlength=n_groups)
        members = [_lists(group, ids, n_groups) for group, ids in zip(self.group_of_row, self.ids, strict=True)]
        return pa.table(
            {
                "group": np.arange(n_groups),
                "n_rows": np.bincount(kinds, weights=self.copies.size[inside], minlength=n_groups).astype(np.int64),
                "n_different": n_different,
                "lowest": lowest,
                "linked": n_links / np.maximum(n_pairs, 1) + (n_pairs == 0),
                "rows": members[0],
                **({"other_rows": members[1]} if self.across else {}),
            }
        )

    @cached_property
    def pairs(self) -> pa.Table:
        """The pairs of duplicates, group by group, the most similar first: `group`, the ids of both rows, `similarity`,
        `match` (`exact` or `near`), and the `cells` that differ, with both values.

        Of rows that are exact copies each is paired with the first, not with one another; within one table, only the
        first has pairs with other rows.
        """
        return pa.Table.from_batches(self.iter_pairs(), schema=self.pair_schema)

    @property
    def pair_schema(self) -> pa.Schema:
        own, other = self.ids[0].type, self.ids[-1].type
        return pa.schema(
            [
                ("group", pa.int64()),
                (self.id_names[0], own),
                (f"other_{self.id_names[-1]}", other),
                ("similarity", pa.float64()),
                ("match", pa.string()),
                ("cells", DIFFERING_CELLS),
            ]
        )

    def iter_pairs(self, *, batch_rows: int = 4_096) -> Iterator[pa.RecordBatch]:
        """`pairs`, batch by batch."""
        order = self._row_pairs.in_order
        for start in range(0, len(order), batch_rows):
            yield self._told(order[start : start + batch_rows])

    def examples(self, n_groups: int, n_pairs: int) -> pa.Table:
        """Up to `n_pairs` pairs of each of the first `n_groups` groups, those that differ first."""
        found = self._row_pairs
        pairs = np.flatnonzero(found.group < n_groups)
        is_exact = found.similarity[pairs] == EXACT
        pairs = pairs[
            np.lexsort((found.right[pairs], found.left[pairs], -found.similarity[pairs], is_exact, found.group[pairs]))
        ]
        group = found.group[pairs]
        rank = np.arange(len(pairs)) - np.searchsorted(group, group)
        return pa.Table.from_batches([self._told(pairs[rank < n_pairs])], schema=self.pair_schema)

    def _told(self, pairs: Int64[np.ndarray, " B"]) -> pa.RecordBatch:
        found = self._row_pairs
        is_exact = found.similarity[pairs] == EXACT
        cells = [
            [] if exact else self._differing(link)
            for link, exact in zip(found.link[pairs].tolist(), is_exact, strict=True)
        ]
        columns = [
            pa.array(found.group[pairs]),
            self.ids[0].take(pa.array(found.left[pairs])),
            self.ids[-1].take(pa.array(found.right[pairs] - (self.n_rows[0] if self.across else 0))),
            pa.array(found.similarity[pairs]),
            pa.array(["exact" if exact else "near" for exact in is_exact], pa.string()),
            pa.array(cells, DIFFERING_CELLS),
        ]
        return pa.record_batch(columns, schema=self.pair_schema)

    @property
    def n_pairs(self) -> int:
        """How many pairs `pairs` holds."""
        return len(self._row_pairs.link)

    @cached_property
    def _row_pairs(self) -> RowPairs:
        copies, linked = self.copies, self.linked
        if self.across:
            ends = [self._spread(link) for link in linked.tolist()]
            n_each = [len(left) for left, _ in ends]
            left, right = (np.concatenate([np.zeros(0, np.int64), *(pair[i] for pair in ends)]) for i in (0, 1))
            link = np.repeat(linked, n_each)
        else:
            n_copies = len(copies.order) - len(copies)
            a, b = copies.first[self.first[linked]], copies.first[self.second[linked]]
            left = np.concatenate([np.repeat(copies.first, copies.size - 1), np.minimum(a, b)])
            right = np.concatenate([np.delete(copies.order, copies.start[:-1]), np.maximum(a, b)])
            link = np.concatenate([np.full(n_copies, -1), linked])
        similarity = np.append(self.similarity, EXACT)[link]
        return RowPairs(left, right, link, similarity, np.concatenate(self.group_of_row)[left])

    def _spread(self, link: int) -> tuple[np.ndarray, np.ndarray]:
        """All rows of a pair of kinds, each with the first of the other table."""
        own, other = self.copies.members(self.first[link]), self.copies.members(self.second[link])
        left = np.concatenate([own, np.repeat(own[:1], len(other) - 1)])
        return left, np.concatenate([np.repeat(other[:1], len(own)), other[1:]])

    def _differing(self, link: int) -> list[dict[str, str]]:
        i, j = int(self.first[link]), int(self.second[link])
        if not self.across and self.copies.first[i] > self.copies.first[j]:
            i, j = j, i
        return [
            {"column": self.rows.columns[c].name, "value": self.rows.told(i, c), "other_value": self.rows.told(j, c)}
            for c in self.rows.differing(i, j)
        ]


def checked(threshold: float) -> float:
    """The threshold, if it is one."""
    if not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise TableError(f"threshold must be auto or lie between 0 and 1, got threshold={threshold!r}.")
    return float(threshold)


def _lists(group: Int64[np.ndarray, " N"], ids: pa.Array, n_groups: int) -> pa.LargeListArray:
    """The ids of each group's rows."""
    places = np.flatnonzero(group >= 0)
    places = places[np.argsort(group[places], kind="stable")]
    bounds = np.searchsorted(group[places], np.arange(n_groups + 1))
    return pa.LargeListArray.from_arrays(pa.array(bounds, pa.int64()), ids.take(pa.array(places)))
