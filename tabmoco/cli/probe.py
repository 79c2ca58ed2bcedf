"""`tabmoco probe`: what a model knows of a column that it never saw."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import Data, Device, Json, ModelFolder, Quiet
from tabmoco.cli.rows import load_model

if TYPE_CHECKING:
    from tabmoco.evaluation.probes import ProbeResult

FIGURES = {"auroc": "AUROC", "accuracy": "accuracy", "log_loss": "log loss", "rmse": "RMSE", "r2": "R²"}


@command("tabmoco probe model people.parquet --target income --seeds 3")
def probe(
    model: ModelFolder,
    data: Data,
    target: Annotated[str, typer.Option(metavar="COLUMN", help="Column to predict, which the model never saw.")],
    task: Annotated[
        str, typer.Option(metavar="auto|classification|regression", help="What the target is; told by its kind.")
    ] = "auto",
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Random splits to average over.")] = 3,
    labels: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Rows to learn from; by default 70 in 100.")
    ] = None,
    device: Device = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what a model knows of a column that it never saw."""
    loaded = load_model(model, device)
    from tabmoco.evaluation.probes import probe as run
    from tabmoco.tables.source import open_table

    found = run(loaded, open_table(data), target=target, task=cast(Any, task), seeds=seeds, n_labels=labels)
    if json:
        console.print_json(found.to_json())
    else:
        print_probe(found)


def print_probe(result: ProbeResult) -> None:
    """Figures of every probe on every input, mean ± standard deviation over the seeds."""
    table = console.table("input", "probe", *(f">{FIGURES[name]}" for name in result.names))
    for probe in result.figures:
        if table.row_count and probe.probe == result.figures[0].probe:
            table.add_section()
        told = [_with_spread(probe.mean(name), probe.spread(name)) for name in result.names]
        console.add_row(table, probe.input, probe.probe, *told)
    kind = f"{result.n_classes:,} classes" if result.n_classes else "numbers"
    console.print_table(
        f"What rows tell of {console.short(result.target)}: {kind}, learned from {result.n_learned:,} rows, tested on "
        f"{result.n_tested:,}",
        table,
    )
    if result.n_left_out:
        console.print_line(f"{result.n_left_out:,} rows without a {console.short(result.target)} were left out.")


def _with_spread(mean: float, spread: float) -> str:
    if math.isnan(mean):
        return "-"
    return f"{mean:.4g}" if math.isnan(spread) else f"{mean:.4g} ± {spread:.2g}"
