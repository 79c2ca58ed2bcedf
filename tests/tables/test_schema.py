"""What each column is taken for, and the reason given."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.config import DataConfig
from tabmoco.errors import SchemaError, TableError
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.profiles import EXACT_DISTINCT, DistinctCounter, ValueCounter
from tabmoco.tables.schema import Column, Schema, infer_schema
from tabmoco.tables.source import open_table

N = 200
RNG = np.random.default_rng(0)
SENTENCES = [f"the {RNG.choice(['red', 'blue'])} pump number {row} leaks a lot" for row in range(N)]
CODES = [f"K{RNG.integers(1e9)}" for _ in range(N)]
SHUFFLED = RNG.permutation(N)


def schema_of(data, **settings) -> Schema:
    return infer_schema(open_table(data), DataConfig(**settings))


def column_of(values, name: str = "c", **settings) -> Column:
    beside = RNG.normal(size=len(values))  # so that the table never runs out of columns
    return schema_of({name: values, "beside": beside}, **settings)[name]


KINDS = {
    "floats": (RNG.normal(size=N), "number", "Decimal numbers"),
    "distinct sorted floats": (np.arange(N) / 3, "number", "Decimal numbers"),
    "integers": (RNG.integers(0, 90, N), "number", "Whole numbers by its type"),
    "few integers": (RNG.integers(0, 3, N), "number", "3 distinct; if they are codes, use --kind c=category"),
    "decimals": ([decimal.Decimal(i % 7) / 4 for i in range(N)], "number", "Decimal numbers"),
    "durations": (pd.to_timedelta(RNG.integers(0, 9, N), "min"), "number", "Durations, in seconds"),
    "times of day": ([datetime.time(i % 24) for i in range(N)], "number", "Times of day, in seconds"),
    "booleans": ([True, False] * (N // 2), "boolean", "True or false"),
    "yes and no": (["yes", "no"] * (N // 2), "category", "2 distinct values"),
    "dates": ([datetime.date(2024, 1, i % 28 + 1) for i in range(N)], "timestamp", "Dates or times"),
    "instants": (pd.date_range("2024", periods=N, freq="h", tz="Europe/Berlin"), "timestamp", "Dates or times"),
    "words": (["a", "b", None, "c"] * (N // 4), "category", "3 distinct values"),
    "coded integers": (pd.Categorical(RNG.integers(0, 4, N)), "category", "4 distinct values"),
    "sentences": (SENTENCES, "text", "Sentences: 8.0 words per cell, 100% of them distinct"),
    "repeated sentences": (SENTENCES[:4] * (N // 4), "category", "4 distinct values"),
    "numbers as text": (["1.5", "2", "-3e5", None] * (N // 4), "category", "look like numbers.*--kind c=number"),
    "dates as text": (["2024-01-05", "2023-01-05"] * (N // 2), "category", "look like dates.*--kind c=timestamp"),
    "one bad number": (["oops", *map(str, np.arange(N - 1) / 8)], "category", "Most look like numbers, but not 'oops'"),
    "constant": ([3] * N, "dropped", "one value in every row"),
    "constant and missing": ([3.0] * (N - 1) + [None], "number", "one value, but 1 missing cell"),
    "code and missing": ([None] + ["x"] * (N - 1), "category", "1 distinct value. It has one value, but 1 missing"),
    "codes": (CODES, "dropped", "An identifier: 100.0% of its single words differ; to keep it, use --kind c=text"),
    "digits": ([str(10**9 + 7 * i) for i in SHUFFLED], "dropped", "An identifier"),
    "row numbers": (np.arange(N), "dropped", "all differ and are sorted; to keep it, use --kind c=number"),
    "shuffled row numbers": (SHUFFLED, "dropped", "all differ, without gaps"),
    "distinct integers": (SHUFFLED * 1_000, "number", "Whole numbers by its type"),
    "few rows": (np.arange(50), "number", "Whole numbers"),
}


@pytest.mark.parametrize("case", KINDS)
def test_kind_and_reason(case):
    values, kind, reason = KINDS[case]
    column = column_of(values)
    assert column.kind == kind, column.reason
    assert re.search(reason, column.reason), column.reason


@pytest.mark.parametrize("name", ["id", "user_id", "enrolleeID", "order no", "rowKey"])
def test_distinct_integers_named_like_identifiers_are_dropped(name):
    column = column_of(SHUFFLED * 1_000, name)
    assert column.kind == "dropped" and "by its name" in column.reason
    assert column_of(SHUFFLED * 1_000, "paid").kind == "number"


def test_names_with_blanks_are_quoted_in_options():
    assert "--kind 'order no=number'" in column_of(np.arange(N), "order no").reason


def test_many_distinct_words_are_text():
    words = [f"W{i % 150}" for i in range(1_000)]
    assert column_of(words).kind == "category"
    column = column_of(words, max_categories=100)
    assert column.kind == "text" and "150 distinct values, more than max_categories = 100" in column.reason


def test_figures_for_display():
    number = column_of([1.0, np.inf, -np.inf, np.nan, None, 3.0, 1.0])
    assert (number.n_missing, number.n_infinite, number.n_distinct) == (2, 2, 4)
    assert (number.minimum, number.maximum, number.mean) == (1.0, 3.0, pytest.approx(5 / 3))
    category = column_of(["b", "a", "b", "a", "c", "d", None])
    assert category.frequent == (("a", 2), ("b", 2), ("c", 1)) and category.n_missing == 1
    instants = column_of([datetime.datetime(1, 1, 1), None, datetime.datetime(9999, 12, 31, 12)])
    assert (instants.earliest, instants.latest) == ("0001-01-01", "9999-12-31T12:00")
    assert column_of([True, False, True]).frequent == (("true", 2), ("false", 1))


def test_figures_do_not_depend_on_batches(monkeypatch):
    table = pa.table({"n": RNG.normal(size=N), "i": np.arange(N), "s": SENTENCES, "c": CODES, "t": [True, None] * 100})
    whole = infer_schema(open_table(table))
    source = open_table(table)
    batches = source.batches
    monkeypatch.setattr(source, "batches", lambda: batches(batch_rows=7))
    pieces = infer_schema(source)
    assert pieces["n"].mean == pytest.approx(whole["n"].mean)
    assert [column.kind for column in pieces.columns] == [column.kind for column in whole.columns]
    assert [column.reason for column in pieces.columns] == [column.reason for column in whole.columns]
    assert pieces["c"] == whole["c"]


def test_large_integers_are_told_apart():
    assert column_of(2**60 + SHUFFLED % 150).n_distinct == 150


def test_schema_survives_json():
    days = [datetime.date(2024, 1, day) for day in (1, 2, 3)]
    schema = schema_of({"n": [1.0, np.inf, None], "s": ["a", "b", "a"], "t": days})
    assert Schema.from_json(json.loads(json.dumps(schema.to_json(), allow_nan=False))) == schema


def test_lookup_suggests_close_names():
    with pytest.raises(SchemaError, match="did you mean 'amount'"):
        schema_of({"amount": [1.0, 2.0]})["amout"]


OVERRIDES = {
    "number from text": (["1", " 2.5 ", None], "number"),
    "number from times": ([datetime.datetime(2024, 1, 1), None], "number"),
    "category from integers": ([1, 2, None], "category"),
    "category from booleans": ([True, False], "category"),
    "text from integers": ([1, 2, None], "text"),
    "timestamp from text": (["2024-01-05", "2024-01-06T10:00:00.5", None], "timestamp"),
    "timestamp from zoned text": (["2024-01-05T10:00:00+02:00", "2024-01-06T10:00:00Z"], "timestamp"),
    "boolean from words": (["Yes", "no", None], "boolean"),
    "boolean from floats": ([1.0, 0.0, None], "boolean"),
    "constant kept": ([5, 5], "number"),
    "empty kept": ([None, None], "number"),
    "dropped list": ([[1], [2]], "dropped"),
}


@pytest.mark.parametrize("case", OVERRIDES)
def test_kinds_can_be_overridden(case):
    values, kind = OVERRIDES[case]
    column = column_of(values, kinds={"c": kind})
    assert column.kind == kind and "as asked" in column.reason


IMPOSSIBLE = {
    "number": (["1", "1,5", "2"], r"'c' must hold a number in every cell, got '1,5'"),
    "timestamp": (["2024-01-05", "5 May"], r"'c' must hold an ISO 8601 date or time in every cell, got '5 May'"),
    "boolean": ([0, 1, 2], r"'c' must hold true or false \(or yes, no, 1, 0\), got '2'"),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_impossible_kinds_are_refused_with_an_example(kind):
    values, message = IMPOSSIBLE[kind]
    with pytest.raises(SchemaError, match=message):
        column_of(values, kinds={"c": kind})


def test_kinds_of_unknown_columns_are_refused():
    with pytest.raises(SchemaError, match="kinds names the column 'abd'.*did you mean 'abc'"):
        schema_of({"abc": [1, 2]}, kinds={"abd": "number"})


@pytest.mark.parametrize("values", [[[1], [2]], [{"x": 1}, {"x": 2}], [b"1", b"2"]])
def test_nested_columns_are_refused_by_name(values):
    with pytest.raises(SchemaError, match=r"'c' \((list|struct|binary).*--exclude c"):
        column_of(values)


def test_infinities_can_be_refused():
    with pytest.raises(SchemaError, match="'c' must be finite, but has 2 infinite cells"):
        column_of([1.0, np.inf, -np.inf], infinities="refuse")


def test_columns_without_values_are_left_out_with_one_warning():
    with pytest.warns(TabmocoWarning) as warnings:
        schema = schema_of({"a": [None, None], "b": [np.nan, np.nan], "c": [1.0, 2.0]})
    assert [str(warning.message) for warning in warnings] == ["Columns without a single value are left out: 'a', 'b'."]
    assert [column.name for column in schema.used] == ["c"]
    assert [column.name for column in schema.dropped] == ["a", "b"]


def test_too_little_to_learn_from():
    with pytest.raises(TableError, match="two rows or more to learn from, found none"):
        schema_of(pa.table({"a": pa.array([], pa.int64())}))
    with pytest.raises(TableError, match="two rows or more to learn from, found one"):
        schema_of({"a": [1.0]})
    with pytest.raises(SchemaError, match="at least one usable column, found none.*'a': It holds one value"):
        schema_of({"a": [1, 1]})


def test_columns_are_the_same_side_by_side(monkeypatch):
    table = {"number": SHUFFLED * 1.5, "word": CODES, "text": SENTENCES, "beside": SHUFFLED % 7}
    found = []
    for n_threads in (1, 2, 8):
        monkeypatch.setattr("tabmoco.tables.schema.pa.cpu_count", lambda n=n_threads: n)
        found.append(schema_of(table))
    assert found[0] == found[1] == found[2]


@given(st.integers(0, 3_000), st.integers(1, 50))
def test_distinct_values_are_counted_exactly_when_few(n_values, n_batches):
    counter = DistinctCounter()
    hashes = np.random.default_rng(n_values).integers(0, 2**64, n_values, dtype=np.uint64)
    for _ in range(2):
        for batch in np.array_split(hashes, n_batches):
            counter.add(batch)
    assert counter.result() == (len(np.unique(hashes)), True)


def test_many_distinct_values_are_estimated():
    counter = DistinctCounter()
    rng = np.random.default_rng(0)
    for _ in range(10):
        counter.add(rng.integers(0, 2**64, EXACT_DISTINCT // 2, dtype=np.uint64))
    n_distinct, is_exact = counter.result()
    assert not is_exact and n_distinct == pytest.approx(5 * EXACT_DISTINCT, rel=0.01)


@pytest.mark.parametrize("n_distinct", [1_000, 2 * EXACT_DISTINCT])
def test_values_that_return_are_counted_once(n_distinct):
    values = np.random.default_rng(0).permutation(np.tile(np.arange(n_distinct), 3))
    once, again = DistinctCounter(), DistinctCounter()
    once.add_values(np.arange(n_distinct))
    for batch in np.array_split(values, 20):
        again.add_values(batch)
    assert once.result() == again.result()
    assert again.result()[0] == pytest.approx(n_distinct, rel=0.01)


def test_frequent_values_survive_a_flood_of_rare_ones():
    counter = ValueCounter(capacity=100)
    for batch in range(20):
        rare = [f"rare{batch}-{i}" for i in range(60)]
        counter.add(pa.array(["often"] * 30 + ["seldom"] * 5 + rare).dictionary_encode())
    assert not counter.is_exact and len(counter.counts) <= 100
    assert counter.most_common(2) == [("often", 600), ("seldom", 100)]


@pytest.mark.skipif("TABMOCO_DATA_DIR" not in os.environ, reason="TABMOCO_DATA_DIR names no folder of tables")
def test_a_real_table_is_understood():
    schema = infer_schema(open_table(Path(os.environ["TABMOCO_DATA_DIR"]) / "tables" / "mpls_stops.parquet"))
    kinds = {column.name: column.kind for column in schema.columns}
    assert kinds["idNum"] == "dropped" and kinds["date"] == "timestamp" and kinds["lat"] == "number"
