"""The benchmark of planted anomalies as a Markdown page and a plot: means, targets, and what each table gave."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.detectors import DETECTORS
from benchmarks.explainers import EXPLAINERS, NEEDS_SHAP
from benchmarks.planting import KINDS
from benchmarks.results_file import footer
from benchmarks.runs import Run

MEASURES = {"auroc": "AUROC", "auprc": "AUPRC", "top_cell": "Top cell is a planted one, % of rows"}
CHANCE = "chance"

COLOURS = {
    "tabmoco": "#1f6f8b",
    "z-score / frequency": "#6d8196",
    "ECOD per column": "#93a8bd",
    NEEDS_SHAP: "#b4c0cc",
    "difference from 2NN": "#cdd5dc",
    CHANCE: "#e6e9ec",
}

TIE = 0.2
"""AUROC points up to which a mean counts as level."""

LEAD = {"contextual": 10.0}
"""AUROC points that tabmoco should be ahead of the best single rival's mean; level on the other kinds."""

NAMED = {"extreme": 80.0, "rare": 80.0, "contextual": 60.0, "format": 80.0}
"""Per cent of planted rows whose top cell should be a planted one."""


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Means over seeds, then over tables, and which targets are met; failed runs aside, which are listed."""
    frame = pd.DataFrame(
        [
            {"measure": measure, "detector": run["detector"], "kind": kind, "table": run["table"], "value": value}
            for run in runs
            for measure in ("auroc", "auprc", "top_cell")
            for kind, value in run.get(measure, {}).items()
        ]
        + [
            {"measure": "top_cell", "detector": CHANCE, "kind": kind, "table": run["table"], "value": 100 * value}
            for run in runs
            if run["detector"] == "tabmoco" and "failure" not in run
            for kind, value in run.get("chance", {}).items()
        ],
        columns=["measure", "detector", "kind", "table", "value"],
    )
    grouped = frame.groupby(["measure", "detector", "kind", "table"])["value"]
    by_table = {key: {"mean": group.mean(), "sd": group.std(ddof=0)} for key, group in grouped}
    summary: dict[str, Any] = {"by_table": {}, "mean": {}}
    for (measure, detector, kind, table), found in by_table.items():
        summary["by_table"].setdefault(measure, {}).setdefault(detector, {}).setdefault(kind, {})[table] = found
    for measure, detectors in summary["by_table"].items():
        n_tables = max(len(tables) for kinds in detectors.values() for tables in kinds.values())
        summary["mean"][measure] = {
            detector: {
                kind: float(np.mean([found["mean"] for found in tables.values()])) for kind, tables in kinds.items()
            }
            for detector, kinds in detectors.items()
            if all(len(tables) == n_tables for tables in kinds.values())
        }
    summary["explain_seconds"] = {run["detector"]: run["explain_seconds"] for run in runs if "explain_seconds" in run}
    summary["failures"] = [
        f"{run['detector']} on {run['table']}, seed {run['seed']}: {run['failure']}" for run in runs if "failure" in run
    ]
    summary["seeds"] = len({run["seed"] for run in runs})
    summary["targets"] = targets(summary["mean"])
    return summary


def targets(mean: dict[str, dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """What was wanted, what was found, and whether that is enough; nothing without runs of tabmoco."""
    found = []
    auroc = mean.get("auroc", {})
    rivals = [name for name in auroc if DETECTORS[name].is_rival]
    if "tabmoco" in auroc and rivals:
        for kind in KINDS:
            best = max(rivals, key=lambda name: auroc[name][kind])
            lead, wanted = auroc["tabmoco"][kind] - auroc[best][kind], LEAD.get(kind, -TIE)
            text = f"{kind}: AUROC at least {wanted:+.1f} against the best single rival ({best})"
            found.append({"target": text, "found": f"{lead:+.1f}", "met": bool(lead >= wanted)})
    named = mean.get("top_cell", {})
    if "tabmoco" in named:
        for kind in KINDS:
            share = named["tabmoco"][kind]
            text = f"{kind}: top cell a planted one in at least {NAMED[kind]:.0f} %"
            found.append({"target": text, "found": f"{share:.1f} %", "met": bool(share >= NAMED[kind])})
            best = max((name for name in named if name != "tabmoco"), key=lambda name: named[name][kind])
            text = f"{kind}: top cell a planted one more often than for each rival (best: {best})"
            found.append(
                {"target": text, "found": f"{share - named[best][kind]:+.1f}", "met": share > named[best][kind]}
            )
    return found


def render(summary: dict[str, Any], facts: dict[str, Any]) -> str:
    mean, by_table = summary["mean"], summary["by_table"]
    lines = [
        "# Planted anomalies in mixed tables",
        "",
        f"Means over tables and {summary['seeds']} seed(s). Training rows are clean; four kinds of anomalies are "
        "planted in others: numbers far out (extreme), rare or unseen categories (rare), contradictions "
        "(contextual), and slipped units, lost signs, swapped columns, shifted dates (format).",
        "",
        "## Targets",
        "",
        *_table(
            ["target", "found", "met"],
            [[row["target"], row["found"], "yes" if row["met"] else "**no**"] for row in summary["targets"]],
        ),
    ]
    for measure, title in MEASURES.items():
        if measure in mean:
            ranked = sorted(mean[measure].items(), key=lambda item: -item[1]["contextual"])
            rows = [[name, *(f"{values[kind]:.1f}" for kind in KINDS)] for name, values in ranked]
            lines += ["", f"## {title}", "", *_table(["", *KINDS], [_bold(row) for row in rows])]
    if summary["explain_seconds"]:
        rows = [[name, f"{seconds:.1f}"] for name, seconds in summary["explain_seconds"].items()]
        lines += ["", "## Seconds to explain 1,000 rows of 40 columns", ""]
        lines += ["tabmoco once trained, with expected values; the others with their fit.", ""]
        lines += _table(["", "s"], [_bold(row) for row in rows])
    for measure, shown in (("auroc", _shown(mean.get("auroc", {}))), ("top_cell", ["tabmoco", *EXPLAINERS])):
        for kind in KINDS:
            names = [name for name in shown if kind in by_table.get(measure, {}).get(name, {})]
            tables = sorted({table for name in names for table in by_table[measure][name][kind]})
            rows = [
                [table, *(_plus_minus(by_table[measure][name][kind].get(table)) for name in names)] for table in tables
            ]
            if rows:
                lines += ["", f"### {MEASURES[measure]}: {kind}, by table", "", *_table(["table", *names], rows)]
    if summary["failures"]:
        lines += ["", "## Failed runs", "", *(f"- {line}" for line in summary["failures"])]
    return "\n".join(lines) + "\n" + footer(facts)


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---", *["---:"] * (len(header) - 1)], *rows)]


def _bold(row: list[str]) -> list[str]:
    return [f"**{cell}**" for cell in row] if row[0] == "tabmoco" else row


def _shown(auroc: dict[str, dict[str, float]]) -> list[str]:
    """tabmoco, the two best single rivals on any kind, and the scalings summed."""
    rivals = [name for name in auroc if DETECTORS[name].is_rival]
    best = [name for kind in KINDS for name in sorted(rivals, key=lambda name: -auroc[name][kind])[:2]]
    return list(dict.fromkeys(name for name in ("tabmoco", *best, "two-scalings") if name in auroc))


def _plus_minus(found: dict[str, float] | None) -> str:
    return "–" if found is None else f"{found['mean']:.1f} ± {found['sd']:.1f}"


def plot(summary: dict[str, Any], path: Path) -> None:
    """Every detector's mean AUROC as a dot per kind, and how often each way to explain names a planted cell."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    auroc, named = (summary["mean"].get(measure, {}) for measure in ("auroc", "top_cell"))
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.4), layout="constrained", width_ratios=(3, 4))
    for x, kind in enumerate(KINDS):
        rivals = {name: values[kind] for name, values in auroc.items() if name != "tabmoco"}
        left.plot([x] * len(rivals), list(rivals.values()), "o", color="#c3c7cf", markersize=6)
        single = [name for name in rivals if DETECTORS[name].is_rival]
        if single:
            best = max(single, key=rivals.__getitem__)
            left.annotate(
                best, (x, rivals[best]), (-8, 0), textcoords="offset points", ha="right", va="center", fontsize=8
            )
        if "tabmoco" in auroc:
            left.plot(x, auroc["tabmoco"][kind], "D", color="#1f6f8b", markersize=8, label="" if x else "tabmoco")
    left.plot([], [], "o", color="#c3c7cf", label="others, the best single one named")
    left.set(ylabel="mean AUROC, %", xlim=(-0.6, len(KINDS) - 0.5), title="Who finds the rows")
    names = [name for name in ("tabmoco", *EXPLAINERS, CHANCE) if name in named]
    width = 0.8 / max(1, len(names))
    for place, name in enumerate(names):
        x = np.arange(len(KINDS)) + width * (place - (len(names) - 1) / 2)
        right.bar(x, [named[name][kind] for kind in KINDS], 0.9 * width, label=name, color=COLOURS[name])
    for x, kind in enumerate(KINDS):
        right.hlines(NAMED[kind], x - 0.42, x + 0.42, colors="#333333", linestyles="dashed", linewidth=0.8)
    right.set(
        ylabel="top cell is a planted one, % of rows", ylim=(0, 100), title="Who names the cells (dashed: target)"
    )
    for axes in (left, right):
        axes.set_xticks(np.arange(len(KINDS)), KINDS)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3)
    figure.savefig(path, dpi=150)
    plt.close(figure)
