"""The anomaly benchmark as a Markdown page and a plot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.anomaly_protocol import CONFIRMATION, DEVELOPMENT, FAMILIES, PUBLISHED_KNN
from benchmarks.anomaly_summary import CLOCK, OURS, SUBSETS, SUM, TIE
from benchmarks.results_file import footer
from benchmarks.runs import Run

TITLES = {"one_class": "One-class: learned from normal rows", "contaminated": "Contaminated: learned from all rows"}
MOST_SHOWN = 20.0
"""AUROC points at which the plot's axis ends."""

SHOWN_RIVALS = ("KNN", "LOF", "IForest")
EXACT_TOLERANCE = 0.02
N_ERRORS = 2.0
"""Standard errors within which a published mean over random draws counts as reproduced."""


def render(summary: Mapping[str, Any], facts: dict[str, Any], *, max_rows: int, published: Sequence[Run] = ()) -> str:
    """The whole page."""
    lines = ["# Anomaly detection", ""]
    lines += [
        "AUROC and AUPRC (average precision) in %, mean ± standard deviation over seeds; means over tables. Every "
        f"detector has its default settings. At most {max_rows:,} rows are learned from and {max_rows:,} scored; of "
        "larger tables they are drawn at random, of scored rows so that the share of anomalies stays.",
        "",
    ]
    lines += _targets(summary)
    for name, setting in summary["settings"].items():
        lines += ["", f"## {TITLES[name]}", "", _best(setting), ""]
        lines += _tables(setting, "auroc") + [""] + _tables(setting, "auprc") + [""] + _overview(setting)
    if summary["calibration"]:
        lines += [""] + _calibration(summary["calibration"])
    if summary["full_size"]:
        lines += [""] + _full_size(summary["full_size"])
    lines += ["", "## Notes", ""] + [f"- {note}" for note in _notes(summary, published)]
    return "\n".join(lines) + "\n" + footer(facts)


