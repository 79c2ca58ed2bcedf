"""How training went, as curves with a sentence each that says what to look for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabmoco.report.charts import LineChart, line_chart


@dataclass(frozen=True)
class Curve:
    """One chart of a run."""

    title: str
    unit: str
    meaning: str
    chart: LineChart


@dataclass(frozen=True)
class _Plan:
    title: str
    unit: str
    meaning: str
    names: Mapping[str, str]
    """Ends of the figures' names, and what the curves are called."""

    as_percent: bool = False
    low: float | None = None
    high: float | None = None


PLANS = (
    _Plan(
        "Loss",
        "nats",
        "What training lowers: how hard it still is to find a damaged row again among others, and to guess hidden "
        "cells. It may rise at first, while the queue of rows to be told apart fills up.",
        {"loss": "rows trained on", "held_out_loss": "rows kept out"},
    ),
    _Plan(
        "Similarity",
        "cosine, -1 to 1",
        "How alike a damaged row is to its own original, and to other rows. The further apart the two curves, the "
        "better rows are told from one another.",
        {"/positive_similarity": "to its own row", "/negative_similarity": "to other rows"},
        low=0.0,
        high=1.0,
    ),
    _Plan(
        "Rows found again",
        "share of the rows watched",
        "Half of a row's cells are swapped with those of other rows; how often the original is still the nearest of "
        "all rows watched. Step 0 is the untrained encoder.",
        {"retrieval_accuracy": "found"},
        as_percent=True,
        high=1.0,
    ),
    _Plan(
        "Effective rank",
        "directions",
        "In how many directions embeddings spread. A value that falls towards 1 means that all rows are pressed onto "
        "a line: collapse.",
        {"effective_rank": "embeddings"},
        low=0.0,
    ),
    _Plan(
        "Probe of the target",
        "AUROC",
        "How well a linear model tells the column named by --target from the embeddings; 0.5 is chance. Training never "
        "sees that column.",
        {"probe_auroc": "AUROC"},
    ),
    _Plan(
        "Probe of the target",
        "R²",
        "How well a linear model tells the column named by --target from the embeddings; 0 is chance, 1 is exact. "
        "Training never sees that column.",
        {"probe_r2": "R²"},
    ),
)
"""The charts in their order; those whose figures a run lacks are left out."""


def training_curves(metrics: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Charts of what was measured while training, a line of figures per look."""
    found = []
    for plan in PLANS:
        curves = [
            (called, [look["step"] for look in looks], [float(look[name]) for look in looks])
            for name, called in _series(plan.names, metrics)
            if (looks := [look for look in metrics if look.get(name) is not None])
        ]
        last = {called: values[-1] for called, _, values in curves}
        told = f"{plan.title}: " + ", ".join(f"{called} ends at {value:.3g}" for called, value in last.items())
        chart = line_chart(curves, told=told, as_percent=plan.as_percent, low=plan.low, high=plan.high)
        if chart is not None:
            found.append(Curve(plan.title, plan.unit, plan.meaning, chart))
    return found


def _series(names: Mapping[str, str], metrics: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Names of figures and what their curves are called; figures of several objectives are told apart by these."""
    measured = list(dict.fromkeys(name for look in metrics for name in look))
    found = []
    for end, called in names.items():
        fitting = [name for name in measured if (name.endswith(end) if end.startswith("/") else name == end)]
        for name in fitting:
            objective = f" ({name.partition('/')[0]})" if len(fitting) > 1 else ""
            found.append((name, called + objective))
    return found
