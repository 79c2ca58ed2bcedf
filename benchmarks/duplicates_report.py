"""The benchmark of duplicates as a Markdown page: mean figures, whether the target is met, and what each table gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from benchmarks.duplicate_rivals import RIVALS, TOLD
from benchmarks.results_file import footer
from benchmarks.runs import Run

MEASURES = {"f1": "F1", "precision": "Precision", "recall": "Recall"}
AHEAD_OF = ("exact", "Gower kNN", "one-hot kNN")
"""Rivals whose mean F1 tabmoco should be ahead of."""

OURS = {
    "threshold": "threshold chosen",
    "best_f1": "F1 at the best threshold",
    "compared_recall": "duplicates compared, %",
    "false_pairs": "pairs called duplicates before any were planted",
    "cpu_seconds": "CPU seconds, training included",
}


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Means over seeds, then over tables that all methods did; failed runs aside, which are listed."""
    failures = [
        f"{run['detector']} on {run['table']}, seed {run['seed']}: {run['failure']}" for run in runs if "failure" in run
    ]
    frame = pd.DataFrame([run for run in runs if "failure" not in run])
    if frame.empty:
        return {"by_table": {}, "mean": {}, "ours": {}, "targets": [], "failures": failures, "seeds": 0}
    by_table: dict[str, Any] = {}
    mean: dict[str, Any] = {}
    for measure in MEASURES:
        grid = frame.groupby(["table", "detector"])[measure].mean().unstack()
        by_table[measure] = {
            table: {method: None if pd.isna(v) else float(v) for method, v in row.items()}
            for table, row in grid.iterrows()
        }
        mean[measure] = {method: float(v) for method, v in grid.dropna(axis=0).mean().items() if not pd.isna(v)}
    own = frame[frame.detector == "tabmoco"].groupby("table")
    ours = {
        str(table): {name: float(rows[name].mean()) for name in OURS if name in rows and rows[name].notna().any()}
        for table, rows in own
    }
    return {
        "by_table": by_table,
        "mean": mean,
        "ours": ours,
        "targets": targets(mean["f1"]),
        "failures": failures,
        "seeds": int(frame.seed.nunique()),
    }


def targets(f1: dict[str, float]) -> list[dict[str, Any]]:
    """By how much tabmoco's mean F1 is ahead; nothing without its runs."""
    if "tabmoco" not in f1:
        return []
    leads = {name: f1["tabmoco"] - f1[name] for name in AHEAD_OF if name in f1}
    return [
        {"target": f"F1 ahead of {name}", "found": f"{lead:+.1f}", "met": bool(lead > 0)}
        for name, lead in leads.items()
    ]


def render(summary: dict[str, Any], facts: dict[str, Any]) -> str:
    methods = [name for name in ("tabmoco", *RIVALS) if name in summary["mean"].get("f1", {})]
    lines = [
        "# Duplicates",
        "",
        f"Pairs found, means over {summary['seeds']} seed(s). A twentieth of the rows of mixed tables were repeated "
        "with up to three faults each: letters mistyped, cells missing, changed or exchanged, units slipped. The febrl "
        "sets are persons; febrl4 is two tables to link. tabmoco and linkage ECM saw no labels. The threshold of Gower "
        f"kNN and one-hot kNN was the best one by the labels; {' and '.join(TOLD)} learned from the labels of the very "
        "pairs it classifies. Near duplicates that a table has by itself count as errors.",
        "",
        *_table(
            ["target", "found", "met"],
            [[row["target"], row["found"], "yes" if row["met"] else "**no**"] for row in summary["targets"]],
        ),
        "",
        *_table(
            ["mean over tables", *(f"{title}, %" for title in MEASURES.values())],
            [
                [_bold(name, name), *(_bold(name, f"{summary['mean'][m][name]:.1f}") for m in MEASURES)]
                for name in methods
            ],
        ),
    ]
    for measure, title in MEASURES.items():
        if measure in summary["by_table"]:
            rows = [
                [table, *(_figure(row.get(m)) for m in methods)] for table, row in summary["by_table"][measure].items()
            ]
            lines += ["", f"## {title}, %, by table", "", *_table(["table", *methods], rows)]
    if summary["ours"]:
        rows = [
            [table, *(f"{row[name]:.4g}" if name in row else "–" for name in OURS)]
            for table, row in summary["ours"].items()
        ]
        lines += ["", "## tabmoco", "", *_table(["table", *OURS.values()], rows)]
    if summary["failures"]:
        lines += ["", "## Failed runs", "", *(f"- {line}" for line in summary["failures"])]
    return "\n".join(lines) + "\n" + footer(facts)


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---", *["---:"] * (len(header) - 1)], *rows)]


def _bold(name: str, text: str) -> str:
    return f"**{text}**" if name == "tabmoco" else text


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
