"""Which columns of two tables are the same, each one at most once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Float64, Int64
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

from tabmoco.columns.encoder import ColumnEncoder, TableView
from tabmoco.errors import ConfigError

SURE_MARGIN = 0.1
"""Margin from which on a pair is taken to be sure."""

Keys: TypeAlias = Sequence[Int64[np.ndarray, " U"]]
"""Hashes of the distinct values of some columns."""


@dataclass(frozen=True)
class ColumnPair:
    """A column of one table and the one of the other that it goes with."""

    column: str
    other: str
    similarity: float
    """Cosine of their embeddings, -1 to 1."""

    shared: float
    """Distinct values that both have among those of either, 0 to 1, of the rows looked at."""

    margin: float
    """By how much the pair, its similarity and shared values added up, is ahead of the next best of either column;
    below 0 where another would suit one of them better."""

    @property
    def is_sure(self) -> bool:
        """Whether the next best is far enough behind, by a margin of 0.1; other pairs ask for a look."""
        return self.margin >= SURE_MARGIN


@dataclass(frozen=True, eq=False)
class Matching:
    """Columns of two tables paired so that similarities and shared values add up to the most."""

    name: str
    other_name: str
    threshold: float
    pairs: tuple[ColumnPair, ...]
    """In the order of the first table's columns."""

    unmatched: tuple[str, ...]
    """Columns of the first table that no column of the other is like."""

    other_unmatched: tuple[str, ...]
    skipped: dict[str, str]
    """Columns that could not be judged, and why."""

    other_skipped: dict[str, str]
    similarity: Float[np.ndarray, "A B"] = field(repr=False)
    """Cosine of every column of the first table with every one of the other."""

    @property
    def mapping(self) -> dict[str, str]:
        """Names of the other table's columns to those of the first, ready for a data frame's `rename`."""
        return {pair.other: pair.column for pair in self.pairs}

    def table(self) -> pa.Table:
        """A row for each pair."""
        return pa.table(
            {
                "column": pa.array([pair.column for pair in self.pairs], pa.string()),
                "other_column": pa.array([pair.other for pair in self.pairs], pa.string()),
                "similarity": pa.array([pair.similarity for pair in self.pairs], pa.float64()),
                "shared": pa.array([pair.shared for pair in self.pairs], pa.float64()),
                "margin": pa.array([pair.margin for pair in self.pairs], pa.float64()),
            }
        )

    def to_json(self) -> dict[str, Any]:
        """JSON-safe values."""
        return {
            "name": self.name,
            "other_name": self.other_name,
            "threshold": self.threshold,
            "pairs": [{**dataclasses.asdict(pair), "is_sure": pair.is_sure} for pair in self.pairs],
            "unmatched": list(self.unmatched),
            "other_unmatched": list(self.other_unmatched),
            "skipped": self.skipped,
            "other_skipped": self.other_skipped,
        }


def match_columns(
    table: Any,
    other: Any,
    *,
    encoder: ColumnEncoder | None = None,
    threshold: float | None = None,
) -> Matching:
    """Find the columns of two tables that are the same, by their values: headers may be missing or cryptic.

    Parameters
    ----------
    table, other
        Anything `open_table` reads, or views that the encoder made.
    encoder
        The one that tabmoco ships by default.
    threshold
        Similarity below which columns are no match, -1 to 1; the encoder's own by default.

    Raises
    ------
    TabmocoError
        If a table has no column that can be judged, or the threshold is out of range.
    """
    encoder = encoder if encoder is not None else ColumnEncoder.load()
    lowest = encoder.threshold if threshold is None else threshold
    if not -1 <= lowest <= 1:
        raise ConfigError(f"threshold must lie between -1 and 1, got threshold={threshold}.")
    one = table if isinstance(table, TableView) else encoder.read(table)
    two = other if isinstance(other, TableView) else encoder.read(other)
    similarity = (one.vectors @ two.vectors.T).astype(np.float64)
    shared = overlap(one.keys, two.keys)
    fit = similarity + shared
    row, column = assign(fit)
    kept = [(i, j) for i, j in zip(row.tolist(), column.tolist(), strict=True) if similarity[i, j] >= lowest]
    pairs = [
        ColumnPair(
            one.columns[i].name,
            two.columns[j].name,
            similarity=float(similarity[i, j]),
            shared=float(shared[i, j]),
            margin=margin(fit, i, j),
        )
        for i, j in kept
    ]
    left, right = {i for i, _ in kept}, {j for _, j in kept}
    return Matching(
        name=one.name,
        other_name=two.name,
        threshold=lowest,
        pairs=tuple(pairs),
        unmatched=tuple(found.name for i, found in enumerate(one.columns) if i not in left),
        other_unmatched=tuple(found.name for j, found in enumerate(two.columns) if j not in right),
        skipped=one.skipped,
        other_skipped=two.skipped,
        similarity=similarity,
    )


def assign(
    fit: Float[np.ndarray, "A B"],
) -> tuple[Int64[np.ndarray, " pairs"], Int64[np.ndarray, " pairs"]]:
    """Rows and columns paired one to one so that what the pairs have adds up to the most (Kuhn, "The Hungarian Method
    for the Assignment Problem", 1955)."""
    return linear_sum_assignment(fit, maximize=True)


def overlap(one: Keys, two: Keys) -> Float64[np.ndarray, "A B"]:
    """Distinct values that two columns share, as a share of those of either (Jaccard), by their sorted hashes."""
    distinct, place = np.unique(np.concatenate([*one, *two]), return_inverse=True)
    owner = np.repeat(np.arange(len(one) + len(two)), [len(keys) for keys in (*one, *two)])
    held = csr_array((np.ones(len(place)), (owner, place)), shape=(len(one) + len(two), len(distinct)))
    both = (held[: len(one)] @ held[len(one) :].T).toarray()
    size = np.array([len(keys) for keys in (*one, *two)])
    either = size[: len(one), None] + size[None, len(one) :] - both
    return both / np.maximum(either, 1)


def margin(fit: Float[np.ndarray, "A B"], i: int, j: int) -> float:
    """By how much a pair is ahead of the next best of its row and of its column."""
    rivals = np.concatenate([np.delete(fit[i], j), np.delete(fit[:, j], i)])
    return float(fit[i, j] - rivals.max()) if len(rivals) else float(fit[i, j] + 1)
