"""What a second process brings: rows per second of one rank, and of two that have twice the batch.

Weak scaling: every rank has a thread of its own and as many rows of a batch as one process has alone, so that two
should do twice as much. They give each other keys and gradients on the way, and draw the views of the whole batch.
Each repeat measures in turn one rank alone, two together, and two that train apart from each other at the same time:
the last tells what the machine has to give, whatever else runs on it. Few rows are watched, so that training is timed.
Where other work takes the processors away, processor time still tells how much more there is to do for a row.

    python -m benchmarks.ranks --out benchmarks/results/ranks --repeats 5
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist

from benchmarks.results_file import footer, provenance, write_results
from tabmoco.config import OptimizeConfig, PretrainConfig
from tabmoco.corruption import Corruption
from tabmoco.model import build_untrained
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.source import open_table
from tabmoco.training.loop import train
from tabmoco.training.monitor import Monitor
from tabmoco.training.rows import ResidentRows

N_RANKS = 2

N_ROWS = 20_000

N_WATCHED = 64

WARM_STEPS = 20
"""Steps before the clock starts."""

TARGET = 0.85
"""Of twice the speed of one rank."""


SHARES = {
    "of_alone": "Two together, of twice one rank alone",
    "of_apart": "Two together, of two apart",
    "of_processor_time": "Rows per processor second of two together, of those of one alone",
}

Speed: TypeAlias = dict[str, float]
"""Rows per second, and rows per second that this process had a processor."""


class Clock:
    """A display that only takes the time."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float, float]] = []

    def say(self, text: str) -> None:
        """Nothing."""

    def update(self, step: int, rows_per_second: float, figures: dict[str, float]) -> None:
        self.seen.append((step, time.perf_counter(), time.process_time()))

    def speed(self, batch: int) -> Speed:
        first = next(moment for moment in self.seen if moment[0] >= WARM_STEPS)
        steps, seconds, processor_seconds = (end - start for start, end in zip(first, self.seen[-1], strict=True))
        return {"per_second": steps * batch / seconds, "per_processor_second": steps * batch / processor_seconds}


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    with tempfile.TemporaryDirectory() as folder:
        work = (Path(folder), chosen.repeats, chosen.steps, chosen.batch)
        torch.multiprocessing.spawn(measure, args=work, nprocs=N_RANKS)
        by_rank = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(N_RANKS)]
    repeats = [combined(first, second) for first, second in zip(*by_rank, strict=True)]
    facts = provenance()
    results = {"provenance": facts, "settings": vars(chosen) | {"out": str(chosen.out)}, "repeats": repeats}
    page = render(repeats, chosen.batch, facts)
    write_results(chosen.out, results, page)
    print(page)
    return 0


def combined(first: dict[str, Speed], second: dict[str, Speed]) -> dict[str, float]:
    """Rows per second of each kind, and what two ranks have of twice one rank's speed."""
    alone, together = first["alone"], first["together"]
    apart = first["apart"]["per_second"] + second["apart"]["per_second"]
    spent = sum(1 / rank["together"]["per_processor_second"] for rank in (first, second))  # on a row of both
    return {
        "alone": alone["per_second"],
        "together": together["per_second"],
        "apart": apart,
        "of_alone": together["per_second"] / (N_RANKS * alone["per_second"]),
        "of_apart": together["per_second"] / apart,
        "of_processor_time": 1 / alone["per_processor_second"] / spent,
    }


def measure(rank: int, folder: Path, n_repeats: int, n_steps: int, batch: int) -> None:
    """Speed of each kind of training, seen by one rank."""
    torch.set_num_threads(1)
    found = []
    for repeat in range(n_repeats):
        speeds = {"alone": timed(batch, n_steps)} if rank == 0 else {}
        meeting = f"file://{folder}/meeting{repeat}"  # where rank 1 waits for rank 0
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=N_RANKS)
        speeds["together"] = timed(N_RANKS * batch, n_steps)
        dist.barrier()
        dist.destroy_process_group()
        speeds["apart"] = timed(batch, n_steps)
        found.append(speeds)
    (folder / f"{rank}.json").write_text(json.dumps(found))


def timed(batch: int, n_steps: int) -> Speed:
    """Of a training with the default encoder and objective, after some steps to warm up."""
    config = PretrainConfig(optimize=OptimizeConfig(steps=n_steps, batch_size=batch, patience=1.0))
    source = open_table(made_table())
    preprocessor = Preprocessor.fit(source, config.data)
    cells = preprocessor.encode(source).cells
    pretext = build_untrained(preprocessor, config)
    data = ResidentRows(cells, torch.arange(len(cells)), cells.content_hash())
    corruption = Corruption(cells, preprocessor.layout, config.corruption)
    monitor, clock = Monitor.build(cells[:N_WATCHED], corruption, seed=0), Clock()
    train(pretext, data, corruption, monitor, config, n_steps=n_steps, display=clock)
    return clock.speed(batch)


def made_table() -> pd.DataFrame:
    """Twelve numbers and eight categories that hang together through two hidden numbers."""
    random = np.random.default_rng(0)
    hidden = random.normal(size=(N_ROWS, 2))
    table = {
        f"number_{place}": hidden @ random.normal(size=2) + 0.3 * random.normal(size=N_ROWS) for place in range(12)
    }
    for place in range(8):
        level = (np.abs(hidden[:, place % 2]) * 5 + random.integers(0, 3, N_ROWS)).astype(int)
        table[f"category_{place}"] = np.char.add("level ", level.astype(str))
    return pd.DataFrame(table)


def render(repeats: Sequence[dict[str, float]], batch: int, facts: dict[str, Any]) -> str:
    lines = [
        "# Two processes that train together",
        "",
        f"Rows per second, one thread per rank, {batch} rows per rank and step; a line is measured in one go.",
        "",
        "| one rank alone | two together | two apart | of twice one alone | of two apart | by processor time |",
        "|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {run['alone']:,.0f} | {run['together']:,.0f} | {run['apart']:,.0f} | {run['of_alone']:.0%} "
            f"| {run['of_apart']:.0%} | {run['of_processor_time']:.0%} |"
            for run in repeats
        ),
        "",
    ]
    for name, what in SHARES.items():
        shares = [run[name] for run in repeats]
        lines.append(f"- {what}: median {statistics.median(shares):.0%} ({min(shares):.0%} to {max(shares):.0%}).")
    met = statistics.median(run["of_alone"] for run in repeats) >= TARGET
    lines += ["", f"Target: at least {TARGET:.0%} of twice one rank alone; {'met' if met else 'not met'}.", ""]
    return "\n".join(lines) + footer(facts)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ranks"), help="results without suffix")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help=f"of each training, more than {WARM_STEPS}")
    parser.add_argument("--batch", type=int, default=256, help="rows of a batch per rank")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
