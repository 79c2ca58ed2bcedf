"""Raw cells as short text for people."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pyarrow as pa

from tabmoco.tables.convert import UNITS_PER_SECOND
from tabmoco.tables.families import Family, family_of

LONGEST_TEXT = 60
MISSING = "(missing)"
EMPTY = "(empty)"


def describe(value: Any, type_name: str) -> str:
    """One cell in at most 60 characters: six significant digits, ISO 8601 times, ``(missing)`` or ``(empty)``.

    Parameters
    ----------
    value
        A Python, NumPy or Arrow scalar, or what `Preprocessor.decode_number` returned (seconds for durations and times
        of day).
    type_name
        The Arrow type of the column, as `Column.arrow_type` names it.
    """
    if isinstance(value, pa.Scalar):
        value = _from_arrow(value)
    if isinstance(value, np.datetime64):
        return MISSING if np.isnat(value) else _trim(np.datetime_as_string(value, unit="auto").item())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dt.timedelta):
        value = value.total_seconds()
    if value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value):
        return MISSING
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return _number(value, family_of(type_name))
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return _trim(value.isoformat())
    text = " ".join(str(value).split())
    if family_of(type_name) == "instant":
        text = _trim(text)
    if not text:
        return EMPTY
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def _from_arrow(scalar: pa.Scalar) -> Any:
    """Dates as NumPy's, which reach beyond year 9999; durations and times of day in seconds."""
    if not scalar.is_valid:
        return None
    if pa.types.is_timestamp(scalar.type):
        return np.datetime64(scalar.value, scalar.type.unit)
    if pa.types.is_date32(scalar.type):
        return np.datetime64(scalar.value, "D")
    if pa.types.is_date64(scalar.type):
        return np.datetime64(scalar.value, "ms")
    if pa.types.is_duration(scalar.type) or pa.types.is_time(scalar.type):
        return scalar.value / UNITS_PER_SECOND[scalar.type.unit]
    return scalar.as_py()


def _number(value: float | int, family: Family) -> str:
    if family in ("duration", "time") and math.isfinite(value):
        minutes, seconds = divmod(abs(value), 60)
        hours, minutes = divmod(int(minutes), 60)
        sign = "-" if value < 0 else ""
        return f"{sign}{hours:02d}:{minutes:02d}:{math.floor(seconds):02d}"
    if isinstance(value, int) and abs(value) < 10**15:
        return str(value)
    if float(value).is_integer() and abs(value) < 10**9:
        return str(int(value))
    return f"{value:.6g}"


def _trim(text: str) -> str:
    """Midnight is left out."""
    return text.removesuffix("T00:00:00").removesuffix("T00:00")
