"""Embeddings into groups: k-means, HDBSCAN, and how many groups.

Distances are those of embeddings at unit length, as in search. By agreement with the labels of seven tables
standardised embeddings did as well. Whitened ones did much better on one table and worse on most others, and fell apart
when other rows were drawn.

Rows are put in an order of their own before anything is drawn from them, so that theirs in the table does not matter.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import faiss
import numpy as np
from jaxtyping import Float, Float32, Float64, Int64
from sklearn.cluster import HDBSCAN, KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from tabmoco.tables.notices import warn

NOISE = -1
"""Label of rows in no group."""

KMEANS_ROWS, HDBSCAN_ROWS, CHOICE_ROWS = 50_000, 5_000, 4_000
"""Rows that centres are fitted to, that HDBSCAN groups, and that the number of groups is chosen on, at most."""

KS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20)
"""Numbers of groups that are tried."""

N_STARTS, N_CHOICE_STARTS = 5, 3
"""Runs of k-means, of which the best one counts."""

MIN_SAMPLES = 5
"""Rows, itself included, that must lie near a row for HDBSCAN to call its place dense. With as many as a cluster must
have, its authors' default, nearly all rows of real tables are noise."""

N_HALVINGS = 3
TIE = 0.02
"""Agreements this near to the best one are as good."""

ROWS_AT_ONCE = 16_384

Points = Float32[np.ndarray, "N D"]


