"""What a cell should hold given its row, averaged over several ways to tell, each judged on rows left out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from scipy.optimize import nnls
from torch import Tensor

PENALTIES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Penalties of a ridge regression, per row; one is chosen for each column. Beyond the last there is no regression."""

N_NEIGHBOURS = 10
"""Similar rows whose misses are averaged."""

FARTHEST = 8.0
"""Standardised traits end here, so that a row far outside is not extrapolated without bounds."""

MIN_ROWS = 20
"""From fewer rows than this nothing is learned."""

QUERIES_AT_ONCE = 512


@dataclass(frozen=True)
class Row:
    """What is known of `N` rows apart from the cells to be told."""

    embedding: Float[Tensor, "N D"]
    cells: Float[Tensor, "N w"]
    expected: Float[Tensor, "N m"]
    """What the decoder expects in the cells to be told."""

    def __len__(self) -> int:
        return len(self.expected)


@dataclass(frozen=True)
class Ridge:
    """A ridge regression on traits, its penalty chosen by the leave-one-out error, which has a closed form (Golub,
    Heath and Wahba, "Generalized cross-validation as a method for choosing a good ridge parameter", 1979)."""

    location: Float[Tensor, " p"]
    scale: Float[Tensor, " p"]
    slope: Float[Tensor, "p m"]
    intercept: Float[Tensor, " m"]

    @classmethod
    def fit(cls, traits: Float[Tensor, "n p"], target: Float[Tensor, "n m"]) -> tuple[Ridge, Float[Tensor, "n m"]]:
        """The regression, and what it misses in each row when that is left out."""
        location, scale, intercept = traits.mean(0), traits.std(0), target.mean(0)
        slope, error = _ridge(_standardised(traits, location, scale), target - intercept)
        return cls(location, scale, slope, intercept), error

    def __call__(self, traits: Float[Tensor, "N p"]) -> Float[Tensor, "N m"]:
        return self.intercept + _standardised(traits, self.location, self.scale) @ self.slope


@dataclass(frozen=True)
class Blend:
    """Tells a column's cells by a weighted average of the column's mean, what the decoder expects, a ridge regression
    on the other cells, and the decoder's expectation corrected by a ridge regression on embedding and cells; and adds
    some of what this average misses in the rows whose cells are most alike.

    The weights, 0 or more and 1 in sum, are those of the smallest square error on rows left out (Bates and Granger,
    "The Combination of Forecasts", 1969); so is the share of the neighbours' misses.
    """

    mean: Float[Tensor, " m"]
    on_cells: Ridge | None
    on_both: Ridge | None
    weights: Float[Tensor, " 4"]
    """Of mean, expectation, regression on cells and corrected expectation."""

    cells: Float[Tensor, "n w"]
    """Where the rows lie that hand on their misses."""

    missed: Float[Tensor, "n m"]
    """What the average misses in each of them when it is left out."""

    share: float
    """Share of the neighbours' misses that is added. 0 to 1."""

    error: Float[Tensor, "n m"]
    """What is still missed after that, each row left out."""

    spread: Float[Tensor, " n"]
    """The size of the error to be expected in each row."""

    @classmethod
    def fit(
        cls, rows: Row, truth: Float[Tensor, "n m"], *, regress_on_cells: bool = True, remembered: float = 0.0
    ) -> Blend:
        """Learn from rows whose cells are known.

        Parameters
        ----------
        regress_on_cells
            Whether the other cells are few enough to regress on.
        remembered
            By what share the errors of decoder and embedding, which learned from these very rows, are larger in others.
        """
        rows, truth = _double(rows), truth.double()
        n_rows, n_outputs = truth.shape
        missed = truth - rows.expected
        if n_rows < MIN_ROWS:
            size = _size(missed).mean().expand(n_rows) if n_rows else missed.new_zeros(0)
            alone = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
            return cls(missed.new_zeros(n_outputs), None, None, alone, rows.cells[:0], missed[:0], 0.0, missed, size)
        mean = truth.mean(0)
        errors = {0: (truth - mean) * (n_rows / (n_rows - 1)), 1: missed}
        on_cells = None
        if regress_on_cells:
            on_cells, errors[2] = Ridge.fit(rows.cells, truth)
        on_both, errors[3] = Ridge.fit(_traits(rows, regress_on_cells), missed)
        errors |= {way: errors[way] * (1 + remembered) for way in (1, 3)}
        weights = _weights(errors)
        left = sum((weights[way] * error for way, error in errors.items()), torch.zeros_like(missed))
        found = _nearest(rows.cells, rows.cells, min(N_NEIGHBOURS, n_rows - 1), without_own=True)
        handed = left[found].mean(1)
        share = float(((left * handed).sum() / handed.square().sum().clamp(min=1e-30)).clamp(0, 1))
        return cls(
            mean,
            on_cells,
            on_both,
            weights,
            rows.cells,
            left,
            share,
            left - share * handed,
            (_size(left)[found].mean(1) + _size(left).mean()) / 2,
        )

    def __call__(self, rows: Row) -> tuple[Float[Tensor, "N m"], Float[Tensor, " N"]]:
        """What other rows' cells should hold, and the size of the error to be expected, float64."""
        rows = _double(rows)
        told = self.weights[0] * self.mean + self.weights[1] * rows.expected
        if self.on_cells is not None and self.weights[2] > 0:
            told = told + self.weights[2] * self.on_cells(rows.cells)
        if self.on_both is not None and self.weights[3] > 0:
            correction = self.on_both(_traits(rows, self.on_cells is not None))
            told = told + self.weights[3] * (rows.expected + correction)
        if not len(self.missed):
            spread = self.spread.mean() if len(self.spread) else told.new_zeros(())
            return told, spread.expand(len(rows))
        found = _nearest(rows.cells, self.cells, min(N_NEIGHBOURS, len(self.missed)))
        size = _size(self.missed)
        return told + self.share * self.missed[found].mean(1), (size[found].mean(1) + size.mean()) / 2


