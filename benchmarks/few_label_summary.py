"""From single runs to the figures that are reported: means, ranks, win ratios, costs, and which targets are met.

A figure of a table is a mean over draws, a mean is one over tables. The score of a run is its AUROC, or 1 less its RMSE
in standard deviations; a point is a hundredth. A run that failed counts as one that knows nothing: AUROC one half, all
classes as likely, the mean for a number. A method that lacks a table or a draw of a budget has no mean there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.few_label_methods import METHODS
from benchmarks.few_label_protocol import BUDGETS, SHOTS
from benchmarks.runs import Run
from benchmarks.targets import Target

OURS, FROZEN, BESIDE, TUNED = "tabmoco", "tabmoco-expected", "tabmoco-cells", "tabmoco-finetuned"
CONTROLS = ("linear", "untrained", "PCA")
TS3L = ("SCARF", "VIME")

MEASURES = {"classification": ("auroc", "accuracy", "log_loss"), "regression": ("nrmse", "r2", "rmse")}
FALLING = ("log_loss", "nrmse", "rmse")
"""Measures that are better when they are lower."""

TIE = 0.002
"""Two scores this near are level."""

UP_TO_1000 = ("10", "25", "100", "500", "1000")

PUBLISHED_STUNT = {
    "1-shot": {"kNN": 52.82, "CatBoost": 52.06, "LR": 52.43, "VIME + LR": 55.89, "STUNT": 63.88},
    "5-shot": {"kNN": 69.38, "CatBoost": 69.14, "LR": 68.36, "VIME + LR": 70.98, "STUNT": 74.77},
}
"""Mean accuracy on eight tables, 100 draws (Nam et al. 2023, table 1). CatBoost there was tuned on 100 labels more."""


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything that is reported, as JSON holds it."""
    frame = pd.DataFrame([_with_chance(run) for run in runs])
    wanted = ["failure", "source_seconds", *(name for names in MEASURES.values() for name in names)]
    frame = frame.reindex(columns=frame.columns.union(wanted))
    frame["score"] = frame.auroc.where(frame.kind == "classification", 1 - frame.nrmse)
    kinds = {
        kind: {budget: _budget(kind, part) for budget, part in _in_order(frame[frame.kind == kind].groupby("budget"))}
        for kind in MEASURES
        if kind in set(frame.kind)
    }
    summary: dict[str, Any] = {
        "kinds": kinds,
        "tables": {name: _table_facts(rows) for name, rows in frame.groupby("table")},
        "pretraining": pretraining_of(kinds),
        "failures": [
            {name: run[name] for name in ("table", "budget", "draw", "method", "failure")}
            for run in runs
            if "failure" in run
        ],
        "made_by": {name: sorted(set(made)) for name, made in frame.groupby("method")["commit"]},
        "threads": sorted({int(threads) for threads in frame.threads}),
    }
    targets = [target for target in TARGETS if kinds.get(target.kind, {}).keys() & set(target.budgets)]
    return summary | {"targets": [target.judge(summary) for target in targets]}


def of(summary: Mapping[str, Any], kind: str, budget: str) -> Mapping[str, Any]:
    return summary["kinds"].get(kind, {}).get(budget, {})


# ------------------------------------------------------------------ targets


@dataclass(frozen=True)
class BudgetTarget(Target):
    """One that is left out where none of its budgets was run."""

    kind: str
    budgets: tuple[str, ...]


def lead(
    summary: Mapping[str, Any], *, kind: str, budget: str, ours: str = OURS, over: str = "best", measure: str = "score"
) -> float | None:
    """Points by which our mean is ahead of a method's, of the `best` rival's, or of the `best_tree`'s."""
    found = of(summary, kind, budget)
    rival = found.get(over) if over in ("best", "best_tree") else over
    means = [found.get("methods", {}).get(name, {}).get(measure) for name in (ours, rival)]
    return None if None in means else round(100 * (means[0] - means[1]), 9)


