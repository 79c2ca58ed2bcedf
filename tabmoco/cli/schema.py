"""`tabmoco schema`: what each column is taken for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import (
    Columns,
    ConfigFile,
    Data,
    Exclude,
    IdColumn,
    Json,
    Kinds,
    Quiet,
    Settings,
    build_config,
    data_settings,
)
from tabmoco.cli.rows import open_data

if TYPE_CHECKING:
    from tabmoco.tables.schema import Column, Schema


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
    source = open_data(data, options)
    with console.progress("Reading", source.n_rows, unit="rows", quiet=quiet) as advance:
        found = infer_schema(source.watched(advance), options)
    if json:
        console.print_json(found.to_json())
    else:
        print_schema(found)


def print_schema(schema: Schema) -> None:
    """The columns in use with their kinds, then those left out with the reason."""
    used = console.table("column", "kind", ">missing", ">distinct", "values", "why")
    for column in schema.used:
        distinct = f"{column.n_distinct:,}" if column.n_distinct_is_exact else f"~{column.n_distinct:,}"
        share = f"{column.n_missing / max(1, schema.n_rows):.1%}" if column.n_missing else "0"
        console.add_row(used, column.name, column.kind, share, distinct, _summary(column), column.reason)
    console.print_table(f"{schema.n_rows:,} rows, {len(schema.used):,} columns in use", used)
    if schema.dropped:
        left_out = console.table("column", "why")
        for column in schema.dropped:
            console.add_row(left_out, column.name, column.reason)
        console.print_table(f"{len(schema.dropped):,} left out", left_out)


def _summary(column: Column) -> str:
    if column.kind == "number" and column.minimum is not None:
        return f"{column.minimum:.6g} to {column.maximum:.6g}, mean {column.mean:.4g}"
    if column.kind == "timestamp" and column.earliest is not None:
        return f"{column.earliest} to {column.latest}"
    return ", ".join(f"{console.short(value)} ({count:,})" for value, count in column.frequent)
