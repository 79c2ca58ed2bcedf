"""How many requests a service answers, how fast, and whether each answer is right.

A model of a made table is served by `tabmoco serve` in a process of its own; clients in this process, each with one
connection, ask as fast as they are answered. Every score is compared with what the model says of the row by itself.

    python -m benchmarks.serve --out benchmarks/results/serve
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from benchmarks.results_file import footer, provenance, write_results
from tabmoco import OptimizeConfig, PretrainConfig, RowModel, pretrain

N_ROWS = 5_000
N_ASKED = 400
"""Rows that clients ask about, in turn."""

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"

LOADS = (
    ("/score", 1, JSON),
    ("/explain", 1, JSON),
    ("/search?k=10", 1, JSON),
    ("/embed", 1, JSON),
    ("/score", 100, ARROW),
)
"""Question, rows of a request, and its form."""

TOLERANCE = 1e-4
"""Relative, of scores: rows beside a row change the rounding of 32-bit sums."""


@dataclass(frozen=True)
class Request:
    content: bytes
    rows: slice


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    table = make_table(N_ROWS + N_ASKED)
    model = pretrain(table.slice(0, N_ROWS), PretrainConfig(optimize=OptimizeConfig(steps=chosen.steps)))
    asked = table.slice(N_ROWS)
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        with served(Path(folder) / "model") as url:
            for path, n_rows, form in LOADS:
                requests, expected = make_requests(model, asked, path, n_rows, form)
                for n_clients in chosen.clients:
                    run = asyncio.run(load(url, requests, expected, n_clients, chosen.seconds, path, form))
                    print(
                        f"{path} {n_rows} rows, {n_clients} clients: {run['requests_per_second']:,.0f} requests/s, "
                        f"p50 {run['p50_ms']:.1f} ms, p99 {run['p99_ms']:.1f} ms, wrong {run['n_wrong']}"
                    )
                    runs.append({"route": path, "rows": n_rows, "form": form, "clients": n_clients, **run})
            resident = figure(url, "process_resident_memory_bytes")
    facts = provenance("fastapi", "uvicorn")
    told = {"provenance": facts, "resident_bytes": resident, "runs": runs}
    write_results(chosen.out, told, render(runs, resident, facts))
    return int(any(run["n_wrong"] or run["n_refused"] for run in runs))


def make_table(n_rows: int) -> pa.Table:
    """Twelve columns of numbers, categories and times that hang together through a hidden number."""
    random = np.random.default_rng(0)
    hidden = random.normal(size=n_rows)
    columns: dict[str, Any] = {
        f"number_{place}": hidden * random.normal() + 0.3 * random.normal(size=n_rows) for place in range(7)
    }
    for place in range(3):
        level = (np.abs(hidden) * 4 + random.integers(0, 3, n_rows)).astype(int)
        columns[f"category_{place}"] = np.char.add("level ", level.astype(str))
    columns["flag"] = hidden > 0
    columns["time"] = np.datetime64("2024-01-01", "ms") + random.integers(0, 10**10, n_rows).astype("timedelta64[ms]")
    return pa.table(columns)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a service of its own process."""
    command = [sys.executable, "-m", "tabmoco", "serve", str(folder), "--port", "0", "--max-concurrent", "256"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+?:\d+", process.stdout.readline())
        if found is None:
            raise SystemExit("the service did not start.")
        yield found[0]
    finally:
        process.terminate()
        process.wait()


def make_requests(
    model: RowModel, asked: pa.Table, path: str, n_rows: int, form: str
) -> tuple[list[Request], np.ndarray | None]:
    """Bodies that take turns, and the score of every row where scores are asked for."""
    requests = []
    for first in range(0, len(asked) - n_rows + 1, n_rows):
        some = asked.slice(first, n_rows)
        if form == JSON:
            content = json.dumps({"rows": some.to_pylist()}, default=lambda value: value.isoformat()).encode()
        else:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, some.schema) as writer:
                writer.write_table(some)
            content = sink.getvalue().to_pybytes()
        requests.append(Request(content, slice(first, first + n_rows)))
    is_scored = path.startswith(("/score", "/explain"))
    return requests, model.score(asked)["anomaly_score"].to_numpy() if is_scored else None


