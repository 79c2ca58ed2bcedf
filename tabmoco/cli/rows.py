"""From a command's arguments to rows, and from rows to a file: opening, checking, sending, telling."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabmoco.cli import console
from tabmoco.config import DataConfig
from tabmoco.errors import TableError

if TYPE_CHECKING:
    import pyarrow as pa

    from tabmoco.model import RowModel
    from tabmoco.tables.source import TableSource


def open_data(data: list[str], options: DataConfig) -> TableSource:
    from tabmoco.tables.source import open_table

    return open_table(data, columns=options.columns, exclude=options.exclude, id_column=options.id_column)


def open_for(model: RowModel, data: list[str], id_column: str | None) -> TableSource:
    """The table, its rows named by `id_column` or else by the id column of the training table, if it is there."""
    from tabmoco.tables.source import open_table

    source = open_table(data, id_column=id_column)
    usual = model.config.data.id_column
    return open_table(source, id_column=usual) if id_column is None and usual in source.arrow_schema.names else source


def load_model(folder: Path, device: str | None) -> RowModel:
    from tabmoco.model import RowModel

    return RowModel.load(folder, device=device or "auto")


def check_output(out: Path | None, data: list[str], *, overwrite: bool) -> None:
    """Refuse, before any work, an output that cannot be written or that is one of the inputs."""
    if out is None:
        return
    from tabmoco.tables.files import find_files
    from tabmoco.tables.sink import check_target

    target = check_target(out, overwrite=overwrite)
    if target.exists() and any(Path(file.path).resolve() == target for file in find_files(data)):
        raise TableError(f"--out must not be one of the files that are read, got {out}; choose another name.")


def send(
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


def wants_rows(out: Path | None) -> bool:
    """Whether to print rows: where nothing is written, and on a terminal."""
    if out is None and not sys.stdout.isatty():
        console.print_note("only a few rows are printed; --out FILE writes them all.")
    return out is None or sys.stdout.isatty()


def print_sent(sent: dict[str, Any], *, unit: str = "rows", more: str = "") -> None:
    """One line about what was made, and where it is."""
    what = f"{sent['n_rows']:,} {unit} in {sent['seconds']:,.1f} s{more}"
    console.print_line(f"{what}." if sent["out"] is None else f"Wrote {sent['out']}: {what}.")
