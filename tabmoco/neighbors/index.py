"""An index over rows' vectors that knows which row each vector came from.

Many rows are searched in FAISS's lists, few exhaustively, by a matrix product of torch's: on processors newer than the
BLAS inside FAISS's wheels its own exhaustive search falls back to plain loops and takes five times as long.

The index is kept in files as plain arrays, never in FAISS's own format: its reader trusts the counts it finds in a
file and can be made to crash. Rebuilding from arrays costs one copy.
"""

from __future__ import annotations

import math

import faiss
import numpy as np
import torch
from jaxtyping import Float, Int64

from tabmoco.errors import IndexMismatchError, ModelFileError
from tabmoco.tables.arrays import require_array

FLAT_UP_TO = 10_000
"""Largest number of rows always searched exhaustively; above, only the nearest of about 2·√n lists of rows are, if
that finds the same rows."""

RECALL = 0.99
"""Share of the ten nearest rows that a search in lists must find, on a sample, when the index is built."""

RECALL_SAMPLE = 200

MOST_VISITED = 0.1
"""Share of the lists that a search may visit. Where more are needed, rows do not cluster in the space, and searching
all by a faster kernel takes no longer."""

QUERIES_AT_ONCE = 1_024

STRIDE = 16
"""Of this many numbers only the least is looked at first, when the least of many are picked."""

FEW = 100_000
"""Up to so many numbers it is quicker to look at all."""

