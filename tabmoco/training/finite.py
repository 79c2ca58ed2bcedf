"""Training stops at the first number that is not finite, and says where it may come from."""

from __future__ import annotations

import torch

from tabmoco.errors import TrainingError
from tabmoco.tables.cells import CellBatch, Layout
from tabmoco.tables.names import list_names

FAR = 30.0
"""Standard deviations from the mean of its column from which on a number lies far out."""

MOST_NAMED = 3


def not_finite(step: int, cells: CellBatch, layout: Layout, learning_rate: float) -> TrainingError:
    """The error for a loss, gradient or held-out figure that is not finite after `step`, whose rows are `cells`."""
    far = far_columns(cells, layout)
    if far:
        suspects = f", or leave out {list_names(far)}, whose numbers in the rows of that step lie farthest out"
    else:
        suspects = "; no number in the rows of that step lies far out"
    return TrainingError(
        f"the loss or its gradient must be finite, but was not at step {step}; training stopped and the last "
        f"checkpoint is kept. Lower optimize.learning_rate, which is {learning_rate:g}{suspects}."
    )


def far_columns(cells: CellBatch, layout: Layout) -> list[str]:
    """Names of the columns with the farthest numbers, farthest first; none if no number is far out."""
    if not layout.n_numbers or not len(cells):
        return []
    reach = torch.nan_to_num(cells.number, nan=torch.inf).abs().amax(0).tolist()
    columns: dict[str, float] = {}
    for owner, most in zip(layout.number_owner, reach, strict=True):
        columns[layout.columns[owner]] = max(most, columns.get(layout.columns[owner], 0.0))
    far = sorted((name for name, most in columns.items() if most > FAR), key=lambda name: -columns[name])
    return far[:MOST_NAMED]
