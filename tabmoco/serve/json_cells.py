"""Cells of JSON as Arrow columns, read as the model's schema says.

Each cell is read by itself, so that whether a row is accepted, and as what, does not depend on the rows beside it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tabmoco.errors import SchemaError
from tabmoco.tables.convert import to_instants, to_numbers, to_strings
from tabmoco.tables.families import family_of
from tabmoco.tables.schema import Column

_NUMERAL = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)
_INTEGER = re.compile(r"\s*[-+]?\d{1,40}\s*", re.ASCII)
_ZONE = re.compile(r"\d([zZ]|[-+]\d\d(:?\d\d)?)\s*$")
_DATE_ONLY = re.compile(r"\s*[-+]?\d+-\d\d-\d\d\s*")
_NANOSECONDS = re.compile(r"\.\d{7}")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]")
_MOST_SECONDS = 9e12
"""Within 64 bits of microseconds."""


def cells_to_arrow(values: Sequence[Any], column: Column) -> pa.Array:
    """The cells of one column; null is a missing cell.

    Numbers may be written as text, such as decimals with more digits than JSON readers keep. Dates, instants and times
    of day are text in ISO 8601, durations a number of seconds. Categories and texts take text, numbers and truth
    values, each spelled as in a table of that type.

    Raises
    ------
    SchemaError
        With the column, what was found and its row.
    """
    for row, value in enumerate(values):
        if isinstance(value, list | dict):
            raise _unfit(column, "a single value in every cell", value, row)
    family = family_of(column.arrow_type)
    if column.kind in ("category", "text", "boolean"):
        readers: dict[str, Callable[[Sequence[Any], Column], pa.Array]] = {
            "instant": _dated_words,
            "duration": lambda cells, own: _words(_none_for_nan(to_numbers(_durations(cells, own), own.name)), own),
            "time": lambda cells, own: _words(_none_for_nan(to_numbers(_times(cells, own), own.name)), own),
        }
        return readers.get(family, _words)(values, column)
    if column.kind == "timestamp" or family == "instant":
        return _instants(values, column)
    return {"duration": _durations, "time": _times}.get(family, _numbers)(values, column)


def _numbers(values: Sequence[Any], column: Column) -> pa.Array:
    with_truth = family_of(column.arrow_type) == "boolean"
    numbers = np.full(len(values), np.nan)
    numerals = {}
    for row, value in enumerate(values):
        if isinstance(value, str):
            numerals[row] = value
        elif isinstance(value, bool) and not with_truth:
            raise _unfit(column, "a number in every cell", value, row)
        elif value is not None:
            try:
                numbers[row] = value
            except OverflowError as error:
                raise _unfit(column, "numbers within the range of 64-bit floats", value, row) from error
    if numerals:
        numbers[list(numerals)] = to_numbers(_strings(list(numerals.values()), column), column.name)
    return pa.array(numbers, from_pandas=True)


def _words(values: Sequence[Any], column: Column) -> pa.Array:
    """Text as it is, numbers and truth values as `to_strings` spells them."""
    of_numbers = family_of(column.arrow_type) in ("number", "duration", "time")
    words: list[str | None] = []
    fractions: dict[int, float] = {}
    for row, value in enumerate(values):
        if isinstance(value, str) and of_numbers and _NUMERAL.fullmatch(value):
            value = int(value) if _INTEGER.fullmatch(value) else float(value)
        if isinstance(value, float):
            fractions[row] = value
        word = str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int) else value
        words.append(None if isinstance(value, float) else word)
    if fractions:
        spelled = to_strings(pa.array(list(fractions.values()), pa.float64()), column.name).to_pylist()
        for row, word in zip(fractions, spelled, strict=True):
            words[row] = word
    return _strings(words, column)


def _instants(values: Sequence[Any], column: Column) -> pa.Array:
    """Instants of one spelling together: Arrow reads a column with time zones or without, and to one precision."""
    spellings: dict[tuple[bool, bool], list[int]] = {}
    for row, value in enumerate(values):
        if value is None:
            continue
        if not isinstance(value, str):
            raise _unfit(column, "ISO 8601 dates or times, as text", value, row)
        zoned = bool(_ZONE.search(value)) and not _DATE_ONLY.fullmatch(value)
        spellings.setdefault((zoned, bool(_NANOSECONDS.search(value))), []).append(row)
    instants = np.full(len(values), np.datetime64("NaT", "us"))
    for rows in spellings.values():
        instants[rows] = to_instants(_strings([values[row] for row in rows], column), column.name)
    return pa.array(instants, pa.timestamp("us"))


def _dated_words(values: Sequence[Any], column: Column) -> pa.Array:
    """Dates that are categories: in the type they had in training, in which they are spelled as there."""
    instants = _instants(values, column)
    name = column.arrow_type
    if name.startswith("dictionary<values="):
        name = name.removeprefix("dictionary<values=").partition(", indices=")[0]
    if name.startswith("date"):
        return instants.cast(pa.date32(), safe=False)
    found = _TIMESTAMP.fullmatch(name)
    unit, zone = found.groups() if found is not None else ("us", None)
    try:
        if zone is not None:
            return instants.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp(unit, zone), safe=False)
        return instants.cast(pa.timestamp(unit), safe=False)
    except pa.ArrowException as error:
        raise SchemaError(f"Column {column.name!r} must hold times that fit {name}; correct them.") from error


def _durations(values: Sequence[Any], column: Column) -> pa.Array:
    seconds = _numbers(values, column).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        beyond = np.flatnonzero(np.abs(seconds) > _MOST_SECONDS)
    if len(beyond):
        raise _unfit(column, "durations, as a number of seconds", values[beyond[0]], int(beyond[0]))
    ticks = np.where(np.isnan(seconds), 0, np.rint(seconds * 1e6)).astype(np.int64)
    return pa.array(ticks, mask=np.isnan(seconds)).cast(pa.duration("us"))


def _times(values: Sequence[Any], column: Column) -> pa.Array:
    times = []
    for row, value in enumerate(values):
        try:
            times.append(None if value is None else dt.time.fromisoformat(value).replace(tzinfo=None))
        except (TypeError, ValueError) as error:
            raise _unfit(column, "times of day such as 17:30:00, as text", value, row) from error
    return pa.array(times, pa.time64("us"))


def _strings(words: list[str | None], column: Column) -> pa.Array:
    try:
        return pa.array(words, pa.string())
    except UnicodeEncodeError as error:
        raise SchemaError(
            f"Column {column.name!r} must hold text, got half of a surrogate pair; correct the escapes that begin with "
            "\\ud8 to \\udf."
        ) from error


def _none_for_nan(numbers: np.ndarray) -> list[float | None]:
    return [None if number != number else number for number in numbers.tolist()]


def _unfit(column: Column, wanted: str, value: Any, row: int) -> SchemaError:
    found = "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else repr(value)[:80]
    return SchemaError(
        f"Column {column.name!r} must hold {wanted}, got {found} in row {row}; correct it, or write null for a missing "
        "cell."
    )
