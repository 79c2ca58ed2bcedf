"""`tabmoco report`: one page that tells all a model knows, for the owner of a table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import Device, IdColumn, Json, ModelFolder, Overwrite, Quiet
from tabmoco.cli.rows import load_model, open_for
from tabmoco.errors import ConfigError
from tabmoco.report import MAX_ROWS

if TYPE_CHECKING:
    from tabmoco.report.make import Report


@command("tabmoco report model flights.parquet --out report.html")
def report(
    model: ModelFolder,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATA]",
            show_default=False,
            help="Rows to report on: Parquet, CSV or Arrow. Without any, only what the model learned is told.",
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page: .html.")],
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD", help="Compare with this table, not with what the model learned from. Repeatable."),
    ] = None,
    max_rows: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Rows to score, map, cluster and search; of more so many are drawn."),
    ] = MAX_ROWS,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Which rows are drawn, and where clusters start.")] = 0,
    id_column: IdColumn = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write one self-contained page: columns, training, strange rows, duplicates, clusters, calibration and drift."""
    if against and not data:
        raise ConfigError("--against needs DATA to compare with it, got none; give a table to report on.")
    from tabmoco.report.files import check_page
    from tabmoco.report.make import make_report, n_read, require_jinja

    require_jinja()
    check_page(out, overwrite=overwrite)
    loaded = load_model(model, device)
    source = open_for(loaded, data, id_column) if data else None
    other = open_for(loaded, against, None) if against else None
    start = time.perf_counter()
    total = 0 if source is None else n_read(source.n_rows, 0 if other is None else other.n_rows, max_rows)
    with console.progress("Reading", total, unit="rows", quiet=quiet) as advance:
        made = make_report(loaded, source, against=other, max_rows=max_rows, seed=seed, progress=advance)
    n_bytes = made.write(out, overwrite=overwrite)
    seconds = round(time.perf_counter() - start, 3)
    if json:
        console.print_json({"out": str(out), "n_bytes": n_bytes, "seconds": seconds, **made.to_json()})
    elif not quiet:
        print_report(made, out, n_bytes, seconds)


def print_report(made: Report, out: Path, n_bytes: int, seconds: float) -> None:
    """What the page tells, in a few lines, and where it is."""
    console.print_line(made.record.get("verdict", ""))
    if made.n_anomalies is not None:
        console.print_line(f"{made.n_anomalies:,} of {made.n_drawn:,} rows are strange.")
    if made.duplicates is not None:
        console.print_line(f"{made.duplicates.n_repeated:,} rows repeat another.")
    if made.clusters is not None:
        console.print_line(made.clusters.verdict)
    if made.drift is not None:
        console.print_line(made.drift.verdict)
    if made.n_drawn < made.n_rows:
        console.print_line(f"Of {made.n_rows:,} rows {made.n_drawn:,} were drawn at random; --max-rows changes that.")
    console.print_line(f"Wrote {out}: {n_bytes / 1e6:.2f} MB in {seconds:,.1f} s.")
