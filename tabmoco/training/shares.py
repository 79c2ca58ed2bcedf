"""This process's share of a step, where several train together; in a process alone it is the whole step.

Every process walks the same order of rows and draws the same views of the whole batch, then keeps its own rows. So
what is drawn does not depend on the number of processes, and nothing has to be sent.

With `encoder.norm = batch` training is that of one process for 2 and 4 processes whose batch has a multiple of 4 rows:
its statistics are of four groups of the batch, and more or other shares make other groups.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from tabmoco.config import PretrainConfig
from tabmoco.errors import ConfigError
from tabmoco.nn.encoder import RowEncoder
from tabmoco.objectives import Pretext, Step
from tabmoco.ranks import average, n_ranks, rank
from tabmoco.tables.cells import CellBatch


def check_shares(n_rows: int, config: PretrainConfig) -> None:
    """Refuse a batch whose rows, or whose outside rows, cannot be dealt to all processes in equal shares.

    A mean over unequal shares would not be that of the batch, and what is gathered has to have one shape.
    """
    batch_size = min(config.optimize.batch_size, n_rows)
    if _can_be_dealt(batch_size, config):
        return
    smaller = (size for size in range(batch_size, max(2, n_ranks()) - 1, -1) if _can_be_dealt(size, config))
    fitting = next(smaller, None)
    advice = "use fewer processes" if fitting is None else f"set optimize.batch_size={fitting}, or use fewer processes"
    raise ConfigError(
        f"every process must get as many rows of a batch as the others, but {batch_size} rows and the "
        f"{_n_outside(batch_size, config)} outside rows made of them cannot be dealt to {n_ranks()}; {advice}."
    )


def own_share(step: Step) -> Step:
    """The rows of this rank: of the batch, of its views and of the outside rows each the part that is its turn."""
    if n_ranks() == 1:
        return step
    return step.take(_own(len(step.clean)), _own(len(step.outside)))


def average_gradients(pretext: Pretext, out: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put the mean gradient of all ranks in the place of this one's; returns the means of the figures.

    NOTE[DIFF]: no DistributedDataParallel, which would add a wrapper, hooks and buckets for this one exchange: the
    encoders are small, and the figures travel with their gradients.
    """
    if n_ranks() == 1:
        return out
    learning = [parameter for parameter in pretext.parameters() if parameter.grad is not None]
    means = average([*(parameter.grad for parameter in learning), *out.values()])
    for parameter, mean in zip(learning, means, strict=False):
        parameter.grad = mean
    return dict(zip(out, means[len(learning) :], strict=True))


def share_dropout(pretext: Pretext, batch_size: int, config: PretrainConfig) -> None:
    """Let all ranks together drop what a process alone would drop of the batch."""
    if n_ranks() == 1 or not config.encoder.dropout:
        return
    for encoder in [module for module in pretext.modules() if isinstance(module, RowEncoder)]:
        dealt = _Dealt(batch_size // n_ranks(), _n_outside(batch_size, config) // n_ranks())
        encoder.register_forward_pre_hook(dealt.notice)
        for parent in list(encoder.modules()):
            for name, child in parent.named_children():
                if isinstance(child, nn.Dropout):
                    setattr(parent, name, _SharedDropout(child.p, dealt))


def _n_outside(batch_size: int, config: PretrainConfig) -> int:
    """As many as `make_step` draws."""
    return round(config.corruption.outside_rows * batch_size)


def _can_be_dealt(batch_size: int, config: PretrainConfig) -> bool:
    return batch_size % n_ranks() == 0 and _n_outside(batch_size, config) % n_ranks() == 0


def _own(n_rows: int) -> slice:
    """Which of so many rows of all ranks are those of this one."""
    size, rest = divmod(n_rows, n_ranks())
    assert not rest, "check_shares comes first"
    return slice(rank() * size, (rank() + 1) * size)


class _Dealt:
    """How the rows that an encoder is given lie among those of all ranks."""

    def __init__(self, n_rows: int, n_outside: int):
        self.n_rows = n_rows
        self.n_outside = n_outside
        self.n_given = n_rows

    def notice(self, encoder: nn.Module, given: tuple[CellBatch, ...]) -> None:
        self.n_given = len(given[0])

    def blocks(self) -> list[int]:
        """Rows that lie side by side among those of all ranks: all, or rows and outside rows where both are given at
        once, as moco gives them to its target."""
        both = self.n_outside > 0 and self.n_given == self.n_rows + self.n_outside
        return [self.n_rows, self.n_outside] if both else [self.n_given]


class _SharedDropout(nn.Dropout):
    """Dropout that draws for the rows of all ranks and drops its share of them."""

    def __init__(self, p: float, dealt: _Dealt):
        super().__init__(p)
        self.dealt = dealt

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or n_ranks() == 1:
            return super().forward(x)
        per_row = len(x) // self.dealt.n_given  # attention has as many entries of a row as heads
        whole = [size * per_row * n_ranks() for size in self.dealt.blocks()]
        kept = dropout(torch.ones(sum(whole), *x.shape[1:], dtype=x.dtype, device=x.device), self.p).split(whole)
        return x * torch.cat([part[_own(len(part))] for part in kept])
