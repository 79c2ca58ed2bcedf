"""`tabmoco pretrain`: learn a model of a table's rows."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import (
    Columns,
    ConfigFile,
    Data,
    Device,
    Exclude,
    IdColumn,
    Json,
    Kinds,
    Quiet,
    Settings,
    build_config,
    data_settings,
    objective_setting,
)
from tabmoco.errors import ConfigError


@command("tabmoco pretrain flights.parquet --out model --minutes 10")
def pretrain(
    data: Data,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the model.")],
    columns: Columns = None,
    exclude: Exclude = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column not to learn from; a probe shows what the rows tell of it."),
    ] = None,
    kind: Kinds = None,
    id_column: IdColumn = None,
    config: ConfigFile = None,
    settings: Settings = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=WEIGHT]", help="What to learn, instead of the default. Repeatable."),
    ] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Train for so many steps.")] = None,
    epochs: Annotated[float | None, typer.Option(metavar="N", help="Train for so many passes over the rows.")] = None,
    minutes: Annotated[float | None, typer.Option(metavar="N", help="Train for so long.")] = None,
    index: Annotated[
        str | None, typer.Option(metavar="auto|queue|all|N", help="Rows to compare others with, or how many.")
    ] = None,
    contaminated: Annotated[
        bool, typer.Option("--contaminated", help="The anomalies to be found are among these rows.")
    ] = False,
    device: Device = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of everything random.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint of an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing model.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn a model of a table's rows."""
    if resume and overwrite:
        raise ConfigError("--resume goes on with a run and --overwrite replaces one; give one of the two.")
    changes = {
        **data_settings(columns, exclude, kind, id_column),
        "data.target": target,
        "optimize.steps": steps,
        "optimize.epochs": epochs,
        "optimize.minutes": minutes,
        "index.rows": int(index) if index is not None and index.isdecimal() else index,
        "index.contaminated": contaminated or None,
        "device": device,
        "seed": seed,
    }
    plan = build_config(config, [*(settings or []), *objective_setting(objective)], changes)
    from tabmoco.training.pretrain import pretrain as run

    model = run(data, plan, out=out, resume=resume, overwrite=overwrite, progress=not quiet)
    if json:
        console.print_json(model.info())
    elif not quiet:
        folder = shlex.quote(str(out))
        console.print_line(f"The model is in {out}. Next: tabmoco info {folder}, or tabmoco score {folder} DATA.")
