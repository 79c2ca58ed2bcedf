"""A folder as many tables: every file at any depth is one of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from tabmoco.errors import TableError, TabmocoError
from tabmoco.tables.files import COMPRESSIONS, SUFFIXES
from tabmoco.tables.notices import warn
from tabmoco.tables.source import TableSource, open_table

Tables: TypeAlias = str | Path | Iterable[tuple[str, Any]]
"""A folder, or pairs of a name and anything `open_table` reads."""


def table_files(folder: str | Path) -> dict[str, Path]:
    """The tables of a folder by name: the path below it without suffix, or with it where two would share a name.

    Names that begin with a dot or an underscore are passed over, as are files that are no tables by their suffix.

    Raises
    ------
    TableError
        If there is no such folder, or no table in it.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise TableError(f"{folder} is not a folder; give one that holds a file for each table.")
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and _format_end(path) and not any(p[0] in "._" for p in path.relative_to(folder).parts)
    ]
    if not paths:
        raise TableError(f"{folder} holds no tables; they are known by {', '.join(SUFFIXES)}.")
    files: dict[str, Path] = {}
    for path in paths:
        name = path.relative_to(folder).as_posix()
        short = name[: -_format_end(path)]
        files[name if short in files else short] = path
    return files


def each_table(tables: Tables) -> Iterator[tuple[str, TableSource]]:
    """Names and tables; those that cannot be read are passed over with a warning."""
    found = table_files(tables).items() if isinstance(tables, str | Path) else tables
    for name, data in found:
        try:
            yield name, open_table(data)
        except TabmocoError as error:
            warn(f"{name} is passed over: {error}")


def _format_end(path: Path) -> int:
    """How many characters at the end of a name tell that it is a table; 0 if none do."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] in SUFFIXES:
        return len(suffixes[-1])
    if len(suffixes) == 2 and suffixes[1] in COMPRESSIONS and SUFFIXES.get(suffixes[0]) == "CSV":
        return len(suffixes[0]) + len(suffixes[1])
    return 0
