"""How strange a row is: several pieces of evidence, calibrated, summed, and turned into a p-value.

Each piece is a number per row, larger for stranger rows: a distance to the nearest reference rows or to their bulk,
or how a forest votes. How usual such a number is, is measured on the calibration rows: the piece becomes the negative
logarithm of the share of them that have at least as much, and beyond their 90 % quantile grows like the logarithm of
the excess.

The anomaly score is the sum of the two largest pieces, each times its weight: hardly any anomaly shows in all of them,
and the ordinary ups and downs of those where it does not would drown it.

The p-value is conformal (Bates, Candès, Lei, Romano, Sesia, "Testing for outliers with conformal p-values", 2023,
equation 2): the share of calibration rows, kept out of training, that are at least as strange. Among rows like the
calibration rows it is uniform, whatever the score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

LEVELS = np.linspace(0.0, 0.9, 46)
"""Quantiles of a piece that are kept."""

MOST = 1e100
"""Larger numbers are no calibration's; with these nothing leaves float64."""

N_COUNTED = 2
"""Pieces that count, the largest of each row."""

TIE = 1e-6
"""Scores this near count as equal: a row scored alone or in a batch may differ in the last digits."""


@dataclass(frozen=True)
class PieceScale:
    """How a piece of evidence is spread among calibration rows, and its weight."""

    quantiles: tuple[float, ...]
    """Its quantiles at `LEVELS`."""

    excess: float
    """Mean by which the largest tenth exceed the last of them."""

    weight: float = 1.0

    @classmethod
    def measure(cls, values: Float[np.ndarray, " n"], *, weight: float = 1.0) -> PieceScale:
        """Measure on calibration rows."""
        finite = values[np.isfinite(values)].astype(np.float64)
        if not finite.size:
            return cls((0.0,) * len(LEVELS), 1.0, weight)
        quantiles = np.quantile(finite, LEVELS)
        beyond = finite[finite > quantiles[-1]] - quantiles[-1]
        floor = max(abs(quantiles[-1]) * 1e-2, 1e-6)  # a piece that hardly varies must not be blown up to noise
        excess = max(float(beyond.mean()) if beyond.size else 0.0, floor)
        return cls(tuple(quantiles.tolist()), excess, weight)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PieceScale:
        """The inverse of `dataclasses.asdict`, of JSON too."""
        quantiles = tuple(float(quantile) for quantile in values["quantiles"])
        return cls(quantiles, float(values["excess"]), float(values["weight"]))

    def is_sound(self) -> bool:
        """Whether it can turn any number into a finite one."""
        quantiles = np.asarray(self.quantiles)
        ascending = len(quantiles) == len(LEVELS) and bool((np.diff(quantiles) >= 0).all())
        numbers = np.abs([*quantiles, self.weight, 1 / self.excess if self.excess > 0 else np.inf])
        return ascending and bool((numbers <= MOST).all()) and self.excess < np.inf

    def __call__(self, values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        quantiles = np.asarray(self.quantiles)
        first = np.diff(quantiles, prepend=-np.inf) >= np.finfo(np.float64).tiny  # of equal ones the lowest level
        quantiles = quantiles[first]
        body = np.interp(values, quantiles, -np.log1p(-LEVELS[first]))
        beyond = np.maximum(values.astype(np.float64) - quantiles[-1], 0.0) / self.excess
        return self.weight * (body + np.log1p(beyond))


@dataclass(frozen=True)
class Calibration:
    """What turns evidence into scores and scores into p-values."""

    scales: Mapping[str, PieceScale]

    scores: Float[np.ndarray, " m"]
    """Anomaly scores of the calibration rows, ascending, float64."""

    held_out: bool
    """Whether the calibration rows were kept out of training."""

    def counted(self, evidence: Mapping[str, Float[np.ndarray, " N"]]) -> dict[str, Float[np.ndarray, " N"]]:
        """Each piece of evidence on its calibrated scale, 0 where it is not among its row's `N_COUNTED` largest."""
        pieces = np.stack([scale(evidence[name]) for name, scale in self.scales.items()])
        least = np.argsort(pieces, axis=0, kind="stable")[:-N_COUNTED]
        np.put_along_axis(pieces, least, 0.0, axis=0)
        return dict(zip(self.scales, pieces, strict=True))

    def score(self, evidence: Mapping[str, Float[np.ndarray, " N"]]) -> Float[np.ndarray, " N"]:
        """Anomaly scores, float64, 0 or more."""
        return np.sum(list(self.counted(evidence).values()), axis=0)

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


def false_discoveries_below(p_value: Float[np.ndarray, " N"], rate: float) -> Bool[np.ndarray, " N"]:
    """Which rows to flag so that among those flagged a share of at most `rate` is expected to be normal.

    Benjamini and Hochberg, "Controlling the False Discovery Rate", 1995, equation 1: the `i` smallest p-values, for the
    largest `i` whose p-value is at most `i · rate / N`. With conformal p-values the promise holds (Bates et al. 2023,
    theorem 2).
    """
    ascending = np.sort(p_value)
    allowed = np.arange(1, len(p_value) + 1) * rate / max(len(p_value), 1)
    kept = np.flatnonzero(ascending <= allowed + 1e-12)
    limit = ascending[kept[-1]] if kept.size else -1.0
    return p_value <= limit
