"""After an update: which old and new rows others are compared with, and which calibrate.

A model stands for the rows from some position on: all it ever learned from, or with `drop_oldest` as many as before,
the last ones. Rows are told by their positions; those of the new table count on where the old ones end.

What calibrates has to be drawn like the rows to be scored: of the rows kept out, old and new, as many are taken as the
two tables have rows, and the same goes for the rows that strangeness is measured against. Old rows kept out were never
trained on, neither then nor now, so p-values hold for a mix of old and new rows as large as theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Int64

from tabmoco.config import IndexConfig, PretrainConfig
from tabmoco.errors import SchemaError
from tabmoco.model import RowModel
from tabmoco.neighbors.index import RowIndex
from tabmoco.neighbors.reference import SEARCH_SPACE, Reference
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.remaining import RemainingRows
from tabmoco.tables.source import TableSource
from tabmoco.tables.store import EncodedTable
from tabmoco.training.indexing import AUTO_INDEX_ROWS, KnownRows, build_reference, directions

LEAST_NEW_SHARE = 0.5
"""Where not all rows fit into the index, new ones take up to this share of it before any of them is left out, so that
they are found: more than their share of the rows, if the old table was much larger."""


def read_back(model: RowModel, index: RowIndex) -> KnownRows:
    """Rows of an index among the cells as encoded cells again, under the content hashes they had.

    Numbers come back but for the last digits of a float32, so their hashes do not: the old ones still find the exact
    twin of a row that is scored again. A category that gets its code only now stays unknown in the rows read back.
    """
    assert index.content is not None, "an index among the cells knows its rows' content"
    return KnownRows(model.cell_space.cells_at(torch.from_numpy(index.vectors)), index.rows, index.content)


@dataclass(frozen=True)
class Joined:
    """Old rows, those that are still stood for, and the new ones behind them."""

    old: Reference
    known: KnownRows
    """The old reference rows whose cells are known."""

    apart: KnownRows
    """The old rows kept out of training."""

    encoded: EncodedTable
    """The new rows."""

    source: TableSource
    kept: RemainingRows
    held: Int64[np.ndarray, " m"]
    n_old: int
    """Rows of all tables so far: the position of the first new one."""

    first: int
    """Position of the first row that is stood for."""

    def reference(self, model: RowModel, config: PretrainConfig) -> Reference:
        """Reference rows of both, embedded by the updated model, indexed and calibrated."""
        random = np.random.default_rng(config.seed)
        search = self.old.indexes[SEARCH_SPACE]
        found = _from(self.first, random.permutation(search.rows))
        found = found[np.argsort(~np.isin(found, self.known.row), kind="stable")]  # those whose cells are known first
        new = _from(self.first - self.n_old, self.kept.positions(random.permutation(len(self.kept))))
        found, new = self._divided(found, new, most_indexed(config), LEAST_NEW_SHARE)
        scored, scored_new = self._divided(found[np.isin(found, self.known.row)], new, config.index.score_rows)
        apart = _from(self.first, random.permutation(self.apart.row))
        held = _from(self.first - self.n_old, random.permutation(self.held))
        apart, held = self._divided(apart, held, config.index.calibration_rows)
        known = self._rows(self.known, scored, scored_new)
        held_out = self._rows(self.apart, apart, held)
        found, new = np.sort(found), np.sort(new)
        index = None
        if len(found) + len(new) > len(known):
            index = self._search_index(model, found, new, seed=config.seed)
        ids = None if self.old.ids is None else self._ids(found, new)
        return build_reference(model, known, held_out, search_index=index, ids=ids, seed=config.seed)

    def _divided(
        self, old: np.ndarray, new: np.ndarray, limit: int | None, least: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The first of each, `limit` in all at most, in the proportion of the rows that the two stand for."""
        if limit is None or len(old) + len(new) <= limit:
            return old, new
        n_old = max(0, self.n_old - self.first)
        n_new = min(self.source.n_rows, self.n_old + self.source.n_rows - self.first)
        wanted = round(limit * max(least, n_new / (n_old + n_new)))
        n_taken = min(len(new), max(wanted, limit - len(old)))
        return old[: limit - n_taken], new[:n_taken]

    def _rows(self, known: KnownRows, old: np.ndarray, new: np.ndarray) -> KnownRows:
        """Old rows whose cells are known and new rows, in the order of their positions."""
        place = np.flatnonzero(np.isin(known.row, old))
        place = place[np.argsort(known.row[place], kind="stable")]
        added = KnownRows.of(self.encoded, np.sort(new))
        return KnownRows(
            CellBatch.cat([known.cells[torch.from_numpy(place)], added.cells]),
            np.concatenate([known.row[place], added.row + self.n_old]),
            np.concatenate([known.content[place], added.content]),
        )

    def _search_index(self, model: RowModel, old: np.ndarray, new: np.ndarray, *, seed: int) -> RowIndex:
        """All rows that can be found: embedded anew where the cells are known, else where they were."""
        search = self.old.indexes[SEARCH_SPACE]
        assert search.content is not None, "an index of reference rows knows their content"
        vectors = search.vectors_of(old)
        is_known = np.isin(self.known.row, old)
        again = directions(model, self.known.cells[torch.from_numpy(np.flatnonzero(is_known))])
        vectors[np.searchsorted(old, self.known.row[is_known])] = again
        added = KnownRows.of(self.encoded, new)
        return RowIndex.build(
            np.concatenate([vectors, directions(model, added.cells)]),
            np.concatenate([old, new + self.n_old]),
            content=np.concatenate([search.content[search.places_of(old)], added.content]),
            seed=seed,
        )

    def _ids(self, old: np.ndarray, new: np.ndarray) -> pa.Array:
        """Names of the rows that can be found, in the type of the old ones."""
        assert self.old.ids is not None
        kept = self.old.ids.take(pa.array(self.old.indexes[SEARCH_SPACE].places_of(old)))
        added = cast_ids(self.source, new, kept.type)
        return pa.concat_arrays([kept.cast(added.type), added])


def cast_ids(source: TableSource, rows: Int64[np.ndarray, " n"], wanted: pa.DataType) -> pa.Array:
    """Names of rows in the type of those that are known; without a dictionary, which would not hold new ones."""
    ids = source.take(rows).ids
    assert ids is not None, "both tables are named or neither"
    wanted = wanted.value_type if pa.types.is_dictionary(wanted) else wanted
    try:
        return ids.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(
            f"The id column {source.id_column!r} must hold {wanted} as in training, got {ids.type} in {source.name}; "
            "convert it."
        ) from error


def _from(first: int, rows: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " m"]:
    return rows[rows >= first]


def most_indexed(config: PretrainConfig) -> int | None:
    """Rows that an index holds at most; none for no limit."""
    rows: IndexConfig = config.index
    limits = {"all": None, "auto": AUTO_INDEX_ROWS, "queue": config.objective.queue_size}
    return limits[rows.rows] if isinstance(rows.rows, str) else rows.rows
