"""Tests of whether two samples come from one distribution, each with a p-value and how far apart they are.

The effects share one scale: 0 is no difference, and a share ε of cells or rows that became different moves none of them
by more than about ε, however many rows there are. They bound the total variation distance from below.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from scipy import stats
from scipy.special import chdtrc, gammaln
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression

TIE = 2e-6
"""Numbers nearer than this, relative to the larger of 1 and their size, are equal: the same cell, encoded on another
device or in another batch, may differ in the last digits of float32."""

EXACT_PAIRS = 250_000
"""Up to so many pairs of an old and a new number the Kolmogorov-Smirnov p-value is exact."""

LEAST_EXPECTED = 10
"""Values of which fewer cells are expected on either side are pooled."""

EXACT_EXPECTED = 100
"""A two-by-two table that expects fewer in some cell has its p-value from Fisher's exact test."""

N_TREES = 100
N_HALF = 10
"""Rows of each side that half of the rows must hold for the classifier test."""

TEXT_BUCKETS = 2**12


def pooled_ranks(
    old: Float[np.ndarray, " n"], new: Float[np.ndarray, " m"]
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " m"]]:
    """Dense ranks among both samples together; numbers within `TIE` of the next smaller one share its rank."""
    pooled = np.concatenate([old, new]).astype(np.float64)
    order = np.argsort(pooled, kind="stable")
    ordered = pooled[order]
    is_next = np.diff(ordered, prepend=ordered[:1]) > TIE * np.maximum(1.0, np.abs(ordered))
    rank = np.empty(len(pooled), dtype=np.int64)
    rank[order] = np.cumsum(is_next)
    return rank[: len(old)], rank[len(old) :]


def kolmogorov_smirnov(old: Float[np.ndarray, " n"], new: Float[np.ndarray, " m"]) -> tuple[float, float]:
    """Largest difference of the shares of cells up to a number, 0 to 1, and its p-value; conservative with ties."""
    ranks = pooled_ranks(old, new)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # exact p-values that overflow are replaced by asymptotic ones
        method = "exact" if len(old) * len(new) <= EXACT_PAIRS else "asymp"
        found = stats.ks_2samp(*ranks, method=method)
    return float(found.statistic), float(np.clip(found.pvalue, 0.0, 1.0))


def common_levels(old: Int64[np.ndarray, " V"], new: Int64[np.ndarray, " V"]) -> Bool[np.ndarray, " V"]:
    """Which values are frequent enough to be told from all others, from their counts on both sides.

    Only the sum of both counts decides, so that a value is not kept for the very reason that it is frequent on one
    side.
    """
    n_old, n_new = int(old.sum()), int(new.sum())
    share = (old + new) / max(1, n_old + n_new)
    return share * min(n_old, n_new) >= LEAST_EXPECTED


def shares(
    old: Int64[np.ndarray, " V"], new: Int64[np.ndarray, " V"], *, n_old_other: int = 0, n_new_other: int = 0
) -> tuple[float, float] | None:
    """Total variation distance of two lists of counts, 0 to 1, and the p-value of the chi-squared test.

    Values that are rare in both, and the cells of `n_old_other` and `n_new_other`, are one value. None where fewer than
    two values are left.
    """
    kept = common_levels(np.append(old, n_old_other), np.append(new, n_new_other))[:-1]
    table = np.stack(
        [
            np.append(old[kept], old[~kept].sum() + n_old_other),
            np.append(new[kept], new[~kept].sum() + n_new_other),
        ]
    ).astype(np.int64)
    sides, n_all = table.sum(1), int(table.sum())
    if n_all == 0 or sides.min() == 0:
        return None
    rest = table[:, -1]
    if kept.sum() > 1 and rest.sum() / n_all * sides.min() < LEAST_EXPECTED:  # too few for a value of their own
        rarest = int(table[:, :-1].sum(0).argmin())
        table[:, rarest] += rest
        table = table[:, :-1]
    table = table[:, table.sum(0) > 0]
    if table.shape[1] < 2:
        return None
    distance = float(np.abs(table[0] / sides[0] - table[1] / sides[1]).sum() / 2)
    return distance, _independence(table)


