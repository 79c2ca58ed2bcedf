"""Rows kept from a stream are the same however the stream is cut into batches."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.tables.glimpse import FirstQueries, Strangest

SCORES = pa.schema([("row_id", pa.int64()), ("anomaly_score", pa.float64()), ("is_anomaly", pa.bool_())])
NEIGHBOURS = pa.schema([("row_id", pa.int64()), ("rank", pa.int32())])


def see_all(glimpse, table: pa.Table, batch_rows: int) -> None:
    for batch in table.to_batches(max_chunksize=batch_rows):
        glimpse.see(batch)


@given(
    scores=st.lists(st.sampled_from([0.0, 1.0, 2.5, 7.0]), max_size=20),
    n_rows=st.integers(0, 5),
    batch_rows=st.integers(1, 7),
)
def test_the_strangest_rows_come_first_and_ties_keep_their_order(scores, n_rows, batch_rows):
    table = pa.table([list(range(len(scores))), scores, [score > 2 for score in scores]], schema=SCORES)
    strangest = Strangest(n_rows, SCORES)

    see_all(strangest, table, batch_rows)

    expected = sorted(table.to_pylist(), key=lambda row: -row["anomaly_score"])[:n_rows]
    assert strangest.rows.to_pylist() == expected
    assert strangest.n_anomalies == sum(score > 2 for score in scores)


@pytest.mark.parametrize("queries_per_batch", [1, 2, 3, 10])
def test_the_first_queries_keep_all_their_neighbours(queries_per_batch):
    n_found = [3, 1, 2, 3, 3]
    pairs = [(query, rank) for query, n in enumerate(n_found) for rank in range(1, n + 1)]
    first = FirstQueries(3, NEIGHBOURS)

    for start in range(0, len(n_found), queries_per_batch):
        part = [pair for pair in pairs if start <= pair[0] < start + queries_per_batch]
        first.see(pa.RecordBatch.from_pylist([{"row_id": q, "rank": r} for q, r in part], schema=NEIGHBOURS))

    assert [(row["row_id"], row["rank"]) for row in first.rows.to_pylist()] == pairs[:6]
