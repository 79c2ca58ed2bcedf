"""From single runs to the figures that are reported: means, ranks, wins, costs, and which targets are met.

Every figure of a table is a mean over seeds, every mean a mean over tables. A run that failed counts as chance: AUROC
one half, AUPRC the share of anomalies. A detector that has not run on every table yet has no mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.anomaly_protocol import CONFIRMATION, DEVELOPMENT, FAMILIES, RATES
from benchmarks.detectors import DETECTORS
from benchmarks.runs import Run
from benchmarks.targets import Target

MEASURES = ("auroc", "auprc")
OURS, SUM, CLOCK = "tabmoco", "two-scalings", "KNN"

TIE = 0.002
"""Two AUROC this near are level."""

N_LARGEST = 3

RELATIVES = {name for family in FAMILIES for name in family[1:]}

SUBSETS: dict[str, Callable[[str], bool]] = {
    "development": lambda table: table in DEVELOPMENT,
    "confirmation": lambda table: table in CONFIRMATION,
    "all": lambda table: True,
    "one of each family": lambda table: table not in RELATIVES,
}


def summarise(runs: Sequence[Run], full_size: Sequence[Run] = ()) -> dict[str, Any]:
    """Everything that is reported, as JSON holds it. Runs on uncapped tables only tell what size costs."""
    frame = pd.DataFrame([_with_chance(run) for run in runs])
    frame = frame.reindex(columns=frame.columns.union(["failure", "peak_mb"]))
    settings: dict[str, Any] = {
        name: _setting(frame[frame.setting == name])
        for name in ("one_class", "contaminated")
        if name in set(frame.setting)
    }
    summary = {
        "settings": settings,
        "calibration": calibration_of(runs),
        "full_size": _full_size(runs, full_size),
        "failures": [_failure(run, run["setting"]) for run in runs if "failure" in run]
        + [_failure(run, "whole table") for run in full_size if "failure" in run],
        "made_by": {name: sorted(set(made)) for name, made in frame.groupby("detector")["commit"]},
        "threads": sorted({int(threads) for threads in frame.threads}),
    }
    return summary | {"targets": [target.judge(summary) for target in TARGETS]}


# ------------------------------------------------------------------ targets


def lead(summary: Mapping[str, Any], *, setting: str, measure: str, over: str | None = None) -> float | None:
    """Points by which tabmoco's mean is ahead of a detector's, or of the best single rival's."""
    figures = summary["settings"].get(setting)
    if figures is None:
        return None
    rival = over or figures["best"][measure]
    means = [figures["detectors"].get(name, {}).get(f"{measure} all") for name in (OURS, rival)]
    return None if None in means else 100 * (means[0] - means[1])


def share_level(summary: Mapping[str, Any], *, setting: str, with_: str) -> float | None:
    """Percent of the tables on which tabmoco is ahead of a detector or level."""
    rival = summary["settings"].get(setting, {}).get("detectors", {}).get(with_, {})
    if "wins" not in rival:
        return None
    return 100 * (rival["wins"] + rival["ties"]) / (rival["wins"] + rival["ties"] + rival["losses"])


def times_the_clock(summary: Mapping[str, Any]) -> float | None:
    """tabmoco's seconds on the uncapped tables, by those of PyOD's KNN."""
    seconds = [sum(costs[name]["seconds"] for costs in summary["full_size"].values()) for name in (OURS, CLOCK)]
    return seconds[0] / seconds[1] if seconds[1] else None


def growth(summary: Mapping[str, Any]) -> float | None:
    """What ten times the rows cost, in times the seconds, on the table where it is most."""
    found = [costs[OURS]["times_for_tenfold"] for costs in summary["full_size"].values()]
    return max((value for value in found if value is not None), default=None)


