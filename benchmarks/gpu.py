"""What a GPU makes of tabmoco: first the CPU's numbers, then rows a second and the share of what it can multiply.

- Checks: `benchmarks.gpu_checks`.
- Ceiling: operations a second of a large matrix product.
- Training: rows a second of the loop as users run it, on a table that lies on the device, for three encoders and
  growing batches; and the operations that torch counts in a step's forward and backward pass, a second.
- Embedding: rows a second of the encoder on encoded rows.

    python -m benchmarks.gpu --out benchmarks/results/gpu
    python -m benchmarks.gpu --device cpu --sizes default --batches 256 --seconds 2 --matrix 1024
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu_checks import Check, checks
from benchmarks.results_file import footer, provenance, write_results
from benchmarks.speed import made_table
from benchmarks.speed_stages import Prepared, views
from tabmoco import PretrainConfig
from tabmoco.devices import resolve_device
from tabmoco.tables.source import open_table
from tabmoco.training.identity import uses_bfloat16

SIZES = {
    "default": (),
    "wide": ("encoder.d_block=2048", "encoder.n_blocks=6", "encoder.d_embedding=1024"),
    "transformer": ("encoder.backbone=ft_transformer", "encoder.d_token=64", "encoder.n_blocks=3"),
}
"""Settings of the encoders."""

BATCHES = (256, 4_096, 32_768)
N_COLUMNS = 30
N_BATCHES_IN_TABLE = 4

LEAST_OF_CEILING = 60.0
"""Per cent of the ceiling that training the wide encoder should reach."""

LEAST_ROWS = 5e6
"""Rows a second that training the default encoder should reach, on a large GPU."""


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    device = resolve_device(chosen.device)
    done: list[Check] = []
    for check in checks(device) if chosen.checks else ():
        print(f"{check.what}: {check.difference:.1e}, allowed {check.allowed:g}", file=sys.stderr)
        done.append(check)
    ceiling = {str(dtype): multiplied(device, dtype, chosen.matrix, chosen.seconds) for dtype in precisions(device)}
    runs = []
    for size in chosen.sizes:
        for batch_size in chosen.batches:
            runs.append({"encoder": size, "batch_size": batch_size, **rates(size, batch_size, device, chosen.seconds)})
            print(line(runs[-1]), file=sys.stderr)
    facts = provenance() | {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type}
    page = render(done, ceiling, runs, facts["device"]) + footer(facts)
    if chosen.out is not None:
        told = {"checks": [vars(check) | {"passed": check.passed} for check in done], "ceiling": ceiling, "runs": runs}
        write_results(chosen.out, {"provenance": facts, **told}, page)
    print(page)
    return int(not all(check.passed for check in done))


def precisions(device: torch.device) -> tuple[torch.dtype, ...]:
    """What the encoder may compute in there."""
    config = PretrainConfig()
    return (torch.float32, torch.bfloat16) if uses_bfloat16(config, device) else (torch.float32,)


def multiplied(device: torch.device, dtype: torch.dtype, width: int, seconds: float) -> float:
    """Operations a second of the product of two square matrices."""
    a, b = (torch.randn(width, width, device=device, dtype=dtype) for _ in range(2))
    return 2 * width**3 * repeats_per_second(lambda: a @ b, device, seconds)


def repeats_per_second(run: Callable[[], object], device: torch.device, seconds: float) -> float:
    """How often it runs a second, in about so many seconds, once it is warm."""
    for _ in range(3):
        run()
    n_times = max(1, round(seconds / max(_seconds(run, device, 1), 1e-6)))
    return n_times / _seconds(run, device, n_times)


def _seconds(run: Callable[[], object], device: torch.device, n_times: int) -> float:
    wait(device)
    start = time.perf_counter()
    for _ in range(n_times):
        run()
    wait(device)
    return time.perf_counter() - start


def wait(device: torch.device) -> None:
    """Until the device has done all it was told to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rates(size: str, batch_size: int, device: torch.device, seconds: float) -> dict[str, Any]:
    """Rows and operations a second of an encoder in training, and rows a second of embedding."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    config = PretrainConfig().override([*SIZES[size], f"optimize.batch_size={batch_size}"])
    source = open_table(made_table(N_BATCHES_IN_TABLE * batch_size, N_COLUMNS))
    prepared = Prepared.of(source, config, device)
    n_steps = 20

    def steps() -> None:
        prepared.train(prepared.pretext, n_steps)

    steps_per_second = n_steps * repeats_per_second(steps, device, seconds)
    n_operations = operations(prepared)
    prepared.pretext.eval()
    cells = prepared.data.cells[:batch_size]

    @torch.inference_mode()
    def embed() -> None:
        prepared.pretext.encoder(cells)

    return {
        "parameters": sum(p.numel() for p in prepared.pretext.encoder.parameters()),
        "precision": "bfloat16" if prepared.pretext.encoder.half_precision else "float32",
        "trained_rows_per_second": steps_per_second * batch_size,
        "trained_operations_per_second": steps_per_second * n_operations,
        "embedded_rows_per_second": batch_size * repeats_per_second(embed, device, seconds),
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }


def operations(prepared: Prepared) -> int:
    """Floating-point operations of a step's forward and backward pass, matrix products alone."""
    step = views(prepared, 0)
    with FlopCounterMode(display=False) as counter:
        prepared.pretext(step)["loss"].backward()
    prepared.pretext.zero_grad(set_to_none=True)
    return counter.get_total_flops()


