"""From the answer of a model to the body of a response, in the form of the request."""

from __future__ import annotations

import json

import pyarrow as pa

from tabmoco.serve.refusals import json_bytes
from tabmoco.serve.rows_in import ARROW, Rows


def write_rows(answer: pa.Table, rows: Rows, media_type: str) -> bytes:
    """`{"rows": [...], "notes": [...]}`, or an Arrow IPC stream with the notes as JSON in the schema's metadata."""
    named = _with_names(answer, rows)
    if media_type == ARROW:
        schema = named.schema.with_metadata({"notes": json.dumps(rows.notes)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(named.replace_schema_metadata(schema.metadata))
        return sink.getvalue().to_pybytes()
    return json_bytes({"rows": named.to_pylist(), "notes": rows.notes})


def _with_names(answer: pa.Table, rows: Rows) -> pa.Table:
    """The first column as the ids that the client gave, if it did."""
    if rows.names is None:
        return answer
    names = rows.names.take(answer.column(0))
    return answer.set_column(0, pa.field(rows.id_column, names.type), names)
