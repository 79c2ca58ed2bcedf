"""The rows that new rows are compared with: one index per space, the forests, how rare levels are, the
calibration, and the rows' names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Int64

from tabmoco.neighbors.anomaly import Calibration, PieceScale
from tabmoco.neighbors.forest import OutsideForest
from tabmoco.neighbors.index import NO_NEIGHBOUR, RowIndex
from tabmoco.neighbors.known_times import KnownTimes
from tabmoco.neighbors.landmarks import Landmarks
from tabmoco.neighbors.rarity import Rarity
from tabmoco.neighbors.whitening import Whitening

DISTANCE_SPACES = ("cells", "whitened")
"""Spaces whose distance to the nearest reference rows is a piece of evidence: the standardised cells themselves, and
the cells in both scalings, whitened."""

FOREST_VECTORS = {"forest": "traits", "residual": "residual"}
"""What the forests split on: the cells' traits, and what the decoder expected instead of the cells."""

WEIGHTS = {"cells": 1.0, "whitened": 1.0, "far": 1.1, "forest": 1.25, "residual": 0.75, "rarity": 0.85}
"""Weight of each piece of evidence, one choice for all tables (benchmarks/LOG.md)."""

UNFITTED = ("cells", "far", "forest")
"""Pieces that say the same of a reference row as of a new one. The others were fitted to the reference rows, so that
only rows kept out can calibrate them: without such rows they do not count."""

BULK = ("far",)
"""The piece that a few alike rows cannot hide from: all that counts where anomalies are among the reference rows."""

SEARCH_SPACE = "direction"
"""The embedding at unit length: where similar rows are searched."""

MAX_MEASURED = 2_000
"""Reference rows, each compared with the others, that calibrate where no rows were kept out of training."""


def counted_pieces(*, contaminated: bool, held_out: bool, decoded: bool, coded: bool) -> list[str]:
    """Which pieces of evidence count: whether anomalies are among the reference rows, whether rows were kept out of
    training, whether a decoder says what it expected instead of the cells, and whether levels were counted."""
    counted = BULK if contaminated else WEIGHTS if held_out else UNFITTED
    return [name for name in counted if {"residual": decoded, "rarity": coded}.get(name, True)]


@dataclass(frozen=True)
class Points:
    """Where `N` rows lie in every space."""

    vectors: Mapping[str, Float[np.ndarray, "N _"]]
    """`cells`, standardised; `both`, the cells in both scalings; `traits` for the forest; `ranks` of codes;
    `direction` for search; and `residual`, if there is a decoder."""

    content: Int64[np.ndarray, " N"]
    """Content hash of each row's cells."""

    def __len__(self) -> int:
        return len(self.content)

    def __getitem__(self, rows: np.ndarray | slice) -> Points:
        return Points({name: vectors[rows] for name, vectors in self.vectors.items()}, self.content[rows])

    @staticmethod
    def cat(parts: list[Points]) -> Points:
        vectors = {name: np.concatenate([part.vectors[name] for part in parts]) for name in parts[0].vectors}
        return Points(vectors, np.concatenate([part.content for part in parts]))


@dataclass(frozen=True)
class Evidence:
    """What speaks for a row being strange, before calibration."""

    pieces: dict[str, Float[np.ndarray, " N"]]

    neighbours: dict[str, Int64[np.ndarray, "N k"]]
    """The nearest reference rows in each space, to see in which cells they differ."""

    twin: Int64[np.ndarray, " N"]
    """Place in the reference of each row's exact twin, or `NO_NEIGHBOUR`."""

    def __getitem__(self, rows: np.ndarray) -> Evidence:
        return Evidence(
            {name: values[rows] for name, values in self.pieces.items()},
            {name: found[rows] for name, found in self.neighbours.items()},
            self.twin[rows],
        )


