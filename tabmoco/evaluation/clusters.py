"""Groups of alike rows, and what sets each of them apart: the table at a glance.

`tabmoco.evaluation.cluster_partition` groups the embeddings, `tabmoco.evaluation.cluster_traits` says how the columns
of a group differ from those of all other rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int64

from tabmoco.errors import ConfigError, TableError
from tabmoco.evaluation.cluster_partition import (
    KS,
    NOISE,
    Partition,
    Points,
    agreement,
    by_hdbscan,
    by_kmeans,
    choose_k,
    own_order,
    unit,
)
from tabmoco.evaluation.cluster_traits import Trait, traits
from tabmoco.evaluation.drift_result import percent
from tabmoco.model import BATCH_ROWS, RowModel
from tabmoco.tables.names import counted
from tabmoco.tables.notices import warn
from tabmoco.tables.source import TableSource, open_table

Method = Literal["kmeans", "hdbscan"]

DESCRIBED_ROWS = 50_000
"""Rows that descriptions rest on at most."""

N_TYPICAL = 3
"""Rows named of each cluster."""

SMALLEST_SHARE, SMALLEST = 0.01, 5
"""Fewest rows of a cluster that HDBSCAN looks for."""

STABLE, PARTLY_STABLE = 0.8, 0.5
"""Agreement from which on clusters are taken to be the table's own, or some of them."""


@dataclass(frozen=True)
class Cluster:
    """One group of rows."""

    number: int
    """From 0, the largest first."""

    n_rows: int
    share: float

    typical: tuple[Any, ...]
    """Ids of the rows nearest to the centre, or their positions."""

    traits: tuple[Trait, ...]
    """What sets it apart from all other rows, the largest effect first."""

    @property
    def description(self) -> str:
        """What sets it apart, in words."""
        return "; ".join(trait.told for trait in self.traits) or "no column by itself sets it apart"


@dataclass(frozen=True, eq=False)
class Clusters:
    """What `cluster` found.

    The clusters do not depend on the order of the rows, nor a row's cluster on the rows that are assigned beside it,
    but for rounding: a row as near to one centre as to another may fall to either.
    """

    name: str
    """What the table is called."""

    method: Method
    clusters: tuple[Cluster, ...]

    labels: Int64[np.ndarray, " N"]
    """The cluster of each row; -1 for noise, which only HDBSCAN knows."""

    distance: Float64[np.ndarray, " N"]
    """To the centre of the cluster, of noise to the nearest centre; embeddings at unit length, so 0 to 2."""

    ids: pa.Array
    """Ids of the rows, or their positions."""

    id_name: str
    n_described: int
    """Rows that the descriptions rest on."""

    agreement: float | None
    """How alike two halves of the table are grouped, 1 for equally, 0 for chance; None of HDBSCAN."""

    scores: tuple[tuple[int, float], ...]
    """Numbers of clusters that were tried, and their agreement; empty if the number was given."""

    partition: Partition = field(repr=False)
    model: RowModel = field(repr=False)

    @property
    def n_noise(self) -> int:
        return int((self.labels == NOISE).sum())

    @property
    def descriptions(self) -> list[str]:
        """What sets each cluster apart, in words."""
        return [cluster.description for cluster in self.clusters]

    @cached_property
    def verdict(self) -> str:
        """How many clusters there are, and what they are worth, in a sentence or two."""
        told = f"{counted(len(self.clusters), 'cluster')} of {counted(len(self.labels), 'row')}"
        if self.method == "hdbscan":
            alone = f"; {counted(self.n_noise, 'row')} ({percent(self.n_noise / len(self.labels))}) in none."
            return told + alone
        if self.scores:
            told += f", the number chosen from {self.scores[0][0]} to {self.scores[-1][0]}"
        if self.agreement is None:
            return f"{told}."
        told += f" (agreement of halves {self.agreement:.2f}). "
        if self.agreement >= STABLE:
            return told + "Other rows of this table would be grouped in the same way."
        if self.agreement >= PARTLY_STABLE:
            return told + "Other rows of this table would be grouped much the same way, but for many between clusters."
        return told + "Other rows of this table would be grouped otherwise: it is cut, rather than made of groups."

    def table(self) -> pa.Table:
        """A row per row of the table: its id, `cluster`, and `distance` to the centre, null where there is none."""
        return _as_table(self.ids, self.id_name, self.labels, self.distance)

    def assign(self, table: Any) -> pa.Table:
        """The same for other rows: to which of these clusters each belongs."""
        rows = _Rows.read(self.model, table, lambda n_rows: None)
        return _as_table(rows.ids, rows.id_name, *self.partition.assign(rows.points))

    def to_json(self) -> dict[str, Any]:
        """JSON-safe values, but for ids that JSON lacks a type for; all but the clusters of the single rows."""
        clusters = [{**dataclasses.asdict(one), "description": one.description} for one in self.clusters]
        return {
            "name": self.name,
            "method": self.method,
            "n_rows": len(self.labels),
            "n_clusters": len(self.clusters),
            "n_noise": self.n_noise,
            "n_described": self.n_described,
            "agreement": self.agreement,
            "scores": [{"k": k, "agreement": score} for k, score in self.scores],
            "verdict": self.verdict,
            "clusters": clusters,
        }


