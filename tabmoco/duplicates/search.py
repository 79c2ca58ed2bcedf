"""Rows that stand in a table more than once, exactly or nearly: typing errors, missing or swapped cells, slipped units.

Exact copies are known by their content, and only one row of each kind of copy goes on. Candidate pairs come from
`tabmoco.duplicates.candidates`, their similarity from `tabmoco.duplicates.agreement`. Rows linked by pairs above the
threshold, directly or in a chain, make a group. All scored pairs are kept, so another threshold takes no new search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Int64

from tabmoco.duplicates.agreement import Weights
from tabmoco.duplicates.candidates import candidates
from tabmoco.duplicates.compared import ComparedRows, Words
from tabmoco.duplicates.groups import EXACT, NEARLY_EXACT, PAIR_COLUMNS, Copies, Duplicates, Threshold, checked
from tabmoco.duplicates.null import auto_threshold
from tabmoco.errors import TableError
from tabmoco.neighbors.reference import SEARCH_SPACE, Points
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.notices import warn
from tabmoco.tables.schema import Column
from tabmoco.tables.source import TableBatch, TableSource

SPACES = (SEARCH_SPACE, "cells")
"""Where neighbours are searched."""

LARGE_GROUP, LOOSE = 20, 0.2
"""A group of more different rows, of whose pairs a smaller share is above the threshold, is reported as a chain."""


@dataclass(frozen=True)
class Side:
    """One table, ready to be compared."""

    name: str
    id_name: str
    ids: pa.Array
    """What each row is called."""

    rows: ComparedRows
    vectors: tuple[Float[np.ndarray, "N _"], ...]

    @classmethod
    def gather(
        cls,
        source: TableSource,
        columns: Sequence[Column],
        words: Words,
        batches: Iterable[tuple[TableBatch, CellBatch]],
        points: Callable[[CellBatch], Points],
        progress: Callable[[int], None],
    ) -> Side:
        """Read a table once; `points` says where encoded rows lie."""
        if source.id_column in PAIR_COLUMNS:
            raise TableError(
                f"the id column must not be named like an output column, got {source.id_column!r}; rename it."
            )
        rows = [ComparedRows.empty(columns, words)]
        vectors: list[list[np.ndarray]] = [[] for _ in SPACES]
        ids = []
        for batch, cells in batches:
            rows.append(ComparedRows.read(columns, batch, words))
            found = points(cells).vectors
            for space, parts in zip(SPACES, vectors, strict=True):
                parts.append(found[space])
            ids.append(pa.array(batch.rows) if batch.ids is None else batch.ids)
            progress(len(batch))
        id_type = pa.int64() if source.id_type is None else source.id_type
        return cls(
            source.name,
            source.id_column or "row_id",
            pa.chunked_array(ids, type=id_type).combine_chunks(),
            ComparedRows.cat(rows),
            tuple(np.concatenate(parts) if parts else np.zeros((0, 1), np.float32) for parts in vectors),
        )


def find_duplicates(tables: Iterable[Side], *, threshold: Threshold = "auto", k: int = 10) -> Duplicates:
    """Duplicates within one table, or between two.

    Parameters
    ----------
    tables
        One or two; not read before the other parameters are known to be sound.
    threshold
        Lowest similarity of duplicates, 0 to 1; by default chosen from the table, see `tabmoco.duplicates.null`.
    k
        Neighbours of each row that are compared with it, from each source of candidates.
    """
    if k < 1:
        raise TableError(f"k must be at least 1, got k={k}.")
    told = None if threshold == "auto" else checked(threshold)
    sides = list(tables)
    rows = ComparedRows.cat([side.rows for side in sides])
    is_other = np.repeat(np.arange(len(sides)) > 0, [len(side.rows) for side in sides])
    copies = Copies.of(rows.content(), is_other)
    place = copies.first
    kinds = rows[place]
    spaces = [
        np.concatenate(vectors)[place] for vectors in zip(*(side.vectors for side in _filled(sides)), strict=True)
    ]
    first, second = candidates(kinds, spaces, copies.is_other, k=k)
    similarity = Weights.fit(kinds).similarity(kinds, first, second)
    owners = (first,) if len(sides) > 1 else (first, second)
    auto = auto_threshold(np.concatenate(owners), np.tile(similarity, len(owners)), len(kinds))
    similarity = np.clip(similarity, 0.0, NEARLY_EXACT)
    if len(sides) > 1:
        first, second, similarity = _with_equals(kinds.content(), copies.is_other, first, second, similarity)
    found = Duplicates(
        threshold=auto if told is None else told,
        auto=auto,
        names=tuple(side.name for side in sides),
        id_names=tuple(side.id_name for side in sides),
        ids=tuple(side.ids for side in sides),
        copies=copies,
        rows=kinds,
        first=first,
        second=second,
        similarity=similarity,
    )
    warn_of_chains(found)
    return found


def _filled(sides: Sequence[Side]) -> Sequence[Side]:
    """The tables that have rows, if any: only they know how wide vectors are."""
    return [side for side in sides if len(side.rows)] or sides


def warn_of_chains(found: Duplicates) -> None:
    """Say so if large groups hang together by chains of pairs, each of whose links is alike but whose ends are not."""
    groups = found.groups
    is_chain = (groups["n_different"].to_numpy() > LARGE_GROUP) & (groups["linked"].to_numpy() < LOOSE)
    if is_chain.any():
        n_rows = int(groups["n_rows"].to_numpy()[is_chain].max())
        warn(
            f"{int(is_chain.sum()):,} of {len(groups):,} groups hang together by chains of similar rows, the largest "
            f"has {n_rows:,} rows; raise the threshold above {found.threshold:.3f} to divide them."
        )


def _with_equals(
    content: Int64[np.ndarray, " n"],
    is_other: Bool[np.ndarray, " n"],
    first: Int64[np.ndarray, " P"],
    second: Int64[np.ndarray, " P"],
    similarity: Float[np.ndarray, " P"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scored pairs of two tables and, in their place, the kinds of rows that are equal in both."""
    _, own, other = np.intersect1d(content[~is_other], content[is_other], assume_unique=True, return_indices=True)
    other = other + int((~is_other).sum())
    near = np.flatnonzero(content[first] != content[second])
    return (
        np.concatenate([own, first[near]]),
        np.concatenate([other, second[near]]),
        np.concatenate([np.full(len(own), EXACT), similarity[near]]),
    )