def proportions(n_old_hits: int, n_old: int, n_new_hits: int, n_new: int) -> tuple[float, float] | None:
    """Difference of two shares, 0 to 1, and its p-value; None where there is nothing to compare."""
    table = np.array([[n_old_hits, n_old - n_old_hits], [n_new_hits, n_new - n_new_hits]], dtype=np.int64)
    if not n_old or not n_new or (table.sum(0) == 0).any():
        return None
    return abs(n_new_hits / n_new - n_old_hits / n_old), _independence(table)


def _independence(table: Int64[np.ndarray, "2 V"]) -> float:
    if table.shape[1] == 2:
        if table.sum(1).min() * table.sum(0).min() / table.sum() < EXACT_EXPECTED:
            return float(np.clip(stats.fisher_exact(table).pvalue, 0.0, 1.0))
    expected = table.sum(1, keepdims=True) * (table.sum(0) / table.sum())
    return float(chdtrc(table.shape[1] - 1, (np.square(table - expected) / expected).sum()))


def never_seen(
    old: Int64[np.ndarray, " V"], new: Int64[np.ndarray, " V"], n_old: int, n_new: int
) -> tuple[float, float]:
    """Share of new cells with values that no old cell has, beyond what chance explains, and the p-value.

    If all cells come from one distribution, which of them are the new ones is a matter of chance, and that all `c`
    cells of a value are among them has a hypergeometric probability. Tested are the most frequent value that only new
    cells have (times the number of values, any of which it could have been) and how many such values there are (their
    number has lighter tails than Poisson's); the smaller p-value counts twice.

    Parameters
    ----------
    old, new
        How often each value occurs among `n_old` and `n_new` cells.
    """
    only_new = new[(old == 0) & (new > 0)]
    if not len(only_new):
        return 0.0, 1.0
    n_each, n_all = (old + new)[old + new > 0], n_old + n_new
    possible = n_each <= n_new
    n_each = n_each[possible]
    all_new = np.exp(
        gammaln(n_new + 1) - gammaln(n_new - n_each + 1) - gammaln(n_all + 1) + gammaln(n_all - n_each + 1)
    )
    most = int(only_new.max())
    by_size = min(1.0, len(possible) * float(all_new[n_each == most][0]))
    by_number = float(stats.poisson.sf(len(only_new) - 1, all_new.sum()))
    beyond = (only_new.sum() - (n_each * all_new).sum()) / n_new
    return float(np.clip(beyond, 0.0, 1.0)), min(1.0, 2 * min(by_size, by_number))


FitAndRate = Callable[[Any, np.ndarray, Any], np.ndarray]
"""From rows, which of them are new, and other rows, to a number for each of these: larger, the more likely new."""


def classifier_test(rows: Any, is_new: Bool[np.ndarray, " N"], rate: FitAndRate, *, seed: int) -> tuple[float, float]:
    """AUROC with which a classifier tells new rows from old ones that it did not learn from, and its p-value.

    Lopez-Paz and Oquab, "Revisiting Classifier Two-Sample Tests", 2017, section 3. Each half of the rows is judged by
    a classifier that learned from the other half.

    NOTE[DIFF]: the paper tests accuracy on one held-out half. Here the ranks of the scores are tested (Mann and
    Whitney), which needs no balance of the sides, on both halves, and the smaller p-value counts twice (Bonferroni):
    the halves' classifiers know of one another's rows, so their p-values are not independent.
    """
    half = np.zeros(len(is_new), dtype=bool)
    random = np.random.default_rng(seed)
    for side in (True, False):
        members = random.permutation(np.flatnonzero(is_new == side))
        half[members[: len(members) // 2]] = True
    auroc, p = [], []
    for tested in (half, ~half):
        score = rate(rows[~tested], is_new[~tested], rows[tested])
        new, old = score[is_new[tested]], score[~is_new[tested]]
        found = stats.mannwhitneyu(new, old, alternative="greater", method="asymptotic")
        auroc.append(float(found.statistic) / (len(new) * len(old)))
        p.append(1.0 if np.isnan(found.pvalue) else float(found.pvalue))
    return float(np.mean(auroc)), min(1.0, 2 * min(p))


def is_testable(is_new: Bool[np.ndarray, " N"]) -> bool:
    """Whether there are enough rows of both sides for `classifier_test`."""
    return bool(min(is_new.sum(), (~is_new).sum()) >= 2 * N_HALF)


def by_forest(seed: int) -> FitAndRate:
    """Extremely randomised trees, both sides weighing the same: they see single columns and how columns go together."""

    def rate(rows: np.ndarray, is_new: np.ndarray, others: np.ndarray) -> np.ndarray:
        forest = ExtraTreesClassifier(N_TREES, min_samples_leaf=5, class_weight="balanced", random_state=seed)
        return forest.fit(rows, is_new).predict_proba(others)[:, 1]

    return rate


def hashed_texts(texts: list[str]) -> Any:
    """Letter n-grams of texts, hashed; nothing is fitted, so that no text is known better than another."""
    hashing = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 4), n_features=TEXT_BUCKETS, alternate_sign=False)
    return hashing.transform(texts)


