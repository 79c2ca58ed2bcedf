"""Splits keep shares of classes, and every class where that is possible."""

from __future__ import annotations

import numpy as np
import pytest

from tabmoco.evaluation.folds import draw_labelled, fold_of_each

Y = np.repeat([0, 1, 2, 3], [50, 20, 3, 1])


@pytest.mark.parametrize("n_folds", [2, 5])
def test_folds_share_every_class_evenly(n_folds):
    fold = fold_of_each(Y, len(Y), n_folds=n_folds, seed=3)
    assert np.ptp(np.bincount(fold, minlength=n_folds)) <= 1
    for label in range(4):
        assert np.ptp(np.bincount(fold[Y == label], minlength=n_folds)) <= 1


def test_folds_depend_on_the_seed_alone():
    first, again, other = (fold_of_each(Y, len(Y), n_folds=5, seed=seed) for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()
    assert sorted(np.bincount(fold_of_each(None, 12, n_folds=5, seed=0))) == [2, 2, 2, 3, 3]


@pytest.mark.parametrize("n_labelled", [2, 4, 20, 73])
def test_drawn_rows_hold_every_class_that_fits(n_labelled):
    rows = draw_labelled(Y, len(Y), n_labelled, seed=1)
    assert len(np.unique(rows)) == n_labelled
    counts = np.bincount(Y[rows], minlength=4)
    assert (counts > 0).sum() == min(4, n_labelled)
    if n_labelled == 20:
        assert abs(counts[0] - 20 * 50 / 74) < 3
