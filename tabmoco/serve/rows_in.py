"""From the body of a request to rows that the model can read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tabmoco.errors import SchemaError, TableError
from tabmoco.model import RowModel
from tabmoco.results import OUTPUT_COLUMNS
from tabmoco.serve.arrow_stream import read_stream
from tabmoco.serve.json_cells import cells_to_arrow
from tabmoco.serve.limits import Limits
from tabmoco.serve.refusals import RequestError
from tabmoco.tables.convert import is_scalar, unwrapped_type
from tabmoco.tables.names import list_names

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"

REQUEST = "the request"
"""What messages call the table that a client sent."""


@dataclass(frozen=True)
class Rows:
    """The rows of one request."""

    table: pa.Table
    """The columns of the model, and no others."""

    names: pa.ChunkedArray | None
    """Values of the id column, if the request has one."""

    id_column: str | None

    notes: tuple[str, ...] = ()
    """What the client should know but was not refused for."""

    def __len__(self) -> int:
        return self.table.num_rows


def read_rows(body: bytes, media_type: str, model: RowModel, limits: Limits, id_column: str | None = None) -> Rows:
    """Read a request of either form.

    Parameters
    ----------
    id_column
        Column that names the rows; the id column of the training table by default, where the request has it.

    Raises
    ------
    TabmocoError
        A `RequestError` if the body cannot be read, a `SchemaError` if its rows do not fit the model.
    """
    data = model.config.data
    wanted_id = id_column if id_column is not None else data.id_column
    used = [column.name for column in model.schema.used]
    known = {*used, *([wanted_id] if wanted_id is not None else [])}
    if media_type == ARROW:
        table, others = read_stream(body, known=known, max_rows=limits.max_rows, max_bytes=4 * limits.max_body_bytes)
        names = table.column(wanted_id) if wanted_id in table.column_names else None
    else:
        table, names, others = _read_json(body, model, wanted_id, limits.max_rows)
    if id_column is not None and names is None and len(table):
        raise SchemaError(f"id_column names the column {id_column!r}, which the request does not have; leave it out.")
    _check_names(names, wanted_id)
    cells = _fitting(table.select([name for name in table.column_names if name in used]), others, model)
    left_out = {*(column.name for column in model.schema.columns), *data.left_out, data.id_column}
    unknown = [name for name in others if name not in left_out]
    notes = (f"Columns unknown to the model are ignored: {list_names(unknown)}.",) if unknown else ()
    return Rows(cells, names, None if names is None else wanted_id, notes)


def _fitting(table: pa.Table, others: Iterable[str], model: RowModel) -> pa.Table:
    """The columns in the model's order, so that requests with the same columns can be answered together."""
    used = [column.name for column in model.schema.used]
    if any(name not in table.column_names for name in used):
        more = [pa.field(name, pa.null()) for name in others]
        model.preprocessor.align(pa.schema([*table.schema, *more]), name=REQUEST)
    ordered = table.select(used)
    model.preprocessor.align(ordered.schema, name=REQUEST)
    return ordered


def _check_names(names: pa.ChunkedArray | None, id_column: str | None) -> None:
    if names is None:
        return
    if id_column in OUTPUT_COLUMNS:
        raise TableError(f"the id column must not be named like an output column, got {id_column!r}; rename it.")
    if not is_scalar(unwrapped_type(names.type)):
        raise SchemaError(f"Column {id_column!r} names the rows and must hold single values, got {names.type}.")


def _read_json(
    body: bytes, model: RowModel, id_column: str | None, max_rows: int
) -> tuple[pa.Table, pa.ChunkedArray | None, list[str]]:
    """The columns of the model, the names of the rows, and the names of all other columns."""
    rows = _records(_parsed(body), max_rows)
    columns = {column.name: column for column in model.schema.used}
    if not rows:
        return pa.table({name: cells_to_arrow([], column) for name, column in columns.items()}), None, []
    cells, names, others = {}, None, []
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name == id_column:
            names = pa.chunked_array([_names_to_arrow(values, name)])
        if name in columns:
            cells[name] = cells_to_arrow(values, columns[name])
        elif name != id_column:
            others.append(name)
    return pa.table(cells), names, others


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise RequestError(400, "the body must not be nested so deeply; send rows of plain cells.") from error
    except UnicodeDecodeError as error:
        raise RequestError(400, "the body must be JSON in UTF-8, got other bytes; re-encode it.") from error
    except ValueError as error:
        raise RequestError(400, f"the body must be JSON: {str(error).rstrip('.')}.") from error


def _records(value: Any, max_rows: int) -> list[dict[str, Any]]:
    """The rows of the document, all with the same columns."""
    if not isinstance(value, dict) or value.keys() != {"rows"} or not isinstance(value["rows"], list):
        raise RequestError(
            400, 'the body must look like {"rows": [{"column": cell, ...}, ...]}, and hold nothing else.'
        )
    rows = value["rows"]
    if len(rows) > max_rows:
        raise RequestError(
            413, f"a request must have at most {max_rows:,} rows, got {len(rows):,}; send them in pieces."
        )
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise RequestError(400, f'each row must be an object such as {{"column": cell}}, but row {number} is none.')
        if row.keys() != rows[0].keys():
            name = next(iter(rows[0].keys() ^ row.keys()))
            lacking, having = (number, 0) if name in rows[0] else (0, number)
            raise SchemaError(
                f"all rows must have the same columns, but row {lacking} lacks {name!r}, which row {having} has; write "
                "null for a missing cell."
            )
    return rows


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"an object names {name!r} twice")
    return row


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON; write null for a missing cell")


def _names_to_arrow(values: list[Any], column: str) -> pa.Array:
    kinds = {type(value) for value in values} - {type(None)}
    try:
        if kinds <= {str} or kinds == {int}:
            return pa.array(values, pa.string() if kinds <= {str} else pa.int64())
    except (UnicodeEncodeError, OverflowError):
        pass
    raise SchemaError(f"Column {column!r} names the rows and must hold texts only, or whole numbers only.")
