"""The command `tabmoco`: parse, call, print.

Whatever needs torch or pyarrow is imported inside the commands, so that help comes at once.
"""

from __future__ import annotations

import functools
import io
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

import tabmoco
from tabmoco import console
from tabmoco.cli_options import (
    Columns,
    ConfigFile,
    Data,
    Device,
    Exclude,
    IdColumn,
    Json,
    Kinds,
    ModelFolder,
    Output,
    Overwrite,
    Quiet,
    SameRows,
    Settings,
    build_config,
    data_settings,
    objective_setting,
    parse_positions,
)
from tabmoco.config import DataConfig, PretrainConfig
from tabmoco.errors import ConfigError, TableError

if TYPE_CHECKING:
    import pyarrow as pa

    from tabmoco.model import RowModel
    from tabmoco.tables.source import TableSource

N_QUERIES_SHOWN = 5
"""Rows whose neighbours `search` prints."""

app = typer.Typer(
    help="Learn from raw tables without labels: embed rows, find and explain strange ones, search similar ones.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app(prog_name="tabmoco")


def command(example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose errors and warnings become single lines on stderr."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @app.command(epilog=f"Example: {example}")
        @functools.wraps(function)
        def run(**options: Any) -> None:
            with console.reported(quiet=options["quiet"]):
                function(**options)

        return run

    return register


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False) -> None:
    if version:
        console.print_line(f"tabmoco {tabmoco.__version__}")
        raise typer.Exit


@command("tabmoco schema flights.parquet --kind flight=category")
def schema(
    data: Data,
    columns: Columns = None,
    exclude: Exclude = None,
    kind: Kinds = None,
    id_column: IdColumn = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what each column is taken for, and why."""
    from tabmoco.tables.schema import infer_schema

    options = build_config(config, settings, data_settings(columns, exclude, kind, id_column)).data
    found = infer_schema(_open(data, options), options)
    if json:
        console.print_json(found.to_json())
    else:
        console.print_schema(found)


@command("tabmoco pretrain flights.parquet --out model --minutes 10")
def pretrain(
    data: Data,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the model.")],
    columns: Columns = None,
    exclude: Exclude = None,
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
        "optimize.steps": steps,
        "optimize.epochs": epochs,
        "optimize.minutes": minutes,
        "index.rows": int(index) if index is not None and index.isdecimal() else index,
        "device": device,
        "seed": seed,
    }
    plan = build_config(config, [*(settings or []), *objective_setting(objective)], changes)
    from tabmoco.training.pretrain import pretrain as run

    model = run(_open(data, plan.data), plan, out=out, resume=resume, overwrite=overwrite, progress=not quiet)
    if json:
        console.print_json(model.info())
    elif not quiet:
        folder = shlex.quote(str(out))
        console.print_line(f"The model is in {out}. Next: tabmoco info {folder}, or tabmoco score {folder} DATA.")


@command("tabmoco info model")
def info(model: ModelFolder, json: Json = False, quiet: Quiet = False) -> None:
    """Show what a model learned from, and how well."""
    loaded = _load(model, "cpu")
    if json:
        console.print_json(loaded.info())
    else:
        console.print_markdown(loaded.card())


@command("tabmoco embed model flights.parquet --out embeddings.parquet")
def embed(
    model: ModelFolder,
    data: Data,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Result: .parquet, .csv, .arrow or .feather.")],
    id_column: IdColumn = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn every row into a vector."""
    _check_output(out, data, overwrite=overwrite)
    loaded = _load(model, device)
    source = _open_for(loaded, data, id_column)
    sent = _send(
        loaded.iter_embeddings(source),
        loaded.embedding_schema(source),
        label="Embedding",
        total=source.n_rows,
        out=out,
        overwrite=overwrite,
        quiet=quiet,
    )
    if json:
        console.print_json({**sent, "d_embedding": loaded.d_embedding})
    elif not quiet:
        console.print_sent(sent)


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
    _check_output(out, data, overwrite=overwrite)
    loaded = _load(model, device)
    source = _open_for(loaded, data, id_column)
    explained: bool | Literal["all"] = "all" if explain_all else explain
    fields = loaded.score_schema(source, explain=explained)
    from tabmoco.tables.glimpse import Strangest

    strangest = Strangest(top, fields)
    sent = _send(
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
        if top and console.wants_rows(out):
            console.print_scores(strangest.rows)
        console.print_sent(sent, more=f"; anomalies: {strangest.n_anomalies:,}")


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
    _check_output(out, data, overwrite=overwrite)
    loaded = _load(model, device)
    source = _open_for(loaded, data, id_column)
    fields = loaded.neighbour_schema(source)
    n_queries = source.n_rows if positions is None else len(positions)
    from tabmoco.tables.glimpse import FirstQueries

    first = FirstQueries(N_QUERIES_SHOWN, fields)
    sent = _send(
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
        if console.wants_rows(out):
            console.print_neighbours(first.rows)
        console.print_sent(sent, unit="neighbours")


@command("tabmoco probe model people.parquet --target income --seeds 3")
def probe(
    model: ModelFolder,
    data: Data,
    target: Annotated[str, typer.Option(metavar="COLUMN", help="Column to predict, which the model never saw.")],
    task: Annotated[
        str, typer.Option(metavar="auto|classification|regression", help="What the target is; told by its kind.")
    ] = "auto",
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Random splits to average over.")] = 3,
    labels: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Rows to learn from; by default 70 in 100.")
    ] = None,
    device: Device = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what the embeddings know of a column that the model never saw."""
    loaded = _load(model, device)
    from tabmoco.evaluation.probes import probe as run
    from tabmoco.tables.source import open_table

    found = run(loaded, open_table(data), target=target, task=cast(Any, task), seeds=seeds, n_labels=labels)
    if json:
        console.print_json(found.to_json())
    else:
        console.print_probe(found)


@command("tabmoco config > run.toml")
def config(json: Json = False, quiet: Quiet = False) -> None:
    """Print every setting with its default and what it means, as a file for --config."""
    from tabmoco.config_page import commented_toml

    if json:
        console.print_json(PretrainConfig().to_dict())
    else:
        sys.stdout.write(commented_toml())


def _open(data: list[str], options: DataConfig) -> TableSource:
    from tabmoco.tables.source import open_table

    return open_table(data, columns=options.columns, exclude=options.exclude, id_column=options.id_column)


def _open_for(model: RowModel, data: list[str], id_column: str | None) -> TableSource:
    """The table, its rows named by `id_column` or else by the id column of the training table, if it is there."""
    from tabmoco.tables.source import open_table

    source = open_table(data, id_column=id_column)
    usual = model.config.data.id_column
    return open_table(source, id_column=usual) if id_column is None and usual in source.arrow_schema.names else source


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


def _load(folder: Path, device: str | None) -> RowModel:
    from tabmoco.model import RowModel

    return RowModel.load(folder, device=device or "auto")


def _check_output(out: Path | None, data: list[str], *, overwrite: bool) -> None:
    """Refuse, before any work, an output that cannot be written or that is one of the inputs."""
    if out is None:
        return
    from tabmoco.tables.files import find_files
    from tabmoco.tables.sink import check_target

    target = check_target(out, overwrite=overwrite)
    if target.exists() and any(Path(file.path).resolve() == target for file in find_files(data)):
        raise TableError(f"--out must not be one of the files that are read, got {out}; choose another name.")


def _send(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    *,
    label: str,
    total: int | None,
    unit: str = "rows",
    out: Path | None,
    overwrite: bool,
    quiet: bool,
    see: Callable[[pa.RecordBatch], None] = lambda batch: None,
) -> dict[str, Any]:
    """Pass batches by `see` and the progress bar into the output, if there is one; what came of it, for `--json`."""
    from tabmoco.tables.sink import write_table

    start = time.perf_counter()
    with console.progress(label, total, unit=unit, quiet=quiet) as advance:

        def passing() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                see(batch)
                yield batch
                advance(batch.num_rows)

        if out is None:
            n_sent = sum(batch.num_rows for batch in passing())
        else:
            n_sent = write_table(passing(), out, schema=schema, overwrite=overwrite)
    seconds = round(time.perf_counter() - start, 3)
    return {"out": None if out is None else str(out), "n_rows": n_sent, "seconds": seconds}
