"""Drift: what moves is found, what does not is left alone, and neither rounding nor chance is taken for a move."""

from __future__ import annotations

import copy
import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import tabmoco
from tabmoco.config import DataConfig, EncoderConfig, IndexConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.errors import ConfigError, SchemaError, TableError
from tabmoco.evaluation import two_samples
from tabmoco.evaluation.drift import drift
from tabmoco.evaluation.drift_sides import Sample, Side
from tabmoco.evaluation.two_samples import (
    by_forest,
    by_logistic,
    classifier_test,
    hashed_texts,
    holm,
    kernel_test,
    kolmogorov_smirnov,
    never_seen,
    proportions,
    shares,
)
from tabmoco.model import RowModel

N_ROWS = 700
WORDS = ["engine", "oil", "leak", "tyre", "bird", "fuel", "wing", "crew", "door", "gate"]
CITIES = [f"c{n}" for n in range(400)]


def make_table(
    n_rows: int, seed: int, *, shift: float = 0, scale: float = 1, united: float = 0.4, gaps: float = 0.02
) -> pd.DataFrame:
    """Flights whose columns hang together through one hidden number."""
    random = np.random.default_rng(seed)
    hidden = random.normal(size=n_rows)
    table = pd.DataFrame(
        {
            "delay": np.round(8 * (hidden + 0.4 * random.normal(size=n_rows)) * scale + shift),
            "air time": 2 * hidden + 0.5 * random.normal(size=n_rows),
            "diståns ✈": np.exp(hidden + 0.3 * random.normal(size=n_rows)),
            "carrier": random.choice(["UA", "DL", "AA"], n_rows, p=[united, 0.7 - united, 0.3]),
            "late": hidden + 0.3 * random.normal(size=n_rows) > 0,
            "city": random.choice(CITIES, n_rows, p=np.arange(1, 401) ** -1.0 / (np.arange(1, 401) ** -1.0).sum()),
            "seen": np.datetime64("2013-01-01") + (random.random(n_rows) * 90 * 86_400).astype("timedelta64[s]"),
            "note": [" ".join(random.choice(WORDS, 4)) for _ in range(n_rows)],
        }
    )
    table.loc[random.random(n_rows) < gaps, "diståns ✈"] = None
    return table


