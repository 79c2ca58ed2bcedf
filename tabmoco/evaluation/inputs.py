"""What heads read of a row: its embedding, the cells expected of it, its cells and its traits, scaled by rows that need
no labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float32, Int64
from sklearn.utils.extmath import randomized_svd

from tabmoco.model import BATCH_ROWS, RowModel
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.source import TableBatch, TableSource

SCALED_ROWS = 10_000
"""Rows, labelled or not, on which scales are measured at most."""

PASS_ROWS = 256
"""Rows per pass through the encoder. Every pass is filled up to so many, so that rounding is the same whichever rows
stand beside a row."""

SCALED = {"embedding": 1e-6, "expected": 0.1, "cells": 0.1}
"""Spaces that are standardised, and the smallest standard deviation that divides: a category of one row in a thousand
is not to stand out a hundredfold."""

N_COMPONENTS = 16
"""Principal components of the expected cells."""


@dataclass(frozen=True)
class HeadInput:
    """`N` rows as heads read them."""

    cells: CellBatch
    """The encoded rows themselves, for heads that train the encoder."""

    spaces: Mapping[str, Float32[np.ndarray, "N _"]]
    """`embedding`, `expected` (`RowModel.expected`; the embedding again if the model has no decoder) and `cells`
    (one-hot, and both scalings of numbers), standardised; `components`, the leading principal components of `expected`;
    `traits`, the cells as trees split on them."""

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, rows: Int64[np.ndarray, " n"]) -> HeadInput:
        return HeadInput(self.cells[torch.from_numpy(rows)], {name: space[rows] for name, space in self.spaces.items()})

    def joined(self, names: Sequence[str]) -> Float32[np.ndarray, "N _"]:
        """Several spaces side by side."""
        return np.concatenate([self.spaces[name] for name in names], axis=1)

    @staticmethod
    def cat(parts: Sequence[HeadInput]) -> HeadInput:
        spaces = {name: np.concatenate([part.spaces[name] for part in parts]) for name in parts[0].spaces}
        return HeadInput(CellBatch.cat([part.cells for part in parts]), spaces)


@dataclass(frozen=True)
class InputReader:
    """Turns rows into what heads read; made by `fit`. A row's input is a function of the row alone."""

    model: RowModel
    centre: Mapping[str, Float32[np.ndarray, " _"]] = field(default_factory=dict)
    scale: Mapping[str, Float32[np.ndarray, " _"]] = field(default_factory=dict)
    axes: Float32[np.ndarray, "D c"] | None = None
    """Directions in which the standardised expected cells vary most."""

    @classmethod
    def fit(cls, model: RowModel, source: TableSource, *, seed: int) -> InputReader:
        """Measure the scales and the leading components on a sample of all rows."""
        rows = np.arange(source.n_rows)
        if len(rows) > SCALED_ROWS:
            rows = np.sort(np.random.default_rng(seed).choice(len(rows), SCALED_ROWS, replace=False))
        spaces = cls(model).take(source, rows).spaces
        centre = {name: spaces[name].mean(axis=0, dtype=np.float64).astype(np.float32) for name in SCALED}
        scale = {name: _scale(spaces[name], floor) for name, floor in SCALED.items()}
        expected = (spaces["expected"] - centre["expected"]) / scale["expected"]
        # A covariance would be as wide and as high as there are levels of categories, which may be many thousands.
        n_components = min(N_COMPONENTS, *expected.shape)
        _, _, axes = randomized_svd(expected.astype(np.float64), n_components, n_iter=7, random_state=0)
        return cls(model, centre, scale, axes.T.astype(np.float32))

    def take(self, source: TableSource, rows: Int64[np.ndarray, " n"]) -> HeadInput:
        """The rows at some positions."""
        starts = range(0, max(1, len(rows)), BATCH_ROWS)
        return HeadInput.cat([self._read(source.take(rows[start : start + BATCH_ROWS])) for start in starts])

    def batches(self, source: TableSource) -> Iterator[HeadInput]:
        """All rows, some at a time."""
        for batch in source.batches(batch_rows=BATCH_ROWS):
            yield self._read(batch)

    def _read(self, batch: TableBatch) -> HeadInput:
        return self.of_cells(self.model.preprocessor.transform(batch))

    @torch.inference_mode()
    def of_cells(self, cells: CellBatch) -> HeadInput:
        """Encoded rows."""
        model, space = self.model, self.model.cell_space
        parts: list[dict[str, np.ndarray]] = []
        for start in range(0, max(1, len(cells)), PASS_ROWS):
            n_rows = min(PASS_ROWS, len(cells) - start)
            given = filled(cells[start : start + n_rows])
            scalings, embedding = model.scalings(given), model.encoder(given.to(model.device))
            vectors = {
                "embedding": embedding.cpu(),
                "expected": embedding.cpu() if model.decoder is None else model.expected(embedding),
                "cells": space.both(given, scalings),
                "traits": space.traits(given, scalings),
            }
            parts.append({name: vector[:n_rows].numpy() for name, vector in vectors.items()})
        spaces = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for name in self.scale:
            spaces[name] = (spaces[name] - self.centre[name]) / self.scale[name]
        if self.axes is not None:
            spaces["components"] = (spaces["expected"].astype(np.float64) @ self.axes).astype(np.float32)
        return HeadInput(cells, spaces)


def _scale(space: Float32[np.ndarray, "N _"], floor: float) -> Float32[np.ndarray, " _"]:
    """Standard deviations, none below the floor; 1 where the coordinate never moves."""
    deviation = space.std(axis=0, dtype=np.float64)
    return np.where(deviation > 1e-9, np.maximum(deviation, floor), 1.0).astype(np.float32)


def filled(cells: CellBatch) -> CellBatch:
    """Up to `PASS_ROWS` rows, and as many empty ones as make up a pass."""
    n_empty = PASS_ROWS - len(cells)
    empty = CellBatch(
        cells.number.new_zeros(n_empty, cells.number.shape[1]),
        cells.code.new_zeros(n_empty, cells.code.shape[1]),
        cells.missing.new_ones(n_empty, cells.missing.shape[1]),
    )
    return CellBatch.cat([cells, empty])
