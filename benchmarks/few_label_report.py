"""The few-label benchmark as a Markdown page and a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.few_label_methods import METHODS
from benchmarks.few_label_protocol import (
    BLOCKS,
    DEVELOPMENT,
    FLIPPED_SHARE,
    FRACTIONS,
    LEAST_PROBABILITY,
    MAX_TEST_ROWS,
    SHOTS,
)
from benchmarks.few_label_rivals import N_CANDIDATES, SEARCH_SECONDS
from benchmarks.few_label_summary import BESIDE, FALLING, FROZEN, OURS, PUBLISHED_STUNT, TIE, of
from benchmarks.results_file import footer

TITLES = {"classification": "Classification", "regression": "Regression"}
WORDS = {
    "auroc": "AUROC in %",
    "accuracy": "Accuracy in %",
    "log_loss": "Log loss",
    "nrmse": "RMSE in standard deviations of the target",
    "r2": "R²",
}
DRAWN = ("linear", "CatBoost", "average", "untrained", FROZEN, OURS)
"""Methods whose curves are drawn."""

COLOURS = ("#9aa5b1", "#c98b4b", "#6b4f8a", "#b9c4d0", "#63b0c8", "#1f6f8b")
SHOWN_BUDGET = "100"
"""Labels at which single tables are shown, or the next larger budget there is."""


def render(summary: Mapping[str, Any], facts: dict[str, Any]) -> str:
    """The whole page."""
    lines = ["# Few labels", "", _introduction(summary), "", *_targets(summary)]
    for kind, budgets in summary["kinds"].items():
        counted = {name: facts for name, facts in budgets.items() if name not in (*FRACTIONS, *SHOTS)}
        if counted:
            lines += ["", f"## {TITLES[kind]}", *_kind(kind, counted)]
    lines += [*_fractions(summary), *_shots(summary), *_halves(summary), *_not_better(summary), *_seconds(summary)]
    lines += ["", "## Notes", ""] + [f"- {note}" for note in _notes(summary)]
    return "\n".join(lines) + "\n" + footer(facts)


def plot(summary: Mapping[str, Any], path: Path) -> None:
    """Mean scores by the number of labels, and who wins on how many tables."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [kind for kind in summary["kinds"] if _curve_budgets(summary, kind)]
    if not shown:
        return
    figure, axes = plt.subplots(len(shown), 2, figsize=(12, 4.6 * len(shown)), layout="constrained", squeeze=False)
    for (curves, matrix), kind in zip(axes, shown, strict=True):
        _draw_curves(curves, summary, kind)
        _draw_wins(matrix, summary, kind)
    figure.savefig(path, dpi=160)
    plt.close(figure)


# ------------------------------------------------------------------ parts of the page


def _introduction(summary: Mapping[str, Any]) -> str:
    return (
        "Everyone is given the same rows: few with labels, the others without, and tests on the same. Means over "
        "tables of means over label draws, ± the standard deviation of the mean over draws. One default configuration "
        f"of tabmoco for all tables. At most {summary['max_rows']:,} rows are learned from and {MAX_TEST_ROWS:,} "
        "tested; a budget counts the tables that have more rows than labels."
    )


def _targets(summary: Mapping[str, Any]) -> list[str]:
    lines = ["| target | wanted | measured | met |", "|---|---:|---:|---|"]
    for row in summary["targets"]:
        measured = "–" if row["measured"] is None else f"{row['measured']:.1f}"
        met = {None: "not measured", True: "**yes**", False: "no"}[row["met"]]
        lines.append(f"| {row['target']} | {row['bound']} {row['wanted']:.3g} | {measured} | {met} |")
    return lines


def _kind(kind: str, budgets: Mapping[str, Any]) -> list[str]:
    lines = []
    for measure in {"classification": ("auroc", "accuracy", "log_loss"), "regression": ("nrmse", "r2")}[kind]:
        lines += ["", f"{WORDS[measure]}, {_numbers_of_tables(budgets)}:", ""]
        lines += _grid(budgets, measure, lambda facts, measure=measure: _mean(facts, measure))
    lines += ["", "Mean rank by score:", "", *_grid(budgets, "rank", lambda facts: _number(facts.get("rank"), ".1f"))]
    lines += [
        "",
        f"Tables that {OURS} wins, in % of those on which it is not level (to {100 * TIE:.1f} points) with the method; "
        "all pairs are in the plot and the JSON:",
        "",
        *_grid(budgets, None, lambda facts: "–", _our_wins),
    ]
    return lines + _single_tables(kind, budgets)


