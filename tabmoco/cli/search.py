"""`tabmoco search`: the rows most similar to each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import (
    Data,
    Device,
    IdColumn,
    Json,
    ModelFolder,
    Output,
    Overwrite,
    Quiet,
    SameRows,
    parse_positions,
)
from tabmoco.cli.rows import check_output, load_model, open_for, print_sent, send, wants_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from tabmoco.model import RowModel
    from tabmoco.tables.source import TableSource

N_QUERIES_SHOWN = 5
"""Rows whose neighbours are printed."""


@command("tabmoco search model flights.parquet --rows 0,17 --k 5")
def search(
    model: ModelFolder,
    data: Data,
    k: Annotated[int, typer.Option("--k", "-k", min=1, metavar="N", help="Similar rows to find for each row.")] = 10,
    rows: Annotated[
        list[str] | None, typer.Option(metavar="I,J", help="Rows to search for, by position from 0; all by default.")
    ] = None,
    out: Output = None,
    same_rows: SameRows = None,
    id_column: IdColumn = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the rows most similar to each row."""
    positions = parse_positions(rows)
    check_output(out, data, overwrite=overwrite)
    loaded = load_model(model, device)
    source = open_for(loaded, data, id_column)
    fields = loaded.neighbour_schema(source)
    n_queries = source.n_rows if positions is None else len(positions)
    from tabmoco.tables.glimpse import FirstQueries

    first = FirstQueries(N_QUERIES_SHOWN, fields)
    sent = send(
        loaded.iter_neighbours(source, k=k, rows=positions, same_rows=_same_rows(loaded, source, same_rows)),
        fields,
        see=first.see,
        label="Searching",
        total=None if n_queries is None else n_queries * k,
        unit="neighbours",
        out=out,
        overwrite=overwrite,
        quiet=quiet,
    )
    if json:
        console.print_json({**sent, "first": first.rows.to_pylist()})
    elif not quiet:
        if wants_rows(out):
            print_neighbours(first.rows)
        print_sent(sent, unit="neighbours")


def _same_rows(model: RowModel, source: TableSource, told: bool | None) -> bool:
    """Whether no row may be compared with itself; said aloud where nobody told."""
    if told is not None:
        return told
    if not model.is_training_table(source):
        return False
    from tabmoco.tables.notices import warn

    text = "these are the rows the model learned from, so each is compared with the others only."
    warn(text)
    return True


def print_neighbours(first: pa.Table) -> None:
    """Some rows, each with the rows most similar to it."""
    name = first.column_names[0]
    table = console.table(f">{name}", ">rank", ">similar row", ">similarity")
    for row in first.to_pylist():
        if row["rank"] == 1 and table.row_count:
            table.add_section()
        query = row[name] if row["rank"] == 1 else ""
        console.add_row(table, query, row["rank"], row["neighbour_row_id"], f"{row['similarity']:.4f}")
    console.print_table("Most similar rows", table)
