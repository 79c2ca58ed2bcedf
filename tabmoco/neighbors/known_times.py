"""Until when the reference rows reach, so that the first rows after them are not strange for coming later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64

from tabmoco.tables.cells import CellBatch
from tabmoco.tables.encoders import TimestampEncoder
from tabmoco.tables.preprocess import Preprocessor

MOST_SECONDS = 366 * 86_400.0
"""No time counts as known that lies further behind the latest one: a year."""

RECENT = 0.9
"""Quantile of the known times that a later one counts as: the last moments themselves lie at an edge, where every
number is strange."""


@dataclass(frozen=True)
class KnownTimes:
    """Times of some rows, and how strange a later one is.

    Rows to be scored come after those learned from, so a time that no row had before is what to expect of them. A time
    behind nine in ten of those known counts as this recent one, until as far behind the latest as the known times span,
    and a year at most; what lies beyond is added. Weekday, month and time of day remain what they are.
    """

    slots: Int64[np.ndarray, " T"]
    """Number slots that hold elapsed time."""

    recent: Float[np.ndarray, " T"]
    """What a later time counts as. z-scores, as is the end."""

    end: Float[np.ndarray, " T"]
    """The last time that counts so."""

    @classmethod
    def of(cls, preprocessor: Preprocessor, rows: CellBatch) -> KnownTimes | None:
        """Times of these rows; a column of one moment or none is left alone, and none is left if all are."""
        found = []
        for column, slot in time_slots(preprocessor).items():
            known = rows.number[~rows.missing[:, column], slot].numpy()
            if len(known):
                longest = MOST_SECONDS / preprocessor.encoders[column].scale
                end = known.max() + min(known.max() - known.min(), longest)
                found.append((slot, np.quantile(known, RECENT), end))
        if not found:
            return None
        slots, recent, end = zip(*found, strict=True)
        return cls(np.array(slots, np.int64), np.array(recent, np.float32), np.array(end, np.float32))

    def __call__(self, cells: CellBatch) -> CellBatch:
        """The rows with later times as they count."""
        slots, recent, end = (torch.from_numpy(array) for array in (self.slots, self.recent, self.end))
        time = cells.number[:, slots]
        counted = torch.minimum(time, recent) + (time - end).clamp(min=0)
        return CellBatch(cells.number.index_copy(1, slots, counted), cells.code, cells.missing)

    def is_sound(self, preprocessor: Preprocessor) -> bool:
        """Whether these can be times of a preprocessor's columns."""
        same = self.slots.shape == self.recent.shape == self.end.shape
        typed = self.slots.dtype == np.int64 and self.recent.dtype == self.end.dtype == np.float32
        if not (same and typed and self.slots.ndim == 1):
            return False
        apart = len(set(self.slots.tolist())) == len(self.slots)
        known = set(self.slots.tolist()) <= set(time_slots(preprocessor).values())
        return apart and known and bool(np.isfinite(self.end).all() and (self.recent <= self.end).all())


def time_slots(preprocessor: Preprocessor) -> dict[int, int]:
    """The number slot of elapsed time of each column that has it and in which it varies."""
    return {
        column: preprocessor.layout.number_owner.index(column)
        for column, encoder in enumerate(preprocessor.encoders)
        if isinstance(encoder, TimestampEncoder) and encoder.scale > 0
    }
