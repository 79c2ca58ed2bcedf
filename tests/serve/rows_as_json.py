"""Rows of a table as a client of JSON writes them."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa


def records(table: pa.Table) -> list[dict[str, Any]]:
    return [{name: as_json(value) for name, value in row.items()} for row in table.to_pylist()]


def body(table: pa.Table) -> bytes:
    return json.dumps({"rows": records(table)}).encode()


def stream(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def as_json(value: Any) -> Any:
    """A cell in a type that JSON has."""
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return str(value)
    return value.isoformat() if isinstance(value, dt.datetime | dt.date | dt.time) else value
