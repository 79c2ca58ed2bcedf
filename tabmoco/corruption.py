"""Corruption: damaged copies of rows, drawn on the device for a whole batch from an explicit generator.

Swaps follow SCARF (Bahri et al. 2022, section 3): a swapped cell takes the value of the same column in a random row.
Every cell draws its own donor from the training table, and the donor's missing flag comes along, so a gap is as
likely after the swap as before it.

NOTE[DIFF]: SCARF corrupts a fixed number of cells per row; here the share is drawn anew for every row, so that one
encoder meets light and heavy damage alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Generator, Tensor

from tabmoco.config import CorruptionConfig
from tabmoco.tables.cells import CellBatch, Layout


@dataclass(slots=True)
class View:
    """A damaged copy of a batch."""

    cells: CellBatch

    corrupted: Bool[Tensor, "N C"]
    """True where the cell was swapped."""

    masked: Bool[Tensor, "N C"]
    """True where the cell is hidden from the encoder."""

    noisy: Bool[Tensor, " N"]
    """True for rows whose numbers carry noise."""

    def __getitem__(self, rows: slice) -> View:
        return View(self.cells[rows], self.corrupted[rows], self.masked[rows], self.noisy[rows])


class Corruption:
    """Makes views of batches; the donors of its swaps are the rows of one table, usually the training rows."""

    def __init__(self, donors: CellBatch, layout: Layout, config: CorruptionConfig):
        device = donors.missing.device
        self.donors = donors
        self.layout = layout
        self.config = config
        self.number_owner = torch.tensor(layout.number_owner, dtype=torch.int64, device=device)
        self.code_owner = torch.tensor(layout.code_owner, dtype=torch.int64, device=device)

    def query_view(self, cells: CellBatch, generator: Generator) -> View:
        """The view the query encoder sees: some cells swapped, some hidden, some rows' numbers noisy."""
        config = self.config
        view = self.swap(cells, self.draw(cells, config.query_swap, generator), generator)
        view.masked = self.draw(cells, config.mask, generator)
        view.noisy = self._uniform(len(cells), generator=generator) < config.noisy_rows
        scale = self._noise_scale(len(cells), generator) * view.noisy
        view.cells = self.add_noise(view.cells, scale, generator)
        return view

    def key_view(self, cells: CellBatch, generator: Generator) -> View:
        """The view the target sees: by default the clean row."""
        return self.swap(cells, self.draw(cells, self.config.key_swap, generator), generator)

    def local_view(self, cells: CellBatch, generator: Generator) -> View:
        """A further view with other, heavier damage."""
        return self.swap(cells, self.draw(cells, self.config.local_swap, generator), generator)

    def outside(self, cells: CellBatch, generator: Generator) -> CellBatch:
        """Rows that lie outside the data: every second one has swapped cells, the others noise of log-normal scale on
        their numbers; how many cells is drawn per row. In a table without numbers all have swapped cells."""
        n_rows = len(cells)
        hit = self.draw(cells, self.config.outside_rate, generator)
        every = 2 if self.layout.n_numbers else 1
        by_swap = (torch.arange(n_rows, device=hit.device) % every == 0).unsqueeze(1)
        swapped = self.swap(cells, hit & by_swap, generator).cells
        scale = torch.exp(torch.randn(n_rows, generator=generator, device=hit.device))
        noisy = self.add_noise(cells, scale, generator)
        use_noise = (hit & ~by_swap)[:, self.number_owner]
        return CellBatch(torch.where(use_noise, noisy.number, swapped.number), swapped.code, swapped.missing)

    def draw(self, cells: CellBatch, rate: tuple[float, float], generator: Generator) -> Bool[Tensor, "N C"]:
        """Which cells to damage: each with its row's own probability, uniform in `rate`."""
        low, high = rate
        probability = low + (high - low) * self._uniform(len(cells), 1, generator=generator)
        return self._uniform(*cells.missing.shape, generator=generator) < probability

    def swap(self, cells: CellBatch, corrupted: Bool[Tensor, "N C"], generator: Generator) -> View:
        """Replace the cells marked in `corrupted` by donors' cells of the same column, one donor per cell."""
        donor = torch.randint(
            len(self.donors), corrupted.shape, generator=generator, device=corrupted.device
        )  # one row of the table for every cell
        number, code, missing = self.donors.number, self.donors.code, self.donors.missing
        donated = CellBatch(
            number.gather(0, donor[:, self.number_owner]),
            code.gather(0, donor[:, self.code_owner]),
            missing.gather(0, donor),
        )
        damaged = CellBatch(
            torch.where(corrupted[:, self.number_owner], donated.number, cells.number),
            torch.where(corrupted[:, self.code_owner], donated.code, cells.code),
            torch.where(corrupted, donated.missing, cells.missing),
        )
        n_rows, device = len(cells), corrupted.device
        return View(
            damaged, corrupted, torch.zeros_like(corrupted), torch.zeros(n_rows, dtype=torch.bool, device=device)
        )

    def add_noise(self, cells: CellBatch, scale: Tensor, generator: Generator) -> CellBatch:
        """Gaussian noise on the numbers that are there, of one standard deviation per row."""
        noise = torch.randn(cells.number.shape, generator=generator, device=cells.number.device)
        present = ~cells.missing[:, self.number_owner]
        return CellBatch(cells.number + noise * scale.unsqueeze(1) * present, cells.code, cells.missing)

    def _noise_scale(self, n_rows: int, generator: Generator) -> Tensor:
        low, high = (math.log(max(bound, 1e-6)) for bound in self.config.noise)
        return torch.exp(low + (high - low) * self._uniform(n_rows, generator=generator))

    def _uniform(self, *shape: int, generator: Generator) -> Tensor:
        return torch.rand(shape, generator=generator, device=self.donors.missing.device)
