"""Two scalings of a number: its z-score, compressed far out, and its quantile-normal score."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from scipy.special import ndtri
from torch import Tensor

LINEAR_LIMIT = 100.0
"""z-scores keep their value up to here and grow by their logarithm beyond."""

INFINITE_SCORE = 2_000.0
"""z-score of infinity: above that of any finite float64, which stays below 1,600."""

MOST_NORMAL_SCORE = 3.3
"""Quantile-normal scores end here, at about one row in 2,000."""

CLIP_SPREADS = 10.0
"""Values further than this many 1-to-99 % spreads outside these quantiles are clipped before mean and scale."""


def location_and_scale(values: Float64[np.ndarray, " N"]) -> tuple[float, float]:
    """Mean and standard deviation that a few absurd values cannot destroy; scale 0 means all values are equal.

    Parameters
    ----------
    values
        Finite values of one column; may be empty, which gives ``(0.0, 0.0)``.
    """
    if len(values) == 0:
        return 0.0, 0.0
    low, high = np.quantile(values, [0.01, 0.99], method="nearest")
    if low == high:  # mostly one value: the others decide what is ordinary
        others = values[values != low]
        if len(others) == 0:
            return float(low), 0.0
        low_other, high_other = np.quantile(others, [0.05, 0.95], method="nearest")
        low, high = min(low, low_other), max(high, high_other)
    with np.errstate(over="ignore"):
        reach = CLIP_SPREADS * (high - low)
        clipped = np.clip(values, low - reach, high + reach)
    unit = float(np.abs(clipped).max()) or 1.0
    clipped = clipped / unit  # so that no square overflows or vanishes
    return float(clipped.mean() * unit), float(clipped.std() * unit)


def standardise(values: Float64[np.ndarray, " N"], location: float, scale: float) -> Float32[np.ndarray, " N"]:
    """z-scores of values without NaN; finite and in the order of the values, infinities included.

    Beyond ``LINEAR_LIMIT`` = 100 the score is ``±(100 + log1p(|z| - 100))``.
    """
    scale = scale or 1.0
    with np.errstate(over="ignore"):
        z = (values - location) / scale
    far = np.abs(z) > LINEAR_LIMIT
    if far.any():
        outliers = values[far]
        size = np.abs(z[far])
        halved = outliers / 2 - location / 2  # the difference itself may exceed float64
        with np.errstate(over="ignore"):
            log_size = np.log(np.abs(halved)) + np.log(2.0) - np.log(scale)
        beyond = np.where(np.isfinite(size), np.log1p(size - LINEAR_LIMIT), log_size)
        z[far] = np.sign(halved) * np.where(np.isinf(outliers), INFINITE_SCORE, LINEAR_LIMIT + beyond)
    return z.astype(np.float32) + np.float32(0)  # turns -0.0 into 0.0


def unstandardise(z: float, location: float, scale: float) -> float:
    """The value a z-score came from, up to float32 rounding; infinite where the score says so."""
    if abs(z) > LINEAR_LIMIT:
        if abs(z) >= INFINITE_SCORE:
            return float(np.copysign(np.inf, z))
        with np.errstate(over="ignore"):
            log_z = np.logaddexp(abs(z) - LINEAR_LIMIT, np.log(LINEAR_LIMIT - 1))
            size = np.exp(log_z + np.log(scale or 1.0))
        return float(np.clip(np.copysign(size, z) + location, -np.finfo(np.float64).max, np.finfo(np.float64).max))
    return z * (scale or 1.0) + location


def fit_knots(values: Float32[np.ndarray, " N"], n_knots: int) -> tuple[np.ndarray, np.ndarray]:
    """Knots of the quantile-normal score of one slot, and their scores.

    The score of a knot is the normal quantile of its mid-rank, ``(rows below + half of the rows equal) / N``. With at
    most `n_knots` distinct values the knots are these values, else they are observed quantiles.

    Returns
    -------
    Two float32 arrays ``[n_knots]``; shorter lists are padded with their last element.
    """
    if len(values) == 0:
        return np.zeros(n_knots, np.float32), np.zeros(n_knots, np.float32)
    ordered = np.sort(values)
    knots = _distinct(ordered)
    if len(knots) > n_knots:
        positions = np.round(np.linspace(0, len(ordered) - 1, n_knots)).astype(np.int64)
        knots = _distinct(ordered[positions])
    ranks = (np.searchsorted(ordered, knots, "left") + np.searchsorted(ordered, knots, "right")) / (2 * len(ordered))
    scores = np.clip(ndtri(ranks), -MOST_NORMAL_SCORE, MOST_NORMAL_SCORE).astype(np.float32) + np.float32(0.0)
    return _pad(knots.astype(np.float32), n_knots), _pad(scores, n_knots)


def _distinct(ordered: np.ndarray) -> np.ndarray:
    return ordered[np.append(True, ordered[1:] != ordered[:-1])]


def _pad(values: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([values, np.repeat(values[-1:], length - len(values))])


def normal_scores(
    number: Float[Tensor, "N Sn"], knots: Float[Tensor, "Sn Q"], knot_scores: Float[Tensor, "Sn Q"]
) -> Float[Tensor, "N Sn"]:
    """Quantile-normal score of each number: linear between knots, flat beyond the first and the last.

    A slot whose knots are all equal scores 0 everywhere.
    """
    columns = number.T.contiguous()
    last = knots.shape[1] - 1
    upper = torch.searchsorted(knots, columns, right=True).clamp(1, last)
    lower = upper - 1
    left, right = knots.gather(1, lower), knots.gather(1, upper)
    span = right - left
    weight = torch.where(span > 0, (columns - left) / span.clamp_min(torch.finfo(span.dtype).tiny), 1.0).clamp(0, 1)
    low, high = knot_scores.gather(1, lower), knot_scores.gather(1, upper)
    return torch.lerp(low, high, weight).T
