"""What the command line shows: results on stdout; notes, errors and progress on stderr."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tabmoco.errors import Interrupted, TabmocoError
from tabmoco.tables.notices import TabmocoWarning

if TYPE_CHECKING:
    pass

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
            _fail("interrupted; no half-written file is left.", INTERRUPTED)
        except TabmocoError as error:
            _fail(str(error), USER_ERROR)
        except (MemoryError, RuntimeError) as error:
            if hides_interrupt(error):
                _fail("interrupted; no half-written file is left.", INTERRUPTED)
            if not says_memory(error):
                raise
            _fail("there is not enough memory; use fewer columns or rows, or a machine with more.", USER_ERROR)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{where}{error.strerror or error}.", USER_ERROR)


def hides_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C came while a class was being made, as modules are imported: until Python 3.12 its `__set_name__`
    turned what it met into a RuntimeError."""
    return isinstance(error.__cause__, KeyboardInterrupt)


def says_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether memory ran out; torch has no type for it on a CPU, only words."""
    words = ("not enough memory", "can't allocate memory", "out of memory", "bad_alloc")
    return isinstance(error, MemoryError) or any(word in str(error).lower() for word in words)


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


def short(value: object, most: int = 40) -> str:
    text = safe(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def table(*headings: str) -> Table:
    """A table; a heading that starts with > has its column flush right."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left", title_style="bold")
    for heading in headings:
        justify: Any = "right" if heading.startswith(">") else "left"
        table.add_column(Text(safe(heading.removeprefix(">"))), justify=justify, overflow="fold")
    return table


def add_row(table: Table, *values: object) -> None:
    table.add_row(*(Text("\n".join(safe(line) for line in str(value).split("\n"))) for value in values))


def print_table(title: str, table: Table) -> None:
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
