"""Score a table with a model on a Dask cluster: every partition is a pandas frame, and its rows keep their columns.

    python examples/scores_in_dask.py MODEL DATA OUT [--scheduler HOST:PORT]

MODEL is a folder that `tabmoco pretrain` wrote, DATA and OUT are folders of Parquet files; the workers reach all three
by the same paths. Needs dask, and with --scheduler distributed.
"""

from __future__ import annotations

import argparse
from functools import lru_cache

import dask
import dask.dataframe as dd
import pandas as pd

from tabmoco import RowModel


@lru_cache(maxsize=1)
def load(folder: str) -> RowModel:
    """The model, once per worker."""
    return RowModel.load(folder, device="cpu")


def scored(rows: pd.DataFrame, folder: str) -> pd.DataFrame:
    """The rows of a partition, with what the model says of each."""
    scores = load(folder).score(rows).to_pandas()
    return rows.assign(**{name: scores[name].to_numpy() for name in ("anomaly_score", "p_value", "is_anomaly")})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "data", "out"):
        parser.add_argument(name)
    parser.add_argument("--scheduler", help="of a running cluster; without it the threads of this machine do the work")
    arguments = parser.parse_args()
    if arguments.scheduler is not None:
        from dask.distributed import Client

        Client(arguments.scheduler)

    dask.config.set({"dataframe.convert-string": False})  # texts as the model knows them
    table = dd.read_parquet(arguments.data)
    meta = table._meta.assign(anomaly_score=0.0, p_value=0.0, is_anomaly=False)
    table.map_partitions(scored, arguments.model, meta=meta).to_parquet(arguments.out, write_index=False, schema=None)
    found = dd.read_parquet(arguments.out)
    print(f"{len(found):,} rows in {found.npartitions} files, {int(found['is_anomaly'].sum().compute()):,} anomalies.")


if __name__ == "__main__":
    main()
