"""Reference rows that look like a pollution of the reference: few, near one another and far from all others.

Anomalies among the reference rows hide their likes: two of a kind are each other's neighbours, and a new one is
strange no more. No statistic of the rows tells such a reference from a clean one in general (benchmarks/LOG.md); what
can be told is a clump apart, as a failing sensor or an attack leaves one.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int64

FAR_SHARE = 0.1
"""A row in a clump is far from its neighbour at this share of the rows, and near to its nearest."""

FAR, NEAR = 2.0, 1.0
"""Above and below so many interquartile ranges over the median of all rows' logarithms of these distances."""

N_NEAREST = 2
MAX_MEASURED = 2_000

MIN_ROWS = 100
"""Fewer rows are too few to say anything of."""

SUSPECT_SHARE = 0.05
"""Share of rows in clumps from which on a reference is suspect. Of 22 public tables four have as many with their
anomalies (in two of them nothing but anomalies), one has without."""


def clumped_rows(
    vectors: Float[np.ndarray, "n W"], content: Int64[np.ndarray, " n"], *, seed: int
) -> tuple[float, Int64[np.ndarray, " m"]]:
    """Share of the rows that lie in clumps apart, and the places of those found, the farthest first.

    Exact copies count once, or a row recorded many times would be a clump. Of many rows a sample is measured.
    """
    distinct = np.sort(np.unique(content, return_index=True)[1])
    if len(distinct) < MIN_ROWS:
        return 0.0, np.empty(0, dtype=np.int64)
    measured = np.random.default_rng(seed).permutation(distinct)[:MAX_MEASURED]
    n_far = max(N_NEAREST + 1, round(FAR_SHARE * len(distinct)))
    others = torch.from_numpy(vectors[distinct]).float()
    near, far = [], []
    for part in torch.from_numpy(vectors[measured]).float().split(256):
        distance = torch.cdist(part, others).sort(dim=1).values[:, 1:]  # but for the row itself
        near.append(distance[:, :N_NEAREST].mean(1))
        far.append(distance[:, n_far - 1])
    spread_near, spread_far = _spread(torch.cat(near).numpy()), _spread(torch.cat(far).numpy())
    found = np.flatnonzero((spread_far > FAR) & (spread_near < NEAR))
    return len(found) / len(measured), measured[found[np.argsort(-spread_far[found], kind="stable")]]


def _spread(distance: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Logarithms of distances as interquartile ranges above their median."""
    logarithm = np.log(distance.astype(np.float64) + 1e-9)
    low, median, high = np.quantile(logarithm, [0.25, 0.5, 0.75])
    return (logarithm - median) / max(high - low, 1e-6)
