"""`tabmoco duplicates`: rows that stand in a table more than once, or in two tables."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import Data, Device, IdColumn, Json, ModelFolder, Output, Overwrite, Quiet
from tabmoco.cli.rows import check_output, load_model, open_for, wants_rows
from tabmoco.errors import ConfigError

if TYPE_CHECKING:
    from tabmoco.duplicates.groups import Duplicates

N_PAIRS_SHOWN, N_CELLS_SHOWN = 3, 6
"""Pairs of a group and cells of a pair that are printed."""


@command("tabmoco duplicates model flights.parquet --out pairs.csv")
def duplicates(
    model: ModelFolder,
    data: Data,
    threshold: Annotated[
        str, typer.Option(metavar="auto|0..1", help="Lowest similarity of duplicates; chosen from the table.")
    ] = "auto",
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="OTHER", help="Find rows that DATA shares with this table, not with itself. Repeatable."),
    ] = None,
    k: Annotated[
        int, typer.Option("--k", "-k", min=1, metavar="N", help="Neighbours that each row is compared with.")
    ] = 10,
    out: Output = None,
    top: Annotated[int, typer.Option(min=0, metavar="N", help="Groups to print, the largest first.")] = 10,
    id_column: IdColumn = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find exact and near duplicates: typing errors, missing or swapped cells, slipped units."""
    lowest = parse_threshold(threshold)
    check_output(out, [*data, *(against or [])], overwrite=overwrite)
    loaded = load_model(model, device)
    source = open_for(loaded, data, id_column)
    other = open_for(loaded, against, id_column) if against else None
    start = time.perf_counter()
    n_rows = source.n_rows + (0 if other is None else other.n_rows)
    with console.progress("Reading", n_rows, unit="rows", quiet=quiet) as advance:
        found = loaded.duplicates(source, against=other, threshold=lowest, k=k, progress=advance)
    if out is not None:
        from tabmoco.tables.sink import write_table

        write_table(found.iter_pairs(), out, schema=found.pair_schema, overwrite=overwrite)
    seconds = round(time.perf_counter() - start, 3)
    if json:
        console.print_json(summary(found, out, seconds, top))
    elif not quiet:
        if wants_rows(out):
            print_groups(found, top)
        print_found(found, out, seconds)


def parse_threshold(text: str) -> Any:
    """`auto`, or a number."""
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--threshold must be auto or a number from 0 to 1, such as 0.8, got {text!r}.") from None


def summary(found: Duplicates, out: Path | None, seconds: float, top: int) -> dict[str, Any]:
    """What `--json` prints: figures, and some pairs of the first groups."""
    return {
        "out": None if out is None else str(out),
        "n_rows": list(found.n_rows),
        "threshold": found.threshold,
        "n_groups": len(found.groups),
        "n_duplicates": len(found.repeated),
        "n_pairs": found.n_pairs,
        "seconds": seconds,
        "first": found.examples(top, N_PAIRS_SHOWN).to_pylist(),
    }


def print_groups(found: Duplicates, top: int) -> None:
    """Some pairs of the first groups, with the cells that differ side by side."""
    sizes = found.groups["n_rows"].to_pylist()
    row, other = found.pair_schema.names[1:3]
    table = console.table(">group", ">rows", f">{row}", f">{other}", ">similarity", "column", "value", "other value")
    told = None
    for pair in found.examples(top, N_PAIRS_SHOWN).to_pylist():
        group = pair["group"]
        if table.row_count:
            table.add_section()
        cells = pair["cells"][:N_CELLS_SHOWN]
        lines = (
            [[console.short(cell[part]) for cell in cells] for part in ("column", "value", "other_value")]
            if cells
            else [["(exact copies)"], [], []]
        )
        if len(pair["cells"]) > N_CELLS_SHOWN:
            lines[0].append(f"and {len(pair['cells']) - N_CELLS_SHOWN} more")
        first = [group + 1, f"{sizes[group]:,}"] if group != told else ["", ""]
        told = group
        console.add_row(
            table, *first, pair[row], pair[other], f"{pair['similarity']:.3f}", *("\n".join(part) for part in lines)
        )
    if table.row_count:
        console.print_table("Duplicates", table)


def print_found(found: Duplicates, out: Path | None, seconds: float) -> None:
    """How many duplicates there are, at which threshold, and where they were written."""
    n_groups, n_repeated = len(found.groups), len(found.repeated)
    chosen = ", chosen from the table" if found.threshold == found.auto else ""
    if found.across:
        what = f"{n_repeated:,} of {found.n_rows[0]:,} rows are also among the {found.n_rows[1]:,} of the other table"
    else:
        what = f"{n_repeated:,} of {found.n_rows[0]:,} rows repeat another, in {n_groups:,} groups"
    console.print_line(f"{what} (similarity from {found.threshold:.3f} on{chosen}).")
    if out is not None:
        console.print_line(f"Wrote {out}: {found.n_pairs:,} pairs in {seconds:,.1f} s.")
