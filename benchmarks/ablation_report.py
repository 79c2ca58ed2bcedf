"""The ablation as a Markdown page and one figure per question."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ablation_protocol import N_FEW, N_LABELS, N_QUERIES, SWAPPED
from benchmarks.ablation_summary import MEASURES, N_ERRORS, by_chance, points
from benchmarks.results_file import footer

COLOURS = {"auroc": "#1f6f8b", "retrieval": "#c98b4b"}
TITLES = {"auroc": "linear probe, AUROC", "retrieval": "found again"}
COUNTED = {True: "hold", None: "not told apart", False: "the opposite"}
VERDICTS = {True: "**holds**", False: "**the opposite**", None: "not told apart"}


def render(summary: Mapping[str, Any], facts: dict[str, Any], *, steps: int, max_rows: int, figures: str) -> str:
    """The whole page; `figures` is the folder of the figures, seen from the page."""
    lines = ["# What MoCo's claims are worth on tables", "", _introduction(summary, steps, max_rows), ""]
    lines += _brief(summary) + [""] + _lore(summary) + [""] + _better(summary) + [""] + _tables(summary)
    for name, found in summary["questions"].items():
        lines += ["", f"## {found['title']}", "", f"![{found['title']}]({figures}/{name}.png)", ""]
        lines += _options(found) + [""] + _sentences(found)
    lines += ["", "## Notes", ""] + [f"- {note}" for note in _notes(summary)]
    return "\n".join(lines) + "\n" + footer(facts)


def plot(summary: Mapping[str, Any], folder: Path) -> None:
    """For every question the differences from its first option by both yardsticks, in FOLDER/QUESTION.png."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    for name, found in summary["questions"].items():
        labels = [label for label in found["options"] if label != found["reference"]]
        height = 1.3 + 0.34 * len(labels)
        figure, axes = plt.subplots(1, len(MEASURES), figsize=(9.6, height), layout="constrained", sharey=True)
        for axis, measure in zip(axes, MEASURES, strict=True):
            _draw(axis, found, labels, measure)
        figure.suptitle(found["title"], fontsize=10)
        figure.savefig(folder / f"{name}.png", dpi=130)
        plt.close(figure)


def _draw(axis: Any, found: Mapping[str, Any], labels: list[str], measure: str) -> None:
    """A dot and two standard errors for each option, a speck for each table."""
    height = np.arange(len(labels))[::-1]
    for y, label in zip(height, labels, strict=True):
        row = found["options"][label]["against"][measure]
        specks = list(row["tables"].values())
        axis.plot(specks, np.full(len(specks), y), "o", ms=3, color="#c3c7cf", zorder=1)
        axis.errorbar(
            row["mean"], y, xerr=N_ERRORS * (row["error"] or 0.0), fmt="o", ms=5, capsize=3, color=COLOURS[measure]
        )
    axis.axvline(0, color="#333333", linewidth=0.8)
    axis.set_yticks(height, labels, fontsize=8)
    axis.set_ylim(-0.6, len(labels) - 0.4)
    axis.set_xlabel(f"{TITLES[measure]}, points over {found['reference']}", fontsize=8)
    axis.grid(axis="x", color="#e6e6e6")
    axis.set_axisbelow(True)
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right", "left"]].set_visible(False)


# ------------------------------------------------------------------ parts of the page


def _introduction(summary: Mapping[str, Any], steps: int, max_rows: int) -> str:
    n_tables, n_seeds = len(summary["tables"]), len(summary["seeds"])
    return (
        f"{n_tables} table{'s' * (n_tables != 1)}, {n_seeds} seed{'s' * (n_seeds != 1)}, at most {max_rows:,} rows, "
        f"{steps:,} steps of 256 rows unless stated; the target is in no row. A setting is the default with the one "
        "thing changed. Two yardsticks: the AUROC of a linear probe on the frozen embedding, learned from "
        f"{N_LABELS} labels, and how many of {N_QUERIES:,} rows that were never trained on are found again after "
        f"{SWAPPED:.0%} of their cells were swapped with other rows'. Differences are in points (hundredths), in pairs "
        "of the same table and seed: mean ± standard error over the pairs. One is told apart when it exceeds twice its "
        "standard error."
    )


def _brief(summary: Mapping[str, Any]) -> list[str]:
    lines = ["## The answers in brief", ""]
    for found in summary["questions"].values():
        lines.append(f"- **{found['title']}** {_conclusion(found)}")
    return lines


def _conclusion(found: Mapping[str, Any]) -> str:
    """One sentence for both yardsticks."""
    parts = [f"{name}: {found['answers'][measure].removesuffix('.')}" for measure, name in MEASURES.items()]
    text = "; by ".join(parts)
    return f"By {text}."


def _lore(summary: Mapping[str, Any]) -> list[str]:
    """The claims whose opposite is told apart by a yardstick, and how many there are of each kind."""
    claims = [claim for found in summary["questions"].values() for claim in found["claims"]]
    verdicts = [row["holds"] for claim in claims for row in claim["measures"].values()]
    wrong = [claim for claim in claims if any(row["holds"] is False for row in claim["measures"].values())]
    counts = ", ".join(f"{verdicts.count(holds)} {words}" for holds, words in COUNTED.items())
    lines = ["## Where what is held to be true does not hold", ""]
    lines.append(f"Of {len(claims)} claims, each by both yardsticks: {counts}." if claims else "Nothing was tried.")
    return lines + ([""] + [f"- {_claim(claim)}" for claim in wrong] if wrong else [])


