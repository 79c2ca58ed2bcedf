"""Texts and high-cardinality strings as a few numbers: hashed letter n-grams and words, tf-idf, truncated SVD."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float32
from scipy import sparse
from sklearn.utils.extmath import randomized_svd

from tabmoco.errors import ModelFileError
from tabmoco.tables.arrays import require_array
from tabmoco.tables.encoders import Slots, indices_and_missing
from tabmoco.tables.notices import Notices

N_BUCKETS = 1 << 14
FITTED_TEXTS = 10_000
"""Distinct texts the SVD is computed from."""

LEAST_SCALE = 1e-30
"""Below this, and no fitted scale is, numbers would leave float32."""

ROUNDING = 1e-3

_GRAM_BYTES = (2, 3, 4)
_CHUNK_BYTES = 1 << 20
_WORD_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class TextEncoder:
    """`text_width` number slots; equal texts have equal slots, similar spellings are near.

    Lower-cased letter n-grams of 2 to 4 bytes and whole words are hashed to 16,384 buckets, weighted by the square
    root of their count and their inverse document frequency, brought to unit length, and projected on the leading
    right singular vectors of a sample. The block is centred and scaled to a mean variance of 1 per slot.
    """

    column: str
    weights: Float32[np.ndarray, " N_BUCKETS"]
    """Inverse document frequency of each bucket."""

    components: Float32[np.ndarray, "N_BUCKETS width"]
    centre: Float32[np.ndarray, " width"]
    scale: float

    cardinalities: ClassVar[tuple[int, ...]] = ()

    @property
    def n_numbers(self) -> int:
        return self.components.shape[1]

    @classmethod
    def fit(cls, column: str, cells: pa.DictionaryArray, *, width: int) -> TextEncoder:
        """Learn weights and components from a sample; slots beyond its rank stay 0."""
        texts, counts = _distinct(cells)
        components = np.zeros((N_BUCKETS, width), np.float32)
        if len(texts) == 0:
            return cls(column, np.ones(N_BUCKETS, np.float32), components, np.zeros(width, np.float32), 1.0)
        grams = sparse.vstack(list(_gram_counts(texts)), format="csr")
        frequency = np.bincount(grams.indices, minlength=N_BUCKETS)
        weights = (np.log((1 + len(texts)) / (1 + frequency)) + 1).astype(np.float32)
        rows = _weighted(grams, weights)
        rank = min(width, *rows.shape)
        _, _, directions = randomized_svd(rows, rank, n_iter=3, random_state=0)
        components[:, :rank] = directions.T
        projected = rows @ components
        centre = np.average(projected, axis=0, weights=counts)
        variance = np.average((projected - centre) ** 2, axis=0, weights=counts).mean()
        return cls(column, weights, components, centre.astype(np.float32), float(np.sqrt(variance)) or 1.0)

    def encode(self, cells: pa.DictionaryArray, notices: Notices) -> Slots:
        indices, missing = indices_and_missing(cells)
        blocks = [self._project(grams) for grams in _gram_counts(cells.dictionary)]
        blank = np.zeros((1, self.n_numbers), np.float32)
        number = np.concatenate([*blocks, blank])[indices]
        return Slots(number, np.zeros((len(cells), 0), np.int64), missing)

    def _project(self, grams: sparse.csr_matrix) -> Float32[np.ndarray, "N width"]:
        projected = _weighted(grams, self.weights) @ self.components
        return ((projected - self.centre) / self.scale).astype(np.float32) + np.float32(0)

    def decode_number(self, slot: int, value: float) -> float:
        """The value itself: a hashed text cannot be read back."""
        return value

    def decode_code(self, slot: int, code: int) -> str | None:
        raise IndexError(f"Column {self.column!r} has no code slot.")

    def to_json(self) -> dict[str, Any]:
        return {"column": self.column, "scale": self.scale}

    def arrays(self) -> dict[str, np.ndarray]:
        """What `to_json` leaves out."""
        return {"weights": self.weights, "components": self.components, "centre": self.centre}

    @classmethod
    def from_json(cls, values: dict[str, Any], arrays: dict[str, np.ndarray]) -> TextEncoder:
        weights, components, centre = arrays["weights"], arrays["components"], arrays["centre"]
        require_array("weights", weights, np.float32, (N_BUCKETS,))
        require_array("components", components, np.float32, (N_BUCKETS, None))
        require_array("centre", centre, np.float32, components.shape[1:])
        encoder = cls(values["column"], weights, components, centre, float(values["scale"]))
        longest = max(np.abs(components).max(initial=0), np.abs(centre).max(initial=0))
        if longest > 1 + ROUNDING or weights.min() <= 0 or not LEAST_SCALE <= encoder.scale < np.inf:
            raise ModelFileError(
                f"the directions of text column {encoder.column!r} must be no longer than 1, its weights above 0 and "
                f"its scale at least {LEAST_SCALE:g}, got scale {encoder.scale:g}; train the model again."
            )
        return encoder


def _distinct(cells: pa.DictionaryArray) -> tuple[pa.StringArray, np.ndarray]:
    """At most `FITTED_TEXTS` distinct texts, evenly spread over their order, and how often each occurs."""
    indices, missing = indices_and_missing(cells)
    counts = np.bincount(indices[~missing], minlength=len(cells.dictionary))
    present = np.flatnonzero(counts)
    if len(present) > FITTED_TEXTS:
        present = present[np.linspace(0, len(present) - 1, FITTED_TEXTS).astype(np.int64)]
    return cells.dictionary.take(pa.array(present)), counts[present]


def _gram_counts(texts: pa.StringArray) -> Iterator[sparse.csr_matrix]:
    """Bucket counts of the texts, in chunks of some megabytes."""
    spaced = pc.replace_substring_regex(pc.utf8_lower(texts), r"\s+", " ")
    spaced = pc.binary_join_element_wise(" ", spaced, " ", "")
    lengths = pc.binary_length(spaced).to_numpy(zero_copy_only=False).astype(np.int64)
    chunk = np.cumsum(lengths) // _CHUNK_BYTES
    bounds = [0, *(np.flatnonzero(np.diff(chunk)) + 1), len(spaced)]
    for start, end in pairwise(bounds):
        if end > start:
            yield _count(spaced.slice(start, end - start), lengths[start:end])


def _count(spaced: pa.StringArray, lengths: np.ndarray) -> sparse.csr_matrix:
    letters = np.frombuffer(b"".join(spaced.cast(pa.binary()).to_pylist()), np.uint8).astype(np.uint64)
    owner = np.repeat(np.arange(len(spaced), dtype=np.int32), lengths)
    rows, buckets = [], []
    for n_bytes in _GRAM_BYTES:
        last = len(letters) - n_bytes + 1
        if last <= 0:
            continue
        gram = np.full(last, n_bytes << 40, np.uint64)
        for offset in range(n_bytes):
            gram |= letters[offset : offset + last] << np.uint64(8 * offset)
        within = owner[:last] == owner[n_bytes - 1 :]
        rows.append(owner[:last][within])
        buckets.append(_bucket(gram[within]))
    word_owner, word_hash = _words(letters, owner)
    rows.append(word_owner)
    buckets.append(_bucket(word_hash))
    row, bucket = np.concatenate(rows), np.concatenate(buckets)
    counts = sparse.csr_matrix((np.ones(len(row)), (row, bucket)), shape=(len(spaced), N_BUCKETS))
    counts.sum_duplicates()
    return counts


def _words(letters: np.ndarray, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Owner and polynomial hash of each run of bytes between blanks; every text begins and ends with a blank."""
    is_letter = letters != ord(" ")
    starts = np.flatnonzero(is_letter[1:] & ~is_letter[:-1]) + 1
    ends = np.flatnonzero(~is_letter[1:] & is_letter[:-1]) + 1
    if len(starts) == 0:
        return starts, starts.astype(np.uint64)
    lengths = ends - starts
    first = np.cumsum(lengths) - lengths
    place = np.arange(lengths.sum()) - np.repeat(first, lengths)
    powers = np.cumprod(np.full(lengths.max(), _WORD_BASE, np.uint64))
    return owner[starts], np.add.reduceat(letters[is_letter] * powers[place], first)


def _bucket(words: np.ndarray) -> np.ndarray:
    words = (words ^ (words >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
    return (words >> np.uint64(64 - 14)).astype(np.int32)


def _weighted(grams: sparse.csr_matrix, weights: np.ndarray) -> sparse.csr_matrix:
    """tf-idf rows of unit length; each row's arithmetic is its own, so that it does not depend on its neighbours."""
    values = np.sqrt(grams.data) * weights[grams.indices].astype(np.float64)
    rows = np.repeat(np.arange(grams.shape[0]), np.diff(grams.indptr))
    norms = np.sqrt(np.bincount(rows, weights=values**2, minlength=grams.shape[0]))
    return sparse.csr_matrix((values / norms[rows], grams.indices, grams.indptr), shape=grams.shape)