def _grid(
    budgets: Mapping[str, Any],
    measure: str | None,
    cell: Callable[[Mapping[str, Any]], str],
    whole: Callable[[Mapping[str, Any], str], str] | None = None,
) -> list[str]:
    """Methods by budgets; the best figure of a budget is bold."""
    names = [name for name in METHODS if any(name in facts["methods"] for facts in budgets.values())]
    lines = ["| method | " + " | ".join(budgets) + " |", "|---|" + "---:|" * len(budgets)]
    best = {budget: _best(facts, measure) for budget, facts in budgets.items()}
    for name in names:
        cells = []
        for budget, facts in budgets.items():
            text = whole(facts, name) if whole else cell(facts["methods"].get(name, {}))
            cells.append(f"**{text}**" if name == best[budget] else text)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _best(facts: Mapping[str, Any], measure: str | None) -> str | None:
    means = {name: row[measure] for name, row in facts["methods"].items() if row.get(measure) is not None}
    if not means:
        return None
    return (min if measure in (*FALLING, "rank") else max)(means, key=means.__getitem__)


def _our_wins(facts: Mapping[str, Any], name: str) -> str:
    ratio = facts["wins"].get(OURS, {}).get(name)
    return "–" if ratio is None else f"{100 * ratio:.0f}"


