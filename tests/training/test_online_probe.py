"""The probe that looks on: it says what embeddings tell of a column, and changes nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import Ridge

from tabmoco import pretrain
from tabmoco.config import DataConfig, EncoderConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.errors import ConfigError, SchemaError, TableError
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.store import MemoryTable
from tabmoco.tables.target import Target
from tabmoco.training import online_probe
from tabmoco.training.online_probe import RIDGE, OnlineProbe

SMALL = PretrainConfig(
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=100),
    optimize=OptimizeConfig(steps=6, batch_size=32),
)


@pytest.fixture
def cells(layout, draw_cells):
    return draw_cells(layout, 200, seed=3)


@pytest.fixture
def encoder(build_encoder, layout):
    return build_encoder(layout).eval()


def build(target: Target, cells, *, n_held: int = 60) -> OnlineProbe | None:
    return OnlineProbe.build(target, MemoryTable(cells), np.arange(n_held), seed=0, device=torch.device("cpu"))


def of_numbers(y: np.ndarray, rows: np.ndarray | None = None) -> Target:
    return Target("regression", np.arange(len(y)) if rows is None else rows, y, 0)


def of_classes(y: np.ndarray) -> Target:
    return Target("classification", np.arange(len(y)), y, int(y.max()) + 1)


def test_it_is_ridge_regression_on_standardised_embeddings(cells, encoder):
    embedding = encoder(cells).detach().double().numpy()
    y = embedding @ np.random.default_rng(0).normal(size=embedding.shape[1]) + 7.0
    y += np.random.default_rng(1).normal(size=200) * y.std()
    probe = build(of_numbers(y), cells)
    known, asked = encoder(probe.learned).detach().double().numpy(), encoder(probe.judged).detach().double().numpy()
    centre, scale = known.mean(0), known.std(0)
    model = Ridge(alpha=RIDGE * len(known)).fit((known - centre) / scale, probe.learned_y)
    expected = model.score((asked - centre) / scale, probe.judged_y)
    assert probe.look(encoder) == {"probe_r2": pytest.approx(expected, abs=1e-6)}
    assert 0.2 < expected < 0.8


def test_classes_are_told_apart_by_what_the_embedding_knows_and_not_by_chance(cells, encoder):
    embedding = encoder(cells).detach().numpy()
    known = np.digitize(embedding[:, 0], np.quantile(embedding[:, 0], [0.4, 0.8]))
    drawn = np.random.default_rng(2).permutation(known)
    assert build(of_classes(known), cells).look(encoder)["probe_auroc"] > 0.8
    assert abs(build(of_classes(drawn), cells).look(encoder)["probe_auroc"] - 0.5) < 0.2


def test_a_class_that_no_judged_row_has_does_not_count(cells, encoder):
    y = np.repeat([0, 1], 100)
    y[150] = 2
    probe = build(of_classes(np.roll(y, 30)), cells)
    assert 2 not in probe.judged_y
    assert 0 <= probe.look(encoder)["probe_auroc"] <= 1
    alone = dataclasses.replace(probe, judged_y=np.zeros_like(probe.judged_y))
    assert alone.look(encoder)["probe_auroc"] == 0.5


def test_it_learns_from_training_rows_and_is_judged_on_rows_kept_out(cells, monkeypatch):
    probe = build(of_numbers(np.arange(200.0)), cells)
    assert set(probe.learned_y) == set(range(60, 200))
    assert set(probe.judged_y) == set(range(60))
    apart = build(of_numbers(np.arange(200.0)), cells, n_held=0)
    assert not set(apart.learned_y) & set(apart.judged_y)
    assert len(apart.learned_y) == len(apart.judged_y) == 100
    monkeypatch.setattr(online_probe, "MAX_ROWS", 25)
    few = build(of_numbers(np.arange(200.0)), cells)
    assert len(few.learned) == len(few.judged) == len(few.learned_y) == len(few.judged_y) == 25


def test_rows_without_an_answer_take_no_part(cells):
    rows = np.arange(0, 200, 3)
    probe = build(of_numbers(rows * 10.0, rows), cells)
    assert set(probe.learned_y) | set(probe.judged_y) == set(rows * 10.0)
    assert build(of_numbers(np.arange(9.0), np.arange(100, 109)), cells) is None


# ------------------------------------------------------------------ in pretrain


def people(n_rows: int = 600) -> pd.DataFrame:
    random = np.random.default_rng(4)
    age, hours = random.normal(40, 10, n_rows), random.normal(30, 8, n_rows)
    return pd.DataFrame(
        {"age": age, "hours": hours, "pay": age * hours, "rich": np.where(age * hours > 1200, "y", "n")}
    )


def test_the_target_is_watched_and_not_learned_from():
    table = people()
    watched = pretrain(table, SMALL.override(["data.target=rich"]))
    apart = pretrain(table.drop(columns="rich"), SMALL)
    assert "rich" not in watched.preprocessor.layout.columns
    assert torch.equal(torch.from_numpy(watched.embed(table)), torch.from_numpy(apart.embed(table)))
    for more, fewer in zip(watched.record["metrics"], apart.record["metrics"], strict=True):
        assert more.keys() - fewer.keys() == {"probe_auroc"}
    assert watched.record["figures"]["probe_auroc"] > 0.8
    assert "probe auroc" in watched.card()


def test_numbers_are_watched_too():
    model = pretrain(people()[["age", "hours", "pay"]], SMALL.override(["data.target=pay"]))
    assert model.record["figures"]["probe_r2"] > 0.3


def test_new_rows_need_no_target_and_may_have_one(recwarn):
    table = people()
    model = pretrain(table, SMALL.override(["data.target=rich"]))
    recwarn.clear()
    assert np.array_equal(model.embed(table.head(9)), model.embed(table.head(9).drop(columns="rich")))
    assert not recwarn.list


def test_a_target_with_too_few_values_is_said_to_have_no_probe():
    table = people()
    table.loc[5:, "rich"] = None
    with pytest.warns(TabmocoWarning, match="5 rows have a 'rich': too few for a probe"):
        model = pretrain(table, SMALL.override(["data.target=rich"]))
    assert "probe_auroc" not in model.record["figures"]


def test_a_target_that_is_not_there_or_not_apart_is_an_error():
    with pytest.raises(SchemaError, match="richt"):
        pretrain(people(), SMALL.override(["data.target=richt"]))
    with pytest.raises(ConfigError, match=r"data.target must be no column that is used, but 'age'"):
        DataConfig(target="age", columns=("age", "pay"))
    with pytest.raises(TableError, match="must have at least two values"):
        pretrain(people().assign(rich="y"), SMALL.override(["data.target=rich"]))
