"""Which Arrow types may stand in for the type a column had in training."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from tabmoco.config import Kind
from tabmoco.tables.convert import is_string, unwrapped_type

Family = Literal["number", "string", "boolean", "instant", "duration", "time", "empty", "nested"]

_PREFIXES: dict[str, Family] = {
    "int": "number",
    "uint": "number",
    "float": "number",
    "halffloat": "number",
    "double": "number",
    "decimal": "number",
    "bool": "boolean",
    "string": "string",
    "large_string": "string",
    "date": "instant",
    "timestamp": "instant",
    "time": "time",
    "duration": "duration",
    "null": "empty",
}  # the first prefix that fits decides, so "timestamp" stands before "time"


def family(arrow_type: pa.DataType) -> Family:
    """What the values of a type are, dictionaries and widths aside."""
    types = pa.types
    arrow_type = unwrapped_type(arrow_type)
    if types.is_dictionary(arrow_type):
        return family(arrow_type.value_type)
    if types.is_integer(arrow_type) or types.is_floating(arrow_type) or types.is_decimal(arrow_type):
        return "number"
    if is_string(arrow_type):
        return "string"
    if types.is_date(arrow_type) or types.is_timestamp(arrow_type):
        return "instant"
    if types.is_duration(arrow_type):
        return "duration"
    if types.is_time(arrow_type):
        return "time"
    if types.is_boolean(arrow_type):
        return "boolean"
    return "empty" if types.is_null(arrow_type) else "nested"


def family_of(type_name: str) -> Family:
    """`family` of a type known by its name, as schemas keep it."""
    value_type = type_name.removeprefix("dictionary<values=")
    return next((found for prefix, found in _PREFIXES.items() if value_type.startswith(prefix)), "nested")


def is_whole_number(type_name: str) -> bool:
    """Whether a type known by its name holds integers."""
    return type_name.startswith(("int", "uint"))


def accepts(kind: Kind, trained: str, found: pa.DataType) -> bool:
    """Whether cells of the type `found` can be read as a column of that kind and trained type.

    Text is let through where it may hold numbers, dates or truth values; reading it decides.
    """
    now = family(found)
    if now == "nested":
        return False
    if now in ("empty", family_of(trained)) or kind in ("category", "text"):
        return True
    if kind == "timestamp":
        return now in ("instant", "string")
    return now in ("number", "string", "boolean") and family_of(trained) not in ("duration", "time", "instant")
