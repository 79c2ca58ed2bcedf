"""After training: which rows others are compared with, indexed and calibrated."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch.nn.functional import normalize

from tabmoco.model import RowModel
from tabmoco.neighbors.clumps import SUSPECT_SHARE, clumped_rows
from tabmoco.neighbors.explain import usual_blame
from tabmoco.neighbors.index import RowIndex
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


def index_rows(
    model: RowModel, encoded: EncodedTable, source: TableSource, kept: RemainingRows, held: np.ndarray
) -> Reference:
    """Embed the reference rows, uncorrupted, with the final encoder; index them and calibrate."""
    config, seed = model.config.index, derive_seed(model.config.seed, REFERENCE)
    rows = _reference_rows(model, kept)
    scored, rows = np.sort(rows[: config.score_rows]), np.sort(rows)
    cells = encoded.take(scored)
    points = model.points(cells)
    held_out = model.points(encoded.take(held)) if len(held) else None
    search_index = None
    if len(rows) > len(scored):
        indexed = encoded.take(rows)
        direction = normalize(torch.from_numpy(model.embed_cells(indexed)), dim=-1).numpy()
        search_index = RowIndex.build(direction, rows, content=indexed.content_hash().numpy(), seed=seed)
    ids = None if source.id_column is None else source.take(rows).ids
    outside, origin = _outside_points(model, cells, seed)
    reference = Reference.build(
        points,
        scored,
        held_out,
        outside,
        origin,
        n_neighbors=config.n_neighbors,
        ids=ids,
        seed=seed,
        contaminated=config.contaminated,
        search_index=search_index,
    )
    _look_for_clumps(model, reference, points, scored, seed)
    few = points[:BLAMED_ROWS]
    usual = usual_blame(reference, model.cell_space, few, reference.evidence(few))
    errors = model.expectation.errors(cells, model.scalings(cells)[..., 0])
    return dataclasses.replace(reference, usual_blame=usual, expected_error=errors)


def _look_for_clumps(model: RowModel, reference: Reference, points: Points, scored: np.ndarray, seed: int) -> None:
    """Warn if it looks as if anomalies were among the reference rows."""
    share, places = clumped_rows(points.vectors["cells"], points.content, seed=seed)
    model.record["clumped_share"] = share
    if share >= SUSPECT_SHARE and not model.config.index.contaminated:
        examples = list_names(map(str, reference.names(scored[places[:N_CLUMPED_NAMED]]).to_pylist()))
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
