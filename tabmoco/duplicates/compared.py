"""The cells of rows as they stand in the table, in a form in which two rows can be compared cell by cell.

The encoded cells will not do: they hold every value that was never seen in training, a typing error among them, as one
and the same unknown, and a text as a few numbers.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Float64, Int64, UInt64
from scipy import sparse

from tabmoco.tables.display import MISSING, describe
from tabmoco.tables.encoders import indices_and_missing, read_cells
from tabmoco.tables.schema import Column
from tabmoco.tables.source import TableBatch

LONGEST_COMPARED = 500
"""Characters of a text that are compared by their letters; the rest only counts for being equal."""

_STRINGS = ("category", "text")
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_START = np.uint64(0x9E3779B97F4A7C15)


class Words:
    """All distinct strings of the compared columns, each with a position, whichever column or table it stands in."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._position: dict[str, int] = {}

    def positions(self, texts: Sequence[str]) -> Int64[np.ndarray, " n"]:
        """Positions of strings, new ones taken in."""
        for text in texts:
            if text not in self._position:
                self._position[text] = len(self.texts)
                self.texts.append(text)
        return np.array([self._position[text] for text in texts], dtype=np.int64)

    def hashes(self) -> UInt64[np.ndarray, " n"]:
        """A 64-bit hash of each string, the same in every table."""
        digests = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in self.texts]
        return np.frombuffer(b"".join(digests), dtype=np.uint64)

    def similarity(self, first: Int64[np.ndarray, " P"], second: Int64[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
        """How alike the spellings of strings are, 0 to 1: Dice's coefficient of their pairs of neighbouring letters.

        Case, blanks and compatible forms of a letter do not count, and the order of words hardly does (Dice 1945; as a
        measure of names, Kondrak, Marcu and Knight 2003, "Cognates can improve statistical translation models").
        """
        needed, place = np.unique(np.concatenate([first, second]), return_inverse=True)
        grams = _letter_pairs([self.texts[position] for position in needed])
        n_grams = np.asarray(grams.sum(1)).ravel()
        left, right = place[: len(first)], place[len(first) :]
        shared = np.asarray(grams[left].minimum(grams[right]).sum(1)).ravel()
        return 2 * shared / np.maximum(n_grams[left] + n_grams[right], 1)


def _letter_pairs(texts: Sequence[str]) -> sparse.csr_matrix:
    """How often each pair of neighbouring letters occurs in a text between two blanks."""
    plain = [
        f" {' '.join(unicodedata.normalize('NFKC', text[:LONGEST_COMPARED]).casefold().split())} " for text in texts
    ]
    lengths = np.array([len(text) for text in plain], dtype=np.int64)
    letters = np.frombuffer("".join(plain).encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.int64)
    owner = np.repeat(np.arange(len(plain)), lengths)
    within = owner[:-1] == owner[1:]
    pair, column = np.unique((letters[:-1] << 21 | letters[1:])[within], return_inverse=True)
    counts = sparse.csr_matrix(
        (np.ones(len(column), dtype=np.float32), (owner[:-1][within], column)), shape=(len(plain), len(pair))
    )
    counts.sum_duplicates()
    return counts


@dataclass(frozen=True)
class ComparedRows:
    """`N` rows of the columns that a model uses."""

    columns: tuple[Column, ...]

    values: tuple[np.ndarray, ...]
    """Of each column: numbers, microseconds or 0 and 1 as float64 with NaN for missing; strings as positions among
    `words`, with -1 for missing."""

    words: Words

    def __len__(self) -> int:
        return len(self.values[0])

    def __getitem__(self, rows: np.ndarray) -> ComparedRows:
        return ComparedRows(self.columns, tuple(values[rows] for values in self.values), self.words)

    @classmethod
    def read(cls, columns: Sequence[Column], batch: TableBatch, words: Words) -> ComparedRows:
        """The cells of a batch; its strings are taken into `words`."""
        values = [_read(column, batch, words) for column in columns]
        return cls(tuple(columns), tuple(values), words)

    @staticmethod
    def cat(parts: Sequence[ComparedRows]) -> ComparedRows:
        """The rows of all parts, which share their columns and words, one below the other."""
        values = (np.concatenate(column) for column in zip(*(part.values for part in parts), strict=True))
        return ComparedRows(parts[0].columns, tuple(values), parts[0].words)

    @classmethod
    def empty(cls, columns: Sequence[Column], words: Words) -> ComparedRows:
        kinds = (np.int64 if column.kind in _STRINGS else np.float64 for column in columns)
        return cls(tuple(columns), tuple(np.zeros(0, kind) for kind in kinds), words)

    def is_string(self, column: int) -> bool:
        return self.columns[column].kind in _STRINGS

    def missing(self, column: int) -> Bool[np.ndarray, " N"]:
        values = self.values[column]
        return values < 0 if self.is_string(column) else np.isnan(values)

    @cached_property
    def usual_ranges(self) -> tuple[float, ...]:
        """Of each column, how far apart the 5 % and 95 % quantiles of its distinct numbers lie; 0 for strings."""
        return tuple(
            0.0 if self.is_string(column) else _usual_range(values) for column, values in enumerate(self.values)
        )

    def content(self) -> Int64[np.ndarray, " N"]:
        """One 63-bit number per row, equal for rows that are equal in every cell; see `CellBatch.content_hash`."""
        state = np.full(len(self), _START, dtype=np.uint64)
        hashes = np.append(self.words.hashes(), _MIX[0])
        for column, values in enumerate(self.values):
            word = hashes[values] if self.is_string(column) else _bits(values)
            state = (state ^ word) * _MIX[0]
            state ^= state >> np.uint64(27)
            state *= _MIX[1]
            state ^= state >> np.uint64(31)
        return (state >> np.uint64(1)).astype(np.int64)

    def differing(self, row: int, other: int) -> list[int]:
        """The columns in which two rows do not hold the same."""
        return [
            column
            for column, values in enumerate(self.values)
            if values[row] != values[other] and not (values[row] != values[row] and values[other] != values[other])
        ]

    def told(self, row: int, column: int) -> str:
        """A cell in words."""
        facts, value = self.columns[column], self.values[column][row]
        if self.is_string(column):
            return MISSING if value < 0 else describe(self.words.texts[value], facts.arrow_type)
        if np.isnan(value):
            return MISSING
        if facts.kind == "boolean":
            return describe(bool(value), facts.arrow_type)
        if facts.kind == "timestamp":
            return describe(np.datetime64(int(value), "us"), facts.arrow_type)
        return describe(int(value) if float(value).is_integer() and abs(value) < 2**53 else value, facts.arrow_type)


def _read(column: Column, batch: TableBatch, words: Words) -> np.ndarray:
    cells = read_cells(column.kind, batch.table.column(column.name), column.name)
    if isinstance(cells, pa.DictionaryArray):
        position = np.append(words.positions(cells.dictionary.to_pylist()), -1)
        return position[indices_and_missing(cells)[0]]
    if column.kind == "timestamp":
        return np.where(np.isnat(cells), np.nan, cells.astype(np.int64))
    if column.kind == "boolean":
        return np.where(cells < 0, np.nan, cells)
    return cells + 0.0  # turns -0.0 into 0.0


def _usual_range(values: Float64[np.ndarray, " N"]) -> float:
    distinct = np.unique(values[np.isfinite(values)])
    if not len(distinct):
        return 0.0
    low, high = np.quantile(distinct, [0.05, 0.95], method="nearest")
    with np.errstate(over="ignore"):
        return float(min(high - low, np.finfo(np.float64).max))


def _bits(values: Float64[np.ndarray, " N"]) -> UInt64[np.ndarray, " N"]:
    """The bits of numbers, those of every NaN alike."""
    return np.where(np.isnan(values), np.nan, values).view(np.uint64)