@dataclass(frozen=True)
class _Rows:
    """All rows of a table as points."""

    source: TableSource
    points: Points
    content: Int64[np.ndarray, " N"]
    ids: pa.Array
    id_name: str

    @classmethod
    def read(cls, model: RowModel, table: Any, progress: Callable[[int], None]) -> _Rows:
        source = table if isinstance(table, TableSource) else open_table(table)
        model.preprocessor.align(source.arrow_schema, name=source.name)
        if source.id_column in ("cluster", "distance"):
            raise TableError(
                f"the id column must not be named like an output column, got {source.id_column!r}; rename it."
            )
        if source.n_rows == 0:
            raise TableError(f"{source.name} must have rows to cluster, found none.")
        points, content, ids = [], [], []
        for batch in source.batches(batch_rows=BATCH_ROWS):
            cells = model.preprocessor.transform(batch)
            points.append(unit(model.embed_cells(cells)))
            content.append(cells.content_hash().numpy())
            ids.append(pa.array(batch.rows) if batch.ids is None else batch.ids)
            progress(len(batch))
        named = pa.chunked_array(ids).combine_chunks()
        return cls(source, np.concatenate(points), np.concatenate(content), named, source.id_column or "row_id")


def cluster(
    model: RowModel,
    table: Any,
    *,
    k: int | Literal["auto"] = "auto",
    method: Method = "kmeans",
    min_size: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] = lambda n_rows: None,
) -> Clusters:
    """Group the rows of a table by their embeddings, and tell what sets each group apart.

    Parameters
    ----------
    table
        Anything `open_table` reads, with the model's columns.
    k
        Number of clusters of k-means, 2 or more; `"auto"` takes the one on which halves of the table agree the most
        (see `tabmoco.evaluation.cluster_partition.choose_k`). Halves may agree on a coarse division though there is a
        finer one too: `Clusters.scores` has the others.
    method
        `"kmeans"`, which puts every row into a cluster, or `"hdbscan"`, which leaves out rows where few others are, and
        finds the number by itself.
    min_size
        Fewest rows of a cluster of HDBSCAN; a hundredth of the rows by default, at least 5.
    progress
        Is told the number of rows just read.

    Raises
    ------
    TabmocoError
        If the table lacks columns or has no two different rows, or a setting is out of range.
    """
    _check(k, method, min_size)
    rows = _Rows.read(model, table, progress)
    n_distinct = len(np.unique(rows.content))
    if n_distinct < 2:
        raise TableError(
            f"{rows.source.name} must have two different rows or more to cluster, found "
            f"{counted(len(rows.points), 'row')} alike; pass more rows."
        )
    order = own_order(rows.content, seed)
    points = rows.points[order]
    agreed: float | None = None
    scores: tuple[tuple[int, float], ...] = ()
    if method == "hdbscan":
        usual = max(SMALLEST, round(SMALLEST_SHARE * len(points)))
        partition = by_hdbscan(points, usual if min_size is None else min_size)
    else:
        if k == "auto":
            k, scores = choose_k(points, [n for n in KS if n < n_distinct] or [2], seed=seed)
            agreed = dict(scores)[k]
        partition = by_kmeans(points, min(k, n_distinct), seed=seed)
        if len(partition.centres) < k:
            warn(
                f"{rows.source.name} has {counted(n_distinct, 'different row')}, so there are "
                f"{counted(len(partition.centres), 'cluster')}, not k={k}."
            )
        agreed = agreement(points, k, seed=seed) if agreed is None else agreed
    label, distance = partition.assign(rows.points)
    described = np.sort(order[:DESCRIBED_ROWS])
    raw = rows.source.take(described).table
    told = traits(model.schema.used, raw, label[described], len(partition.centres))
    return Clusters(
        name=rows.source.name.rpartition("/")[2],
        method=method,
        clusters=tuple(
            Cluster(
                number=number,
                n_rows=int((label == number).sum()),
                share=float((label == number).mean()),
                typical=_typical(rows, label == number, distance),
                traits=found,
            )
            for number, found in enumerate(told)
        ),
        labels=label,
        distance=distance,
        ids=rows.ids,
        id_name=rows.id_name,
        n_described=len(described),
        agreement=agreed,
        scores=scores,
        partition=partition,
        model=model,
    )


def _check(k: Any, method: str, min_size: int | None) -> None:
    if method not in ("kmeans", "hdbscan"):
        raise ConfigError(f"method must be kmeans or hdbscan, got {method!r}.")
    if k != "auto" and (isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 2):
        raise ConfigError(f"k must be auto or a whole number from 2 on, got {k!r}.")
    if k != "auto" and method == "hdbscan":
        raise ConfigError(f"hdbscan finds the number of clusters by itself, got k={k}; leave k out or set min_size.")
    if min_size is not None and method == "kmeans":
        raise ConfigError(f"min_size belongs to hdbscan, got min_size={min_size} with kmeans; leave it out.")
    if min_size is not None and min_size < 2:
        raise ConfigError(f"min_size must be at least 2, got min_size={min_size}.")


def _typical(rows: _Rows, inside: np.ndarray, distance: Float64[np.ndarray, " N"]) -> tuple[Any, ...]:
    """Ids of different rows nearest to the centre."""
    place = np.flatnonzero(inside)
    place = place[np.argsort(distance[place], kind="stable")]
    first = np.sort(np.unique(rows.content[place], return_index=True)[1])[:N_TYPICAL]
    return tuple(rows.ids.take(pa.array(place[first])).to_pylist())


def _as_table(
    ids: pa.Array, id_name: str, label: Int64[np.ndarray, " N"], distance: Float64[np.ndarray, " N"]
) -> pa.Table:
    return pa.table({id_name: ids, "cluster": label, "distance": pa.array(distance, mask=np.isnan(distance))})
