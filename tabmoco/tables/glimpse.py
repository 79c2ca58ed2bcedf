"""A few rows of a stream of record batches, kept as it passes by."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class Strangest:
    """The `n_rows` rows with the highest anomaly scores so far, strangest first, and the number of anomalies."""

    def __init__(self, n_rows: int, schema: pa.Schema) -> None:
        self.rows = schema.empty_table()
        self.n_anomalies = 0
        self._n_rows = n_rows

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in the next batch of scores."""
        self.n_anomalies += batch.column("is_anomaly").true_count
        rows = pa.concat_tables([self.rows, pa.Table.from_batches([batch])])
        order = pc.sort_indices(rows, sort_keys=[("anomaly_score", "descending")])
        self.rows = rows.take(order[: self._n_rows])


class FirstQueries:
    """The neighbours of the first `n_queries` rows searched for."""

    def __init__(self, n_queries: int, schema: pa.Schema) -> None:
        self.rows = schema.empty_table()
        self._n_queries = n_queries

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in the next batch of neighbours; a query's own follow one another, rank 1 first."""
        starts = np.flatnonzero(batch.column("rank").to_numpy() == 1)
        if self._n_queries and len(starts):
            end = starts[self._n_queries] if len(starts) > self._n_queries else batch.num_rows
            self.rows = pa.concat_tables([self.rows, pa.Table.from_batches([batch.slice(0, end)])])
            self._n_queries = max(0, self._n_queries - len(starts))
