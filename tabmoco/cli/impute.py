"""`tabmoco impute`: missing cells filled, all others as they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import Data, Device, Json, ModelFolder, Overwrite, Quiet
from tabmoco.cli.rows import check_output, load_model, print_sent, send

if TYPE_CHECKING:
    from tabmoco.imputation.filling import Filling


@command("tabmoco impute model flights.parquet --out filled.parquet")
def impute(
    model: ModelFolder,
    data: Data,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Result: .parquet, .csv, .arrow or .feather.")],
    uncertainty: Annotated[
        bool,
        typer.Option(
            "--uncertainty",
            help="Add NAME_low and NAME_high, between which nine in ten numbers lie, or NAME_confidence.",
        ),
    ] = False,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fill missing cells with what the rest of their rows and similar rows make likely."""
    check_output(out, data, overwrite=overwrite)
    loaded = load_model(model, device)
    from tabmoco.tables.source import open_table

    filling = loaded.filling(open_table(data), uncertainty=uncertainty)
    sent = send(
        filling.batches(),
        filling.schema,
        label="Filling",
        total=filling.source.n_rows,
        out=out,
        overwrite=overwrite,
        quiet=quiet,
    )
    if json:
        console.print_json({**sent, "filled": filling.n_filled, "left": filling.n_left})
    elif not quiet:
        print_filled(filling)
        print_sent(sent, more=f"; cells filled: {sum(filling.n_filled.values()):,}")


def print_filled(filling: Filling) -> None:
    """Per column with gaps, how many were filled and how many stay."""
    table = console.table("column", ">filled", ">left")
    for name in filling.source.arrow_schema.names:
        counts: list[Any] = [filling.n_filled.get(name, 0), filling.n_left.get(name, 0)]
        if any(counts):
            console.add_row(table, console.short(name), *(f"{count:,}" if count else "" for count in counts))
    if table.row_count:
        console.print_table("Gaps", table)
