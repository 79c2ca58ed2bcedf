"""A whole table in encoded form: in memory, or in files where it would not fit.

The files hold each row's numbers, codes and missing flags one row behind the other, as narrow as they go, and are
mapped into memory when read; pages that were read are given back at once, so that the process does not grow with the
table. What is kept is worth nothing without the preprocessor and the table it came from: both are in the key that the
files are known by.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Int64

from tabmoco.errors import TableError
from tabmoco.tables.cells import CellBatch, Layout

STATE = "store.json"
VERSION = 1

READ_ROWS = 16_384
"""Rows between two times that pages are given back."""


class EncodedTable(Protocol):
    """All cells of a table of `N` rows."""

    def __len__(self) -> int: ...

    def take(self, rows: Int64[np.ndarray, " n"]) -> CellBatch:
        """The rows at these positions, in this order."""


@dataclass(frozen=True)
class MemoryTable:
    """An encoded table in memory."""

    cells: CellBatch

    def __len__(self) -> int:
        return len(self.cells)

    def take(self, rows: Int64[np.ndarray, " n"]) -> CellBatch:
        """The rows at these positions, in this order."""
        return self.cells[torch.from_numpy(rows)]


@dataclass(frozen=True)
class Part:
    """One of the three files."""

    name: str
    dtype: np.dtype
    width: int
    """Values per row."""

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * self.width


def parts_of(layout: Layout) -> tuple[Part, Part, Part]:
    """Numbers, codes, and missing flags at eight columns a byte."""
    most = max(layout.cardinalities, default=1) - 1
    return (
        Part("number", np.dtype(np.float32), layout.n_numbers),
        Part("code", np.min_scalar_type(most), layout.n_codes),
        Part("missing", np.dtype(np.uint8), -(-layout.n_columns // 8)),
    )


def stored_bytes(layout: Layout, n_rows: int) -> int:
    """What the files of so many rows take."""
    return n_rows * sum(part.row_bytes for part in parts_of(layout))


def memory_bytes(layout: Layout, n_rows: int) -> int:
    """What the cells of so many rows take in memory."""
    return n_rows * (4 * layout.n_numbers + 8 * layout.n_codes + layout.n_columns)


class StoredTable:
    """An encoded table in files; `write` makes them."""

    def __init__(self, directory: Path, layout: Layout, n_rows: int):
        self.directory = directory
        self.layout = layout
        self._n_rows = n_rows
        self._maps: dict[str, mmap.mmap] = {}
        self._arrays = {part.name: self._open(part) for part in parts_of(layout)}

    def _open(self, part: Part) -> np.ndarray:
        shape = (self._n_rows, part.width)
        if 0 in shape:
            return np.zeros(shape, part.dtype)
        with (self.directory / part.name).open("rb") as file:
            self._maps[part.name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(self._maps[part.name], part.dtype, count=shape[0] * shape[1]).reshape(shape)

    @classmethod
    def write(
        cls,
        directory: Path,
        layout: Layout,
        n_rows: int,
        key: str,
        cells: Callable[[int], Iterator[CellBatch]],
        *,
        progress: Callable[[int], None] | None = None,
    ) -> StoredTable:
        """Write what `cells(first)` gives from row `first` on; go on where files of the same key stop.

        Raises
        ------
        TableError
            If the disk has no room for them.
        """
        directory.mkdir(parents=True, exist_ok=True)
        n_done = _rows_done(directory, key, n_rows, layout)
        needed, free = stored_bytes(layout, n_rows - n_done), shutil.disk_usage(directory).free
        if needed > free:
            raise TableError(
                f"the encoded table needs {needed / 1e9:.1f} GB in {directory}, but only {free / 1e9:.1f} GB are free; "
                "make room, or write the model to another disk."
            )
        parts = parts_of(layout)
        files = {part.name: (directory / part.name).open("ab") for part in parts}
        try:
            for part in parts:
                files[part.name].truncate(n_done * part.row_bytes)
            for batch in cells(n_done) if n_done < n_rows else ():
                for part, values in zip(parts, _packed(batch, parts), strict=True):
                    files[part.name].write(values.tobytes())
                    files[part.name].flush()
                n_done += len(batch)
                _write_state(directory, key, n_done)
                if progress is not None:
                    progress(n_done)
            for file in files.values():
                os.fsync(file.fileno())
        finally:
            for file in files.values():
                file.close()
        return cls(directory, layout, n_rows)

    def __len__(self) -> int:
        return self._n_rows

    def take(self, rows: Int64[np.ndarray, " n"]) -> CellBatch:
        """The rows at these positions, in this order."""
        n_rows, n_columns = len(rows), self.layout.n_columns
        number = np.empty((n_rows, self.layout.n_numbers), np.float32)
        code = np.empty((n_rows, self.layout.n_codes), np.int64)
        missing = np.empty((n_rows, n_columns), bool)
        order = np.argsort(rows, kind="stable")  # files are read forwards
        for start in range(0, n_rows, READ_ROWS):
            place = order[start : start + READ_ROWS]
            found = rows[place]
            number[place] = self._arrays["number"][found]
            code[place] = self._arrays["code"][found]
            bits = np.unpackbits(self._arrays["missing"][found], axis=1, count=n_columns)
            missing[place] = bits.view(bool)
            self._give_back()
        return CellBatch(torch.from_numpy(number), torch.from_numpy(code), torch.from_numpy(missing))

    def _give_back(self) -> None:
        """Let go of the pages that were read; the system may keep them, the process need not count them."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps.values():
                mapped.madvise(mmap.MADV_DONTNEED)


def _packed(batch: CellBatch, parts: tuple[Part, Part, Part]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    number, code, missing = parts
    return (
        batch.number.numpy().astype(number.dtype, copy=False),
        batch.code.numpy().astype(code.dtype),
        np.packbits(batch.missing.numpy(), axis=1).astype(missing.dtype, copy=False),
    )


def _rows_done(directory: Path, key: str, n_rows: int, layout: Layout) -> int:
    """How many rows lie in the files already, if they are of the same key; 0 if they are not, or not whole."""
    try:
        state = json.loads((directory / STATE).read_text(encoding="utf-8"))
        n_done = int(state["n_rows"]) if (state["key"], state["version"]) == (key, VERSION) else 0
        sizes = [(directory / part.name).stat().st_size - n_done * part.row_bytes for part in parts_of(layout)]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return n_done if 0 <= n_done <= n_rows and min(sizes) >= 0 else 0


def _write_state(directory: Path, key: str, n_rows: int) -> None:
    """Say how many rows are whole; written aside and renamed, so that it is never half a file."""
    aside = directory / f"{STATE}.new"
    aside.write_text(json.dumps({"version": VERSION, "key": key, "n_rows": n_rows}), encoding="utf-8")
    aside.replace(directory / STATE)
