"""The few-label rivals and the encoders: real figures, no constants at ten labels, no label beyond the budget."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from benchmarks import few_label_rivals, few_label_sources
from benchmarks.few_label_methods import METHODS, PARTS, evaluate, missing_package
from benchmarks.few_label_protocol import Task, checked, measure
from benchmarks.few_label_sources import Source, encoded, make_source
from benchmarks.few_label_store import Store, Stores, build, once
from tabmoco.evaluation import finetune, heads, rivals
from tabmoco.evaluation.inputs import InputReader
from tabmoco.evaluation.problem import Problem

N_ROWS, N_TRAIN = 400, 300
TRAIN, TEST = np.split(np.random.default_rng(1).permutation(N_ROWS), [N_TRAIN])


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """A number, a date with gaps and a word; all of them tell the class."""
    generator = np.random.default_rng(0)
    code = np.arange(N_ROWS) % 3
    when = np.datetime64("2024-01-01") + code * 30 + generator.integers(0, 20, N_ROWS)
    word = np.array(["red", "green", "blue"])[np.where(generator.random(N_ROWS) < 0.8, code, 0)]
    gaps = generator.random(N_ROWS) < 0.1
    size = code + generator.normal(0, 0.4, N_ROWS)
    return pa.table({"size": size, "when": pa.array(when, mask=gaps), "word": word})


@pytest.fixture(scope="module")
def store(table, tmp_path_factory) -> Store:
    store = build(tmp_path_factory.mktemp("store") / "a", table, TRAIN, TEST)
    encoded(store.path, (), 0)
    return store


@pytest.fixture(scope="module")
def trained(store) -> Store:
    """The same store with a small encoder that took three steps."""
    found = make_source("encoder", store.path, ("optimize.steps=3", "encoder.d_block=16", "encoder.d_embedding=8"), 0)
    assert found["n_steps"] == 3
    return store


def task_of(store: Store, n_labels: int, kind: str = "classification") -> tuple[Task, np.ndarray]:
    code = np.arange(N_ROWS) % 3
    truth = code if kind == "classification" else 10.0 * code + 100
    labelled = np.arange(n_labels)
    label = truth[TRAIN][labelled]
    return Task(kind, store.path, labelled, label, 3 * (kind == "classification"), 0), truth[TEST]


ON_CELLS = [name for name, method in METHODS.items() if not method.has_encoder and name != "CatBoost-search"]


@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("name", ON_CELLS)
def test_every_rival_tells_rows_apart_at_ten_labels(name, kind, store, monkeypatch):
    if missing_package(METHODS[name]):
        pytest.skip(missing_package(METHODS[name]))
    shorten(monkeypatch)
    task, truth = task_of(store, 10, kind)
    prediction = checked(task, METHODS[name].predict(task), N_ROWS - N_TRAIN)
    assert np.ptp(prediction, axis=0).max() > 0.1
    found = measure(kind, truth, prediction)
    assert found["auroc"] > 0.85 if kind == "classification" else found["nrmse"] < 0.9


def shorten(monkeypatch) -> None:
    """A few trees in place of hundreds."""
    for module, name in ((few_label_rivals, "N_TREES"), (heads, "N_TREES"), (rivals, "FEW_ROUNDS")):
        monkeypatch.setattr(module, name, 20)


def test_a_single_class_and_an_unseen_one(store):
    task, _ = task_of(store, 30)
    one = dataclasses.replace(task, labelled=task.labelled[task.label == 1], label=task.label[task.label == 1])
    assert (METHODS["linear"].predict(one).argmax(1) == 1).all()
    two = dataclasses.replace(task, labelled=task.labelled[task.label != 1], label=task.label[task.label != 1])
    assert (METHODS["5NN"].predict(two)[:, 1] < 0.02).all()


def test_the_average_is_that_of_its_parts_which_are_made_once(store, monkeypatch):
    pytest.importorskip("catboost")
    shorten(monkeypatch)
    task, truth = task_of(store, 40)
    parts = [METHODS[name].predict(task) for name in PARTS]
    assert np.allclose(METHODS["average"].predict(task), np.mean(parts, axis=0))  # none of them ran before
    for name in PARTS:
        evaluate(name, task, truth)
    other = dataclasses.replace(task, label=task.label[::-1].copy())
    other_parts = [METHODS[name].predict(other) for name in PARTS]
    assert np.allclose(METHODS["average"].predict(other), np.mean(other_parts, axis=0))
    assert not np.allclose(np.mean(parts, axis=0), np.mean(other_parts, axis=0))
    for name in PARTS:
        monkeypatch.setitem(METHODS, name, None)
    assert np.allclose(METHODS["average"].predict(task), np.mean(parts, axis=0))


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_search_stops_with_its_time_and_finds_something(store, monkeypatch, kind):
    pytest.importorskip("catboost")
    shorten(monkeypatch)
    tried = []
    monkeypatch.setattr(few_label_rivals, "SEARCH_SECONDS", 0.0)
    cost = few_label_rivals._cost
    monkeypatch.setattr(few_label_rivals, "_cost", lambda *given: tried.append(given[1]) or cost(*given))
    task, truth = task_of(store, 30, kind)
    found = measure(kind, truth, METHODS["CatBoost-search"].predict(task))
    assert tried == [{}]
    assert found["auroc"] > 0.85 if kind == "classification" else found["nrmse"] < 0.9


def test_the_search_takes_the_settings_that_cost_least(store, monkeypatch):
    pytest.importorskip("catboost")
    shorten(monkeypatch)
    settings = [{"iterations": n, "depth": 2} for n in range(2, 5)]
    monkeypatch.setattr(few_label_rivals, "N_CANDIDATES", 4)
    left = iter(settings)
    monkeypatch.setattr(few_label_rivals, "_candidate", lambda generator: next(left))
    monkeypatch.setattr(few_label_rivals, "_cost", lambda *given: abs(given[1].get("iterations", 9) - 3))
    task, _ = task_of(store, 30)
    head = few_label_rivals.SearchedCatBoost(Problem(3, store.model("cells")))
    head.fit(store.rows("cells", "train")[task.labelled], task.label)
    assert head.settings == settings[1]
    assert head.estimator.tree_count_ == 3


def test_rows_without_any_difference_can_be_searched(store):
    """CatBoost itself refuses them."""
    pytest.importorskip("catboost")
    rows = store.rows("cells", "train")[np.zeros(6, dtype=np.int64)]
    head = few_label_rivals.SearchedCatBoost(Problem(2, store.model("cells"))).fit(rows, np.array([0, 1] * 3))
    assert np.allclose(head.predict(rows), 0.5)


def test_rivals_are_those_of_the_package():
    """No rival here is weaker than what `tabmoco benchmark` compares with."""
    pairs = {
        "linear": "logistic",
        "PCA": "components",
        "extra-trees": "extra_trees",
        "HistGradientBoosting": "hist_boosting",
        "LightGBM": "lightgbm",
        "XGBoost": "xgboost",
        "CatBoost": "catboost",
        "untrained": "untrained",
        "tabmoco-embedding": "embedding",
        "tabmoco-expected": "expected",
        "tabmoco-cells": "both",
    }
    known = {method.name: method for method in rivals.all_methods(is_regression=False)}
    assert all(METHODS[ours].head is known[theirs].head for ours, theirs in pairs.items())
    if known["catboost"].is_there:
        assert tuple(pairs[name] for name in PARTS) == known["average"].parts


# ------------------------------------------------------------------ encoders


def test_the_encoder_is_trained_without_labels_and_its_twin_is_untrained(trained, monkeypatch):
    monkeypatch.setattr(finetune, "MAX_EPOCHS", 3)
    store = trained
    model, rows = store.model("encoder"), store.rows("encoder", "test")
    assert model.reference is None  # nobody looks at it
    twin = few_label_sources.untrained_twin(model)
    for name, encoder in (("embedding", model), ("untrained", twin)):
        points = encoder.embed(store.table("test"))
        assert points.shape == (N_ROWS - N_TRAIN, 8)
        known = encoder.embed(store.table("train"))
        assert np.allclose((points - known.mean(0)) / known.std(0), rows.spaces[name], atol=1e-3)
    assert not np.allclose(rows.spaces["embedding"], rows.spaces["untrained"], atol=0.01)
    task, truth = task_of(store, 60)
    for name in ("tabmoco-embedding", "tabmoco-cells", "untrained"):
        assert measure("classification", truth, METHODS[name].predict(task))["auroc"] > 0.8
    scratch, tuned = (METHODS[name].predict(task) for name in ("from-scratch", "tabmoco-finetuned"))
    assert checked(task, scratch, N_ROWS - N_TRAIN).shape == tuned.shape
    assert not np.allclose(scratch, tuned)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_default_is_what_the_estimator_does(trained, kind, monkeypatch):
    """The same predictions from rows that were read once as from the estimator, which is given the table."""
    import tabmoco

    monkeypatch.setattr(heads, "N_TREES", 20)
    store = trained
    task, _ = task_of(store, 30, kind)
    label = np.full(N_TRAIN, np.nan)
    label[task.labelled] = task.label
    estimator = tabmoco.TabMoCoRegressor if task.is_regression else tabmoco.TabMoCoClassifier
    fitted = estimator(model=store.model("encoder"), random_state=0).fit(store.table("train"), label)
    test = store.table("test")
    expected = fitted.predict(test) if task.is_regression else fitted.predict_proba(test)
    assert np.allclose(METHODS["tabmoco"].predict(task), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["SCARF", "VIME"])
def test_ts3l_embeds_tables_with_and_without_words(name, store):
    pytest.importorskip("ts3l")
    from benchmarks.few_label_ts3l import code, embed

    train, test = store.table("train"), store.table("test")
    coded = code(train, test)
    assert coded.n_levels == (3,)
    assert set(coded.train[coded.codes[0]]) == {0, 1, 2}
    assert coded.train[coded.numbers[:2]].mean().abs().max() < 1e-5  # the third flags gaps
    for columns in (["size", "when", "word"], ["size"]):
        found = embed(name, train.select(columns), test.select(columns), n_steps=1, seed=0)
        assert [points.shape for points in found] == [(N_TRAIN, 256), (N_ROWS - N_TRAIN, 256)]


def test_the_quick_loss_is_that_of_ts3l():
    pytest.importorskip("ts3l")
    import torch
    from ts3l.models.scarf import NTXentLoss

    from benchmarks.few_label_ts3l import nt_xent

    first, second = (torch.nn.functional.normalize(torch.randn(6, 4), dim=1) for _ in range(2))
    assert torch.allclose(nt_xent(first, second, temperature=0.5), NTXentLoss(0.5)(first, second))


# ------------------------------------------------------------------ what runs share


def test_only_the_folder_in_use_is_kept_and_sources_run_once(tmp_path):
    made = []

    def make(path):
        path.mkdir()
        made.append(path.name)
        return Store(path)

    stores = Stores(tmp_path / "a.encoders")
    for name in ("one", "one", "two", "two"):
        store = stores.of(name, make)
        assert store.path.name == name
        once(store, "encoder", lambda name=name: made.append(f"encoder of {name}") or {"seconds": 1.0})
    assert made == ["one", "encoder of one", "two", "encoder of two"]
    assert sorted(path.name for path in (tmp_path / "a.encoders").iterdir()) == [".gitignore", "two"]
    stores.clear()
    assert not (tmp_path / "a.encoders").exists()
    every = Stores(tmp_path / "a.encoders", keep_all=True)
    for name in ("one", "two"):
        every.of(name, make)
    assert all((tmp_path / "a.encoders" / name).is_dir() for name in ("one", "two"))


def test_rows_on_disk_are_as_heads_read_them(store):
    """Finite, scaled by the training rows, and of the test rows as many as there are."""
    known, asked = store.rows("cells", "train"), store.rows("cells", "test")
    assert (len(known), len(asked)) == (N_TRAIN, N_ROWS - N_TRAIN)
    assert set(known.spaces) == {"cells", "plain_cells", "traits", "cell_components"}
    assert all(np.isfinite(space).all() for rows in (known, asked) for space in rows.spaces.values())
    assert np.abs(known.spaces["cells"].mean(0)).max() < 1e-5 < np.abs(asked.spaces["cells"].mean(0)).max()
    plain = few_label_sources.read_rows(store, "test", InputReader(store.model("cells"))).spaces["cells"]
    assert np.allclose(asked.spaces["plain_cells"], plain, atol=1e-5)
    assert known.spaces["traits"].shape[1] == store.model("cells").cell_space.trait_owner.shape[0]
    assert known.spaces["cell_components"].var(0, ddof=1).mean() == pytest.approx(1, abs=1e-3)
    assert known.cells.missing.numpy().mean(0) == pytest.approx([0, 0.1, 0], abs=0.05)  # only dates have gaps


def test_sources_can_be_replaced_by_name(monkeypatch, tmp_path):
    monkeypatch.setitem(few_label_sources.SOURCES, "encoder", Source(lambda path, settings, seed: {"seed": seed}))
    assert make_source("encoder", tmp_path, (), 3) == {"seed": 3}