def _single_tables(kind: str, budgets: Mapping[str, Any]) -> list[str]:
    """Every table at a hundred labels."""
    budget = SHOWN_BUDGET if SHOWN_BUDGET in budgets else next(reversed(budgets))
    facts, measure = budgets[budget], "auroc" if kind == "classification" else "nrmse"
    names = [name for name in (*DRAWN, BESIDE) if name in facts["methods"]]
    lines = ["", f"{WORDS[measure]}, table by table, budget {budget}, ± standard deviation over draws:", ""]
    lines += ["| table | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for table, row in facts["figures"][measure].items():
        lines.append(f"| {table} | " + " | ".join(_figure(row[name], measure) for name in names) + " |")
    return lines


def _fractions(summary: Mapping[str, Any]) -> list[str]:
    """A quarter of the labels, and flipped ones."""
    found = {budget: facts for budget in FRACTIONS if (facts := of(summary, "classification", budget))}
    if not found:
        return []
    lines = ["", "## A quarter of the labels, and flipped ones", ""]
    lines += [f"Accuracy in %, {_numbers_of_tables(found)}:", ""]
    lines += _grid(found, "accuracy", lambda facts: _mean(facts, "accuracy"))
    gains = {budget: summary["pretraining"][budget] for budget in found if budget in summary["pretraining"]}
    for budget, gain in gains.items():
        ahead = sum(value > 0 for value in gain["tables"].values())
        lines += [
            "",
            f"{budget}: pretraining changes the fine-tuned encoder's accuracy by {gain['mean']:+.1f} % of itself, mean "
            f"of all tables; it is better on {ahead} of {len(gain['tables'])}.",
        ]
    return lines


def _shots(summary: Mapping[str, Any]) -> list[str]:
    """One and five labels per class, beside the published figures."""
    found = {budget: facts for budget in SHOTS if (facts := of(summary, "classification", budget))}
    if not found:
        return []
    tables = ", ".join(next(iter(found.values()))["tables"])
    lines = ["", "## One and five labels per class", "", f"Accuracy in %, tables {tables}:", ""]
    lines += _grid(found, "accuracy", lambda facts: _mean(facts, "accuracy"))
    lines += ["", "Published means of eight tables, of which these are some, in other versions:", ""]
    lines += ["| published | " + " | ".join(found) + " |", "|---|" + "---:|" * len(found)]
    for name in PUBLISHED_STUNT["1-shot"]:
        lines.append(f"| {name} | " + " | ".join(f"{PUBLISHED_STUNT[budget][name]:.1f}" for budget in found) + " |")
    return lines


def _not_better(summary: Mapping[str, Any]) -> list[str]:
    """Tables and budgets at which tabmoco is not ahead of the rival that is best on the mean of the budget."""
    lines = []
    for kind, budgets in summary["kinds"].items():
        gains = {budget: found for budget, facts in budgets.items() if (found := _gains(facts))}
        tables = sorted({table for found in gains.values() for table in found})
        behind = [table for table in tables if any(found.get(table, 1.0) <= TIE for found in gains.values())]
        if not behind:
            continue
        rivals = ", ".join(f"{budgets[budget]['best']} at {budget}" for budget in gains)
        lines += ["", f"### {TITLES[kind]}", "", f"The best rivals by their means: {rivals}.", ""]
        lines += ["| table | " + " | ".join(gains) + " |", "|---|" + "---:|" * len(gains)]
        for table in behind:
            cells = [_gain(found.get(table)) for found in gains.values()]
            lines.append(f"| {table} | " + " | ".join(cells) + " |")
        lines += ["", f"{len(tables) - len(behind)} of {len(tables)} tables are ahead at every budget."]
    head = [
        "",
        f"## Where {OURS} is not better",
        "",
        f"Points by which {OURS} is ahead of the best rival; bold where it is level or behind. Tables that are ahead "
        "at every budget are not listed.",
    ]
    return head + lines if lines else []


def _gains(facts: Mapping[str, Any]) -> dict[str, float]:
    rival = facts["best"]
    if rival is None or "score" not in facts["methods"].get(OURS, {}):
        return {}
    return {table: row[OURS]["mean"] - row[rival]["mean"] for table, row in facts["figures"]["score"].items()}


def _gain(value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:+.1f}" if value > TIE else f"**{100 * value:+.1f}**"


def _halves(summary: Mapping[str, Any]) -> list[str]:
    """Leads over the best rival on the tables that choices were made on, and on the others."""
    lines = ["", "## Tables that choices were made on, and the others", ""]
    lines += ["Points by which tabmoco is ahead of the best rival, mean of the tables.", ""]
    budgets = list(dict.fromkeys(budget for found in summary["kinds"].values() for budget in found))
    lines += [f"| tables | {' | '.join(budgets)} |", f"|---|{'---:|' * len(budgets)}"]
    for kind in summary["kinds"]:
        for words, is_development in (("chosen on", True), ("others", False)):
            cells = [_mean_lead(of(summary, kind, budget), is_development) for budget in budgets]
            lines.append(f"| {TITLES[kind].lower()}, {words} | {' | '.join(cells)} |")
    return lines


def _mean_lead(facts: Mapping[str, Any], is_development: bool) -> str:
    rows = facts.get("figures", {}).get("score", {}).items()
    chosen = [row for table, row in rows if (table in DEVELOPMENT) == is_development]
    leads = [row[OURS]["mean"] - row[facts["best"]]["mean"] for row in chosen if OURS in row and facts["best"] in row]
    return f"{100 * sum(leads) / len(leads):+.1f} ({len(leads)})" if leads else "–"


def _seconds(summary: Mapping[str, Any]) -> list[str]:
    lines = ["", "## Seconds"]
    for kind, budgets in summary["kinds"].items():
        lines += ["", f"{TITLES[kind]}, median run; in brackets what its encoder took, once for all budgets:", ""]
        lines += _grid(budgets, None, _cost)
    return lines


def _cost(facts: Mapping[str, Any]) -> str:
    if facts.get("seconds") is None:
        return "–"
    source = facts["source_seconds"]
    return f"{facts['seconds']:.1f}" + ("" if source is None else f" ({source:.0f})")


def _notes(summary: Mapping[str, Any]) -> list[str]:
    tables = [name for name in BLOCKS if name in summary["tables"]]
    notes = [
        "Rivals are set as `tabmoco benchmark` sets them, in the best of the forms that were tried for each.",
        "linear, and whatever sees an embedding, expected cells or components alone, is logistic regression with "
        "C = 3 divided by the width of the space, chosen by cross-validation from 1,000 labels on, or ridge "
        "regression, its strength by leaving one out.",
        "Trees see traits: numbers in both scalings, categories by their rank. Boosting takes small steps; its leaves "
        "hold a single row below 400 labels and 20 from 4,000 on, and its trees are smaller below 1,000. CatBoost sees "
        "the cells as they come and gives every level of a category an indicator below 1,000 labels; its statistics of "
        "the target by level need more. extra-trees has 200 trees, random-forest 300.",
        "5NN and 15NN weigh neighbours by nearness; to them a category counts the same however rare it is.",
        f"CatBoost-search, at 100 and 1,000 labels, tries up to {N_CANDIDATES} settings by cross-validation within "
        f"{SEARCH_SECONDS:g} s, about what pretraining takes.",
        "average is the plain mean of linear, extra-trees and CatBoost; its seconds exclude theirs if they ran first.",
        "tabmoco is the default TabMoCoClassifier or TabMoCoRegressor. Below 500 labels half of its say is that of a "
        "forest which learned from rows without labels what its heads say of them; the average on cells would gain "
        "about as much by one.",
        "untrained is the encoder before its first step; from-scratch fine-tunes that one, its input scaled on all "
        "rows, as tabmoco-finetuned does the pretrained one. SCARF and VIME are ts3l's, as wide and for as many steps.",
        "Of each class one row is labelled first, so a budget of as many labels as classes shows them all. Copies of "
        f"training rows are tested too. Probabilities below {LEAST_PROBABILITY:g} count as that in the log loss.",
        f"flipped turns {FLIPPED_SHARE:.0%} of the labels into another class. Identifiers are left out.",
        "A failed run counts as chance (AUROC 50, the mean for a number). A method that has not run everywhere has no "
        "mean and no rank.",
        f"Runs had {' or '.join(map(str, summary['threads']))} threads and a process each.",
    ]
    if tables:
        notes.append(f"Rows that belong together stay on one side of the split: {', '.join(tables)}.")
    for what, found in (("Tables left out", summary["left_out"]), ("Methods not run", summary["absent"])):
        if found:
            notes.append(f"{what}: " + "; ".join(f"{name}, {reason}" for name, reason in found.items()) + ".")
    commits = {commit for made in summary["made_by"].values() for commit in made}
    if len(commits) > 1:
        made = "; ".join(f"{name} {', '.join(found)}" for name, found in summary["made_by"].items())
        notes.append(f"Runs come from several commits: {made}.")
    if summary["failures"]:
        failed = [
            f"{run['method']} on {run['table']} ({run['budget']}, draw {run['draw']}): {run['failure']}"
            for run in summary["failures"]
        ]
        notes.append("Failed runs: " + "; ".join(failed) + ".")
    return notes


# ------------------------------------------------------------------ the plot


def _curve_budgets(summary: Mapping[str, Any], kind: str) -> list[str]:
    return [budget for budget in summary["kinds"][kind] if budget.isdigit() or budget == "all"]


def _draw_curves(axis: Any, summary: Mapping[str, Any], kind: str) -> None:
    budgets = _curve_budgets(summary, kind)
    measure = "auroc" if kind == "classification" else "nrmse"
    for name, colour in zip(DRAWN, COLOURS, strict=True):
        means = [of(summary, kind, budget)["methods"].get(name, {}).get(measure) for budget in budgets]
        values = np.array([np.nan if mean is None else mean for mean in means])
        if np.isfinite(values).any():
            width = 2.4 if name == OURS else 1.4
            axis.plot(np.arange(len(budgets)), values, marker="o", ms=4, lw=width, color=colour, label=name)
    axis.set_xticks(np.arange(len(budgets)), budgets)
    axis.set_xlabel("labels", fontsize=9)
    axis.set_title(f"{TITLES[kind]}: {WORDS[measure].replace(' in %', '')}, mean over tables", fontsize=10)
    axis.grid(axis="y", color="#e6e6e6")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)


