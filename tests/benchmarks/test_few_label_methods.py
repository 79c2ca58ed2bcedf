"""The few-label rivals and the encoders: real figures, no constants at ten labels, no label beyond the budget."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from benchmarks import few_label_methods, few_label_rivals
from benchmarks.few_label_methods import METHODS, Source, make_source, missing_package, partly
from benchmarks.few_label_protocol import Task, checked, measure
from benchmarks.few_label_rivals import leaf_minimum
from benchmarks.few_label_store import Store, Stores, build, once

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
    return build(tmp_path_factory.mktemp("store") / "a", table, TRAIN, TEST)


def task_of(store: Store, n_labels: int, kind: str = "classification") -> tuple[Task, np.ndarray]:
    code = np.arange(N_ROWS) % 3
    truth = code if kind == "classification" else 10.0 * code + 100
    labelled = np.arange(n_labels)
    label = truth[TRAIN][labelled]
    return Task(kind, store.path, labelled, label, 3 * (kind == "classification"), 0), truth[TEST]


SOURCELESS = [name for name, method in METHODS.items() if method.source is None and name != "CatBoost-search"]


@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("name", SOURCELESS)
def test_every_rival_tells_rows_apart_at_ten_labels(name, kind, store, monkeypatch):
    if missing_package(METHODS[name]):
        pytest.skip(missing_package(METHODS[name]))
    shorten(monkeypatch)
    task, truth = task_of(store, 10, kind)
    prediction = checked(task, METHODS[name].predict(task), N_ROWS - N_TRAIN)
    assert np.ptp(prediction, axis=0).max() > 0.1
    found = measure(kind, truth, prediction)
    assert found["auroc"] > 0.85 if kind == "classification" else found["nrmse"] < 0.8


def shorten(monkeypatch) -> None:
    """A few trees in place of hundreds."""
    monkeypatch.setattr(few_label_rivals, "N_TREES", 20)
    whole = few_label_rivals._catboost_model
    monkeypatch.setattr(
        few_label_rivals,
        "_catboost_model",
        lambda task, words, settings: whole(task, words, {**settings, "iterations": 20}),
    )


def test_leaves_grow_with_the_labels():
    assert [leaf_minimum(n) for n in (2, 25, 99, 100, 500, 1_000, 20_000)] == [1, 1, 1, 2, 10, 20, 20]


def test_catboost_has_indicators_for_categories_only_where_labels_are_few(store):
    task, _ = task_of(store, 30)
    assert few_label_rivals.few_label_settings(task) == {"one_hot_max_size": 50}
    many = dataclasses.replace(task, label=np.zeros(1_000, dtype=np.int64))
    assert few_label_rivals.few_label_settings(many) == {}


def test_a_single_class_and_an_unseen_one(store):
    task, _ = task_of(store, 30)
    one = dataclasses.replace(task, labelled=task.labelled[task.label == 1], label=task.label[task.label == 1])
    assert (METHODS["linear"].predict(one) == [0, 1, 0]).all()
    two = dataclasses.replace(task, labelled=task.labelled[task.label != 1], label=task.label[task.label != 1])
    assert (METHODS["5NN"].predict(two)[:, 1] == 0).all()


def test_the_average_is_that_of_its_parts_which_are_made_once(store, monkeypatch):
    pytest.importorskip("catboost")
    shorten(monkeypatch)
    task, _ = task_of(store, 40)
    parts = [METHODS[name].predict(task) for name in few_label_rivals.PARTS]
    monkeypatch.setattr(few_label_rivals, "catboost", None)
    assert np.allclose(METHODS["average"].predict(task), np.mean(parts, axis=0))
    other = dataclasses.replace(task, label=task.label[::-1].copy())
    parts = [predict(other) for predict in few_label_rivals.PARTS.values()]
    assert np.allclose(METHODS["average"].predict(other), np.mean(parts, axis=0))


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_search_stops_with_its_time_and_finds_something(store, monkeypatch, kind):
    pytest.importorskip("catboost")
    shorten(monkeypatch)
    tried = []
    monkeypatch.setattr(few_label_rivals, "SEARCH_SECONDS", 0.0)
    cost = few_label_rivals._cost
    monkeypatch.setattr(few_label_rivals, "_cost", lambda *given: tried.append(given[3]) or cost(*given))
    task, truth = task_of(store, 30, kind)
    found = measure(kind, truth, METHODS["CatBoost-search"].predict(task))
    assert tried == [{"one_hot_max_size": 50}]
    assert found["auroc"] > 0.85 if kind == "classification" else found["nrmse"] < 0.8


def test_the_strength_is_chosen_only_where_labels_allow(store):
    few, _ = task_of(store, 30)
    many, _ = task_of(store, 60)
    assert type(few_label_rivals.logistic(few)).__name__ == "LogisticRegression"
    assert type(few_label_rivals.logistic(many)).__name__ == "_Chosen"
    rare = dataclasses.replace(many, label=np.where(np.arange(60) < 2, 1, 2 * (np.arange(60) % 2)))
    assert type(few_label_rivals.logistic(rare)).__name__ == "LogisticRegression"


# ------------------------------------------------------------------ encoders


def test_labels_reach_estimators_as_partly_known(store):
    task, _ = task_of(store, 10)
    label = partly(task)
    assert len(label) == N_TRAIN
    assert np.array_equal(label[:10], task.label)
    assert (label[10:] == -1).all()
    number, _ = task_of(store, 10, "regression")
    assert np.isnan(partly(number)[10:]).all() and np.array_equal(partly(number)[:10], number.label)


def test_an_estimator_sees_all_rows_few_labels_and_answers_for_all_classes(store, monkeypatch):
    import tabmoco

    seen = {}

    class Fake:
        def __init__(self, **settings):
            seen.update(settings)

        def fit(self, rows, y):
            seen.update(n_rows=len(rows), y=y)
            self.classes_ = np.array([0, 2])
            return self

        def predict_proba(self, rows):
            return np.full((len(rows), 2), 0.5)

    monkeypatch.setattr(tabmoco, "TabMoCoClassifier", Fake, raising=False)
    monkeypatch.setattr(tabmoco.RowModel, "load", classmethod(lambda cls, path, device: f"model of {path.name}"))
    task, _ = task_of(store, 10)
    found = METHODS["tabmoco"].predict(task)
    assert (found == [0.5, 0, 0.5]).all()
    assert (seen["model"], seen["head"], seen["random_state"]) == ("model of model", "auto", 0)
    assert (seen["n_rows"], np.sum(seen["y"] >= 0)) == (N_TRAIN, 10)


def test_the_encoder_is_trained_without_labels_and_its_twin_is_untrained(store, monkeypatch):
    import tabmoco
    import tabmoco.training.pretrain as pretraining

    monkeypatch.setattr(pretraining, "MIN_OUTSIDE_ROWS", 200)
    settings = ("optimize.steps=3", "encoder.d_block=16", "encoder.d_embedding=8")
    found = make_source("encoder", store.path, settings, 0)
    assert found["n_steps"] == 3
    trained, untrained = (np.asarray(store.points(name, "train")) for name in ("tabmoco", "untrained"))
    assert trained.shape == untrained.shape == (N_TRAIN, 8)
    assert not np.allclose(trained, untrained)
    task, truth = task_of(store, 60)
    for name in ("tabmoco-embedding", "tabmoco-cells", "untrained"):
        assert measure("classification", truth, METHODS[name].predict(task))["auroc"] > 0.8
    model = tabmoco.RowModel.load(store.model_path)
    assert np.allclose(model.embed(store.table("test")), store.points("tabmoco", "test"), atol=1e-5)
    twin = few_label_methods.untrained_twin(model)
    assert np.allclose(twin.embed(store.table("test")), store.points("untrained", "test"), atol=1e-5)


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


def test_cells_on_disk_are_finite_and_scaled_by_training_rows(store):
    both = np.asarray(store.points("both", "train"))
    plain = np.asarray(store.points("plain", "train"))
    assert np.isfinite(both).all()
    assert both.shape[1] == plain.shape[1] + 2  # a number and a date, twice
    assert store.points("both", "test").shape == (N_ROWS - N_TRAIN, both.shape[1])
    assert np.abs(both[:, 0].mean()) < 1e-5


def test_sources_can_be_replaced_by_name(monkeypatch, tmp_path):
    monkeypatch.setitem(few_label_methods.SOURCES, "encoder", Source(lambda path, settings, seed: {"seed": seed}))
    assert make_source("encoder", tmp_path, (), 3) == {"seed": 3}
