"""Results as Arrow columns: each row of a table under its position or its id."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tabmoco.errors import TableError
from tabmoco.tables.source import TableBatch, TableSource

OUTPUT_COLUMNS = {
    "embedding", "anomaly_score", "p_value", "is_anomaly", "nearest_row_id", "cells", "rank",
    "neighbour_row_id", "similarity",
}  # fmt: skip
"""Names of the columns that results have besides the id."""


def names_of(batch: TableBatch) -> pa.Array:
    """Ids of the rows, or their positions where the table has none."""
    return pa.array(batch.rows) if batch.ids is None else batch.ids


def id_field(source: TableSource) -> pa.Field:
    """The column of `names_of`.

    Raises
    ------
    TableError
        If the id column is named like a column of results.
    """
    if source.id_column is None:
        return pa.field("row_id", pa.int64())
    if source.id_column in OUTPUT_COLUMNS:
        raise TableError(f"the id column must not be named like an output column, got {source.id_column!r}; rename it.")
    return pa.field(source.id_column, source.id_type)


def to_arrow(column: Any) -> pa.Array:
    """An Arrow array of a NumPy one."""
    return column if isinstance(column, pa.Array) else pa.array(np.ascontiguousarray(column))