def plot(summary: Mapping[str, Any], path: Path) -> None:
    """AUROC gained by tabmoco on every table, over the best single rival and over two scalings summed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = {name: gains for name in summary["settings"] if (gains := _gains(summary["settings"][name]))}
    if not shown:
        return
    height = 1.6 + 0.27 * max(len(next(iter(gains.values()))) for gains in shown.values())
    figure, axes = plt.subplots(1, len(shown), figsize=(5.6 * len(shown), height), layout="constrained", squeeze=False)
    for axis, (name, gains) in zip(axes[0], shown.items(), strict=True):
        _draw_gains(axis, gains)
        axis.set_title(TITLES[name], fontsize=10, pad=24)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _draw_gains(axis: Any, gains: Mapping[str, Mapping[str, float]]) -> None:
    """Two bars per table, the largest gain on top; bars beyond the axis end in their figure."""
    first = next(iter(gains.values()))
    tables = sorted(first, key=first.get)
    for offset, colour, (rival, gain) in zip((0.2, -0.2), ("#1f6f8b", "#b9c4d0"), gains.items(), strict=False):
        values = np.array([gain[table] for table in tables])
        label = f"over {rival} (mean {values.mean():+.1f})"
        height = np.arange(len(tables)) + offset
        axis.barh(height, values.clip(-MOST_SHOWN, MOST_SHOWN), 0.36, color=colour, label=label)
        for y, value in zip(height, values, strict=True):
            if abs(value) > MOST_SHOWN:
                edge = np.sign(value) * MOST_SHOWN
                align = "right" if value > 0 else "left"
                axis.text(edge * 0.99, y, f"{value:+.0f}", ha=align, va="center", fontsize=7, color="#ffffff")
    reach = min(MOST_SHOWN, max(1.0, *(abs(value) for gain in gains.values() for value in gain.values())))
    axis.set_xlim(-1.05 * reach, 1.05 * reach)
    axis.set_yticks(np.arange(len(tables)), tables, fontsize=8)
    axis.set_ylim(-0.7, len(tables) - 0.3)
    axis.axvline(0, color="#333333", linewidth=0.8)
    axis.grid(axis="x", color="#e6e6e6")
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel("AUROC points gained by tabmoco", fontsize=9)
    axis.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def compare_with_published(runs: Iterable[Run]) -> tuple[list[str], bool]:
    """Our AUROC beside the published one, table by table, and whether they agree.

    Where the split is no draw they must agree to 0.02 points. Small tables, and those above 50,000 rows, are drawn at
    random, and the seeds that the authors name (0 to 4) do not bring their draws back; there the means of both may
    differ by two standard errors.
    """
    rows = [run for run in runs if run["setting"] == "dte"]
    lines = ["| table | detector | ours | published KNN | difference | allowed |", "|---|---|---:|---:|---:|---:|"]
    agree = True
    for detector in dict.fromkeys(run["detector"] for run in rows):
        for table in sorted({run["table"] for run in rows if run["detector"] == detector}):
            found = [run for run in rows if (run["detector"], run["table"]) == (detector, table)]
            ours = 100 * np.array([run.get("auroc", np.nan) for run in found])
            theirs, spread = PUBLISHED_KNN[table]
            error = np.sqrt(spread**2 / 5 + (ours.var(ddof=1) if len(ours) > 1 else 0.0) / len(ours))
            allowed = max(EXACT_TOLERANCE, N_ERRORS * error)
            difference = ours.mean() - theirs
            cells = f"{ours.mean():.3f} | {theirs:.2f} | {difference:+.3f}"
            lines.append(f"| {table} | {detector} | {cells} | {allowed:.2f} |")
            agree &= detector != "KNN" or abs(difference) <= allowed
    return lines, agree


# ------------------------------------------------------------------ parts of the page


def _targets(summary: Mapping[str, Any]) -> list[str]:
    lines = ["| target | wanted | measured | met |", "|---|---:|---:|---|"]
    for row in summary["targets"]:
        measured = "–" if row["measured"] is None else f"{row['measured']:.1f}"
        met = {None: "not measured", True: "**yes**", False: "no"}[row["met"]]
        lines.append(f"| {row['target']} | {row['bound']} {row['wanted']:.3g} | {measured} | {met} |")
    return lines


def _calibration(found: Mapping[str, Any]) -> list[str]:
    """What share of normal rows is flagged where a share is asked for."""
    asked = " | ".join(f"{rate:.0%}" for rate in found["rates"])
    within = ", ".join(f"{share:.0%}" for share in found["within_two_sd"])
    lines = [
        "## Calibration",
        "",
        "One-class: share of normal rows, none of them learned from but copies of such among them, that tabmoco's "
        "p-values flag where 1, 5 and 10 % are asked for, in %, mean over seeds ± what chance allows a single run. "
        "Few calibration rows cannot promise 1 %: then the attainable share stands in brackets. Distance: largest gap "
        "between the p-values' distribution and a uniform one, and in brackets what chance allows in 95 % of cases.",
        "",
        f"| table | calibration rows | normal rows | {asked} | distance |",
        "|---|---:|---:|" + "---:|" * (len(found["rates"]) + 1),
    ]
    for name, table in found["tables"].items():
        shares = " | ".join(
            _share(*values)
            for values in zip(found["rates"], table["flagged"], table["attainable"], table["sd"], strict=True)
        )
        lines.append(
            f"| {name} | {table['n_calibration']:,} | {table['n_normal']:,} | {shares} "
            f"| {table['distance']:.3f} ({table['allowed']:.3f}) |"
        )
    mean = " | ".join(f"**{100 * share:.1f}**" for share in found["mean"])
    return [
        *lines,
        f"| **mean** | | | {mean} | |",
        "",
        f"Of {found['runs']} runs {within} lie within two standard deviations of the share asked for (95 % would by "
        f"chance), and {found['uniform']:.0%} have p-values that no test at 5 % tells from uniform ones.",
    ]


def _share(asked: float, flagged: float, attainable: float, sd: float) -> str:
    bracket = "" if attainable > asked / 2 else f" ({100 * attainable:.1f})"
    return f"{100 * flagged:.1f} ± {100 * sd:.1f}{bracket}"


def _full_size(costs: Mapping[str, Any]) -> list[str]:
    """What whole large tables cost."""
    lines = [
        "## Large tables whole",
        "",
        "One-class, without a cap. Rows learned from and scored together; seconds to fit and score; MB at the peak.",
        "",
        f"| table | rows | {OURS} s | {CLOCK} s | times | {OURS} MB | {CLOCK} MB | ten times the rows cost {OURS} |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for table, found in costs.items():
        ours, clock = found[OURS], found[CLOCK]
        growth = "–" if ours["times_for_tenfold"] is None else f"×{ours['times_for_tenfold']:.1f}"
        lines.append(
            f"| {table} | {ours['rows']:,} | {ours['seconds']:.0f} | {clock['seconds']:.0f} "
            f"| {ours['seconds'] / clock['seconds']:.1f} | {ours['peak_mb']:.0f} | {clock['peak_mb']:.0f} | {growth} |"
        )
    return lines


def _best(setting: Mapping[str, Any]) -> str:
    seeds = len(setting["seeds"])
    best = " and ".join(f"{name} by {measure.upper()}" for measure, name in setting["best"].items() if name)
    sentence = f"{len(setting['tables'])} tables, {seeds} seed{'s' if seeds > 1 else ''}."
    return sentence + (f" The best single rival is {best}." if best else "")


def _tables(setting: Mapping[str, Any], measure: str) -> list[str]:
    """One row per table and one per mean, tabmoco and few others as columns."""
    detectors, figures = setting["detectors"], setting["figures"][measure]
    wanted = dict.fromkeys([OURS, setting["best"][measure], SUM, *SHOWN_RIVALS])
    names = [name for name in wanted if name in detectors]
    lines = [f"| {measure.upper()} | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for half, tables in (("development", DEVELOPMENT), ("confirmation", CONFIRMATION)):
        present = [table for table in tables if table in figures]
        for table in present:
            cells = [_cell(figures[table].get(name)) for name in names]
            lines.append(f"| {table}{_mark(table)} | " + " | ".join(cells) + " |")
        if present:
            lines.append(_mean_row(half, names, detectors, measure))
    return lines + [_mean_row(subset, names, detectors, measure) for subset in list(SUBSETS)[2:]]


def _mean_row(subset: str, names: list[str], detectors: Mapping[str, Any], measure: str) -> str:
    means = [detectors[name].get(f"{measure} {subset}") for name in names]
    return f"| **mean, {subset}** | " + " | ".join("–" if m is None else f"**{100 * m:.1f}**" for m in means) + " |"


def _overview(setting: Mapping[str, Any]) -> list[str]:
    """One row per detector, the best first."""
    detectors = setting["detectors"]
    order = sorted(detectors, key=lambda name: -detectors[name].get("auroc all", 0.0))
    largest = ", ".join(setting["largest"])
    lines = [
        f"W/T/L: tables on which tabmoco is ahead, level (to {100 * TIE:.1f} AUROC points), behind. Seconds to fit and "
        f"score and MB at the peak: median run / the three largest tables ({largest}; seconds added, highest peak).",
        "",
        "| detector | AUROC | AUPRC | rank | W/T/L | seconds | MB |",
        "|---|---:|---:|---:|---|---:|---:|",
    ]
    for name in order:
        facts = detectors[name]
        label = f"{name} (PyOD)" if facts["package"] == "PyOD" else name
        if "auroc all" in facts:
            cells = [f"{100 * facts['auroc all']:.1f}", f"{100 * facts['auprc all']:.1f}", f"{facts['auroc rank']:.1f}"]
        else:
            cells = [f"{facts['n_tables']} of {len(setting['tables'])} tables", "–", "–"]
        cells.append(f"{facts['wins']}/{facts['ties']}/{facts['losses']}" if "wins" in facts else "–")
        cells += [_pair(facts["seconds"], facts["seconds_largest"], ".1f")]
        cells += [_pair(facts["peak_mb"], facts["peak_mb_largest"], ".0f")]
        bold = "**" if name == OURS else ""
        lines.append(f"| {bold}{label}{bold} | " + " | ".join(cells) + " |")
    return lines


def _notes(summary: Mapping[str, Any], published: Sequence[Run]) -> list[str]:
    families = "; ".join(f"{_mark(family[0]).strip()} {', '.join(family)}" for family in FAMILIES)
    kept = ", ".join(family[0] for family in FAMILIES)
    notes = [
        f"Tables of one source: {families}. The mean with one of each family keeps {kept}.",
        f"Choices were made on the development tables ({', '.join(DEVELOPMENT)}); the others only confirm. wbc and "
        "wdbc among them have a relative in the development half.",
        "kNN-z and kNN-q are mean distances to k neighbours on z-scored and quantile-normal cells, two-scalings is the "
        "sum of both with 2 neighbours after calibration on training rows; untrained is tabmoco without training.",
        "Exact copies of training rows are not scored in the one-class setting. PyOD's ECOD and COPOD rank the scored "
        "rows among themselves, too.",
        f"Runs had {' or '.join(map(str, summary['threads']))} threads and a process each; MB is the highest resident "
        "memory above that of the process before it began.",
    ]
    if published:
        lines, agree = compare_with_published(published)
        verdict = "agrees with" if agree else "does NOT agree with"
        notes.append(
            f"The harness {verdict} the published KNN column of the DTE split on {len(lines) - 2} tables: to 0.02 "
            "points where the split is no random draw, to two standard errors elsewhere. That split leaks and serves "
            "no other purpose here."
        )
    commits = {commit for made in summary["made_by"].values() for commit in made}
    if len(commits) > 1:
        made = "; ".join(f"{name} {', '.join(found)}" for name, found in summary["made_by"].items())
        notes.append(f"Runs come from several commits: {made}.")
    if summary["failures"]:
        failed = [
            f"{run['detector']} on {run['table']} ({run['setting']}, seed {run['seed']}): {run['failure']}"
            for run in summary["failures"]
        ]
        notes.append(
            "Failed runs, counted as chance (AUROC 50, AUPRC the share of anomalies): " + "; ".join(failed) + "."
        )
    return notes


def _gains(setting: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """AUROC points gained by tabmoco per table, over each of the two that matter."""
    figures, detectors = setting["figures"]["auroc"], setting["detectors"]
    rivals = [name for name in (setting["best"]["auroc"], SUM) if "auroc all" in detectors.get(name, {})]
    if "auroc all" not in detectors.get(OURS, {}):
        return {}
    return {
        rival: {table: 100 * (row[OURS]["mean"] - row[rival]["mean"]) for table, row in figures.items()}
        for rival in rivals
    }


def _cell(figure: Mapping[str, float | None] | None) -> str:
    if figure is None or figure["mean"] is None:
        return "–"
    spread = "" if figure["sd"] is None else f" ± {100 * figure['sd']:.1f}"
    return f"{100 * figure['mean']:.1f}{spread}"


def _pair(median: float | None, largest: float | None, style: str) -> str:
    return " / ".join("–" if value is None else format(value, style) for value in (median, largest))


def _mark(table: str) -> str:
    for mark, family in zip(("ᵃ", "ᵇ", "ᶜ"), FAMILIES, strict=True):
        if table in family:
            return f" {mark}"
    return ""
