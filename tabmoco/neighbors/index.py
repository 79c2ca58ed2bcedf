"""A FAISS index over rows' vectors that knows which row each vector came from.

The index is kept in files as plain arrays, never in FAISS's own format: its reader trusts the counts it finds in a file
and can be made to crash. Rebuilding from arrays costs one copy.
"""

from __future__ import annotations

import math

import faiss
import numpy as np
from jaxtyping import Float, Int64

from tabmoco.errors import IndexMismatchError, ModelFileError

FLAT_UP_TO = 20_000
"""Largest number of rows searched exhaustively; above, only the nearest of about 4·√n lists of rows are."""

SHARE_OF_LISTS = 1 / 16
"""Share of the lists that a query visits."""

NO_NEIGHBOUR = -1
"""Row id where there are fewer neighbours than were asked for."""


class RowIndex:
    """Nearest rows by Euclidean distance.

    Parameters
    ----------
    vectors
        One float32 vector per row.
    rows
        The row each vector stands for; no row twice.
    centroids, list_of_vector
        How a large index is divided into lists; none for a flat one. `RowIndex.build` makes them.
    """

    def __init__(
        self,
        vectors: Float[np.ndarray, "n d"],
        rows: Int64[np.ndarray, " n"],
        centroids: Float[np.ndarray, "L d"] | None = None,
        list_of_vector: Int64[np.ndarray, " n"] | None = None,
    ):
        if len(vectors) != len(rows):
            raise ModelFileError(f"an index needs one row id per vector, got {len(vectors)} vectors, {len(rows)} ids.")
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self.rows = np.ascontiguousarray(rows, dtype=np.int64)
        self.centroids = centroids
        self.list_of_vector = list_of_vector
        self._index = self._assemble()

    @classmethod
    def build(cls, vectors: Float[np.ndarray, "n d"], rows: Int64[np.ndarray, " n"], *, seed: int = 0) -> RowIndex:
        """Index the vectors: exhaustively searched up to `FLAT_UP_TO` rows, in lists around k-means centroids above."""
        if len(vectors) <= FLAT_UP_TO:
            return cls(vectors, rows)
        n_lists = int(4 * math.sqrt(len(vectors)))
        sample = np.random.default_rng(seed).choice(len(vectors), min(len(vectors), 40 * n_lists), replace=False)
        kmeans = faiss.Kmeans(
            vectors.shape[1], n_lists, niter=8, seed=seed & 0x7FFFFFFF, min_points_per_centroid=1, verbose=False
        )
        kmeans.train(np.ascontiguousarray(vectors[np.sort(sample)], dtype=np.float32))
        _, nearest = kmeans.index.search(np.ascontiguousarray(vectors, dtype=np.float32), 1)
        return cls(vectors, rows, kmeans.centroids, nearest[:, 0].astype(np.int64))

    def _assemble(self) -> faiss.Index:
        width = self.vectors.shape[1]
        if self.centroids is None or self.list_of_vector is None:
            index = faiss.IndexFlatL2(width)
            index.add(self.vectors)
            return index
        n_lists = len(self.centroids)
        self._quantizer = faiss.IndexFlatL2(width)  # FAISS holds a bare pointer to it: keep it alive
        self._quantizer.add(np.ascontiguousarray(self.centroids, dtype=np.float32))
        index = faiss.IndexIVFFlat(self._quantizer, width, n_lists)
        index.own_fields = False
        index.is_trained = True
        order = np.argsort(self.list_of_vector, kind="stable")
        bounds = np.searchsorted(self.list_of_vector[order], np.arange(n_lists + 1))
        for number in range(n_lists):
            members = np.ascontiguousarray(order[bounds[number] : bounds[number + 1]], dtype=np.int64)
            if len(members):
                codes = np.ascontiguousarray(self.vectors[members])
                index.invlists.add_entries(
                    number, len(members), faiss.swig_ptr(members), faiss.swig_ptr(codes.view(np.uint8))
                )
        index.ntotal = len(self.vectors)
        index.nprobe = max(8, round(n_lists * SHARE_OF_LISTS))
        return index

    def __len__(self) -> int:
        return len(self.rows)

    def search(
        self,
        queries: Float[np.ndarray, "N d"],
        k: int,
        *,
        exclude: Int64[np.ndarray, " N"] | None = None,
    ) -> tuple[Float[np.ndarray, "N k"], Int64[np.ndarray, "N k"]]:
        """The `k` nearest rows of each query, nearest first, ties by position.

        `exclude[i]` is a row that must not be found for query `i`: usually itself, which among exact duplicates is often
        not the first hit. Where there are fewer than `k` rows the distance is infinite and the row `NO_NEIGHBOUR`.

        Returns
        -------
        Euclidean distances and row ids.
        """
        if queries.shape[1] != self.vectors.shape[1]:
            raise IndexMismatchError(
                f"vectors must have the index's width {self.vectors.shape[1]}, got {queries.shape[1]}; "
                "embed the rows with the model that built the index."
            )
        wanted = min(k + (exclude is not None), max(1, len(self)))
        square, place = self._index.search(np.ascontiguousarray(queries, dtype=np.float32), wanted)
        distance = np.sqrt(np.maximum(square, 0.0, dtype=np.float32))
        row = np.where(place >= 0, self.rows[np.maximum(place, 0)], NO_NEIGHBOUR) if len(self) else place
        distance = np.where(place >= 0, distance, np.float32(np.inf))
        if exclude is not None:
            own = row == np.asarray(exclude)[:, None]
            order = np.argsort(own, axis=1, kind="stable")  # moves the excluded row behind the others
            distance = np.take_along_axis(np.where(own, np.float32(np.inf), distance), order, axis=1)
            row = np.take_along_axis(np.where(own, NO_NEIGHBOUR, row), order, axis=1)
        distance, row = distance[:, :k], row[:, :k]
        short = k - distance.shape[1]
        if short > 0:
            distance = np.pad(distance, ((0, 0), (0, short)), constant_values=np.inf)
            row = np.pad(row, ((0, 0), (0, short)), constant_values=NO_NEIGHBOUR)
        return distance, row

    def vectors_of(self, rows: Int64[np.ndarray, ...]) -> Float[np.ndarray, "... d"]:
        """The stored vectors of indexed rows; `NO_NEIGHBOUR` gives the first vector."""
        order = np.argsort(self.rows, kind="stable")
        place = order[np.clip(np.searchsorted(self.rows, rows, sorter=order), 0, len(self) - 1)]
        return self.vectors[place]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything needed to build this index again."""
        arrays = {"vectors": self.vectors, "rows": self.rows}
        if self.centroids is not None and self.list_of_vector is not None:
            arrays |= {"centroids": np.asarray(self.centroids), "list_of_vector": self.list_of_vector}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> RowIndex:
        """The inverse of `to_arrays`."""
        lists = arrays.get("list_of_vector")
        centroids = arrays.get("centroids")
        if lists is not None and (
            centroids is None
            or len(lists) != len(arrays["rows"])
            or (lists.size
            and (lists.min() < 0 or lists.max() >= len(centroids)))
        ):
            raise ModelFileError(
                "the index's lists must cover its vectors; the file is damaged: train the model again."
            )
        return cls(arrays["vectors"], arrays["rows"], centroids, lists)
