"""Record batches become a file, whole or not at all: Parquet, CSV or Arrow, by the suffix of its name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tabmoco.errors import TableError
from tabmoco.tables import aside
from tabmoco.tables.names import refuse_duplicates

GROUP_ROWS = 65_536
"""Rows written together: few enough for memory, many enough for Parquet's row groups."""

WRITERS: dict[str, Callable[[BinaryIO, pa.Schema], Any]] = {
    ".parquet": lambda file, schema: pa.parquet.ParquetWriter(file, schema, compression="zstd"),
    ".csv": lambda file, schema: pa.csv.CSVWriter(file, schema),
    ".arrow": lambda file, schema: pa.ipc.new_file(file, schema),
    ".feather": lambda file, schema: pa.ipc.new_file(file, schema),
}


def check_target(
    path: str | Path, *, overwrite: bool = False, suffixes: Iterable[str] = tuple(WRITERS), what: str = "output"
) -> Path:
    """The file that `path` leads to, once it is clear that it may be written; call this before long work.

    Raises
    ------
    TableError
        If `path` is a folder or has another suffix, its folder is missing or cannot be written to, or the file exists
        and `overwrite` is false.
    """
    target, suffixes = Path(os.path.realpath(path)), tuple(suffixes)
    if os.path.isdir(target):
        raise TableError(
            f"the {what} must be a file, but {path} is a folder; add a file name such as {what}{suffixes[0]}."
        )
    if target.suffix.lower() not in suffixes:
        found = f"ends in {target.suffix}" if target.suffix else "has no suffix"
        raise TableError(f"the {what} must end in {', '.join(suffixes)}, but {path} {found}; rename it.")
    if not os.path.isdir(target.parent):
        raise TableError(f"{path} cannot be written: there is no folder {target.parent}; create it first.")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise TableError(f"{path} cannot be written: the folder {target.parent} is read-only; choose another one.")
    if os.path.lexists(target) and not overwrite:
        raise TableError(f"{path} exists already; choose another name, or replace it with overwrite (--overwrite).")
    return target


def write_table(
    batches: Iterable[pa.RecordBatch], path: str | Path, *, schema: pa.Schema, overwrite: bool = False
) -> int:
    """Write a stream of record batches to one file and return the number of rows.

    The rows go to a hidden file beside `path`, which takes its name once all of them are on the disk. Any exception,
    Ctrl-C included, removes the hidden file and leaves an existing `path` as it was; the hidden file of a process that
    was killed is removed by the next one that writes to `path`.

    Parameters
    ----------
    batches
        Record batches of the given schema; may be lazy. What they raise passes through unchanged.
    path
        Its suffix chooses the format: .parquet, .csv, .arrow or .feather.
    schema
        Columns of the file. Dictionaries are written as their values. CSV holds no nested values: a fixed-size list
        is spread over the columns e0, e1, …, and any other nested value becomes its JSON text.
    overwrite
        Whether an existing file is replaced.

    Raises
    ------
    TableError
        As `check_target` does, or if writing fails, for instance because the disk is full.
    """
    target = check_target(path, overwrite=overwrite)
    suffix = target.suffix.lower()
    prepare = _without_nesting if suffix == ".csv" else _without_dictionaries
    n_rows = 0
    with replacing(target, path) as file:
        with _explained(path):
            writer = WRITERS[suffix](file, prepare(schema.empty_table()).schema)
        try:
            for group in _groups(batches, schema):
                with _explained(path):
                    writer.write_table(prepare(group))
                n_rows += group.num_rows
        finally:
            with _explained(path):
                writer.close()
        check_target(path, overwrite=overwrite)  # somebody may have been quicker
    return n_rows


@contextmanager
def replacing(target: Path, path: str | Path) -> Iterator[BinaryIO]:
    """A hidden file that becomes `target` if all goes well and vanishes if anything does not; `path` is its name in
    errors."""
    aside.sweep(target)
    partial = aside.hidden_name(target)
    with _explained(path):
        file = partial.open("wb")
    try:
        with aside.held(partial):
            yield file
            with _explained(path):
                file.flush()
                os.fsync(file.fileno())
                file.close()
                if target.exists():
                    shutil.copymode(target, partial)
                partial.replace(target)
    except BaseException:
        with suppress(OSError):
            file.close()
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def _explained(path: str | Path) -> Iterator[None]:
    """Turn a failure to write into one sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise TableError(f"{path} cannot be written: {reason}; make room or choose another place.") from error
    except pa.ArrowException as error:
        raise TableError(f"{path} cannot be written: {error}; choose another format, for instance .parquet.") from error


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Gather batches into tables of at least `GROUP_ROWS` rows; the last one may be smaller."""
    gathered: list[pa.RecordBatch] = []
    for batch in batches:
        gathered.append(batch)
        if sum(part.num_rows for part in gathered) >= GROUP_ROWS:
            yield pa.Table.from_batches(gathered, schema)
            gathered = []
    if gathered:
        yield pa.Table.from_batches(gathered, schema)


def _without_dictionaries(table: pa.Table) -> pa.Table:
    for position, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            values = table.column(position).cast(field.type.value_type)
            table = table.set_column(position, field.with_type(field.type.value_type), values)
    return table


def _without_nesting(table: pa.Table) -> pa.Table:
    names: list[str] = []
    columns: list[pa.ChunkedArray] = []
    for field, values in zip(table.schema, _without_dictionaries(table).itercolumns(), strict=True):
        if pa.types.is_fixed_size_list(field.type):
            names += [f"e{slot}" for slot in range(field.type.list_size)]
            columns += [pc.list_element(values, slot) for slot in range(field.type.list_size)]
            continue
        if pa.types.is_nested(field.type):
            texts = [json.dumps(value, ensure_ascii=False, default=str) for value in values.to_pylist()]
            values = pa.chunked_array([pa.array(texts, pa.string())])
        names.append(field.name)
        columns.append(values)
    refuse_duplicates(names, "the CSV output")
    return pa.table(columns, names)
