"""The page of the column benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.results_file import footer

MATCHERS = ("statistics and types", "all traits", "untrained", "encoder", "value overlap", "match_columns")
SAID = {"random": "random halves", "first and last": "first and last half"}


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds of every figure; the figures of each meaning are added up."""
    summary = _over_seeds([{**run, "meanings": {**run["meanings"], "each": {}}} for run in runs])
    each: dict[str, dict[str, float]] = {}
    for run in runs:
        for meaning, found in run["meanings"]["each"].items():
            total = each.setdefault(meaning, {"n": 0, "n_found": 0.0, "n_told": 0, "n_right": 0.0})
            total["n"] += found["n"]
            total["n_found"] += found["n"] * found["recall"] / 100
            total["n_told"] += found["n_told"]
            total["n_right"] += found["n_told"] * found["right"] / 100
    return {**summary, "each": each, "n_seeds": len(runs)}


def _over_seeds(values: Sequence[Any]) -> Any:
    values = [value for value in values if value is not None]
    if values and isinstance(values[0], dict):
        return {name: _over_seeds([value.get(name) for value in values]) for name in values[0]}
    if not values:
        return None
    return {"mean": float(np.mean(values)), "sd": float(np.std(values))}


def render(summary: dict[str, Any], facts: dict[str, Any]) -> str:
    """The page."""
    mean = {name: summary[name]["mean"] for name in ("n_train_columns", "n_train_tables", "n_tables", "n_columns")}
    lines = [
        "# Columns by their values",
        "",
        f"Mean ± standard deviation of {summary['n_seeds']} splits and trainings, in %. Learned from about "
        f"{mean['n_train_columns']:,.0f} columns of {mean['n_train_tables']:,.0f} tables, measured on about "
        f"{mean['n_columns']:,.0f} columns of {mean['n_tables']:,.0f} tables of other R packages, headers hidden. Bold "
        "is the best of a row.",
        "",
        "## The same column in the other half of the rows",
        "",
        *_table(
            ["", *MATCHERS],
            [
                *([f"paired, {SAID[way]}", *_best(found, MATCHERS)] for way, found in summary["matching"].items()),
                *(
                    [f"found among all {what}, {SAID[way]}", *_best(found[what], MATCHERS)]
                    for what in ("columns", "tables")
                    for way, found in summary["finding"].items()
                ),
            ],
        ),
        "",
        "Value overlap asks which distinct values two columns share, for which both tables must be at hand; a "
        "catalogue keeps no values. `match_columns` adds it to the similarity of the embeddings.",
        "",
        "## Where half of the columns have no partner",
        "",
        "Pairs of `match_columns`, at the threshold that the encoder chose on tables of its own, and those of a margin "
        "from 0.1 on:",
        "",
        *_table(
            ["", "precision", "recall", "precision, all tables' pairs together"],
            [
                [f"{SAID[way]}, {name}", *(_figure(figures[f]) for f in ("precision", "recall", "precision of all"))]
                for way, found in summary["missing"].items()
                for name, figures in found.items()
            ],
        ),
        "",
        "## Meanings",
        "",
        *_meanings(summary),
    ]
    return "\n".join(lines) + "\n" + footer(facts)


def _meanings(summary: dict[str, Any]) -> list[str]:
    found = summary["meanings"]
    rows = [
        [
            meaning,
            f"{each['n']:.0f}",
            f"{100 * each['n_found'] / each['n']:.0f}",
            f"{each['n_told']:.0f}",
            f"{100 * each['n_right'] / each['n_told']:.0f}",
        ]
        for meaning, each in summary["each"].items()
    ]
    methods = list(found["accuracy"])
    return [
        f"About {found['n_labelled']['mean']:,.0f} columns per split are named for a meaning. Which one, of those "
        "learned? Five nearest labelled columns, or the encoder's regression:",
        "",
        *_table(["", *methods], [["right", *_best(found["accuracy"], methods)]]),
        "",
        f"Unasked, over all columns, a meaning is told of {found['n_told']['mean']:,.0f}; "
        f"{_figure(found['told_right'])} of these are named for it, and it is told of "
        f"{_figure(found['told_of_labelled'])} of those named for one. A column may mean a year and be named "
        "otherwise, so the first figure is a lower bound. All splits together:",
        "",
        *_table(["meaning", "named for it", "of these told, %", "told", "of these named for it, %"], rows),
    ]


def _best(found: dict[str, Any], names: Sequence[str]) -> list[str]:
    best = max(found[name]["mean"] for name in names if name in found)
    told = {name: _figure(found[name]) if name in found else "–" for name in names}
    return [f"**{told[name]}**" if name in found and found[name]["mean"] == best else told[name] for name in names]


def _figure(found: dict[str, float] | None) -> str:
    return "–" if found is None else f"{found['mean']:.1f} ± {found['sd']:.1f}"


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---", *["---:"] * (len(header) - 1)], *rows)]
