"""Rows as points in the spaces where strangeness is a distance: the cells themselves, and what the decoder missed.

Each is blind where the other sees. Standardised cells show extremes and odd combinations of numbers; the residual, what
the decoder rebuilt minus what was given, in both scalings of a number, shows cells that do not fit the rest of their
row. `tabmoco.neighbors.reference` joins the residual and the embedding to one space.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tabmoco.tables.cells import CellBatch, Layout

ONE_HOT_UP_TO = 64
"""Codes of a slot that get a coordinate each; more are projected at random to this many coordinates."""


class CellSpace:
    """Coordinates of cells, `W` per row, each owned by one column, so that a squared distance is a sum over columns.

    A number slot has one coordinate, a code slot a one-hot block, a column one more for being missing. The slots of a
    column share its weight: a text of 32 slots counts as much as a number. A code slot of many values is projected by
    random signs (Achlioptas, "Database-friendly random projections", 2003), which keeps distances between distinct
    codes nearly equal.
    """

    def __init__(self, layout: Layout):
        self.layout = layout
        number_owner = torch.tensor(layout.number_owner, dtype=torch.int64)
        code_owner = torch.tensor(layout.code_owner, dtype=torch.int64)
        n_slots = torch.bincount(torch.cat([number_owner, code_owner]), minlength=layout.n_columns).clamp(min=1)
        self.number_owner = number_owner
        self.code_owner = code_owner
        self.number_weight = n_slots[number_owner].float().rsqrt()
        self.code_weight = n_slots[code_owner].float().rsqrt()
        self.projections = [_projection(n_codes, slot) for slot, n_codes in enumerate(layout.cardinalities)]
        widths = [projection.shape[1] for projection in self.projections]
        self.owner: Int64[Tensor, " W"] = torch.cat(
            [
                number_owner,
                code_owner.repeat_interleave(torch.tensor(widths, dtype=torch.int64)),
                torch.arange(layout.n_columns),
            ]
        )

    def given(self, cells: CellBatch, scaling: Float[Tensor, "N Sn"]) -> Float[Tensor, "N W"]:
        """The cells with their numbers in one scaling."""
        present = (~cells.missing).float()
        number = scaling * present[:, self.number_owner] * self.number_weight
        codes = [
            projection[cells.code[:, slot]] * (present[:, self.code_owner[slot]] * self.code_weight[slot]).unsqueeze(1)
            for slot, projection in enumerate(self.projections)
        ]
        return torch.cat([number, *codes, cells.missing.float()], dim=1)

    def residual(
        self,
        cells: CellBatch,
        given: Float[Tensor, "N Sn 2"],
        expected: Float[Tensor, "N Sn 2"],
        logits: list[Float[Tensor, "N _"]],
    ) -> Float[Tensor, "N W2"]:
        """Expected minus given, in both scalings and in probability; `residual_owner` says whose coordinate each is."""
        present = (~cells.missing).float()
        weight = present[:, self.number_owner] * self.number_weight
        number = (expected - given) * weight.unsqueeze(-1)
        codes = []
        for slot, (projection, logit) in enumerate(zip(self.projections, logits, strict=True)):
            miss = logit.softmax(-1) @ projection - projection[cells.code[:, slot]]
            codes.append(miss * (present[:, self.code_owner[slot]] * self.code_weight[slot]).unsqueeze(1))
        return torch.cat([number[..., 0], number[..., 1], *codes], dim=1)

    @property
    def residual_owner(self) -> Int64[Tensor, " W2"]:
        n_codes_wide = len(self.owner) - len(self.number_owner) - self.layout.n_columns
        start = len(self.number_owner)
        return torch.cat([self.number_owner, self.number_owner, self.owner[start : start + n_codes_wide]])

    def blame(self, difference: Float[Tensor, "N W"], owner: Int64[Tensor, " W"]) -> Float[Tensor, "N C"]:
        """A squared distance divided among the columns."""
        square = difference.double().square()
        return square.new_zeros(len(square), self.layout.n_columns).index_add(1, owner, square)


def _projection(n_codes: int, slot: int) -> Float[Tensor, "n_codes width"]:
    if n_codes <= ONE_HOT_UP_TO:
        return torch.eye(n_codes)
    generator = torch.Generator().manual_seed(slot)
    signs = torch.randint(0, 2, (n_codes, ONE_HOT_UP_TO), generator=generator).float() * 2 - 1
    return signs / math.sqrt(ONE_HOT_UP_TO)
