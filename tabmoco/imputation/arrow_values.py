"""Numbers, instants and words as Arrow arrays of any type that a column may have: the inverse of
`tabmoco.tables.convert`."""

from __future__ import annotations

import decimal
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float, Int64

from tabmoco.errors import SchemaError
from tabmoco.tables.convert import UNITS_PER_SECOND, is_string

DAY = 86_400


def filled_type(arrow_type: pa.DataType, kind: str) -> pa.DataType:
    """The type of a column once its gaps are filled: its own, or, where it has none, that of its kind."""
    natural = {"number": pa.float64(), "timestamp": pa.timestamp("us"), "boolean": pa.bool_()}
    return natural.get(kind, pa.string()) if pa.types.is_null(arrow_type) else arrow_type


def numbers_as(values: Float[np.ndarray, " M"], arrow_type: pa.DataType) -> pa.Array:
    """Finite numbers (seconds for durations and times of day) in a type: rounded where it is whole, and no larger than
    it allows."""
    types = pa.types
    if types.is_dictionary(arrow_type):
        return _encoded(numbers_as(values, arrow_type.value_type), arrow_type)
    if types.is_integer(arrow_type):
        return pa.array(_whole(values, np.dtype(arrow_type.to_pandas_dtype())), arrow_type)
    if types.is_floating(arrow_type):
        dtype = np.dtype(arrow_type.to_pandas_dtype())
        most = np.finfo(dtype).max
        return pa.array(np.clip(values, -most, most).astype(dtype), arrow_type)
    if types.is_decimal(arrow_type):
        return pa.array([_decimal(value, arrow_type) for value in values.tolist()], arrow_type)
    if types.is_boolean(arrow_type):
        return pa.array(values >= 0.5)
    if is_string(arrow_type):
        words = [
            str(int(value)) if value.is_integer() and abs(value) < 2**53 else f"{value:.9g}"
            for value in values.tolist()
        ]
        return pa.array(words, arrow_type)
    if types.is_duration(arrow_type) or types.is_time(arrow_type):
        n_per_second = UNITS_PER_SECOND[arrow_type.unit]
        if types.is_time(arrow_type):
            values = np.clip(values, 0, np.nextafter(DAY - 1 / n_per_second, 0) if n_per_second < 10**9 else DAY - 1)
        ticks = _whole(values * n_per_second, np.dtype(np.int64))
        width = pa.int32() if types.is_time32(arrow_type) else pa.int64()
        return pa.array(ticks, pa.int64()).cast(width).cast(arrow_type)
    return instants_as(values, arrow_type)


def instants_as(seconds: Float[np.ndarray, " M"], arrow_type: pa.DataType) -> pa.Array:
    """Seconds since 1970, in UTC where the type has a time zone, as dates or times; text is ISO 8601."""
    types = pa.types
    if types.is_dictionary(arrow_type):
        return _encoded(instants_as(seconds, arrow_type.value_type), arrow_type)
    if types.is_date32(arrow_type):
        return pa.array(_whole(np.floor(seconds / DAY), np.dtype(np.int32)), pa.int32()).cast(arrow_type)
    if types.is_date64(arrow_type):
        return pa.array(_whole(np.floor(seconds / DAY) * DAY * 1_000, np.dtype(np.int64)), pa.int64()).cast(arrow_type)
    if types.is_timestamp(arrow_type):
        ticks = _whole(seconds * UNITS_PER_SECOND[arrow_type.unit], np.dtype(np.int64))
        return pa.array(ticks, pa.int64()).cast(arrow_type)
    instants = _whole(seconds, np.dtype(np.int64)).astype("datetime64[s]")
    words = [np.datetime_as_string(instant).item().removesuffix("T00:00:00") for instant in instants]
    return pa.array(words, pa.string()).cast(arrow_type)


