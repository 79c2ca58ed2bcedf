"""What is called ordinary: shares of a column, kinds of columns, and dependence between them."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.clean_table import CleanColumn, CleanTable, dependence, is_present


def measure(values: object, arrow_type: pa.DataType | None = None) -> CleanColumn:
    return CleanColumn.measure(pa.chunked_array([pa.array(values, arrow_type)]))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, 3, None], "number"),
        ([0.5, float("nan")], "number"),
        (["Ulm", "Kiel"] * 2, "category"),
        ([datetime.date(2020, 1, 1)], "timestamp"),
        (["every", "word", "another"], "untouched"),
        ([True, False], "untouched"),
        (pa.nulls(3, pa.int64()), "untouched"),
    ],
)
def test_kinds(values, kind):
    assert measure(values).kind == kind


def test_null_and_nan_are_no_values():
    assert [is_present(value) for value in (None, float("nan"), 0, "")] == [False, False, True, True]


def test_the_most_ordinary_numbers_are_those_nearest_to_the_median_in_rank():
    column = measure(np.arange(1_001) ** 2)
    assert column.is_within(500**2, 0.01)
    assert column.is_within(51**2, 0.9) and not column.is_within(49**2, 0.9)
    assert column.is_within(949**2, 0.9) and not column.is_within(951**2, 0.9)
    assert not column.is_within(None, 1.0) and not column.is_within(10**7, 1.0)


def test_the_most_ordinary_levels_are_the_frequent_ones():
    column = measure(["a"] * 80 + ["b"] * 15 + ["c"] * 5)
    assert [column.is_within(level, 0.9) for level in ("a", "b", "c", "d")] == [True, True, False, False]
    assert column.is_within("c", 0.99)


def test_mostly_constant_columns_have_a_spread():
    assert measure([0.0] * 95 + [10.0] * 5).spread == pytest.approx(10 / 4.652)
    normal = np.random.default_rng(0).normal(0, 3, 5_000)
    assert measure(normal).spread == pytest.approx(3, rel=0.1)


def test_numbers_are_written_as_their_column_writes_them():
    assert measure([1, 2], pa.int8()).like_the_others(1_000.4) == 127
    assert measure([1.25, 2.5]).like_the_others(1 / 3) == 0.33


def test_words_of_the_dictionary_are_known_though_they_do_not_occur():
    column = measure(pa.DictionaryArray.from_arrays([0, 1, 0, 1], ["Ulm", "Kiel", "Husum"]))
    assert column.counts == {"Ulm": 2, "Kiel": 2} and "Husum" in column.words


def test_a_value_that_fills_the_column_has_a_bin_of_its_own():
    column = measure([500] * 300 + list(range(1_000)))
    assert [value for value in range(1_000) if column.bin(value) == column.bin(500)] == [500]
    assert 0 < column.bin(0) < column.bin(500) < column.bin(999) < column.n_bins and column.bin(None) == 0


@pytest.fixture(scope="module")
def clean() -> CleanTable:
    generator = np.random.default_rng(0)
    town = generator.choice(["Ulm", "Kiel"], 600)
    return CleanTable.measure(
        pa.table(
            {
                "town": town,
                "region": np.where(town == "Ulm", "south", "north"),
                "luck": generator.integers(0, 100, 600),
            }
        )
    )


def test_partners_are_columns_that_depend_on_each_other(clean):
    assert clean.partners == ((1,), (0,), ())
    assert clean.dependent.tolist() == [0, 1]
    assert clean.of_kind("category") == [0, 1] and clean.of_kind("number", "category") == [0, 1, 2]


def test_a_cell_disagrees_if_it_is_unlikely_beside_its_partners(clean):
    assert not clean.disagrees(0, ["Ulm", "south", 50]) and clean.disagrees(0, ["Ulm", "north", 50])
    assert clean.is_visible(1, ["Ulm", "north", 50]) and not clean.is_visible(1, ["Ulm", "south", 50])
    assert clean.is_visible(2, ["Ulm", "south", 1_000]) and not clean.is_visible(2, ["Ulm", "south", 50])
    south, north = (clean.columns[1].bin(region) for region in ("south", "north"))
    agreement = clean.agreement(1, np.array([south, north]), ["Ulm", None, 50])
    assert agreement[0] == pytest.approx(np.log(2), abs=0.1) and agreement[1] < -3


def test_copies_depend_fully_and_unrelated_columns_not_at_all():
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 20, (2, 1_000))
    half = np.where(generator.random(1_000) < 0.5, a, b)
    strength = dependence(np.column_stack([a, (a + 3) % 20, b, half, np.zeros(1_000, dtype=int)]))
    assert strength[0, 1] == pytest.approx(1.0)
    assert strength[0, 2] < 0.03  # the plug-in estimate is about 0.07
    assert 0.1 < strength[0, 3] < 0.5
    assert (strength[4] == 0).all() and (np.diag(strength) == 0).all()
    np.testing.assert_array_equal(strength, strength.T)
