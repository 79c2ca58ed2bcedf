"""Anomaly detection on 22 tables: tabmoco against what people use today, all with their default settings.

Rows are divided as `benchmarks.anomaly_protocol` says, in two settings: learned from normal rows (one_class), and from
all rows without labels (contaminated). Every run of a detector on a table with a seed has a process of its own and is
kept at once in OUT.runs.jsonl, so the benchmark can be stopped and started again; `--redo NAME` repeats a detector.

    python -m benchmarks.anomaly --data-dir DATA --out benchmarks/results/anomaly
    python -m benchmarks.anomaly --data-dir DATA --quick
    python -m benchmarks.anomaly --data-dir DATA --full-size
    python -m benchmarks.anomaly --data-dir DATA --split dte

The last two are checks beside it: what whole large tables cost, and whether the KNN column of a published split comes
out.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.anomaly_protocol import (
    DTE_MAX_ROWS,
    MAX_ROWS,
    SETTINGS,
    TABLES,
    Split,
    evaluate,
    load,
    table_path,
)
from benchmarks.anomaly_report import compare_with_published, plot, render
from benchmarks.anomaly_summary import summarise
from benchmarks.detectors import DETECTORS
from benchmarks.options import add_run_options, fill_in, new_parser, take_names
from benchmarks.results_file import provenance, write_results
from benchmarks.runs import Job, Run, RunStore, Work, run_and_report

KEYS = ("setting", "table", "seed", "detector", "max_rows", "set")
"""Fields that name a run."""

UNCAPPED = 10_000_000

QUICK = {
    "tables": "breastw,ionosphere,landsat,pageblocks,pendigits,satellite,thyroid,vowels,wilt,yeast",
    "detectors": "KNN,LOF,IForest,ECOD,1NN-z,2NN-z,5NN-z,1NN-q,2NN-q,5NN-q,two-scalings,tabmoco",
    "settings": "one_class",
    "seeds": 1,
    "max_rows": 5_000,
    "out": Path("benchmarks/results/anomaly-quick"),
}
FULL = {
    "tables": ",".join(TABLES),
    "detectors": ",".join(DETECTORS),
    "settings": "one_class,contaminated",
    "seeds": 3,
    "max_rows": MAX_ROWS,
    "out": Path("benchmarks/results/anomaly"),
}
FULL_SIZE = FULL | {
    "tables": "donors,http,skin",
    "detectors": "KNN,tabmoco",
    "settings": "one_class",
    "seeds": 1,
    "max_rows": UNCAPPED,
}
CITATION = FULL | {"detectors": "KNN", "settings": "dte", "seeds": 5, "max_rows": DTE_MAX_ROWS}


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    store = RunStore(chosen.out.with_suffix(".runs.jsonl"), KEYS)
    run_and_report(
        chosen,
        store,
        provenance("pyod", "scipy"),
        plan=plan,
        report=report,
        like=("detector", "max_rows", "setting", "table"),
        guess=lambda key: DETECTORS[key["detector"]].usual_seconds,
    )
    if chosen.split is None:
        return 0
    lines, is_reproduced = compare_with_published(runs_of(store, chosen, "dte", max_rows=chosen.max_rows))
    print("\n".join(lines))
    return 0 if is_reproduced else 1


def plan(chosen: argparse.Namespace) -> list[Job]:
    """Seed after seed, so that whatever is stopped leaves whole seeds; within one the cheap detectors first."""
    keys = (
        dict(zip(KEYS, (setting, table, seed, detector, chosen.max_rows, _set(chosen, detector)), strict=True))
        for seed in range(chosen.seeds)
        for detector in DETECTORS
        if detector in chosen.detectors
        for setting in chosen.settings
        for table in chosen.tables
    )
    return [Job(key, functools.partial(_work, chosen.data_dir, key, tuple(chosen.set))) for key in keys]


def runs_of(store: RunStore, chosen: argparse.Namespace, *settings: str, max_rows: int) -> list[Run]:
    """All runs of the file in these settings with these rows, whichever detectors and tables were asked for now."""
    return [
        run
        for run in store.runs.values()
        if run["setting"] in settings
        and run["detector"] in DETECTORS
        and run["max_rows"] == max_rows
        and run["set"] == _set(chosen, run["detector"])
    ]


def report(chosen: argparse.Namespace, store: RunStore, facts: dict[str, Any]) -> None:
    """Write OUT.json, OUT.md and OUT.png from the runs there are."""
    max_rows = MAX_ROWS if chosen.full_size or chosen.split else chosen.max_rows
    runs = runs_of(store, chosen, "one_class", "contaminated", max_rows=max_rows)
    if not runs:
        print("There are no runs to report.")
        return
    summary = summarise(runs, runs_of(store, chosen, "one_class", max_rows=UNCAPPED))
    published = runs_of(store, chosen, "dte", max_rows=DTE_MAX_ROWS)
    markdown = render(summary, facts, max_rows=max_rows, published=published)
    write_results(chosen.out, {"provenance": facts, "max_rows": max_rows, **summary}, markdown)
    plot(summary, chosen.out.with_suffix(".png"))
    print(f"Wrote {chosen.out}.json, .md and .png from {len(runs)} runs.")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    out = f"{FULL['out']}, with --quick {QUICK['out']}"
    parser = new_parser("anomaly", __doc__, data="anomaly/ad_NAME.parquet", out=out)
    parser.add_argument("--quick", action="store_true", help="ten tables, one seed, few rivals, up to 5,000 rows")
    parser.add_argument("--full-size", action="store_true", help="the largest tables whole, tabmoco and PyOD's KNN")
    parser.add_argument("--split", choices=["dte"], help="compare PyOD's KNN with its published figures")
    parser.add_argument("--tables", metavar="A,B", help="names; all by default")
    parser.add_argument("--detectors", metavar="A,B", help=f"names: {', '.join(DETECTORS)}")
    parser.add_argument("--settings", metavar="A,B", help="one_class, contaminated or both")
    parser.add_argument("--seeds", type=int, metavar="N", help="number of seeds")
    parser.add_argument("--max-rows", type=int, metavar="N", help="most rows learned from, and most rows scored")
    add_run_options(parser, redo="detectors")
    chosen = parser.parse_args(arguments)
    fill_in(chosen, CITATION if chosen.split else FULL_SIZE if chosen.full_size else QUICK if chosen.quick else FULL)
    known = {"tables": TABLES, "detectors": DETECTORS, "settings": SETTINGS, "redo": DETECTORS}
    take_names(parser, chosen, known)
    absent = [table for table in chosen.tables if not table_path(chosen.data_dir, table).exists()]
    if absent and not chosen.report_only:
        parser.error(f"--data-dir: there is no {table_path(chosen.data_dir, absent[0])}")
    needs_pyod = any(DETECTORS[name].package == "PyOD" for name in chosen.detectors)
    if needs_pyod and importlib.util.find_spec("pyod") is None and not chosen.report_only:
        parser.error("the rivals are missing; pip install '.[benchmarks]'")
    return chosen


def _work(data_dir: Path, key: dict[str, Any], settings: tuple[str, ...]) -> Work:
    n_rows, split = _split(table_path(data_dir, key["table"]), key["setting"], key["seed"], key["max_rows"])
    return Work(evaluate, (split, key["detector"], settings, key["seed"]), {"n_rows": n_rows, **split.facts()})


@functools.lru_cache(maxsize=2 * len(TABLES))
def _split(path: Path, setting: str, seed: int, max_rows: int) -> tuple[int, Split]:
    rows, label = load(path)
    return len(label), SETTINGS[setting](rows, label, seed, max_rows)


def _set(chosen: argparse.Namespace, detector: str) -> str:
    return " ".join(sorted(chosen.set)) if DETECTORS[detector].family == "tabmoco" else ""


if __name__ == "__main__":
    raise SystemExit(main())
