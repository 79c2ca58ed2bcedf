"""`tabmoco score`: how strange every row is, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.engine import ROWS_OUT, Address, Engine, Workers, check_place, chosen, send_by_ray
from tabmoco.cli.options import Data, Device, IdColumn, Json, ModelFolder, Overwrite, Quiet
from tabmoco.cli.rows import load_model, open_for, print_sent, send, wants_rows
from tabmoco.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

LABEL = "Scoring"


@command("tabmoco score model flights.parquet --explain --out scores.csv")
def score(
    model: ModelFolder,
    data: Data,
    out: Annotated[str | None, typer.Option(metavar="FILE", help=ROWS_OUT)] = None,
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
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say how strange every row is, and why."""
    cluster = chosen(engine, address, workers)
    check_place(cluster, out, data, overwrite=overwrite)
    if cluster is not None and fdr is not None:
        raise ConfigError(
            f"--fdr looks at all p-values at once, which --engine ray does not, got --fdr {fdr:g}; use --fpr, or "
            "choose by the p_value column afterwards."
        )
    file = None if out is None else Path(out)
    loaded = load_model(model, device if cluster is None else "cpu")
    source = open_for(loaded, data, id_column)
    explained: bool | Literal["all"] = "all" if explain_all else explain
    if cluster is None:
        fields = loaded.score_schema(source, explain=explained)
        from tabmoco.tables.glimpse import Strangest

        strangest = Strangest(top, fields)
        sent = send(
            loaded.iter_scores(source, fpr=fpr, fdr=fdr, explain=explained),
            fields,
            see=strangest.see,
            label=LABEL,
            total=source.n_rows,
            out=file,
            overwrite=overwrite,
            quiet=quiet,
        )
        rows, n_anomalies = strangest.rows, strangest.n_anomalies
    else:
        from tabmoco.ray_jobs.rows import Score

        assert out is not None, "check_place comes first"
        task = Score(fpr=fpr, explain=explained, n_shown=top)
        outcome, sent = send_by_ray(
            cluster, task, model, loaded, source,
            label=LABEL, out=out, device=device, overwrite=overwrite, quiet=quiet,
        )  # fmt: skip
        rows, n_anomalies = outcome.strangest, outcome.n_anomalies
    if json:
        console.print_json({**sent, "n_anomalies": n_anomalies, "top": rows.to_pylist()})
    elif not quiet:
        if top and wants_rows(file):
            print_scores(rows)
        print_sent(sent, more=f"; anomalies: {n_anomalies:,}")


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
