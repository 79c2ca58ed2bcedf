"""How far rows lie from the bulk of the reference rows: evidence that a few alike rows cannot hide.

The nearest rows of an anomaly among the reference rows may be its own kind; a twentieth of the reference is not. The
distance is measured to landmarks, evenly spaced reference rows, which is much quicker than to all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64

N_LANDMARKS = 1_000

NEAR_SHARE = 0.05
"""Share of the landmarks, the nearest ones, to which a row's distance is measured."""

CHUNK_ROWS = 256
"""Rows whose distances are held at once; those of more would leave the processor's cache."""

TIE = 1e-9
"""Squared distances this near count as equal, absolutely and of their size: rounding must not choose among equals."""


@dataclass(frozen=True)
class Landmarks:
    """`L` of the reference rows, as points of a space."""

    vectors: Float[np.ndarray, "L W"]

    place: Int64[np.ndarray, " L"]
    """Where each stands among the reference rows."""

    @classmethod
    def of(cls, vectors: Float[np.ndarray, "n W"]) -> Landmarks:
        """Reference rows at even spaces, all where they are few."""
        n_rows = len(vectors)
        n_landmarks = min(n_rows, N_LANDMARKS)
        place = np.arange(n_landmarks) * n_rows // max(n_landmarks, 1)
        return cls(vectors[place].astype(np.float64), place)

    def distance(self, points: Float[np.ndarray, "N W"], twin: Int64[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Mean distance to the nearest landmarks apart from the row's twin, 0 if there is none.

        `twin` is each row's place among the reference rows, or -1.
        """
        distance = np.empty(len(points))
        for start in range(0, len(points), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            squared = self._squared(points[part], twin[part])
            near = self._near(squared)
            distance[part] = np.sqrt(np.where(near, squared, 0.0)).sum(1) / np.maximum(near.sum(1), 1)
        return distance

    def blame(self, points: Float[np.ndarray, "N W"], twin: Int64[np.ndarray, " N"]) -> Float[np.ndarray, "N W"]:
        """Mean squared difference from these landmarks in every coordinate."""
        near = self._near(self._squared(points, twin)).astype(np.float64)
        near /= np.maximum(near.sum(1, keepdims=True), 1)
        own = points.astype(np.float64)
        there = near.sum(1, keepdims=True)  # 0 where there is none
        difference = own**2 * there - 2 * own * (near @ self.vectors) + near @ self.vectors**2
        return np.maximum(difference, 0.0)

    def _squared(self, points: Float[np.ndarray, "N W"], twin: Int64[np.ndarray, " N"]) -> Float[np.ndarray, "N L"]:
        """Squared distances, float64, infinite to the row's twin."""
        own = points.astype(np.float64)
        product = own @ self.vectors.T
        squared = (own**2).sum(1)[:, None] - 2 * product + (self.vectors**2).sum(1)
        return np.where(twin[:, None] == self.place, np.inf, np.maximum(squared, 0.0))

    def _near(self, squared: Float[np.ndarray, "N L"]) -> Bool[np.ndarray, "N L"]:
        """Which landmarks are a row's nearest, all that are equally near as the last of them among them."""
        if not squared.size:
            return np.zeros(squared.shape, dtype=bool)
        last = max(1, round(NEAR_SHARE * len(self.place))) - 1
        limit = np.partition(squared, last, axis=1)[:, last, None]
        return (squared <= limit * (1 + TIE) + TIE) & np.isfinite(squared)
