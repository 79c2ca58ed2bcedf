"""Tables in memory (pandas, polars, NumPy, lists, dicts, anything that speaks Arrow) as one Arrow table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import pyarrow as pa

from tabmoco.errors import SchemaError, TableError
from tabmoco.tables.names import refuse_duplicates
from tabmoco.tables.notices import warn

_ACCEPTED = (
    "a path, glob, directory or URL, a pandas or polars frame, a pyarrow Table or Dataset, a 2-D NumPy array, "
    "a list of rows or of dicts, or a dict of columns"
)


def to_arrow(data: Any, *, id_column: str | None = None) -> tuple[pa.Table, str]:
    """Convert a table in memory to Arrow, and name it for messages.

    Column names become strings; a pandas index is left out unless it is called `id_column`; columns without names
    are called ``x0``, ``x1``, and so on.

    Raises
    ------
    SchemaError
        If names repeat, or a column holds what no Arrow column can.
    TableError
        If `data` is no table.
    """
    library, kind = type(data).__module__.split(".")[0], type(data).__name__
    if isinstance(data, pa.Table):
        table, name = data, "pyarrow Table"
    elif isinstance(data, pa.RecordBatch):
        table, name = pa.Table.from_batches([data]), "pyarrow RecordBatch"
    elif library == "pandas" and kind == "DataFrame":
        table, name = _from_pandas(data, id_column), "pandas DataFrame"
    elif library == "scipy" or hasattr(data, "tocsr"):
        raise TableError(
            f"A table must be dense, got a SciPy {kind}; pass pandas.DataFrame.sparse.from_spmatrix(matrix), or "
            "matrix.toarray() if it fits in memory."
        )
    elif kind == "LazyFrame":
        raise TableError(f"A table must be in memory, got a {library} LazyFrame; pass frame.collect().")
    elif hasattr(data, "__arrow_c_stream__") and kind not in ("Series", "ChunkedArray"):
        table, name = _from_arrow_stream(data), f"{library} {kind}"
    elif isinstance(data, np.ndarray):
        table, name = _from_numpy(data), "NumPy array"
    elif isinstance(data, Mapping):
        table, name = _from_columns(data), "dict of columns"
    elif isinstance(data, list | tuple):
        table, name = _from_rows(data), "list of rows"
    elif hasattr(data, "__array__") and kind != "Series":
        table, name = _from_numpy(np.asarray(data)), f"{library} {kind}"
    elif kind in ("Series", "Array", "ChunkedArray"):
        raise TableError(f"A table must have rows and columns, got one {library} {kind}; pass {{'name': values}}.")
    else:
        raise TableError(f"A table must be {_ACCEPTED}; got {library}.{kind}.")
    refuse_duplicates(table.column_names, f"the {name}")
    return table, name


def column_to_arrow(values: Any, name: str) -> pa.Array:
    """Convert one column of Python, NumPy or pandas values; NaN, None, NaT and ``pd.NA`` become null.

    Decimals become floats when Arrow has no decimal wide enough; text mixed with numbers becomes text, with a warning.

    Raises
    ------
    SchemaError
        If the values have no Arrow type.
    """
    try:
        return _one_piece(pa.array(values, from_pandas=True))
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        objects = [None if _is_null(value) else value for value in values]
        types = sorted({type(value).__name__ for value in objects if value is not None})
        numbers = _numbers(objects)
        if numbers is not None:
            return pa.array(numbers, from_pandas=True)
        if not all(_is_plain(value) for value in objects):
            raise SchemaError(
                f"Column {name!r} must hold numbers, text, dates or truth values, got {' and '.join(types)}; convert "
                "it, or leave the column out."
            ) from error
        warn(f"Column {name!r} mixes {' and '.join(types)}; its cells are read as text.")
        return pa.array([None if value is None else str(value) for value in objects], pa.string())


def _from_pandas(frame: Any, id_column: str | None) -> pa.Table:
    if id_column is not None and id_column in frame.index.names and id_column not in frame.columns:
        frame = frame.reset_index(level=id_column)
    names = [str(name) for name in frame.columns]
    refuse_duplicates(names, "the pandas DataFrame")
    arrays = [_pandas_column(frame.iloc[:, position], name) for position, name in enumerate(names)]
    return _table(names, arrays)


def _pandas_column(series: Any, name: str) -> pa.Array:
    dtype = series.dtype
    dtype_name = type(dtype).__name__
    if dtype_name == "SparseDtype":
        series = series.sparse.to_dense()
    elif dtype_name == "PeriodDtype":
        series = series.dt.to_timestamp()
    elif dtype_name == "IntervalDtype":
        raise SchemaError(f"Column {name!r} holds intervals; use .mid for a number, .astype(str) for a category.")
    elif dtype_name == "CategoricalDtype":
        kinds = {type(category) for category in dtype.categories}
        if type(dtype.categories.dtype).__name__ == "IntervalDtype" or len(kinds) > 1:
            texts = [str(category) for category in dtype.categories]
            codes = pa.array(series.cat.codes, mask=np.asarray(series.cat.codes) < 0)
            return pa.DictionaryArray.from_arrays(codes, pa.array(texts, pa.string())).cast(pa.string())
    elif isinstance(dtype, np.dtype) and dtype.kind == "f" and dtype.itemsize > 8:
        series = series.astype(np.float64)
    return column_to_arrow(series, name)


def _from_arrow_stream(data: Any) -> pa.Table:
    try:
        reader = pa.RecordBatchReader.from_stream(data)
        return reader.read_all()
    except Exception as error:  # each library raises errors of its own
        kind = type(data).__name__
        raise TableError(
            f"The {kind} cannot be read through Arrow: {error}; convert or exclude that column."
        ) from error


def _from_numpy(array: np.ndarray) -> pa.Table:
    if array.dtype.names:
        return _table(list(array.dtype.names), [column_to_arrow(array[name], name) for name in array.dtype.names])
    if array.ndim == 1:
        raise TableError(
            f"A table must have rows and columns, got a 1-D array of {len(array)} values; pass values.reshape(-1, 1) "
            "for one column or values.reshape(1, -1) for one row."
        )
    if array.ndim != 2:
        raise TableError(f"A table must have rows and columns, got an array of shape {array.shape}; reshape it to 2-D.")
    names = [f"x{position}" for position in range(array.shape[1])]
    mask = np.ma.getmaskarray(array) if isinstance(array, np.ma.MaskedArray) else None
    plain = np.ma.getdata(array)
    if plain.dtype.kind == "f" and plain.dtype.itemsize not in (4, 8):
        plain = plain.astype(np.float64)
    arrays = []
    for position, name in enumerate(names):
        values = np.ascontiguousarray(plain[:, position])
        if mask is None:
            arrays.append(column_to_arrow(values, name))
        else:
            arrays.append(pa.array(values, mask=np.ascontiguousarray(mask[:, position]), from_pandas=True))
    return _table(names, arrays)


def _from_columns(columns: Mapping[Any, Any]) -> pa.Table:
    if not columns:
        raise TableError("A table needs at least one column, got an empty dict.")
    names = [str(name) for name in columns]
    refuse_duplicates(names, "the dict of columns")
    for name, values in zip(names, columns.values(), strict=True):
        if isinstance(values, str | bytes) or not isinstance(values, Sized) or not isinstance(values, Iterable):
            raise TableError(f"Each value of a dict of columns must be a list of cells, got {name}={values!r}.")
    lengths = {name: len(values) for name, values in zip(names, columns.values(), strict=True)}
    if len(set(lengths.values())) > 1:
        raise TableError(f"All columns must have the same length, got {lengths}.")
    return _table(names, [column_to_arrow(values, name) for name, values in zip(names, columns.values(), strict=True)])


def _from_rows(rows: Sequence[Any]) -> pa.Table:
    if not rows:
        raise TableError("A table needs columns, got an empty list; pass a frame or an Arrow table of no rows instead.")
    if all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row))
        return _from_columns({name: [row.get(name) for row in rows] for name in names})
    if not all(isinstance(row, list | tuple | np.ndarray) for row in rows):
        raise TableError("A list must hold rows: lists of cells, or dicts; for a single column pass {'name': values}.")
    widths = sorted({len(row) for row in rows})
    if len(widths) > 1:
        raise TableError(f"All rows must have the same number of cells, got rows of {widths[0]} and of {widths[-1]}.")
    return _from_columns({f"x{position}": [row[position] for row in rows] for position in range(widths[0])})


def _table(names: list[str], arrays: list[pa.Array]) -> pa.Table:
    if not names:
        raise TableError("A table needs at least one column, got none.")
    return pa.Table.from_arrays(arrays, names=names)


def _one_piece(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _is_null(value: Any) -> bool:
    if value is None:
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # pd.NA has no truth value, and neither have arrays
        return type(value).__name__ in ("NAType", "NaTType")


def _is_plain(value: Any) -> bool:
    is_number_or_text = isinstance(value, str | int | float | np.bool_ | np.integer | np.floating)
    named = type(value).__name__ in ("Decimal", "UUID", "Fraction", "Interval")
    return value is None or is_number_or_text or hasattr(value, "isoformat") or named


def _numbers(values: list[Any]) -> list[float | None] | None:
    """The values as floats if each of them is a number, else None."""
    for value in values:
        is_complex = isinstance(value, complex | np.complexfloating)
        if value is not None and (is_complex or isinstance(value, str) or not hasattr(value, "__float__")):
            return None
    try:
        return [None if value is None else float(value) for value in values]
    except (TypeError, OverflowError):
        return None
