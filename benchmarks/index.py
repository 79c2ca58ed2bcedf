"""What an index of many rows finds, and how fast: tabmoco's own choice against looking at all rows.

`clustered` rows lie in clusters of a few dimensions each, as embeddings of tables do; `noise` is uniform, in which no
part of the rows can be left out without losing neighbours. Queries are further rows of the same kind, searched together
on one thread. `exhaustive` is tabmoco's search of all rows, `FAISS flat` that of FAISS. Recall is the share of the ten
nearest rows that are found.

    python -m benchmarks.index --out benchmarks/results/index --rows 100000,1000000
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import faiss
import numpy as np
import torch
from jaxtyping import Float

from benchmarks.results_file import footer, provenance, write_results
from tabmoco.neighbors.index import RECALL, RowIndex

K = 10
N_CLUSTERS = 500
D_CLUSTER = 10
KINDS = ("clustered", "noise")

TIMES = 10.0
"""How many times as fast as FAISS's flat index tabmoco's should be at a million clustered rows."""


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    runs = []
    for n_rows in chosen.rows:
        for kind in chosen.kinds:
            runs.append({"rows": n_rows, "kind": kind, **measure(kind, n_rows, chosen.width, chosen.queries)})
            print(line(runs[-1]), file=sys.stderr)
    facts = provenance()
    page = render(runs, width=chosen.width, n_queries=chosen.queries) + footer(facts)
    if chosen.out is not None:
        write_results(chosen.out, {"provenance": facts, "width": chosen.width, "runs": runs}, page)
    print(page)
    return 0


def draw(kind: str, n_rows: int, width: int) -> Float[np.ndarray, "n d"]:
    """Rows of one kind, always the same."""
    random = np.random.default_rng(0)
    if kind == "noise":
        return random.random((n_rows, width), dtype=np.float32)
    centres = random.normal(size=(N_CLUSTERS, width)).astype(np.float32)
    directions = random.normal(scale=0.3, size=(N_CLUSTERS, D_CLUSTER, width)).astype(np.float32)
    member, place = random.integers(N_CLUSTERS, size=n_rows), random.normal(size=(n_rows, D_CLUSTER))
    vectors = np.empty((n_rows, width), dtype=np.float32)
    for cluster in range(N_CLUSTERS):
        mine = member == cluster
        vectors[mine] = centres[cluster] + place[mine].astype(np.float32) @ directions[cluster]
    return vectors


def measure(kind: str, n_rows: int, width: int, n_queries: int) -> dict[str, Any]:
    """CPU seconds to build, queries a second of each way, and recall."""
    vectors = draw(kind, n_rows + n_queries, width)
    vectors, queries = vectors[:n_rows], vectors[n_rows:]
    flat = faiss.IndexFlatL2(width)
    flat.add(vectors)
    exhaustive = RowIndex(vectors, np.arange(n_rows))
    start = process_time()
    index = RowIndex.build(vectors, np.arange(n_rows))
    seconds = process_time() - start
    exact = flat.search(queries, K)[1]
    found = index.search(queries, K)[1]
    hits = [len(np.intersect1d(a, b)) for a, b in zip(exact, found, strict=True)]
    return {
        "chosen": "exhaustive" if index.centroids is None else f"{index.n_probes} of {len(index.centroids)} lists",
        "build_seconds": seconds,
        "recall": float(np.mean(hits)) / K,
        "own": n_queries / _fastest(lambda: index.search(queries, K)),
        "exhaustive": n_queries / _fastest(lambda: exhaustive.search(queries, K)),
        "flat": n_queries / _fastest(lambda: flat.search(queries, K)),
    }


def _fastest(run: Callable[[], object], repeats: int = 3) -> float:
    """CPU seconds of the quickest of a few runs."""
    seconds = []
    for _ in range(repeats):
        start = process_time()
        run()
        seconds.append(process_time() - start)
    return min(seconds)


def line(run: dict[str, Any]) -> str:
    rates = [f"{run[name]:,.0f}" for name in ("own", "exhaustive", "flat")]
    found = [f"{run['build_seconds']:,.1f}", f"{run['recall']:.4f}", *rates, f"{run['own'] / run['flat']:.1f}"]
    return " | ".join([f"| {run['rows']:,} {run['kind']}", run["chosen"], *found]) + " |"


def render(runs: Sequence[dict[str, Any]], *, width: int, n_queries: int) -> str:
    """A line for each size and kind, and whether the targets are met."""
    low = min(run["recall"] for run in runs)
    large = [run["own"] / run["flat"] for run in runs if run["rows"] >= 1_000_000 and run["kind"] == "clustered"]
    verdict = f"Recall is at least {RECALL:g}: {'met' if low >= RECALL else 'not met'}."
    if large:
        verdict += (
            f" {TIMES:.0f} times FAISS's flat index at a million clustered rows: "
            f"{'met' if min(large) >= TIMES else 'not met'}."
        )
    return "\n".join(
        [
            "# Index",
            "",
            f"Vectors of {width} numbers, {n_queries:,} queries for {K} neighbours, CPU time of one thread.",
            "",
            "| rows | tabmoco searches | build, s | recall | queries/s | exhaustive | FAISS flat | times flat |",
            "|---|---|---:|---:|---:|---:|---:|---:|",
            *map(line, runs),
            "",
            verdict,
            "",
        ]
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.index", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="results without suffix; printed in any case")
    parser.add_argument("--rows", default="100000,1000000", help="numbers of rows")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--queries", type=int, default=500)
    chosen = parser.parse_args(arguments)
    chosen.rows, chosen.kinds = [int(number) for number in chosen.rows.split(",")], chosen.kinds.split(",")
    if unknown := [kind for kind in chosen.kinds if kind not in KINDS]:
        parser.error(f"--kinds must name some of {', '.join(KINDS)}, got {', '.join(unknown)}.")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
