"""Score a table with a model on a Spark cluster: `mapInPandas` gives the rows to the model in pandas frames.

    spark-submit examples/scores_in_spark.py MODEL DATA OUT

MODEL is a folder that `tabmoco pretrain` wrote, DATA and OUT are folders of Parquet files; the executors reach them
by the same paths, and their Python (PYSPARK_PYTHON) has tabmoco. Needs pyspark, which needs Java. `python` in place of
`spark-submit` runs it on this machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import SparkSession

from tabmoco import RowModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "data", "out"):
        parser.add_argument(name)
    arguments = parser.parse_args()
    folder = arguments.model

    def scored(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """The rows of a partition, with what the model says of each; it is loaded once for all of them."""
        model = RowModel.load(folder, device="cpu")
        for rows in frames:
            scores = model.score(rows).to_pandas()
            yield rows.assign(**{name: scores[name].to_numpy() for name in ("anomaly_score", "p_value", "is_anomaly")})

    spark = SparkSession.builder.appName("tabmoco").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    table = spark.read.parquet(arguments.data)
    kinds = [f"`{field.name}` {field.dataType.simpleString()}" for field in table.schema.fields]
    schema = ", ".join([*kinds, "anomaly_score double", "p_value double", "is_anomaly boolean"])
    table.mapInPandas(scored, schema).write.mode("overwrite").parquet(arguments.out)
    found = spark.read.parquet(arguments.out)
    print(f"{found.count():,} rows, {found.filter('is_anomaly').count():,} anomalies.")
    spark.stop()


if __name__ == "__main__":
    main()
