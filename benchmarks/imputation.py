"""Gaps filled: tabmoco against means, neighbours, chained regressions and chained forests.

Of at most 5,000 rows of a table 10 %, 30 % or 50 % of the cells are hidden, at random or the likelier the larger
another column is (`benchmarks.imputation_gaps`). Everyone gets the table with its gaps and nothing else; tabmoco is
pretrained on it. Errors: of numbers the root mean square in standard deviations of the column, of categories the share
that is right; means over columns, then over tables. Seconds are those of learning and filling.

Every run has a process of its own and is kept at once in OUT.runs.jsonl, so the benchmark can be stopped and started
again; `--redo NAME` repeats a method.

    python -m benchmarks.imputation --data-dir DATA --out benchmarks/results/imputation
    python -m benchmarks.imputation --data-dir DATA --quick
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tabmoco
from benchmarks.imputation_gaps import MECHANISMS, TABLES, Gapped, hide, is_number, measure, read_rows, to_frame
from benchmarks.imputation_report import render, summarise
from benchmarks.imputation_rivals import RIVALS, Prepared
from benchmarks.options import add_run_options, fill_in, new_parser, take_names
from benchmarks.results_file import provenance, write_results
from benchmarks.runs import Job, Run, RunStore, Work, run_and_report

KEYS = ("seed", "table", "mechanism", "rate", "method", "max_rows", "set")
"""Fields that name a run."""

METHODS = (*RIVALS, "tabmoco")
FULL = {
    "tables": ",".join(TABLES),
    "rates": "0.1,0.3,0.5",
    "mechanisms": ",".join(MECHANISMS),
    "methods": ",".join(METHODS),
    "seeds": 3,
    "max_rows": 5_000,
    "out": Path("benchmarks/results/imputation"),
}
QUICK = FULL | {
    "tables": "credit_g,phoneme,churn",
    "rates": "0.3",
    "seeds": 1,
    "max_rows": 3_000,
    "out": Path("benchmarks/results/imputation-quick"),
}
GUESSED_SECONDS = {"mean": 0.1, "KNN": 20.0, "iterative": 20.0, "forest": 200.0, "tabmoco": 120.0}


def run_rival(method: str, gapped: Gapped, seed: int) -> Run:
    started = time.monotonic()
    filled = RIVALS[method](Prepared.of(gapped.given), seed)
    seconds = time.monotonic() - started
    misses = measure(gapped, filled)
    return {**misses.figures(), "fill_seconds": round(seconds, 2), "columns": {**misses.rmse, **misses.accuracy}}


def run_tabmoco(gapped: Gapped, seed: int, settings: Sequence[str]) -> Run:
    """Pretrain on the table with its gaps and fill them; also how often true numbers lie in the range of nine in ten,
    and mean confidence, to be compared with the accuracy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.monotonic()
        config = dataclasses.replace(tabmoco.PretrainConfig().override(settings), seed=seed)
        model = tabmoco.pretrain(gapped.given, config)
        trained = time.monotonic() - started
        table = model.impute(gapped.given, uncertainty=True)
        seconds = time.monotonic() - started
    misses = measure(gapped, to_frame(table.select(gapped.whole.column_names)))
    return {
        **misses.figures(),
        **honesty(gapped, table),
        "train_seconds": round(trained, 2),
        "fill_seconds": round(seconds, 2),
        "columns": {**misses.rmse, **misses.accuracy},
    }


