"""The benchmark on a table of one's own: the right verdict, no leaks, the same rows for all, trees where trees win."""

from __future__ import annotations

import importlib.util
import json
import re

import numpy as np
import pandas as pd
import pytest

import tabmoco
from tabmoco.config import EncoderConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.errors import ConfigError, SchemaError, TableError
from tabmoco.evaluation import comparison
from tabmoco.evaluation.inputs import InputReader
from tabmoco.evaluation.problem import Problem
from tabmoco.evaluation.rivals import all_methods
from tabmoco.evaluation.verdict import Outcome, lead, verdict
from tabmoco.tables.source import open_table

SMALL = PretrainConfig(
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=64),
    optimize=OptimizeConfig(steps=3, batch_size=64),
)
NAMES = [method.name for method in all_methods(is_regression=False)]


@pytest.fixture(scope="module", autouse=True)
def small_trees():
    """A few trees in place of hundreds, and a small index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tabmoco.evaluation.heads.N_TREES", 20)
        patch.setattr("tabmoco.evaluation.boosted.N_ROUNDS", 40)
        patch.setattr("tabmoco.evaluation.rivals.FEW_ROUNDS", 40)
        patch.setattr("tabmoco.neighbors.forest.N_TREES", 8)
        patch.setattr("tabmoco.neighbors.forest.MIN_OUTSIDE", 200)
        patch.setattr("tabmoco.training.indexing.MIN_OUTSIDE_ROWS", 400)
        yield


# ------------------------------------------------------------------ verdicts on figures made by hand

FAMILIES = {
    "guess": ("guess", "the classes' shares", ""),
    "logistic": ("linear", "logistic regression", "the cells"),
    "catboost": ("trees", "CatBoost", "the cells"),
    "untrained": ("control", "logistic regression", "the untrained encoder"),
    "components": ("control", "logistic regression", "PCA of the cells"),
    "embedding": ("probe", "logistic regression", "the embedding"),
    "expected": ("probe", "logistic regression", "expected cells"),
    "tabmoco": ("tabmoco", "TabMoCoClassifier", "cells and expected cells"),
}
JITTER = np.array([-0.004, 0.0, 0.004])


def outcomes(by_labels: dict[int, dict[str, float]], *, noise: float = 0.2, figure: str = "auroc") -> list[Outcome]:
    """Outcomes of three draws around these means; methods differ from each other by `noise` times a draw's luck."""
    made = []
    for n_labels, means in by_labels.items():
        for place, (name, mean) in enumerate(means.items()):
            own = np.roll(JITTER, place) * noise
            family, learner, reads = FAMILIES[name]
            values = {figure: tuple((mean + JITTER + own).tolist())}
            made.append(Outcome(name, family, learner, reads, n_labels, values, seconds=(1.0,) * 3))
    return made


def figures(**changes: float) -> dict[str, float]:
    usual = {
        "guess": 0.5, "logistic": 0.7, "catboost": 0.7, "untrained": 0.65, "components": 0.69, "embedding": 0.6,
        "expected": 0.7, "tabmoco": 0.7,
    }  # fmt: skip
    return {**usual, **changes}


def said(told: list[str], pattern: str) -> bool:
    return any(re.search(pattern, sentence) for sentence in told)


def test_trees_that_are_ahead_from_some_number_of_labels_on():
    told = verdict(
        outcomes(
            {
                25: figures(tabmoco=0.76),
                100: figures(catboost=0.8, tabmoco=0.8005),
                500: figures(catboost=0.9, tabmoco=0.85),
                2_000: figures(catboost=0.95, tabmoco=0.9),
            }
        ),
        "classification",
        n_all=2_000,
    )
    assert told[0].startswith("With 25 labels TabMoCoClassifier is ahead of all rivals: AUROC 0.76, 0.7 for the best")
    assert "(+6.0 points, margin" in told[0]
    assert said(
        told, "With 100 labels TabMoCoClassifier and the best rival, CatBoost on the cells, cannot be told apart"
    )
    assert said(told, "With 500 labels CatBoost on the cells is ahead of TabMoCoClassifier: AUROC 0.9 against 0.85")
    assert said(told, r"With all 2,000 labels CatBoost on the cells is ahead .*\(\+5.0 points")
    assert said(told, "^Trees are the better choice from 500 labels on: CatBoost on the cells is ahead of Tab")
    assert told[-1] == (
        "Recommendation: with up to 100 labels use TabMoCoClassifier; "
        "with 500 labels or more use CatBoost on the cells."
    )


