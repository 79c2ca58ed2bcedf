"""Until when the reference rows reach, so that the first rows after them are not strange for coming later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

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

    slots: Int64[Tensor, " T"]
    """Number slots that hold elapsed time."""

    recent: Float[Tensor, " T"]
    """What a later time counts as. z-scores, as is the end."""

    end: Float[Tensor, " T"]
    """The last time that counts so."""

    @classmethod
    def of(cls, preprocessor: Preprocessor, rows: CellBatch) -> KnownTimes:
        """Times of these rows. A column without any has nothing to be later than, and is left alone."""
        slots, recent, end = [], [], []
        for column, encoder in enumerate(preprocessor.encoders):
            if not isinstance(encoder, TimestampEncoder) or encoder.scale == 0:
                continue
            slot = preprocessor.layout.number_owner.index(column)
            known = rows.number[~rows.missing[:, column], slot]
            if len(known):
                slots.append(slot)
                recent.append(float(np.quantile(known.numpy(), RECENT)))
                latest, span = float(known.max()), float(known.max() - known.min())
                end.append(latest + min(span, MOST_SECONDS / encoder.scale))
        return cls(torch.tensor(slots, dtype=torch.int64), torch.tensor(recent), torch.tensor(end))

    def __call__(self, cells: CellBatch) -> CellBatch:
        """The rows with later times as they count."""
        time = cells.number[:, self.slots]
        counted = torch.minimum(time, self.recent) + (time - self.end).clamp(min=0)
        return CellBatch(cells.number.index_copy(1, self.slots, counted), cells.code, cells.missing)
