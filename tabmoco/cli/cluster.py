"""`tabmoco cluster`: groups of alike rows, and what sets each of them apart."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import Data, Device, IdColumn, Json, ModelFolder, Output, Overwrite, Quiet
from tabmoco.cli.rows import check_output, load_model, open_for
from tabmoco.errors import ConfigError

if TYPE_CHECKING:
    from tabmoco.evaluation.clusters import Clusters


@command("tabmoco cluster model flights.parquet --out clusters.csv")
def cluster(
    model: ModelFolder,
    data: Data,
    k: Annotated[
        str, typer.Option("--k", "-k", metavar="auto|N", help="Number of clusters; chosen from the table.")
    ] = "auto",
    method: Annotated[
        str, typer.Option(metavar="NAME", help="kmeans, or hdbscan, which leaves out rows that lie alone.")
    ] = "kmeans",
    min_size: Annotated[
        int | None,
        typer.Option(metavar="N", show_default=False, help="Fewest rows of a cluster of hdbscan; 1 % of the rows."),
    ] = None,
    out: Output = None,
    top: Annotated[int, typer.Option(min=0, metavar="N", help="Clusters to print, the largest first.")] = 20,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Where the search for clusters starts.")] = 0,
    id_column: IdColumn = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Group alike rows, and tell by which columns each group differs from all other rows."""
    number = parse_k(k)
    check_output(out, data, overwrite=overwrite)
    loaded = load_model(model, device)
    source = open_for(loaded, data, id_column)
    from tabmoco.evaluation.clusters import cluster as group

    start = time.perf_counter()
    with console.progress("Reading", source.n_rows, unit="rows", quiet=quiet) as advance:
        found = group(
            loaded,
            source,
            k=number,
            method=method,  # type: ignore[arg-type]
            min_size=min_size,
            seed=seed,
            progress=advance,
        )
    if out is not None:
        from tabmoco.tables.sink import write_table

        told = found.table()
        write_table(told.to_batches(), out, schema=told.schema, overwrite=overwrite)
    seconds = round(time.perf_counter() - start, 3)
    if json:
        console.print_json({"out": None if out is None else str(out), "seconds": seconds, **found.to_json()})
    elif not quiet:
        print_clusters(found, top)
        print_found(found, out, seconds)


def parse_k(text: str) -> Any:
    """`auto`, or a whole number."""
    if text == "auto":
        return text
    if not text.isdecimal():
        raise ConfigError(f"--k must be auto or a whole number from 2 on, such as 8, got {text!r}.")
    return int(text)


def print_clusters(found: Clusters, top: int) -> None:
    """Sizes, some rows, and what sets each cluster apart, a line for each column."""
    table = console.table(">cluster", ">rows", ">share", "typical rows", "what sets it apart")
    for one in found.clusters[:top]:
        told = [trait.told for trait in one.traits] or [one.description]
        console.add_row(
            table,
            one.number,
            f"{one.n_rows:,}",
            f"{100 * one.share:.1f} %",
            "\n".join(console.short(name, 20) for name in one.typical),
            "\n".join(console.short(line, 90) for line in told),
        )
    if table.row_count:
        console.print_table("Clusters", table)
    n_left = len(found.clusters) - top
    if n_left > 0:
        console.print_line(f"{n_left:,} more clusters are not shown; raise --top.")


def print_found(found: Clusters, out: Path | None, seconds: float) -> None:
    """What the clusters are worth, and where they were written."""
    console.print_line(found.verdict)
    if out is not None:
        console.print_line(f"Wrote {out}: {len(found.labels):,} rows in {seconds:,.1f} s.")
