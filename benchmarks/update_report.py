"""The page of the benchmark of updates: a table for each data set, a row for each way to go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.results_file import footer
from benchmarks.runs import Run

MEASURES = (
    "neighbours kept",
    "kept probe, old",
    "kept probe, new",
    "probe, old",
    "probe, new",
    "anomalies, old",
    "anomalies, new",
    "flagged, old",
    "flagged, new",
    "flagged, both",
)

COMPARED = (
    ("neighbours kept", "naive", 0.0),
    ("kept probe, old", "naive", 0.0),
    ("anomalies, old", "no update", -1.0),
    ("anomalies, new", "no update", 0.0),
    ("probe, old", "no update", -1.0),
    ("probe, new", "no update", 0.0),
    ("probe, new", "from scratch", -1.0),
)
"""Figures in which an update should be ahead of another way by at least so much; below 0 it may be that much behind."""

NEIGHBOURS_KEPT, FLAGGED = 80.0, (7.0, 13.0)
"""What an update should reach by itself."""


def summarise(runs: Sequence[Run], ways: Sequence[str]) -> dict[str, Any]:
    """Mean of every figure over the seeds, and whether updates do what they should; failed runs aside."""
    failures = [
        f"{run['way']} on {run['table']}, seed {run['seed']}: {run['failure']}" for run in runs if "failure" in run
    ]
    done = [run for run in runs if "failure" not in run]
    by_table: dict[str, Any] = {}
    for table in dict.fromkeys(run["table"] for run in done):
        mine = {way: [run for run in done if (run["table"], run["way"]) == (table, way)] for way in ways}
        mine = {way: found for way, found in mine.items() if found}
        first = next(iter(mine.values()))[0]
        by_table[table] = {
            "seeds": min(map(len, mine.values())),
            **{name: first[name] for name in ("old", "new", "steps", "update_steps")},
            "ways": {
                way: {m: float(np.mean([run[m] for run in found])) for m in MEASURES} for way, found in mine.items()
            },
        }
    return {"by_table": by_table, "targets": targets(by_table), "failures": failures}


def targets(by_table: dict[str, Any]) -> list[dict[str, Any]]:
    """Table by table, what was aimed at, what was found, and whether that will do."""
    found = []
    for table, told in by_table.items():
        ways = told["ways"]
        if "update" not in ways:
            continue
        kept, flagged = ways["update"]["neighbours kept"], ways["update"]["flagged, both"]
        found += [
            (table, f"neighbours kept at least {NEIGHBOURS_KEPT:g}", f"{kept:.1f}", kept >= NEIGHBOURS_KEPT),
            (table, "flagged of both 7 to 13", f"{flagged:.1f}", FLAGGED[0] <= flagged <= FLAGGED[1]),
        ]
        for measure, rival, least in COMPARED:
            if rival in ways:
                lead = ways["update"][measure] - ways[rival][measure]
                word = "ahead of" if least == 0 else f"at most {-least:g} behind"
                found.append((table, f"{measure}: {word} {rival}", f"{lead:+.1f}", lead >= least))
    return [dict(zip(("table", "target", "found", "met"), one, strict=True)) for one in found]


def render(summary: dict[str, Any], facts: dict[str, Any]) -> str:
    lines = [
        "# Updates",
        "",
        "What a model knows after new rows came, in per cent. What the columns and the ways to go on are, stands in "
        "`benchmarks/update.py`.",
    ]
    for table, told in summary["by_table"].items():
        lines += [
            "",
            f"## {table}",
            "",
            f"{told['old']:,} old rows, {told['new']:,} new ones, {told['steps']:,} steps of pretraining, "
            f"{told['update_steps']:,} of an update; mean of {told['seeds']} seed(s).",
            "",
            *_table(
                ["", *MEASURES], [[way, *(f"{row[m]:.1f}" for m in MEASURES)] for way, row in told["ways"].items()]
            ),
        ]
    rows = [
        [row["table"], row["target"], row["found"], "yes" if row["met"] else "**no**"] for row in summary["targets"]
    ]
    lines += ["", "## What was aimed at", "", *_table(["table", "target", "found", "met"], rows)]
    if summary["failures"]:
        lines += ["", "## Failed runs", "", *(f"- {line}" for line in summary["failures"])]
    return "\n".join(lines) + "\n" + footer(facts)


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---", *["---:"] * (len(header) - 1)], *rows)]
