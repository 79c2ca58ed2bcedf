"""What tabmoco costs beyond the bare cost of its network, stage by stage, and beside other libraries.

- Training: the floor is forward, backward and optimizer step of encoder and loss on a resident batch, the target's keys
  included: they are part of MoCo's loss. Then moving average and queue, gathering the batch, corruption, and the loop
  around it join in, one after the other. The monitor, reading and encoding are divided among the steps of a run.
- Embedding: from a Parquet file to a Parquet file, against the encoder alone on encoded rows.
- Encoding: schema and preprocessing of a Parquet file, against pyarrow's reading and standardising its numbers.
- Anomaly scores, beside scikit-learn's and PyOD's detectors that know the same rows.
- Pretraining rows a second beside ts3l's SCARF and VIME, where ts3l is installed (extra `benchmarks`), and beside the
  libraries of `benchmarks.speed_libraries`, which says how to install them.
- Start-up: `tabmoco --help` against `import torch`.

All are told in CPU time of one thread, so that other work on the machine disturbs little, and every figure is the
median of repeats in which the compared take turns.

    python -m benchmarks.speed --out benchmarks/results/speed
    python -m benchmarks.speed --rows 1000000 --columns 20 --only encoding,embedding
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from benchmarks import speed_rivals, speed_scoring
from benchmarks.results_file import footer, provenance, write_results
from benchmarks.speed_stages import FLOOR, LOOKED, READ, STAGES, Prepared, stages
from tabmoco.config import PretrainConfig
from tabmoco.model import BATCH_ROWS, RowModel
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.schema import infer_schema
from tabmoco.tables.sink import write_table
from tabmoco.tables.source import open_table
from tabmoco.training.loop import LOOKS
from tabmoco.training.monitor import MAX_ROWS

PARTS = ("training", "embedding", "encoding", "scoring", "rivals", "start-up")

MOST_OVER_FLOOR = 10.0
"""Per cent that all stages but the monitor may add to the floor."""

LEAST_OF_FORWARD = 70.0
"""Per cent of the encoder's own speed that embedding files should reach."""

MOST_OF_READING = 2.0
MOST_OF_TORCH = 0.4


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    torch.set_num_threads(1)
    config = PretrainConfig().override(chosen.set)
    with tempfile.TemporaryDirectory(prefix="tabmoco-") as name:
        path = Path(name) / "rows.parquet"
        pq.write_table(made_table(chosen.rows, chosen.columns), path)
        measures: dict[str, Callable[[], Any]] = {
            "training": lambda: training(path, config, repeats=chosen.repeats, n_steps=chosen.steps),
            "embedding": lambda: embedding(path, config, repeats=chosen.repeats),
            "encoding": lambda: encoding(path, config, repeats=chosen.repeats),
            "scoring": lambda: scoring(path, config, repeats=chosen.repeats),
            "rivals": lambda: rivals(path, config, repeats=chosen.repeats, n_steps=chosen.steps),
            "start-up": lambda: start_up(chosen.repeats),
        }
        found = {part: measures[part]() for part in chosen.only}
    facts = provenance("ts3l", "pytorch-lightning")
    told = {"rows": chosen.rows, "columns": chosen.columns, "settings": chosen.set, "repeats": chosen.repeats}
    page = render(found, told) + footer(facts)
    if chosen.out is not None:
        write_results(chosen.out, {"provenance": facts, **told, **found}, page)
    print(page)
    return 0


def made_table(n_rows: int, n_columns: int) -> pa.Table:
    """Numbers that hang together through four hidden ones."""
    random = np.random.default_rng(0)
    hidden = random.normal(size=(n_rows, 4))
    noise = random.normal(scale=0.3, size=(n_columns, n_rows))
    return pa.table({f"number_{j}": hidden @ random.normal(size=4) + noise[j] for j in range(n_columns)})