def _better(summary: Mapping[str, Any]) -> list[str]:
    lines = ["## What might be a better default", ""]
    if not summary["better"]:
        return [*lines, "Nothing tried is told apart above the default by one yardstick and not below it by the other."]
    lines += [
        "Told apart above the default by one yardstick and not below it by the other:",
        "",
        "| question | setting | linear probe | found again |",
        "|---|---|---:|---:|",
    ]
    for row in summary["better"]:
        cells = " | ".join(points(row["against"][measure]) for measure in MEASURES)
        lines.append(f"| {row['question']} | {row['option']} | {cells} |")
    return lines


def _tables(summary: Mapping[str, Any]) -> list[str]:
    lines = [
        "## The default and the control",
        "",
        "AUROC and rows found again in %, mean ± standard deviation over seeds.",
        "",
        "| table | rows | columns | AUROC | untrained | found again | untrained | s | MB | rows/s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in summary["tables"].items():
        figures = " | ".join(_spread(row[who][m]) for m in MEASURES for who in ("default", "untrained"))
        lines.append(f"| {name} | {row['n_train']:,} | {row['n_columns']} | {figures} | {_cost(row)} |")
    return lines


def _options(found: Mapping[str, Any]) -> list[str]:
    """A row for each option. Absolute figures are of the tables an option was tried on, differences of pairs."""
    lines = [
        "| setting | AUROC | difference | tables ahead | found again | difference | tables ahead "
        "| runs | s | MB | rows/s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for label, row in found["options"].items():
        is_reference = label == found["reference"]
        cells = []
        for measure in MEASURES:
            difference = row["against"][measure]
            ahead = f"{difference['ahead']} of {len(difference['tables'])}"
            cells += [_number(row[measure])] + (["", ""] if is_reference else [_difference(difference), ahead])
        words = f"{label} (default)" if row["is_default"] else label
        costly = " *" if row["is_costly"] else ""
        lines.append(f"| {words}{costly} | {' | '.join(cells)} | {row['n_runs']} | {_cost(row)} |")
    if found["untrained"]:
        cells = [["", _difference(found["untrained"][m]), ""] for m in MEASURES]
        lines.append(f"| untrained encoder | {' | '.join(cells[0] + cells[1])} | | | | |")
    return lines


def _sentences(found: Mapping[str, Any]) -> list[str]:
    lines = [_conclusion(found)]
    if found["lore"]:
        lines += ["", f"What is held to be true: {found['lore']}" + (" Here:" if found["claims"] else "")]
    if found["claims"]:
        lines += [""] + [f"- {_claim(claim)}" for claim in found["claims"]]
    if found["note"]:
        lines += ["", found["note"]]
    if any(row["is_costly"] for row in found["options"].values()):
        lines += [
            "",
            f"* Costly, so tried on at most {N_FEW} tables; its means are of these, its differences of pairs.",
        ]
    return lines


def _claim(claim: Mapping[str, Any]) -> str:
    verdicts = [
        f"{MEASURES[measure]} {points(row)}, {VERDICTS[row['holds']]}" for measure, row in claim["measures"].items()
    ]
    return f"{claim['better']} better than {claim['worse']}: {'; '.join(verdicts)}."


def _notes(summary: Mapping[str, Any]) -> list[str]:
    pairs = [
        row["against"]["auroc"]["pairs"]
        for found in summary["questions"].values()
        for label, row in found["options"].items()
        if label != found["reference"]
    ]
    chances = [f"{100 * by_chance(n):.0f} % with {n} pairs" for n in sorted(set(pairs)) if n > 1]
    notes = [
        "Differences of nothing but noise are told apart now and then"
        + (f", in {', '.join(chances)}" if chances else "; a single pair never is")
        + ". Seeds of one table are more alike than tables are, and the best of several settings is partly luck, so "
        "the true shares are higher. Tables ahead counts tables by the mean of their seeds.",
        "Everything but the one thing is the default's, which was tuned before: other values may need other settings "
        "beside them, or more steps.",
        "Rows are searched by cosine among the tested rows and others, up to 6,000; an exact copy counts as the row.",
        "Seconds and rows/s are those of training, MB is the highest resident memory of the whole run above that of "
        f"the process before it began; threads: {' or '.join(map(str, summary['threads']))}.",
        "A failed run counts as chance: AUROC 50, nothing found again.",
    ]
    if summary["collapsed"]:
        notes.append("All rows became nearly one (effective rank below 2): " + ", ".join(summary["collapsed"]) + ".")
    if len(summary["commits"]) > 1:
        notes.append(f"Runs come from several commits: {', '.join(summary['commits'])}.")
    if summary["failures"]:
        failed = [f"{r['setting']} on {r['table']} (seed {r['seed']}): {r['failure']}" for r in summary["failures"]]
        notes.append("Failed runs: " + "; ".join(failed) + ".")
    return notes


# ------------------------------------------------------------------ figures as text


def _difference(difference: Mapping[str, Any]) -> str:
    return f"**{points(difference)}**" if difference["told"] else points(difference)


def _spread(figure: Mapping[str, float | None]) -> str:
    if figure["mean"] is None:
        return "–"
    return f"{figure['mean']:.1f}" + ("" if figure["sd"] is None else f" ± {figure['sd']:.1f}")


def _number(value: float | None, style: str = ".1f") -> str:
    return "–" if value is None else format(value, style)


def _cost(row: Mapping[str, Any]) -> str:
    styles = (("train_seconds", ".1f"), ("peak_mb", ".0f"), ("rows_per_second", ",.0f"))
    return " | ".join(_number(row[name], style) for name, style in styles)
