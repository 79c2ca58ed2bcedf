"""Arrow IPC streams from strangers: read in bounded memory, and checked before anything trusts them."""

from __future__ import annotations

import struct
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tabmoco.errors import SchemaError
from tabmoco.serve.refusals import RequestError
from tabmoco.tables.names import refuse_duplicates

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY_DATA, _COMPRESSION = 1, 3
"""Positions of fields in the tables Message, DictionaryBatch and RecordBatch of Arrow's format/Message.fbs."""


def read_stream(body: bytes, *, known: Collection[str], max_rows: int, max_bytes: int) -> tuple[pa.Table, list[str]]:
    """The columns of a stream that are in `known`, and the names of the others.

    A few bytes of Arrow can stand for very many, so compressed buffers and run-length columns are refused, and texts of
    dictionaries and views that take more than `max_bytes` once every cell has its own.

    Raises
    ------
    RequestError
        If the body is no such stream, or has too many rows.
    SchemaError
        If a column is damaged, of an unusable type, or too large.
    """
    try:
        _refuse_compression(body)
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            schema = reader.schema
            refuse_duplicates(schema.names, "the request")
            kept = [name for name in schema.names if name in known]
            batches, n_rows = [], 0
            for batch in reader:
                n_rows += batch.num_rows
                if n_rows > max_rows:
                    raise RequestError(413, f"a request must have at most {max_rows:,} rows; send them in pieces.")
                batches.append(batch.select(kept))
    except (RequestError, SchemaError):
        raise
    except (pa.ArrowException, OSError, struct.error, IndexError, ValueError, OverflowError) as error:
        raise RequestError(400, f"the body must be an Arrow IPC stream: {_first_line(error)}.") from error
    columns = [_column(schema.field(name), [batch.column(name) for batch in batches], max_bytes) for name in kept]
    return pa.Table.from_arrays(columns, names=kept), [name for name in schema.names if name not in known]


def _column(field: pa.Field, pieces: list[pa.Array], max_bytes: int) -> pa.ChunkedArray:
    """The cells of a column, once it is clear that they can be read and how much memory that takes."""
    if pa.types.is_run_end_encoded(field.type):
        raise SchemaError(f"Column {field.name!r} must not be run-length encoded in a request; send its plain values.")
    try:
        for piece in pieces:
            piece.validate(full=True)
        n_bytes = sum(_written_bytes(piece) for piece in pieces)
    except pa.ArrowException as error:
        raise SchemaError(f"Column {field.name!r} is damaged: {_first_line(error)}; write it again.") from error
    if n_bytes > max_bytes:
        raise SchemaError(
            f"Column {field.name!r} must take at most {max_bytes:,} bytes with each text written out, got {n_bytes:,}; "
            "send fewer rows at a time."
        )
    return pa.chunked_array(pieces, field.type)


def _written_bytes(array: pa.Array) -> int:
    """Bytes of the texts of a dictionary or of views once each cell has its own; 0 for all other types."""
    if isinstance(array, pa.ExtensionArray):
        return _written_bytes(array.storage)
    if array.type in (pa.string_view(), pa.binary_view()):
        lengths = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)[array.offset :, 0][: len(array)]
        return int(lengths[array.is_valid().to_numpy(zero_copy_only=False)].sum(dtype=np.int64))
    if not pa.types.is_dictionary(array.type):
        return 0
    values = array.dictionary
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        lengths = pc.binary_length(values).cast(pa.int64())
        return pc.sum(lengths.take(array.indices.cast(pa.int64()))).as_py() or 0
    if pa.types.is_primitive(values.type) or pa.types.is_null(values.type) or pa.types.is_decimal(values.type):
        return 0
    raise pa.ArrowInvalid(f"a dictionary must hold texts or numbers, got {values.type}")


def _refuse_compression(body: bytes) -> None:
    """Look for compressed buffers in the description of each batch; Arrow itself tells only after it unpacked them."""
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
        text = message.metadata.to_pybytes()
        root = struct.unpack_from("<I", text)[0]
        kind = text[_field(text, root, _HEADER_TYPE)]
        if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
            continue
        batch = _table(text, root, _HEADER)
        if kind == _DICTIONARY_BATCH:
            batch = _table(text, batch, _DICTIONARY_DATA)
        if _field(text, batch, _COMPRESSION):
            raise RequestError(415, "the buffers of an Arrow stream must not be compressed; write it without.")


def _table(text: bytes, table: int, position: int) -> int:
    """Where the table lies that a field of a flatbuffer's table refers to."""
    field = _field(text, table, position)
    return field + struct.unpack_from("<I", text, field)[0]


def _field(text: bytes, table: int, position: int) -> int:
    """Where a field of a flatbuffer's table lies; 0 if it is not set."""
    offsets = table - struct.unpack_from("<i", text, table)[0]
    n_bytes = struct.unpack_from("<H", text, offsets)[0]
    if 4 + 2 * position >= n_bytes:
        return 0
    offset = struct.unpack_from("<H", text, offsets + 4 + 2 * position)[0]
    return table + offset if offset else 0


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__