@pytest.fixture(scope="module", autouse=True)
def small_tests():
    """Few trees and few rows for the tests of whole rows, for want of time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(two_samples, "N_TREES", 12)
        patch.setattr("tabmoco.evaluation.drift.KERNEL_ROWS", 200)
        patch.setattr("tabmoco.evaluation.drift.SCORED_ROWS", 250)
        yield


@pytest.fixture(scope="module")
def model(small_forests) -> RowModel:
    config = PretrainConfig(
        data=DataConfig(text_width=4),
        encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
        objective=ObjectiveConfig(queue_size=64),
        optimize=OptimizeConfig(steps=2, batch_size=64),
        index=IndexConfig(calibration_share=0.3),
    )
    return tabmoco.pretrain(make_table(N_ROWS, seed=0), config)


def found_by(found, column: str) -> dict[str, float]:
    return {finding.name: finding.effect for finding in found[column].findings if found.is_move(finding)}


# ---------------------------------------------------------------- statistics


def test_numbers_are_compared_as_by_scipy():
    random = np.random.default_rng(0)
    old, new = random.normal(size=80), random.normal(0.5, size=60)
    expected = stats.ks_2samp(old, new)
    assert kolmogorov_smirnov(old, new) == pytest.approx((expected.statistic, expected.pvalue))
    old, new = random.normal(size=2_000), random.normal(0.5, size=3_000)
    expected = stats.ks_2samp(old, new, method="asymp")
    assert kolmogorov_smirnov(old, new) == pytest.approx((expected.statistic, expected.pvalue))


def test_last_digits_do_not_tell_samples_apart():
    random = np.random.default_rng(0)
    old, new = (random.integers(0, 4, 500).astype(np.float64) for _ in range(2))
    expected = kolmogorov_smirnov(old, new)
    assert expected[0] < 0.1
    assert kolmogorov_smirnov(old, new * (1 + 2e-7) + 1e-7) == expected


def test_shares_of_values():
    distance, p = shares(np.array([500, 300, 200]), np.array([400, 400, 200]))
    assert distance == pytest.approx(0.1)
    expected = stats.chi2_contingency([[500, 300, 200], [400, 400, 200]], correction=False).pvalue
    assert p == pytest.approx(expected)
    assert shares(np.array([500]), np.array([400])) is None
    assert shares(np.zeros(3, np.int64), np.array([1, 2, 3])) is None
    rare = np.ones(300, np.int64)
    distance, p = shares(np.append(rare, 700), np.append(np.zeros(300, np.int64), 1_000))
    assert distance == pytest.approx(0.3) and p < 1e-6, "rare values are pooled, not forgotten"
    assert shares(rare, rare) is None


def test_values_are_not_kept_for_being_frequent_on_one_side():
    """Forty values of five expected cells each: those seen often in a small sample are no sign of anything."""
    random = np.random.default_rng(0)
    p = []
    for _ in range(100):
        old, new = random.multinomial(200, np.ones(40) / 40), random.multinomial(5_000, np.ones(40) / 40)
        seen = old >= 2
        told = shares(old[seen], new[seen], n_old_other=old[~seen].sum(), n_new_other=new[~seen].sum())
        p.append(1.0 if told is None else told[1])
    assert np.mean(np.array(p) <= 0.05) <= 0.12


def test_shares_of_gaps():
    difference, p = proportions(0, 1_000_000, 3, 1_000)
    assert difference == pytest.approx(0.003) and p == pytest.approx(1e-9, rel=0.1), "Fisher's test where few are hit"
    assert proportions(10, 100, 20, 200)[1] == pytest.approx(1.0)
    assert proportions(0, 100, 0, 50) is None and proportions(5, 5, 0, 0) is None
    assert proportions(0, 2_000, 1_000, 2_000)[1] < 1e-6


def test_new_values():
    old, new = np.array([900, 100, 0]), np.array([450, 38, 12])
    beyond, p = never_seen(old, new, 1_000, 500)
    assert beyond == pytest.approx(12 / 500, abs=1e-4)
    assert p < 2 * 3 * (1 / 3) ** 12, "twelve cells, each in the third that is new"
    assert never_seen(np.array([5, 5]), np.array([9, 0]), 10, 9) == (0.0, 1.0)


def test_new_values_of_many_rare_ones_are_no_surprise():
    random = np.random.default_rng(0)
    weights = np.arange(1, 2_001) ** -1.2
    weights /= weights.sum()
    p, beyond = [], []
    for _ in range(200):
        told = never_seen(random.multinomial(1_000, weights), random.multinomial(700, weights), 1_000, 700)
        beyond.append(told[0])
        p.append(told[1])
    assert np.mean(np.array(p) <= 0.05) <= 0.1
    assert np.mean(beyond) < 0.02, "though 10 % of the new cells have values never seen"
    fresh = np.append(np.zeros(2_000, np.int64), np.ones(300, np.int64))
    assert (
        never_seen(np.append(random.multinomial(1_000, weights), np.zeros(300, np.int64)), fresh, 1_000, 300)[1] < 1e-6
    )


def test_holm():
    np.testing.assert_allclose(holm(np.array([0.04, 0.01, 0.03, 0.5])), [0.09, 0.04, 0.09, 0.5])
    assert holm(np.zeros(0)).shape == (0,)


def test_hundreds_of_columns_raise_no_more_false_alarms_than_one():
    random = np.random.default_rng(0)
    alarms = []
    for _ in range(40):
        hits = random.binomial(400, 0.3, size=(200, 2))
        p = np.array([shares(np.array([a, 400 - a]), np.array([b, 400 - b]))[1] for a, b in hits])
        assert (p <= 0.1).any(), "without adjustment every table would raise one"
        alarms.append((holm(p) <= 0.1).any())
    assert 0 < np.mean(alarms) <= 0.2


def by_nearness(rows, is_new, others):
    """The simplest of classifiers: how much nearer to the mean of the new rows."""
    new, old = rows[is_new].mean(0), rows[~is_new].mean(0)
    return np.square(others - old).sum(1) - np.square(others - new).sum(1)


@pytest.mark.parametrize("n_columns", [1, 30])
def test_classifiers_raise_no_false_alarms(n_columns):
    random = np.random.default_rng(n_columns)
    is_new = np.arange(120) < 40
    p = [
        classifier_test(random.normal(size=(120, n_columns)), is_new, by_nearness, seed=seed)[1] for seed in range(100)
    ]
    assert np.mean(np.array(p) <= 0.1) <= 0.17


def test_classifiers_see_how_columns_go_together():
    random = np.random.default_rng(0)
    rows = random.normal(size=(600, 1)) + 0.3 * random.normal(size=(600, 3))
    is_new = np.arange(600) < 300
    rows[:300] = random.permuted(rows[:300], axis=0)
    auroc, p = classifier_test(rows, is_new, by_forest(0), seed=0)
    assert auroc > 0.8 and p < 1e-6


def test_classifiers_of_texts_learn_letters_from_no_side():
    texts = ["oil leak near gate"] * 30 + ["öl am tor gefunden"] * 30
    auroc, p = classifier_test(hashed_texts(texts), np.arange(60) >= 30, by_logistic, seed=0)
    assert auroc == 1.0 and p < 1e-3
    assert abs(hashed_texts(["a b"]) - hashed_texts(["a b", "zzz"])[:1]).sum() == 0


def test_kernel():
    """The unbiased square is that of a loop over pairs, and its effect about the share of rows that went away."""
    random = np.random.default_rng(0)
    old, new = random.normal(size=(12, 2)), random.normal(size=(9, 2))
    rows = np.concatenate([old, new])
    distances = [np.square(a - b).sum() for i, a in enumerate(rows) for b in rows[:i]]

    def mean(a, b):
        same = a is b
        pairs = [(x, y) for i, x in enumerate(a) for j, y in enumerate(b) if not (same and i == j)]
        return np.mean([np.exp(-np.square(x - y).sum() / (2 * np.median(distances))) for x, y in pairs])

    expected = mean(old, old) + mean(new, new) - 2 * mean(old, new)
    square, _, _ = kernel_test(old, new, n_permutations=9, seed=0)
    assert square == pytest.approx(expected, abs=1e-5)
    moved = random.normal(size=(400, 2))
    moved[:80] += 8
    _, effect, p = kernel_test(random.normal(size=(400, 2)), moved, n_permutations=199, seed=0)
    assert effect == pytest.approx(0.2, abs=0.05) and p == pytest.approx(1 / 200)
    assert kernel_test(np.zeros((20, 1)), np.zeros((20, 1)), n_permutations=99, seed=0)[1:] == (0.0, 1.0)


def test_the_kernel_raises_no_false_alarms():
    random = np.random.default_rng(0)
    p = [
        kernel_test(*np.split(random.normal(size=(60, 3)), [40]), n_permutations=99, seed=seed)[2]
        for seed in range(100)
    ]
    assert np.mean(np.array(p) <= 0.1) <= 0.17


# ---------------------------------------------------------------- tables


def test_reference_rows_are_read_back(model):
    points = model.reference.indexes["cells"]
    cells = model.preprocessor.transform(tabmoco.open_table(make_table(N_ROWS, seed=0)).take(points.rows))
    sample = Sample.read(model, points.vectors)
    np.testing.assert_array_equal(sample.missing, cells.missing)
    owner = list(model.preprocessor.layout.code_owner)
    present = ~sample.missing[:, owner]
    np.testing.assert_array_equal(sample.code[present], cells.code.numpy()[present])
    place = model.preprocessor.layout.columns.index("seen")
    slot = model.preprocessor.layout.number_owner.index(place)
    seen = make_table(N_ROWS, seed=0)["seen"].to_numpy()[points.rows].astype("datetime64[s]").astype(np.int64)
    np.testing.assert_array_equal(sample.seconds_of_day(slot), seen % 86_400)


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_the_same_kind_do_not_drift(model, seed):
    found = drift(model, make_table(400, seed=50 + seed), seed=seed)
    assert not found.is_drift and found.moved == [], found.sentences
    counts = {finding.name: finding.counts for finding in found.rows}
    assert counts == {"classifier": True, "kernel": True, "anomaly score": True, "embedding": False}
    assert found.compared_with == "the rows the model learned from" and found.n_old_rows == N_ROWS


@pytest.mark.parametrize("seed", range(2))
def test_halves_of_a_table_do_not_drift(model, seed):
    table = make_table(600, seed=70 + seed)
    is_first = np.random.default_rng(seed).permutation(600) < 300
    found = drift(model, table[is_first], against=table[~is_first], seed=seed)
    assert not found.is_drift, found.sentences
    assert "texts" in {finding.name for finding in found["note"].findings}
    counts = {finding.name: finding.counts for finding in found.rows}
    assert counts == {"classifier": True, "kernel": True, "anomaly score": False, "embedding": True}


def test_embeddings_of_rows_trained_on_are_no_evidence(model):
    found = drift(model, make_table(300, seed=1), against=make_table(N_ROWS, seed=0))
    (embedding,) = [finding for finding in found.rows if finding.name == "embedding"]
    assert not embedding.counts and embedding.adjusted is None


def test_nor_do_they_without_a_smallest_effect(model):
    """What keeps false alarms away is alpha, not that effects are small."""
    found = [drift(model, make_table(300, seed=90 + seed), min_effect=0.0, seed=seed) for seed in range(2)]
    assert not any(one.is_drift for one in found)


@pytest.mark.parametrize("against", [False, True])
def test_what_moved_is_told(model, against):
    moved = make_table(500, seed=1, shift=8, united=0.65, gaps=0.3)
    found = drift(model, moved, against=make_table(400, seed=2) if against else None)
    assert set(found.moved) == {"delay", "carrier", "diståns ✈"}
    assert found_by(found, "delay")["values"] > 0.2
    assert found_by(found, "carrier")["values"] == pytest.approx(0.25, abs=0.08)
    assert found_by(found, "diståns ✈") == {"missing": pytest.approx(0.28, abs=0.05)}
    assert found.is_drift and "classifier" in found.rows_moved
    text = "\n".join(found.sentences)
    assert "delay moved: median" in text and "IQR)" in text and "p < 1e-6" in text
    assert "diståns ✈ moved: missing" in text
    assert found.sentences[-1].startswith("Drift: 3 of 8 columns moved")
    assert [column.moved for column in found.columns] == [True] * 3 + [False] * 5
    assert found["delay"].median_shift == pytest.approx(8 / 11, abs=0.3)


def test_a_wider_spread_is_told(model):
    found = drift(model, make_table(500, seed=1, scale=2.5))
    assert found.moved == ["delay"]
    assert "middle half" in found.change(found["delay"]) and "outside the old range" in found.change(found["delay"])


def test_broken_dependence_is_seen_by_whole_rows_alone(model):
    random = np.random.default_rng(0)
    table = make_table(500, seed=1)
    for name in table:
        table[name] = random.permutation(table[name].to_numpy())
    found = drift(model, table)
    assert found.moved == [] and found.is_drift
    assert {"classifier", "anomaly score"} <= set(found.rows_moved)
    assert found.strange_share > 0.02
    assert "columns may go together in another way" in found.verdict


def test_new_values_are_told_and_many_count(model):
    table = make_table(500, seed=1)
    table.loc[:5, "carrier"] = "ZZ"
    found = drift(model, table)
    assert not found.is_drift
    assert "carrier: new value 'ZZ' in 1.2 % of the rows." in found.sentences
    assert found["carrier"].new_values == (("ZZ", 6),)
    assert not any(line.startswith("city:") for line in found.sentences), "new rare values are to be expected"
    assert found["city"].new_share > 0.02
    table.loc[:49, "carrier"] = "ZZ"
    found = drift(model, table)
    assert found.moved == ["carrier"] and "new values" in found_by(found, "carrier")


def test_ignored_columns_do_not_count(model):
    table = make_table(500, seed=1, shift=30)
    found = drift(model, table, ignore=["delay"])
    assert found.moved == [] and not found.is_drift
    assert found["delay"].ignored and found["delay"].p_value is None
    assert [finding.counts for finding in found.rows] == [True, True, False, False], "the model saw the ignored column"


def test_time_that_goes_on_does_not_count(model):
    table = make_table(500, seed=1)
    table["seen"] += np.timedelta64(120, "D")
    found = drift(model, table)
    assert found["seen"].goes_on and not found.is_drift, found.sentences
    assert any(line.startswith("seen: goes on in time, 2013-02-") for line in found.sentences)
    table["seen"] = table["seen"].dt.floor("D") + pd.Timedelta("7h")
    assert drift(model, table).moved == ["seen"], "other times of day count all the same"
    table = make_table(500, seed=1)
    table["seen"] += np.timedelta64(30, "D")
    assert drift(model, table).moved == ["seen"], "most of these instants are as old as those of training"


def test_other_texts_are_told_where_old_ones_are_given(model):
    table = make_table(200, seed=1)
    table["note"] = [text.replace("e", "é") for text in table["note"]]
    assert drift(model, table).moved == []
    assert drift(model, table, against=make_table(200, seed=2)).moved == ["note"]


def test_empty_and_constant_columns(model):
    table = make_table(200, seed=1)
    table["delay"] = np.nan
    table["carrier"] = None
    table["late"] = True
    table["air time"] = 1.5
    table["seen"] = pd.NaT
    table["note"] = None
    found = drift(model, table)
    assert set(found.moved) >= {"delay", "carrier", "late", "air time", "seen", "note"}
    assert found["air time"].is_constant and "one value only now" in found.change(found["air time"])
    assert found["carrier"].missing == 1.0 and found["carrier"].now is None
    json.dumps(found.to_json(), allow_nan=False)
    back = drift(model, make_table(200, seed=2), against=table)
    assert "delay" in back.moved
    json.dumps(back.to_json(), allow_nan=False)


@pytest.mark.parametrize("n_rows", [1, 5, 25])
def test_few_rows_raise_no_alarm_and_the_verdict_says_what_they_can_show(model, n_rows):
    found = drift(model, make_table(n_rows, seed=3))
    assert not found.is_drift
    assert "only effects of about" in found.verdict
    assert bool(found.rows) and (len(found.rows) > 1) == (n_rows >= 20)
    assert drift(model, make_table(n_rows, seed=3), against=make_table(n_rows, seed=4)).n_old_rows == n_rows


def test_the_same_rows_give_the_same_result(model):
    table = make_table(300, seed=1, shift=2)
    once, again = (drift(model, table).to_json() for _ in range(2))
    assert once == again


def test_last_digits_of_the_reference_do_not_matter(model):
    """A model trained on a GPU has its reference rows rounded otherwise than a CPU would."""
    other = copy.copy(model)
    index = copy.copy(model.reference.indexes["cells"])
    sign = np.random.default_rng(0).choice([-1, 0, 1], index.vectors.shape)
    index.vectors = (index.vectors * (1 + 2e-7 * sign)).astype(np.float32)
    other.reference = dataclasses.replace(model.reference, indexes={**model.reference.indexes, "cells": index})
    table = make_table(300, seed=1)
    once, again = (
        {(c.name, f.name): f.p for c in drift(one, table).columns for f in c.findings} for one in (model, other)
    )
    assert once == pytest.approx(again)


def test_large_tables_are_sampled_and_counted_whole(model, monkeypatch):
    monkeypatch.setattr("tabmoco.evaluation.drift_sides.SAMPLED_ROWS", 100)
    table = make_table(300, seed=1)
    table.loc[[7, 250], "carrier"] = "ZZ"
    seen = []
    side = Side.of_table(model, table, seed=0, progress=seen.append)
    assert sum(seen) == side.n_rows == 300 and len(side.sample) == side.raw.num_rows == 100
    assert side.columns["carrier"].counts["ZZ"] == 2
    assert set(side.texts("note", 20, seed=0)) <= set(side.raw["note"].to_pylist())
    assert side.texts("note", 20, seed=0) != side.raw["note"].to_pylist()[:20], "the first rows are no sample"
    assert side.columns["diståns ✈"].n_missing == table["diståns ✈"].isna().sum()
    found = drift(model, table)
    assert (found.n_sampled, found.n_old_sampled, found.n_rows) == (100, 100, 300)


def test_results_as_tables_and_json(model):
    found = drift(model, make_table(300, seed=1, shift=20))
    table = found.table()
    assert table["column"].to_pylist() == [column.name for column in found.columns]
    assert table["moved"].to_pylist() == [True] + [False] * 7
    assert table["effect"][0].as_py() == found["delay"].effect > 0.5
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["moved"] == ["delay"] and told["is_drift"] and told["columns"][0]["name"] == "delay"
    assert told["columns"][0]["findings"][0]["name"] == "values"
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.alpha = 0.5


def test_what_cannot_be_compared_is_refused(model):
    table = make_table(30, seed=1)
    with pytest.raises(TableError, match="must have rows to compare"):
        drift(model, table[:0])
    with pytest.raises(SchemaError, match="delay"):
        drift(model, table.drop(columns="delay"))
    with pytest.raises(SchemaError, match="ignore names the column 'delais'"):
        drift(model, table, ignore=["delais"])
    with pytest.raises(ConfigError, match="alpha=0"):
        drift(model, table, alpha=0.0)
    bare = copy.copy(model)
    bare.reference = None
    with pytest.raises(TableError, match="no reference rows"):
        drift(bare, table)
    assert drift(bare, table, against=make_table(30, seed=2)).strange_share is None


def test_rows_that_only_come_later_are_not_drift_but_their_embeddings_tell(model):
    now = make_table(400, seed=11)
    later = now.assign(seen=now["seen"] + pd.Timedelta(days=100))
    found = drift(model, later)
    assert found.moved == []
    effects = {finding.name: finding.effect for finding in found.rows}
    as_now = {finding.name: finding.effect for finding in drift(model, now).rows}
    assert effects["anomaly score"] < 0.2 and effects["embedding"] > as_now["embedding"] + 0.05
