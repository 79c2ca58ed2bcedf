"""Damaged rows are told from real ones as well as their damage allows."""

from __future__ import annotations

import torch

from tabmoco.config import CorruptionConfig
from tabmoco.plausibility import corruption_plausibility
from tabmoco.tables.cells import CellBatch, Layout

LAYOUT = Layout(("a", "b", "c"), (0, 1, 2), (), ())


def rows(number: torch.Tensor) -> CellBatch:
    return CellBatch(
        number, torch.zeros(len(number), 0, dtype=torch.int64), torch.zeros(number.shape, dtype=torch.bool)
    )


def test_swaps_show_where_columns_depend_on_one_another_and_not_where_they_do_not():
    generator = torch.Generator().manual_seed(0)
    alone = torch.randn(600, 3, generator=generator)
    together = alone[:, :1] + 0.05 * torch.randn(600, 3, generator=generator)
    config = CorruptionConfig()
    independent = corruption_plausibility(rows(alone), LAYOUT, config)
    dependent = corruption_plausibility(rows(together), LAYOUT, config)
    assert abs(independent["50% of the cells swapped"] - 0.5) < 0.1
    assert dependent["50% of the cells swapped"] > 0.8
    assert dependent["10% of the cells swapped"] < dependent["50% of the cells swapped"]
    assert set(dependent) >= {"query views", "outside rows"}


def test_equal_seeds_give_equal_figures():
    cells = rows(torch.randn(100, 3, generator=torch.Generator().manual_seed(1)))
    assert corruption_plausibility(cells, LAYOUT, CorruptionConfig(), seed=3) == corruption_plausibility(
        cells, LAYOUT, CorruptionConfig(), seed=3
    )


def test_too_few_rows_give_no_report():
    assert corruption_plausibility(rows(torch.randn(99, 3)), LAYOUT, CorruptionConfig()) == {}


def test_no_outside_rows_no_figure_for_them():
    cells = rows(torch.randn(100, 3, generator=torch.Generator().manual_seed(1)))
    assert "outside rows" not in corruption_plausibility(cells, LAYOUT, CorruptionConfig(outside_rows=0.0))