def _double(rows: Row) -> Row:
    return Row(rows.embedding.double(), rows.cells.double(), rows.expected.double())


def _traits(rows: Row, with_cells: bool) -> Float[Tensor, "N p"]:
    return torch.cat([rows.embedding, rows.cells], dim=1) if with_cells else rows.embedding


def _weights(errors: dict[int, Float[Tensor, "n m"]]) -> Float[Tensor, " 4"]:
    """Of each way with these errors, by non-negative least squares on their square root of second moments."""
    stacked = torch.stack([error.flatten() for error in errors.values()], dim=1)
    moments = stacked.T @ stacked
    moments = moments / moments.diagonal().mean().clamp(min=1e-30) + 1e-9 * torch.eye(len(errors), dtype=torch.float64)
    root = torch.linalg.cholesky(moments).T
    ones = torch.full((1, len(errors)), SUM_WEIGHT, dtype=torch.float64)
    wanted = torch.cat([torch.zeros(len(errors), dtype=torch.float64), ones[0, :1]])
    found = torch.from_numpy(nnls(torch.cat([root, ones]).numpy(), wanted.numpy())[0])
    weights = torch.zeros(4, dtype=torch.float64)
    weights[list(errors)] = found / found.sum()
    return weights


SUM_WEIGHT = 1e3
"""How strongly the weights' sum is held at 1, before it is made so."""


def _standardised(traits: Float[Tensor, "N p"], location: Tensor, scale: Tensor) -> Float[Tensor, "N p"]:
    """Traits that never vary become 0."""
    varies = scale > 1e-6
    return torch.where(varies, (traits - location) / torch.where(varies, scale, 1.0), 0.0).clamp(-FARTHEST, FARTHEST)


def _ridge(
    traits: Float[Tensor, "n p"], missed: Float[Tensor, "n m"]
) -> tuple[Float[Tensor, "p m"], Float[Tensor, "n m"]]:
    """Slopes with the penalty of the smallest leave-one-out error, and these errors."""
    n_rows, n_traits = traits.shape
    if n_traits <= n_rows:
        value, vector = torch.linalg.eigh(traits.T @ traits)
        scores = traits @ vector  # [n, r], orthogonal, of squared length `value`
    else:
        value, left = torch.linalg.eigh(traits @ traits.T)
        scores = left * value.clamp(min=0).sqrt()
        vector = traits.T @ (left / value.clamp(min=1e-9).sqrt())
    value = value.clamp(min=0)
    target = scores.T @ missed
    without = missed * (n_rows / (n_rows - 1))
    best = without.square().sum(), traits.new_zeros(n_traits, missed.shape[1]), without
    for penalty in PENALTIES:
        shrunk = 1 / (value + penalty * n_rows)
        leverage = scores.square() @ shrunk + 1 / n_rows
        coefficients = shrunk.unsqueeze(1) * target
        error = (missed - scores @ coefficients) / (1 - leverage).clamp(min=1e-6).unsqueeze(1)
        loss = error.square().sum()
        if loss < best[0]:
            best = loss, vector @ coefficients, error
    return best[1], best[2]


def _nearest(
    queries: Float[Tensor, "N w"], rows: Float[Tensor, "n w"], k: int, *, without_own: bool = False
) -> Int64[Tensor, "N k"]:
    """Places of the `k` nearest rows; equal ones, and those that differ by rounding alone, by position."""
    square, place = rows.square().sum(1), torch.arange(len(rows), dtype=torch.float64)
    parts = [torch.zeros(0, k, dtype=torch.int64)]
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        block = queries[start : start + QUERIES_AT_ONCE]
        distance = block.square().sum(1, keepdim=True) + square - 2 * block @ rows.T
        if without_own:
            own = torch.arange(start, start + len(block))
            distance[torch.arange(len(block)), own] = torch.inf
        parts.append((distance.round(decimals=6) + place * 1e-11).topk(k, largest=False).indices)
    return torch.cat(parts)


def _size(missed: Float[Tensor, "n m"]) -> Float[Tensor, " n"]:
    return missed.abs().mean(1)
