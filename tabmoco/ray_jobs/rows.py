"""Embeddings and scores of a table by many machines: pieces of it, each read, computed and written by one worker.

Ray Data deals the pieces out to actors that each load the model once, and gives a piece to another one if its worker
or machine is lost. Positions of rows and the batches that the model sees are those of one machine, so the numbers are
too, as far as the processors are alike.

NOTE[DIFF]: what travels through Ray Data is which rows to read and what became of them, not the rows:
`ray.data.read_parquet` does not say where in the table a row stands, and its blocks would be copied through the object
store for nothing. Workers read and write the storage themselves.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Literal

import pyarrow as pa
from pyarrow import fs

from tabmoco.config import Space
from tabmoco.errors import TableError, TabmocoError
from tabmoco.model import BATCH_ROWS, RowModel
from tabmoco.ray_jobs.cluster import ClusterError, connected, count, hush, machines, read, spelled
from tabmoco.ray_jobs.folder import Part, PartFolder, check_folder, making
from tabmoco.tables.files import find_files, resolve
from tabmoco.tables.glimpse import Strangest
from tabmoco.tables.notices import TabmocoWarning, warn
from tabmoco.tables.pieces import Extent, Piece, cut
from tabmoco.tables.sink import write_table
from tabmoco.tables.source import TableSource

PIECE_ROWS = 65_536
"""Rows of a piece at least: enough that writing a part is little work beside filling it."""

WAITING = 2
"""Pieces that a worker has been given: the one it works on, and the next."""


@dataclass(frozen=True)
class Embed:
    """Every row as a vector; see `RowModel.embed`."""

    space: Space = "embedding"
    n_shown: int = 0

    def schema(self, model: RowModel, source: TableSource) -> pa.Schema:
        return model.embedding_schema(source, self.space)

    def batches(self, model: RowModel, source: TableSource) -> Iterator[pa.RecordBatch]:
        return model.iter_embeddings(source, space=self.space)


@dataclass(frozen=True)
class Score:
    """How strange every row is, and why; see `RowModel.score`."""

    fpr: float | None = None
    explain: bool | Literal["all"] = False
    n_shown: int = 0
    """Strangest rows to bring back."""

    def schema(self, model: RowModel, source: TableSource) -> pa.Schema:
        return model.score_schema(source, explain=self.explain)

    def batches(self, model: RowModel, source: TableSource) -> Iterator[pa.RecordBatch]:
        return model.iter_scores(source, fpr=self.fpr, explain=self.explain)


@dataclass(frozen=True)
class Outcome:
    """What a job did."""

    n_rows: int
    n_parts: int
    n_anomalies: int
    strangest: pa.Table
    """Rows with the highest scores, strangest first; empty after `Embed`."""


@dataclass(frozen=True)
class Order:
    """All that a worker has to know."""

    model: dict[str, bytes]
    """The files of the model's folder: workers need not see it."""

    source: TableSource
    task: Embed | Score
    folder: PartFolder
    device: str


def run(
    task: Embed | Score,
    folder: str | Path,
    model: RowModel,
    source: TableSource,
    out: str,
    *,
    address: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda n_rows: None,
    piece_rows: int = PIECE_ROWS,
) -> Outcome:
    """Embed or score a table on a Ray cluster, into a folder of Parquet files.

    Parameters
    ----------
    folder
        Where `model` was loaded from.
    source
        A table of Parquet files that all machines of the cluster reach by the same paths or URLs.
    out
        Folder or URL that all of them can write to. The parts are numbered in the order of the table.
    address
        See `connected`.
    workers
        Actors at most; by default one for each GPU of the cluster, or for each CPU if it has none.
    progress
        Told the number of rows of each piece that is done.
    piece_rows
        Rows of a piece at least; a piece ends where a row group does, or shortly before.

    Raises
    ------
    TabmocoError
        If the table, the output or the cluster does not allow it; nothing is left of the output then.
    """
    check_folder(out, overwrite=overwrite)
    schema = task.schema(model, source)
    extents = cut(source, at_least=piece_rows, multiple=BATCH_ROWS)
    with connected(address) as ray, making(out) as parts:
        order = Order(_packed(Path(folder)), source, task, parts, device)
        strangest, n_anomalies = Strangest(task.n_shown, schema), 0
        done: list[Part] = []
        told: set[str] = set()
        for found in _results(ray, order, extents, workers):
            if found["failed"]:
                raise read(found["failed"])
            done.append(Part(int(found["number"]), str(found["written"]), int(found["n_rows"])))
            n_anomalies += int(found["n_anomalies"])
            for batch in pa.ipc.open_stream(found["strangest"]).read_all().to_batches():
                strangest.see(batch)
            for sentence in json.loads(found["notices"]):
                if _matter(sentence) not in told:
                    told.add(_matter(sentence))
                    warn(sentence)
            progress(int(found["n_rows"]))
        n_rows = sum(part.n_rows for part in done)
        if sorted(part.number for part in done) != list(range(len(extents))) or n_rows != source.n_rows:
            raise ClusterError(
                f"{source.n_rows:,} rows in {len(extents):,} parts must come back from the cluster, got {n_rows:,} in "
                f"{len(done):,}; run the job again."
            )
        parts.commit(done, {"n_rows": n_rows}, overwrite=overwrite)
    return Outcome(n_rows, len(done), n_anomalies, strangest.rows)


