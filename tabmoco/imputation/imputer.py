"""Guesses of missing cells: the decoder's expectation given the rest of the row, blended with what reference rows
tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from tabmoco.imputation.blend import Blend, Row
from tabmoco.neighbors.evidence import CellSpace
from tabmoco.neighbors.reference import Reference
from tabmoco.nn.columns import temper, untemper
from tabmoco.nn.encoder import RowEncoder
from tabmoco.nn.heads import CellDecoder
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.encoders import CategoryEncoder
from tabmoco.tables.preprocess import Encoder, Preprocessor
from tabmoco.tables.text import TextEncoder

BATCH_ROWS = 4_096
"""Rows encoded at a time."""

FIT_ROWS, FIT_CELLS, MIN_FIT_ROWS = 4_000, 200_000, 1_000
"""Reference rows that are learned from: so many, but about as many cells in all of a wide table, and of at
least so many rows."""

HIDDEN_SHARES = (0.0, 0.3, 0.6)
"""Shares of a reference row's cells that are hidden when a column is learned: the one to be told, those missing
anyway, and others if these are fewer."""

HIDDEN_UP_TO = (0.15, 0.45)
"""A row with this share of its cells missing is still told by what was learned with the lesser share hidden."""

MOST_COORDINATES = 512
"""Widest rows of cells that are regressed on beside the embedding."""

REMEMBERED, REMEMBERED_AFTER = 0.25, 150.0
"""Training that saw a row this often remembers some of its cells, so that the decoder errs by up to this share more in
rows it has not seen; less often, in proportion. Measured on four tables (1 % to 23 %)."""

RANGE = (0.05, 0.95)
"""Quantiles of the error between which nine in ten true numbers lie."""

LEAST_SHARE = 1e-3
"""Smaller probabilities count as this much, so that a value is never ruled out."""

SHARPNESSES = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True)
class Guess:
    """What the missing cells of one column should hold."""

    column: int
    """Position in the layout."""

    rows: Int64[np.ndarray, " M"]
    """Rows of the batch, in order of how many of their cells are missing."""

    number: Float[np.ndarray, " M"] | None = None
    """Standardised; of a number or a timestamp."""

    low: Float[np.ndarray, " M"] | None = None
    high: Float[np.ndarray, " M"] | None = None
    code: Int64[np.ndarray, " M"] | None = None
    """The likeliest value seen in training; of a category or a boolean."""

    confidence: Float[np.ndarray, " M"] | None = None
    """Its probability."""

    @staticmethod
    def cat(parts: list[Guess]) -> Guess:
        """Guesses of one column, one after the other."""
        names = [name for name in PARTS if getattr(parts[0], name) is not None]
        joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return Guess(parts[0].column, **joined)


PARTS = ("rows", "number", "low", "high", "code", "confidence")
"""What a guess says of each row."""


@dataclass
class Imputer:
    """Guesses missing cells, row by row: no guess depends on the rows beside it.

    A row's missing cells are filled with what the decoder expects when it sees none of them. Then each is hidden again
    by itself, and what the decoder then expects is blended with what reference rows tell: see `Blend`. A column is
    learned when it is first filled. Numbers are told on the tempered scale; categories as probabilities, whose weights
    are then those of the smallest Brier score.

    Without a decoder the mean of the column, or the shares of its values, is what is expected, and missing cells are
    hidden instead of filled.
    """

    preprocessor: Preprocessor
    encoder: RowEncoder
    decoder: CellDecoder | None
    reference: Reference
    space: CellSpace
    epochs: float = 0.0
    """How often training saw each reference row."""

    _fitted: dict[tuple[int, int], _Fitted] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        layout = self.preprocessor.layout
        self.fillable = [column for column, one in enumerate(self.preprocessor.encoders) if _can_be_told(one)]
        self._number_owner = torch.tensor(layout.number_owner, dtype=torch.int64)
        self._code_owner = torch.tensor(layout.code_owner, dtype=torch.int64)
        self._number_slot = {owner: slot for slot, owner in reversed(list(enumerate(layout.number_owner)))}
        self._code_slot = {owner: slot for slot, owner in reversed(list(enumerate(layout.code_owner)))}
        self._coordinate_owner = self.space.both_owner
        vectors = self.reference.indexes["cells"].vectors
        n_rows = min(FIT_ROWS, max(MIN_FIT_ROWS, FIT_CELLS // max(1, layout.n_columns)), len(vectors))
        few = np.sort(np.random.default_rng(0).choice(len(vectors), n_rows, replace=False))
        self._known = self.space.cells_at(torch.from_numpy(vectors[few]))

    @torch.inference_mode()
    def guess(self, cells: CellBatch) -> Iterator[Guess]:
        """What the missing cells of some rows should hold, column by column; texts have no guess."""
        gaps = cells.missing.any(1).nonzero()[:, 0]
        given = cells[gaps]
        level = torch.bucketize(given.missing.float().mean(1), torch.tensor(HIDDEN_UP_TO))
        filled, hidden = self._fill(given, given.missing)
        for column in self.fillable:
            parts = []
            for number in range(len(HIDDEN_SHARES)):
                rows = (given.missing[:, column] & (level == number)).nonzero()[:, 0]
                if len(rows):
                    fitted = self._fitted_for(column, number)
                    looked = self._look(filled[rows], hidden[rows], column)
                    parts.append(self._tell(column, gaps[rows].numpy(), looked, fitted))
            if parts:
                yield Guess.cat(parts)

    def known_numbers(self, column: int) -> Float[np.ndarray, " n"]:
        """Standardised numbers of a column in the reference rows that have it."""
        there = ~self._known.missing[:, column]
        return self._known.number[there, self._number_slot[column]].numpy()

    def _fill(self, cells: CellBatch, hidden: Bool[Tensor, "N C"]) -> tuple[CellBatch, Bool[Tensor, "N C"]]:
        """The rows with hidden cells filled by what the decoder expects, and the cells that are still to be hidden."""
        if self.decoder is None:
            blank = CellBatch(
                cells.number.masked_fill(hidden[:, self._number_owner], 0.0),
                cells.code.masked_fill(hidden[:, self._code_owner], 0),
                cells.missing | hidden,
            )
            return blank, hidden
        number, logits = self._decode(self._embed(cells, hidden))
        code = torch.stack([logit.argmax(1) for logit in logits], dim=1) if logits else cells.code
        filled = CellBatch(
            torch.where(hidden[:, self._number_owner], untemper(number), cells.number),
            torch.where(hidden[:, self._code_owner], code, cells.code),
            torch.zeros_like(cells.missing),
        )
        return filled, torch.zeros_like(hidden)

    def _look(self, filled: CellBatch, hidden: Bool[Tensor, "N C"], column: int) -> Row:
        """What can be seen of rows with one more column hidden."""
        hidden = hidden.clone()
        hidden[:, column] = True
        embedding = self._embed(filled, hidden)
        others = self._coordinate_owner != column
        coordinates = self.space.both(filled, self._scalings(filled))[:, others]
        return Row(embedding, coordinates, self._expect(embedding, column))

    def _expect(self, embedding: Float[Tensor, "N D"], column: int) -> Float[Tensor, "N m"]:
        """What the decoder expects in a column: a tempered number, or the probability of each code."""
        if self.decoder is None:
            known = self._truth(self._known, column)[~self._known.missing[:, column]]
            mean = known.mean(0) if len(known) else torch.zeros(known.shape[1])
            return mean.expand(len(embedding), -1)
        number, logits = self._decode(embedding)
        if column in self._number_slot:
            return number[:, [self._number_slot[column]]]
        return logits[self._code_slot[column]].softmax(-1)

    def _truth(self, cells: CellBatch, column: int) -> Float[Tensor, "N m"]:
        """What a column holds, in the form of `_expect`."""
        if column in self._number_slot:
            return temper(cells.number[:, [self._number_slot[column]]])
        slot = self._code_slot[column]
        return one_hot(cells.code[:, slot], self.preprocessor.layout.cardinalities[slot]).float()

    def _fitted_for(self, column: int, level: int) -> _Fitted:
        if (column, level) not in self._fitted:
            self._fitted[column, level] = self._fit(column, HIDDEN_SHARES[level])
        return self._fitted[column, level]

    def _fit(self, column: int, share: float) -> _Fitted:
        """Learn a column from the reference rows that have it, with about this share of their cells hidden."""
        known = self._known[~self._known.missing[:, column]]
        hidden = known.missing.clone()
        hidden[:, column] = True
        gone = hidden.float().mean(1, keepdim=True)
        rate = (share - gone) / (1 - gone).clamp(min=1e-6)
        hidden |= torch.rand(hidden.shape, generator=torch.Generator().manual_seed(column)) < rate
        looked = self._look(*self._fill(known, hidden), column)
        truth = self._truth(known, column)
        few = len(self._coordinate_owner) <= MOST_COORDINATES
        remembered = REMEMBERED * min(1.0, self.epochs / REMEMBERED_AFTER)
        blend = Blend.fit(looked, truth, regress_on_cells=few, remembered=remembered)
        if not len(known):
            return _Fitted(blend)
        if column in self._number_slot:
            ratio = blend.error[:, 0] / blend.spread.clamp(min=1e-9)
            return _Fitted(blend, ends=_outer_quantiles(ratio.numpy()))
        return _Fitted(blend, sharpness=_sharpness(truth - blend.error, truth.argmax(1)))

    def _tell(self, column: int, rows: np.ndarray, looked: Row, fitted: _Fitted) -> Guess:
        value, spread = fitted.blend(looked)
        if column in self._number_slot:
            number = value[:, 0]
            if fitted.ends is None:
                low, high = torch.full_like(number, -torch.inf), torch.full_like(number, torch.inf)
            else:
                low, high = (number + end * spread for end in fitted.ends)
            z = (untemper(end).numpy() for end in (number, torch.minimum(low, number), torch.maximum(high, number)))
            return Guess(column, rows, *z)
        confidence, code = _shares(value, fitted.sharpness)[:, 1:].max(1)
        return Guess(column, rows, code=code.numpy() + 1, confidence=confidence.numpy())

    def _embed(self, cells: CellBatch, hidden: Bool[Tensor, "N C"]) -> Float[Tensor, "N D"]:
        device = next(self.encoder.parameters()).device
        parts = [torch.zeros(0, self.encoder.d_embedding)]
        for start in range(0, len(cells), BATCH_ROWS):
            some = slice(start, start + BATCH_ROWS)
            parts.append(self.encoder(cells[some].to(device), hidden[some].to(device)).cpu())
        return torch.cat(parts)

    def _decode(self, embedding: Float[Tensor, "N D"]) -> tuple[Float[Tensor, "N Sn"], list[Float[Tensor, "N _"]]]:
        """Tempered numbers and logits."""
        assert self.decoder is not None
        number, logits = self.decoder(embedding.to(next(self.decoder.parameters()).device))
        return number[..., 0].cpu(), [logit.cpu() for logit in logits]

    def _scalings(self, cells: CellBatch) -> Float[Tensor, "N Sn 2"]:
        device = next(self.encoder.parameters()).device
        return self.encoder.columns.number.scalings(cells.number.to(device)).cpu()


@dataclass(frozen=True)
class _Fitted:
    blend: Blend
    ends: tuple[float, float] | None = None
    """Ends of the range of nine in ten numbers, in units of the error's expected size."""

    sharpness: float = 1.0
    """Power of the probabilities that makes confidence honest."""


