"""Probes find what is there, and nothing where nothing is."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

import tabmoco
from tabmoco.errors import ConfigError, SchemaError, TableError
from tabmoco.evaluation.figures import class_figures, number_figures
from tabmoco.evaluation.probes import INPUTS, PROBES


@pytest.fixture(scope="module")
def table(planted) -> pd.DataFrame:
    frame, hidden = planted
    generator = np.random.default_rng(5)
    return frame.assign(
        label=np.where(hidden > 0, "high", "low"),
        height=100 + 10 * hidden,
        grade=np.digitize(hidden, [-1, 0, 1]),
        coin=generator.random(len(frame)) < 0.5,
        day=pd.Timestamp("2024-01-01"),
        constant="x",
        empty=None,
    )


def drop(table: pd.DataFrame, *kept: str) -> pd.DataFrame:
    return table.drop(
        columns=[name for name in ("label", "height", "grade", "coin", "day", "constant", "empty") if name not in kept]
    )


def test_the_planted_label_is_found_by_every_probe(model, table):
    result = tabmoco.probe(model, drop(table, "label"), target="label", seeds=2)
    assert (result.task, result.n_classes, result.n_learned, result.n_tested) == ("classification", 2, 420, 180)
    assert [(found.input, found.probe) for found in result.figures] == [(i, p) for i in INPUTS for p in PROBES.values()]
    assert min(found.mean("auroc") for found in result.figures) > 0.75
    found = result["embedding", "linear probe"]
    assert found.mean("auroc") > 0.9 and 0 < found.spread("auroc") < 0.1
    assert len(found.values["log_loss"]) == 2


def test_pretraining_recovers_what_an_untrained_encoder_blurs(model, table):
    result = tabmoco.probe(model, drop(table, "label"), target="label", seeds=5, n_labels=10)
    for probe in PROBES.values():
        trained, untrained = (result[name, probe].mean("auroc") for name in ("embedding", "untrained encoder"))
        assert trained > untrained + 0.05 and trained > 0.75


def test_without_a_decoder_there_are_no_expected_cells(table):
    config = tabmoco.PretrainConfig().override(
        ["objective.weights={byol = 1.0}", "optimize.steps=2", "encoder.d_block=16", "encoder.d_embedding=8"]
    )
    columns = drop(table, "label")
    blind = tabmoco.pretrain(columns.drop(columns="label"), config)
    result = tabmoco.probe(blind, columns, target="label", seeds=1)
    assert list(dict.fromkeys(found.input for found in result.figures)) == list(INPUTS[1:])


def test_chance_is_told_as_chance(model, table):
    result = tabmoco.probe(model, drop(table, "coin"), target="coin", seeds=3)
    for found in result.figures:
        assert 0.35 < found.mean("auroc") < 0.65


def test_numbers_are_regressed_and_grades_classified(model, table):
    result = tabmoco.probe(model, drop(table, "height"), target="height", seeds=1)
    found = result["embedding", "linear probe"]
    assert result.task == "regression" and result.names == ("rmse", "r2")
    assert found.mean("r2") > 0.6 and 2 < found.mean("rmse") < 7 and math.isnan(found.spread("r2"))
    assert tabmoco.probe(model, drop(table, "grade"), target="grade", seeds=1).n_classes == 4
    forced = tabmoco.probe(model, drop(table, "grade"), target="grade", seeds=1, task="regression")
    assert forced.n_classes == 0 and forced["embedding", "linear probe"].mean("r2") > 0.5


def test_rows_without_a_target_are_left_out_and_their_cells_change_nothing(model, table):
    part = drop(table, "label").copy()
    part.loc[500:, "label"] = None
    result = tabmoco.probe(model, part, target="label", seeds=1)
    assert (result.n_left_out, result.n_learned + result.n_tested) == (100, 500)


def test_answers_of_tested_rows_reach_no_probe(model, table, monkeypatch):
    """With other answers in the tested rows, the same predictions are made."""
    made = []

    def keep(y, probability):
        made.append(probability)
        return class_figures(y, probability)

    monkeypatch.setattr("tabmoco.evaluation.probes.class_figures", keep)
    monkeypatch.setattr("tabmoco.evaluation.probes.draw_labelled", lambda y, n, n_labels, *, seed: np.arange(n_labels))
    part = drop(table, "label")
    tabmoco.probe(model, part, target="label", seeds=1)
    shuffled = part.copy()
    shuffled.loc[420:, "label"] = shuffled.loc[420:, "label"].to_numpy()[::-1]
    tabmoco.probe(model, shuffled, target="label", seeds=1)
    for first, second in zip(made[: len(made) // 2], made[len(made) // 2 :], strict=True):
        np.testing.assert_array_equal(first, second)


def test_the_result_is_json(model, table):
    result = tabmoco.probe(model, drop(table, "label"), target="label", seeds=1)
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["target"] == "label" and len(document["figures"]) == 10
    assert document["figures"][0]["auroc"]["std"] is None
    assert document["figures"][0]["auroc"]["mean"] == document["figures"][0]["auroc"]["values"][0]


@pytest.mark.parametrize(
    ("target", "options", "error", "message"),
    [
        ("colour", {}, SchemaError, "it was trained on 'colour', so the figures would mislead; .* --exclude colour"),
        ("labl", {}, SchemaError, "labl"),
        ("day", {}, SchemaError, "the target must hold numbers or classes, 'day' holds timestamp"),
        ("day", {"task": "classification"}, TableError, "labels must be words, whole numbers or truth values"),
        ("constant", {}, TableError, "at least two values, 'constant' holds x alone"),
        ("empty", {}, TableError, "the target must have values, 'empty' has none"),
        ("label", {"task": "guess"}, ConfigError, "task must be auto, classification or regression"),
        ("label", {"task": "regression"}, TableError, "targets must be numbers, got 'high'"),
        ("height", {"task": "classification"}, TableError, "Unknown label type"),
        ("label", {"seeds": 0}, ConfigError, "seeds must be at least 1"),
        ("label", {"n_labels": 600}, TableError, "at least 2 rows to learn from and 1 to test on, got 600 of 600"),
    ],
)
def test_what_cannot_be_probed_is_refused(model, table, target, options, error, message):
    with pytest.raises(error, match=message):
        tabmoco.probe(model, table, target=target, **options)


def test_figures_of_classes():
    y = np.array([0, 0, 1, 2])
    probability = np.array([[0.8, 0.1, 0.1], [0.4, 0.5, 0.1], [0.3, 0.6, 0.1], [0.1, 0.1, 0.8]])
    figures = class_figures(y, probability)
    assert figures["accuracy"] == 0.75
    assert figures["auroc"] == pytest.approx((1 + 1 + 1) / 3)
    assert figures["log_loss"] == pytest.approx(-np.log([0.8, 0.4, 0.6, 0.8]).mean())
    assert math.isnan(class_figures(np.zeros(3, int), np.full((3, 2), 0.5))["auroc"])


def test_figures_of_numbers():
    figures = number_figures(np.array([0.0, 2.0]), np.array([1.0, 2.0]))
    assert figures == {"rmse": pytest.approx(0.5**0.5), "r2": pytest.approx(0.5)}
    assert math.isnan(number_figures(np.ones(2), np.ones(2))["r2"])
