"""`tabmoco drift`: whether a new table still looks like the old one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import Data, Device, Json, ModelFolder, Output, Overwrite, Quiet, parse_names
from tabmoco.cli.rows import check_output, load_model, open_for

if TYPE_CHECKING:
    from tabmoco.evaluation.drift_result import Drift

DRIFT_FOUND = 1
"""Exit code where drift is found and was to be told so."""


@command("tabmoco drift model october.parquet --fail-on-drift")
def drift(
    model: ModelFolder,
    data: Data,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD", help="Compare with this table, not with what the model learned from. Repeatable."),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Columns that are meant to differ, such as the month.")
    ] = None,
    alpha: Annotated[
        float, typer.Option(metavar="0..1", help="Probability of a false alarm, all tests together.")
    ] = 0.01,
    min_effect: Annotated[
        float, typer.Option(metavar="0..1", help="Smallest share of the cells or rows that must have changed.")
    ] = 0.05,
    fail_on_drift: Annotated[
        bool, typer.Option("--fail-on-drift", help="Exit with 1 if there is drift (0: none, 2: an error).")
    ] = False,
    out: Output = None,
    top: Annotated[int, typer.Option(min=0, metavar="N", help="Columns to print that did not move.")] = 10,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Which rows are drawn, and the tests' own chance.")] = 0,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell whether a table still looks like the rows learned from: which columns moved and how, and whole rows."""
    check_output(out, [*data, *(against or [])], overwrite=overwrite)
    loaded = load_model(model, device)
    source = open_for(loaded, data, None)
    other = open_for(loaded, against, None) if against else None
    from tabmoco.evaluation.drift import drift as compare

    start = time.perf_counter()
    n_rows = source.n_rows + (0 if other is None else other.n_rows)
    with console.progress("Reading", n_rows, unit="rows", quiet=quiet) as advance:
        found = compare(
            loaded,
            source,
            against=other,
            ignore=parse_names(ignore) or [],
            alpha=alpha,
            min_effect=min_effect,
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
        print_drift(found, top)
        if out is not None:
            console.print_line(f"Wrote {out}: {len(found.columns):,} columns in {seconds:,.1f} s.")
    if fail_on_drift and found.is_drift:
        raise typer.Exit(DRIFT_FOUND)


def print_drift(found: Drift, top: int) -> None:
    """Columns, those that moved first; whole rows; and the verdict."""
    from tabmoco.evaluation.drift_result import told_p

    table = console.table("column", "kind", "", ">effect", ">p", "change")
    n_moved = len(found.moved)
    for column in found.columns[: n_moved + top]:
        told = "-" if column.p_value is None else told_p(column.p_value).removeprefix("p ").removeprefix("= ")
        mark = "moved" if column.moved else "ignored" if column.ignored else ""
        change = found.change(column).removesuffix("ignored").removesuffix("; ")
        console.add_row(table, console.short(column.name), column.kind, mark, f"{column.effect:.2f}", told, change)
    for finding in found.rows:
        told = told_p(finding.adjusted).removeprefix("p ").removeprefix("= ") if finding.counts else "not counted"
        mark = "moved" if found.is_move(finding) else ""
        console.add_row(table, "(whole rows)", finding.name, mark, f"{finding.effect:.2f}", told, finding.told)
    sampled = f" ({found.n_sampled:,} of them drawn)" if found.n_sampled < found.n_rows else ""
    old = f" ({found.n_old_sampled:,} of them at hand)" if found.n_old_sampled < found.n_old_rows else ""
    console.print_table(
        f"{found.n_rows:,} rows{sampled} compared with {console.short(found.compared_with)}: "
        f"{found.n_old_rows:,} rows{old}",
        table,
    )
    n_left = len(found.columns) - n_moved - top
    if n_left > 0:
        console.print_line(f"{n_left:,} more columns did not move.")
    console.print_line(found.verdict)
