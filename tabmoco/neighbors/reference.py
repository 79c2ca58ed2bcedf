"""The rows that new rows are compared with: one index per space, the calibration, and the rows' names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int64

from tabmoco.neighbors.anomaly import Calibration, PieceScale
from tabmoco.neighbors.index import NO_NEIGHBOUR, RowIndex

DISTANCE_SPACES = ("cells", "joint")
"""Spaces whose distance to the nearest reference rows is a piece of evidence: the standardised cells themselves, and
the residual beside the embedding."""

JOINED = ("residual", "embedding")
"""Parts of the joint space, in its order, each divided by its mean distance between neighbours."""

WEIGHTS = {"cells": 1.0, "joint": 0.5, "surprise": 0.25}
"""Weight of each piece of evidence. On tables of numbers the cells alone are the strongest of the three and surprise
the weakest; where columns depend on one another only the two others see cells that contradict each other."""

SEARCH_SPACE = "direction"
"""The embedding at unit length: where similar rows are searched."""

MAX_MEASURED = 2_000
"""Reference rows on which the pieces' scales are measured, each compared with the others."""


@dataclass(frozen=True)
class Points:
    """What the model says of `N` rows: their vectors in every space and how surprising each cell is."""

    vectors: Mapping[str, Float[np.ndarray, "N _"]]

    surprise: Float[np.ndarray, "N C"]

    content: Int64[np.ndarray, " N"]
    """Content hash of each row's cells."""

    def __len__(self) -> int:
        return len(self.surprise)

    def __getitem__(self, rows: np.ndarray | slice) -> Points:
        vectors = {name: vectors[rows] for name, vectors in self.vectors.items()}
        return Points(vectors, self.surprise[rows], self.content[rows])

    @staticmethod
    def cat(parts: list[Points]) -> Points:
        names = parts[0].vectors
        return Points(
            {name: np.concatenate([part.vectors[name] for part in parts]) for name in names},
            np.concatenate([part.surprise for part in parts]),
            np.concatenate([part.content for part in parts]),
        )


@dataclass(frozen=True)
class Evidence:
    """What speaks for a row being strange, before calibration."""

    pieces: dict[str, Float[np.ndarray, " N"]]

    neighbours: dict[str, Int64[np.ndarray, "N k"]]
    """The nearest reference rows in each space, to see in which cells they differ."""