def words_as(words: Sequence[str], arrow_type: pa.DataType) -> pa.Array:
    """Categories, as `to_strings` wrote them, in a type; null where the type cannot hold one."""
    types = pa.types
    if types.is_dictionary(arrow_type):
        return _encoded(words_as(words, arrow_type.value_type), arrow_type)
    distinct = list(dict.fromkeys(words))
    read = pa.concat_arrays([pa.array([], arrow_type), *(_read(word, arrow_type) for word in distinct)])
    return read.take(pa.array([distinct.index(word) for word in words], pa.int64()))


def replaced(array: pa.Array, rows: Int64[np.ndarray, " M"], values: pa.Array, *, column: str) -> pa.Array:
    """The array with other values at some rows, and all else as it is, bit for bit.

    Raises
    ------
    SchemaError
        If a dictionary has no room for a value.
    """
    place = np.arange(len(array))
    place[rows] = len(array) + np.arange(len(rows))
    if not pa.types.is_dictionary(array.type):
        return pa.concat_arrays([array, values]).take(pa.array(place))
    known = pc.index_in(values.dictionary, array.dictionary)
    more = values.dictionary.filter(known.is_null())
    dictionary = pa.concat_arrays([array.dictionary, more])
    new_index = pc.index_in(values.dictionary, dictionary).take(values.indices.cast(pa.int32()))
    indices = pa.concat_arrays([array.indices.cast(pa.int64()), new_index.cast(pa.int64())]).take(pa.array(place))
    try:
        indices = indices.cast(array.type.index_type)
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"Column {column!r} has a dictionary of {array.type.index_type}, which has no room for further values; "
            "convert it to text."
        ) from error
    return pa.DictionaryArray.from_arrays(indices, dictionary, ordered=array.type.ordered)


def with_nulls(values: pa.Array, rows: Int64[np.ndarray, " M"], n_rows: int) -> pa.Array:
    """The values at these rows of `n_rows`, null at all others."""
    place = np.full(n_rows, -1)
    place[rows] = np.arange(len(rows))
    return values.take(pa.array(place, mask=place < 0))


def gaps_of(array: pa.Array) -> Bool[np.ndarray, " N"]:
    """Which cells hold nothing: null, or NaN."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    return array.is_null(nan_is_null=pa.types.is_floating(array.type)).to_numpy(zero_copy_only=False)


def _whole(values: Float[np.ndarray, " M"], dtype: np.dtype) -> np.ndarray:
    """Rounded integers, within the type's range: the largest of 64 bits is no float."""
    bounds = np.iinfo(dtype)
    most = np.nextafter(float(bounds.max), 0) if float(bounds.max) > bounds.max else float(bounds.max)
    return np.clip(np.rint(values), float(bounds.min), most).astype(dtype)


def _decimal(value: float, arrow_type: pa.DataType) -> decimal.Decimal:
    with decimal.localcontext(prec=100):
        unit = decimal.Decimal(1).scaleb(-arrow_type.scale)
        most = decimal.Decimal(10) ** (arrow_type.precision - arrow_type.scale) - unit
        return max(-most, min(decimal.Decimal(value), most)).quantize(unit)


def _encoded(values: pa.Array, arrow_type: pa.DataType) -> pa.DictionaryArray:
    """Values with a dictionary of their own, of the type's values; `replaced` fits the indices."""
    return values.cast(arrow_type.value_type).dictionary_encode()


def _read(word: str, arrow_type: pa.DataType) -> pa.Array:
    types = pa.types
    nothing = pa.nulls(1, arrow_type)
    try:
        if types.is_decimal(arrow_type) or types.is_duration(arrow_type) or types.is_time(arrow_type):
            return numbers_as(np.array([float(word)]), arrow_type)
        if types.is_float16(arrow_type):
            return pa.array([np.float16(word)], arrow_type)
        return pa.array([word], pa.string()).cast(arrow_type)
    except (pa.ArrowException, ValueError):
        return nothing
