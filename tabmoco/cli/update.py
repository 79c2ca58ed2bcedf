"""`tabmoco update`: let a model learn on from new rows."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import Data, Device, Json, ModelFolder, Quiet
from tabmoco.errors import ConfigError

if TYPE_CHECKING:
    from tabmoco.model import RowModel

N_NAMED = 5
"""New categories of a column that are named."""


@command("tabmoco update model october.parquet --out model2")
def update(
    model: ModelFolder,
    data: Data,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for the new model; without it, --overwrite.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Train for so many steps; 300 or fewer.")
    ] = None,
    drop_oldest: Annotated[
        bool, typer.Option("--drop-oldest", help="Forget as many of the oldest rows as there are new ones.")
    ] = False,
    seed: Annotated[int | None, typer.Option(min=0, metavar="N", help="Seed of everything random.")] = None,
    device: Device = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the folder of --out, or MODEL itself without --out.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn on from new rows and take them into the index; embeddings of old and new rows stay comparable."""
    if out is None and not overwrite:
        raise ConfigError("an update needs a folder for the new model: give --out, or --overwrite to replace MODEL.")
    from tabmoco.training.update import update as run

    start, folder = time.perf_counter(), model if out is None else out
    updated = run(
        model,
        data,
        out=folder,
        steps=steps,
        drop_oldest=drop_oldest,
        seed=seed,
        device=device or "auto",
        overwrite=overwrite,
        progress=not quiet,
    )
    seconds = round(time.perf_counter() - start, 3)
    if json:
        console.print_json({"out": str(folder), "seconds": seconds, **told(updated)})
    elif not quiet:
        print_update(updated)
        console.print_line(f"The model is in {folder}. Next: tabmoco score {shlex.quote(str(folder))} DATA.")


def told(model: RowModel) -> dict[str, Any]:
    """The last update, and what the model holds after it."""
    reference = model.reference
    assert reference is not None
    return {
        **model.record["updates"][-1],
        "index": {"n_rows": len(reference), "n_calibration_rows": len(reference.calibration.scores)},
    }


def print_update(model: RowModel) -> None:
    """New categories, and what there is now."""
    found = told(model)
    for column, values in found["new_categories"].items():
        named = ", ".join(console.short(value) for value in values[:N_NAMED])
        more = f" and {len(values) - N_NAMED:,} more" if len(values) > N_NAMED else ""
        console.print_line(f"New in {console.short(column)}: {named}{more}.")
    console.print_line(
        f"{found['n_rows']:,} rows joined; the index holds {found['index']['n_rows']:,}, and "
        f"{found['index']['n_calibration_rows']:,} calibrate p-values."
    )