def _can_be_told(encoder: Encoder) -> bool:
    """Whether values of the column can be written down: no texts, and no categories that are kept as hashes."""
    return not isinstance(encoder, TextEncoder) and not (isinstance(encoder, CategoryEncoder) and encoder.salt)


def _shares(value: Float[Tensor, "N K"], sharpness: float) -> Float[Tensor, "N K"]:
    """Blended probabilities, which may lie outside 0 to 1, as such again."""
    power = value.clamp(LEAST_SHARE, 1) ** sharpness
    return power / power.sum(1, keepdim=True)


def _sharpness(value: Float[Tensor, "n K"], code: Int64[Tensor, " n"]) -> float:
    """The power that makes the codes likeliest."""
    place = code.unsqueeze(1)
    losses = [-_shares(value, sharpness).gather(1, place).log().mean() for sharpness in SHARPNESSES]
    return SHARPNESSES[int(torch.stack(losses).argmin())]


def _outer_quantiles(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """The quantiles `RANGE` as a new value obeys them: one of `n + 1` (Vovk, Gammerman and Shafer 2005, conformal
    prediction)."""
    ordered, n_values = np.sort(values), len(values)
    below = max(int(np.floor(RANGE[0] * (n_values + 1))) - 1, 0)
    above = min(int(np.ceil(RANGE[1] * (n_values + 1))) - 1, n_values - 1)
    return float(ordered[below]), float(ordered[above])
