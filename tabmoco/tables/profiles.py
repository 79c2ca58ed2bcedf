"""Figures about one column, gathered batch by batch in bounded memory."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import UInt64

from tabmoco.tables.convert import is_string, to_booleans, to_instants, to_numbers, to_strings

EXACT_DISTINCT = 200_000
"""Distinct values counted exactly; beyond, the count is an estimate (standard error 0.2 %)."""

COUNTED_VALUES = 50_000
"""Values whose frequencies are held at a time; when more turn up the rarest are forgotten."""

SAMPLED_TEXTS = 10_000
"""Distinct texts kept to judge what a text column holds."""


class DistinctCounter:
    """Number of distinct values, from 64-bit hashes: exact up to `EXACT_DISTINCT`, then by the k smallest hashes.

    The estimate is ``(k - 1) / u``, where ``u`` is the k-th smallest hash as a fraction of the hash range
    (Bar-Yossef et al. 2002, "Counting Distinct Elements in a Data Stream").
    """

    def __init__(self) -> None:
        self._smallest = np.zeros(0, dtype=np.uint64)
        self._waiting: list[np.ndarray] = []
        self._n_waiting = 0
        self._overflowed = False

    def add_values(self, values: np.ndarray) -> None:
        """Count values of 64 bits each, told apart by their bits."""
        if self._overflowed:  # few hashes are small enough now: those are quicker sorted than all values looked up
            self.add(_mix(values.view(np.uint64)))
        else:
            self.add(_mix(_distinct(values)))

    def add(self, hashes: UInt64[np.ndarray, " n"]) -> None:
        """Count the values with these hashes."""
        if self._overflowed:
            hashes = hashes[hashes < self._smallest[-1]]
        self._waiting.append(hashes)
        self._n_waiting += len(hashes)
        if self._n_waiting > EXACT_DISTINCT:
            self._merge()

    def _merge(self) -> None:
        merged = np.sort(np.concatenate([self._smallest, *self._waiting]))
        merged = merged[np.diff(merged, prepend=~merged[:1]) != 0]
        self._overflowed = self._overflowed or len(merged) > EXACT_DISTINCT
        self._smallest = merged[:EXACT_DISTINCT]
        self._waiting, self._n_waiting = [], 0

    def result(self) -> tuple[int, bool]:
        """Number of distinct values, and whether it is exact."""
        self._merge()
        if not self._overflowed:
            return len(self._smallest), True
        fraction = (int(self._smallest[-1]) + 1) / 2**64
        return round((EXACT_DISTINCT - 1) / fraction), False


class ValueCounter:
    """How often each string occurs; the rarest are forgotten when there are too many (Misra and Gries 1982)."""

    def __init__(self, capacity: int = COUNTED_VALUES) -> None:
        self.counts: Counter[str] = Counter()
        self.is_exact = True
        self._capacity = capacity

    def add(self, encoded: pa.DictionaryArray) -> None:
        """Count the cells of one batch."""
        indices = encoded.indices.drop_null().to_numpy(zero_copy_only=False)
        counts = np.bincount(indices, minlength=len(encoded.dictionary))
        for value, count in zip(encoded.dictionary.to_pylist(), counts.tolist(), strict=True):
            if count:
                self.counts[value] += count
        if len(self.counts) > self._capacity:
            self.is_exact = False
            threshold = np.partition(list(self.counts.values()), -(self._capacity // 2))[-(self._capacity // 2)]
            self.counts = Counter({value: count for value, count in self.counts.items() if count > threshold})

    def most_common(self, n_values: int | None = None) -> list[tuple[str, int]]:
        """Values by decreasing count; equal counts in the order of the values."""
        return sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))[:n_values]


class NumberProfile:
    """Range, mean and order of a number column."""

    def __init__(self, column: str) -> None:
        self._column = column
        self.distinct = DistinctCounter()
        self.n_missing = 0
        self.n_infinite = 0
        self.n_finite = 0
        self.minimum: float | None = None
        self.maximum: float | None = None
        self._mean = 0.0
        self._last: float | None = None
        self._rises = True
        self._falls = True

    def update(self, array: pa.Array) -> None:
        """Take in one batch."""
        values = to_numbers(array, self._column)
        present = _those(values, ~np.isnan(values))
        finite = _those(present, np.isfinite(present))
        self.n_missing += len(values) - len(present)
        self.n_infinite += len(present) - len(finite)
        if pa.types.is_integer(array.type):  # float64 would merge large integers
            exact = array.drop_null().cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False)
            self._note_order(exact)
            self.distinct.add_values(exact)
        else:
            self._note_order(present)
            self.distinct.add_values(present + 0.0)  # -0.0 is 0.0
        if len(finite):
            low, high = float(finite.min()), float(finite.max())
            self.minimum = low if self.minimum is None else min(low, self.minimum)
            self.maximum = high if self.maximum is None else max(high, self.maximum)
            self.n_finite += len(finite)
            share = len(finite) / self.n_finite
            self._mean = self._mean * (1 - share) + float(np.mean(finite / len(finite)) * len(finite)) * share

    def _note_order(self, values: np.ndarray) -> None:
        if len(values) == 0:
            return
        before = values[:1] if self._last is None else np.array([self._last], dtype=values.dtype)
        start = 1 if self._last is None else 0
        follows = np.concatenate([before, values[start:]])
        self._rises = self._rises and bool(np.all(follows[1:] > follows[:-1]))
        self._falls = self._falls and bool(np.all(follows[1:] < follows[:-1]))
        self._last = values[-1]

    @property
    def mean(self) -> float | None:
        """Mean of the finite values."""
        return self._mean if self.n_finite else None

    @property
    def range(self) -> float:
        """Distance from the smallest to the largest finite value."""
        return 0.0 if self.minimum is None or self.maximum is None else self.maximum - self.minimum

    @property
    def is_strictly_sorted(self) -> bool:
        """Whether every value is above the one before, or every value below."""
        return self._rises or self._falls


class TimestampProfile:
    """Range of a column of dates or times."""

    def __init__(self, column: str) -> None:
        self._column = column
        self.distinct = DistinctCounter()
        self.n_missing = 0
        self.earliest: np.datetime64 | None = None
        self.latest: np.datetime64 | None = None

    def update(self, array: pa.Array) -> None:
        """Take in one batch."""
        instants = to_instants(array, self._column)
        present = instants[~np.isnat(instants)]
        self.n_missing += len(instants) - len(present)
        self.distinct.add_values(present.view(np.int64))
        if len(present):
            earliest, latest = present.min(), present.max()
            self.earliest = earliest if self.earliest is None else min(earliest, self.earliest)
            self.latest = latest if self.latest is None else max(latest, self.latest)


class StringProfile:
    """Frequencies of a column of strings or codes, and what its texts look like."""

    def __init__(self, column: str) -> None:
        self._column = column
        self.distinct = DistinctCounter()
        self.values = ValueCounter()
        self.n_missing = 0
        self.texts: list[str] = []
        self._n_present = 0
        self._n_words = 0
        self._n_characters = 0

    def update(self, array: pa.Array) -> None:
        """Take in one batch."""
        encoded = to_strings(array, self._column)
        self.n_missing += encoded.null_count
        self._n_present += len(encoded) - encoded.null_count
        self.values.add(encoded)
        values = encoded.dictionary
        texts = values.to_pylist()
        hashes = (int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") for text in texts)
        self.distinct.add(np.fromiter(hashes, np.uint64, len(texts)))
        if is_string(values.type) and len(values):
            counts = np.bincount(encoded.indices.drop_null().to_numpy(zero_copy_only=False), minlength=len(values))
            gaps = pc.count_substring(pc.utf8_trim_whitespace(values), " ").to_numpy(zero_copy_only=False)
            lengths = pc.utf8_length(values).to_numpy(zero_copy_only=False)
            self._n_words += int(((gaps + 1) * counts).sum())
            self._n_characters += int((lengths * counts).sum())
            self.texts.extend(texts[: SAMPLED_TEXTS - len(self.texts)])

    @property
    def words_per_cell(self) -> float:
        """Mean number of words, by the blanks between them."""
        return self._n_words / max(self._n_present, 1)

    @property
    def characters_per_cell(self) -> float:
        """Mean number of characters."""
        return self._n_characters / max(self._n_present, 1)


class BooleanProfile:
    """How often true and false occur."""

    def __init__(self, column: str) -> None:
        self._column = column
        self.n_missing = 0
        self.n_true = 0
        self.n_false = 0

    def update(self, array: pa.Array) -> None:
        """Take in one batch."""
        truth = to_booleans(array, self._column)
        self.n_missing += int((truth < 0).sum())
        self.n_true += int((truth == 1).sum())
        self.n_false += int((truth == 0).sum())


def _those(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The wanted values; a view if it is all of them."""
    return values if wanted.all() else values[wanted]


def _distinct(values: np.ndarray) -> UInt64[np.ndarray, " n"]:
    """The bits of each different 64-bit value."""
    return pc.unique(pa.array(values)).to_numpy(zero_copy_only=False).view(np.uint64)


def _mix(words: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Splitmix64's finaliser: one evenly spread hash per 64-bit word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