def check_inputs(out: str, data: list[str]) -> None:
    """Refuse an output that holds one of the files that are read."""
    filesystem, target = resolve(out)
    real = os.path.realpath if isinstance(filesystem, fs.LocalFileSystem) else os.path.normpath
    for file in find_files(data):
        places = (real(os.path.dirname(file.path)), real(file.path))
        if file.filesystem == filesystem and any(PurePath(place).is_relative_to(real(target)) for place in places):
            raise TableError(f"--out must not hold one of the files that are read, but {file.label} lies in {out}.")


def _results(ray: Any, order: Order, extents: list[Extent], workers: int | None) -> Iterator[dict[str, Any]]:
    """What came of each piece, in the order in which they are done."""
    import ray.data as ray_data

    hush("ray.data")
    n_gpus = count(ray, "GPU") if order.device in ("auto", "cuda") else 0
    n_workers = min(workers or n_gpus or count(ray, "CPU"), len(extents))
    if not machines(ray):
        raise ClusterError("the Ray cluster must have a machine with a free CPU, but has none; add one.")
    ray_data.DataContext.get_current().enable_progress_bars = False
    pieces = [
        {"number": number, "first": extent.first, "n_rows": extent.n_rows} for number, extent in enumerate(extents)
    ]
    results = ray_data.from_items(pieces, override_num_blocks=len(pieces)).map_batches(
        RowWorker,
        fn_constructor_args=(ray.put(order),),
        batch_size=1,
        num_cpus=1,
        num_gpus=1 if n_gpus else 0,
        compute=ray_data.ActorPoolStrategy(  # may shrink, so that what a lost machine leaves finds a free processor
            min_size=1, max_size=n_workers, initial_size=n_workers, max_tasks_in_flight_per_actor=WAITING
        ),
    )
    yield from results.iter_rows()


class RowWorker:
    """An actor: loads the model once, then reads, computes and writes one piece after another."""

    def __init__(self, shared: Any) -> None:
        import ray

        self.order: Order = ray.get(shared)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        number, first, n_rows = (int(batch[name][0]) for name in ("number", "first", "n_rows"))
        try:
            found = {"failed": "", **self.work(number, Extent(first, n_rows))}
        except TabmocoError as error:
            found = {"failed": spelled(error)}
        return {name: [value] for name, value in found.items()}

    @cached_property
    def model(self) -> RowModel:
        return _unpacked(self.order.model, self.order.device)

    def work(self, number: int, extent: Extent) -> dict[str, Any]:
        """Write a part; what the job has to know of it."""
        order, piece = self.order, Piece(self.order.source, extent)
        schema = order.task.schema(self.model, piece)
        strangest = Strangest(order.task.n_shown, schema)

        def passing() -> Iterator[pa.RecordBatch]:
            for rows in order.task.batches(self.model, piece):
                if isinstance(order.task, Score):
                    strangest.see(rows)
                yield rows

        self.model.preprocessor.forget_notices()
        with tempfile.TemporaryDirectory(prefix="tabmoco-") as scratch, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", TabmocoWarning)
            file = Path(scratch) / "part.parquet"
            n_written = write_table(passing(), file, schema=schema)
            written = order.folder.add(number, file)
        return {
            "number": number,
            "written": written,
            "n_rows": n_written,
            "n_anomalies": strangest.n_anomalies,
            "strangest": _sent(strangest.rows),
            "notices": json.dumps([str(warning.message) for warning in caught]),
        }


def _packed(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def _unpacked(files: dict[str, bytes], device: str) -> RowModel:
    with tempfile.TemporaryDirectory(prefix="tabmoco-") as scratch:
        folder = Path(scratch) / "model"
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return RowModel.load(folder, device=device)


def _sent(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def _matter(sentence: str) -> str:
    """A notice without its counts, which differ from piece to piece."""
    return re.sub(r"\d[\d,.]*", "", sentence)
