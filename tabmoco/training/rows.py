"""The rows that are trained on, step by step: all on the device, or read from files as they are needed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from tabmoco.tables.cells import CellBatch
from tabmoco.tables.remaining import RemainingRows
from tabmoco.tables.store import EncodedTable
from tabmoco.training.batches import BatchOrder, WindowOrder

BLOCK_ROWS = 1_024
"""Rows that are read together."""

WINDOW_BLOCKS = 256
"""Blocks among which rows are shuffled."""


@dataclass(frozen=True)
class StepRows:
    """The rows of one step, on the device."""

    cells: CellBatch

    row: Int64[Tensor, " B"]
    """Their positions in the table."""

    content: Int64[Tensor, " B"]
    """Their content hashes."""

    def tensors(self) -> tuple[Tensor, ...]:
        """All there is."""
        return self.cells.number, self.cells.code, self.cells.missing, self.row, self.content

    def map(self, change: Callable[[Tensor], Tensor]) -> StepRows:
        """The same rows with every tensor changed."""
        number, code, missing, row, content = map(change, self.tensors())
        return StepRows(CellBatch(number, code, missing), row, content)


class Batches(Protocol):
    """What each step trains on: a pure function of the seed and the step."""

    batch_size: int

    def __call__(self, step: int) -> StepRows: ...

    def steps_of(self, epochs: float) -> int:
        """Steps that pass over the rows `epochs` times, at least one."""


class TrainingRows(Protocol):
    """The rows to train on."""

    @property
    def device(self) -> torch.device: ...

    def __len__(self) -> int: ...

    def batches(self, batch_size: int, *, seed: int) -> Batches: ...


@dataclass(frozen=True)
class ResidentRows:
    """Training rows that lie on the device, all of them."""

    cells: CellBatch
    row: Int64[Tensor, " n"]
    content: Int64[Tensor, " n"]

    @classmethod
    def of(cls, table: EncodedTable, rows: Int64[np.ndarray, " n"], device: torch.device) -> ResidentRows:
        """These rows of a table."""
        cells = table.take(rows)
        return cls(cells.to(device), torch.from_numpy(rows).to(device), cells.content_hash().to(device))

    @property
    def device(self) -> torch.device:
        return self.row.device

    def __len__(self) -> int:
        return len(self.row)

    def batches(self, batch_size: int, *, seed: int) -> Batches:
        return _ResidentBatches(self, BatchOrder(len(self), batch_size, seed=seed, device=self.device))


@dataclass(frozen=True)
class _ResidentBatches:
    data: ResidentRows
    order: BatchOrder

    @property
    def batch_size(self) -> int:
        return self.order.batch_size

    def steps_of(self, epochs: float) -> int:
        return self.order.steps_of(epochs)

    def __call__(self, step: int) -> StepRows:
        chosen = self.order(step)
        return StepRows(self.data.cells[chosen], self.data.row[chosen], self.data.content[chosen])


@dataclass(frozen=True)
class StreamedRows:
    """Training rows of a table too large for memory; a window of them is in memory at a time."""

    table: EncodedTable
    rows: RemainingRows
    device: torch.device

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, batch_size: int, *, seed: int) -> Batches:
        order = WindowOrder(len(self), batch_size, seed=seed, block_rows=BLOCK_ROWS, window_blocks=WINDOW_BLOCKS)
        return _StreamedBatches(self, order)


class _StreamedBatches:
    def __init__(self, data: StreamedRows, order: WindowOrder):
        self.data = data
        self.order = order
        self.batch_size = order.batch_size
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="tabmoco-window")
        self._copies = torch.cuda.Stream(data.device) if data.device.type == "cuda" else None
        self._window = lru_cache(maxsize=3)(self._ask_for)  # a batch may reach into the next one; one more is awaited

    def steps_of(self, epochs: float) -> int:
        return self.order.steps_of(epochs)

    def __call__(self, step: int) -> StepRows:
        parts = []
        for piece in self.order(step):
            window = self._window(piece.epoch, piece.window).result()
            self._window(*self.order.after(piece.epoch, piece.window))  # read while this one is learned from
            self._keep_until_used(window)
            places = piece.places.to(self.data.device)
            parts.append(StepRows(window.cells[places], window.row[places], window.content[places]))
        return StepRows(
            CellBatch.cat([part.cells for part in parts]),
            torch.cat([part.row for part in parts]),
            torch.cat([part.content for part in parts]),
        )

    def _ask_for(self, epoch: int, window: int) -> Future[StepRows]:
        return self._reader.submit(self._read, epoch, window)

    def _read(self, epoch: int, window: int) -> StepRows:
        rows = self.data.rows.positions(self.order.rows(epoch, window))
        cells = self.data.table.take(rows)
        read = StepRows(cells, torch.from_numpy(rows), cells.content_hash())
        if self._copies is None:
            return read.map(lambda tensor: tensor.to(self.data.device))
        with torch.cuda.stream(self._copies):  # from pinned memory, while the device computes
            copied = read.map(lambda tensor: tensor.pin_memory().to(self.data.device, non_blocking=True))
            self._copies.synchronize()
        return copied

    def _keep_until_used(self, window: StepRows) -> None:
        """Tell the allocator that a window that another stream copied is read by this one: it must not be overwritten
        before that, even when forgotten here."""
        if self._copies is not None:
            stream = torch.cuda.current_stream(self.data.device)
            for tensor in window.tensors():
                tensor.record_stream(stream)
