"""Estimators that learn from few labels and many rows: scikit-learn's checks, labels of every make, no leaks."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Iterator

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import tabmoco
from tabmoco import (
    InContextClassifier,
    PretrainConfig,
    RowModel,
    TabMoCoClassifier,
    TabMoCoEmbedder,
    TabMoCoRegressor,
)
from tabmoco.config import EncoderConfig, ObjectiveConfig, OptimizeConfig
from tabmoco.errors import ConfigError, SchemaError, TabmocoError
from tabmoco.evaluation.heads import HEADS
from tabmoco.model import build_untrained
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.source import TableSource

SMALL = PretrainConfig(
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=64),
    optimize=OptimizeConfig(steps=3, batch_size=64),
)

CLASSIFIERS = pytest.mark.parametrize(
    "make",
    [
        lambda **settings: TabMoCoClassifier(**{"head": "cells", **settings}),
        lambda **settings: InContextClassifier(LogisticRegression(), k=30, group_size=40, space="cells", **settings),
    ],
    ids=["head", "in_context"],
)


def make_untrained(source: TableSource, config: PretrainConfig) -> RowModel:
    preprocessor = Preprocessor.fit(source, config.data)
    return RowModel(config, preprocessor, build_untrained(preprocessor, config))


@pytest.fixture(scope="module", autouse=True)
def light() -> Iterator[None]:
    """Encoders before their first step, and few trees, for want of time; training itself is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tabmoco.estimators.few_label.pretrain", make_untrained)
        patch.setattr("tabmoco.evaluation.heads.N_TREES", 20)
        patch.setattr("tabmoco.evaluation.boosted.N_ROUNDS", 20)
        patch.setattr("tabmoco.evaluation.boosted.boosting_library", lambda: "sklearn")
        patch.setattr("tabmoco.evaluation.finetune.MAX_EPOCHS", 2)
        yield


