"""Small encoded tables, built as tensors, and small networks over them."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import settings

from tabmoco.config import CorruptionConfig, EncoderConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.corruption import Corruption
from tabmoco.nn.encoder import RowEncoder
from tabmoco.objectives import Step
from tabmoco.objectives import make_step as draw_step
from tabmoco.tables.cells import CellBatch, Layout
from tabmoco.tables.scalings import fit_knots

settings.register_profile("tabmoco", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("tabmoco")

LAYOUTS = {
    "mixed": Layout(
        columns=("amount", "city", "seen_at", "note"),
        number_owner=(0, 2, 2, 3, 3, 3, 3),  # a number, two parts of a timestamp, a hashed text
        code_owner=(1, 2),  # a category, the weekday of the timestamp
        cardinalities=(5, 8),
    ),
    "numbers": Layout(("width", "height", "depth"), (0, 1, 2), (), ()),
    "codes": Layout(("colour", "shape"), (), (0, 1), (4, 90)),
    "one_column": Layout(("amount",), (0,), (), ()),
}

N_KNOTS = 16

DrawCells = Callable[..., CellBatch]
BuildEncoder = Callable[..., RowEncoder]
MakeStep = Callable[..., Step]


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Ctrl-C is heard even where the tests run in the background of a shell that has it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def small_forests() -> Iterator[None]:
    """Forests of a few small trees, for want of time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tabmoco.neighbors.forest.N_TREES", 8)
        patch.setattr("tabmoco.neighbors.forest.MIN_OUTSIDE", 200)
        patch.setattr("tabmoco.training.indexing.MIN_OUTSIDE_ROWS", 400)
        yield


@pytest.fixture(scope="session")
def layout() -> Layout:
    """Every kind of column, one of them with number and code slots."""
    return LAYOUTS["mixed"]


@pytest.fixture(scope="session", params=LAYOUTS)
def any_layout(request: pytest.FixtureRequest) -> Layout:
    """Mixed columns, numbers only, categories only, a single column."""
    return LAYOUTS[request.param]


@pytest.fixture(scope="session")
def draw_cells() -> DrawCells:
    """`draw_cells(layout, n_rows, seed=0, missing=0.1)`: rows whose cells hang together through two hidden numbers."""
    return _draw_cells


@pytest.fixture(scope="session")
def build_encoder() -> BuildEncoder:
    """`build_encoder(layout, seed=0, **encoder_settings)`: a small untrained encoder."""
    return _build_encoder


@pytest.fixture(scope="session")
def small_config() -> PretrainConfig:
    """Settings of a network and a queue small enough for hundreds of steps in a second."""
    return PretrainConfig(
        encoder=EncoderConfig(d_token=4, d_block=16, d_embedding=8, n_blocks=1),
        objective=ObjectiveConfig(queue_size=50, d_projection=6),
        optimize=OptimizeConfig(batch_size=16, patience=1.0),
    )


@pytest.fixture(scope="session")
def make_step() -> MakeStep:
    """`make_step(layout, cells, seed=0, n_local_views=0, **corruption_settings)`: one training step over all rows of
    `cells`."""
    return _make_step


def _draw_cells(layout: Layout, n_rows: int, *, seed: int = 0, missing: float = 0.1) -> CellBatch:
    generator = torch.Generator().manual_seed(seed)
    table = torch.Generator().manual_seed(1234)  # the table's rules, whichever rows are drawn
    hidden = torch.randn(n_rows, 2, generator=generator)
    number = hidden @ torch.randn(2, layout.n_numbers, generator=table)
    number = number + 0.2 * torch.randn(number.shape, generator=generator)
    codes = []
    for n_codes in layout.cardinalities:
        direction = torch.randn(2, generator=table)
        codes.append((torch.sigmoid(hidden @ direction) * n_codes).long().clamp(0, n_codes - 1))
    code = torch.stack(codes, dim=1) if codes else torch.zeros(n_rows, 0, dtype=torch.int64)
    is_missing = torch.rand(n_rows, layout.n_columns, generator=generator) < missing
    number[is_missing[:, list(layout.number_owner)]] = 0.0
    code[is_missing[:, list(layout.code_owner)]] = 0
    return CellBatch(number, code, is_missing)


def _build_encoder(layout: Layout, *, seed: int = 0, **encoder_settings: object) -> RowEncoder:
    config = EncoderConfig(**{"d_token": 4, "d_block": 16, "d_embedding": 8, "n_blocks": 1, **encoder_settings})
    values = _draw_cells(layout, 200, seed=99).number.numpy().T
    fitted = [fit_knots(slot, N_KNOTS) for slot in values]
    knots = np.array([knots for knots, _ in fitted], dtype=np.float32).reshape(-1, N_KNOTS)
    scores = np.array([scores for _, scores in fitted], dtype=np.float32).reshape(-1, N_KNOTS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return RowEncoder(layout, knots, scores, config).eval()


def _make_step(
    layout: Layout, cells: CellBatch, *, seed: int = 0, n_local_views: int = 0, **corruption_settings: object
) -> Step:
    config = dataclasses.replace(CorruptionConfig(), **corruption_settings)
    corruption = Corruption(_draw_cells(layout, 100, seed=7), layout, config)
    generator = torch.Generator().manual_seed(seed)
    rows = cells, torch.arange(len(cells)), cells.content_hash()
    return draw_step(corruption, *rows, generator, n_local_views=n_local_views)