TARGETS = (
    Target(
        "one-class AUROC points over the best single rival", "at least", 2.0,
        partial(lead, setting="one_class", measure="auroc"),
    ),
    Target(
        "one-class AUPRC points over the best single rival", "at least", 4.0,
        partial(lead, setting="one_class", measure="auprc"),
    ),
    Target(
        "one-class AUROC points over the two scalings summed", "at least", 1.0,
        partial(lead, setting="one_class", measure="auroc", over=SUM),
    ),
    Target(
        "one-class AUPRC points over the two scalings summed", "at least", 2.5,
        partial(lead, setting="one_class", measure="auprc", over=SUM),
    ),
    Target(
        "one-class tables level with the two scalings summed or better, %", "at least", 100 * 2 / 3,
        partial(share_level, setting="one_class", with_=SUM),
    ),
    Target(
        "contaminated AUROC points over the best single rival", "above", 0.0,
        partial(lead, setting="contaminated", measure="auroc"),
    ),
    Target("seconds on the largest tables, in those of PyOD's KNN", "at most", 5.0, times_the_clock),
    Target("seconds for ten times the rows, in times", "at most", 12.0, growth),
)  # fmt: skip


# ------------------------------------------------------------------ figures


def _setting(frame: pd.DataFrame) -> dict[str, Any]:
    by_cell = frame.groupby(["table", "detector"])
    mean = {measure: by_cell[measure].mean().unstack() for measure in MEASURES}
    spread = {measure: by_cell[measure].std().unstack() for measure in MEASURES}
    names = [name for name in DETECTORS if name in mean["auroc"]]
    complete = [name for name in names if mean["auroc"][name].notna().all()]
    rivals = [name for name in complete if DETECTORS[name].is_rival]
    largest = frame.groupby("table").n_rows.first().sort_values(ascending=False, kind="stable").index[:N_LARGEST]
    return {
        "tables": {name: _table_facts(rows) for name, rows in frame.groupby("table")},
        "seeds": sorted({int(seed) for seed in frame.seed}),
        "best": {measure: mean[measure][rivals].mean().idxmax() if rivals else None for measure in MEASURES},
        "largest": list(largest),
        "detectors": {
            name: _costs(name, frame[frame.detector == name], list(largest))
            | (_standing(name, mean, complete) if name in complete else {})
            for name in names
        },
        "figures": {
            measure: {
                table: {
                    name: {
                        "mean": _round(mean[measure].loc[table, name]),
                        "sd": _round(spread[measure].loc[table, name]),
                    }
                    for name in names
                }
                for table in mean[measure].index
            }
            for measure in MEASURES
        },
    }


def _costs(name: str, runs: pd.DataFrame, largest: list[str]) -> dict[str, Any]:
    detector, on_largest = DETECTORS[name], runs[runs.table.isin(largest)]
    return {
        "family": detector.family,
        "package": detector.package,
        "sees": detector.sees,
        "n_tables": int(runs.table.nunique()),
        "n_failures": int(runs.failure.notna().sum()),
        "seconds": _round(runs.seconds.median()),
        "seconds_largest": _round(on_largest.groupby("table").seconds.mean().sum()),
        "peak_mb": _round(runs.peak_mb.median()),
        "peak_mb_largest": _round(on_largest.peak_mb.max()),
    }


def _standing(name: str, mean: Mapping[str, pd.DataFrame], complete: list[str]) -> dict[str, Any]:
    """Means over tables, ranks, and tabmoco's wins, ties and losses against this detector."""
    facts: dict[str, Any] = {}
    for measure in MEASURES:
        ranks = mean[measure][complete].round(9).rank(axis=1, ascending=False)
        facts[f"{measure} rank"] = _round(ranks[name].mean())
        for subset, holds in SUBSETS.items():
            tables = [table for table in mean[measure].index if holds(table)]
            facts[f"{measure} {subset}"] = float(mean[measure].loc[tables, name].mean()) if tables else None
    if OURS in complete and name != OURS:
        gain = (mean["auroc"][OURS] - mean["auroc"][name]).round(9)
        facts |= {"wins": int((gain > TIE).sum()), "losses": int((gain < -TIE).sum())}
        facts["ties"] = len(gain) - facts["wins"] - facts["losses"]
    return facts


