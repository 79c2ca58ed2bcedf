"""Parts of a training step, as ranks get them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tabmoco.corruption import View
from tabmoco.objectives import Step

TakeRows = Callable[..., Step]


@pytest.fixture(scope="session")
def take_rows() -> TakeRows:
    """`take_rows(step, rows, outside=slice(0, 0))`: the step of some of its rows and of some of its outside rows."""
    return _take_rows


def _take_rows(step: Step, rows: slice, outside: slice = slice(0, 0)) -> Step:
    def part(view: View) -> View:
        return View(view.cells[rows], view.corrupted[rows], view.masked[rows], view.noisy[rows])

    return dataclasses.replace(
        step,
        row=step.row[rows],
        content=step.content[rows],
        clean=step.clean[rows],
        query=part(step.query),
        key=part(step.key),
        outside=step.outside[outside],
        outside_content=step.outside_content[outside],
        local=[part(view) for view in step.local],
    )
