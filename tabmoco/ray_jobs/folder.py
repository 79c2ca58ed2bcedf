"""A folder of Parquet files that many machines write: it is there once it is whole, or it is not there.

Every part is written aside under a name of its own, so that one that is written twice, because the first writer was
thought dead, is there once all the same: only the names that arrived are kept. On a file system the folder takes its
name in one step. Object storage cannot rename, so the parts lie below `_parts-…` until all are there, are moved then,
and `_SUCCESS` comes last: a folder without it is not whole.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from tabmoco.errors import TableError
from tabmoco.tables import aside
from tabmoco.tables.files import resolve

SUCCESS = "_SUCCESS"
"""The file that says that all parts are there, and which: JSON, hidden from whoever reads the folder as a table."""

STAGING = "_parts-"


@dataclass(frozen=True)
class Part:
    """Rows that a worker wrote."""

    number: int
    """Its place among the parts, from 0."""

    written: str
    """Name of its file in the staging folder."""

    n_rows: int


@dataclass(frozen=True)
class PartFolder:
    """Where parts go, and what becomes of them; travels to the workers."""

    where: str
    """What the user calls the folder."""

    filesystem: fs.FileSystem
    target: str
    staging: str

    def add(self, number: int, file: Path) -> str:
        """Bring a finished file to the staging folder; returns its name there, which no other has."""
        name = f"{number}.{uuid.uuid4().hex[:8]}.parquet"
        with explained(self.where):
            fs.copy_files(
                str(file),
                f"{self.staging}/{name}",
                source_filesystem=fs.LocalFileSystem(),
                destination_filesystem=self.filesystem,
            )
        return name

    def commit(self, parts: Sequence[Part], facts: dict[str, Any], *, overwrite: bool) -> None:
        """Make the folder of these parts, and of nothing else.

        Raises
        ------
        TableError
            If it cannot be written, or is there by now and must not be overwritten.
        """
        width = max(5, len(str(len(parts) - 1)))
        names = {part.written: f"part-{part.number:0{width}d}.parquet" for part in parts}
        assert len(names) == len({part.number for part in parts}) == len(parts), "a part arrived twice"
        listed = sorted(parts, key=lambda part: part.number)
        files = [{"name": names[part.written], "n_rows": part.n_rows} for part in listed]
        text = json.dumps({**facts, "parts": files}, indent=1)
        check_folder(self.where, overwrite=overwrite)  # somebody may have been quicker
        with explained(self.where):
            commit = self._rename if _is_local(self.filesystem) else self._move
            commit(names, text)

    def _rename(self, names: dict[str, str], text: str) -> None:
        staging = Path(self.staging)
        for file in list(staging.iterdir()):
            if file.name in names:
                file.replace(staging / names[file.name])
            else:
                file.unlink()
        with (staging / SUCCESS).open("w", encoding="utf-8") as success:
            success.write(text)
            success.flush()
            os.fsync(success.fileno())
        aside.put_in_place(staging, Path(self.target))

    def _move(self, names: dict[str, str], text: str) -> None:
        for old in _own_files(self.filesystem, self.target):
            self.filesystem.delete_file(old)
        for written, name in names.items():
            self.filesystem.move(f"{self.staging}/{written}", f"{self.target}/{name}")
        with self.filesystem.open_output_stream(f"{self.target}/{SUCCESS}") as success:
            success.write(text.encode())
        self.filesystem.delete_dir(self.staging)


@contextmanager
def making(where: str) -> Iterator[PartFolder]:
    """A folder to be made; whatever is not committed is removed, and so is what killed jobs left on a file system.

    Call `check_folder` first.
    """
    filesystem, target = resolve(where)
    if not _is_local(filesystem):
        target = target.rstrip("/")
        folder = PartFolder(where, filesystem, target, f"{target}/{STAGING}{uuid.uuid4().hex[:8]}")
        with explained(where):
            filesystem.create_dir(folder.staging)
        try:
            yield folder
        finally:
            with suppress(OSError, pa.ArrowException):
                filesystem.delete_dir(folder.staging)
        return
    place = Path(os.path.realpath(target))
    aside.sweep(place)
    staging = aside.hidden_name(place)
    with explained(where):
        staging.mkdir()
    try:
        with aside.held(staging):
            yield PartFolder(where, filesystem, str(place), str(staging))
    finally:
        aside.remove(staging)


def check_folder(where: str, *, overwrite: bool) -> None:
    """Refuse a place where no folder of parts can be made; call this before long work.

    Raises
    ------
    TableError
        If something is there that is no such folder, or is one and `overwrite` is false, or nothing can be written.
    """
    filesystem, target = resolve(where)
    if _is_local(filesystem):
        parent = os.path.dirname(os.path.realpath(target))
        if not os.path.isdir(parent):
            raise TableError(f"{where} cannot be written: there is no folder {parent}; create it first.")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise TableError(f"{where} cannot be written: the folder {parent} is read-only; choose another one.")
    with explained(where):
        found = filesystem.get_file_info(target.rstrip("/"))
        held = _names(filesystem, target) if found.type == fs.FileType.Directory else []
    if found.type == fs.FileType.NotFound or (found.type == fs.FileType.Directory and not held):
        return
    if found.type != fs.FileType.Directory:
        raise TableError(f"the output on Ray is a folder of part files, but {where} is a file; choose another name.")
    if not overwrite and not all(name.startswith(STAGING) for name in held):
        raise TableError(f"{where} exists already; choose another name, or replace it with overwrite (--overwrite).")
    if not all(_is_own(name) for name in held):
        raise TableError(f"{where} holds other files than such results, so it is not replaced; choose another name.")


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn a failure to write into one sentence."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TableError(f"{where} cannot be written: {reason}; make room or choose another place.") from error


def _is_local(filesystem: fs.FileSystem) -> bool:
    return isinstance(filesystem, fs.LocalFileSystem)


def _names(filesystem: fs.FileSystem, folder: str) -> list[str]:
    return [entry.base_name for entry in filesystem.get_file_info(fs.FileSelector(folder.rstrip("/")))]


def _is_own(name: str) -> bool:
    return name == SUCCESS or name.startswith(STAGING) or (name.startswith("part-") and name.endswith(".parquet"))


def _own_files(filesystem: fs.FileSystem, folder: str) -> list[str]:
    """What an older result is made of, `_SUCCESS` first."""
    names = [name for name in _names(filesystem, folder) if not name.startswith(STAGING)]
    return [f"{folder}/{name}" for name in sorted(names, key=lambda name: (name != SUCCESS, name)) if _is_own(name)]
