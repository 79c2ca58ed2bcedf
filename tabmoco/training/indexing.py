"""After training: which rows others are compared with, indexed and calibrated."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int64
from torch.nn.functional import normalize

from tabmoco.model import RowModel
from tabmoco.neighbors.clumps import SUSPECT_SHARE, clumped_rows
from tabmoco.neighbors.explain import usual_blame
from tabmoco.neighbors.index import RowIndex
from tabmoco.neighbors.known_times import KnownTimes
from tabmoco.neighbors.reference import Points, Reference
from tabmoco.objectives.moco import MoCo
from tabmoco.outside import OutsideRows
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.names import list_names
from tabmoco.tables.notices import warn
from tabmoco.tables.remaining import RemainingRows
from tabmoco.tables.source import TableSource
from tabmoco.tables.store import EncodedTable
from tabmoco.training.batches import REFERENCE, derive_seed

AUTO_INDEX_ROWS = 100_000
"""Rows that `index.rows = "auto"` indexes at most."""

MIN_OUTSIDE_ROWS = 12_000
"""Rows made to lie outside the data, for the forests to tell from the reference rows; or as many as these."""

BLAMED_ROWS = 1_000
"""Reference rows on which it is measured what each column is usually blamed for."""

N_CLUMPED_NAMED = 5
"""Rows in clumps that a warning names."""


@dataclass(frozen=True)
class KnownRows:
    """Encoded rows with their positions in the table and their content hashes."""

    cells: CellBatch
    row: Int64[np.ndarray, " n"]
    content: Int64[np.ndarray, " n"]

    @classmethod
    def of(cls, encoded: EncodedTable, rows: Int64[np.ndarray, " n"]) -> KnownRows:
        """These rows of a table."""
        cells = encoded.take(rows)
        return cls(cells, rows, cells.content_hash().numpy())

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, rows: slice) -> KnownRows:
        return KnownRows(self.cells[rows], self.row[rows], self.content[rows])

    def points(self, model: RowModel) -> Points:
        """Where they lie, under their own content hashes."""
        return dataclasses.replace(model.points(self.cells), content=self.content)


def index_rows(
    model: RowModel, encoded: EncodedTable, source: TableSource, kept: RemainingRows, held: np.ndarray
) -> Reference:
    """Embed the reference rows, uncorrupted, with the final encoder; index them and calibrate."""
    config, seed = model.config.index, derive_seed(model.config.seed, REFERENCE)
    rows = _reference_rows(model, kept)
    scored, rows = np.sort(rows[: config.score_rows]), np.sort(rows)
    search_index = None
    if len(rows) > len(scored):
        indexed = encoded.take(rows)
        search_index = RowIndex.build(
            directions(model, indexed), rows, content=indexed.content_hash().numpy(), seed=seed
        )
    ids = source.take(rows).ids if config.keep_ids and source.id_column is not None else None
    known, held_out = KnownRows.of(encoded, scored), KnownRows.of(encoded, held)
    return build_reference(model, known, held_out, search_index=search_index, ids=ids, seed=seed)


def directions(model: RowModel, cells: CellBatch) -> Float[np.ndarray, "N D"]:
    """Embeddings at unit length."""
    return normalize(torch.from_numpy(model.embed_cells(cells)), dim=-1).numpy()


def build_reference(
    model: RowModel,
    known: KnownRows,
    held_out: KnownRows,
    *,
    search_index: RowIndex | None,
    ids: pa.Array | None,
    seed: int,
) -> Reference:
    """Index rows and calibrate on those kept out of training, if there are any.

    Parameters
    ----------
    search_index
        Where similar rows are searched, if that holds more rows than `known`.
    ids
        Names of the rows that can be found, if the table has an id column.
    """
    config, cells, scored = model.config.index, known.cells, known.row
    points = known.points(model)
    known_times = KnownTimes.of(model.preprocessor, cells)
    as_scored = held_out.cells if known_times is None else known_times(held_out.cells)
    apart = dataclasses.replace(held_out, cells=as_scored).points(model) if len(held_out) else None
    outside, origin = _outside_points(model, cells, seed)
    reference = Reference.build(
        points,
        scored,
        apart,
        outside,
        origin,
        n_neighbors=config.n_neighbors,
        n_ranks=model.cell_space.n_ranks,
        ids=ids,
        seed=seed,
        contaminated=config.contaminated,
        search_index=search_index,
    )
    _look_for_clumps(model, points, scored, seed)
    few = points[:BLAMED_ROWS]
    usual = usual_blame(reference, model.cell_space, few, reference.evidence(few))
    errors = model.expectation.errors(cells, model.scalings(cells)[..., 0])
    rows_apart = _rows_apart(model, held_out) if len(held_out) else None
    return dataclasses.replace(
        reference, usual_blame=usual, expected_error=errors, known_times=known_times, held_out=rows_apart
    )


def _rows_apart(model: RowModel, held_out: KnownRows) -> RowIndex:
    """The rows kept out of training, as they are, for an update to calibrate on."""
    standard = model.cell_space.standard(held_out.cells, model.scalings(held_out.cells)).numpy()
    return RowIndex(standard, held_out.row, content=held_out.content)


def _look_for_clumps(model: RowModel, points: Points, scored: np.ndarray, seed: int) -> None:
    """Warn if it looks as if anomalies were among the reference rows; told by position, since ids may be private."""
    share, places = clumped_rows(points.vectors["cells"], points.content, seed=seed)
    model.record["clumped_share"] = share
    if share >= SUSPECT_SHARE and not model.config.index.contaminated:
        examples = list_names(map(str, scored[places[:N_CLUMPED_NAMED]].tolist()))
        warn(
            f"{share:.0%} of the reference rows lie in clumps apart from all others, such as the rows {examples}. If "
            "they are not normal, rows like them are not found strange: take them out and pretrain again, or pretrain "
            "with index.contaminated=true."
        )


def _outside_points(model: RowModel, cells: CellBatch, seed: int) -> tuple[Points, np.ndarray]:
    """Rows made to lie outside the reference rows, and the place of the row that each was made from."""
    made = OutsideRows(cells, model.preprocessor.layout)
    outside, origin = made.draw(max(MIN_OUTSIDE_ROWS, len(cells)), torch.Generator().manual_seed(seed))
    return model.points(outside), origin.numpy()


def _reference_rows(model: RowModel, kept: RemainingRows) -> np.ndarray:
    """Which training rows to index: the queue's first, then as many more as `index.rows` asks for, drawn at random."""
    wanted = model.config.index.rows
    queued = [o.queue.rows().cpu().numpy() for o in model.pretext.objectives.values() if isinstance(o, MoCo)]
    rows = queued[0] if queued else np.empty(0, dtype=np.int64)
    if wanted == "queue" and queued:
        return rows
    n_wanted = len(kept) if wanted in ("all", "queue") else AUTO_INDEX_ROWS if wanted == "auto" else int(wanted)
    random = np.random.default_rng(derive_seed(model.config.seed, REFERENCE))
    others = kept.draw(n_wanted + len(rows), random)
    return np.concatenate([rows, others[~np.isin(others, rows)]])[:n_wanted]