def test_tabmoco_ahead_everywhere():
    told = verdict(outcomes({n: figures(tabmoco=0.75) for n in (25, 100)}), "classification")
    assert said(
        told, "^Trees are never the better choice here: TabMoCoClassifier is ahead .* any number of labels tried"
    )
    assert told[-1] == "Recommendation: use TabMoCoClassifier."


def test_what_cannot_be_told_apart_is_not_recommended_over_what_is_simpler():
    told = verdict(outcomes({100: figures(logistic=0.6, tabmoco=0.702)}, noise=5.0), "classification")
    assert "cannot be told apart" in told[0]
    assert said(told, "^Trees and TabMoCoClassifier cannot be told apart with 100 labels")
    assert told[-1] == (
        "Recommendation: with 100 labels use CatBoost on the cells (TabMoCoClassifier may be as good, but has to be "
        "pretrained)."
    )


def test_pretraining_that_adds_nothing_and_pretraining_that_helps_at_times():
    useless = outcomes({25: figures(untrained=0.702), 100: figures(untrained=0.70)}, noise=2.0)
    told = verdict(useless, "classification")
    assert said(told, "^The pretraining adds nothing here: logistic regression on expected cells is not clearly better")
    assert said(told, r"\(-0.2 points to \+0.0 points\)")
    some = verdict(outcomes({25: figures(untrained=0.6), 100: figures(untrained=0.75)}), "classification")
    assert said(some, r"^The pretraining helps with 25 labels \(\+10.0 points\)")
    assert said(some, r"with 100 labels \(-5.0 points\) it does harm")
    assert said(some, "^Yet alone it is nowhere clearly better than the cells or their principal components")
    more = verdict(outcomes({25: figures(expected=0.8)}), "classification")
    assert said(more, "^Logistic regression learns more from expected cells than from the cells .* with 25 labels")
    plain = {name: figure for name, figure in figures(embedding=0.8).items() if name != "expected"}
    without = verdict(outcomes({25: plain}), "classification")
    assert said(without, "^Logistic regression learns more from the embedding than from the cells .* with 25 labels")


def test_where_nothing_beats_guessing_nothing_is_recommended():
    luck = dict.fromkeys(FAMILIES, 0.5015)
    told = verdict(outcomes({25: {**luck, "guess": 0.5}}, noise=5.0), "classification")
    assert told[0] == "With 25 labels nothing is clearly better than guessing."
    assert told[1:] == [told[-1]] and told[-1].startswith("Recommendation: none;")


def test_lower_errors_are_better():
    told = verdict(
        outcomes({100: {"logistic": 9.0, "catboost": 7.0, "tabmoco": 8.0, "guess": 20.0}}, figure="rmse"), "regression"
    )
    assert told[0].startswith("With 100 labels CatBoost on the cells is ahead of TabMoCoClassifier: RMSE 7 against 8")
    assert "(RMSE 1 lower, margin" in told[0]
    assert told[-1] == "Recommendation: with 100 labels use CatBoost on the cells."


def test_margins_grow_with_luck_in_labels_and_in_test_rows():
    def outcome(name, *values, partial=()):
        return Outcome(name, "trees", name, "", 10, {"auroc": values}, partial)

    found = lead(outcome("a", 0.8, 0.84), outcome("b", 0.8, 0.8), "auroc")
    assert found.mean == pytest.approx(0.02)
    assert found.margin == pytest.approx(3.0777 * 0.02, rel=1e-3)  # t with one degree of freedom
    assert not found.is_clear
    sure = lead(outcome("a", 0.8), outcome("b", 0.7), "auroc")
    assert sure.margin == 0 and sure.is_clear
    shaky = lead(outcome("a", 0.8, partial=((0.7, 0.9),)), outcome("b", 0.7, partial=((0.7, 0.7),)), "auroc")
    assert shaky.margin == pytest.approx(1.2816 * 0.1, rel=1e-3) and not shaky.is_clear
    assert not lead(outcome("a", 0.7001), outcome("b", 0.7), "auroc").is_clear


# ------------------------------------------------------------------ methods


@pytest.mark.parametrize("is_regression", [False, True])
def test_every_method_tells_rows_apart_at_ten_labels(planted, model, is_regression):
    frame, hidden = planted
    rows = InputReader.fit(model, open_table(frame), seed=0).take(open_table(frame), np.arange(300))
    extra = {"untrained": rows.spaces["embedding"], "cell_components": rows.spaces["components"]}
    rows = type(rows)(rows.cells, {**rows.spaces, **extra})
    order = np.argsort(-np.abs(hidden[:200]))[:10]
    y = hidden[:200] if is_regression else (hidden[:200] > 0).astype(np.int64)
    problem = Problem(0 if is_regression else 2, model)
    for method in all_methods(is_regression=is_regression):
        if not method.is_there or method.head is None:
            continue
        predicted = method.head(problem).fit(rows[order], y[order]).predict(rows[np.arange(200, 300)])
        told = predicted if is_regression else predicted[:, 1]
        if method.name == "guess":
            assert np.ptp(told) == 0
        else:
            assert np.corrcoef(told, hidden[200:300])[0, 1] > 0.3, method.name


