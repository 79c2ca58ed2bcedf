"""What heads read: scaled by all rows, and of each row alone."""

from __future__ import annotations

import numpy as np
import pytest

from tabmoco.evaluation.inputs import N_COMPONENTS, InputReader
from tabmoco.model import RowModel, build_untrained
from tabmoco.tables.source import open_table


@pytest.mark.parametrize("space", ["embedding", "expected", "cells"])
def test_spaces_are_standardised_by_the_rows_of_fit(read, space):
    points = read(range(600)).spaces[space]
    np.testing.assert_allclose(points.mean(0), 0, atol=1e-3)
    assert (points.std(0) < 1.001).all() and points.std(0).max() == pytest.approx(1, abs=1e-3)


def test_expected_cells_are_those_of_the_model(read, model, planted):
    raw = model.embed(planted[0], space="expected")
    standardised = (raw - raw.mean(0)) / np.maximum(raw.std(0), 0.1)
    np.testing.assert_allclose(read(range(600)).spaces["expected"], standardised, atol=1e-3)


def test_components_hold_most_of_the_variance_of_the_expected_cells(read):
    rows = read(range(600))
    components, expected = rows.spaces["components"], rows.spaces["expected"]
    leading = np.sort(np.linalg.eigvalsh(np.cov(expected.T)))[::-1][:N_COMPONENTS]
    np.testing.assert_allclose(components.var(0, ddof=1), leading, rtol=1e-2)


def test_a_row_is_read_the_same_alone(read):
    together, alone = read(range(40)), read([17])
    for name, points in alone.spaces.items():
        np.testing.assert_array_equal(points[0], together.spaces[name][17])


def test_without_a_decoder_the_embedding_stands_for_the_expected_cells(model, planted):
    config = model.config.override(["objective.weights={moco = 1.0}"])
    blind = RowModel(config, model.preprocessor, build_untrained(model.preprocessor, config))
    rows = InputReader.fit(blind, open_table(planted[0]), seed=0).take(open_table(planted[0]), np.arange(9))
    raw = blind.embed(planted[0])
    np.testing.assert_allclose(
        rows.spaces["expected"], ((raw - raw.mean(0)) / np.maximum(raw.std(0), 0.1))[:9], atol=1e-3
    )
