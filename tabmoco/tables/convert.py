"""Arrow arrays of any type into the one form each kind of column is read in.

Numbers become float64 with NaN for missing, instants ``datetime64[us]`` with NaT, booleans int8 with -1, and
categories and texts a dictionary of distinct strings. Whatever cannot be converted raises `SchemaError` with the
column's name and an example value.
"""

from __future__ import annotations

import shlex

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tabmoco.errors import SchemaError
from tabmoco.tables.hidden import is_untold, quoted_cell

UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_TRUE_WORDS = ("true", "yes", "t", "y", "1")
_FALSE_WORDS = ("false", "no", "f", "n", "0")


def is_string(arrow_type: pa.DataType) -> bool:
    """Whether values of this type are text."""
    return pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type)


def is_scalar(arrow_type: pa.DataType) -> bool:
    """Whether a column of this type can be used at all: no lists, structs, maps, binaries or intervals."""
    types = pa.types
    if types.is_dictionary(arrow_type):
        return is_scalar(arrow_type.value_type)
    return (
        is_string(arrow_type)
        or types.is_null(arrow_type)
        or types.is_boolean(arrow_type)
        or types.is_integer(arrow_type)
        or types.is_floating(arrow_type)
        or types.is_decimal(arrow_type)
        or types.is_date(arrow_type)
        or types.is_timestamp(arrow_type)
        or types.is_time(arrow_type)
        or types.is_duration(arrow_type)
    )


def unwrapped_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type that `unwrap` gives an array of this type."""
    if _is_uuid(arrow_type):
        return pa.string()
    if isinstance(arrow_type, pa.BaseExtensionType):
        return unwrapped_type(arrow_type.storage_type)
    if pa.types.is_run_end_encoded(arrow_type):
        return unwrapped_type(arrow_type.value_type)
    if pa.types.is_dictionary(arrow_type):
        return pa.dictionary(arrow_type.index_type, unwrapped_type(arrow_type.value_type))
    return pa.large_string() if arrow_type == pa.string_view() else arrow_type


def unwrapped_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with the type of every column unwrapped."""
    return pa.schema([pa.field(field.name, unwrapped_type(field.type)) for field in schema])


def unwrap(array: pa.Array) -> pa.Array:
    """The same values without extension, view and run-length types; UUIDs become text."""
    if _is_uuid(array.type):
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], pa.string())
    if isinstance(array, pa.ExtensionArray):
        return unwrap(array.storage)
    if pa.types.is_run_end_encoded(array.type):
        return unwrap(pc.run_end_decode(array))
    if pa.types.is_dictionary(array.type) and unwrapped_type(array.type) != array.type:
        return pa.DictionaryArray.from_arrays(array.indices, unwrap(array.dictionary))
    return array.cast(pa.large_string()) if array.type == pa.string_view() else array


def plain(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The same values in one piece, without a dictionary."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    array = unwrap(array)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    return array


def to_numbers(array: pa.Array | pa.ChunkedArray, column: str) -> np.ndarray:
    """Read cells as float64; missing cells are NaN, durations and times of day are seconds.

    Raises
    ------
    SchemaError
        If a text cell is no number, or the type has no numeric meaning.
    """
    array = plain(array)
    arrow_type = array.type
    if pa.types.is_null(arrow_type):
        return np.full(len(array), np.nan)
    if is_string(arrow_type):
        numbers = _parse(array, pa.float64(), column=column, wanted="a number")
    elif pa.types.is_duration(arrow_type) or pa.types.is_time(arrow_type):
        ticks, n_per_second = _ticks(array)
        return _dense(ticks.cast(pa.float64(), safe=False)) / n_per_second
    elif pa.types.is_date(arrow_type) or pa.types.is_timestamp(arrow_type):
        instants = to_instants(array, column)
        seconds = instants.astype(np.int64) / 1e6
        return np.where(np.isnat(instants), np.nan, seconds)
    elif pa.types.is_boolean(arrow_type):
        numbers = array.cast(pa.uint8()).cast(pa.float64())
    elif pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type) or pa.types.is_decimal(arrow_type):
        numbers = array.cast(pa.float64(), safe=False)
    else:
        raise _wrong_type(column, arrow_type, "a number")
    return _dense(numbers)


