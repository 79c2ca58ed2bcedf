"""Numbers, categories, booleans and timestamps as slots; texts have a module of their own.

Every encoder has ``n_numbers`` and ``cardinalities`` (the slots it fills), ``encode``, ``decode_number`` and
``decode_code`` (slots counted within the column), and JSON in and out. Cells come in the form `read_cells` gives.
"""

from __future__ import annotations

import calendar
import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float32, Int64

from tabmoco.config import Kind
from tabmoco.errors import SchemaError
from tabmoco.tables.convert import to_booleans, to_instants, to_numbers, to_strings
from tabmoco.tables.names import counted
from tabmoco.tables.notices import Notices
from tabmoco.tables.profiles import ValueCounter
from tabmoco.tables.scalings import location_and_scale, standardise, unstandardise

_DAY_SECONDS = 86_400
_DAY_ANGLE = 2 * np.pi * np.arange(_DAY_SECONDS) / _DAY_SECONDS
_DAY_CIRCLE = np.stack([np.sin(_DAY_ANGLE), np.cos(_DAY_ANGLE)], axis=1).astype(np.float32) + np.float32(0)
_WEEKDAYS = tuple(calendar.day_name)
_MONTHS = tuple(calendar.month_name)[1:]


@dataclass
class Slots:
    """The slots of one column."""

    number: Float32[np.ndarray, "N Sn"]
    code: Int64[np.ndarray, "N Sc"]
    missing: Bool[np.ndarray, " N"]


def read_cells(kind: Kind, array: pa.Array | pa.ChunkedArray, column: str) -> np.ndarray | pa.DictionaryArray:
    """Cells in the form the encoder of that kind takes; see `tabmoco.tables.convert`."""
    readers = {
        "number": to_numbers,
        "timestamp": to_instants,
        "boolean": to_booleans,
        "category": to_strings,
        "text": to_strings,
    }
    return readers[kind](array, column)


@dataclass(frozen=True)
class NumberEncoder:
    """One slot with the z-score; NaN is missing, infinity an extreme value or an error."""

    column: str
    location: float
    scale: float
    is_whole: bool
    """Whether the column held integers, so that decoded values are rounded."""

    refuse_infinite: bool

    n_numbers: ClassVar[int] = 1
    cardinalities: ClassVar[tuple[int, ...]] = ()

    @classmethod
    def fit(cls, column: str, cells: np.ndarray, *, is_whole: bool, refuse_infinite: bool) -> NumberEncoder:
        """Learn location and scale from the finite cells."""
        location, scale = location_and_scale(cells[np.isfinite(cells)])
        return cls(column, location, scale, is_whole, refuse_infinite)

    def encode(self, cells: np.ndarray, notices: Notices) -> Slots:
        missing = np.isnan(cells)
        n_infinite = int(np.isinf(cells).sum())
        if n_infinite and self.refuse_infinite:
            raise SchemaError(
                f"Column {self.column!r} must be finite, but has {counted(n_infinite, 'infinite cell')}; clean them, "
                'or set infinities = "extreme".'
            )
        if n_infinite:
            notices.infinite(self.column, n_infinite)
        z = standardise(np.where(missing, self.location, cells), self.location, self.scale)
        z[missing] = 0
        return Slots(z[:, None], _no_codes(len(cells)), missing)

    def decode_number(self, slot: int, value: float) -> float | int:
        number = unstandardise(value, self.location, self.scale)
        return round(number) if self.is_whole and np.isfinite(number) else number

    def decode_code(self, slot: int, code: int) -> str | None:
        raise IndexError(f"Column {self.column!r} has no code slot.")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> NumberEncoder:
        return cls(**values)


@dataclass(frozen=True)
class CategoryEncoder:
    """One slot with a code per value: 0 for unknown, then by decreasing frequency."""

    column: str
    values: tuple[str, ...]
    """All values seen in training, most frequent first (at most ``max_categories``)."""

    n_coded: int
    """The first so many values have a code of their own; the others are rare and share code 0."""

    n_numbers: ClassVar[int] = 0

    @property
    def cardinalities(self) -> tuple[int, ...]:
        return (self.n_coded + 1,)

    @classmethod
    def fit(cls, column: str, counts: ValueCounter, *, max_categories: int, min_count: int) -> CategoryEncoder:
        """Give codes to the values seen at least `min_count` times, or to the most frequent if none is."""
        kept = counts.most_common(max_categories)
        highest = kept[0][1] if kept else 0
        n_coded = sum(count >= min(min_count, highest) for _, count in kept)
        return cls(column, tuple(value for value, _ in kept), n_coded)

    def encode(self, cells: pa.DictionaryArray, notices: Notices) -> Slots:
        known = pc.index_in(cells.dictionary, pa.array(self.values, pa.string())).fill_null(-1)
        rank = known.to_numpy(zero_copy_only=False)
        code_of_value = np.where((rank >= 0) & (rank < self.n_coded), rank + 1, 0).astype(np.int64)
        indices, missing = indices_and_missing(cells)
        if (rank < 0).any():
            counts = np.bincount(indices[~missing], minlength=len(rank))
            unseen = np.flatnonzero((rank < 0) & (counts > 0))
            if len(unseen):
                examples = cells.dictionary.take(pa.array(unseen[:10])).to_pylist()
                notices.unseen(self.column, int(counts[unseen].sum()), examples)
        code = np.append(code_of_value, 0)[indices]
        return Slots(_no_numbers(len(cells)), code[:, None], missing)

    def decode_number(self, slot: int, value: float) -> float:
        raise IndexError(f"Column {self.column!r} has no number slot.")

    def decode_code(self, slot: int, code: int) -> str | None:
        return None if code == 0 else self.values[code - 1]

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "values": list(self.values)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> CategoryEncoder:
        return cls(**{**values, "values": tuple(values["values"])})