def honesty(gapped: Gapped, filled: pa.Table) -> dict[str, float | None]:
    """Share of hidden numbers within their range, and mean confidence of categories; means over columns."""
    inside, confidence = [], []
    for place, name in enumerate(gapped.whole.column_names):
        gone = gapped.hidden[:, place]
        if not gone.any():
            continue
        if is_number(gapped.whole, name) and f"{name}_low" in filled.column_names:
            true, low, high = (
                table[column].cast(pa.float64()).to_numpy()[gone]
                for table, column in ((gapped.whole, name), (filled, f"{name}_low"), (filled, f"{name}_high"))
            )
            inside.append(float(((low <= true) & (true <= high)).mean()))
        elif f"{name}_confidence" in filled.column_names:
            confidence.append(float(np.nanmean(filled[f"{name}_confidence"].to_numpy()[gone])))
    return {
        "coverage": float(np.mean(inside)) if inside else None,
        "confidence": float(np.mean(confidence)) if confidence else None,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    store = RunStore(chosen.out.with_suffix(".runs.jsonl"), KEYS)
    run_and_report(
        chosen,
        store,
        provenance(),
        plan=plan,
        report=report,
        like=("method", "table", "rate"),
        guess=lambda key: GUESSED_SECONDS[str(key["method"])],
    )
    return 0


def plan(chosen: argparse.Namespace) -> list[Job]:
    """Seed after seed, so that whatever is stopped leaves whole seeds; within one, table after table."""
    read = functools.lru_cache(maxsize=1)(
        lambda table, seed: read_rows(chosen.data_dir / "tables" / f"{table}.parquet", seed, chosen.max_rows)
    )
    draw = functools.lru_cache(maxsize=1)(
        lambda table, seed, mechanism, rate: hide(read(table, seed), mechanism, rate, seed)
    )

    def prepare(key: dict[str, Any]) -> Work:
        gapped = draw(key["table"], key["seed"], key["mechanism"], key["rate"])
        facts = {"n_rows": gapped.whole.num_rows, "n_hidden": int(gapped.hidden.sum())}
        if key["method"] in RIVALS:
            return Work(run_rival, (key["method"], gapped, key["seed"]), facts)
        return Work(run_tabmoco, (gapped, key["seed"], tuple(chosen.set)), facts)

    keys = [
        run_key(chosen, seed, table, mechanism, rate, method)
        for seed in range(chosen.seeds)
        for table in chosen.tables
        for mechanism in chosen.mechanisms
        for rate in chosen.rates
        for method in chosen.methods
    ]
    return [Job(key, functools.partial(prepare, key)) for key in keys]


def run_key(
    chosen: argparse.Namespace, seed: int, table: str, mechanism: str, rate: float, method: str
) -> dict[str, Any]:
    settings = " ".join(sorted(chosen.set)) if method not in RIVALS else ""
    return dict(zip(KEYS, (seed, table, mechanism, rate, method, chosen.max_rows, settings), strict=True))


def comparable(chosen: argparse.Namespace, store: RunStore) -> list[Run]:
    """All runs of the file with these rows and settings, whichever methods and tables were asked for now."""
    return [
        run for run in store.runs.values() if run.items() >= run_key(chosen, *(run[name] for name in KEYS[:5])).items()
    ]


def report(chosen: argparse.Namespace, store: RunStore, facts: dict[str, Any]) -> None:
    """Write OUT.json and OUT.md from the runs there are."""
    runs = comparable(chosen, store)
    if not runs:
        print("There are no runs to report.")
        return
    summary = summarise(runs)
    write_results(chosen.out, {"provenance": facts, "max_rows": chosen.max_rows, **summary}, render(summary, facts))
    print(f"Wrote {chosen.out}.json and .md from {len(runs)} runs.")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    out = f"{FULL['out']}, with --quick {QUICK['out']}"
    parser = new_parser("imputation", __doc__, data="tables/NAME.parquet", out=out)
    parser.add_argument("--quick", action="store_true", help="three tables, one rate, one seed, fewer rows")
    parser.add_argument("--tables", metavar="A,B", help=f"tables: {', '.join(TABLES)}")
    parser.add_argument("--rates", metavar="A,B", help="shares of the cells to hide")
    parser.add_argument("--mechanisms", metavar="A,B", help=f"how cells are hidden: {', '.join(MECHANISMS)}")
    parser.add_argument("--methods", metavar="A,B", help=f"methods: {', '.join(METHODS)}")
    parser.add_argument("--seeds", type=int, metavar="N", help="draws of rows and gaps")
    parser.add_argument("--max-rows", type=int, metavar="N", help="most rows of a table")
    add_run_options(parser, redo="methods")
    chosen = parser.parse_args(arguments)
    fill_in(chosen, QUICK if chosen.quick else FULL)
    take_names(parser, chosen, {"tables": TABLES, "mechanisms": MECHANISMS, "methods": METHODS, "redo": METHODS})
    chosen.rates = [_rate(parser, word) for word in chosen.rates.split(",")]
    for table in chosen.tables:
        path = chosen.data_dir / "tables" / f"{table}.parquet"
        if not path.exists():
            parser.error(f"--data-dir: there is no {path}")
    return chosen


def _rate(parser: argparse.ArgumentParser, word: str) -> float:
    try:
        rate = float(word)
    except ValueError:
        rate = -1.0
    if not 0 < rate <= 0.5:
        parser.error(f"--rates: must be shares above 0 and up to 0.5, got {word}")
    return rate


if __name__ == "__main__":
    raise SystemExit(main())