def calibration_of(runs: Sequence[Run]) -> dict[str, Any]:
    """Per table, what share of normal rows tabmoco's p-values flag, the share that is attainable and the standard
    deviation that chance allows a run; and over all, how many runs lie within two of them."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run["detector"] == OURS and "calibration" in run:
            found.setdefault(run["table"], []).append(run["calibration"])
    if not found:
        return {}
    tables = {name: _calibration_of_table(rows) for name, rows in sorted(found.items())}
    every = [_sampling(row) | row for rows in found.values() for row in rows]
    within = [np.abs(np.subtract(row["flagged"], row["attainable"])) <= 2 * np.array(row["sd"]) + 1e-9 for row in every]
    return {
        "rates": list(RATES),
        "tables": tables,
        "mean": np.mean([table["flagged"] for table in tables.values()], axis=0).tolist(),
        "runs": len(every),
        "within_two_sd": np.mean(within, axis=0).tolist(),
        "uniform": float(np.mean([row["distance"] <= row["allowed"] for row in every])),
    }


def _calibration_of_table(runs: Sequence[Run]) -> dict[str, Any]:
    chance = [_sampling(run) for run in runs]
    return {
        "n_normal": runs[0]["n_normal"],
        "n_calibration": runs[0]["n_calibration"],
        "flagged": np.mean([run["flagged"] for run in runs], axis=0).tolist(),
        "attainable": np.mean([row["attainable"] for row in chance], axis=0).tolist(),
        "sd": np.mean([row["sd"] for row in chance], axis=0).tolist(),
        "distance": float(np.mean([run["distance"] for run in runs])),
        "allowed": float(np.mean([row["allowed"] for row in chance])),
    }


def _sampling(run: Run) -> dict[str, Any]:
    """What chance allows: with `m` calibration and `n` normal rows a share `a` varies with variance
    `a (1 − a) (1/n + 1/m)`, and a distance stays below `1.36 √(1/n + 1/m)` in 95 % of the cases (Smirnov 1948)."""
    n_normal, n_calibration = run["n_normal"], run["n_calibration"]
    attainable = np.floor(np.array(RATES) * (n_calibration + 1) + 1e-9) / (n_calibration + 1)
    noise = 1 / n_normal + 1 / n_calibration
    return {
        "attainable": attainable.tolist(),
        "sd": np.sqrt(attainable * (1 - attainable) * noise).tolist(),
        "allowed": 1.36 * math.sqrt(noise),
    }


def _full_size(capped: Sequence[Run], whole: Sequence[Run]) -> dict[str, Any]:
    """Per table that tabmoco and PyOD's KNN both scored whole: rows, seconds, memory, and how seconds grew."""
    shown = {}
    for table in sorted({run["table"] for run in whole}):
        found = {name: _mean_costs(whole, table, name) for name in (OURS, CLOCK)}
        if None in found.values():
            continue
        for name, costs in found.items():
            small = _mean_costs(capped, table, name)
            ratio = costs["rows"] / small["rows"] if small else 1.0
            growth = costs["seconds"] / small["seconds"] if small and ratio > 1 else None
            costs["times_for_tenfold"] = None if growth is None else growth ** (1 / math.log10(ratio))
        shown[table] = found
    return shown


def _mean_costs(runs: Sequence[Run], table: str, detector: str) -> dict[str, Any] | None:
    found = [
        run
        for run in runs
        if (run["setting"], run["table"], run["detector"]) == ("one_class", table, detector) and "failure" not in run
    ]
    if not found:
        return None
    return {
        "rows": int(np.mean([run["n_train"] + run["n_scored"] for run in found])),
        "seconds": float(np.mean([run["seconds"] for run in found])),
        "peak_mb": float(np.max([run["peak_mb"] for run in found])),
    }


def _with_chance(run: Run) -> Run:
    if "failure" not in run:
        return run
    return {**run, "auroc": 0.5, "auprc": run["n_anomalies"] / run["n_scored"]}


def _table_facts(rows: pd.DataFrame) -> dict[str, int]:
    names = ("n_rows", "n_columns", "n_train", "n_scored", "n_anomalies", "n_copies")
    return {name: int(rows[name].iloc[0]) for name in names}


def _failure(run: Run, setting: str) -> Run:
    return {name: run[name] for name in ("table", "seed", "detector", "failure")} | {"setting": setting}


def _round(value: float) -> float | None:
    return None if pd.isna(value) else round(float(value), 5)
