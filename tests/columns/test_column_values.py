"""What is told of single values and of the cells of a column together."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.columns.encoder import kind_of
from tabmoco.columns.traits import FIGURES, N_TRAITS, traits
from tabmoco.columns.values import LOOKS, MAX_CHARACTERS, Values
from tabmoco.errors import SchemaError


def read(cells: object) -> Values:
    return Values.read(cells if isinstance(cells, pa.Array) else pa.array(cells), "column")


def look(text: str) -> dict[str, float]:
    values = read([text])
    return {name: float(values.look[0, place]) for name, place in LOOKS.items() if values.look[0, place]}


@pytest.mark.parametrize(
    ("text", "number"),
    [("12", 12), ("-0.5", -0.5), ("$1,234.50", 1234.5), ("7 %", 7), ("1e3", 1000), (".5", 0.5), ("3.0", 3)],
)
def test_numbers_are_read_from_text(text, number):
    assert read([text]).number.tolist() == [number]


@pytest.mark.parametrize("text", ["", " ", "1.2.3", "12a", "-", ".", "$", "1e999", "１２", "nan", "inf", "1,23"])
def test_other_text_is_no_number(text):
    assert np.isnan(read([text, "x"]).number).all()


def test_digits_decimals_and_ranges():
    told = look("0.0520")
    assert {"first digit 5", "last digit 0", "3 decimals", "power -2", "within 0 to 1"} <= told.keys()
    assert "whole" not in told and "date" not in told
    assert {"whole", "first digit 1", "last digit 4", "power 3", "within 1800 to 2100"} <= look("1984").keys()
    assert {"negative", "within -90 to 90", "0 decimals"} <= look("-30").keys()
    assert "zero" in look("0") and not {name for name in look("0") if "digit " in name}
    assert {"percent"} <= look("5%").keys() and {"currency"} <= look("€5").keys()


def test_dates_are_told_by_their_parts():
    told = look("2013-11-30")
    assert {"date", "month 11", "weekday 5", "day third 2", "hour quarter 4"} <= told.keys()
    assert told["year"] == pytest.approx(2.13)
    assert {"date", "month 11"} <= look("30/11/2013").keys() & look("11/30/13").keys()
    assert "hour quarter 2" in look("2013-11-30 13:05:00")
    assert "date" not in look("2013-02-30") and "date" not in look("2013-13-01")


def test_instants_read_like_their_text():
    instants = pa.array(np.array(["2013-11-30T13:05"], "datetime64[us]"))
    assert read(instants).look[0, LOOKS["hour quarter 2"]] == 1
    days = read(pa.array(np.array(["2013-11-30"], "datetime64[D]")))
    assert np.array_equal(days.look, read(["2013-11-30"]).look)


def test_the_same_column_from_a_csv_and_a_parquet_file_looks_the_same():
    number = pa.array([1.0, 2.5, None, 3.0])
    assert np.array_equal(traits(read(number)), traits(read(["1", "2.5", "", "3"])))
    category = pa.array(["a", "b", None, "a"]).dictionary_encode()
    assert np.array_equal(traits(read(category)), traits(read(["a", "b", None, "a"])))
    pandas = pa.array(pd.Series([1, None, 3]))
    assert np.array_equal(traits(read(pandas)), traits(read(["1", None, "3"])))


def test_frequencies_and_gaps():
    found = traits(read(["a", "a", "a", "b", None]))
    figures = {name: float(found[place]) for name, place in FIGURES.items()}
    assert figures["missing"] == pytest.approx(0.2) and figures["distinct"] == pytest.approx(0.5)
    assert (figures["top 0"], figures["top 1"], figures["top 2"]) == (0.75, 0.25, 0)
    assert figures["single"] == 0.25
    assert figures["evenness"] == pytest.approx(-(0.75 * np.log2(0.75) + 0.25 * np.log2(0.25)))


def test_quantiles_are_of_squeezed_numbers():
    found = traits(read([0, 1, 10, 100, 1_000]))
    middle, top = found[FIGURES["quantile 0.5"]], found[FIGURES["quantile 1"]]
    assert middle == pytest.approx(np.log1p(10)) and top == pytest.approx(np.log1p(1_000))
    assert traits(read(list(range(50))))[FIGURES["density"]] == pytest.approx(1)
    assert traits(read([1, 1_000_000]))[FIGURES["density"]] < 0.01


def test_the_order_of_cells_does_not_count():
    cells = np.random.default_rng(0).integers(0, 30, 200)
    values = read(cells)
    assert np.allclose(traits(values), traits(read(cells[::-1].copy())), atol=1e-6)
    assert np.array_equal(traits(values, np.arange(200)), traits(values))
    assert values.content() == read(cells[::-1].copy()).content() != read(cells[:100] + 1).content()


def test_giant_texts_are_read_at_their_beginning():
    giant = read(["x" * 10_000_000, "y"])
    assert giant.look[:, LOOKS["length"]].max() == pytest.approx(np.log1p(10_000_000))
    start = read(["x" * MAX_CHARACTERS, "y"])
    grams = slice(LOOKS["gram 0"], LOOKS["gram 0"] + 96)
    assert np.array_equal(giant.look[:, grams], start.look[:, grams])


@given(st.lists(st.one_of(st.none(), st.text(max_size=20), st.floats().map(str), st.integers().map(str)), max_size=8))
def test_traits_of_any_text_are_finite(cells):
    clean = [None if cell is None else cell.encode("utf-8", "replace").decode() for cell in cells]
    found = traits(Values.read(pa.array(clean, pa.string()), "column"))
    assert found.shape == (N_TRAITS,) and np.isfinite(found).all()


@pytest.mark.parametrize(
    "cells",
    [[1.7e308, -1.7e308], [5e-324, 0.0], [float("inf"), 1.0], [2**63 - 1, -(2**63)], [None, None], [], [True, False]],
)
def test_traits_of_extreme_numbers_are_finite(cells):
    assert np.isfinite(traits(read(cells))).all()


def test_examples_are_the_most_frequent_values():
    assert read(["b", "a", "a", "", None, "c", "c", "c", "d"]).examples == ("c", "a", "b")
    assert read([1.0, 2.5, 1.0]).examples == ("1", "2.5")
    assert read(["x" * 999]).examples == ("x" * MAX_CHARACTERS,) and read([None]).examples == ()


def test_cells_of_many_values_are_refused():
    with pytest.raises(SchemaError, match="'column'"):
        read([[1, 2], [3]])
    with pytest.raises(SchemaError, match="not UTF-8"):
        read(pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")))


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([1, 2, 3.5], "number"),
        (["1", "2", None], "number"),
        ([0, 1, 1], "boolean"),
        (["yes", "no", "yes"], "boolean"),
        (["2013-01-01", "2014-01-01"], "timestamp"),
        (["red", "blue", "red"], "category"),
        ([f"a long line number {n} of text" for n in range(9)], "text"),
    ],
)
def test_kinds_are_what_most_values_look_like(cells, kind):
    assert kind_of(read(cells)) == kind
