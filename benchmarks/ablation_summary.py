"""From single runs to answers: paired differences, which of them are told apart, and sentences that say so.

Runs are compared in pairs of the same table and seed. A difference is told apart when its mean over the pairs exceeds
twice its standard error. A run that failed counts as chance: AUROC one half, nothing found again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from benchmarks.ablation_questions import DEFAULT, QUESTIONS, SETTINGS, UNTRAINED, Option, Question, Setting
from benchmarks.runs import Run

MEASURES = {"auroc": "linear probe", "retrieval": "retrieval"}
"""The yardsticks; in points, which are hundredths."""

CHANCE = {"auroc": 0.5, "retrieval": 0.0}
N_ERRORS = 2.0
"""Standard errors that a difference must exceed to be told apart."""

COSTS = ("train_seconds", "peak_mb", "rows_per_second")

Values = Mapping[tuple[str, str, str], pd.Series]
"""By setting, space and yardstick, in points: a value for each table and seed."""


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything that is reported, as JSON holds it."""
    values, costs = _values(runs), _costs(runs)
    questions = {
        name: found for name, question in QUESTIONS.items() if (found := _question(question, values, costs)) is not None
    }
    seeds = sorted({int(run["seed"]) for run in runs})
    return {
        "questions": questions,
        "better": [row for found in questions.values() for row in _better_than_default(found)],
        "tables": _tables(runs, values, costs),
        "seeds": seeds,
        "threads": sorted({int(run["threads"]) for run in runs}),
        "collapsed": _collapsed(runs),
        "failures": [
            {key: run[key] for key in ("table", "seed", "setting", "failure")} for run in runs if "failure" in run
        ],
        "commits": sorted({run["commit"] for run in runs}),
    }


def paired(a: pd.Series, b: pd.Series) -> dict[str, Any] | None:
    """Mean difference, its standard error, tables on which the first is ahead; nothing without a common pair."""
    difference = (a - b).dropna()
    if difference.empty:
        return None
    mean, n = float(difference.mean()), len(difference)
    error = float(difference.std(ddof=1) / math.sqrt(n)) if n > 1 else None
    by_table = difference.groupby(level="table").mean()
    return {
        "mean": _round(mean),
        "error": _round(error),
        "pairs": n,
        "tables": {name: _round(value) for name, value in by_table.items()},
        "ahead": int((by_table > 0).sum()),
        "told": error is not None and abs(mean) > N_ERRORS * error,
    }


def by_chance(n_pairs: int) -> float:
    """Share of differences of nothing but noise that would be told apart, with so many pairs."""
    return float(2 * student.sf(N_ERRORS, n_pairs - 1)) if n_pairs > 1 else 0.0


# ------------------------------------------------------------------ one question


def _question(question: Question, values: Values, costs: pd.DataFrame) -> dict[str, Any] | None:
    """Figures of every option that was run beside what it is compared with; nothing if there is none."""
    options: dict[str, Any] = {}
    for option in question.options:
        differences = {measure: _difference(question, option, values, measure) for measure in MEASURES}
        if all(found is not None for found in differences.values()):
            options[option.label] = _option(option, values, costs) | {"against": differences}
    reference = question.reference
    if set(options) <= {reference.label}:
        return None
    control = {
        measure: paired(*pair)
        for measure in MEASURES
        if (pair := _pair(values, (UNTRAINED, "embedding"), (reference.setting, "embedding"), measure))
        and reference.space == "embedding"
    }
    found = {
        "title": question.title,
        "lore": question.lore,
        "note": question.note,
        "reference": reference.label,
        "options": options,
        "untrained": control,
        "claims": _claims(question, values),
    }
    return found | {"answers": {measure: answer(found, measure) for measure in MEASURES}}


def answer(found: Mapping[str, Any], measure: str) -> str:
    """What the differences of a question say, in a sentence."""
    options, reference = found["options"], found["reference"]
    others = {label: row["against"][measure] for label, row in options.items() if label != reference}
    mark = " (default)" if reference in options and options[reference]["is_default"] else ""
    best = max(others, key=lambda label: others[label]["mean"])
    above = [label for label, row in others.items() if row["told"] and row["mean"] > 0]
    below = sorted(
        (label for label, row in others.items() if row["told"] and row["mean"] < 0),
        key=lambda label: others[label]["mean"],
    )
    worse = ", ".join(f"{label} ({points(others[label])})" for label in below)
    if above:
        best = max(above, key=lambda label: others[label]["mean"])
        rest = ", ".join(f"{label} ({points(others[label])})" for label in above if label != best)
        sentence = (
            f"{best} is best, {points(others[best])} points over {reference}{mark}, more than twice the standard error"
            + (f"; ahead as well: {rest}" if rest else "")
        )
        return sentence + (f"; behind: {worse}." if worse else ".")
    if below and len(below) == len(others):
        return f"{reference}{mark} is best; behind: {worse}."
    near = f"the highest other is {best}, {points(others[best])} points"
    if below:
        return f"none is told apart above {reference}{mark} ({near}); behind: {worse}."
    return f"no difference told apart; {near}."


def points(difference: Mapping[str, Any]) -> str:
    """As `+1.2 ± 0.3`."""
    error = "" if difference["error"] is None else f" ± {difference['error']:.1f}"
    return f"{round(difference['mean'], 1) + 0.0:+.1f}{error}"  # no minus sign before zero


