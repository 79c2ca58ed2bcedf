"""Rows that lie outside the data: damaged, moved and mixed rows of a table, of seven kinds.

No one kind resembles all anomalies, so there are several: cells that contradict one another, cells that are far off,
rows that lie between, beyond or beside the others. Most stay near the data, for there its edge has to be learned.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Generator, Tensor

from tabmoco.tables.cells import CellBatch, Layout

KINDS = ("swapped", "noisy", "blurred", "stretched", "mixed", "shifted", "spiked")

BLUR = 0.3
"""Standard deviation of the noise on all numbers of a blurred row."""

MAX_SPIKES = 3


class OutsideRows:
    """Draws rows outside the data from the rows of a table, on their device, from an explicit generator."""

    def __init__(self, rows: CellBatch, layout: Layout):
        device = rows.missing.device
        self.rows = rows
        self.layout = layout
        self.number_owner = torch.tensor(layout.number_owner, dtype=torch.int64, device=device)
        self.code_owner = torch.tensor(layout.code_owner, dtype=torch.int64, device=device)
        self.cardinality = torch.tensor(layout.cardinalities, dtype=torch.int64, device=device)
        self.mean = rows.number.mean(0)

    def draw(self, n_rows: int, generator: Generator) -> tuple[CellBatch, Int64[Tensor, " m"]]:
        """At most about `n_rows` rows, as many of each kind, and the place of the row that each was made from.

        Those that the damage left as they were are left out. Where columns have few values a made row may equal some
        other row of the table: what tells is that such rows are rarer here than there.
        """
        per_kind = -(-n_rows // len(KINDS))
        parts, places = [], []
        for kind in KINDS:
            place = self._places(per_kind, generator=generator)
            origin = self.rows[place]
            made = getattr(self, kind)(origin, generator)
            differs = _differs(made, origin)
            parts.append(made[differs])
            places.append(place[differs])
        return CellBatch.cat(parts), torch.cat(places)

    def swapped(self, origin: CellBatch, generator: Generator) -> CellBatch:
        """10 % to 90 % of the cells come from other rows, each from its own."""
        hit = self._hit(origin, (0.1, 0.9), generator)
        return self._replace(origin, self._independent(len(origin), generator), hit)

    def noisy(self, origin: CellBatch, generator: Generator) -> CellBatch:
        """10 % to 90 % of the numbers with noise of log-normal scale; as many codes from other rows."""
        hit = self._hit(origin, (0.1, 0.9), generator)
        scale = torch.exp(self._normal(len(origin), 1, generator=generator) - 0.5)
        donors = self._independent(len(origin), generator)
        noise = scale * self._normal(*origin.number.shape, generator=generator)
        code = self._codes(origin, donors.code, ~donors.missing)
        return self._replace(origin, CellBatch(origin.number + noise, code, origin.missing), hit, gaps=False)

    def blurred(self, origin: CellBatch, generator: Generator) -> CellBatch:
        """All numbers with a little noise; every tenth code from another row."""
        donors = self._independent(len(origin), generator)
        noise = BLUR * self._normal(*origin.number.shape, generator=generator)
        number = origin.number + noise * self._present(origin)
        hit = self._uniform(*origin.missing.shape, generator=generator) < 0.1
        return CellBatch(number, self._codes(origin, donors.code, hit & ~donors.missing), origin.missing)

    def stretched(self, origin: CellBatch, generator: Generator) -> CellBatch:
        """All numbers 1.2 to 2.5 times as far from their means; every tenth code any of its column's."""
        factor = 1.2 + 1.3 * self._uniform(len(origin), 1, generator=generator)
        number = (self.mean + factor * (origin.number - self.mean)).masked_fill(~self._present(origin), 0.0)
        hit = self._uniform(*origin.missing.shape, generator=generator) < 0.1
        return CellBatch(number, self._codes(origin, self._any_code(len(origin), generator), hit), origin.missing)

    def mixed(self, origin: CellBatch, generator: Generator) -> CellBatch:
        """Between two rows: numbers 30 % to 70 % of the way, each code of one or the other."""
        other = self._some(len(origin), generator)
        way = 0.3 + 0.4 * self._uniform(len(origin), 1, generator=generator)
        hit = self._uniform(*origin.missing.shape, generator=generator) < way
        both = self._present(origin) & self._present(other)
        between = torch.lerp(origin.number, other.number, way)  # equal numbers stay equal to the last digit
        made = self._replace(origin, other, hit)
        return CellBatch(torch.where(both, between, made.number), made.code, made.missing)

    def shifted(self, origin: CellBatch, generator: Generator) -> CellBatch:
        """Moved by 0.3 to 1.2 times the way from one other row to a second one; every tenth code from the second."""
        first, second = self._some(len(origin), generator), self._some(len(origin), generator)
        way = 0.3 + 0.9 * self._uniform(len(origin), 1, generator=generator)
        number = origin.number + way * (second.number - first.number) * self._present(origin)
        hit = self._uniform(*origin.missing.shape, generator=generator) < 0.1
        return CellBatch(number, self._codes(origin, second.code, hit & ~second.missing), origin.missing)

    def spiked(self, origin: CellBatch, generator: Generator) -> CellBatch:
        """Up to 3 cells far off: numbers by 2 to 6 standard deviations, codes any of their column's or unknown, or the
        cell of a row that lacks it where this one does not, and the other way round."""
        n_rows, n_columns = origin.missing.shape
        n_spikes = torch.randint(1, MAX_SPIKES + 1, (n_rows, 1), generator=generator, device=origin.missing.device)
        order = self._uniform(n_rows, n_columns, generator=generator).argsort(1).argsort(1)
        hit = order < n_spikes
        size = 2 + 4 * self._uniform(*origin.number.shape, generator=generator)
        sign = self._uniform(*origin.number.shape, generator=generator).round() * 2 - 1
        donors = self._independent(n_rows, generator)
        absent = donors.missing != origin.missing
        far = CellBatch(origin.number + sign * size, self._any_code(n_rows, generator), origin.missing)
        return self._replace(self._replace(origin, far, hit & ~absent, gaps=False), donors, hit & absent)

    # ---------------------------------------------------------------- cells

    def _some(self, n_rows: int, generator: Generator) -> CellBatch:
        """Whole rows of the table."""
        return self.rows[self._places(n_rows, generator=generator)]

    def _independent(self, n_rows: int, generator: Generator) -> CellBatch:
        """Rows of which every cell is another row's."""
        place = self._places(n_rows, self.layout.n_columns, generator=generator)
        return CellBatch(
            self.rows.number.gather(0, place[:, self.number_owner]),
            self.rows.code.gather(0, place[:, self.code_owner]),
            self.rows.missing.gather(0, place),
        )

    def _any_code(self, n_rows: int, generator: Generator) -> Tensor:
        """Every code of a slot equally likely, 0 for unknown among them."""
        drawn = self._uniform(n_rows, self.layout.n_codes, generator=generator)
        return (drawn * self.cardinality).long().clamp(max=self.cardinality - 1)

    def _replace(
        self, origin: CellBatch, donors: CellBatch, hit: Bool[Tensor, "N C"], *, gaps: bool = True
    ) -> CellBatch:
        """`origin` with the cells marked in `hit` from `donors`, their gaps too; without `gaps` no gap comes or
        goes."""
        missing = torch.where(hit, donors.missing, origin.missing) if gaps else origin.missing
        number = torch.where(hit[:, self.number_owner], donors.number, origin.number)
        code = torch.where(hit[:, self.code_owner], donors.code, origin.code)
        return CellBatch(
            number.masked_fill(missing[:, self.number_owner], 0.0),
            code.masked_fill(missing[:, self.code_owner], 0),
            missing,
        )

    def _codes(self, origin: CellBatch, code: Tensor, hit: Bool[Tensor, "N C"]) -> Tensor:
        return torch.where((hit & ~origin.missing)[:, self.code_owner], code, origin.code)

    def _present(self, cells: CellBatch) -> Bool[Tensor, "N Sn"]:
        return ~cells.missing[:, self.number_owner]

    # ---------------------------------------------------------------- chance

    def _hit(self, cells: CellBatch, rate: tuple[float, float], generator: Generator) -> Bool[Tensor, "N C"]:
        """Which cells to damage, each with its row's own probability, uniform in `rate`."""
        low, high = rate
        probability = low + (high - low) * self._uniform(len(cells), 1, generator=generator)
        return self._uniform(*cells.missing.shape, generator=generator) < probability

    def _places(self, *shape: int, generator: Generator) -> Tensor:
        return torch.randint(len(self.rows), shape, generator=generator, device=self.mean.device)

    def _uniform(self, *shape: int, generator: Generator) -> Float[Tensor, "..."]:
        return torch.rand(shape, generator=generator, device=self.mean.device)

    def _normal(self, *shape: int, generator: Generator) -> Float[Tensor, "..."]:
        return torch.randn(shape, generator=generator, device=self.mean.device)


def _differs(made: CellBatch, origin: CellBatch) -> Bool[Tensor, " N"]:
    return (
        (made.number != origin.number).any(1)
        | (made.code != origin.code).any(1)
        | (made.missing != origin.missing).any(1)
    )
