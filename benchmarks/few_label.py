"""Few labels: tabmoco against trees, linear models and other ways to learn without labels, on 26 tables.

Rows are divided and labelled as `benchmarks.few_label_protocol` says; everyone gets the same rows, the same labels and
the same test. An encoder is pretrained once for a table and seed, in OUT.encoders, and serves all budgets and draws.
Every run of a method has a process of its own and is kept at once in OUT.runs.jsonl, so the benchmark can be stopped
and started again; `--redo NAME` repeats a method.

    python -m benchmarks.few_label --data-dir DATA --out benchmarks/results/few-label
    python -m benchmarks.few_label --data-dir DATA --quick
    python -m benchmarks.few_label --data-dir DATA --stunt

The last one labels one and five rows of each class, as the STUNT paper does.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.few_label_methods import METHODS, evaluate, fail, is_tried, missing_package
from benchmarks.few_label_protocol import (
    BLOCKS,
    BUDGETS,
    DIGITS,
    MAX_ROWS,
    SHOTS,
    STUNT_TABLES,
    Rows,
    TableFacts,
    Task,
    applies,
    catalogue,
    divide,
    given_labels,
    labelled_rows,
    load,
    n_draws,
    n_train_of,
)
from benchmarks.few_label_report import plot, render
from benchmarks.few_label_sources import SOURCES, make_source
from benchmarks.few_label_store import Stores, build, once
from benchmarks.few_label_summary import summarise
from benchmarks.options import add_run_options, fill_in, new_parser
from benchmarks.results_file import provenance, write_results
from benchmarks.runs import Job, Run, RunStore, Work, clock, isolated, run_and_report

KEYS = ("seed", "table", "draw", "budget", "method", "max_rows", "set")
"""Fields that name a run."""

ENCODER_SECONDS = 80.0
"""What training an encoder takes, roughly; for the first estimate of the time that is left."""

QUICK = {
    "tables": "credit_g,phoneme,splice",
    "methods": "linear,extra-trees,CatBoost,average,untrained,tabmoco-expected,tabmoco-cells,tabmoco",
    "budgets": "25,100,500",
    "draws": 2,
    "seeds": 1,
    "max_rows": 5_000,
    "out": Path("benchmarks/results/few-label-quick"),
}
FULL = {
    "tables": "",
    "methods": ",".join(METHODS),
    "budgets": ",".join(BUDGETS),
    "draws": 5,
    "seeds": 3,
    "max_rows": MAX_ROWS,
    "out": Path("benchmarks/results/few-label"),
}
STUNT = FULL | {
    "tables": ",".join(STUNT_TABLES),
    "methods": ",".join(name for name in METHODS if name != "CatBoost-search"),
    "budgets": ",".join(SHOTS),
    "draws": 20,
    "out": Path("benchmarks/results/few-label-stunt"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    store = RunStore(chosen.out.with_suffix(".runs.jsonl"), KEYS)
    facts = provenance("catboost", "lightgbm", "xgboost", "xgboost-cpu", "ts3l")
    facts["versions"] = {name: version for name, version in facts["versions"].items() if version != "-"}
    stores = Stores(chosen.out.with_suffix(".encoders"), keep_all=chosen.keep_encoders)
    for name, reason in (chosen.left_out | chosen.absent).items():
        print(f"Left out: {name}, {reason}.", flush=True)
    run_and_report(
        chosen,
        store,
        facts,
        plan=functools.partial(plan, stores=stores),
        report=report,
        like=("method", "budget", "table"),
        guess=lambda key: METHODS[key["method"]].usual_seconds,
        also_left=lambda jobs: encoders_left(chosen, jobs, store, stores),
        modules=("benchmarks.few_label_warm_start",),
    )
    if not chosen.keep_encoders and not chosen.report_only:
        stores.clear()
    return 0


def plan(chosen: argparse.Namespace, *, stores: Stores) -> list[Job]:
    """Seed after seed, so that whatever is stopped leaves whole seeds; within one, table after table, so that each
    needs its encoder once."""
    jobs = []
    for seed, name in itertools.product(range(chosen.seeds), chosen.tables):
        facts = chosen.catalogue[name]
        n_train = n_train_of(facts, chosen.max_rows)
        for budget in chosen.budgets:
            if not applies(budget, facts.kind, n_train):
                continue
            draws = range(seed, n_draws(budget, chosen.draws), chosen.seeds)
            for draw, method in itertools.product(draws, chosen.methods):
                if not is_tried(METHODS[method], budget):
                    continue
                named = (seed, name, draw, budget, method, chosen.max_rows, _set(chosen, method))
                key = dict(zip(KEYS, named, strict=True))
                jobs.append(Job(key, functools.partial(_work, chosen, stores, key)))
    return jobs


def encoders_left(chosen: argparse.Namespace, jobs: Sequence[Job], store: RunStore, stores: Stores) -> str:
    """What there is to train besides the runs, in words, and how long it will take going by what was trained."""
    known = {(run["table"], run["seed"], METHODS[run["method"]].source): run for run in store.runs.values()}
    seconds = [run["source_seconds"] for run in known.values() if run.get("source_seconds")]
    open_jobs = [job for job in jobs if METHODS[job.key["method"]].has_encoder and job.key not in store]
    wanted = {(folder_name(chosen, job.key), METHODS[job.key["method"]].source) for job in open_jobs}
    n_left = sum(not stores.has(folder, source) for folder, source in wanted)
    each = sum(seconds) / len(seconds) if seconds else ENCODER_SECONDS
    return f" (and {n_left} encoders, about {clock(n_left * each)})" if n_left else ""


def runs_of(store: RunStore, chosen: argparse.Namespace) -> list[Run]:
    """All runs of the file with these rows and settings, whichever methods and tables were asked for now."""
    return [
        run
        for run in store.runs.values()
        if run["method"] in METHODS and run["max_rows"] == chosen.max_rows and run["set"] == _set(chosen, run["method"])
    ]


def report(chosen: argparse.Namespace, store: RunStore, facts: dict[str, Any]) -> None:
    """Write OUT.json, OUT.md and OUT.png from the runs there are."""
    runs = runs_of(store, chosen)
    if not runs:
        print("There are no runs to report.")
        return
    summary = summarise(runs) | {"left_out": chosen.left_out, "absent": chosen.absent, "max_rows": chosen.max_rows}
    write_results(chosen.out, {"provenance": facts, **summary}, render(summary, facts))
    plot(summary, chosen.out.with_suffix(".png"))
    print(f"Wrote {chosen.out}.json, .md and .png from {len(runs)} runs.")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    out = f"{FULL['out']}, with --quick {QUICK['out']}"
    parser = new_parser("few_label", __doc__, data="catalog.csv and tables/", out=out)
    parser.add_argument("--quick", action="store_true", help="three tables, three budgets, few methods")
    parser.add_argument("--stunt", action="store_true", help="one and five labels per class, on three tables")
    parser.add_argument("--tables", help="names, comma-separated; all of the catalogue by default")
    parser.add_argument("--methods", help=f"names, comma-separated: {', '.join(METHODS)}")
    usual = ", ".join(BUDGETS + SHOTS).replace("%", "%%")
    parser.add_argument("--budgets", help=f"labels, comma-separated: {usual}, or any number")
    parser.add_argument("--draws", type=int, help="label draws of small budgets; three at most above 100 labels")
    parser.add_argument("--seeds", type=int, help="splits of the rows, each with encoders of its own; draws share them")
    parser.add_argument("--max-rows", type=int, help="most rows learned from")
    add_run_options(parser, redo="methods")
    parser.add_argument("--keep-encoders", action="store_true", help="leave OUT.encoders, to redo heads on them")
    chosen = parser.parse_args(arguments)
    fill_in(chosen, STUNT if chosen.stunt else QUICK if chosen.quick else FULL)
    if not (chosen.data_dir / "catalog.csv").exists():
        parser.error(f"--data-dir: there is no {chosen.data_dir / 'catalog.csv'}")
    chosen.catalogue, chosen.left_out = catalogue(chosen.data_dir)
    chosen.tables = chosen.tables or ",".join(name for name in chosen.catalogue if name != DIGITS)
    for name, known in (("tables", chosen.catalogue), ("methods", METHODS), ("redo", METHODS), ("budgets", None)):
        words = [word for word in getattr(chosen, name).split(",") if word]
        is_known = _is_budget if known is None else known.__contains__
        unknown = [word for word in words if not is_known(word)]
        if unknown:
            reason = chosen.left_out.get(unknown[0])
            listed = f"known: {', '.join(known or BUDGETS + SHOTS)}" if reason is None else reason
            parser.error(f"--{name}: there is no {unknown[0]}; {listed}")
        setattr(chosen, name, words)
    missing = {name: missing_package(METHODS[name]) for name in chosen.methods}
    chosen.absent = {name: reason for name, reason in missing.items() if reason}
    chosen.methods = [name for name in METHODS if name in chosen.methods and name not in chosen.absent]
    return chosen


def folder_name(chosen: argparse.Namespace, key: Mapping[str, Any]) -> str:
    """Folder of what the runs of a table and seed share, with these rows and settings."""
    digest = hashlib.sha256(repr((chosen.max_rows, sorted(chosen.set))).encode()).hexdigest()[:8]
    return f"{key['table']}-{key['seed']}-{digest}"


def _work(chosen: argparse.Namespace, stores: Stores, key: dict[str, Any]) -> Work:
    """A run's work. The first of a table and seed writes their folder, the first to look at a source has it run."""
    facts, seed, method = chosen.catalogue[key["table"]], key["seed"], METHODS[key["method"]]
    rows, train, test = _divided(facts, seed, chosen.max_rows)
    store = stores.of(folder_name(chosen, key), lambda path: build(path, rows.table, train, test))
    draw = {"table": facts.name, "draw": key["draw"]}
    labelled = labelled_rows(rows.label[train], facts.kind, key["budget"], **draw)
    label = given_labels(rows.label[train][labelled], len(rows.classes), key["budget"], **draw)
    noted: Run = {
        "kind": facts.kind,
        "n_train": len(train),
        "n_test": len(test),
        "n_labels": len(labelled),
        "n_columns": rows.table.num_columns,
        "n_classes": len(rows.classes),
    }
    for source in (*SOURCES[method.source].after, method.source):
        make = functools.partial(
            isolated, make_source, source, store.path, tuple(chosen.set), seed, timeout_seconds=60 * chosen.minutes
        )
        made = once(store, source, make)
        if "failure" in made:
            return Work(fail, (f"{source}: {made['failure']}",), noted)
        if method.has_encoder:
            noted["source_seconds"] = made["seconds"]
    task = Task(facts.kind, store.path, labelled, label, len(rows.classes), key["draw"])
    return Work(evaluate, (method.name, task, rows.label[test]), noted)


@functools.lru_cache(maxsize=1)
def _divided(facts: TableFacts, seed: int, max_rows: int) -> tuple[Rows, Any, Any]:
    rows = load(facts)
    return rows, *divide(len(rows.label), seed, block=BLOCKS.get(facts.name, 1), max_rows=max_rows)


def _set(chosen: argparse.Namespace, method: str) -> str:
    return " ".join(sorted(chosen.set)) if METHODS[method].has_encoder else ""


def _is_budget(word: str) -> bool:
    return word in BUDGETS + SHOTS or (word.isdigit() and int(word) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
