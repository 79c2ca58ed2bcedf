"""`tabmoco columns`: what columns are by their values, and which known ones they resemble."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import Data, Json, Overwrite, Quiet
from tabmoco.cli.rows import check_output
from tabmoco.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from tabmoco.columns.catalogue import Likeness
    from tabmoco.columns.encoder import ColumnEncoder, TableView
    from tabmoco.columns.matching import Matching


@command("tabmoco columns flights.parquet --like catalogue")
def columns(
    data: Data,
    like: Annotated[
        Path | None,
        typer.Option(metavar="KNOWN", help="Which columns of this catalogue or folder of tables do they resemble?"),
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(metavar="OTHER", help="Which columns of this table are the same? Repeatable, for its files."),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(metavar="-1..1", show_default=False, help="Lowest similarity of a match; the encoder's own."),
    ] = None,
    learn: Annotated[
        bool, typer.Option("--learn", help="Make a catalogue of the tables in the folder DATA, for --like.")
    ] = False,
    train: Annotated[
        bool, typer.Option("--train", help="Train an encoder on the tables in the folder DATA, for --encoder.")
    ] = False,
    encoder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="What --train wrote; by default the one tabmoco ships.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="PLACE", help="Result: a file; with --learn and --train a folder, which they need."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Known columns and tables to name of each.")] = 1,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of --train.")] = 0,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell columns by their values, whatever they are called: what they mean, which known columns they resemble."""
    check_options(data, like=like, match=match, threshold=threshold, learn=learn, train=train, out=out)
    start = time.perf_counter()
    shows = not quiet and not json
    if out is not None and (learn or train):
        make = make_encoder if train else make_catalogue
        told = make(data[0], out, encoder=encoder, seed=seed, overwrite=overwrite, shows=shows)
    else:
        check_output(out, [*data, *(match or [])], overwrite=overwrite)
        found = judge(load_encoder(encoder), data, like=like, match=match, threshold=threshold, top=top)
        if out is not None:
            from tabmoco.tables.sink import write_table

            rows: pa.Table = found.table()
            write_table(rows.to_batches(), out, schema=rows.schema, overwrite=overwrite)
        if shows:
            print_found(found)
            if out is not None:
                console.print_line(f"Wrote {out}.")
        told = found.to_json()
    if json:
        seconds = round(time.perf_counter() - start, 3)
        console.print_json({"out": None if out is None else str(out), "seconds": seconds, **told})


def check_options(
    data: list[str],
    *,
    like: Path | None,
    match: list[str] | None,
    threshold: float | None,
    learn: bool,
    train: bool,
    out: Path | None,
) -> None:
    """Refuse options that do not go together."""
    asked = {"--like": like is not None, "--match": bool(match), "--learn": learn, "--train": train}
    given = [name for name, is_given in asked.items() if is_given]
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} must not be given together; run one after the other.")
    if threshold is not None and not match:
        raise ConfigError("--threshold belongs to --match; leave it out.")
    if learn or train:
        if len(data) != 1:
            raise ConfigError(f"{given[0]} must be given one folder of tables, got {len(data)} paths.")
        if out is None:
            raise ConfigError(f"{given[0]} must be told where to write; add --out FOLDER.")


def load_encoder(folder: Path | None) -> ColumnEncoder:
    from tabmoco.columns.encoder import ColumnEncoder

    return ColumnEncoder.load(folder)


def judge(
    encoder: ColumnEncoder,
    data: list[str],
    *,
    like: Path | None,
    match: list[str] | None,
    threshold: float | None,
    top: int,
) -> Likeness | Matching | TableView:
    """What was asked about a table."""
    from tabmoco.columns.catalogue import Catalogue
    from tabmoco.columns.files import is_catalogue

    if match:
        return encoder.match(data, match, threshold=threshold)
    view = encoder.read(data)
    if like is None:
        return view
    catalogue = Catalogue.load(like, encoder=encoder) if is_catalogue(like) else encoder.learn(like)
    return catalogue.like(view, k=top)


def make_encoder(
    folder: str, out: Path, *, encoder: Path | None, seed: int, overwrite: bool, shows: bool
) -> dict[str, Any]:
    """Train on the tables of a folder."""
    from tabmoco.columns.files import check_target
    from tabmoco.columns.learning import train_column_encoder
    from tabmoco.columns.training import ColumnTraining

    if encoder is not None:
        raise ConfigError(f"--train starts anew, so --encoder {encoder} has no place there; leave it out.")
    check_target(out, overwrite=overwrite)
    config = ColumnTraining()
    with console.progress("Training", config.steps, unit="steps", quiet=not shows) as advance:
        trained = train_column_encoder(folder, config=config, seed=seed, progress=advance)
    trained.save(out, overwrite=overwrite)
    if shows:
        n_columns, n_tables = trained.record["n_columns"], trained.record["n_tables"]
        console.print_line(f"Wrote {out}: an encoder that learned from {n_columns:,} columns of {n_tables:,} tables.")
    return {**trained.record, "threshold": trained.threshold, "meanings": list(trained.meanings)}


