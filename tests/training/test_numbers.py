"""Numbers that are not finite stop training with a reason, odd ones do not, and a collapse is called one."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn.functional import normalize

import tabmoco.objectives.byol
from tabmoco.config import EncoderConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.errors import TrainingError
from tabmoco.model import RowModel
from tabmoco.objectives import Pretext
from tabmoco.tables.cells import CellBatch, Layout
from tabmoco.training.checkpoint import read_facts
from tabmoco.training.finite import far_columns, not_finite
from tabmoco.training.pretrain import pretrain

pytestmark = pytest.mark.usefixtures("small_forests")

N_ROWS = 200
SMALL = PretrainConfig(
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=128),
    optimize=OptimizeConfig(steps=6, batch_size=64, patience=1.0, checkpoint_seconds=0.0),
)


def make_table(seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    size = random.normal(size=N_ROWS)
    return pd.DataFrame(
        {
            "size": size,
            "weight": 2 * size + random.normal(scale=0.1, size=N_ROWS),
            "colour": np.where(size > 0.5, "red", np.where(size < -0.5, "blue", "green")),
        }
    )


def change(**groups: dict[str, object]) -> PretrainConfig:
    """`change(optimize={"steps": 3})`: the settings with some of them replaced."""
    parts = {name: dataclasses.replace(getattr(SMALL, name), **values) for name, values in groups.items()}
    return dataclasses.replace(SMALL, **parts)


# ---------------------------------------------------------------- not finite


def spoil(monkeypatch: pytest.MonkeyPatch, *, at_step: int, gradient: bool) -> None:
    """Make the loss or its gradient of one step, and of none before, not a number."""
    forward, n_calls = Pretext.forward, 0

    def spoilt(pretext: Pretext, step: object) -> dict[str, torch.Tensor]:
        nonlocal n_calls
        out = forward(pretext, step)
        n_calls += pretext.training
        if pretext.training and n_calls == at_step + 1:
            zero = out["loss"] * 0
            # The root of zero is zero, but its slope is not finite.
            out["loss"] = out["loss"] + (zero.square().sqrt() if gradient else zero * math.nan)
        return out

    monkeypatch.setattr(Pretext, "forward", spoilt)


@pytest.mark.parametrize("gradient", [False, True], ids=["the loss", "the gradient"])
def test_a_loss_or_gradient_that_is_not_finite_stops_training_with_step_columns_and_remedy(
    tmp_path, monkeypatch, gradient
):
    table, config = make_table(), change(optimize={"batch_size": 512})  # every step sees every row
    table.loc[3, "weight"] = 1e300
    whole = pretrain(table, config)
    with monkeypatch.context() as patch, pytest.raises(TrainingError) as raised:
        spoil(patch, at_step=4, gradient=gradient)
        pretrain(table, config, out=tmp_path / "model")
    message = str(raised.value)
    assert "must be finite, but was not at step 4; training stopped and the last checkpoint is kept." in message
    assert "Lower optimize.learning_rate, which is 0.002, or leave out 'weight'," in message
    assert "size" not in message
    checkpoint = tmp_path / "model.training" / "checkpoint.safetensors"
    assert read_facts(checkpoint)["progress"]["step"] == 4  # the steps 0 to 3
    tensors = safetensors.torch.load_file(checkpoint).values()
    assert all(torch.isfinite(tensor).all() for tensor in tensors if tensor.is_floating_point())
    resumed = pretrain(table, config, out=tmp_path / "model", resume=True)  # the cause is gone
    np.testing.assert_array_equal(resumed.embed(table), whole.embed(table))


def test_ordinary_rows_are_not_blamed():
    cells = CellBatch(torch.tensor([[1.0, -3.0]]), torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, 2).bool())
    error = not_finite(7, cells, Layout(("size", "weight"), (0, 1), (), ()), 0.5)
    assert str(error).endswith(
        "Lower optimize.learning_rate, which is 0.5; no number in the rows of that step lies far out."
    )


def test_the_columns_of_the_farthest_numbers_are_named_farthest_first():
    names = ("near", "far", "farther", "farthest", "lost", "when")
    layout = Layout(names, (0, 1, 2, 3, 4, 5, 5), (), ())
    number = torch.tensor([[1.0, 40.0, 2.0, -900.0, 0.0, 0.0, 31.0], [2.0, 1.0, 50.0, 0.0, math.nan, 0.0, 0.0]])
    cells = CellBatch(number, torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, 6).bool())
    assert far_columns(cells, layout) == ["lost", "farthest", "farther"]
    assert far_columns(cells[:0], layout) == []


# ---------------------------------------------------------------- odd columns


ODD = {
    "one value": lambda random: np.full(N_ROWS, 3.5),
    "one category": lambda random: np.full(N_ROWS, "always"),
    "a category per row": lambda random: [f"unseen {row}" for row in range(N_ROWS)],
    "one rare category": lambda random: np.where(np.arange(N_ROWS) == 3, "once", None),
    "huge": lambda random: random.normal(size=N_ROWS) * 1e300,
    "both ends of float64": lambda random: np.where(random.random(N_ROWS) < 0.5, -1.7e308, 1.7e308),
    "denormal": lambda random: random.integers(1, 1000, N_ROWS) * 5e-324,
    "one absurd value": lambda random: np.where(np.arange(N_ROWS) == 3, 1e300, random.normal(size=N_ROWS)),
    "infinities": lambda random: np.where(random.random(N_ROWS) < 0.1, np.inf, random.normal(size=N_ROWS)),
    "large whole numbers": lambda random: random.integers(-(2**62), 2**62, N_ROWS),
    "99 % missing numbers": lambda random: np.where(np.arange(N_ROWS) % 100 == 0, random.normal(size=N_ROWS), np.nan),
    "99 % missing categories": lambda random: np.where(np.arange(N_ROWS) % 100 == 0, "red", None),
    "nothing": lambda random: np.full(N_ROWS, np.nan),
}


@pytest.mark.filterwarnings("ignore::tabmoco.tables.notices.TabmocoWarning")
@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_an_odd_column_does_not_disturb_training(make):
    table = make_table()
    table["odd"] = make(np.random.default_rng(1))
    model = pretrain(table, change(optimize={"steps": 3}))
    assert all(math.isfinite(value) for look in model.record["metrics"] for value in look.values())
    assert np.isfinite(model.embed(table)).all()
    scores = model.score(table, fpr=0.5, explain="all")
    assert np.isfinite(scores["anomaly_score"].to_numpy()).all()


@pytest.mark.filterwarnings("ignore::tabmoco.tables.notices.TabmocoWarning")
def test_all_odd_columns_together_come_back_from_a_file(tmp_path):
    table, random = make_table(), np.random.default_rng(1)
    for name, make in ODD.items():
        table[name] = make(random)
    model = pretrain(table, change(optimize={"steps": 3}), out=tmp_path / "model")
    left_out = {column.name for column in model.schema.columns if column.kind == "dropped"}
    assert {"one value", "one category", "nothing"} <= left_out
    assert "huge" not in left_out and "denormal" not in left_out
    loaded = RowModel.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.embed(table), model.embed(table))


# ---------------------------------------------------------------- collapse


class _Bare(nn.Module):
    """A head or predictor that is none."""

    def __init__(self, *_: object):
        super().__init__()

    def forward(self, embedding: torch.Tensor) -> torch.Tensor:
        return normalize(embedding.float(), dim=-1)


def test_a_planted_collapse_is_said_in_words(monkeypatch):
    """Rows are pulled together by byol, and nothing holds them apart: no predictor, no head, a target without delay."""
    monkeypatch.setattr(tabmoco.objectives.byol, "Predictor", _Bare)
    monkeypatch.setattr(tabmoco.objectives.byol, "ProjectionHead", _Bare)
    config = change(
        objective={"weights": {"byol": 1.0}, "ema_momentum": 0.0, "ema_momentum_end": 0.0},
        optimize={"steps": 80, "learning_rate": 2e-2, "checkpoint_seconds": 60.0},
    )
    record = pretrain(make_table(), config).record
    assert not record["worked"]
    assert record["verdict"].startswith("Training collapsed: all rows lie close to a ")
    assert "objective.ema_momentum" in record["verdict"]


def test_an_absurd_temperature_is_not_called_a_success():
    config = change(
        objective={"weights": {"moco": 1.0}, "temperature": 100.0},
        optimize={"steps": 40, "checkpoint_seconds": 60.0},
    )
    record = pretrain(make_table(), config).record
    assert not record["worked"]
    assert "brought nothing" in record["verdict"] or "collapsed" in record["verdict"]