def least_lead(summary: Mapping[str, Any], *, kind: str, ours: str, over: Sequence[str]) -> float | None:
    """The smallest lead over any of these methods at any budget up to 1,000 that was run."""
    budgets = [budget for budget in UP_TO_1000 if of(summary, kind, budget)]
    leads = [lead(summary, kind=kind, budget=budget, ours=ours, over=name) for budget in budgets for name in over]
    return None if None in leads or not leads else min(leads)


def share_ahead(summary: Mapping[str, Any], *, kind: str, budget: str, ours: str, over: str) -> float | None:
    """Percent of the tables on which one method's score is above another's."""
    found = of(summary, kind, budget)
    if any("score" not in found.get("methods", {}).get(name, {}) for name in (ours, over)):
        return None
    rows = found["figures"]["score"].values()
    return 100 * float(np.mean([row[ours]["mean"] > row[over]["mean"] for row in rows]))


def relative_accuracy(summary: Mapping[str, Any], *, budget: str) -> float | None:
    """Percent by which pretraining raises the fine-tuned encoder's accuracy, mean of **all** tables."""
    mean = summary["pretraining"].get(budget, {}).get("mean")
    return None if mean is None else round(mean, 9)


def _targets() -> tuple[BudgetTarget, ...]:
    targets = []
    for kind, word in (("classification", "AUROC"), ("regression", "RMSE")):
        for ours in (FROZEN, BESIDE):
            for over in (CONTROLS, TS3L):
                words = f"{word}: least lead of {ours} over {', '.join(over)} at any budget up to 1,000"
                measure = partial(least_lead, kind=kind, ours=ours, over=over)
                targets.append(BudgetTarget(words, "above", 0.0, measure, kind, UP_TO_1000))
        for budget, bound, wanted in (
            ("10", "at least", 2.0), ("25", "at least", 2.0), ("100", "at least", 1.0), ("500", "above", 0.0),
            ("1000", "at least", -100 * TIE), ("5000", "at least", -100 * TIE),
        ):  # fmt: skip
            words = f"{word}: tabmoco over the best rival's mean at {int(budget):,} labels"
            ahead = partial(lead, kind=kind, budget=budget)
            targets.append(BudgetTarget(words, bound, wanted, ahead, kind, (budget,)))
        words = f"{word}: tabmoco over the best tree with all labels"
        best_tree = partial(lead, kind=kind, budget="all", over="best_tree")
        targets.append(BudgetTarget(words, "at least", -0.3, best_tree, kind, ("all",)))
        for ours, over in ((FROZEN, "untrained"), (TUNED, "from-scratch")):
            words = f"{word}: tables on which {ours} is ahead of {over} at 100 labels, %"
            ahead = partial(share_ahead, kind=kind, budget="100", ours=ours, over=over)
            targets.append(BudgetTarget(words, "at least", 75.0, ahead, kind, ("100",)))
    words = f"accuracy of {TUNED} over from-scratch with 25 % of the labels, relative, mean of all tables, %"
    gain = partial(relative_accuracy, budget="25%")
    targets.append(BudgetTarget(words, "at least", 2.0, gain, "classification", ("25%",)))
    for shot in SHOTS:
        for over in ("5NN", "VIME"):
            ahead = partial(lead, kind="classification", budget=shot, over=over, measure="accuracy")
            words = f"accuracy: tabmoco over {over}, {shot}"
            targets.append(BudgetTarget(words, "above", 0.0, ahead, "classification", (shot,)))
    return tuple(targets)


TARGETS = _targets()


# ------------------------------------------------------------------ figures


def pretraining_of(kinds: Mapping[str, Any]) -> dict[str, Any]:
    """What pretraining adds to the accuracy of the fine-tuned encoder, relative, in percent, for every budget."""
    found = {}
    for budget, facts in kinds.get("classification", {}).items():
        if any("accuracy" not in facts["methods"].get(name, {}) for name in (TUNED, "from-scratch")):
            continue
        gains = {
            table: round(100 * (row[TUNED]["mean"] / row["from-scratch"]["mean"] - 1), 5)
            for table, row in facts["figures"]["accuracy"].items()
        }
        found[budget] = {"tables": gains, "mean": float(np.mean(list(gains.values())))}
    return found