def make_catalogue(
    folder: str, out: Path, *, encoder: Path | None, seed: int, overwrite: bool, shows: bool
) -> dict[str, Any]:
    """Remember the columns of the tables of a folder."""
    from tabmoco.columns.files import check_target
    from tabmoco.columns.folders import table_files

    check_target(out, overwrite=overwrite)
    loaded = load_encoder(encoder)
    with console.progress("Reading", len(table_files(folder)), unit="tables", quiet=not shows) as advance:
        catalogue = loaded.learn(folder, progress=advance)
    catalogue.save(out, overwrite=overwrite)
    if shows:
        console.print_line(f"Wrote {out}: {len(catalogue):,} columns of {len(catalogue.tables):,} tables.")
    return {"n_tables": len(catalogue.tables), "n_columns": len(catalogue)}


def print_found(found: Likeness | Matching | TableView) -> None:
    from tabmoco.columns.encoder import TableView
    from tabmoco.columns.matching import Matching

    if isinstance(found, Matching):
        print_matching(found)
    elif isinstance(found, TableView):
        print_view(found)
    else:
        print_likeness(found)


def print_view(view: TableView) -> None:
    """Kind, meaning, some values and the most similar other column of each column."""
    table = console.table("column", "kind", ">missing", "values", "meaning", "most like", ">similarity")
    for column, examples, (most_like, similarity) in zip(view.columns, view.examples, view.alike(), strict=True):
        is_told = most_like is not None
        console.add_row(
            table,
            console.short(column.name),
            column.kind,
            f"{column.missing:.1%}" if column.missing else "0",
            console.short(", ".join(examples), 30),
            "" if column.meaning is None else f"{column.meaning} {column.probability:.0%}",
            console.short(most_like) if is_told else "",
            f"{similarity:.2f}" if is_told else "",
        )
    console.print_table(f"{len(view.columns):,} columns of {view.name}", table)
    print_skipped(view.skipped, view.name)


def print_likeness(likeness: Likeness) -> None:
    """What each column looks like, the known columns that come next if asked for, and the nearest tables."""
    table = console.table("column", "kind", "by its values", ">similarity")
    for place, (column, known) in enumerate(zip(likeness.view.columns, likeness.columns, strict=True)):
        others = [f"then {one.column} of {one.table}" for one in known[1:]]
        told = "\n".join(console.short(line, 70) for line in (likeness.told(place), *others))
        similarity = "\n".join(f"{one.similarity:.2f}" for one in known)
        console.add_row(table, console.short(column.name), column.kind, told, similarity)
    console.print_table(f"{len(likeness.columns):,} columns of {likeness.view.name}", table)
    nearest = ", ".join(f"{name} ({similarity:.2f})" for name, similarity in likeness.tables)
    console.print_line(f"Most similar tables: {nearest}.")
    print_skipped(likeness.view.skipped, likeness.view.name)


def print_matching(matching: Matching) -> None:
    """Pairs, those that are not sure marked, and what is left."""
    table = console.table("column", "other column", ">similarity", ">shared values", ">margin", "")
    for pair in matching.pairs:
        doubt = "" if pair.is_sure else "look at this one"
        names = console.short(pair.column), console.short(pair.other)
        console.add_row(table, *names, f"{pair.similarity:.2f}", f"{pair.shared:.0%}", f"{pair.margin:.2f}", doubt)
    for name in matching.unmatched:
        console.add_row(table, console.short(name), "(none)", "", "", "", "")
    for name in matching.other_unmatched:
        console.add_row(table, "(none)", console.short(name), "", "", "", "")
    title = f"{len(matching.pairs):,} columns of {matching.name} found in {matching.other_name}"
    console.print_table(f"{title} (similarity from {matching.threshold:.2f} on)", table)
    print_skipped(matching.skipped, matching.name)
    print_skipped(matching.other_skipped, matching.other_name)


def print_skipped(skipped: dict[str, str], name: str) -> None:
    if skipped:
        reasons = [f"{console.short(column)}: {reason}" for column, reason in list(skipped.items())[:5]]
        more = f"; and {len(skipped) - 5:,} more" if len(skipped) > 5 else ""
        console.print_line(f"Left out of {name}: {'; '.join(reasons)}{more}.")
