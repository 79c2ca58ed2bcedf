"""What the runs of one table and seed share, kept on disk while they last: rows, and what heads read of them.

    TABLE-SEED-.../train.parquet, test.parquet    rows without their target
                   encoder.json                   what a source took, or why it failed
                   encoder/model/                 the encoder that it made, if it made one
                   encoder/train.traits.npy, ...  rows as its encoder and its preprocessor see them

No label is ever written here.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.runs import Run
from tabmoco.evaluation.inputs import HeadInput
from tabmoco.model import RowModel
from tabmoco.tables.cells import CellBatch

Part = Literal["train", "test"]
PARTS: tuple[Part, Part] = ("train", "test")

SLOTS = ("number", "code", "missing")
"""Arrays that are encoded cells; all others are spaces."""


@dataclass(frozen=True)
class Store:
    """The folder of one table and seed."""

    path: Path

    def table(self, part: Part) -> pa.Table:
        return pq.read_table(self.path / f"{part}.parquet")

    def n_rows(self, part: Part) -> int:
        return pq.read_metadata(self.path / f"{part}.parquet").num_rows

    def keep_model(self, source: str, model: RowModel) -> None:
        (self.path / source).mkdir(exist_ok=True)
        model.save(self.path / source / "model", overwrite=True)

    def model(self, source: str) -> RowModel:
        return RowModel.load(self.path / source / "model", device="cpu")

    def keep(self, source: str, part: Part, rows: HeadInput) -> None:
        """Keep rows as heads read them."""
        folder, cells = self.path / source, rows.cells
        folder.mkdir(exist_ok=True)
        slots = {name: getattr(cells, name).numpy() for name in SLOTS}
        for name, array in {**slots, **rows.spaces}.items():
            np.save(folder / f"{part}.{name}.npy", array)

    def rows(self, source: str, part: Part) -> HeadInput:
        """The same, every space read from disk only where it is looked at."""
        files = {path.name.split(".")[1]: path for path in sorted((self.path / source).glob(f"{part}.*.npy"))}
        cells = CellBatch(*(torch.from_numpy(np.load(files[name])) for name in SLOTS))
        return HeadInput(
            cells, {name: np.load(path, mmap_mode="r") for name, path in files.items() if name not in SLOTS}
        )


def build(path: Path, table: pa.Table, train: np.ndarray, test: np.ndarray) -> Store:
    """Write the rows of a split, aside first."""
    with _aside(path) as aside:
        for part, rows in zip(PARTS, (train, test), strict=True):
            pq.write_table(table.take(pa.array(rows)).combine_chunks(), aside / f"{part}.parquet")
    return Store(path)


@dataclass
class Stores:
    """One folder for every table and seed below `root`; only the one in use is kept, unless all are wanted."""

    root: Path
    keep_all: bool = False

    def of(self, name: str, make: Callable[[Path], Store]) -> Store:
        """The folder of that name, made if it is not there; all others go."""
        path = self.root / name
        if not path.exists():
            if not self.keep_all:
                self.clear()
            self.root.mkdir(parents=True, exist_ok=True)
            (self.root / ".gitignore").write_text("*\n", encoding="utf-8")
            make(path)
        return Store(path)

    def has(self, name: str, source: str) -> bool:
        """Whether a source has run in the folder of that name."""
        return (self.root / name / f"{source}.json").exists()

    def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def once(store: Store, source: str, make: Callable[[], Run]) -> dict[str, Any]:
    """What a source took, run now if it has not yet, or why it failed."""
    note = store.path / f"{source}.json"
    if not note.exists():
        note.write_text(json.dumps(make()), encoding="utf-8")
    return json.loads(note.read_text(encoding="utf-8"))


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    aside = path.with_name(f"{path.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    yield aside
    os.replace(aside, path)