SPARE = 8
"""Rows found beyond those asked for: the square of a difference, expanded, is not exact, so the last ones could be the
wrong ones. All are then measured exactly."""

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
    centroids, list_of_vector, n_probes
        How a large index is divided into lists, and how many of them a search visits; none for an index searched
        exhaustively. `RowIndex.build` makes them.
    content
        Content hash of each row, to know a row's exact twin.
    """

    def __init__(
        self,
        vectors: Float[np.ndarray, "n d"],
        rows: Int64[np.ndarray, " n"],
        centroids: Float[np.ndarray, "L d"] | None = None,
        list_of_vector: Int64[np.ndarray, " n"] | None = None,
        n_probes: int = 1,
        content: Int64[np.ndarray, " n"] | None = None,
    ):
        if len(vectors) != len(rows):
            raise ModelFileError(f"an index needs one row id per vector, got {len(vectors)} vectors, {len(rows)} ids.")
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self.rows = np.ascontiguousarray(rows, dtype=np.int64)
        self.centroids = centroids
        self.list_of_vector = list_of_vector
        self.n_probes = n_probes
        self.content = content
        self._by_content = None if content is None else np.argsort(content, kind="stable")
        self._by_row = np.argsort(self.rows, kind="stable")
        self._square = np.square(self.vectors).sum(1)
        self._index = self._assemble()

    @classmethod
    def build(
        cls,
        vectors: Float[np.ndarray, "n d"],
        rows: Int64[np.ndarray, " n"],
        *,
        content: Int64[np.ndarray, " n"] | None = None,
        seed: int = 0,
    ) -> RowIndex:
        """Index the vectors: exhaustively searched up to `FLAT_UP_TO` rows, in lists around k-means centroids above.

        The number of lists visited is the smallest that finds `RECALL` of the ten nearest rows on a sample; where that
        is more than `MOST_VISITED` of them, the search is exhaustive after all.
        """
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if len(vectors) <= FLAT_UP_TO:
            return cls(vectors, rows, content=content)
        generator = np.random.default_rng(seed)
        n_lists = int(2 * math.sqrt(len(vectors)))
        sample = generator.choice(len(vectors), min(len(vectors), 32 * n_lists), replace=False)
        kmeans = faiss.Kmeans(
            vectors.shape[1], n_lists, niter=5, seed=seed & 0x7FFFFFFF, min_points_per_centroid=1, verbose=False
        )
        kmeans.train(vectors[np.sort(sample)])
        _, nearest = kmeans.index.search(vectors, 1)
        index = cls(vectors, rows, kmeans.centroids, nearest[:, 0].astype(np.int64), content=content)
        index._choose_probes(vectors[generator.choice(len(vectors), RECALL_SAMPLE, replace=False)])
        return index if index.n_probes <= MOST_VISITED * n_lists else cls(vectors, rows, content=content)

    def _choose_probes(self, queries: Float[np.ndarray, "N d"]) -> None:
        exact = self._exhaustive(queries, 11)
        assert self._index is not None and self.centroids is not None, "only lists are probed"
        n_lists = len(self.centroids)
        while self.n_probes <= MOST_VISITED * n_lists:
            self._index.nprobe = self.n_probes
            found = self._index.search(queries, 11)[1]
            hits = np.mean([len(np.intersect1d(a, b)) for a, b in zip(exact, found, strict=True)]) / exact.shape[1]
            if hits >= RECALL:
                break
            self.n_probes = min(n_lists, self.n_probes + max(1, self.n_probes // 2))
        self._index.nprobe = self.n_probes

    def _assemble(self) -> faiss.Index | None:
        """FAISS's lists; none for an index searched exhaustively."""
        if self.centroids is None or self.list_of_vector is None:
            return None
        width = self.vectors.shape[1]
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
        index.nprobe = self.n_probes
        return index

    def __getstate__(self) -> dict[str, object]:
        """For copies and worker processes: the arrays, without the FAISS objects made from them."""
        return {name: value for name, value in vars(self).items() if name not in ("_index", "_quantizer")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._index = self._assemble()

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

        `exclude[i]` is a row that must not be found for query `i`: usually itself, which among exact duplicates is
        often not the first hit. Where there are fewer than `k` rows the distance is infinite and the row
        `NO_NEIGHBOUR`.

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
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        found = min(wanted + SPARE, max(1, len(self)))
        if self._index is None:
            place = self._exhaustive(queries, found)
        else:
            place = self._index.search(queries, found)[1]
        distance, place = self._measure(queries, place)
        distance, place = distance[:, :wanted], place[:, :wanted]
        row = np.where(place >= 0, self.rows[np.maximum(place, 0)], NO_NEIGHBOUR) if len(self) else place
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

    def _exhaustive(self, queries: Float[np.ndarray, "N d"], k: int) -> Int64[np.ndarray, "N k"]:
        """Places of about the `k` nearest vectors: `|x|² − 2 q·x` orders them as the distance does."""
        if not len(self):
            return np.full((len(queries), k), NO_NEIGHBOUR, dtype=np.int64)
        square, transposed = torch.from_numpy(self._square), torch.from_numpy(self.vectors).T
        parts = [np.empty((0, k), dtype=np.int64)]
        for block in torch.from_numpy(queries).split(QUERIES_AT_ONCE):
            order = torch.addmm(square, block, transposed, alpha=-2)
            parts.append(_least(order, k).numpy())
        return np.concatenate(parts)

    def _measure(
        self, queries: Float[np.ndarray, "N d"], place: Int64[np.ndarray, "N k"]
    ) -> tuple[Float[np.ndarray, "N k"], Int64[np.ndarray, "N k"]]:
        """Exact distances to the vectors at these places, infinite for none, and the places, nearest first.

        The expanded square that found them loses small distances between long vectors, and not the same digits for a
        query alone as among many.
        """
        distance = np.full(place.shape, np.inf, dtype=np.float32)
        for rank, column in enumerate(place.T):
            found = column >= 0
            distance[found, rank] = np.linalg.norm(queries[found] - self.vectors[column[found]], axis=1)
        order = np.lexsort((place, distance))
        return np.take_along_axis(distance, order, axis=1), np.take_along_axis(place, order, axis=1)

    def twins(self, content: Int64[np.ndarray, " N"]) -> Int64[np.ndarray, " N"]:
        """An indexed row of the same content for each query, `NO_NEIGHBOUR` if there is none.

        Left out of a search, it makes a row that is indexed and its exact copy that is not count alike.
        """
        if self.content is None or self._by_content is None or not len(self):
            return np.full(len(content), NO_NEIGHBOUR, dtype=np.int64)
        place = np.searchsorted(self.content, content, sorter=self._by_content)
        place = self._by_content[np.minimum(place, len(self) - 1)]
        return np.where(self.content[place] == content, self.rows[place], NO_NEIGHBOUR)

    def vectors_of(self, rows: Int64[np.ndarray, ...]) -> Float[np.ndarray, "... d"]:
        """The stored vectors of indexed rows; for `NO_NEIGHBOUR` that of an arbitrary row."""
        return self.vectors[self.places_of(rows)]

    def places_of(self, rows: Int64[np.ndarray, ...]) -> Int64[np.ndarray, ...]:
        """Where indexed rows stand in `rows` and `vectors`."""
        return self._by_row[np.clip(np.searchsorted(self.rows, rows, sorter=self._by_row), 0, len(self) - 1)]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything needed to build this index again."""
        arrays = {"vectors": self.vectors, "rows": self.rows}
        if self.content is not None:
            arrays["content"] = self.content
        if self.centroids is not None and self.list_of_vector is not None:
            arrays |= {
                "centroids": np.asarray(self.centroids),
                "list_of_vector": self.list_of_vector,
                "n_probes": np.array([self.n_probes]),
            }
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> RowIndex:
        """The inverse of `to_arrays`."""
        vectors, rows, content = arrays["vectors"], arrays["rows"], arrays.get("content")
        lists, centroids = arrays.get("list_of_vector"), arrays.get("centroids")
        require_array("an index's vectors", vectors, np.float32, (None, None), finite=False)
        require_array("an index's rows", rows, np.int64, (None,))
        if rows.min(initial=0) < 0 or len(np.unique(rows)) < len(rows):
            raise ModelFileError("an index must hold no row twice and none below 0; train the model again.")
        if content is not None:
            require_array("an index's content hashes", content, np.int64, rows.shape)
        if lists is not None:
            require_array("an index's lists", lists, np.int64, (None,))
        if centroids is not None:
            require_array("an index's centroids", centroids, np.float32, (None, vectors.shape[1]))
            require_array("an index's number of visits", arrays["n_probes"], np.int64, (1,))
        if lists is not None and (
            centroids is None
            or len(lists) != len(rows)
            or (lists.size and (lists.min() < 0 or lists.max() >= len(centroids)))
        ):
            raise ModelFileError(
                "the index's lists must cover its vectors; the file is damaged: train the model again."
            )
        n_probes = 1 if lists is None else int(arrays["n_probes"][0])
        if centroids is not None and not 1 <= n_probes <= len(centroids):
            raise ModelFileError(f"an index of {len(centroids)} lists cannot visit {n_probes}; train the model again.")
        return cls(vectors, rows, centroids, lists, n_probes, content)


def _least(order: Float[torch.Tensor, "N n"], k: int) -> Int64[torch.Tensor, "N k"]:
    """Places of the `k` least numbers of each row, as `topk` finds them, but for the order of equal ones.

    Columns are looked at in groups of `STRIDE`: the groups with the `k` least minima hold the `k` least of all. Finding
    minima takes a fraction of the time of picking from all columns.
    """
    n_rows, n_columns = order.shape
    n_groups = n_columns // STRIDE
    if order.numel() <= FEW or n_groups <= 4 * k:
        return order.topk(k, largest=False).indices
    least = order[:, : STRIDE * n_groups].unflatten(1, (STRIDE, n_groups)).amin(1)
    group = least.topk(k, largest=False, sorted=False).indices
    members = (group.unsqueeze(1) + n_groups * torch.arange(STRIDE).unsqueeze(1)).flatten(1)
    ungrouped = torch.arange(STRIDE * n_groups, n_columns).expand(n_rows, -1)
    place = torch.cat([members, ungrouped], dim=1)
    return place.gather(1, order.gather(1, place).topk(k, largest=False).indices)