def _draw_wins(axis: Any, summary: Mapping[str, Any], kind: str) -> None:
    """Who, by row, wins on which share of the tables against whom, by column."""
    budgets = _curve_budgets(summary, kind)
    budget = SHOWN_BUDGET if SHOWN_BUDGET in budgets else budgets[-1]
    wins = of(summary, kind, budget)["wins"]
    names = list(wins)
    shares = np.array([[np.nan if wins[a][b] is None else wins[a][b] for b in names] for a in names], dtype=float)
    axis.imshow(np.ma.masked_invalid(shares), cmap="RdYlBu", vmin=0, vmax=1, aspect="auto")
    for (i, j), share in np.ndenumerate(shares):
        if np.isfinite(share):
            axis.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=6)
    axis.set_xticks(np.arange(len(names)), names, rotation=90, fontsize=7)
    axis.set_yticks(np.arange(len(names)), names, fontsize=7)
    axis.set_title(f"Tables won by the row's method against the column's, %, {budget} labels", fontsize=10)


# ------------------------------------------------------------------ figures as text


def _numbers_of_tables(budgets: Mapping[str, Any]) -> str:
    counts = sorted({len(facts["tables"]) for facts in budgets.values()})
    return f"{counts[0]} to {counts[-1]} tables" if len(counts) > 1 else f"{counts[0]} table{'s' * (counts[0] > 1)}"


def _mean(facts: Mapping[str, Any], measure: str) -> str:
    if facts.get(measure) is None:
        return "–"
    return _figure({"mean": facts[measure], "sd": facts.get(f"{measure} sd")}, measure)


def _figure(figure: Mapping[str, float | None], measure: str) -> str:
    if figure["mean"] is None:
        return "–"
    scale, style = (100, ".1f") if measure in ("auroc", "accuracy") else (1, ".3f")
    spread = "" if figure["sd"] is None else f" ± {scale * figure['sd']:{style}}"
    return f"{scale * figure['mean']:{style}}{spread}"


def _number(value: float | None, style: str) -> str:
    return "–" if value is None else format(value, style)