def by_logistic(rows: Any, is_new: np.ndarray, others: Any) -> np.ndarray:
    """Logistic regression on sparse rows, both sides weighing the same."""
    model = LogisticRegression(C=10.0, class_weight="balanced", max_iter=200)
    return model.fit(rows, is_new).decision_function(others)


def kernel_test(
    old: Float[np.ndarray, "n W"], new: Float[np.ndarray, "m W"], *, n_permutations: int, seed: int
) -> tuple[float, float, float]:
    """Maximum mean discrepancy, squared and unbiased; the share of rows it stands for; and its permutation p-value.

    Gretton et al., "A Kernel Two-Sample Test", 2012, equation 3, with a Gaussian kernel as wide as the median distance
    of all rows (section 8). Where a share ε of the rows went far away, the square is about 2ε² times the mean kernel of
    two rows: that ε is the effect.
    """
    rows = np.concatenate([old, new]).astype(np.float32)
    square = np.square(rows).sum(1)
    distance = np.maximum(square[:, None] + square[None, :] - 2 * rows @ rows.T, 0)
    upper = distance[np.triu_indices(len(rows), 1)]
    positive = upper[upper > 0]
    kernel = np.exp(-distance / (2 * np.median(positive) if len(positive) else 1.0))
    np.fill_diagonal(kernel, 0.0)
    random = np.random.default_rng(seed)
    is_old = np.zeros((n_permutations + 1, len(rows)), dtype=np.float32)
    is_old[0, : len(old)] = 1
    for line in is_old[1:]:
        line[random.permutation(len(rows))[: len(old)]] = 1
    found = _discrepancy(kernel, is_old, len(old), len(new))
    p = float(np.mean(found >= found[0] - 1e-9))  # the sample as it stands is one of the permutations
    mean_kernel = float(kernel.sum(dtype=np.float64)) / (len(rows) * (len(rows) - 1))
    share = math.sqrt(max(float(found[0]), 0.0) / (2 * mean_kernel)) if mean_kernel > 0 else 0.0
    return float(found[0]), min(1.0, share), p


def _discrepancy(
    kernel: Float[np.ndarray, "N N"], is_old: Float[np.ndarray, "B N"], n: int, m: int
) -> Float64[np.ndarray, " B"]:
    row_sum = kernel.sum(1, dtype=np.float64)
    within_old = ((is_old @ kernel) * is_old).sum(1, dtype=np.float64)
    of_old = is_old.astype(np.float64) @ row_sum
    between = of_old - within_old
    within_new = row_sum.sum() - of_old - between
    return within_old / (n * (n - 1)) + within_new / (m * (m - 1)) - 2 * between / (n * m)


def holm(p: Float64[np.ndarray, " T"]) -> Float64[np.ndarray, " T"]:
    """p-values adjusted so that flagging those up to α flags none by chance with probability 1 − α at least, however
    the tests depend on one another (Holm, "A Simple Sequentially Rejective Multiple Test Procedure", 1979)."""
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)) if len(p) else p
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(raised, 1.0)
    return adjusted
