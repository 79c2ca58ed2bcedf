"""Instance retrieval: is a row found again after some of its cells were swapped with other rows'?

Held-out rows are never trained on, but lie in the index among other clean rows. Each is searched for from a view in
which exactly 30 % or 50 % of its cells hold the value of the same column in a random other row. A hit is the row
itself or an exact duplicate. Three ways to search the same index with the same queries:

- cells: one-hot categories and both scalings of the numbers (standardised and quantile-normal); the better of Euclidean
  distance and cosine for each table and rate, which favours this baseline;
- untrained: the embedding of the same encoder before its first step, the better of the two likewise;
- tabmoco: the embedding as `RowModel.embed` gives it, cosine, default settings.

    python -m benchmarks.retrieval --data-dir DATA --out benchmarks/results/retrieval
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import tabmoco
from benchmarks.results_file import footer, provenance, write_results
from tabmoco.model import RowModel, build_untrained
from tabmoco.neighbors.evidence import CellSpace
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.scalings import normal_scores

TABLES = {
    "nyc_flights": ("big", "arr_delay"),
    "adult": ("tables", "income"),
    "bird_strikes": ("tables", "phase_of_flt"),
    "us_accidents_text": ("big", "target"),
    "mice_protein": ("tables", "class"),
    "kdd_census": ("tables", "income"),
}
RATES = (0.3, 0.5)
N_QUERIES = 2_000
N_INDEXED = 12_000


def swap_cells(table: pa.Table, rows: np.ndarray, rate: float, generator: np.random.Generator) -> pa.Table:
    """The given rows with exactly `rate` of their cells taken from random other rows, one donor per cell."""
    n_columns = table.num_columns
    n_swapped = max(1, round(rate * n_columns))
    swapped = generator.random((len(rows), n_columns)).argsort(1) < n_swapped
    donors = (rows[:, None] + generator.integers(1, table.num_rows, swapped.shape)) % table.num_rows
    source = np.where(swapped, donors, rows[:, None])
    return pa.table(
        [column.take(pa.array(source[:, j])) for j, column in enumerate(table.columns)], names=table.column_names
    )


def accuracy(queries: np.ndarray, index: np.ndarray, truth: np.ndarray, content: np.ndarray, metric: str) -> float:
    """Share of queries whose nearest indexed row has the content of the true one."""
    q, x = torch.from_numpy(queries.astype(np.float32)), torch.from_numpy(index.astype(np.float32))
    if metric == "cosine":
        q, x = torch.nn.functional.normalize(q, dim=1), torch.nn.functional.normalize(x, dim=1)
    nearest = np.concatenate([torch.cdist(part, x).argmin(1).numpy() for part in q.split(250)])
    return float(np.mean(content[nearest] == content[truth]))


def run_table(path: Path, target: str, seed: int, config: tabmoco.PretrainConfig) -> dict[str, Any]:
    table = pq.read_table(path).drop_columns([target])
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(table.num_rows)
    n_queries = min(N_QUERIES, table.num_rows // 5)
    held_out, rest = shuffled[:n_queries], shuffled[n_queries:]
    indexed = np.concatenate([held_out, rest[: N_INDEXED - n_queries]])
    started = time.monotonic()
    model = tabmoco.pretrain(table.take(pa.array(np.sort(rest))), dataclasses.replace(config, seed=seed))
    seconds = time.monotonic() - started
    untrained = RowModel(model.config, model.preprocessor, build_untrained(model.preprocessor, model.config))

    clean = model.preprocessor.transform(table.take(pa.array(indexed)))
    content, truth = clean.content_hash().numpy(), np.arange(n_queries)
    index = spaces(model, untrained, clean)
    result: dict[str, Any] = {
        "rows": table.num_rows,
        "columns": table.num_columns,
        "seconds": round(seconds, 1),
        "verdict": model.record["verdict"],
    }
    for rate in RATES:
        damaged = model.preprocessor.transform(swap_cells(table, held_out, rate, generator))
        queries = spaces(model, untrained, damaged)
        for way, metrics in (
            ("cells", ("euclidean", "cosine")),
            ("untrained", ("euclidean", "cosine")),
            ("tabmoco", ("cosine",)),
        ):
            found = {metric: accuracy(queries[way], index[way], truth, content, metric) for metric in metrics}
            result[f"{way}@{rate}"] = max(found.values())
            result[f"{way}@{rate} by metric"] = found
    return result


def spaces(model: RowModel, untrained: RowModel, cells: CellBatch) -> dict[str, np.ndarray]:
    preprocessor = model.preprocessor
    knots = torch.from_numpy(preprocessor.knots), torch.from_numpy(preprocessor.knot_scores)
    space = CellSpace(preprocessor.layout)
    scalings = cells.number, normal_scores(cells.number, *knots)
    return {
        "cells": np.concatenate([space.given(cells, scaling).numpy() for scaling in scalings], axis=1),
        "untrained": untrained.embed_cells(cells),
        "tabmoco": model.embed_cells(cells),
    }


def render(results: dict[str, Any]) -> str:
    ways = ("cells", "untrained", "tabmoco")
    lines = [
        "# Instance retrieval",
        "",
        "Top-1 accuracy in %, mean ± standard deviation over seeds; "
        + "; ".join(f"{rate:.0%} of the cells swapped" for rate in RATES)
        + ".",
        "",
    ]
    lines += [
        "| table | " + " | ".join(f"{way} {rate:.0%}" for rate in RATES for way in ways) + " | training s |",
        "|---|" + "---:|" * (len(ways) * len(RATES) + 1),
    ]
    frame = pd.DataFrame([run | {"table": name} for name, runs in results["tables"].items() for run in runs])
    columns = [f"{way}@{rate}" for rate in RATES for way in ways]
    for name in results["tables"]:
        rows = frame[frame.table == name]
        cells = [f"{100 * rows[c].mean():.1f} ± {100 * rows[c].std(ddof=0):.1f}" for c in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {rows.seconds.mean():.0f} |")
    mean = frame.groupby("table")[columns].mean().mean()
    lines.append(
        "| **mean** | " + " | ".join(f"**{100 * mean[c]:.1f}**" for c in columns) + f" | {frame.seconds.mean():.0f} |"
    )
    return "\n".join(lines) + "\n" + footer(results["provenance"])


def plot(results: dict[str, Any], path: Path) -> None:
    """Bars per table at the highest rate of damage."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rate = RATES[-1]
    names = list(results["tables"])
    figure, axes = plt.subplots(figsize=(9, 3.4), layout="constrained")
    labels = {"cells": "neighbours among cells", "untrained": "untrained encoder", "tabmoco": "tabmoco"}
    for offset, (way, colour) in enumerate(zip(labels, ("#c3c7cf", "#8fa3bf", "#1f6f8b"), strict=True)):
        means = [100 * np.mean([run[f"{way}@{rate}"] for run in results["tables"][name]]) for name in names]
        bars = axes.bar(np.arange(len(names)) + 0.27 * (offset - 1), means, 0.25, label=labels[way], color=colour)
        axes.bar_label(bars, fmt="%.0f", fontsize=8, color="#333333")
    axes.set_xticks(np.arange(len(names)), names, fontsize=9)
    axes.set_ylabel("found again, %")
    axes.set_title(f"Is a row found again after {rate:.0%} of its cells were swapped with other rows'?", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/retrieval"))
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="a setting, as for tabmoco pretrain")
    arguments = parser.parse_args()
    config = tabmoco.PretrainConfig().override(arguments.set)
    results: dict[str, Any] = {"provenance": provenance(), "tables": {}}
    for seed in range(arguments.seeds):
        for name in arguments.tables.split(","):
            folder, target = TABLES[name]
            run = run_table(arguments.data_dir / folder / f"{name}.parquet", target, seed, config)
            results["tables"].setdefault(name, []).append(run)
            shown = {key: round(value, 3) for key, value in run.items() if isinstance(value, float)}
            print(name, seed, shown, flush=True)
            write_results(arguments.out, results, render(results))
            plot(results, arguments.out.with_suffix(".png"))
    print(render(results))


if __name__ == "__main__":
    main()
