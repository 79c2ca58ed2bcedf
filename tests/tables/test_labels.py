"""Labels of every make, with gaps."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tabmoco.errors import TableError
from tabmoco.tables.labels import read_classes, read_numbers
from tabmoco.tables.notices import TabmocoWarning


@pytest.mark.parametrize(
    ("y", "rows", "classes"),
    [
        (["b", None, "a", "b"], [0, 2, 3], ["a", "b"]),
        (["b", float("nan"), "a"], [0, 2], ["a", "b"]),
        (np.array(["b", "a"]), [0, 1], ["a", "b"]),
        ([2, -1, 0, 2], [0, 2, 3], [0, 2]),
        (np.array([2.0, np.nan, 0.0, -1.0]), [0, 2], [0, 2]),
        ([True, None, False], [0, 2], [False, True]),
        (np.array([True, False]), [0, 1], [False, True]),
        (pd.Series(["b", None, "a"], dtype="category"), [0, 2], ["a", "b"]),
        (pd.Series([2, None, 0], dtype="Int64"), [0, 2], [0, 2]),
        (pd.Series([True, pd.NA], dtype="boolean"), [0], [True]),
        (pl.Series(["b", None, "a"]), [0, 2], ["a", "b"]),
        (pa.array([2, None, -1, 3]), [0, 3], [2, 3]),
        (pa.chunked_array([["b"], [None, "a"]]), [0, 2], ["a", "b"]),
        (["-1", "a"], [0, 1], ["-1", "a"]),
    ],
)
def test_classes_are_read_from_anything(y, rows, classes):
    found = read_classes(y)
    assert found.rows.tolist() == rows
    assert found.classes.tolist() == classes
    given = list(y.to_pylist() if hasattr(y, "to_pylist") else y)
    assert [found.classes[code] for code in found.code] == [given[row] for row in rows]


def test_minus_one_is_a_class_beside_one_alone():
    with pytest.warns(TabmocoWarning, match="taken for two classes"):
        assert read_classes([-1, 1, -1]).classes.tolist() == [-1, 1]
    assert read_classes([-1, 0, -1]).classes.tolist() == [0]
    assert read_classes([-1, 1, 2]).rows.tolist() == [1, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_classes([-1, 1, 2], marked=False).rows.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([None, None], "at least one row must have a label, got none among 2 rows"),
        ([-1, -1], "at least one row must have a label"),
        (["a", 1], "labels must be of one kind, got int and words"),
        ([0.5, 1.5], "Unknown label type"),
        ([[1, 2], [3, 4]], "1d array"),
    ],
)
def test_what_are_no_classes_is_refused(y, message):
    with pytest.raises(ValueError, match=message):
        read_classes(y)


def test_numbers_are_read_with_their_gaps():
    for y in ([1, None, -1.5], np.array([1, np.nan, -1.5]), pa.array([1, None, -1.5]), pl.Series([1.0, None, -1.5])):
        found = read_numbers(y)
        assert found.rows.tolist() == [0, 2] and found.value.tolist() == [1.0, -1.5]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["a", "b"], "targets must be numbers, got 'a'; use a classifier"),
        ([1.0, float("inf")], "targets must be finite"),
        ([None], "at least one row must have a target"),
    ],
)
def test_what_are_no_numbers_is_refused(y, message):
    with pytest.raises(TableError, match=message):
        read_numbers(y)