def to_instants(array: pa.Array | pa.ChunkedArray, column: str) -> np.ndarray:
    """Read cells as ``datetime64[us]``, in UTC where a time zone is known; missing cells are NaT.

    Raises
    ------
    SchemaError
        If a text cell is no ISO 8601 date or time, or the type has no such meaning.
    """
    array = plain(array)
    arrow_type = array.type
    if pa.types.is_null(arrow_type):
        return np.full(len(array), np.datetime64("NaT", "us"))
    if is_string(arrow_type):
        array = _parse_instants(array, column)
    elif not (pa.types.is_date(arrow_type) or pa.types.is_timestamp(arrow_type)):
        raise _wrong_type(column, arrow_type, "a date or time")
    ticks, n_per_second = _ticks(array)
    try:
        if n_per_second <= 10**6:
            microseconds = pc.multiply_checked(ticks, 10**6 // n_per_second)
        else:
            microseconds = pa.array(_whole(ticks) // (n_per_second // 10**6))
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"Column {column!r} must hold dates between the years -290307 and 294247, got one outside; "
            "correct it or exclude the column."
        ) from error
    instants = _whole(microseconds).astype("datetime64[us]")
    instants[array.is_null().to_numpy(zero_copy_only=False)] = np.datetime64("NaT")
    return instants


def to_booleans(array: pa.Array | pa.ChunkedArray, column: str) -> np.ndarray:
    """Read cells as int8: 0 false, 1 true, -1 missing; 0/1 numbers and words such as yes and no are accepted.

    Raises
    ------
    SchemaError
        If a cell is neither true nor false.
    """
    array = plain(array)
    if pa.types.is_boolean(array.type):
        return array.cast(pa.int8()).fill_null(-1).to_numpy(zero_copy_only=False)
    words = to_strings(array, column)
    values = [value.strip().lower() for value in words.dictionary.to_pylist()]
    for value in values:
        if value not in _TRUE_WORDS and value not in _FALSE_WORDS:
            raise SchemaError(
                f"Column {column!r} must hold true or false (or yes, no, 1, 0), got {quoted_cell(value)}; "
                f"correct it, or use the kind category."
            )
    truth = np.array([value in _TRUE_WORDS for value in values] + [-1], dtype=np.int8)
    return truth[words.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]


def to_strings(array: pa.Array | pa.ChunkedArray, column: str) -> pa.DictionaryArray:
    """Read cells as distinct strings and their positions; missing cells are null.

    Whole floats read like integers (``3.0`` is ``"3"``), so that a column keeps its values when nulls turn its
    integers into floats.

    Raises
    ------
    SchemaError
        If the type cannot be written as text, or holds bytes that are not UTF-8.
    """
    array = plain(array)
    arrow_type = array.type
    if not is_scalar(arrow_type):
        raise _wrong_type(column, arrow_type, "text or a category")
    if pa.types.is_null(arrow_type):
        return pa.array([None] * len(array), pa.string()).dictionary_encode()
    if is_string(arrow_type):
        encoded = array.cast(pa.string()).dictionary_encode()
        try:
            encoded.dictionary.validate(full=True)
        except pa.ArrowInvalid as error:
            raise SchemaError(f"Column {column!r} holds text that is not UTF-8; re-encode the file.") from error
        return encoded
    if pa.types.is_decimal(arrow_type) or pa.types.is_duration(arrow_type) or pa.types.is_time(arrow_type):
        array = pa.array(to_numbers(array, column), from_pandas=True)
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    encoded = array.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices, _write(encoded.dictionary))


def _write(values: pa.Array) -> pa.Array:
    if not pa.types.is_floating(values.type):
        return values.cast(pa.string())
    numbers = values.to_numpy(zero_copy_only=False).astype(np.float64)
    whole = (np.trunc(numbers) == numbers) & (np.abs(numbers) < 2**53)
    integers = pa.array(np.where(whole, numbers, 0).astype(np.int64)).cast(pa.string())
    return pc.if_else(pa.array(whole), integers, values.cast(pa.string()))


def _dense(numbers: pa.Array) -> np.ndarray:
    values = numbers.to_numpy(zero_copy_only=False)
    return np.array(values, dtype=np.float64)


def _is_uuid(arrow_type: pa.DataType) -> bool:
    return isinstance(arrow_type, pa.BaseExtensionType) and arrow_type.extension_name == "arrow.uuid"


def _whole(integers: pa.Array) -> np.ndarray:
    return np.array(integers.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)


def _ticks(array: pa.Array) -> tuple[pa.Array, int]:
    """The integers behind dates, instants, durations and times of day, and how many make a second."""
    if pa.types.is_date(array.type):
        return pc.multiply(array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()), 86_400), 1
    if pa.types.is_time32(array.type):
        array = array.cast(pa.time64("us"))
    return array.cast(pa.int64()), UNITS_PER_SECOND[array.type.unit]


def _parse(array: pa.Array, arrow_type: pa.DataType, *, column: str, wanted: str) -> pa.Array:
    trimmed = pc.utf8_trim_whitespace(array)
    try:
        return trimmed.cast(arrow_type)
    except pa.ArrowInvalid as error:
        example = _first_unreadable(trimmed, arrow_type)
        raise SchemaError(
            f"Column {column!r} must hold {wanted} in every cell, got {quoted_cell(example)}; "
            "correct it, leave the cell empty, or give the column another kind."
        ) from (None if is_untold() else error)


def _parse_instants(array: pa.Array, column: str) -> pa.Array:
    trimmed = pc.utf8_trim_whitespace(array)
    for arrow_type in (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        try:
            return trimmed.cast(arrow_type)
        except pa.ArrowInvalid:
            continue
    return _parse(array, pa.timestamp("us"), column=column, wanted="an ISO 8601 date or time")


def _first_unreadable(array: pa.Array, arrow_type: pa.DataType) -> str | None:
    for value in array.unique():
        try:
            value.cast(arrow_type)
        except pa.ArrowInvalid:
            return str(value.as_py())
    return None


def _wrong_type(column: str, arrow_type: pa.DataType, wanted: str) -> SchemaError:
    return SchemaError(
        f"Column {column!r} must hold {wanted}, got the type {arrow_type}; convert it, or leave it out with "
        f"--exclude {shlex.quote(column)}."
    )