def test_catboost_learns_from_rows_that_are_all_alike(model, planted):
    pytest.importorskip("catboost")
    source = open_table(planted[0])
    rows = InputReader.fit(model, source, seed=0).take(source, np.zeros(6, dtype=np.int64))
    method = next(one for one in all_methods(is_regression=False) if one.name == "catboost")
    probability = method.head(Problem(2, model)).fit(rows, np.array([0, 1, 1, 0, 1, 1])).predict(rows)
    assert np.allclose(probability, probability[0]) and probability[0, 1] > 0.5


def test_what_is_not_installed_is_said_and_not_compared(monkeypatch):
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in HIDDEN else known(name))
    methods = all_methods(is_regression=False)
    assert [method.learner for method in methods if not method.is_there] == ["LightGBM", "XGBoost", "CatBoost"]
    (average,) = (method for method in methods if method.parts)
    assert average.parts == ("logistic", "extra_trees", "hist_boosting")


HIDDEN = {"lightgbm", "xgboost", "catboost"}


# ------------------------------------------------------------------ whole benchmarks


@pytest.fixture(scope="module")
def exclusive() -> pd.DataFrame:
    """The class is whether exactly one of two numbers is above 0: nothing for linear models, easy for trees."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(400, 3)), columns=["a", "b", "c"])
    return frame.assign(
        word=generator.choice(["x", "y"], 400), label=np.where((frame.a > 0) ^ (frame.b > 0), "odd", "even")
    )


@pytest.fixture(scope="module")
def found(exclusive) -> comparison.Comparison:
    part = exclusive.copy()
    part.loc[380:, "label"] = None
    return tabmoco.benchmark(part, target="label", budgets=(20, "all", 1_000), draws=2, max_rows=310, config=SMALL)


def test_rows_and_runs_are_counted(found):
    assert (found.task, found.n_classes, found.target) == ("classification", 2, "label")
    assert (found.n_tested, found.n_labelled, found.n_learned, found.n_labels) == (76, 304, 310, (20, 304))
    assert [one.method for one in found.outcomes] == 2 * [name for name in NAMES if (name, 20) in keys(found)]
    assert {len(one.values["auroc"]) for one in found.outcomes if one.n_labels == 20} == {2}
    assert {len(one.values["auroc"]) for one in found.outcomes if one.n_labels == 304} == {1}
    assert said(found.notes, "1,000 labels were left out: only 304 rows to learn from have a target")
    assert said(found.notes, "20 rows have no target; 6 of them served pretraining")
    assert said(found.notes, "14 of the table's 400 rows were left out, for want of time")
    assert found.pretraining["steps"] == 3
    assert found["guess", 20].mean("auroc") == 0.5
    parts = [found[name, 304].seconds[0] for name in ("logistic", "extra_trees")]
    assert found["average", 304].seconds[0] > sum(parts)


def keys(found) -> set[tuple[str, int]]:
    return {(one.method, one.n_labels) for one in found.outcomes}


def test_trees_win_where_only_trees_can(found):
    trees = max(one.mean("auroc") for one in found.outcomes if one.family == "trees" and one.n_labels == 304)
    assert trees > 0.9 > 0.7 > found["logistic", 304].mean("auroc")
    assert re.search("use (HistGradientBoosting|LightGBM|XGBoost|CatBoost|extra trees) on the cells", found.verdict[-1])


def test_the_comparison_is_json(found):
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["verdict"] == found.verdict and document["n_labelled"] == 304
    (told,) = (one for one in document["figures"] if (one["method"], one["n_labels"]) == ("tabmoco", 304))
    assert told["title"] == "TabMoCoClassifier on cells and expected cells"
    assert told["auroc"]["std"] is None and told["auroc"]["values"] == [told["auroc"]["mean"]]
    assert set(told) == {"method", "title", "n_labels", "seconds", "auroc", "accuracy", "log_loss"}


@pytest.fixture
def kept(monkeypatch) -> list:
    """What every call of `run_all` was given and found."""
    calls, whole = [], comparison.run_all

    def keep(*given, **options):
        calls.append((given, whole(*given, **options)))
        return calls[-1][1]

    monkeypatch.setattr(comparison, "run_all", keep)
    return calls


def test_numbers_are_predicted_and_answers_of_tested_rows_reach_nobody(model, planted, kept):
    """With other answers in the tested rows the same is predicted; so it is with other cells in them, elsewhere."""
    frame = planted[0].assign(height=100 + 10 * planted[1])
    found = tabmoco.benchmark(frame, target="height", budgets=(30,), draws=1, model=model)
    assert found.task == "regression" and found.names == ("rmse", "r2") and found.n_classes == 0
    assert 2 < found["tabmoco", 30].mean("rmse") < found["guess", 30].mean("rmse")
    assert said(found.notes, "The given model may have seen the tested rows") and not found.pretraining
    tested = np.flatnonzero(np.isin(frame.height, kept[0][0][6]))
    assert len(tested) == found.n_tested == 120
    other = frame.copy()
    other.loc[tested, "height"] = frame.height.to_numpy()[tested][::-1]
    again = tabmoco.benchmark(other, target="height", budgets=(30,), draws=1, model=model)
    assert again["tabmoco", 30].mean("rmse") > found["tabmoco", 30].mean("rmse")
    for name, run in kept[0][1].items():
        np.testing.assert_array_equal(run.predicted, kept[1][1][name].predicted, err_msg=name)


def test_tested_rows_reach_no_pretraining(exclusive, monkeypatch):
    seen = []

    def stop(source, *_, **__):
        seen.append(source)
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "pretrain", stop)
    with pytest.raises(KeyboardInterrupt):
        tabmoco.benchmark(exclusive, target="label", config=SMALL)
    (source,) = seen
    assert source.arrow_schema.names == ["a", "b", "c", "word"] and source.n_rows == 320
    split = comparison._Split.draw(
        np.arange(400),
        (exclusive.label == "odd").to_numpy().astype(int),
        400,
        is_regression=False,
        max_rows=320,
        seed=0,
    )
    assert not set(exclusive.a[split.tested]) & set(source.take(np.arange(320)).table["a"].to_pylist())
    assert len(np.union1d(split.tested, split.learned)) == 400


def test_the_default_is_what_the_estimator_does(planted, model, kept):
    frame = planted[0].assign(label=np.where(planted[1] > 0, "high", "low"))
    tabmoco.benchmark(frame, target="label", budgets=(25,), draws=1, model=model)
    split = comparison._Split.draw(
        np.arange(600), (frame.label == "low").to_numpy().astype(int), 600, is_regression=False, max_rows=10_000, seed=0
    )
    given = np.full(split.n_labelled, None, dtype=object)
    chosen = split.choose(25, is_regression=False, seed=0)
    given[chosen] = frame.label.to_numpy()[split.learned[chosen]]
    estimator = tabmoco.TabMoCoClassifier(model=model, random_state=0).fit(planted[0].iloc[split.learned], given)
    expected = estimator.predict_proba(planted[0].iloc[split.tested])
    np.testing.assert_allclose(kept[0][1]["tabmoco"].predicted, expected, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        ({}, {"target": "labl"}, SchemaError, "labl"),
        ({"label": "odd"}, {}, TableError, "at least two values, 'label' holds odd alone"),
        ({"label": ["odd"] * 395 + ["even"] * 5}, {}, TableError, "two classes of 'label' must have 10 rows.* got 5"),
        ({"label": [1.5] * 400}, {}, TableError, "at least two values, 'label' holds 1.5 alone"),
        ({"label": ["odd", "even"] * 20 + [None] * 360}, {}, TableError, "at least 50 rows with a 'label', got 40"),
        ({}, {"budgets": (500, 1_000)}, TableError, "must not exceed the 320 rows .* got 500"),
        ({}, {"budgets": (1,)}, ConfigError, "numbers of labels from 2 on, or all, got 1"),
        ({}, {"budgets": ()}, TableError, "got none"),
        ({}, {"draws": 0}, ConfigError, "draws must be at least 1"),
        ({}, {"task": "guess"}, ConfigError, "task must be auto, classification or regression"),
    ],
)
def test_what_cannot_be_compared_is_refused(exclusive, change, options, error, message):
    with pytest.raises(error, match=message):
        tabmoco.benchmark(exclusive.assign(**change), **{"target": "label", "config": SMALL, **options})


def test_a_model_that_saw_the_target_is_refused(planted, model):
    with pytest.raises(SchemaError, match="it was trained on 'colour', so the figures would mislead"):
        tabmoco.benchmark(planted[0], target="colour", model=model)