def line(run: dict[str, Any]) -> str:
    """One run in words."""
    return (
        f"{run['encoder']}, batches of {run['batch_size']:,}: {run['trained_rows_per_second']:,.0f} rows/s trained, "
        f"{run['trained_operations_per_second'] / 1e12:.2f} TFLOP/s, {run['embedded_rows_per_second']:,.0f} embedded"
    )


def render(done: list[Check], ceiling: dict[str, float], runs: list[dict[str, Any]], device: str) -> str:
    """The page."""
    lines = [f"# {device}", ""]
    if done:
        failed = [check for check in done if not check.passed]
        lines += [
            f"{len(done) - len(failed)} of {len(done)} comparisons with the CPU are within their tolerance.",
            "",
            *(f"- **{one.what}: {one.difference:.1e}, allowed {one.allowed:g}**" for one in failed),
        ]
    products = ", ".join(f"{value / 1e12:.1f} TFLOP/s in {name.split('.')[-1]}" for name, value in ceiling.items())
    lines += [
        "",
        f"A large matrix product reaches {products}. Share: of that in the encoder's precision.",
        "",
        "| encoder | parameters | precision | batch | rows/s in training | TFLOP/s | share | rows/s embedded |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for run in runs:
        lines.append(
            f"| {run['encoder']} | {run['parameters']:,} | {run['precision']} | {run['batch_size']:,} "
            f"| {run['trained_rows_per_second']:,.0f} | {run['trained_operations_per_second'] / 1e12:.2f} "
            f"| {share(run, ceiling):.0f} % | {run['embedded_rows_per_second']:,.0f} |"
        )
    wide = [share(run, ceiling) for run in runs if run["encoder"] == "wide"]
    rows = [run["trained_rows_per_second"] for run in runs if run["encoder"] == "default"]
    if wide:
        met = "met" if max(wide) >= LEAST_OF_CEILING else "not met"
        lines += ["", f"Wide encoder: {max(wide):.0f} % of the ceiling, target {LEAST_OF_CEILING:.0f} %: {met}."]
    if rows:
        met = "met" if max(rows) >= LEAST_ROWS else "not met"
        lines += ["", f"Default encoder: {max(rows):,.0f} rows a second, target {LEAST_ROWS:,.0f}: {met}."]
    return "\n".join(lines) + "\n"


def share(run: dict[str, Any], ceiling: dict[str, float]) -> float:
    """Per cent of what a matrix product reaches in the same precision."""
    return 100 * run["trained_operations_per_second"] / ceiling[f"torch.{run['precision']}"]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="results without suffix; printed in any case")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--sizes", default=",".join(SIZES), help="encoders, comma-separated")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), help="rows of a batch, comma-separated")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long each rate is measured")
    parser.add_argument("--matrix", type=int, default=8_192, help="width of the matrices that are multiplied")
    parser.add_argument("--no-checks", dest="checks", action="store_false", help="measure at once")
    chosen = parser.parse_args(arguments)
    chosen.sizes, chosen.batches = chosen.sizes.split(","), [int(number) for number in chosen.batches.split(",")]
    if unknown := [size for size in chosen.sizes if size not in SIZES]:
        parser.error(f"--sizes must name some of {', '.join(SIZES)}, got {', '.join(unknown)}.")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