def _in_order(groups: Any) -> list[tuple[str, pd.DataFrame]]:
    """By the number of labels, then the others as they are listed."""
    known = [*BUDGETS, *SHOTS]
    return sorted(groups, key=lambda pair: (0, int(pair[0])) if pair[0].isdigit() else (1, known.index(pair[0])))


def _budget(kind: str, frame: pd.DataFrame) -> dict[str, Any]:
    """Figures of one budget."""
    cells = len(frame[["table", "draw"]].drop_duplicates())
    names = [name for name in METHODS if name in set(frame.method)]
    runs = {name: frame[frame.method == name] for name in names}
    complete = [name for name in names if len(runs[name]) == cells]
    measures = ("score", *MEASURES[kind])
    by_cell = frame.groupby(["table", "method"])
    mean = {measure: by_cell[measure].mean().unstack() for measure in measures}
    spread = {measure: by_cell[measure].std().unstack() for measure in measures}
    ranks = mean["score"][complete].round(9).rank(axis=1, ascending=False)
    best = _best(mean["score"], [name for name in complete if METHODS[name].is_rival])
    tree = _best(mean["score"], [name for name in complete if METHODS[name].family == "trees"])
    facts = {name: _costs(name, runs[name]) for name in names}
    for name in complete:
        facts[name]["rank"] = _round(ranks[name].mean())
        for measure in measures:
            facts[name][measure] = _round(mean[measure][name].mean(skipna=False))
            facts[name][f"{measure} sd"] = _round(_spread_of_mean(runs[name], measure))
    return {
        "tables": sorted(set(frame.table)),
        "n_draws": int(frame.groupby("table").draw.nunique().max()),
        "best": best,
        "best_tree": tree,
        "methods": facts,
        "wins": win_ratios(mean["score"][complete]),
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
            for measure in measures
        },
    }


def win_ratios(score: pd.DataFrame) -> dict[str, dict[str, float | None]]:
    """Of the tables on which two methods are not level, the share that the first wins (Bahri et al. 2022, section 4).

    NOTE[DIFF]: the paper decides each table by Welch's test over 30 splits; with three to five draws hardly any would
    be decided, so a win is a mean score ahead by more than `TIE`.
    """
    ratios: dict[str, dict[str, float | None]] = {}
    for name in score.columns:
        ratios[name] = {}
        for other in score.columns:
            gain = (score[name] - score[other]).round(9)
            wins, losses = int((gain > TIE).sum()), int((gain < -TIE).sum())
            ratios[name][other] = wins / (wins + losses) if wins + losses else None
    return ratios


def _best(score: pd.DataFrame, names: list[str]) -> str | None:
    return str(score[names].mean().idxmax()) if names else None


def _costs(name: str, runs: pd.DataFrame) -> dict[str, Any]:
    return {
        "family": METHODS[name].family,
        "sees": METHODS[name].sees,
        "n_tables": int(runs.table.nunique()),
        "n_failures": int(runs.failure.notna().sum()),
        "seconds": _round(runs.seconds.median()),
        "source_seconds": _round(runs.source_seconds.astype(float).median()),
    }


def _spread_of_mean(runs: pd.DataFrame, measure: str) -> float:
    """Standard deviation, over draws, of the mean over tables; of those draws that every table has."""
    table = runs.pivot_table(index="draw", columns="table", values=measure, aggfunc="mean")
    return table.dropna().mean(axis=1).std()


def _with_chance(run: Run) -> Run:
    if "failure" not in run:
        return run
    if run["kind"] == "regression":
        return {**run, "nrmse": 1.0, "r2": 0.0, "rmse": math.nan}
    return {**run, "auroc": 0.5, "accuracy": 1 / run["n_classes"], "log_loss": math.log(run["n_classes"])}


def _table_facts(rows: pd.DataFrame) -> dict[str, Any]:
    names = ("n_train", "n_test", "n_columns", "n_classes")
    return {"kind": rows.kind.iloc[0]} | {name: int(rows[name].iloc[0]) for name in names}


def _round(value: float) -> float | None:
    return None if pd.isna(value) else round(float(value), 7)