def _option(option: Option, values: Values, costs: pd.DataFrame) -> dict[str, Any]:
    """Mean figures and costs of an option, over the tables and seeds it was tried on."""
    setting = option.setting
    means = {measure: _round(float(values[setting.name, option.space, measure].mean())) for measure in MEASURES}
    tried = values[setting.name, option.space, "auroc"]
    spent = costs.loc[costs.setting == setting.name, list(COSTS)].mean()
    return {
        "setting": setting.name,
        "space": option.space,
        "is_default": setting == DEFAULT and option.space == "embedding",
        "n_tables": int(tried.index.get_level_values("table").nunique()),
        "n_runs": len(tried),
        **means,
        **{name: _round(float(spent[name])) for name in COSTS},
        "is_costly": setting.is_costly,
    }


def _difference(question: Question, option: Option, values: Values, measure: str) -> dict[str, Any] | None:
    pair = _pair(values, (option.setting, option.space), question.against(option), measure)
    return None if pair is None else paired(*pair)


def _claims(question: Question, values: Values) -> list[dict[str, Any]]:
    """Whether what is held to be true of images holds here."""
    found = []
    for better, worse in question.claims:
        one, other = (question.by_label[label] for label in (better, worse))
        verdicts = {}
        for measure in MEASURES:
            pair = _pair(values, (one.setting, one.space), (other.setting, other.space), measure)
            difference = None if pair is None else paired(*pair)
            if difference is not None:
                verdicts[measure] = difference | {"holds": _holds(difference)}
        if verdicts:
            found.append({"better": better, "worse": worse, "measures": verdicts})
    return found


def _holds(difference: Mapping[str, Any]) -> bool | None:
    """True or False where the difference is told apart, else nothing."""
    return difference["mean"] > 0 if difference["told"] else None


def _better_than_default(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Options told apart above the default by one yardstick and not below it by the other."""
    reference = found["options"].get(found["reference"], {})
    if not reference.get("is_default"):
        return []
    rows = []
    for label, option in found["options"].items():
        verdicts = {measure: _holds(option["against"][measure]) for measure in MEASURES}
        if option["space"] == "embedding" and True in verdicts.values() and False not in verdicts.values():
            rows.append({"question": found["title"], "option": label, "against": option["against"]})
    return rows


# ------------------------------------------------------------------ runs as figures


def _values(runs: Sequence[Run]) -> Values:
    rows = []
    for run in runs:
        failed = {"embedding": CHANCE} if "failure" in run else {}
        for space, figures in (failed or run["figures"]).items():
            rows += [(run["setting"], space, m, run["table"], run["seed"], 100 * figures[m]) for m in MEASURES]
    frame = pd.DataFrame(rows, columns=["setting", "space", "measure", "table", "seed", "value"])
    groups = frame.groupby(["setting", "space", "measure"])
    return {key: part.set_index(["table", "seed"]).value for key, part in groups}


def _costs(runs: Sequence[Run]) -> pd.DataFrame:
    frame = pd.DataFrame(list(runs))
    return frame.reindex(columns=frame.columns.union([*COSTS, "effective_rank"]))


def _pair(
    values: Values, one: tuple[Setting, str], other: tuple[Setting, str], measure: str
) -> tuple[pd.Series, pd.Series] | None:
    keys = [(setting.name, space, measure) for setting, space in (one, other)]
    return (values[keys[0]], values[keys[1]]) if all(key in values for key in keys) else None


def _tables(runs: Sequence[Run], values: Values, costs: pd.DataFrame) -> dict[str, Any]:
    """What the default and the untrained encoder reach on every table, mean and standard deviation over seeds."""
    found: dict[str, Any] = {}
    for run in runs:
        if run["setting"] != DEFAULT.name or "failure" in run or run["table"] in found:
            continue
        mine = costs[(costs.table == run["table"]) & (costs.setting == DEFAULT.name)]
        found[run["table"]] = {
            "n_train": run["n_train"],
            "n_test": run["n_test"],
            "n_columns": run["n_columns"],
            **{name: _round(float(mine[name].mean())) for name in COSTS},
            **{
                setting.name: {m: _spread(values, setting, m, run["table"]) for m in MEASURES}
                for setting in (DEFAULT, UNTRAINED)
            },
        }
    return dict(sorted(found.items()))


def _spread(values: Values, setting: Setting, measure: str, table: str) -> dict[str, float | None]:
    series = values.get((setting.name, "embedding", measure))
    if series is None or table not in series.index.get_level_values("table"):
        return {"mean": None, "sd": None}
    mine = series.xs(table, level="table")
    return {"mean": _round(float(mine.mean())), "sd": _round(float(mine.std(ddof=1)))}


def _collapsed(runs: Sequence[Run]) -> list[str]:
    """Settings, and tables, on which all rows became nearly one."""
    found = {(run["setting"], run["table"]) for run in runs if run.get("effective_rank", np.inf) < 2}
    order = list(SETTINGS)
    return [
        f"{setting} on {table}" for setting, table in sorted(found, key=lambda pair: (order.index(pair[0]), pair[1]))
    ]


def _round(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)