def taking_turns(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each way, after one that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(1 + repeats):
        for name, run in ways.items():
            start = process_time()
            run()
            if repeat:
                seconds[name].append(process_time() - start)
    return seconds


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Median over the repeats of how many times as large the one is as the other."""
    return float(np.median(np.divide(above, below)))


def training(path: Path, config: PretrainConfig, *, repeats: int, n_steps: int) -> dict[str, Any]:
    """Milliseconds a step, and per cent over the floor with each stage."""
    prepared = Prepared.of(open_table(path), config)
    ways = {name: (lambda run=run: run(n_steps)) for name, run in stages(prepared).items()}
    seconds = taking_turns(ways, repeats)  # type: ignore[arg-type]
    floor = np.median(seconds[FLOOR]) / n_steps
    found = {
        name: {
            "milliseconds": 1e3 * float(np.median(taken)) / n_steps,
            "over_floor": 100 * (median_ratio(taken, seconds[FLOOR]) - 1),
        }
        for name, taken in seconds.items()
    }
    last = found[STAGES[-1]]
    for name, more in prepared.amortised().items():
        last = {
            "milliseconds": last["milliseconds"] + 1e3 * more,
            "over_floor": last["over_floor"] + 100 * more / float(floor),
        }
        found[name] = last
    return {"stages": found, "n_steps": prepared.n_steps, "batch_size": config.optimize.batch_size}


def embedding(path: Path, config: PretrainConfig, *, repeats: int) -> dict[str, float]:
    """Rows a second from file to file, and of the encoder alone."""
    prepared = Prepared.of(open_table(path), config)
    model, cells = RowModel(config, prepared.preprocessor, prepared.pretext), prepared.data.cells

    @torch.inference_mode()
    def forward() -> None:
        for start in range(0, len(cells), BATCH_ROWS):
            model.encoder(cells[start : start + BATCH_ROWS])

    def whole() -> None:
        source, out = open_table(path), path.with_name("embeddings.parquet")
        write_table(model.iter_embeddings(source), out, schema=model.embedding_schema(source), overwrite=True)

    seconds = taking_turns({"forward": forward, "whole": whole}, repeats)
    return {
        **{name: len(cells) / float(np.median(taken)) for name, taken in seconds.items()},
        "share": 100 * median_ratio(seconds["forward"], seconds["whole"]),
    }


def encoding(path: Path, config: PretrainConfig, *, repeats: int) -> dict[str, float]:
    """Rows a second of schema and preprocessing, and of reading and standardising alone."""
    n_rows = open_table(path).n_rows

    def reading() -> None:
        for column in pq.read_table(path, use_threads=False).columns:
            values = column.to_numpy()
            ((values - pc.mean(column).as_py()) / pc.stddev(column).as_py()).astype(np.float32)

    def whole() -> None:
        source = open_table(path)
        preprocessor = Preprocessor.fit(source, config.data, schema=infer_schema(source, config.data))
        for _ in preprocessor.iter_cells(source):
            pass

    seconds = taking_turns({"reading": reading, "whole": whole}, repeats)
    return {
        **{name: n_rows / float(np.median(taken)) for name, taken in seconds.items()},
        "times": median_ratio(seconds["whole"], seconds["reading"]),
    }


def scoring(path: Path, config: PretrainConfig, *, repeats: int) -> dict[str, float]:
    """Rows a second of tabmoco and of other detectors."""
    seconds = taking_turns(speed_scoring.ways(path, config), repeats)
    return {name: speed_scoring.n_scored(path) / float(np.median(taken)) for name, taken in seconds.items()}


def rivals(path: Path, config: PretrainConfig, *, repeats: int, n_steps: int) -> dict[str, dict[str, float]]:
    """Median rows a second of each library, and how many times as fast tabmoco of that size is."""
    table = pq.read_table(path)
    runs = [speed_rivals.rates(table, config, n_steps=n_steps) for _ in range(repeats)]
    own = [run[speed_rivals.OWN_LIKE]["rows_per_second"] for run in runs]
    return {
        name: {
            "rows_per_second": float(np.median([run[name]["rows_per_second"] for run in runs])),
            "parameters": first["parameters"],
            "times": median_ratio(own, [run[name]["rows_per_second"] for run in runs]),
        }
        for name, first in runs[0].items()
    }


def start_up(repeats: int) -> dict[str, float]:
    """CPU seconds of `tabmoco --help` and of `import torch`, each in a process of its own."""
    asked = {"help": ["-m", "tabmoco", "--help"], "torch": ["-c", "import torch"]}
    seconds: dict[str, list[float]] = {name: [] for name in asked}
    for repeat in range(1 + repeats):
        for name, arguments in asked.items():
            process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise SystemExit(f"python {' '.join(arguments)} ended with {process.returncode}.")
            if repeat:
                seconds[name].append(usage.ru_utime + usage.ru_stime)
    medians = {name: float(np.median(taken)) for name, taken in seconds.items()}
    return {**medians, "share": median_ratio(seconds["help"], seconds["torch"])}


def render(found: dict[str, Any], told: dict[str, Any]) -> str:
    """A page with a section for each part that was measured."""
    settings = f", {', '.join(told['settings'])}" if told["settings"] else ""
    lines = [
        "# Speed on one thread",
        "",
        f"A made table of {told['rows']:,} rows and {told['columns']} columns of numbers{settings}. CPU time, medians "
        f"of {told['repeats']} repeats taken in turn.",
    ]
    if "training" in found:
        lines += _training_lines(found["training"])
    if "embedding" in found:
        one = found["embedding"]
        lines += [
            "", "## Embedding", "",
            f"From Parquet to Parquet {one['whole']:,.0f} rows a second; the encoder alone {one['forward']:,.0f}. "
            f"{one['share']:.0f} % of it, target at least {LEAST_OF_FORWARD:.0f} %: "
            f"{_met(one['share'] >= LEAST_OF_FORWARD)}.",
        ]  # fmt: skip
    if "encoding" in found:
        one = found["encoding"]
        lines += [
            "", "## Encoding", "",
            f"Schema and preprocessing {one['whole']:,.0f} rows a second; reading and standardising alone "
            f"{one['reading']:,.0f}. {one['times']:.1f} times the time, target at most {MOST_OF_READING:g}: "
            f"{_met(one['times'] <= MOST_OF_READING)}.",
        ]  # fmt: skip
    if "scoring" in found:
        lines += [
            "", "## Scoring", "",
            "Anomaly scores; tabmoco from Parquet to Parquet, the others from a matrix.",
            "",
            "| | rows a second |",
            "|---|---:|",
            *(f"| {name} | {rate:,.0f} |" for name, rate in found["scoring"].items()),
        ]  # fmt: skip
    if "rivals" in found:
        lines += _rival_lines(found["rivals"])
    if "start-up" in found:
        one = found["start-up"]
        lines += [
            "", "## Start-up", "",
            f"`tabmoco --help` {one['help']:.2f} s, `import torch` {one['torch']:.2f} s. {one['share']:.2f} of it, "
            f"target at most {MOST_OF_TORCH:g}: {_met(one['share'] <= MOST_OF_TORCH)}.",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _training_lines(training: dict[str, Any]) -> list[str]:
    steps = training["stages"]
    total, watched = (steps[name]["over_floor"] for name in (READ, LOOKED))
    return [
        "",
        "## Training",
        "",
        f"Batches of {training['batch_size']}; what is done once is divided among {training['n_steps']} steps.",
        "",
        "| what a step does | ms | over the floor |",
        "|---|---:|---:|",
        *(f"| {name} | {one['milliseconds']:.2f} | {one['over_floor']:+.1f} % |" for name, one in steps.items()),
        "",
        f"All up to reading {total:+.1f} %, target at most {MOST_OVER_FLOOR:+.0f} %: {_met(total <= MOST_OVER_FLOOR)}. "
        f"With the monitor's looks at {MAX_ROWS:,} rows, {LOOKS + 1} in a run, {watched:+.1f} %.",
    ]


def _rival_lines(rivals: dict[str, dict[str, float]]) -> list[str]:
    own = speed_rivals.OWN_LIKE
    lines = [
        "", "## Beside other libraries", "",
        f"Batches of the same size; each library's own trainer and loss. Times: how many times as fast {own} is.",
        "",
        "| | rows a second | trained parameters | times |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {one['rows_per_second']:,.0f} | {one['parameters']:,} | {one['times']:.1f} |"
            for name, one in rivals.items()
        ),
    ]  # fmt: skip
    for name, times in speed_rivals.TARGETS.items():
        if name in rivals:
            lines += ["", f"{name}: target {times:.0f} times: {_met(rivals[name]['times'] >= times)}."]
    missing = [name for name in speed_rivals.RIVALS if name not in rivals]
    return [*lines, *(["", f"Not installed, so not measured: {', '.join(missing)}."] if missing else [])]


def _met(reached: bool) -> str:
    return "met" if reached else "not met"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="results without suffix; printed in any case")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=30)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to measure")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="training steps of a repeat")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; repeatable")
    chosen = parser.parse_args(arguments)
    chosen.only = chosen.only.split(",")
    if unknown := [part for part in chosen.only if part not in PARTS]:
        parser.error(f"--only must name parts of {', '.join(PARTS)}, got {', '.join(unknown)}.")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
