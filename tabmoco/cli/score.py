"""`tabmoco score`: how strange every row is, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import Data, Device, IdColumn, Json, ModelFolder, Output, Overwrite, Quiet
from tabmoco.cli.rows import check_output, load_model, open_for, print_sent, send, wants_rows

if TYPE_CHECKING:
    import pyarrow as pa


@command("tabmoco score model flights.parquet --explain --out scores.csv")
def score(
    model: ModelFolder,
    data: Data,
    out: Output = None,
    fpr: Annotated[
        float | None, typer.Option(min=0, max=1, metavar="SHARE", help="Share of normal rows that may be flagged.")
    ] = None,
    fdr: Annotated[
        float | None,
        typer.Option(min=0, max=1, metavar="SHARE", help="Instead: share of normal rows among those flagged."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add the cells that make the strangest tenth of the rows strange.")
    ] = False,
    explain_all: Annotated[bool, typer.Option("--explain-all", help="The same for every row; slower.")] = False,
    top: Annotated[int, typer.Option(min=0, metavar="N", help="Rows to print, strangest first.")] = 10,
    id_column: IdColumn = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say how strange every row is, and why."""
    check_output(out, data, overwrite=overwrite)
    loaded = load_model(model, device)
    source = open_for(loaded, data, id_column)
    explained: bool | Literal["all"] = "all" if explain_all else explain
    fields = loaded.score_schema(source, explain=explained)
    from tabmoco.tables.glimpse import Strangest

    strangest = Strangest(top, fields)
    sent = send(
        loaded.iter_scores(source, fpr=fpr, fdr=fdr, explain=explained),
        fields,
        see=strangest.see,
        label="Scoring",
        total=source.n_rows,
        out=out,
        overwrite=overwrite,
        quiet=quiet,
    )
    if json:
        console.print_json({**sent, "n_anomalies": strangest.n_anomalies, "top": strangest.rows.to_pylist()})
    elif not quiet:
        if top and wants_rows(out):
            print_scores(strangest.rows)
        print_sent(sent, more=f"; anomalies: {strangest.n_anomalies:,}")


def print_scores(top: pa.Table) -> None:
    """The strangest rows, strangest first, with the cells behind each score if the table has them."""
    explained = "cells" in top.column_names
    name = top.column_names[0]
    table = console.table(f">{name}", ">score", ">p-value", "anomaly", ">nearest", *(["cells"] if explained else []))
    for row in top.to_pylist():
        cells = "\n".join(_cell(**cell) for cell in row["cells"] or []) if explained else None
        p_value = f"{row['p_value']:.4f}" if row["p_value"] >= 1e-4 else f"{row['p_value']:.1e}"
        is_anomaly = "yes" if row["is_anomaly"] else ""
        values = row[name], f"{row['anomaly_score']:.2f}", p_value, is_anomaly, row["nearest_row_id"]
        console.add_row(table, *values, *([cells] if explained else []))
    console.print_table(f"{top.num_rows:,} strangest rows", table)


def _cell(column: str, found: str, expected: str | None, share: float) -> str:
    if expected is None:
        instead = ""
    elif expected == found or expected.startswith(f"{found} ("):
        instead = ", as expected"
    else:
        instead = f", expected {console.short(expected)}"
    return f"{console.short(column)}: {console.short(found)}{instead} {share:.0%}"
