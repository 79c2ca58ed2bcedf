"""Labelled rows chosen as context are the most similar ones."""

from __future__ import annotations

import numpy as np
import pytest

from tabmoco import context_rows
from tabmoco.errors import ConfigError, TableError


def test_rows_find_themselves_and_then_the_most_similar(planted, model):
    frame = planted[0]
    labelled = frame.iloc[:200]
    found = context_rows(model, frame.iloc[50:60], labelled, 5)
    assert found.shape == (10, 5) and found.dtype == np.int64
    np.testing.assert_array_equal(found[:, 0], np.arange(50, 60))
    unit = model.embed(labelled).astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    similarity = unit[50:60] @ unit.T
    np.testing.assert_allclose(
        np.take_along_axis(similarity, found, axis=1), np.sort(similarity, axis=1)[:, :-6:-1], atol=1e-5
    )


def test_context_shares_the_hidden_number(planted, model):
    frame, hidden = planted
    found = context_rows(model, frame.iloc[300:], frame.iloc[:300], 10)
    assert np.corrcoef(hidden[:300][found].mean(axis=1), hidden[300:])[0, 1] > 0.6


def test_fewer_labelled_rows_than_asked_for_are_all_returned(planted, model):
    frame = planted[0]
    assert np.sort(context_rows(model, frame.iloc[:4], frame.iloc[:3], 10), axis=1).tolist() == [[0, 1, 2]] * 4
    assert context_rows(model, frame.iloc[:0], frame.iloc[:3], 2).shape == (0, 2)


def test_nothing_to_choose_from_is_an_error(planted, model):
    frame = planted[0]
    with pytest.raises(ConfigError, match="k must be at least 1, got k=0"):
        context_rows(model, frame, frame, 0)
    with pytest.raises(TableError, match="there must be labelled rows"):
        context_rows(model, frame, frame.iloc[:0], 3)
