"""What a row of a hundred columns costs on one core, and what ten billion of them would, by the formulas of
docs/scaling.md.

A made table of 60 numbers and 40 categories, the default encoder and objective, one thread. Time is that of the
processor, so that other work on the machine counts little. What is reckoned from it assumes machines of `--cores` such
cores, all of them busy.

    python -m benchmarks.billions --out benchmarks/results/billions --rows 20000
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.results_file import footer, provenance, write_results
from tabmoco.config import OptimizeConfig, PretrainConfig
from tabmoco.corruption import Corruption
from tabmoco.model import build_untrained
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.source import open_table
from tabmoco.tables.store import stored_bytes
from tabmoco.training.loop import timed_copy
from tabmoco.training.pretrain import pretrain
from tabmoco.training.rows import ResidentRows

N_ROWS = 10_000_000_000

N_NUMBERS, N_CATEGORIES = 60, 40

N_STEPS = 20

CODE_BYTES = 64
"""Of a row in an index of product codes (Jégou, Douze, Schmid 2011)."""

SHARD_BYTES = 100e9
"""Of such an index on one machine."""


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    warnings.simplefilter("ignore", TabmocoWarning)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), chosen.rows)
    costs = reckoned(found, cores=chosen.cores, machines=chosen.machines)
    facts = provenance()
    settings = vars(chosen) | {"out": str(chosen.out)}
    page = render(found, costs, chosen.cores, chosen.machines) + footer(facts)
    write_results(chosen.out, {"provenance": facts, "settings": settings, "measured": found, "reckoned": costs}, page)
    print(page)
    return 0


def measure(folder: Path, n_rows: int) -> dict[str, float]:
    """Bytes of a row, and rows a second on one core."""
    path = folder / "table.parquet"
    pq.write_table(made_table(n_rows), path, compression="zstd")
    config = PretrainConfig(optimize=OptimizeConfig(steps=N_STEPS, patience=1.0))
    model = pretrain(path, config)
    source = open_table(path)
    layout = model.preprocessor.layout
    encode_seconds = seconds(lambda: sum(len(cells) for cells in model.preprocessor.iter_cells(source)))
    return {
        "parquet_bytes": os.path.getsize(path) / n_rows,
        "stored_bytes": stored_bytes(layout, n_rows) / n_rows,
        "d_embedding": model.d_embedding,
        "n_parameters": sum(parameter.numel() for parameter in model.pretext.parameters() if parameter.requires_grad),
        "hashed": n_rows / seconds(source.fingerprint),
        "encoded": n_rows / encode_seconds,
        "embedded": n_rows / seconds(lambda: drained(model.iter_embeddings(source))),
        "scored": n_rows / seconds(lambda: drained(model.iter_scores(source))),
        "trained": trained(path, config),
    }


def trained(path: Path, config: PretrainConfig) -> float:
    """Rows a second of training steps, rows at hand."""
    source = open_table(path)
    preprocessor = Preprocessor.fit(source, config.data)
    cells = preprocessor.encode(source).cells
    data = ResidentRows(cells, torch.arange(len(cells)), cells.content_hash())
    corruption = Corruption(cells, preprocessor.layout, config.corruption)
    one_step = timed_copy(build_untrained(preprocessor, config), data, corruption, config)
    one_step(0)
    spent = seconds(lambda: [one_step(step) for step in range(1, 1 + N_STEPS)])
    return N_STEPS * config.optimize.batch_size / spent


def drained(batches: Any) -> None:
    for _ in batches:
        pass


def seconds(work: Callable[[], object]) -> float:
    """Of the processor."""
    start = time.process_time()
    work()
    return time.process_time() - start


def made_table(n_rows: int) -> pa.Table:
    """Numbers and categories that hang together through five hidden numbers."""
    random = np.random.default_rng(0)
    hidden = random.normal(size=(n_rows, 5))
    columns: dict[str, Any] = {}
    for place in range(N_NUMBERS):
        noise = 0.3 * random.normal(size=n_rows)
        columns[f"number_{place}"] = np.round(hidden @ random.normal(size=5) + noise, 3)
    for place in range(N_CATEGORIES):
        level = (np.abs(hidden[:, place % 5]) * 8 + random.integers(0, 3, n_rows)).astype(int)
        columns[f"category_{place}"] = np.char.add("level ", level.astype(str))
    return pa.table(columns)


def reckoned(found: dict[str, float], *, cores: int, machines: int) -> dict[str, float]:
    """Terabytes, and hours of so many machines, for ten billion rows."""
    width = found["d_embedding"]
    n_lists = 2 * N_ROWS**0.5
    together = 3600 * cores * machines
    return {
        "parquet_tb": N_ROWS * found["parquet_bytes"] / 1e12,
        "stored_tb": N_ROWS * found["stored_bytes"] / 1e12,
        "embeddings_tb": N_ROWS * (8 + 4 * width) / 1e12,
        "codes_tb": N_ROWS * (8 + CODE_BYTES) / 1e12,
        "shards": -(-N_ROWS * (8 + CODE_BYTES) // SHARD_BYTES),
        "hash_hours_one_core": N_ROWS / found["hashed"] / 3600,
        "encode_hours_one_core": N_ROWS / found["encoded"] / 3600,
        "embed_hours": N_ROWS / found["embedded"] / together,
        "score_hours": N_ROWS / found["scored"] / together,
        "train_hours_100m_one_machine": 1e8 / found["trained"] / 3600 / cores,
        "assign_flop": 2 * N_ROWS * n_lists * width,
    }


def render(found: dict[str, float], costs: dict[str, float], cores: int, machines: int) -> str:
    rates = {name: found[name] for name in ("hashed", "encoded", "embedded", "scored", "trained")}
    lines = [
        "# Ten billion rows of a hundred columns",
        "",
        "| of one row | |",
        "|---|---:|",
        f"| bytes as Parquet (zstd) | {found['parquet_bytes']:,.0f} |",
        f"| bytes encoded | {found['stored_bytes']:,.0f} |",
        f"| bytes of its embedding, with its id | {8 + 4 * found['d_embedding']:,.0f} |",
        *(f"| rows {name} per second of one core | {rate:,.0f} |" for name, rate in rates.items()),
        f"| parameters that learn | {found['n_parameters']:,.0f} |",
        "",
        f"| of ten billion | {machines} machines of {cores} cores, or as said |",
        "|---|---:|",
        f"| Parquet | {costs['parquet_tb']:,.1f} TB |",
        f"| encoded | {costs['stored_tb']:,.1f} TB |",
        f"| embeddings | {costs['embeddings_tb']:,.1f} TB |",
        f"| codes of {CODE_BYTES} bytes, with ids | {costs['codes_tb']:,.2f} TB, in {costs['shards']:.0f} shards |",
        f"| hashed, one core | {costs['hash_hours_one_core']:,.1f} h |",
        f"| encoded, one core | {costs['encode_hours_one_core']:,.0f} h |",
        f"| embedded | {costs['embed_hours']:,.1f} h |",
        f"| scored | {costs['score_hours']:,.1f} h |",
        f"| trained on 100 million rows, one machine | {costs['train_hours_100m_one_machine']:,.1f} h |",
        f"| rows dealt to the lists of an index | {costs['assign_flop']:.1e} FLOP |",
        "",
    ]
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/billions"), help="results without suffix")
    parser.add_argument("--rows", type=int, default=20_000, help="of the made table")
    parser.add_argument("--cores", type=int, default=32, help="of a machine, for what is reckoned")
    parser.add_argument("--machines", type=int, default=20, help="for what is reckoned")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
