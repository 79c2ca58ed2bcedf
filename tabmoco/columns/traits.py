"""Some cells of a column as one vector of traits: types, gaps, lengths, letters, digits, magnitudes, frequencies.

The order of the cells does not count, nor does how many rows the table has beyond those looked at.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Float64, Int64

from tabmoco.columns.values import LOOKS, Values

SAMPLE_ROWS = 500
"""Rows of a table that its columns are judged by."""

N_TOP = 6
"""Most frequent values whose shares are told, one by one."""

LEVELS = (0.0, 0.02, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.98, 1.0)
"""Quantiles of the numbers."""

_FIGURES = (
    "missing",
    "distinct",
    "distinct logarithm",
    "evenness",
    "single",
    *(f"top {place}" for place in range(N_TOP)),
    *(f"quantile {level:g}" for level in LEVELS),
    "spread",
    "lopsidedness",
    "relative spread",
    "density",
    "grid",
)
FIGURES = {name: place for place, name in enumerate(_FIGURES)}
"""Places of what is told of the cells together."""

N_TRAITS = len(FIGURES) + len(LOOKS)


def traits(values: Values, rows: Int64[np.ndarray, " n"] | None = None) -> Float32[np.ndarray, " T"]:
    """What the cells at some rows are like, of all rows by default: figures of them together, then the root of the mean
    look of those that are not missing. All finite; only figures of numbers may be below 0."""
    code = values.code if rows is None else values.code[rows]
    present = code[code >= 0]
    found = np.zeros(N_TRAITS, dtype=np.float32)
    figures, look = found[: len(FIGURES)], found[len(FIGURES) :]
    figures[FIGURES["missing"]] = 1 - len(present) / max(1, len(code))
    if not len(present):
        return found
    count = np.bincount(present, minlength=values.n_distinct)
    used = np.flatnonzero(count)
    share = count[used] / len(present)
    look[:] = np.sqrt(share.astype(np.float32) @ values.look[used])
    _frequencies(share, len(present), figures)
    number = values.number[used]
    is_number = ~np.isnan(number)
    if is_number.any():
        _magnitudes(number[is_number], count[used][is_number], figures)
    return found


def _frequencies(share: Float64[np.ndarray, " u"], n_cells: int, figures: Float32[np.ndarray, " F"]) -> None:
    """How often values repeat: the spectrum of the frequencies."""
    n_distinct = len(share)
    figures[FIGURES["distinct"]] = n_distinct / n_cells
    figures[FIGURES["distinct logarithm"]] = np.log(n_distinct)
    entropy = -(share * np.log(share)).sum()
    figures[FIGURES["evenness"]] = entropy / np.log(n_distinct) if n_distinct > 1 else 0.0
    figures[FIGURES["single"]] = share[share * n_cells < 1.5].sum()
    top = np.sort(share)[::-1][:N_TOP]
    start = FIGURES["top 0"]
    figures[start : start + len(top)] = top


def _magnitudes(
    number: Float64[np.ndarray, " u"], count: Int64[np.ndarray, " u"], figures: Float32[np.ndarray, " F"]
) -> None:
    """Quantiles and spread of `sign(x) log(1 + |x|)`, and how the distinct numbers lie."""
    order = np.argsort(number)
    number, count = number[order], count[order]
    squeezed = np.sign(number) * np.log1p(np.abs(number))
    rank = np.cumsum(count)
    start = FIGURES["quantile 0"]
    place = np.searchsorted(rank, np.array(LEVELS) * (rank[-1] - 1), side="right")
    figures[start : start + len(LEVELS)] = squeezed[place]
    mean = np.average(squeezed, weights=count)
    spread = np.sqrt(np.average((squeezed - mean) ** 2, weights=count))
    figures[FIGURES["spread"]] = spread
    figures[FIGURES["relative spread"]] = spread / (1 + abs(mean))
    if spread > 0:
        figures[FIGURES["lopsidedness"]] = np.clip(np.average(((squeezed - mean) / spread) ** 3, weights=count), -9, 9)
    if len(number) > 1:
        with np.errstate(over="ignore"):
            gap, extent = np.diff(number), number[-1] - number[0]
        figures[FIGURES["density"]] = min(1.0, len(number) / (extent + 1)) if np.isfinite(extent) else 0.0
        figures[FIGURES["grid"]] = np.mean(gap < 1.5 * gap.min())
