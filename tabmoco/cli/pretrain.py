"""`tabmoco pretrain`: learn a model of a table's rows."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.engine import Address, Engine, chosen
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
from tabmoco.errors import Interrupted, TabmocoError

if TYPE_CHECKING:
    from tabmoco.training.journal import JournalName


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
    no_values: Annotated[
        bool, typer.Option("--no-values", help="Keep no category values in the model, only salted hashes of them.")
    ] = False,
    no_ids: Annotated[bool, typer.Option("--no-ids", help="Keep no ids of rows in the model.")] = False,
    device: Device = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of everything random.")] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also draw the training curves, as SVG files in a folder.")
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="tensorboard|mlflow", help="Also write the figures for one of these, as training goes on."
        ),
    ] = None,
    engine: Engine = "local",
    address: Address = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Ray workers that train together; by default one per GPU, or else per machine."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint of an interrupted run.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing model; without --resume, a checkpoint as well.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn a model of a table's rows."""
    changes = {
        **data_settings(columns, exclude, kind, id_column),
        "data.target": target,
        "optimize.steps": steps,
        "optimize.epochs": epochs,
        "optimize.minutes": minutes,
        "index.rows": int(index) if index is not None and index.isdecimal() else index,
        "index.contaminated": contaminated or None,
        "data.keep_values": False if no_values else None,
        "index.keep_ids": False if no_ids else None,
        "device": device,
        "seed": seed,
    }
    cluster = chosen(engine, address, workers)
    plan = build_config(config, [*(settings or []), *objective_setting(objective)], changes)
    from tabmoco.training.pretrain import checkpoint_path
    from tabmoco.training.pretrain import pretrain as run
    from tabmoco.training.processes import is_first

    if plots is not None:
        from tabmoco.report.make import require_jinja

        require_jinja()
    with _said_once():
        try:
            journal = cast("JournalName | None", log)
            if cluster is None:
                model = run(data, plan, out=out, resume=resume, overwrite=overwrite, progress=not quiet, log=journal)
            else:
                from tabmoco.ray_jobs.training import pretrain_on_ray

                model = pretrain_on_ray(
                    data, plan, out=out, resume=resume, overwrite=overwrite, progress=not quiet, log=journal,
                    address=cluster.address, workers=cluster.workers,
                )  # fmt: skip
        except KeyboardInterrupt as stopped:
            raise Interrupted(interrupted_text(checkpoint_path(out))) from stopped
    if not is_first():
        return
    if plots is not None:
        from tabmoco.report.plots import write_plots

        write_plots(model.record["metrics"], plots)
    if json:
        console.print_json(model.info())
    elif not quiet:
        folder = shlex.quote(str(out))
        console.print_line(f"The model is in {out}. Next: tabmoco info {folder}, or tabmoco score {folder} DATA.")


def interrupted_text(checkpoint: Path | None) -> str:
    """What is left of a run that was stopped before training or after it."""
    if checkpoint is None or not checkpoint.exists():
        return "interrupted before the first checkpoint; run the same command to start again."
    return f"interrupted; {checkpoint.parent} holds what was learned: run the same command with --resume to go on."


@contextmanager
def _said_once() -> Iterator[None]:
    """Of several processes that train together the first says what went wrong, with any of them; that another one is
    gone is said by all that are left."""
    try:
        yield
    except TabmocoError as error:
        from tabmoco.ranks import LostRankError
        from tabmoco.training.processes import is_first

        if is_first() or isinstance(error, LostRankError):
            raise
        raise typer.Exit(console.INTERRUPTED if isinstance(error, Interrupted) else console.USER_ERROR) from error
