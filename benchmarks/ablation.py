"""What MoCo's claims are worth on tables: one thing changed at a time, on eight tables with three seeds.

Each question of `benchmarks.ablation_questions` compares settings, most of them the default with one thing changed, by
a linear probe and by instance retrieval. Every run has a process of its own, which is handed its table encoded, and is
kept at once in OUT.runs.jsonl, so the benchmark can be stopped and started again; `--redo SETTING` repeats a setting,
and runs made with other defaults than today's are repeated by themselves.

    python -m benchmarks.ablation --data-dir DATA --out benchmarks/results/ablation
    python -m benchmarks.ablation --data-dir DATA --quick
    python -m benchmarks.ablation --data-dir DATA --questions momentum,queue --seeds 1
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.ablation_protocol import MAX_ROWS, N_FEW, TABLES, has_numbers, prepare
from benchmarks.ablation_questions import DEFAULT, QUESTIONS, SETTINGS, Setting, is_outdated, settings_of, values_of
from benchmarks.ablation_report import plot, render
from benchmarks.ablation_summary import summarise
from benchmarks.ablation_training import evaluate
from benchmarks.few_label_protocol import catalogue
from benchmarks.options import add_run_options, fill_in, new_parser, take_names
from benchmarks.results_file import provenance, write_results
from benchmarks.runs import Job, Key, Run, RunStore, Work, run_and_report

KEYS = ("seed", "table", "setting", "steps", "max_rows")
"""Fields that name a run."""

DEFAULT_SECONDS = 20.0
"""What 300 steps of the default take on one core, roughly; for the first estimate of the time that is left."""

QUICK = {
    "tables": "adult,phoneme,splice",
    "questions": "momentum,temperature,head,objective",
    "seeds": 1,
    "steps": 100,
    "out": Path("benchmarks/results/ablation-quick"),
}
FULL = {
    "tables": ",".join(TABLES),
    "questions": ",".join(QUESTIONS),
    "seeds": 3,
    "steps": 300,
    "out": Path("benchmarks/results/ablation"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    store = RunStore(chosen.out.with_suffix(".runs.jsonl"), KEYS)
    run_and_report(
        chosen,
        store,
        provenance("scipy"),
        plan=plan,
        report=report,
        like=("setting", "steps", "table"),
        guess=functools.partial(guess_seconds, store),
        redo=functools.partial(is_redone, chosen, store),
        modules=("benchmarks.ablation_training",),
    )
    return 0


def plan(chosen: argparse.Namespace) -> list[Job]:
    """Seed after seed, so that whatever is stopped leaves whole seeds; within one, table after table, so that each is
    encoded once."""
    jobs = []
    for seed in range(chosen.seeds):
        for position, table in enumerate(chosen.tables):
            numbers = has_numbers(chosen.catalogue[table])
            for setting in settings_of(chosen.questions):
                if (setting.is_costly and position >= N_FEW) or (setting.needs_numbers and not numbers):
                    continue
                key = dict(zip(KEYS, (seed, table, setting.name, chosen.steps, chosen.max_rows), strict=True))
                jobs.append(Job(key, functools.partial(_work, chosen, key, setting)))
    return jobs


def guess_seconds(store: RunStore, key: Key) -> float:
    """What a run of a setting that never ran will take: its cost in runs of the default, as long as those took here."""
    took = [r["seconds"] for r in store.runs.values() if (r["setting"], r["steps"]) == (DEFAULT.name, key["steps"])]
    usual = sum(took) / len(took) if took else DEFAULT_SECONDS * key["steps"] / 300
    return SETTINGS[key["setting"]].cost * usual


def is_redone(chosen: argparse.Namespace, store: RunStore, key: Key) -> bool:
    """Whether a run that is there is repeated: because it is asked for, or was made with other defaults."""
    return key["setting"] in chosen.redo or is_outdated(store.runs[store.key(key)])


def runs_of(store: RunStore, chosen: argparse.Namespace) -> list[Run]:
    """All runs of the file with as many steps and rows, whichever questions and tables were asked for now."""
    wanted = chosen.steps, chosen.max_rows
    return [run for run in store.runs.values() if (run["steps"], run["max_rows"]) == wanted and not is_outdated(run)]


def report(chosen: argparse.Namespace, store: RunStore, facts: dict[str, Any]) -> None:
    """Write OUT.json, OUT.md and a figure for each question in the folder OUT from the runs there are."""
    runs = runs_of(store, chosen)
    if not runs:
        print("There are no runs to report.")
        return
    summary = summarise(runs)
    page = render(summary, facts, steps=chosen.steps, max_rows=chosen.max_rows, figures=chosen.out.name)
    results = {"provenance": facts, "steps": chosen.steps, "max_rows": chosen.max_rows, **summary}
    write_results(chosen.out, results, page)
    plot(summary, chosen.out)
    print(f"Wrote {chosen.out}.json, .md and {len(summary['questions'])} figures from {len(runs)} runs.")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    out = f"{FULL['out']}, with --quick {QUICK['out']}"
    parser = new_parser("ablation", __doc__, data="catalog.csv and tables/", out=out)
    parser.add_argument("--quick", action="store_true", help="four questions, three tables, one seed, 100 steps")
    parser.add_argument("--questions", metavar="A,B", help=f"names: {', '.join(QUESTIONS)}")
    few = f"names; costly settings are tried on the first {N_FEW}"
    parser.add_argument("--tables", metavar="A,B", help=few)
    parser.add_argument("--seeds", type=int, metavar="N", help="splits of the rows, each with encoders of its own")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of 256 rows")
    parser.add_argument("--max-rows", type=int, metavar="N", default=MAX_ROWS, help="most rows trained on")
    add_run_options(parser, redo="settings", threads=1, has_settings=False)
    chosen = parser.parse_args(arguments)
    fill_in(chosen, QUICK if chosen.quick else FULL)
    if not (chosen.data_dir / "catalog.csv").exists():
        parser.error(f"--data-dir: there is no {chosen.data_dir / 'catalog.csv'}")
    tables, _ = catalogue(chosen.data_dir)
    chosen.catalogue = {name: facts for name, facts in tables.items() if facts.kind == "classification"}
    take_names(parser, chosen, {"tables": chosen.catalogue, "questions": QUESTIONS, "redo": SETTINGS})
    return chosen


def _work(chosen: argparse.Namespace, key: Key, setting: Setting) -> Work:
    sample = prepare(chosen.catalogue[key["table"]], key["seed"], key["max_rows"])
    noted: Run = {
        "settings": values_of(setting),
        "n_train": sample.n_train,
        "n_test": len(sample.test_label),
        "n_columns": sample.preprocessor.layout.n_columns,
    }
    return Work(evaluate, (sample, setting, key["steps"], key["seed"]), noted)


if __name__ == "__main__":
    raise SystemExit(main())
