"""The first rows after those learned from are not strange for coming later; rows far behind them are."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tabmoco
from tabmoco.config import EncoderConfig, IndexConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.errors import ModelFileError
from tabmoco.model import RowModel
from tabmoco.model_checks import check_widths
from tabmoco.neighbors.known_times import KnownTimes
from tabmoco.tables.cells import CellBatch

pytestmark = pytest.mark.usefixtures("small_forests")

START, DAYS = pd.Timestamp("2024-01-01"), 60
SETTINGS = PretrainConfig(
    encoder=EncoderConfig(d_token=8, d_block=32, n_blocks=1, d_embedding=16),
    objective=ObjectiveConfig(queue_size=256),
    optimize=OptimizeConfig(steps=60, batch_size=64),
    index=IndexConfig(score_rows=800),
)


def payments(n_rows: int, first_day: float, n_days: float, seed: int) -> pd.DataFrame:
    """Payments at random moments; what a shop takes depends on the shop."""
    generator = np.random.default_rng(seed)
    shop = generator.choice(["bakery", "butcher", "jeweller"], n_rows, p=[0.5, 0.3, 0.2])
    usual = np.array([{"bakery": 5.0, "butcher": 20.0, "jeweller": 300.0}[name] for name in shop])
    seconds = ((first_day + n_days * generator.random(n_rows)) * 86_400).astype(np.int64)
    return pd.DataFrame(
        {
            "paid": START + pd.to_timedelta(seconds, "s"),
            "shop": shop,
            "amount": (usual * generator.lognormal(0, 0.3, n_rows)).round(2),
        }
    )


@pytest.fixture(scope="module")
def model() -> RowModel:
    return tabmoco.pretrain(payments(1_200, 0, DAYS, seed=0), SETTINGS)


def p_values(model: RowModel, table: pd.DataFrame) -> np.ndarray:
    return model.score(table)["p_value"].to_numpy()


def at(table: pd.DataFrame, days: float) -> pd.DataFrame:
    """The rows, all so many days after the start."""
    return table.assign(paid=START + pd.Timedelta(days=days))


@pytest.mark.parametrize("first_day", [DAYS, 1.5 * DAYS])
def test_the_next_rows_are_as_ordinary_as_those_before(model, first_day):
    before, after = (p_values(model, payments(600, day, 0.5 * DAYS, seed=1)) for day in (0.5 * DAYS, first_day))
    assert (after <= 0.1).mean() < (before <= 0.1).mean() + 0.05
    assert after.mean() == pytest.approx(before.mean(), abs=0.06)


def test_a_time_far_behind_all_others_is_strange_and_the_cell_is_named(model):
    far = at(payments(50, 0, DAYS, seed=2), 4 * DAYS)
    assert (p_values(model, far) <= 0.02).all()
    cells = model.score(far, explain=True)["cells"].to_pylist()
    assert {row[0]["column"] for row in cells} == {"paid"}
    assert cells[0][0]["found"].startswith("2024-08-28")


def test_a_time_before_all_others_is_strange(model):
    assert np.median(p_values(model, at(payments(50, 0, DAYS, seed=2), -DAYS))) <= 0.02


def test_what_is_strange_besides_the_time_is_found_in_later_rows_too(model):
    dear = payments(100, 1.5 * DAYS, 5, seed=3).assign(shop="bakery", amount=2_000.0)
    assert (p_values(model, dear) <= 0.01).all()


def test_contributions_of_later_rows_add_up_to_their_scores(model):
    later = payments(50, 1.5 * DAYS, 90, seed=4)
    total = model.contributions(later).sum(1)
    np.testing.assert_allclose(total, model.score(later)["anomaly_score"].to_numpy(), rtol=1e-5)


def test_rows_learned_from_are_still_their_own_twins(model):
    learned = payments(1_200, 0, DAYS, seed=0)
    latest = learned.loc[[learned["paid"].argmax()]]
    cells = model.preprocessor.encode(tabmoco.open_table(latest)).cells
    assert np.array_equal(model.scored_points(cells).content, model.points(cells).content)


def test_an_update_moves_the_known_times(model):
    updated = tabmoco.update(model, payments(300, DAYS, DAYS, seed=5), steps=2)
    before, after = model.reference.known_times, updated.reference.known_times
    day = 86_400 / model.preprocessor.encoders[0].scale
    assert before.end.item() == pytest.approx(before.recent.item() + (0.1 + 1) * DAYS * day, abs=4 * day)
    assert (after.end - before.end).item() == pytest.approx(2 * DAYS * day, abs=6 * day)


def test_they_are_saved_and_a_model_without_them_takes_times_as_they_are(model, tmp_path):
    later = payments(50, DAYS, 0.5 * DAYS, seed=7)
    model.save(tmp_path / "model")
    loaded = RowModel.load(tmp_path / "model", device="cpu")
    assert np.array_equal(p_values(loaded, later), p_values(model, later))
    older = dataclasses.replace(model, reference=dataclasses.replace(model.reference, known_times=None))
    assert (p_values(older, later) <= 0.1).mean() > 0.8
    older.save(tmp_path / "older")
    loaded = RowModel.load(tmp_path / "older", device="cpu")
    assert np.array_equal(p_values(loaded, later), p_values(older, later))


@pytest.mark.parametrize(
    "changed",
    [
        {"slots": np.array([1])},
        {"slots": np.array([0, 0]), "recent": np.float32([0, 0]), "end": np.float32([1, 1])},
        {"slots": np.array([0], np.int32)},
        {"recent": np.float32([9])},
        {"end": np.float32([np.inf])},
        {"end": np.float64([2])},
    ],
)
def test_times_that_cannot_be_are_refused(model, changed, tmp_path):
    times = dataclasses.replace(KnownTimes(np.array([0]), np.float32([1]), np.float32([2])), **changed)
    damaged = dataclasses.replace(model, reference=dataclasses.replace(model.reference, known_times=times))
    with pytest.raises(ModelFileError, match="the known times must be finite"):
        check_widths(damaged, damaged.reference)


def test_a_table_without_times_and_a_column_of_one_moment_have_nothing_to_be_later_than():
    table, hardly = payments(300, 0, DAYS, seed=6), SETTINGS.override(["optimize.steps=2"])
    one = table.assign(paid=[None, START] * 150)
    for learned, scored in ((table[["shop", "amount"]], table[["shop", "amount"]]), (one, table)):
        model = tabmoco.pretrain(learned, hardly)
        assert model.reference.known_times is None
        assert np.isfinite(p_values(model, scored)).all()


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20),
    st.floats(-10, 10, width=32),
    st.floats(0, 100, width=32),
)
def test_times_keep_their_order_and_only_later_ones_change(times, recent, width):
    known = KnownTimes(np.array([1]), np.float32([recent]), np.float32([recent]) + np.float32([width]))
    number = torch.stack([torch.arange(len(times)).float(), torch.tensor(times)], dim=1)
    cells = CellBatch(number, torch.zeros(len(times), 0, dtype=torch.int64), torch.zeros(len(times), 1).bool())
    counted = known(cells).number
    end = known.end.item()
    expected = [t if t <= recent else recent if t <= end else recent + (t - end) for t in number[:, 1].tolist()]
    torch.testing.assert_close(counted[:, 1], torch.tensor(expected))
    assert torch.equal(counted[:, 0], number[:, 0]) and torch.equal(cells.number[:, 1], torch.tensor(times))
    assert (counted[number[:, 1].argsort(), 1].diff() >= 0).all()
