"""Figures of the imputation benchmark: per table and way of hiding, and over tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.imputation_gaps import LOOKED_AT, MECHANISMS
from benchmarks.results_file import footer
from benchmarks.runs import Run

SAID = {"random": "at random", "dependent": "depending on another column"}
FIGURES = {"rmse": "Numbers: error in standard deviations (lower is better)", "accuracy": "Categories: % right"}
ORDER = ("mean", "KNN", "iterative", "forest", "tabmoco")


def summarise(runs: Iterable[Run]) -> dict[str, Any]:
    """Means over seeds for every table, mechanism, rate and method; runs that failed, with their reasons."""
    frame = pd.DataFrame(list(runs))
    if "failure" not in frame:
        frame["failure"] = None
    done = frame[frame["failure"].isna()]
    names = [
        name for name in ("rmse", "accuracy", "coverage", "confidence", "fill_seconds", "train_seconds") if name in done
    ]
    groups = done.groupby(["mechanism", "rate", "table", "method"], sort=False)
    figures = groups[names].mean().join(groups.size().rename("n_seeds")).reset_index()
    failed = frame[frame["failure"].notna()]
    kept = ["mechanism", "rate", "table", "method", "seed", "failure"]
    return {
        "figures": [
            {name: None if isinstance(value, float) and np.isnan(value) else value for name, value in row.items()}
            for row in figures.to_dict("records")
        ],
        "failed": failed[kept].to_dict("records"),
    }


def render(summary: dict[str, Any], facts: dict[str, Any]) -> str:
    """The page."""
    frame = pd.DataFrame(summary["figures"])
    methods = [name for name in ORDER if name in set(frame["method"])]
    lines = [
        "# Gaps filled",
        "",
        "Cells were hidden and filled again. Means over columns and seeds; bold is the best of a row, and the mean is "
        "over the tables that all methods finished. Choices were made on "
        f"{' and '.join(LOOKED_AT)}; the other tables were not looked at.",
    ]
    for mechanism in MECHANISMS:
        for rate in sorted(set(frame.loc[frame["mechanism"] == mechanism, "rate"])):
            part = frame[(frame["mechanism"] == mechanism) & (frame["rate"] == rate)]
            lines += ["", f"## {rate:.0%} of the cells hidden {SAID[mechanism]}"]
            for figure, title in FIGURES.items():
                lines += _figure_table(part, figure, title, methods)
            lines += _seconds(part, methods)
    lines += _honesty(frame)
    if summary["failed"]:
        lines += ["", "## Failed", ""]
        lines += [
            f"- {run['method']} on {run['table']}, {run['rate']:.0%} {SAID[run['mechanism']]}: {run['failure']}"
            for run in summary["failed"]
        ]
    return "\n".join(lines) + "\n" + footer(facts)


def _figure_table(part: pd.DataFrame, figure: str, title: str, methods: list[str]) -> list[str]:
    wide = part.pivot(index="table", columns="method", values=figure).reindex(columns=methods).astype(float)
    wide = wide.dropna(how="all")
    if wide.empty:
        return []
    lines = ["", f"{title}:", "", "| table | " + " | ".join(methods) + " |", "|---|" + "---:|" * len(methods)]
    complete = wide.dropna()
    rows = [*wide.iterrows(), *([("**mean**", complete.mean())] if len(complete) > 1 else [])]
    for name, values in rows:
        best = values.min() if figure == "rmse" else values.max()
        lines.append(f"| {name} | " + " | ".join(_cell(value, best, figure) for value in values) + " |")
    return lines


def _cell(value: float, best: float, figure: str) -> str:
    if np.isnan(value):
        return "-"
    text, of_best = (f"{value:.3f}", f"{best:.3f}") if figure == "rmse" else (f"{100 * value:.1f}", f"{100 * best:.1f}")
    return f"**{text}**" if text == of_best else text


def _seconds(part: pd.DataFrame, methods: list[str]) -> list[str]:
    seconds = part.groupby("method")["fill_seconds"].mean()
    told = ", ".join(f"{name} {seconds[name]:,.1f}" for name in methods if name in seconds)
    return ["", f"Mean seconds to learn and fill: {told}."]


def _honesty(frame: pd.DataFrame) -> list[str]:
    own = frame[frame["method"] == "tabmoco"]
    if own.empty or "coverage" not in own:
        return []
    lines = [
        "",
        "## How sure tabmoco is",
        "",
        "Share of hidden numbers in the range that should hold 90 %, and confidence against accuracy in categories, "
        "in %.",
        "",
        "| hidden | table | in range | confidence | right |",
        "|---|---|---:|---:|---:|",
    ]
    for _, row in own.iterrows():
        values = (row["coverage"], row["confidence"], row["accuracy"])
        told = " | ".join("-" if pd.isna(value) else f"{100 * value:.1f}" for value in values)
        lines.append(f"| {row['rate']:.0%} {SAID[row['mechanism']]} | {row['table']} | {told} |")
    return lines
