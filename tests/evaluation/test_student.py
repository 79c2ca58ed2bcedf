"""What a student learns from rows without labels, and when there is one."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tabmoco.evaluation import blend
from tabmoco.evaluation.blend import Blend
from tabmoco.evaluation.problem import Problem
from tabmoco.evaluation.student import MAX_ROWS, MIN_ROWS, Student, draw_unlabelled


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    monkeypatch.setattr("tabmoco.evaluation.heads.N_TREES", 20)
    monkeypatch.setattr("tabmoco.evaluation.boosted.N_ROUNDS", 20)
    monkeypatch.setattr("tabmoco.evaluation.boosted.boosting_library", lambda: "sklearn")


def test_a_student_gives_probabilities_near_what_it_was_told(read):
    rows = read(range(300))
    size = rows.spaces["traits"][:, 0].astype(np.float64)
    told = 1 / (1 + np.exp(-np.stack([size, -size, np.zeros(300)], axis=1)))
    told /= told.sum(1, keepdims=True)
    student = Student.fit(rows, told, seed=0)
    found = student.predict(read(range(300, 600)))
    assert found.shape == (300, 3) and found.min() > 0
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-9)
    truth = read(range(300, 600)).spaces["traits"][:, 0]
    assert np.corrcoef(found[:, 0], truth)[0, 1] > 0.8
    np.testing.assert_array_equal(student.predict(read([417]))[0], found[117])
    np.testing.assert_array_equal(Student.fit(rows, told, seed=0).predict(read([417]))[0], found[117])


def test_a_student_repeats_what_is_the_same_of_all_rows(read):
    rows = read(range(250))
    student = Student.fit(rows, np.tile([[0.25, 0.75]], (250, 1)), seed=0)
    np.testing.assert_allclose(student.predict(rows), [[0.25, 0.75]] * 250)


def test_half_of_the_say_is_the_students(planted, model, read):
    y = (planted[1] > 0).astype(np.int64)
    labelled, others, asked = read(range(12)), read(range(12, 400)), read(range(400, 600))
    alone, taught = (Blend(Problem(2, model)).fit(labelled, y[:12], rows) for rows in (None, others))
    assert alone.student is None and taught.student is not None
    mean = (alone.predict(asked) + taught.student.predict(asked)) / 2
    np.testing.assert_allclose(taught.predict(asked), mean, atol=1e-12)
    assert len(taught.predict(read([]))) == 0


def test_rows_without_labels_help_where_labels_are_few(planted, model, read):
    y, gains = (planted[1] > 0).astype(np.int64), []
    others, asked = read(range(100, 400)), read(range(400, 600))
    for start in range(0, 100, 10):
        some = np.arange(start, start + 10)
        if len(np.unique(y[some])) < 2:
            continue
        blends = [Blend(Problem(2, model)).fit(read(some), y[some], rows) for rows in (None, others)]
        without, taught = (roc_auc_score(y[400:], one.predict(asked)[:, 1]) for one in blends)
        gains.append(taught - without)
    assert len(gains) >= 8 and np.mean(gains) > 0


@pytest.mark.parametrize("why", ["numbers", "many labels", "one class", "a plain average", "no rows"])
def test_there_is_no_student_where_it_would_not_help(why, planted, model, read, monkeypatch):
    y = planted[1][:30] if why == "numbers" else (planted[1][:30] > 0).astype(np.int64)
    if why == "many labels":
        monkeypatch.setattr(blend, "STUDENT_UP_TO", 30)
    others = read([]) if why == "no rows" else read(range(30, 400))
    y = np.zeros(30, dtype=np.int64) if why == "one class" else y
    problem = Problem(0 if why == "numbers" else 2, model)
    made = Blend(problem, is_weighed=why != "a plain average").fit(read(range(30)), y, others)
    assert made.student is None and len(made.predict(read(range(3)))) == 3


def test_unlabelled_rows_are_drawn_from_all_that_have_no_label():
    labelled = np.array([5, 1, 9_000])
    drawn = draw_unlabelled(10_000, labelled, seed=3)
    assert len(drawn) == MAX_ROWS and not np.isin(labelled, drawn).any()
    assert (np.diff(drawn) > 0).all() and drawn[-1] > 9_900 and drawn[0] < 100
    np.testing.assert_array_equal(drawn, draw_unlabelled(10_000, labelled, seed=3))
    assert not np.array_equal(drawn, draw_unlabelled(10_000, labelled, seed=4))
    few = draw_unlabelled(MIN_ROWS + 3, labelled[:2], seed=0)
    np.testing.assert_array_equal(few, np.setdiff1d(np.arange(MIN_ROWS + 3), labelled))
    assert len(draw_unlabelled(MIN_ROWS + 1, labelled[:2], seed=0)) == 0