def make_frame(n_rows: int = 300, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    generator = np.random.default_rng(seed)
    hidden = generator.normal(size=n_rows)
    frame = pd.DataFrame({f"copy_{n}": hidden + generator.normal(scale=0.5, size=n_rows) for n in range(4)})
    return frame.assign(colour=np.where(hidden + generator.normal(size=n_rows) > 0, "red", "blue")), hidden


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return make_frame()[0]


@pytest.fixture(scope="module")
def hidden() -> np.ndarray:
    return make_frame()[1]


def hide(y: np.ndarray, n_kept: int, mark: object) -> list[object]:
    return [value if row < n_kept else mark for row, value in enumerate(y.tolist())]


@parametrize_with_checks(
    [
        TabMoCoClassifier(d_embedding=8, head="cells"),
        TabMoCoRegressor(d_embedding=8, head="cells"),
        InContextClassifier(LogisticRegression(), d_embedding=8, k=20, group_size=15),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("Estimator", [TabMoCoClassifier, TabMoCoRegressor, InContextClassifier])
def test_every_parameter_is_described(Estimator):
    described = TabMoCoEmbedder.__doc__ + Estimator.__doc__
    for name in inspect.signature(Estimator).parameters:
        assert re.search(rf"^    (\w+, )*{name}(, \w+)* : ", described, re.MULTILINE), name


def test_every_head_is_described():
    for head in HEADS:
        assert head in TabMoCoClassifier.__doc__, head


# ---------------------------------------------------------------- labels


@CLASSIFIERS
@pytest.mark.parametrize(
    ("classes", "mark"),
    [
        (["no", "yes"], None),
        (["no", "yes"], float("nan")),
        ([0, 1], -1),
        ([3, 7], None),
        ([0.0, 1.0], float("nan")),
        ([False, True], None),
    ],
)
def test_rows_without_a_label_may_be_marked_in_any_way(make, classes, mark, frame, hidden):
    y = hide(np.array(classes)[(hidden > 0).astype(int)], 60, mark)
    classifier = make(config=SMALL).fit(frame, y)
    assert classifier.classes_.tolist() == classes
    probability = classifier.predict_proba(frame)
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    assert roc_auc_score(hidden[60:] > 0, probability[60:, 1]) > 0.8
    assert set(classifier.predict(frame).tolist()) <= set(classes)


@CLASSIFIERS
def test_labels_come_from_any_library(make, frame, hidden):
    y = hide(np.where(hidden > 0, "yes", "no"), 40, None)
    results = [make(config=SMALL).fit(frame, labels).predict_proba(frame) for labels in (
        y, np.array(y, dtype=object), pd.Series(y), pd.Series(y, dtype="category"), pl.Series(y), pa.array(y),
    )]  # fmt: skip
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@CLASSIFIERS
def test_labels_that_are_hidden_change_nothing(make, frame, hidden):
    """Whatever the labels of unmarked rows would be, they are not passed on; the rows' order is all that is left."""
    y = np.where(hidden > 0, 1, 0)
    masked, nulled = y.copy(), y.astype(object)
    masked[50:], nulled[50:] = -1, None
    np.testing.assert_array_equal(
        make(config=SMALL).fit(frame, masked).predict_proba(frame),
        make(config=SMALL).fit(frame, nulled).predict_proba(frame),
    )


def test_unlabelled_rows_help_the_encoder_and_labels_do_not_reach_it(frame, hidden):
    """The encoder is the same whatever the labels, and another with other rows."""
    first = TabMoCoClassifier(config=SMALL, head="linear").fit(frame, (hidden > 0).astype(int))
    second = TabMoCoClassifier(config=SMALL, head="linear").fit(frame, hide(1 - (hidden > 0), 20, -1))
    np.testing.assert_array_equal(first.model_.embed(frame), second.model_.embed(frame))
    np.testing.assert_array_equal(first.reader_.axes, second.reader_.axes)
    fewer = TabMoCoClassifier(config=SMALL, head="linear").fit(frame.head(40), (hidden[:40] > 0).astype(int))
    assert not np.array_equal(fewer.reader_.axes, first.reader_.axes)


@CLASSIFIERS
@pytest.mark.parametrize("y", [[0, 1], [2], [1, 1, 1], [0, 1, 2, 3], [0] * 9 + [1]])
def test_few_labels_are_enough(make, y, frame):
    labels = [*y, *[None] * (len(frame) - len(y))]
    classifier = make(config=SMALL).fit(frame, labels)
    assert classifier.classes_.tolist() == sorted(set(y))
    assert classifier.predict_proba(frame).shape == (len(frame), len(set(y)))


def test_the_default_head_needs_no_more_than_two_labels(frame):
    classifier = TabMoCoClassifier(config=SMALL).fit(frame, ["a", "b", *[None] * 298])
    assert len(set(classifier.head_weights_.values())) == 1
    assert classifier.predict_proba(frame).shape == (300, 2)


def test_few_labels_of_many_rows_predict_the_hidden_factor(frame, hidden):
    classifier = TabMoCoClassifier(config=SMALL).fit(frame, hide(np.where(hidden > 0, "yes", "no"), 20, None))
    probability = classifier.predict_proba(frame)[20:]
    assert roc_auc_score(hidden[20:] > 0, probability[:, 1]) > 0.85
    assert log_loss(hidden[20:] > 0, probability[:, 1]) < 0.6
    assert classifier.n_labels_ == 20


def test_numbers_without_target_are_left_out(frame, hidden):
    y = 50 + 10 * hidden
    partly = np.where(np.arange(len(y)) < 60, y, np.nan)
    regressor = TabMoCoRegressor(config=SMALL).fit(frame, partly)
    assert regressor.score(frame[60:], y[60:]) > 0.6
    np.testing.assert_allclose(sum(regressor.head_weights_.values()), 1)
    again = TabMoCoRegressor(config=SMALL).fit(frame, [None if np.isnan(value) else value for value in partly])
    np.testing.assert_array_equal(again.predict(frame), regressor.predict(frame))


def test_every_head_fits_and_its_name_is_checked(frame, hidden):
    y = np.where(hidden > 0, "yes", "no")
    for head in ("blend", *HEADS):
        classifier = TabMoCoClassifier(config=SMALL, head=head).fit(frame.head(60), y[:60])
        assert classifier.score(frame, y) > 0.6, head
    with pytest.raises(ConfigError, match="head must be one of auto, blend, linear, .*, got 'best'"):
        TabMoCoClassifier(config=SMALL, head="best").fit(frame, y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([None] * 300, "at least one row must have a label, got none among 300 rows"),
        ([-1] * 300, "at least one row must have a label"),
        (["a", 1] * 150, "labels must be of one kind"),
        (None, "requires y to be passed, but the target y is None"),
        ([0, 1], "inconsistent numbers of samples"),
    ],
)
@CLASSIFIERS
def test_labels_that_cannot_be_used_are_refused_before_training(make, y, message, frame, monkeypatch):
    monkeypatch.setattr("tabmoco.estimators.few_label.pretrain", None)
    with pytest.raises(ValueError, match=message):
        make(config=SMALL).fit(frame, y)


def test_labels_among_the_cells_are_refused(frame):
    with pytest.raises(SchemaError, match="the labels must not be among the columns .* y named 'colour'"):
        TabMoCoClassifier(config=SMALL).fit(frame, frame["colour"])


# ---------------------------------------------------------------- a model given


@pytest.fixture(scope="module")
def given(frame) -> RowModel:
    return make_untrained(tabmoco.open_table(frame), SMALL.override(["seed=9"]))


@CLASSIFIERS
def test_a_given_model_is_used_as_it_is(make, given, frame, hidden, tmp_path, monkeypatch):
    monkeypatch.setattr("tabmoco.estimators.few_label.pretrain", None)
    y = hide(np.where(hidden > 0, "yes", "no"), 40, None)
    classifier = make(model=given).fit(frame, y)
    assert classifier.model_ is given
    assert classifier.predict_proba(frame.head(0)).shape == (0, 2)
    twin = clone(classifier)
    assert not hasattr(twin, "classes_")


@CLASSIFIERS
def test_copies_agree(make, given, frame, hidden):
    classifier = make(model=given).fit(frame, (hidden > 0).astype(int))
    copied = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(copied.predict_proba(frame), classifier.predict_proba(frame))


def test_a_model_directory_gives_what_the_model_gives(frame, hidden, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tabmoco.neighbors.forest.N_TREES", 8)
        patch.setattr("tabmoco.training.indexing.MIN_OUTSIDE_ROWS", 400)
        model = tabmoco.pretrain(frame, SMALL, out=tmp_path / "model")
    y = (hidden > 0).astype(int)
    by_path = TabMoCoClassifier(model=str(tmp_path / "model"), device="cpu", head="linear").fit(frame, y)
    by_model = TabMoCoClassifier(model=model, head="linear").fit(frame, y)
    np.testing.assert_array_equal(by_path.predict_proba(frame), by_model.predict_proba(frame))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 3, "config": SMALL}, "with model given no encoder is trained, so config, steps must be None"),
        ({"model": 5}, "model must be a RowModel or a model directory, got int"),
        ({"model": "nowhere"}, "nowhere"),
    ],
)
def test_models_that_cannot_be_used_are_named(settings, message, given, frame, hidden):
    with pytest.raises(TabmocoError, match=message):
        TabMoCoClassifier(**{"model": given, **settings}).fit(frame, (hidden > 0).astype(int))


