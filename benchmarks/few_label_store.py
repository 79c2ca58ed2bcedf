"""What the runs of one table and seed share, kept on disk while they last: rows, cells as numbers, and embeddings.

    TABLE-SEED-.../train.parquet, test.parquet        rows without their target
                   plain.train.npy, both.train.npy    cells as in `benchmarks.cell_matrix`: unscaled; in both scalings
                   tabmoco.train.npy, ...             embeddings, once the source that makes them has run
                   encoder.json                       what that source took, or why it failed
                   model/                             the pretrained encoder

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
from jaxtyping import Float32

from benchmarks.cell_matrix import cell_matrix, quantile_normal, standardised
from benchmarks.runs import Run

Part = Literal["train", "test"]


@dataclass(frozen=True)
class Store:
    """The folder of one table and seed."""

    path: Path

    @property
    def model_path(self) -> Path:
        return self.path / "model"

    def table(self, part: Part) -> pa.Table:
        return pq.read_table(self.path / f"{part}.parquet")

    def n_rows(self, part: Part) -> int:
        return pq.read_metadata(self.path / f"{part}.parquet").num_rows

    def points(self, name: str, part: Part) -> Float32[np.ndarray, "N D"]:
        """Cells (`plain`, `both`) or an embedding, read from disk only where it is looked at."""
        return np.load(self.path / f"{name}.{part}.npy", mmap_mode="r")

    def keep(self, name: str, train: np.ndarray, test: np.ndarray | None) -> None:
        for part, points in (("train", train), ("test", test)):
            np.save(self.path / f"{name}.{part}.npy", np.asarray(points, dtype=np.float32))


def build(path: Path, table: pa.Table, train: np.ndarray, test: np.ndarray) -> Store:
    """Write the rows of a split and their cells, aside first."""
    with _aside(path) as aside:
        parts = [table.take(pa.array(rows)).combine_chunks() for rows in (train, test)]
        for part, rows in zip(("train", "test"), parts, strict=True):
            pq.write_table(rows, aside / f"{part}.parquet")
        cells = cell_matrix(*parts)
        kept = Store(aside)
        kept.keep("plain", cells.train, cells.test)
        scaled, ranked = standardised(cells), quantile_normal(cells)
        both = [np.concatenate([z, q[:, cells.is_number]], axis=1) for z, q in zip(scaled, ranked, strict=True)]
        kept.keep("both", *both)
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
    """What a source took to make its embeddings, made now if they are not there, or why it failed."""
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