@dataclass(frozen=True)
class BooleanEncoder:
    """One slot with code 1 for false and 2 for true."""

    column: str

    n_numbers: ClassVar[int] = 0
    cardinalities: ClassVar[tuple[int, ...]] = (3,)

    def encode(self, cells: np.ndarray, notices: Notices) -> Slots:
        return Slots(_no_numbers(len(cells)), (cells.astype(np.int64) + 1)[:, None], cells < 0)

    def decode_number(self, slot: int, value: float) -> float:
        raise IndexError(f"Column {self.column!r} has no number slot.")

    def decode_code(self, slot: int, code: int) -> str | None:
        return (None, "false", "true")[code]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> BooleanEncoder:
        return cls(**values)


@dataclass(frozen=True)
class TimestampEncoder:
    """Elapsed time as a z-score, and the calendar parts that vary: time of day, weekday, month.

    Time zones are reckoned in UTC, times without a zone as they stand. The time of day is a point on the unit circle
    (two number slots, to the second); weekday (Monday is 1) and month (January is 1) are codes.
    """

    column: str
    location: float
    scale: float
    has_time: bool
    has_weekday: bool
    has_month: bool

    @property
    def n_numbers(self) -> int:
        return 3 if self.has_time else 1

    @property
    def cardinalities(self) -> tuple[int, ...]:
        return ((8,) if self.has_weekday else ()) + ((13,) if self.has_month else ())

    @classmethod
    def fit(cls, column: str, cells: np.ndarray) -> TimestampEncoder:
        """Learn range and calendar parts from the cells that are not NaT."""
        present = cells[~np.isnat(cells)]
        location, scale = location_and_scale(_seconds(present))
        varies = [len(part) > 0 and bool((part != part[0]).any()) for part in _calendar(present)]
        return cls(column, location, scale, *varies)

    def encode(self, cells: np.ndarray, notices: Notices) -> Slots:
        missing = np.isnat(cells)
        filled = np.where(missing, np.datetime64(0, "us"), cells)
        second, weekday, month = _calendar(filled)
        number = [standardise(_seconds(filled), self.location, self.scale)[:, None]]
        number += [_DAY_CIRCLE[second]] if self.has_time else []
        codes = ([weekday] if self.has_weekday else []) + ([month] if self.has_month else [])
        code = np.stack(codes, axis=1) if codes else _no_codes(len(cells))
        return Slots(
            np.where(missing[:, None], np.float32(0), np.concatenate(number, axis=1)),
            np.where(missing[:, None], 0, code),
            missing,
        )

    def decode_number(self, slot: int, value: float) -> str | float:
        """Slot 0 as ISO 8601 to the second; the two others are the sine and cosine of the time of day."""
        if slot > 0:
            return value
        second = unstandardise(value, self.location, self.scale)
        limit = np.iinfo(np.int64).max // 10**6
        return np.datetime_as_string(np.datetime64(int(np.clip(round(second), -limit, limit)), "s")).item()

    def decode_code(self, slot: int, code: int) -> str | None:
        names = ([_WEEKDAYS] if self.has_weekday else []) + ([_MONTHS] if self.has_month else [])
        return None if code == 0 else names[slot][code - 1]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TimestampEncoder:
        return cls(**values)


def _seconds(instants: np.ndarray) -> np.ndarray:
    return instants.astype(np.int64) / 1e6


def _calendar(instants: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Second of the day, weekday from 1 and month from 1."""
    seconds = instants.astype(np.int64) // 10**6
    weekday = (seconds // _DAY_SECONDS + 3) % 7 + 1  # 1970-01-01 was a Thursday
    month = instants.astype("datetime64[M]").astype(np.int64) % 12 + 1
    return seconds % _DAY_SECONDS, weekday, month


def indices_and_missing(cells: pa.DictionaryArray) -> tuple[np.ndarray, np.ndarray]:
    """Dictionary positions, with the dictionary's length for missing cells; and which cells are missing."""
    indices = cells.indices.fill_null(len(cells.dictionary)).to_numpy(zero_copy_only=False)
    return indices, indices == len(cells.dictionary)


def _no_numbers(n_rows: int) -> np.ndarray:
    return np.zeros((n_rows, 0), np.float32)


def _no_codes(n_rows: int) -> np.ndarray:
    return np.zeros((n_rows, 0), np.int64)
