"""What the command line shows: results on stdout; notes, errors and progress on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tabmoco.errors import Interrupted, TabmocoError
from tabmoco.tables.notices import TabmocoWarning

if TYPE_CHECKING:
    import pyarrow as pa

    from tabmoco.evaluation.probes import ProbeResult
    from tabmoco.tables.schema import Column, Schema

USER_ERROR = 2
INTERRUPTED = 130
PIPE_WIDTH = 120
"""Characters per line where stdout is no terminal."""


def safe(value: object) -> str:
    """The value as text that cannot steer a terminal: control and direction characters are spelled out."""
    return "".join(
        character if unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} else ascii(character)[1:-1]
        for character in str(value)
    )


def print_json(value: Any) -> None:
    """One JSON document on stdout; ids that JSON lacks a type for are written as text."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False, default=str) + "\n")


def print_line(text: str) -> None:
    """One line on stdout."""
    sys.stdout.write(safe(text) + "\n")


def print_note(text: str) -> None:
    """One line on stderr; above the progress bar if there is one."""
    print(f"Note: {safe(text)}", file=sys.stderr)


@contextmanager
def reported(*, quiet: bool) -> Iterator[None]:
    """Run a command: errors become one line and an exit code, and warnings become notes, each said once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("ignore" if quiet else "always", TabmocoWarning)
        said: set[str] = set()

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            if str(message) not in said:
                said.add(str(message))
                print_note(str(message))

        warnings.showwarning = show
        try:
            yield
        except BrokenPipeError:
            raise
        except Interrupted as error:
            _fail(str(error), INTERRUPTED)
        except KeyboardInterrupt:
            _fail("interrupted; nothing was written.", INTERRUPTED)
        except TabmocoError as error:
            _fail(str(error), USER_ERROR)
        except MemoryError:
            _fail("there is not enough memory; use fewer columns or rows, or a machine with more.", USER_ERROR)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{where}{error.strerror or error}.", USER_ERROR)


def _fail(message: str, code: int) -> None:
    lines = "\n".join(safe(line) for line in message.splitlines())
    print(f"Error: {lines}", file=sys.stderr)
    raise typer.Exit(code)


@contextmanager
def progress(label: str, total: int | None, *, unit: str, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if that is a terminal; call what it gives with the number of units just done."""
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            done = f"{task.completed:,.0f}" + (f" of {task.total:,.0f}" if task.total is not None else "")
            return Text(f"{done} {unit}" + (f", {task.speed:,.0f} {unit}/s" if task.speed else ""))

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), Speed(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        yield lambda n_done: bar.advance(task, n_done)


def print_schema(schema: Schema) -> None:
    """The columns in use with their kinds, then those left out with the reason."""
    used = _table("column", "kind", ">missing", ">distinct", "values", "why")
    for column in schema.used:
        distinct = f"{column.n_distinct:,}" if column.n_distinct_is_exact else f"~{column.n_distinct:,}"
        share = f"{column.n_missing / max(1, schema.n_rows):.1%}" if column.n_missing else "0"
        _add(used, column.name, column.kind, share, distinct, _summary(column), column.reason)
    _print(f"{schema.n_rows:,} rows, {len(schema.used):,} columns in use", used)
    if schema.dropped:
        left_out = _table("column", "why")
        for column in schema.dropped:
            _add(left_out, column.name, column.reason)
        _print(f"{len(schema.dropped):,} left out", left_out)


def _summary(column: Column) -> str:
    if column.kind == "number" and column.minimum is not None:
        return f"{column.minimum:.6g} to {column.maximum:.6g}, mean {column.mean:.4g}"
    if column.kind == "timestamp" and column.earliest is not None:
        return f"{column.earliest} to {column.latest}"
    return ", ".join(f"{_short(value)} ({count:,})" for value, count in column.frequent)


def print_scores(top: pa.Table) -> None:
    """The strangest rows, strangest first, with the cells behind each score if the table has them."""
    explained = "cells" in top.column_names
    name = top.column_names[0]
    table = _table(f">{name}", ">score", ">p-value", "anomaly", ">nearest", *(["cells"] if explained else []))
    for row in top.to_pylist():
        cells = "\n".join(_cell(**cell) for cell in row["cells"] or []) if explained else None
        p_value = f"{row['p_value']:.4f}" if row["p_value"] >= 1e-4 else f"{row['p_value']:.1e}"
        is_anomaly = "yes" if row["is_anomaly"] else ""
        values = row[name], f"{row['anomaly_score']:.2f}", p_value, is_anomaly, row["nearest_row_id"]
        _add(table, *values, *([cells] if explained else []))
    _print(f"{top.num_rows:,} strangest rows", table)


def _cell(column: str, found: str, expected: str | None, share: float) -> str:
    if expected is None:
        instead = ""
    elif expected == found or expected.startswith(f"{found} ("):
        instead = ", as expected"
    else:
        instead = f", expected {_short(expected)}"
    return f"{_short(column)}: {_short(found)}{instead} {share:.0%}"


def print_neighbours(first: pa.Table) -> None:
    """Some rows, each with the rows most similar to it."""
    name = first.column_names[0]
    table = _table(f">{name}", ">rank", ">similar row", ">similarity")
    for row in first.to_pylist():
        if row["rank"] == 1 and table.row_count:
            table.add_section()
        query = row[name] if row["rank"] == 1 else ""
        _add(table, query, row["rank"], row["neighbour_row_id"], f"{row['similarity']:.4f}")
    _print("Most similar rows", table)


FIGURES = {"auroc": "AUROC", "accuracy": "accuracy", "log_loss": "log loss", "rmse": "RMSE", "r2": "R²"}


def print_probe(result: ProbeResult) -> None:
    """Figures of every probe on every input, mean ± standard deviation over the seeds."""
    table = _table("input", "probe", *(f">{FIGURES[name]}" for name in result.names))
    for probe in result.figures:
        if table.row_count and probe.probe == result.figures[0].probe:
            table.add_section()
        told = [_with_spread(probe.mean(name), probe.spread(name)) for name in result.names]
        _add(table, probe.input, probe.probe, *told)
    kind = f"{result.n_classes:,} classes" if result.n_classes else "numbers"
    _print(
        f"What rows tell of {_short(result.target)}: {kind}, learned from {result.n_learned:,} rows, tested on "
        f"{result.n_tested:,}",
        table,
    )
    if result.n_left_out:
        print_line(f"{result.n_left_out:,} rows without a {_short(result.target)} were left out.")


def _with_spread(mean: float, spread: float) -> str:
    if math.isnan(mean):
        return "-"
    return f"{mean:.4g}" if math.isnan(spread) else f"{mean:.4g} ± {spread:.2g}"


def wants_rows(out: Path | None) -> bool:
    """Whether to print rows: where nothing is written, and on a terminal."""
    if out is None and not sys.stdout.isatty():
        print_note("only a few rows are printed; --out FILE writes them all.")
    return out is None or sys.stdout.isatty()


def print_sent(sent: dict[str, Any], *, unit: str = "rows", more: str = "") -> None:
    """One line about what was made, and where it is."""
    what = f"{sent['n_rows']:,} {unit} in {sent['seconds']:,.1f} s{more}"
    print_line(f"{what}." if sent["out"] is None else f"Wrote {sent['out']}: {what}.")


def _short(value: object, most: int = 40) -> str:
    text = safe(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def _table(*headings: str) -> Table:
    """A table; a heading that starts with > has its column flush right."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left", title_style="bold")
    for heading in headings:
        justify: Any = "right" if heading.startswith(">") else "left"
        table.add_column(Text(safe(heading.removeprefix(">"))), justify=justify, overflow="fold")
    return table


def _add(table: Table, *values: object) -> None:
    table.add_row(*(Text("\n".join(safe(line) for line in str(value).split("\n"))) for value in values))


def _print(title: str, table: Table) -> None:
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    console.print(Text(title, style="bold"), table, sep="\n")


def print_markdown(text: str) -> None:
    """Markdown, rendered if stdout is a terminal."""
    lines: Iterable[str] = (safe(line) for line in text.splitlines())
    console = Console(highlight=False)
    if console.is_terminal:
        from rich.markdown import Markdown

        console.print(Markdown("\n".join(lines)))
    else:
        sys.stdout.write("\n".join(lines) + "\n")