@dataclass(frozen=True)
class Reference:
    """Indexed reference rows with their calibration.

    No row is compared with its exact twin: otherwise a reference row scored again would be compared with itself and
    never be strange. Only one twin is left out, so a row with several copies is still an ordinary one.
    """

    indexes: Mapping[str, RowIndex]

    whitening: Whitening

    forests: Mapping[str, OutsideForest]

    n_neighbors: int

    ids: pa.Array | None
    """The id column's value of each indexed row, in the order of `rows`."""

    calibration: Calibration

    usual_blame: Mapping[str, Float[np.ndarray, " C"]] = field(default_factory=dict)
    """Mean blame of each column for each piece among reference rows: what a cell is blamed for whatever it holds."""

    expected_error: Float[np.ndarray, "Sn 2"] = field(default_factory=lambda: np.zeros((0, 2), np.float32))
    """Within which range of the expected value, tempered, nine in ten numbers of reference rows lie."""

    rarity: Rarity | None = None
    """How rare the levels of codes are, if there are codes and rows that calibrate it."""

    known_times: KnownTimes | None = None
    """Until when times are known, if the table has any; what is behind that counts as known for a while."""

    held_out: RowIndex | None = None
    """The rows kept out of training, as the cells they are: a later update calibrates on them again."""

    @classmethod
    def build(
        cls,
        points: Points,
        rows: Int64[np.ndarray, " n"],
        held_out: Points | None,
        outside: Points,
        origin: Int64[np.ndarray, " m"],
        *,
        n_neighbors: int,
        n_ranks: int,
        ids: pa.Array | None,
        seed: int,
        contaminated: bool = False,
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
        outside, origin
            Rows made to lie outside the data, for the forests, and the place of the reference row each was made from.
        n_ranks
            Ranks that codes may have, 0 for missing among them.
        ids
            Names of the rows of the search index.
        contaminated
            Whether anomalies are among the rows: then no more than the distance to their bulk counts.
        search_index
            Where similar rows are searched, if that is to hold more rows than `rows`.
        """
        ranks = points.vectors.get("ranks")
        counted = counted_pieces(
            contaminated=contaminated,
            held_out=held_out is not None,
            decoded="residual" in points.vectors,
            coded=ranks is not None and ranks.shape[1] > 0,
        )
        unmeasured = {name: PieceScale.measure(np.empty(0), weight=WEIGHTS[name]) for name in counted}
        measured = np.arange(len(points))
        if len(measured) > MAX_MEASURED:
            measured = np.sort(np.random.default_rng(seed).choice(len(points), MAX_MEASURED, replace=False))
        few = points[measured]
        forests = {
            name: OutsideForest.grow(points.vectors[vectors], outside.vectors[vectors], origin, seed=seed)
            for name, vectors in FOREST_VECTORS.items()
            if name in counted
        }
        whitening = Whitening.fit(points.vectors["both"])
        rarity = Rarity.fit(ranks, n_ranks) if ranks is not None and "rarity" in counted else None
        calibration = Calibration(unmeasured, np.empty(0), held_out is not None)
        bare = cls({}, whitening, forests, n_neighbors, ids, calibration, rarity=rarity)
        spaces = DISTANCE_SPACES if search_index is not None else (*DISTANCE_SPACES, SEARCH_SPACE)
        indexes = {
            name: RowIndex.build(bare.vectors(points, name), rows, content=points.content, seed=seed) for name in spaces
        }
        if search_index is not None:
            indexes[SEARCH_SPACE] = search_index
        bare = dataclasses.replace(bare, indexes=indexes)
        pieces = bare.evidence(few if held_out is None else held_out).pieces
        scales = {name: PieceScale.measure(values, weight=WEIGHTS[name]) for name, values in pieces.items()}
        calibration = Calibration(scales, np.empty(0), held_out is not None)
        scores = calibration.score(pieces)
        return dataclasses.replace(bare, calibration=dataclasses.replace(calibration, scores=np.sort(scores)))

    @property
    def rows(self) -> Int64[np.ndarray, " n"]:
        """The rows that can be found by search."""
        return self.indexes[SEARCH_SPACE].rows

    @property
    def spaces(self) -> list[str]:
        """Spaces whose distance to the nearest reference rows counts."""
        return [name for name in DISTANCE_SPACES if name in self.calibration.scales]

    def __len__(self) -> int:
        return len(self.rows)

    def vectors(self, points: Points, space: str) -> Float[np.ndarray, "N _"]:
        """Where rows lie in a space."""
        return self.whitening(points.vectors["both"]) if space == "whitened" else points.vectors[space]

    def nearest(self, points: Points, space: str, k: int) -> tuple[Float[np.ndarray, "N k"], Int64[np.ndarray, "N k"]]:
        """Distances and rows of the `k` nearest reference rows in a space, apart from one exact twin."""
        index = self.indexes[space]
        k = min(k, max(1, len(index)))  # there are no more, however many are asked for
        return index.search(self.vectors(points, space), k, exclude=index.twins(points.content))

    @cached_property
    def landmarks(self) -> Landmarks:
        """Where the bulk of the reference rows lies."""
        return Landmarks.of(self.indexes["cells"].vectors)

    def evidence(self, points: Points) -> Evidence:
        """Mean distance to the nearest reference rows in each space and to their bulk, and the forests' votes, all
        apart from one exact twin; and the surprise of the rarest level."""
        pieces, neighbours = {}, {}
        for name in DISTANCE_SPACES:
            if name != "cells" and name not in self.spaces:
                continue
            distance, neighbours[name] = self.nearest(points, name, self.n_neighbors)
            if name in self.spaces:
                found = np.isfinite(distance)
                n_found = np.maximum(found.sum(1), 1)
                pieces[name] = np.where(found, distance, 0).sum(1, dtype=np.float64) / n_found
        index = self.indexes["cells"]
        twin = index.twins(points.content)
        twin = np.where(twin == NO_NEIGHBOUR, NO_NEIGHBOUR, index.places_of(twin))
        pieces["far"] = self.landmarks.distance(points.vectors["cells"], twin)
        for name, forest in self.forests.items():
            pieces[name] = forest.evidence(points.vectors[FOREST_VECTORS[name]], twin)
        if self.rarity is not None:
            pieces["rarity"] = self.rarity(points.vectors["ranks"])
        return Evidence(pieces, neighbours, twin)

    def differences(
        self, points: Points, space: str, neighbours: Int64[np.ndarray, "N k"]
    ) -> Iterator[tuple[Float[np.ndarray, "N _"], Bool[np.ndarray, " N"]]]:
        """Coordinate by coordinate, how far rows are from their nearest neighbour, their second nearest, and so on,
        and which rows have one."""
        own = self.vectors(points, space)
        for column in neighbours.T:
            yield own - self.indexes[space].vectors_of(column), column != NO_NEIGHBOUR

    def names(self, rows: Int64[np.ndarray, " N"]) -> pa.Array:
        """The ids of reference rows, or their positions where the table has no id column; null for no row."""
        missing = rows == NO_NEIGHBOUR
        if self.ids is None:
            return pa.array(rows, mask=missing)
        return self.ids.take(pa.array(self.indexes[SEARCH_SPACE].places_of(rows), mask=missing))
