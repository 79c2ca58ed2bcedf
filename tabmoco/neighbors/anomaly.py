"""How strange a row is: several pieces of evidence, calibrated, summed, and turned into a p-value.

Each piece is a number per row, 0 or more, larger for stranger rows: a distance to the nearest reference rows in some
space, or how much the decoder was surprised. On reference rows its median and the way from there to its 90 % quantile
are measured; a row's piece is then `weight · log1p(softplus((value − median) / spread))`: positive, increasing, and
slow enough that no single piece drowns the others. The anomaly score is the sum of the pieces.

The p-value is conformal (Bates, Candès, Lei, Romano, Sesia, "Testing for outliers with conformal p-values", 2023,
equation 2): the share of calibration rows, kept out of training, that are at least as strange. Among rows like the
calibration rows it is uniform, whatever the score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

UPPER_QUANTILE = 0.9

TIE = 1e-6
"""Scores this near count as equal: a row scored alone or in a batch may differ in the last digits."""


@dataclass(frozen=True)
class PieceScale:
    """The median of a piece of evidence on reference rows, the distance to their 90 % quantile, and its weight."""

    median: float
    spread: float
    weight: float = 1.0

    @classmethod
    def measure(cls, values: Float[np.ndarray, " n"], *, weight: float = 1.0) -> PieceScale:
        """Measure on reference rows, each compared with the others."""
        finite = values[np.isfinite(values)]
        if not finite.size:
            return cls(0.0, 1.0, weight)
        median, upper = np.quantile(finite.astype(np.float64), [0.5, UPPER_QUANTILE])
        floor = max(abs(median) * 1e-2, 1e-6)  # a piece that hardly varies must not be blown up to noise
        return cls(float(median), float(max(upper - median, floor)), weight)

    def __call__(self, values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        excess = (values.astype(np.float64) - self.median) / self.spread
        return self.weight * np.log1p(np.logaddexp(0.0, excess))


@dataclass(frozen=True)
class Calibration:
    """What turns evidence into scores and scores into p-values."""

    scales: Mapping[str, PieceScale]

    scores: Float[np.ndarray, " m"]
    """Anomaly scores of the calibration rows, ascending, float64."""

    held_out: bool
    """Whether the calibration rows were kept out of training."""

    def pieces(self, evidence: Mapping[str, Float[np.ndarray, " N"]]) -> dict[str, Float[np.ndarray, " N"]]:
        """Each piece of evidence on its calibrated scale."""
        return {name: scale(evidence[name]) for name, scale in self.scales.items()}

    def p_value(self, anomaly_score: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Conformal p-value: `(1 + #{calibration scores ≥ score}) / (1 + m)`."""
        n_smaller = np.searchsorted(self.scores + TIE, anomaly_score, side="left")
        return (1.0 + len(self.scores) - n_smaller) / (1.0 + len(self.scores))

    def threshold(self, fpr: float) -> float:
        """The score from which on a row is flagged so that at most a share `fpr` of normal rows is.

        Infinite when there are too few calibration rows to promise so small a share.
        """
        n_allowed = int(np.floor(fpr * (1 + len(self.scores)) + 1e-9)) - 1  # p ≤ fpr ⇔ at most this many are as strange
        if n_allowed < 0:
            return float("inf")
        if n_allowed >= len(self.scores):
            return float("-inf")
        return float(np.nextafter(self.scores[len(self.scores) - 1 - n_allowed] + TIE, np.inf))


def share_of_cells(
    pieces: Mapping[str, Float[np.ndarray, " N"]], blame: Mapping[str, Float[np.ndarray, "N C"]]
) -> Float[np.ndarray, "N C"]:
    """Divide the score among the cells: contributions `[N, C]` that add up to the sum of the pieces.

    A piece is divided in proportion to `blame[piece]`, 0 or more; a piece without any blame is divided evenly.
    """
    contribution = np.zeros(next(iter(blame.values())).shape)
    for name, piece in pieces.items():
        weight = blame[name].astype(np.float64)
        total = weight.sum(1, keepdims=True)
        even = np.full_like(weight, 1 / max(1, weight.shape[1]))
        contribution += piece[:, None] * np.divide(weight, total, out=even, where=total > 0)
    return contribution
