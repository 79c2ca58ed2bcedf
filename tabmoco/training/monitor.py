"""Is training working? Figures on rows kept out of it, and a verdict in words."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn.functional import normalize

from tabmoco.corruption import Corruption
from tabmoco.objectives import Pretext, Step, make_step
from tabmoco.tables.cells import CellBatch
from tabmoco.training.online_probe import OnlineProbe

MAX_ROWS = 1_000
"""Rows watched."""

RETRIEVAL_SWAP = 0.5
"""Share of a row's cells swapped before it is searched for."""

COLLAPSED = -0.05
"""Uniformity above which directions differ too little to tell rows apart: a mean squared distance of 0.025."""


def effective_rank(embedding: Float[Tensor, "N D"]) -> float:
    """The exponential of the entropy of the singular values' shares, 1 to D (Roy and Vetterli, "The effective rank",
    2007).

    Near 1 all rows lie on a line: the embedding has collapsed. NaN if an embedding is not finite.
    """
    if not torch.isfinite(embedding).all():
        return float("nan")
    singular = torch.linalg.svdvals((embedding - embedding.mean(0)).cpu().double())  # not every device has float64
    share = singular / singular.sum().clamp(min=1e-30)
    return float(torch.exp(-(share * share.clamp(min=1e-30).log()).sum()))


def alignment(a: Float[Tensor, "N P"], b: Float[Tensor, "N P"]) -> float:
    """Mean squared distance of unit vectors of two views of the same row; 0 is best (Wang and Isola 2020, section
    4.1)."""
    return float((a - b).square().sum(1).mean())


def uniformity(x: Float[Tensor, "N P"]) -> float:
    """Log of the mean Gaussian potential of pairs of unit vectors, at most 0; lower is more spread (Wang and Isola
    2020, section 4.1)."""
    if len(x) < 2:
        return 0.0
    return float(torch.pdist(x).square().mul(-2).exp().mean().log())


@dataclass(frozen=True)
class Monitor:
    """Fixed views of fixed rows, looked at again and again."""

    step: Step
    """The views as the objectives see them in training."""

    half: CellBatch
    """The rows with half of their cells swapped."""

    probe: OnlineProbe | None = None
    """What looks on, if there is a column to be predicted."""

    @classmethod
    def build(cls, rows: CellBatch, corruption: Corruption, *, seed: int, n_local_views: int = 0) -> Monitor:
        """Draw the views once, from `seed`."""
        rows = rows[:MAX_ROWS]
        generator = Generator(rows.missing.device).manual_seed(seed)
        n_rows, device = len(rows), rows.missing.device
        half = torch.rand(rows.missing.shape, generator=generator, device=device).argsort(1) < max(
            1, round(RETRIEVAL_SWAP * rows.missing.shape[1])
        )
        no_row = torch.full((n_rows,), -2, dtype=torch.int64, device=device)  # rows that no queue holds
        content = rows.content_hash().to(device)
        step = make_step(corruption, rows, no_row, content, generator, n_local_views=n_local_views)
        return cls(step, corruption.swap(rows, half, generator).cells)

    @torch.no_grad()
    def look(self, pretext: Pretext) -> dict[str, float]:
        """Figures of the encoder as it is now."""
        was_training = pretext.training
        pretext.eval()
        losses = pretext(self.step)
        clean, half = pretext.encoder(self.step.clean), pretext.encoder(self.half)
        figures = {
            "held_out_loss": float(losses["loss"]),
            "retrieval_accuracy": self._retrieval(clean, half),
            "effective_rank": effective_rank(clean),
            "alignment": alignment(normalize(clean, dim=1), normalize(half, dim=1)),
            "uniformity": uniformity(normalize(clean, dim=1)),
        }
        for name, objective in pretext.objectives.items():
            watched = objective.figures(clean, self.step.clean)
            figures |= {f"{name}/{figure}": float(value) for figure, value in watched.items()}
        if self.probe is not None:
            figures |= self.probe.look(pretext.encoder)
        pretext.train(was_training)
        return figures

    def _retrieval(self, clean: Tensor, half: Tensor) -> float:
        """Share of rows that are their own damaged view's nearest neighbour; an exact duplicate counts as the row."""
        nearest = (normalize(half, dim=1) @ normalize(clean, dim=1).T).argmax(1)
        return float((self.step.content[nearest] == self.step.content).float().mean())


def verdict(before: dict[str, float], after: dict[str, float], *, n_rows: int) -> tuple[bool, str]:
    """Whether training worked, and a sentence that says so with the figures, and what to try if it did not."""
    start, end, rank = before["retrieval_accuracy"], after["retrieval_accuracy"], after["effective_rank"]
    found = (
        f"from half of its cells a row is found among {n_rows:,} in {end:.0%} of the cases; "
        f"the untrained encoder finds {start:.0%}"
    )
    collapsed = None
    if rank < min(2.0, before["effective_rank"] / 2):
        collapsed = f"close to a line (effective rank {rank:.1f})"
    elif after["uniformity"] > max(COLLAPSED, before["uniformity"] / 10) and end < start + 0.1:
        collapsed = f"close to a point (uniformity {after['uniformity']:.4f}, untrained {before['uniformity']:.2f})"
    if collapsed is not None:
        return False, (
            f"Training collapsed: all rows lie {collapsed}. Lower optimize.learning_rate, bring objective.temperature "
            "back towards 0.2 or objective.ema_momentum towards 0.999, or give byol and dino a weighted companion such "
            "as masked_cells."
        )
    if end < start + 0.01 and start < 0.99:
        return False, (
            f"Training brought nothing that shows: {found}. The columns may be independent of one another; try more "
            "steps, or leave out columns that are noise."
        )
    return True, f"Training worked: {found}."
