"""Record batches of any sizes cut anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def one_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """All rows of a table in one record batch."""
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    if len(batches) == 1:
        return batches[0]
    arrays = [pa.concat_arrays([batch.column(name) for batch in batches]) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rebatch(batches: Iterable[pa.RecordBatch], schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of exactly `batch_rows`, except the last."""
    held: list[pa.RecordBatch] = []
    n_held = 0
    for batch in batches:
        while batch.num_rows > 0:
            piece = batch.slice(0, batch_rows - n_held)
            batch = batch.slice(piece.num_rows)
            held.append(piece)
            n_held += piece.num_rows
            if n_held == batch_rows:
                yield _joined(held, schema)
                held, n_held = [], 0
    if held:
        yield _joined(held, schema)


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return one_batch(pa.Table.from_batches(batches), schema)