async def load(
    url: str,
    requests: Sequence[Request],
    expected: np.ndarray | None,
    n_clients: int,
    seconds: float,
    path: str,
    form: str,
) -> dict[str, Any]:
    """Ask for some seconds, from many connections at once."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    waited: list[float] = []
    n_refused = n_wrong = n_rows = 0
    calls = figure(url, "tabmoco_call_requests_sum"), figure(url, "tabmoco_call_requests_count")
    start = time.perf_counter()

    async def ask(client: int) -> None:
        nonlocal n_refused, n_wrong, n_rows
        reader, writer = await asyncio.open_connection(host, port, limit=2**26)
        turn = client
        while time.perf_counter() - start < seconds:
            request = requests[turn % len(requests)]
            turn += 1
            sent = time.perf_counter()
            head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: {form}\r\n"
            writer.write(f"{head}content-length: {len(request.content)}\r\n\r\n".encode() + request.content)
            status, content = await _answer(reader)
            waited.append(time.perf_counter() - sent)
            if status != 200:
                n_refused += 1
                continue
            n_rows += request.rows.stop - request.rows.start
            n_wrong += expected is not None and not _is_right(content, form, expected[request.rows])
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(ask(client) for client in range(n_clients)))
    took = time.perf_counter() - start
    n_joined = figure(url, "tabmoco_call_requests_sum") - calls[0]
    n_calls = figure(url, "tabmoco_call_requests_count") - calls[1]
    p50, p99 = np.quantile(waited, [0.5, 0.99]) * 1e3
    return {
        "requests_per_second": len(waited) / took,
        "rows_per_second": n_rows / took,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "requests_per_call": n_joined / max(1, n_calls),
        "n_requests": len(waited),
        "n_refused": n_refused,
        "n_wrong": n_wrong,
    }


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return int(head.split()[1]), await reader.readexactly(int(length[1]) if length else 0)


def _is_right(content: bytes, form: str, expected: np.ndarray) -> bool:
    if form == JSON:
        found = np.array([row["anomaly_score"] for row in json.loads(content)["rows"]])
    else:
        with pa.ipc.open_stream(content) as reader:
            found = reader.read_all()["anomaly_score"].to_numpy()
    return found.shape == expected.shape and bool(np.allclose(found, expected, rtol=TOLERANCE, atol=1e-6))


def figure(url: str, name: str) -> float:
    """A figure of `/metrics`."""
    from urllib.request import urlopen

    found = re.search(rf"^{name} (\S+)$", urlopen(f"{url}/metrics").read().decode(), re.MULTILINE)
    return float(found[1]) if found else float("nan")


def render(runs: Sequence[dict[str, Any]], resident: float, facts: dict[str, Any]) -> str:
    lines = [
        "# A service under load",
        "",
        f"A table of 12 columns, {N_ROWS:,} reference rows; the clients take their share of the same machine. Joined: "
        "mean number of requests in one call of the model. An answer is wrong if a score differs from what the model "
        "says of that row by itself.",
        "",
        "| question | rows | form | clients | requests/s | rows/s | p50 ms | p99 ms | joined | refused | wrong |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for run in runs:
        form = "JSON" if run["form"] == JSON else "Arrow"
        checked = f"{run['n_wrong']}" if run["route"].startswith(("/score", "/explain")) else "-"
        lines.append(
            f"| {run['route']} | {run['rows']} | {form} | {run['clients']} | {run['requests_per_second']:,.0f} | "
            f"{run['rows_per_second']:,.0f} | {run['p50_ms']:.1f} | {run['p99_ms']:.1f} | "
            f"{run['requests_per_call']:.1f} | {run['n_refused']} | {checked} |"
        )
    n_wrong = sum(run["n_wrong"] for run in runs)
    n_requests = sum(run["n_requests"] for run in runs)
    lines += [
        "",
        f"{n_requests:,} requests, {n_wrong} wrong answers; {resident / 2**20:,.0f} MiB resident at the end.",
        "",
    ]
    return "\n".join(lines) + footer(facts)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/serve"), help="results without suffix")
    parser.add_argument("--clients", default="1,8,32", help="numbers of clients, comma-separated")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of each load")
    parser.add_argument("--steps", type=int, default=200, help="steps of training")
    chosen = parser.parse_args(arguments)
    chosen.clients = [int(word) for word in chosen.clients.split(",")]
    return chosen


if __name__ == "__main__":
    raise SystemExit(main())
