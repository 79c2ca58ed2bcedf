"""One contract for every head, whatever the labels."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tabmoco.evaluation import boosted
from tabmoco.evaluation.blend import Blend, build_head
from tabmoco.evaluation.heads import HEADS
from tabmoco.evaluation.problem import Problem, smoothed

EVERY = pytest.mark.parametrize("name", [*HEADS, "auto", "blend"])


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    monkeypatch.setattr("tabmoco.evaluation.heads.N_TREES", 20)
    monkeypatch.setattr(boosted, "N_ROUNDS", 20)
    monkeypatch.setattr(boosted, "boosting_library", lambda: "sklearn")
    monkeypatch.setattr("tabmoco.evaluation.finetune.MAX_EPOCHS", 3)


@EVERY
@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_are_right_and_sure_of_nothing(name, n_classes, planted, model, read):
    y = np.digitize(planted[1], [0.0] if n_classes == 2 else [-0.5, 0.5])
    head = build_head(name, Problem(n_classes, model)).fit(read(range(60)), y[:60])
    probability = head.predict(read(range(300, 600)))
    assert probability.shape == (300, n_classes) and probability.dtype == np.float64
    np.testing.assert_allclose(probability.sum(axis=1), 1, atol=1e-12)
    assert probability.min() > 0
    assert roc_auc_score(y[300:] == 1 if n_classes == 2 else y[300:] == 2, probability[:, -1]) > 0.7


@EVERY
def test_numbers_are_predicted(name, planted, model, read):
    y = planted[1]
    predicted = build_head(name, Problem(0, model)).fit(read(range(60)), y[:60]).predict(read(range(300, 600)))
    assert predicted.shape == (300,)
    assert np.corrcoef(predicted, y[300:])[0, 1] > 0.4


@EVERY
@pytest.mark.parametrize("y", [[0], [1, 0], [0, 0, 0], [0, 1, 2], [2, 2, 2, 2, 2, 0], [0] * 12 + [1]])
def test_any_number_of_labels_is_enough(name, y, model, read):
    y = np.array(y)
    probability = build_head(name, Problem(3, model)).fit(read(range(len(y))), y).predict(read(range(100, 110)))
    assert probability.shape == (10, 3) and (probability > 0).all()
    np.testing.assert_allclose(probability.sum(axis=1), 1, atol=1e-12)
    if len(np.unique(y)) == 1:
        assert (probability.argmax(axis=1) == y[0]).all()


@EVERY
@pytest.mark.parametrize("n_labels", [1, 2, 30])
def test_constant_targets_are_predicted_as_they_are(name, n_labels, model, read):
    y = np.zeros(n_labels)
    predicted = build_head(name, Problem(0, model)).fit(read(range(n_labels)), y).predict(read(range(100, 110)))
    np.testing.assert_allclose(predicted, 0, atol=0.2 if name == "finetune" else 1e-6)


@EVERY
def test_a_row_is_judged_alone_and_fits_repeat(name, planted, model, read):
    y = (planted[1] > 0).astype(np.int64)
    head, again = (build_head(name, Problem(2, model, seed=5)).fit(read(range(40)), y[:40]) for _ in range(2))
    together = head.predict(read(range(100, 140)))
    alone = np.concatenate([head.predict(read([row])) for row in range(100, 140)])
    np.testing.assert_allclose(alone, together, rtol=1e-6)
    np.testing.assert_array_equal(again.predict(read(range(100, 140))), together)


def test_the_encoder_itself_is_left_alone_by_fine_tuning(planted, model, read, monkeypatch):
    monkeypatch.setattr("tabmoco.evaluation.finetune.MAX_EPOCHS", 12)
    y = (np.abs(planted[1]) > 0.7).astype(np.int64)  # nothing that a linear probe could tell
    before = {name: value.clone() for name, value in model.encoder.state_dict().items()}
    head = build_head("finetune", Problem(2, model)).fit(read(range(300)), y[:300])
    for name, value in model.encoder.state_dict().items():
        assert (value == before[name]).all(), name
    assert any((value != before[name]).any() for name, value in head.network.encoder.state_dict().items())


def test_fine_tuning_starts_as_a_linear_probe(planted, model, read, monkeypatch):
    y = (planted[1] > 0).astype(np.int64)
    monkeypatch.setattr("tabmoco.evaluation.finetune.MAX_EPOCHS", 1)
    probability = (
        build_head("finetune", Problem(2, model)).fit(read(range(100)), y[:100]).predict(read(range(100, 600)))
    )
    assert roc_auc_score(y[100:], probability[:, 1]) > 0.9


@pytest.mark.parametrize("library", ["catboost", "lightgbm", "sklearn"])
def test_every_boosting_library_tells_classes_from_ten_labels(library, planted, model, read, monkeypatch):
    if library != "sklearn":
        pytest.importorskip(library)
    monkeypatch.setattr(boosted, "boosting_library", lambda: library)
    y = np.arange(600) % 2
    y[:10] = np.argsort(np.argsort(planted[1][:10])) >= 5
    probability = build_head("boosted", Problem(2, model)).fit(read(range(10)), y[:10]).predict(read(range(10)))
    assert roc_auc_score(y[:10], probability[:, 1]) == 1.0
    numbers = build_head("boosted", Problem(0, model)).fit(read(range(50)), planted[1][:50]).predict(read(range(50)))
    assert np.corrcoef(numbers, planted[1][:50])[0, 1] > 0.8


def test_smoothing_gives_unseen_classes_a_little():
    probability = smoothed(np.array([[1.0, 0.0, 0.0]]), np.array([0.5, 0.5, 0.0]), 10)
    np.testing.assert_allclose(probability.sum(), 1)
    assert 0 < probability[0, 2] < probability[0, 1] < 0.1


def test_heads_are_weighed_by_what_they_did_not_learn(planted, model, read):
    y = (planted[1] > 0).astype(np.int64)
    blend = Blend(Problem(2, model), ("linear", "trees")).fit(read(range(200)), y[:200])
    assert blend.weights.keys() == {"linear", "trees"}
    np.testing.assert_allclose(sum(blend.weights.values()), 1)
    assert all(weight > 0 for weight in blend.weights.values())
