"""Rows as points in the spaces where strangeness is measured: the cells in two scalings, the traits that the forest
splits on, and what the decoder missed.

Each is blind where another sees. Standardised cells show extremes and odd combinations of numbers; quantile-normal ones
show shape; the residual, what the decoder rebuilt minus what was given, shows cells that do not fit the rest of their
row. `tabmoco.neighbors.reference` makes the spaces of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tabmoco.nn.columns import LINEAR_UP_TO, untemper
from tabmoco.tables.cells import CellBatch, Layout

ONE_HOT_UP_TO = 64
"""Codes of a slot that get a coordinate each; more are projected at random to this many coordinates."""

LEAST_LOG_PROBABILITY = -8.0
"""Categories expected less than this count as that: what tells them apart further down is noise."""

FEW_VALUES = 10
"""A number of at most so many values is a grade or a flag: its ends lie as far apart as two categories."""


class CellSpace:
    """Coordinates of cells, `W` per row, each owned by one column, so that a squared distance is a sum over columns.

    A number slot has one coordinate, a code slot a one-hot block, a column one more for being missing. The slots of a
    column share its weight: a text of 32 slots counts as much as a number. A code slot of many values is projected by
    random signs (Achlioptas, "Database-friendly random projections", 2003), which keeps distances between distinct
    codes nearly equal.
    """

    def __init__(
        self, layout: Layout, knots: Float[np.ndarray, "Sn Q"], n_distinct: Sequence[int | None] | None = None
    ):
        """`n_distinct`, how many values each column has, tells a grade from a number that is nearly always the same."""
        self.layout = layout
        reach = _reach(knots)
        if n_distinct is not None:
            many = [(n_distinct[owner] or 0) > FEW_VALUES for owner in layout.number_owner]
            reach = np.where(many, np.float32(1.0), reach)
        self.reach = torch.from_numpy(reach)
        self.n_codes = torch.tensor(layout.cardinalities, dtype=torch.int64)
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

    def standard(self, cells: CellBatch, scalings: Float[Tensor, "N Sn 2"]) -> Float[Tensor, "N W"]:
        """The cells with their numbers standardised."""
        return self.given(cells, scalings[..., 0] * self.reach)

    def cells_at(self, standard: Float[Tensor, "N W"]) -> CellBatch:
        """The cells that lie at these points: the inverse of `standard`, but for rounding."""
        widths = [len(self.number_owner), *(one.shape[1] for one in self.projections), self.layout.n_columns]
        number, *blocks, missing = torch.split(standard, widths, dim=1)
        codes = [(block @ projection.T).argmax(1) for block, projection in zip(blocks, self.projections, strict=True)]
        code = torch.stack(codes, dim=1) if codes else torch.zeros(len(standard), 0, dtype=torch.int64)
        return CellBatch(untemper(number / (self.reach * self.number_weight)), code, missing > 0.5)

    def both(self, cells: CellBatch, scalings: Float[Tensor, "N Sn 2"]) -> Float[Tensor, "N W2"]:
        """The cells with their numbers in both scalings; `both_owner` says whose coordinate each is."""
        present = (~cells.missing).float()[:, self.number_owner]
        return torch.cat([scalings[..., 0] * present * self.number_weight, self.given(cells, scalings[..., 1])], dim=1)

    @property
    def both_owner(self) -> Int64[Tensor, " W2"]:
        return torch.cat([self.number_owner, self.owner])

    def traits(self, cells: CellBatch, scalings: Float[Tensor, "N Sn 2"]) -> Float[Tensor, "N W1"]:
        """What trees split on: numbers in both scalings, codes by their rank, from frequent to rare to unknown, and
        which cells are missing; `trait_owner` says whose each is."""
        number = scalings * ~cells.missing[:, self.number_owner].unsqueeze(-1)
        return torch.cat([number[..., 0], number[..., 1], self.ranks(cells), cells.missing.float()], dim=1)

    def ranks(self, cells: CellBatch) -> Float[Tensor, "N Sc"]:
        """Codes by their rank in training, 1 for the most frequent, the highest for unknown; 0 where missing."""
        return (torch.where(cells.code == 0, self.n_codes, cells.code) * ~cells.missing[:, self.code_owner]).float()

    @property
    def n_ranks(self) -> int:
        """Ranks that codes may have, 0 for missing among them."""
        return 1 + max(self.layout.cardinalities, default=0)

    @property
    def trait_owner(self) -> Int64[Tensor, " W1"]:
        columns = torch.arange(self.layout.n_columns)
        return torch.cat([self.number_owner, self.number_owner, self.code_owner, columns])

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

    def expected(self, number: Float[Tensor, "N Sn 2"], logits: list[Float[Tensor, "N _"]]) -> Float[Tensor, "N W3"]:
        """What the decoder makes of whole rows: numbers in both scalings and the logarithms of the codes'
        probabilities, none below `LEAST_LOG_PROBABILITY`."""
        codes = [
            logit.log_softmax(-1).clamp(min=LEAST_LOG_PROBABILITY) @ projection
            for logit, projection in zip(logits, self.projections, strict=True)
        ]
        return torch.cat([number[..., 0], number[..., 1], *codes], dim=1)

    @property
    def n_expected(self) -> int:
        """Coordinates of `expected`."""
        return 2 * self.layout.n_numbers + sum(projection.shape[1] for projection in self.projections)

    @property
    def residual_owner(self) -> Int64[Tensor, " W2"]:
        n_codes_wide = len(self.owner) - len(self.number_owner) - self.layout.n_columns
        start = len(self.number_owner)
        return torch.cat([self.number_owner, self.number_owner, self.owner[start : start + n_codes_wide]])

    def by_column(self, coordinates: Float[Tensor, "N W"], owner: Int64[Tensor, " W"]) -> Float[Tensor, "N C"]:
        """Coordinates summed over those of each column, float64."""
        coordinates = coordinates.double()
        return coordinates.new_zeros(len(coordinates), self.layout.n_columns).index_add(1, owner, coordinates)


def _reach(knots: Float[np.ndarray, "Sn Q"]) -> Float[np.ndarray, " Sn"]:
    """What each slot's standardised numbers are multiplied by: 1, or less where a few values lie far apart."""
    tempered = np.arcsinh(knots.astype(np.float64) / LINEAR_UP_TO) * LINEAR_UP_TO
    n_values = (np.diff(tempered, axis=1) > 0).sum(1) + 1
    span = np.ptp(tempered, axis=1) if knots.size else np.zeros(len(knots))
    reach = np.where((n_values <= FEW_VALUES) & (span > 0), math.sqrt(2) / np.maximum(span, 1e-9), 1.0)
    return np.minimum(reach, 1.0).astype(np.float32)


def _projection(n_codes: int, slot: int) -> Float[Tensor, "n_codes width"]:
    if n_codes <= ONE_HOT_UP_TO:
        return torch.eye(n_codes)
    generator = torch.Generator().manual_seed(slot)
    signs = torch.randint(0, 2, (n_codes, ONE_HOT_UP_TO), generator=generator).float() * 2 - 1
    return signs / math.sqrt(ONE_HOT_UP_TO)