@dataclass(frozen=True)
class Reference:
    """Indexed reference rows with their calibration.

    No row is compared with its exact twin: otherwise a reference row scored again would be compared with itself and
    never be strange. Only one twin is left out, so a row with several copies is still an ordinary one.
    """

    indexes: Mapping[str, RowIndex]

    joint_scale: Mapping[str, float]
    """Mean distance between neighbours in each part of the joint space."""

    n_neighbors: int

    ids: pa.Array | None
    """The id column's value of each indexed row, in the order of `rows`."""

    calibration: Calibration

    @classmethod
    def build(
        cls,
        points: Points,
        rows: Int64[np.ndarray, " n"],
        held_out: Points | None,
        *,
        n_neighbors: int,
        ids: pa.Array | None,
        seed: int,
        search_index: RowIndex | None = None,
    ) -> Reference:
        """Index the points of the reference rows and calibrate on rows kept out of training.

        Parameters
        ----------
        points, rows
            The rows that strangeness is measured against.
        held_out
            Rows kept out of training; without them the reference rows calibrate themselves, each compared with the
            others.
        ids
            Names of the rows of the search index.
        search_index
            Where similar rows are searched, if that is to hold more rows than `rows`.
        """
        measured = np.arange(len(points))
        if len(measured) > MAX_MEASURED:
            measured = np.sort(np.random.default_rng(seed).choice(len(points), MAX_MEASURED, replace=False))
        few = points[measured]
        scale = {name: _neighbour_distance(few.vectors[name]) for name in JOINED if name in few.vectors}
        bare = cls({}, scale, n_neighbors, ids, Calibration({}, np.empty(0), held_out is not None))
        spaces = DISTANCE_SPACES if search_index is not None else (*DISTANCE_SPACES, SEARCH_SPACE)
        indexes = {
            name: RowIndex.build(bare.vectors(points, name), rows, content=points.content, seed=seed) for name in spaces
        }
        if search_index is not None:
            indexes[SEARCH_SPACE] = search_index
        bare = dataclasses.replace(bare, indexes=indexes)
        own = bare.evidence(few).pieces
        scales = {name: PieceScale.measure(values, weight=WEIGHTS[name]) for name, values in own.items()}
        evidence = own if held_out is None else bare.evidence(held_out).pieces
        scores = sum(piece(evidence[name]) for name, piece in scales.items())
        return dataclasses.replace(bare, calibration=Calibration(scales, np.sort(scores), held_out is not None))

    @property
    def rows(self) -> Int64[np.ndarray, " n"]:
        """The rows that can be found by search."""
        return self.indexes[SEARCH_SPACE].rows

    def __len__(self) -> int:
        return len(self.rows)

    def vectors(self, points: Points, space: str) -> Float[np.ndarray, "N _"]:
        """Where rows lie in a space."""
        if space != "joint":
            return points.vectors[space]
        return np.concatenate([points.vectors[name] / np.float32(scale) for name, scale in self.joint_scale.items()], 1)

    def nearest(self, points: Points, space: str, k: int) -> tuple[Float[np.ndarray, "N k"], Int64[np.ndarray, "N k"]]:
        """Distances and rows of the `k` nearest reference rows in a space, apart from one exact twin."""
        index = self.indexes[space]
        return index.search(self.vectors(points, space), k, exclude=index.twins(points.content))

    def evidence(self, points: Points) -> Evidence:
        """Mean distance to the nearest reference rows in each space, and the surprise summed over the cells."""
        pieces, neighbours = {}, {}
        for name in DISTANCE_SPACES:
            distance, row = self.nearest(points, name, self.n_neighbors)
            found = np.isfinite(distance)
            n_found = np.maximum(found.sum(1), 1)
            pieces[name] = np.where(found, distance, 0).sum(1, dtype=np.float64) / n_found
            neighbours[name] = row
        pieces["surprise"] = points.surprise.sum(1, dtype=np.float64)
        return Evidence(pieces, neighbours)

    def difference(self, points: Points, space: str, neighbours: Int64[np.ndarray, "N k"]) -> Float[np.ndarray, "N _"]:
        """Root mean square difference, coordinate by coordinate, from the neighbours in a space."""
        own = self.vectors(points, space)
        square, n_found = np.zeros(own.shape), np.zeros((len(own), 1))
        for column in neighbours.T:
            found = (column != NO_NEIGHBOUR)[:, None]
            square += np.where(found, np.square(own - self.indexes[space].vectors_of(column), dtype=np.float64), 0.0)
            n_found += found
        return np.sqrt(square / np.maximum(n_found, 1))

    def names(self, rows: Int64[np.ndarray, " N"]) -> pa.Array:
        """The ids of reference rows, or their positions where the table has no id column; null for no row."""
        missing = rows == NO_NEIGHBOUR
        if self.ids is None:
            return pa.array(rows, mask=missing)
        return self.ids.take(pa.array(self.indexes[SEARCH_SPACE].places_of(rows), mask=missing))


def _neighbour_distance(vectors: Float[np.ndarray, "n d"]) -> float:
    """Mean distance of rows to their nearest other row; 1 where that is no distance at all."""
    places = np.arange(len(vectors))
    distance, _ = RowIndex(vectors, places).search(vectors, 1, exclude=places)
    found = distance[np.isfinite(distance)]
    mean = float(found.mean()) if found.size else 0.0
    return mean if mean > 1e-6 else 1.0
