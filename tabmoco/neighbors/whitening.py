"""Coordinates in which all directions of the data are equally wide, so that what is rare in combination is far away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from sklearn.covariance import ledoit_wolf_shrinkage

RIDGE = 0.01
"""Variance added in every direction: none is stretched more than tenfold."""

MOST_TURNED = 3_200
"""Wider spaces are only scaled, coordinate by coordinate; turning them would take minutes."""


@dataclass(frozen=True)
class Whitening:
    """An affine map after which reference rows have about unit covariance: Euclidean distances become Mahalanobis's."""

    mean: Float[np.ndarray, " W"]

    matrix: Float[np.ndarray, "W W"] | Float[np.ndarray, "W 1"]
    """What centred rows are multiplied by; one factor per coordinate if the space is not turned."""

    @classmethod
    def fit(cls, vectors: Float[np.ndarray, "n W"]) -> Whitening:
        """Measure mean and covariance of reference rows, the covariance shrunk towards a sphere where there are few
        rows (Ledoit and Wolf, "A well-conditioned estimator for large-dimensional covariance matrices", 2004)."""
        mean = vectors.mean(0, dtype=np.float64)
        centred, (n_rows, width) = vectors - mean, vectors.shape
        if width > MOST_TURNED:
            factor = 1 / np.sqrt(np.square(centred).mean(0) + RIDGE)
            return cls(mean.astype(np.float32), factor[:, None].astype(np.float32))
        if n_rows < width:
            _, singular, direction = np.linalg.svd(centred, full_matrices=False)
            variance, direction = np.square(singular) / n_rows, direction.T
        else:
            variance, direction = np.linalg.eigh(centred.T @ centred / n_rows)
        shrinkage = float(ledoit_wolf_shrinkage(centred, assume_centered=True)) if n_rows > 1 else 0.0
        least = shrinkage * np.maximum(variance, 0.0).sum() / max(width, 1) + RIDGE
        stretch = 1 / np.sqrt((1 - shrinkage) * np.maximum(variance, 0.0) + least) - 1 / np.sqrt(least)
        matrix = (direction * stretch) @ direction.T + np.eye(width) / np.sqrt(least)
        return cls(mean.astype(np.float32), matrix.astype(np.float32))

    def __call__(self, vectors: Float[np.ndarray, "N W"]) -> Float[np.ndarray, "N W"]:
        centred = vectors - self.mean
        return centred @ self.matrix if self.is_turned else centred * self.matrix[:, 0]

    def relief(self, difference: Float[np.ndarray, "N W"]) -> Float[np.ndarray, "N W"]:
        """By how much the square of a difference in the new coordinates would shrink if one old coordinate took its
        best value, the others staying as they are.

        With the precision matrix P and a difference d that is `(P d)_j² / P_jj`.
        """
        if not self.is_turned:
            return np.square(difference)
        precision = np.square(self.matrix).sum(1)
        return np.square(difference @ self.matrix.T) / np.maximum(precision, 1e-12)

    @property
    def is_turned(self) -> bool:
        return self.matrix.shape[1] == len(self.matrix) and len(self.matrix) > 1
