"""Planted anomalies in mixed tables: who finds the rows, and who names the damaged cells?

Training rows are clean. Test rows are clean ones and, per kind of anomaly, as many others that `benchmarks.planting`
damaged; all are drawn at random, and exact copies of a row are dropped first. What is ordinary is measured on the
training rows. Identifiers are left out; the column that other benchmarks predict is a column like any other. One model
per table and seed scores all kinds. ECOD and COPOD, which rank test rows among one another, get each kind alone.

A row is explained by the cell to blame most: by tabmoco's shares of the score, and by those of `benchmarks.explainers`.
Chance is a cell drawn at random.

Every run has a process of its own and is kept at once in OUT.runs.jsonl, so the benchmark can be stopped and started
again; `--redo NAME` repeats a detector or a way to explain.

    python -m benchmarks.planted --data-dir DATA --out benchmarks/results/planted
    python -m benchmarks.planted --data-dir DATA --quick
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.metrics import average_precision_score, roc_auc_score

import tabmoco
from benchmarks.clean_table import CleanTable
from benchmarks.detectors import DETECTORS, build_detector
from benchmarks.explainers import EXPLAINERS, NEEDS_SHAP, contributions, name_cells
from benchmarks.options import add_run_options, fill_in, new_parser, take_names
from benchmarks.planted_report import plot, render, summarise
from benchmarks.planting import KINDS, Planted, plant
from benchmarks.results_file import provenance, write_results
from benchmarks.runs import Job, Run, RunStore, Work, run_and_report

TABLES: dict[str, tuple[str, ...]] = {
    "credit_g": (),
    "churn": (),
    "ames_housing": ("PID",),
    "hr_job_change": ("enrollee_id",),
    "hotel_rates": (),
    "bird_strikes": (),
    "bank_marketing": (),
    "adult": (),
}
"""Tables and their identifiers, which are left out."""

KEYS = ("table", "seed", "detector", "max_train", "max_test", "set")
"""Fields that name a run."""

FULL = {
    "tables": ",".join(TABLES),
    "detectors": ",".join(DETECTORS),
    "seeds": 3,
    "max_train": 10_000,
    "max_test": 1_000,
    "out": Path("benchmarks/results/planted"),
}
QUICK = {
    "tables": "credit_g,churn,hr_job_change",
    "detectors": "HBOS,ECOD,IForest,GMM,2NN-z,2NN-q,two-scalings,tabmoco",
    "seeds": 1,
    "max_train": 3_000,
    "max_test": 300,
    "out": Path("benchmarks/results/planted-quick"),
}
TRANSDUCTIVE = ("ECOD", "COPOD")

TIMED_TABLE, TIMED_COLUMNS = "ames_housing", 40
TIMED = f"{TIMED_TABLE}, {TIMED_COLUMNS} columns"
"""Stands for a table in the runs that time how long 1,000 rows of 40 columns take to explain."""


@dataclass(frozen=True)
class Trial:
    """Clean rows to learn from, other clean rows, and rows with anomalies of each kind."""

    train: pa.Table
    clean: pa.Table
    planted: dict[str, Planted]

    @property
    def chance(self) -> dict[str, float]:
        """Share of planted rows whose damage a random cell hits."""
        return {kind: float(planted.cells.mean()) for kind, planted in self.planted.items()}


def table_path(data_dir: Path, table: str) -> Path:
    return data_dir / "tables" / f"{table}.parquet"


def read_table(path: Path, left_out: Iterable[str]) -> pa.Table:
    """Distinct rows of a table without its identifiers."""
    table = pq.read_table(path).drop_columns(list(left_out))
    return table.filter(pa.array(~table.to_pandas(date_as_object=False).duplicated().to_numpy()))


def draw_trial(table: pa.Table, seed: int, *, max_train: int, max_test: int) -> Trial:
    """A small table gives a fifth of its rows to the clean test rows, and another to the damaged ones."""
    n_test = min(max_test, table.num_rows // 5)
    shuffled = np.random.default_rng(seed).permutation(table.num_rows)
    clean, other, train = (table.take(pa.array(part)) for part in np.split(shuffled, [n_test, 2 * n_test]))
    train = train.slice(0, max_train)
    ordinary = CleanTable.measure(train)
    return Trial(train, clean, {kind: plant(other, kind, seed, ordinary) for kind in KINDS})


# ---------------------------------------------------------------- who finds the rows


def find(trial: Trial, score: Callable[[pa.Table], np.ndarray], *, each: bool) -> Run:
    """AUROC and AUPRC of the planted rows of each kind against the clean ones.

    Parameters
    ----------
    each
        Whether to score every kind with the clean rows alone, instead of all rows at once.
    """
    groups = [[kind] for kind in KINDS] if each else [list(KINDS)]
    found: Run = {"auroc": {}, "auprc": {}}
    for group in groups:
        parts = [trial.clean, *(trial.planted[kind].rows for kind in group)]
        clean, *planted = np.split(score(stack(parts)), np.cumsum([len(part) for part in parts])[:-1])
        for kind, strange in zip(group, planted, strict=True):
            label = np.repeat([0, 1], [len(clean), len(strange)])
            scores = np.concatenate([clean, strange])
            found["auroc"][kind] = 100 * float(roc_auc_score(label, scores))
            found["auprc"][kind] = 100 * float(average_precision_score(label, scores))
    return found


def stack(parts: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts).unify_dictionaries()


def run_detector(name: str, trial: Trial, seed: int, settings: Sequence[str]) -> Run:
    """What one detector finds; for tabmoco also which cells the same model names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "tabmoco":
            model = train_model(trial.train, seed, settings)
            found = find(trial, lambda rows: model.score(rows)["anomaly_score"].to_numpy(), each=False)
            return found | name_cells(trial.planted, functools.partial(contributions, model))
        detector = build_detector(name, settings)
        return find(trial, lambda rows: detector(trial.train, rows, seed), each=name in TRANSDUCTIVE)