def test_a_given_model_needs_its_columns(given, frame, hidden):
    with pytest.raises(SchemaError, match="- colour"):
        TabMoCoClassifier(model=given).fit(frame.drop(columns="colour"), (hidden > 0).astype(int))


def test_cross_validation_reuses_the_model(given, frame, hidden, monkeypatch):
    monkeypatch.setattr("tabmoco.estimators.few_label.pretrain", None)
    y = np.where(hidden > 0, "yes", "no")
    assert cross_val_score(TabMoCoClassifier(model=given, head="cells"), frame, y, cv=3).mean() > 0.8


# ---------------------------------------------------------------- rows as prompts


def test_each_group_sees_the_labelled_rows_nearest_to_it(given, frame, hidden):
    y = hide((hidden > 0).astype(int), 120, -1)
    classifier = InContextClassifier(LogisticRegression(), model=given, k=15, group_size=60).fit(frame, y)
    assert len(classifier.context_) == 5
    for rows in classifier.context_:
        assert len(np.unique(rows)) == 15 and rows.max() < 120
    assert len(np.unique(np.concatenate(classifier.context_))) > 30


def test_with_few_labels_all_groups_are_one_and_the_base_sees_them_all(given, frame, hidden):
    y = (hidden > 0).astype(int)
    classifier = InContextClassifier(LogisticRegression(), model=given, k=300, group_size=10).fit(frame, y)
    assert len(classifier.context_) == 1 and sorted(classifier.context_[0]) == list(range(300))


def test_a_group_of_one_class_is_sure_of_it(given, frame, hidden):
    y = (hidden > 0).astype(int)
    classifier = InContextClassifier(DummyClassifier(), model=given, k=1, group_size=10).fit(frame, y)
    probability = classifier.predict_proba(frame)
    assert set(np.unique(probability)) == {0.0, 1.0}
    assert (probability.argmax(axis=1) == y).mean() > 0.6


def test_the_base_is_cloned_and_any_classifier_serves(given, frame, hidden):
    base = RandomForestClassifier(5, random_state=0)
    classifier = InContextClassifier(base, model=given, k=100, group_size=100).fit(frame, (hidden > 0).astype(int))
    assert not hasattr(base, "classes_") and classifier.score(frame, (hidden > 0).astype(int)) > 0.85


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k and group_size must be at least 1, got 0 and 512"),
        ({"space": "raw"}, "space must be one of traits, cells, embedding, expected, components, got 'raw'"),
    ],
)
def test_wrong_settings_of_groups_are_named(settings, message, given, frame, hidden):
    with pytest.raises(ConfigError, match=message):
        InContextClassifier(LogisticRegression(), model=given, **settings).fit(frame, (hidden > 0).astype(int))