@dataclass(frozen=True)
class Partition:
    """Groups of points, to which others can be assigned; the largest group is number 0."""

    centres: Float64[np.ndarray, "K D"]
    """The mean of each group's points."""

    known: Points | None = None
    """Points that HDBSCAN grouped; None of k-means."""

    known_label: Int64[np.ndarray, " n"] | None = None

    def assign(self, points: Points) -> tuple[Int64[np.ndarray, " N"], Float64[np.ndarray, " N"]]:
        """The group of each point and its distance to the centre of that group.

        Of k-means the nearest centre decides, of HDBSCAN the nearest point that was grouped; a point that is noise, or
        nearest to noise, is -1, and its distance that to the nearest centre, NaN where there is none.
        """
        label = np.full(len(points), NOISE, dtype=np.int64)
        distance = np.full(len(points), np.nan)
        if not len(self.centres):
            return label, distance
        for start in range(0, len(points), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            given = points[part].astype(np.float64)
            nearest = _nearest(given, self.centres)
            label[part] = nearest if self.known is None else self._labels_of_nearest(points[part])
            centre = np.where(label[part] == NOISE, nearest, label[part])
            distance[part] = np.linalg.norm(given - self.centres[centre], axis=1)
        return label, distance

    def _labels_of_nearest(self, points: Points) -> Int64[np.ndarray, " N"]:
        assert self.known is not None and self.known_label is not None, "made by HDBSCAN"
        index = faiss.IndexFlatL2(self.known.shape[1])
        index.add(np.ascontiguousarray(self.known))
        return self.known_label[index.search(np.ascontiguousarray(points), 1)[1][:, 0]]


def unit(embedding: Float[np.ndarray, "N D"]) -> Points:
    """Embeddings at unit length."""
    length = np.linalg.norm(embedding, axis=1, keepdims=True)
    return (embedding / np.maximum(length, 1e-12)).astype(np.float32)


def own_order(content: Int64[np.ndarray, " N"], seed: int) -> Int64[np.ndarray, " N"]:
    """Positions of the rows in an order as good as random that only depends on what they hold.

    Parameters
    ----------
    content
        Content hash of each row; of equal rows the copies are numbered, and each number has a place of its own.
    """
    order = np.argsort(content, kind="stable")
    ordered = content[order]
    is_first = np.diff(ordered, prepend=ordered[:1] - 1) != 0
    place = np.arange(len(content))
    copy = place - np.maximum.accumulate(np.where(is_first, place, 0))
    key = _mixed(ordered.astype(np.uint64) ^ _mixed((copy + (seed << 32)).astype(np.uint64)))
    return order[np.lexsort((ordered, key))]


def _mixed(words: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def by_kmeans(points: Points, k: int, *, seed: int) -> Partition:
    """Groups around `k` centres, fewer where there are fewer different points.

    Parameters
    ----------
    points
        In their own order; centres are fitted to the first `KMEANS_ROWS`.
    """
    centres = _centres(points[:KMEANS_ROWS], k, n_starts=N_STARTS, seed=seed)
    label = Partition(centres).assign(points)[0]
    return Partition(_by_size(centres, label)[0])


def by_hdbscan(points: Points, min_size: int) -> Partition:
    """Groups as dense as they come (Campello, Moulavi and Sander 2013), the rest noise.

    Parameters
    ----------
    points
        In their own order; only the first `HDBSCAN_ROWS` are grouped, the others follow the nearest of these.
    min_size
        Fewest rows of a group among all points.
    """
    few = points[:HDBSCAN_ROWS]
    if len(few) < len(points):
        warn(
            f"HDBSCAN groups {len(few):,} of {len(points):,} rows, drawn at random; each of the others is in the "
            "cluster of the nearest of these."
        )
        min_size = max(2, round(min_size * len(few) / len(points)))
    if len(few) < max(2, min_size):
        return Partition(np.zeros((0, few.shape[1])), few, np.full(len(few), NOISE))
    label = HDBSCAN(min_cluster_size=min_size, min_samples=min(MIN_SAMPLES, min_size), copy=True).fit_predict(
        few.astype(np.float64)
    )
    label = np.where(label < 0, NOISE, label).astype(np.int64)
    centres = [few[label == group].mean(0, dtype=np.float64) for group in range(label.max() + 1)]
    ordered, renamed = _by_size(np.array(centres).reshape(-1, few.shape[1]), label)
    return Partition(ordered, few, renamed)


def choose_k(points: Points, ks: Sequence[int], *, seed: int) -> tuple[int, tuple[tuple[int, float], ...]]:
    """How many groups, and the agreement of each number that was tried.

    The rows are halved, centres fitted to each half, and all rows assigned to both halves' centres; the agreement is
    the adjusted Rand index of the two, mean of three halvings: 1 where other rows of the table would have been grouped
    in the same way, 0 for chance (Ben-Hur, Elisseeff and Guyon 2002; Lange et al., "Stability-based validation of
    clustering solutions", 2004). The largest number counts whose agreement is as good as the best.

    The mean silhouette, tried beside it, hardly differed between numbers of groups; of four tables with two or three
    classes it told the number of one, agreement that of two or three, depending on the halves.

    NOTE[DIFF]: Lange et al. train a classifier on one half and divide by the agreement of random labels; here the
    nearest centre classifies, and the index is adjusted for chance.
    """
    scores = tuple((k, agreement(points, k, seed=seed)) for k in ks)
    best = max(score for _, score in scores)
    return max(k for k, score in scores if score >= best - TIE), scores


def agreement(points: Points, k: int, *, seed: int) -> float:
    """See `choose_k`; of the first `CHOICE_ROWS` points, which are in their own order."""
    few = points[:CHOICE_ROWS]
    random = np.random.default_rng(seed)
    found = []
    for number in range(N_HALVINGS):
        shuffled = random.permutation(len(few))
        halves = shuffled[: len(few) // 2], shuffled[len(few) // 2 :]
        labels = [
            _nearest(few.astype(np.float64), _centres(few[half], k, n_starts=N_CHOICE_STARTS, seed=seed + number))
            for half in halves
        ]
        found.append(adjusted_rand_score(*labels))
    return float(np.mean(found))


def _centres(points: Points, k: int, *, n_starts: int, seed: int) -> Float64[np.ndarray, "k D"]:
    k = min(k, len(points))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different points than groups
        found = KMeans(k, n_init=n_starts, random_state=seed).fit(points.astype(np.float64))
    return found.cluster_centers_.astype(np.float64)


def _nearest(points: Float64[np.ndarray, "N D"], centres: Float64[np.ndarray, "K D"]) -> Int64[np.ndarray, " N"]:
    return (np.square(centres).sum(1) - 2 * points @ centres.T).argmin(1)


def _by_size(
    centres: Float64[np.ndarray, "K D"], label: Int64[np.ndarray, " N"]
) -> tuple[Float64[np.ndarray, "k D"], Int64[np.ndarray, " N"]]:
    """Centres of groups that hold points, the largest group first, and the labels that go with them."""
    n_rows = np.bincount(label[label != NOISE], minlength=len(centres))
    order = np.lexsort((*centres.T[::-1], -n_rows))
    order = order[n_rows[order] > 0]
    name = np.full(len(centres) + 1, NOISE, dtype=np.int64)  # the last one is that of noise
    name[order] = np.arange(len(order))
    return centres[order], name[label]