def train_model(train: pa.Table, seed: int, settings: Sequence[str]) -> tabmoco.RowModel:
    config = dataclasses.replace(tabmoco.PretrainConfig().override(settings), seed=seed)
    return tabmoco.pretrain(train, config)


def run_explainer(name: str, trial: Trial, seed: int) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return name_cells(trial.planted, lambda rows: EXPLAINERS[name](trial.train, rows, seed))


def time_explainer(name: str, table: pa.Table, settings: Sequence[str]) -> Run:
    """Seconds that 1,000 rows of 40 columns take to explain: tabmoco's once trained, the others' with their fit."""
    table = table.select(table.column_names[:TIMED_COLUMNS])
    train, rows = table.slice(1_000), table.slice(0, 1_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = train_model(train, 0, settings) if name == "tabmoco" else None
        started = time.monotonic()
        if model is not None:
            model.score(rows, explain=True)
        else:
            EXPLAINERS[name](train, rows, 0)
    return {"explain_seconds": time.monotonic() - started, "rows": rows.num_rows}


# ---------------------------------------------------------------- all runs


def plan(chosen: argparse.Namespace) -> list[Job]:
    """Seed after seed, table after table; within a table the cheap detectors first."""
    size = {"max_train": chosen.max_train, "max_test": chosen.max_test}
    read = functools.lru_cache(maxsize=1)(lambda table: read_table(table_path(chosen.data_dir, table), TABLES[table]))
    draw = functools.lru_cache(maxsize=1)(lambda table, seed: draw_trial(read(table), seed, **size))

    def prepare(key: dict[str, Any]) -> Work:
        name, seed = key["detector"], key["seed"]
        if key["table"] == TIMED:
            return Work(time_explainer, (name, read(TIMED_TABLE), chosen.set))
        trial = draw(key["table"], seed)
        facts = {"train": trial.train.num_rows, "clean": trial.clean.num_rows, "chance": trial.chance}
        if name in EXPLAINERS:
            return Work(run_explainer, (name, trial, seed), facts)
        return Work(run_detector, (name, trial, seed, chosen.set), facts)

    explainers = [name for name in EXPLAINERS if name != NEEDS_SHAP or importlib.util.find_spec("shap")]
    detectors = [name for name in DETECTORS if name in chosen.detectors]
    runs = [
        (table, seed, name)
        for seed in range(chosen.seeds)
        for table in chosen.tables
        for name in [*explainers, *detectors]
    ]
    timed = [(TIMED, 0, name) for name in [*explainers, "tabmoco"]]
    keys = [run_key(chosen, *run) for run in [*runs, *timed]]
    return [Job(key, functools.partial(prepare, key)) for key in keys]


def run_key(chosen: argparse.Namespace, table: str, seed: int, detector: str) -> dict[str, Any]:
    is_set = detector in DETECTORS and not DETECTORS[detector].is_rival
    settings = " ".join(sorted(chosen.set)) if is_set else ""
    return dict(zip(KEYS, (table, seed, detector, chosen.max_train, chosen.max_test, settings), strict=True))


def comparable(chosen: argparse.Namespace, store: RunStore) -> list[Run]:
    """All runs of the file with these rows and settings, whichever detectors and tables were asked for now."""
    return [
        run for run in store.runs.values() if run.items() >= run_key(chosen, *(run[name] for name in KEYS[:3])).items()
    ]


# ---------------------------------------------------------------- command


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    usual = {name: f"{FULL[name]:,}, or {QUICK[name]:,} with --quick" for name in ("seeds", "max_train", "max_test")}
    out = f"{FULL['out']}, with --quick {QUICK['out']}"
    parser = new_parser("planted", __doc__, data="tables/NAME.parquet", out=out)
    parser.add_argument("--quick", action="store_true", help="three small tables, one seed, few rivals, fewer rows")
    parser.add_argument("--tables", metavar="A,B", help=f"tables; all, or few with --quick: {', '.join(TABLES)}")
    parser.add_argument("--detectors", metavar="A,B", help=f"detectors; likewise: {', '.join(DETECTORS)}")
    parser.add_argument("--seeds", type=int, metavar="N", help=f"number of seeds; {usual['seeds']}")
    parser.add_argument("--max-train", type=int, metavar="N", help=f"most rows learned from; {usual['max_train']}")
    parser.add_argument(
        "--max-test", type=int, metavar="N", help=f"most clean rows scored, and damaged per kind; {usual['max_test']}"
    )
    add_run_options(parser, redo=f"detectors or ways to explain ({', '.join(EXPLAINERS)})")
    chosen = parser.parse_args(arguments)
    fill_in(chosen, QUICK if chosen.quick else FULL)
    take_names(parser, chosen, {"tables": TABLES, "detectors": DETECTORS, "redo": {**DETECTORS, **EXPLAINERS}})
    needed = [table_path(chosen.data_dir, table) for table in dict.fromkeys([*chosen.tables, TIMED_TABLE])]
    absent = [path for path in needed if not path.exists()]
    if absent and not chosen.report_only:
        parser.error(f"--data-dir: there is no {absent[0]}")
    if importlib.util.find_spec("pyod") is None and not chosen.report_only:
        parser.error("the rivals are missing; pip install '.[benchmarks]'")
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = parse(arguments)
    store = RunStore(chosen.out.with_suffix(".runs.jsonl"), KEYS)
    facts = provenance("pyod", "shap")
    run_and_report(chosen, store, facts, plan=plan, report=report, like=("detector", "table"))


def report(chosen: argparse.Namespace, store: RunStore, facts: dict[str, Any]) -> None:
    """Write OUT.json, OUT.md and OUT.png from the runs there are."""
    runs = comparable(chosen, store)
    if not runs:
        print("There are no runs to report.")
        return
    summary = summarise(runs)
    write_results(chosen.out, {"provenance": facts, **summary}, render(summary, facts))
    plot(summary, chosen.out.with_suffix(".png"))
    print(f"Wrote {chosen.out}.json, .md and .png from {len(runs)} runs.")


if __name__ == "__main__":
    main()
