"""Numbers, categories, booleans and timestamps as slots; texts have a module of their own.

Every encoder has ``n_numbers`` and ``cardinalities`` (the slots it fills), ``encode``, ``decode_number`` and
``decode_code`` (slots counted within the column), and JSON in and out. Cells come in the form `read_cells` gives.
"""

from __future__ import annotations

import calendar
import dataclasses
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float32, Int64

from tabmoco.config import Kind
from tabmoco.errors import ModelFileError, SchemaError
from tabmoco.settings import check_types
from tabmoco.tables.convert import to_booleans, to_instants, to_numbers, to_strings
from tabmoco.tables.hidden import check_salt, hidden_name, keyed_hash
from tabmoco.tables.names import counted
from tabmoco.tables.notices import Notices
from tabmoco.tables.profiles import ValueCounter
from tabmoco.tables.scalings import location_and_scale, standardise, unstandardise

_DAY_SECONDS = 86_400
_DAY_ANGLE = 2 * np.pi * np.arange(_DAY_SECONDS) / _DAY_SECONDS
_DAY_CIRCLE = np.stack([np.sin(_DAY_ANGLE), np.cos(_DAY_ANGLE)], axis=1).astype(np.float32) + np.float32(0)
_WEEKDAYS = tuple(calendar.day_name)
_MONTHS = tuple(calendar.month_name)[1:]
_WHOLE_WEEK, _WHOLE_YEAR = 6, 334  # days from the first Monday to Sunday, from the first of January to that of December


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
        encoder = cls(**values)
        _check_scale(encoder, sys.float_info.max)
        return encoder


@dataclass(frozen=True)
class CategoryEncoder:
    """One slot with a code per value: 0 for unknown, then by decreasing frequency, then those that came later."""

    column: str
    values: tuple[str, ...]
    """All values seen in training, those with a code first and the most frequent first (at most ``max_categories``)."""

    n_coded: int
    """The first so many values have a code of their own; the others are rare and share code 0."""

    salt: str | None = None
    """Key of the hashes that stand in place of the values; None where the values are kept."""

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

    def hidden(self, salt: str) -> CategoryEncoder:
        """The same codes, with hashes in place of the values."""
        assert self.salt is None, "hashes are not hashed again"
        values = tuple(keyed_hash(value, salt) for value in self.values)
        return dataclasses.replace(self, values=values, salt=salt)

    def stored(self, value: str) -> str:
        """How a value stands in `values`."""
        return value if self.salt is None else keyed_hash(value, self.salt)

    def told(self, stored: str) -> str:
        """What people see of an entry of `values`."""
        return stored if self.salt is None else hidden_name(stored)

    def grown(self, counts: ValueCounter, *, max_categories: int, min_count: int) -> CategoryEncoder:
        """With codes, behind the old ones, for further values that are seen at least `min_count` times, as far as
        `max_categories` allows; those that were too rare so far may be among them."""
        old = self.values[: self.n_coded]
        known = set(old)
        seen = [(self.stored(value), count) for value, count in counts.most_common()]
        others = [(value, count) for value, count in seen if value not in known]
        frequent = [value for value, count in others if count >= min_count][: max(0, max_categories - len(old))]
        rare = [*self.values[self.n_coded :], *(value for value, _ in others)]
        values = tuple(dict.fromkeys([*old, *frequent, *rare]))[:max_categories]
        return CategoryEncoder(self.column, values, len(old) + len(frequent), self.salt)

    def encode(self, cells: pa.DictionaryArray, notices: Notices) -> Slots:
        found = cells.dictionary
        if self.salt is not None:
            found = pa.array([self.stored(value) for value in found.to_pylist()], pa.string())
        known = pc.index_in(found, pa.array(self.values, pa.string())).fill_null(-1)
        rank = known.to_numpy(zero_copy_only=False)
        code_of_value = np.where((rank >= 0) & (rank < self.n_coded), rank + 1, 0).astype(np.int64)
        indices, missing = indices_and_missing(cells)
        if (rank < 0).any():
            counts = np.bincount(indices[~missing], minlength=len(rank))
            n_unseen = int(counts[rank < 0].sum())
            if n_unseen:
                notices.unseen(self.column, n_unseen)
        code = np.append(code_of_value, 0)[indices]
        return Slots(_no_numbers(len(cells)), code[:, None], missing)

    def decode_number(self, slot: int, value: float) -> float:
        raise IndexError(f"Column {self.column!r} has no number slot.")

    def decode_code(self, slot: int, code: int) -> str | None:
        return None if code == 0 else self.told(self.values[code - 1])

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "values": list(self.values)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> CategoryEncoder:
        encoder = cls(**values)
        check_types(encoder)
        if not 0 <= encoder.n_coded <= len(encoder.values) or len(set(encoder.values)) < len(encoder.values):
            raise ModelFileError(
                f"column {encoder.column!r} must have distinct values, at least as many as codes, got "
                f"{len(encoder.values):,} values for {encoder.n_coded:,} codes; train the model again."
            )
        if encoder.salt is not None:
            check_salt(encoder.salt, encoder.column)
        return encoder


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
        encoder = cls(**values)
        check_types(encoder)
        return encoder


@dataclass(frozen=True)
class TimestampEncoder:
    """Elapsed time as a z-score, and the calendar parts that vary: time of day, weekday, month.

    Weekday and month count only if the times span a whole week or year: before that, one that never came says nothing,
    and rows of the next month would be strange for it.

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
        has_time, has_weekday, has_month = (
            len(part) > 0 and bool((part != part[0]).any()) for part in _calendar(present)
        )
        days = np.ptp(present) / np.timedelta64(1, "D") if len(present) else 0.0
        has_weekday, has_month = has_weekday and bool(days >= _WHOLE_WEEK), has_month and bool(days >= _WHOLE_YEAR)
        return cls(column, location, scale, has_time, has_weekday, has_month)

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
        limit = np.iinfo(np.int64).max // 10**6
        second = np.clip(unstandardise(value, self.location, self.scale), -limit, limit)
        return np.datetime_as_string(np.datetime64(round(second), "s")).item()

    def decode_code(self, slot: int, code: int) -> str | None:
        names = ([_WEEKDAYS] if self.has_weekday else []) + ([_MONTHS] if self.has_month else [])
        return None if code == 0 else names[slot][code - 1]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TimestampEncoder:
        encoder = cls(**values)
        _check_scale(encoder, np.iinfo(np.int64).max / 1e6)
        return encoder


def _check_scale(encoder: NumberEncoder | TimestampEncoder, most: float) -> None:
    check_types(encoder)
    if not (abs(encoder.location) <= most and 0 <= encoder.scale <= most):
        raise ModelFileError(
            f"location and scale of column {encoder.column!r} must lie within {most:g}, the scale at 0 or above, got "
            f"{encoder.location:g} and {encoder.scale:g}; train the model again."
        )


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
