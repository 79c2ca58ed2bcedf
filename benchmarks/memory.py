"""What tables larger than memory cost: peak resident memory and seconds of each command, as rows grow.

A made table of 20 columns (numbers, categories, times, gaps) is written part by part as Parquet, a million rows a file.
Every command runs in a process of its own, as a user would start it; the process's highest resident memory counts the
pages of mapped files too. The embedding is narrow so that its file fits a disk.

    python -m benchmarks.memory --out benchmarks/results/memory --work /path/with/room --rows 1,5,20,50
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.results_file import footer, provenance, write_results

PART_ROWS = 1_000_000
LIMIT_GIB = 2.0
STEPS = 200

NARROW = ("--set", "encoder.d_embedding=16", "--set", "encoder.d_block=64")
"""An encoder whose embeddings of 50 million rows take 3 GB."""

STAGES = ("schema", "pretrain", "embed", "score")


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    path = chosen.out.with_suffix(".runs.json")
    runs: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    done = {(run["stage"], run["rows"]) for run in runs}
    for millions in chosen.rows:
        data = write_table(chosen.work / "table", millions)
        for stage in chosen.stages:
            if (stage, millions * PART_ROWS) in done:
                continue
            run = {"stage": stage, "rows": millions * PART_ROWS, **measure(command(stage, data, chosen.work))}
            print(f"{stage} of {millions} million rows: {run['seconds']:,.0f} s, {run['peak_gib']:.2f} GiB")
            runs.append(run)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(runs, indent=1))
    facts = provenance()
    write_results(chosen.out, {"provenance": facts, "runs": runs}, render(runs, facts))
    plot(runs, chosen.out.with_suffix(".png"))
    return 0


def write_table(folder: Path, n_parts: int) -> list[str]:
    """The first `n_parts` files of the table, those that are missing written; each is a function of its number."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{number:03d}.parquet" for number in range(n_parts)]
    for number, path in enumerate(paths):
        if not path.exists():
            aside = path.with_suffix(".new")
            pq.write_table(_part(number), aside)
            aside.replace(path)
    return [str(path) for path in paths]


def _part(number: int) -> pa.Table:
    """Rows sorted by time from part to part, whose columns hang together through two hidden numbers."""
    random = np.random.default_rng(number)
    hidden = random.normal(size=(PART_ROWS, 2)).astype(np.float32)
    columns: dict[str, Any] = {}
    for place in range(10):
        noise = random.normal(size=PART_ROWS).astype(np.float32)
        columns[f"number_{place}"] = hidden @ random.normal(size=2).astype(np.float32) + 0.3 * noise
    for place in range(7):
        level = (np.abs(hidden[:, place % 2]) * 10 + random.integers(0, 3, PART_ROWS)).astype(int)
        columns[f"category_{place}"] = np.char.add("level ", level.astype(str))
    columns["flag"] = hidden[:, 0] > 0
    seconds = np.arange(PART_ROWS) + number * PART_ROWS
    columns["time"] = np.datetime64("2024-01-01", "ms") + seconds.astype("timedelta64[s]").astype("timedelta64[ms]")
    count = random.poisson(np.exp(hidden[:, 1]))
    columns["count"] = pa.array(count, mask=random.random(PART_ROWS) < 0.1)
    return pa.table(columns)


def command(stage: str, data: list[str], work: Path) -> list[str]:
    tabmoco = [sys.executable, "-m", "tabmoco", stage]
    model, common = str(work / "model"), ["--quiet"]
    if stage == "schema":
        return [*tabmoco, *data, *common, "--json"]
    if stage == "pretrain":
        options = ["--steps", str(STEPS), "--overwrite", "--index", "20000", *NARROW]
        return [*tabmoco, *data, "--out", model, *options, *common]
    out = str(work / f"{stage}.parquet")
    return [*tabmoco, model, *data, "--out", out, "--overwrite", *common]


def measure(arguments: Sequence[str]) -> dict[str, Any]:
    """Seconds and peak resident memory of a command."""
    start = time.monotonic()
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(arguments[:4])} ... ended with {os.waitstatus_to_exitcode(status)}.")
    return {"seconds": round(time.monotonic() - start, 1), "peak_gib": round(usage.ru_maxrss / 2**20, 3)}


def render(runs: Sequence[dict[str, Any]], facts: dict[str, Any]) -> str:
    sizes = sorted({run["rows"] for run in runs})
    found = {(run["stage"], run["rows"]): run for run in runs}
    lines = [
        "# Tables larger than memory",
        "",
        f"Peak resident memory and seconds of each command; pretraining takes {STEPS} steps. Target: at most "
        f"{LIMIT_GIB:g} GiB at every size.",
        "",
        "| rows | " + " | ".join(STAGES) + " |",
        "|---:|" + "---:|" * len(STAGES),
    ]
    for rows in sizes:
        cells = [
            f"{found[stage, rows]['peak_gib']:.2f} GiB, {found[stage, rows]['seconds']:,.0f} s"
            if (stage, rows) in found
            else "-"
            for stage in STAGES
        ]
        lines.append(f"| {rows:,} | " + " | ".join(cells) + " |")
    most = max(run["peak_gib"] for run in runs)
    lines += ["", f"Most: {most:.2f} GiB; the target is {'met' if most <= LIMIT_GIB else 'not met'}.", ""]
    return "\n".join(lines) + footer(facts)


def plot(runs: Sequence[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
    for stage in STAGES:
        some = sorted((run["rows"], run["peak_gib"], run["seconds"]) for run in runs if run["stage"] == stage)
        if some:
            rows, peak, seconds = zip(*some, strict=True)
            axes[0].plot(rows, peak, marker="o", label=stage)
            axes[1].plot(rows, seconds, marker="o", label=stage)
    axes[0].axhline(LIMIT_GIB, color="grey", linewidth=1, linestyle="--")
    axes[0].set(title="peak resident memory, GiB", xlabel="rows", xscale="log", ylim=(0, None))
    axes[1].set(title="seconds", xlabel="rows", xscale="log", yscale="log")
    axes[1].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the table and the results, tens of GB")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/memory"), help="results without suffix")
    parser.add_argument("--rows", default="1,5,20,50", help="millions of rows, comma-separated")
    parser.add_argument("--stages", default=",".join(STAGES), help="commands, comma-separated")
    chosen = parser.parse_args(arguments)
    chosen.rows = [int(word) for word in chosen.rows.split(",")]
    chosen.stages = chosen.stages.split(",")
    unknown = [stage for stage in chosen.stages if stage not in STAGES]
    if unknown:
        parser.error(f"--stages: there is no {unknown[0]}; known: {', '.join(STAGES)}")
    return chosen


if __name__ == "__main__":
    raise SystemExit(main())
