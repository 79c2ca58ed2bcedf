"""Cells become finite tensors, whatever they held, one row at a time or all at once; and they can be read back."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tabmoco.config import DataConfig
from tabmoco.errors import SchemaError, TableError, TabmocoError
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.scalings import normal_scores
from tabmoco.tables.source import open_table

N = 120
RNG = np.random.default_rng(0)
START = datetime.datetime(2024, 1, 1)


def mixed_columns() -> dict[str, Any]:
    columns = {
        "amount": RNG.normal(50, 9, N),
        "count": RNG.integers(0, 40, N),
        "town": RNG.choice(["Oslo", "Rome", "Lima"], N).tolist(),
        "paid": (RNG.random(N) < 0.5).tolist(),
        "at": [START + datetime.timedelta(hours=int(h)) for h in RNG.integers(0, 9_000, N)],
        "note": [f"the {RNG.choice(['red', 'blue'])} pump {row} leaks" for row in range(N)],
        "wait": pa.array(RNG.integers(0, 999, N), pa.duration("s")),
    }
    frame = {name: pa.array(values).to_pylist() for name, values in columns.items()}
    for name in frame:
        for row in RNG.integers(0, N, 9).tolist():
            frame[name][row] = None
    return frame


MIXED = pa.table(mixed_columns())


@pytest.fixture(scope="module")
def fitted() -> Preprocessor:
    return Preprocessor.fit(open_table(MIXED), DataConfig(text_width=8, n_knots=16))


def fit(data: Any, without: Sequence[int] = (), **config: Any) -> Preprocessor:
    return Preprocessor.fit(open_table(data), DataConfig(**config), without=np.array(without, np.int64))


def transformed(preprocessor: Preprocessor, data: Any) -> CellBatch:
    return preprocessor.transform(next(open_table(data).batches()))


def scores_of(preprocessor: Preprocessor, cells: CellBatch) -> torch.Tensor:
    return normal_scores(cells.number, torch.from_numpy(preprocessor.knots), torch.from_numpy(preprocessor.knot_scores))


def assert_equal(left: CellBatch, right: CellBatch) -> None:
    torch.testing.assert_close(left.number, right.number, rtol=0, atol=0)
    assert torch.equal(left.code, right.code) and torch.equal(left.missing, right.missing)


def test_every_kind_has_its_slots(fitted):
    layout = fitted.layout
    assert layout.columns == ("amount", "count", "town", "paid", "at", "note", "wait")
    assert layout.number_owner == (0, 1, 4, 4, 4, *[5] * 8, 6)
    assert layout.code_owner == (2, 3, 4, 4) and layout.cardinalities == (4, 3, 8, 13)
    assert fitted.knots.shape == fitted.knot_scores.shape == (14, 16)
    assert fitted.knots.dtype == fitted.knot_scores.dtype == np.float32


def test_cells_are_standardised_and_missing_cells_blank(fitted):
    table = fitted.encode(open_table(MIXED))
    cells = table.cells
    assert len(table) == N
    assert (cells.number.dtype, cells.code.dtype, cells.missing.dtype) == (torch.float32, torch.int64, torch.bool)
    missing = np.array([MIXED.column(name).is_null().to_numpy() for name in MIXED.column_names]).T
    assert np.array_equal(cells.missing.numpy(), missing)
    assert (cells.number[cells.missing[:, list(fitted.layout.number_owner)]] == 0).all()
    assert (cells.code[cells.missing[:, list(fitted.layout.code_owner)]] == 0).all()
    amount = cells.number[~cells.missing[:, 0], 0]
    assert amount.mean().abs() < 1e-5 and amount.std(correction=0) == pytest.approx(1, abs=1e-5)
    note = cells.number[~cells.missing[:, 5]][:, 5:13]
    assert note.var(dim=0, correction=0).mean() == pytest.approx(1, abs=1e-4)
    assert note.mean(dim=0).abs().max() < 1e-4


def test_quantile_normal_scores_come_from_the_knots(fitted):
    cells = fitted.encode(open_table(MIXED)).cells
    scores = scores_of(fitted, cells)
    present = ~cells.missing[:, 0]
    amounts = MIXED.column("amount").to_numpy()[present.numpy()]
    ranks = torch.from_numpy(amounts).argsort().argsort()
    assert torch.equal(scores[present, 0].argsort(stable=True), cells.number[present, 0].argsort(stable=True))
    middle = scores[present, 0][(ranks - len(ranks) / 2).abs() < 3]
    assert middle.abs().max() < 0.15


def test_a_row_alone_is_encoded_as_within_the_table(fitted):
    whole = fitted.encode(open_table(MIXED)).cells
    for row in range(0, N, 7):
        assert_equal(transformed(fitted, MIXED.slice(row, 1)), whole[row : row + 1])
    backwards = fitted.transform(open_table(MIXED).take(np.arange(N)[::-1].copy()))
    assert_equal(backwards, whole[torch.arange(N - 1, -1, -1)])


def test_no_rows_give_no_cells(fitted):
    for empty in (MIXED.slice(0, 0), MIXED.schema.empty_table(), MIXED.to_batches()[0].slice(0, 0)):
        assert_equal(fitted.transform(empty), CellBatch.empty(fitted.layout))
    assert len(fitted.encode(open_table(MIXED.slice(0, 0)))) == 0


def test_state_round_trip_encodes_alike(fitted):
    values, arrays = fitted.to_state()
    again = Preprocessor.from_state(json.loads(json.dumps(values, allow_nan=False)), arrays)
    assert again.config == fitted.config and again.schema == fitted.schema and again.layout == fitted.layout
    assert_equal(transformed(again, MIXED), transformed(fitted, MIXED))
    assert np.array_equal(again.knots, fitted.knots) and np.array_equal(again.knot_scores, fitted.knot_scores)
    assert again.to_state()[0] == values


def test_fitting_twice_gives_the_same(fitted):
    again = Preprocessor.fit(open_table(MIXED), fitted.config)
    assert_equal(transformed(again, MIXED), transformed(fitted, MIXED))


def test_numbers_codes_and_times_can_be_read_back(fitted):
    cells = transformed(fitted, MIXED)
    first_number = {owner: slot for slot, owner in reversed(list(enumerate(fitted.layout.number_owner)))}
    first_code = {owner: slot for slot, owner in reversed(list(enumerate(fitted.layout.code_owner)))}
    for row, raw in enumerate(MIXED.to_pylist()):
        number = {name: fitted.decode_number(first_number[c], cells.number[row, first_number[c]].item()) for c, name in
                  [(0, "amount"), (1, "count"), (4, "at"), (6, "wait")]}  # fmt: skip
        if raw["amount"] is not None:
            assert number["amount"] == pytest.approx(raw["amount"], rel=1e-5)
        if raw["count"] is not None:
            assert number["count"] == raw["count"] and isinstance(number["count"], int)
        if raw["at"] is not None:
            assert abs(datetime.datetime.fromisoformat(number["at"]) - raw["at"]) < datetime.timedelta(seconds=5)
            weekday, month = (fitted.decode_code(2 + part, cells.code[row, 2 + part].item()) for part in (0, 1))
            assert (weekday, month) == (raw["at"].strftime("%A"), raw["at"].strftime("%B"))
        if raw["wait"] is not None:
            assert number["wait"] == pytest.approx(raw["wait"].total_seconds(), abs=1e-3)
        if raw["town"] is not None:
            assert fitted.decode_code(first_code[2], cells.code[row, first_code[2]].item()) == raw["town"]
        if raw["paid"] is not None:
            assert fitted.decode_code(first_code[3], cells.code[row, first_code[3]].item()) == str(raw["paid"]).lower()
    assert fitted.decode_code(0, 0) is None


def test_cells_are_described_in_words(fitted):
    cases = {
        "amount": [(1234.56789, "1234.57"), (1e300, "1e+300"), (7.0, "7"), (math.nan, "(missing)"), (np.inf, "inf")],
        "count": [(np.int64(12), "12"), (None, "(missing)"), (pd.NA, "(missing)")],
        "at": [(START, "2024-01-01"), (pa.scalar(START.replace(hour=9)), "2024-01-01T09:00"), (pd.NaT, "(missing)")],
        "paid": [(True, "true"), (np.False_, "false")],
        "wait": [(3_725.0, "01:02:05"), (datetime.timedelta(seconds=-61), "-00:01:01")],
        "note": [("x" * 99, "x" * 59 + "…"), ("a\n b", "a b"), (" ", "(empty)")],
    }
    for column, pairs in cases.items():
        for value, text in pairs:
            assert fitted.describe(column, value) == text
    assert fitted.describe("at", pa.scalar(2**55, pa.timestamp("s"))).startswith("1141709097-")


NULLS = {
    "Int64": pd.DataFrame({"c": pd.array([1, pd.NA, 3, 1], "Int64")}),
    "Float64": pd.DataFrame({"c": pd.array([1.5, pd.NA, 3, 1], "Float64")}),
    "boolean": pd.DataFrame({"c": pd.array([True, pd.NA, False, True], "boolean")}),
    "string": pd.DataFrame({"c": pd.array(["a", pd.NA, "b", "a"], "string")}),
    "category": pd.DataFrame({"c": pd.Categorical(["a", None, "b", "a"])}),
    "integer category": pd.DataFrame({"c": pd.Categorical([1, None, 2, 1])}),
    "object": pd.DataFrame({"c": pd.Series(["a", None, "b", np.nan], dtype=object)}),
    "object numbers": pd.DataFrame({"c": pd.Series([1, pd.NA, 2.5, None], dtype=object)}),
    "datetime": pd.DataFrame({"c": pd.to_datetime(["2024-01-01", None, "2199-12-31", "2024-01-01"])}),
    "float NaN": pd.DataFrame({"c": [1.0, np.nan, 2.0, 1.0]}),
    "decimal": pd.DataFrame({"c": [decimal.Decimal("1.10"), None, decimal.Decimal(2), decimal.Decimal(1)]}),
    "polars": pl.DataFrame({"c": pl.Series(["a", None, "b", "a"], dtype=pl.Categorical)}),
    "dictionary holding a null": pa.table(
        {"c": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0]), pa.array(["a", None, "b"]))}
    ),
}


@pytest.mark.parametrize("case", NULLS)
def test_every_null_is_missing_and_nothing_else(case):
    cells = fit(NULLS[case]).encode(open_table(NULLS[case])).cells
    expected = [False, True, False, case.startswith("object")]
    assert cells.missing[:, 0].tolist() == expected
    assert torch.isfinite(cells.number).all()


def test_null_spellings_are_text_in_frames():
    values = ["nan", "<NA>", "None", None] * 3
    preprocessor = fit({"c": values})
    assert transformed(preprocessor, {"c": values}).missing[:, 0].tolist() == [False, False, False, True] * 3
    assert preprocessor.layout.cardinalities == (4,)


def test_codes_follow_frequency_and_rare_values_share_the_unknown_code():
    preprocessor = fit({"c": ["b", "a", "b", "c", "a", "b", "once", "d", "d"]})
    assert [preprocessor.decode_code(0, code) for code in range(4)] == [None, "b", "a", "d"]
    assert preprocessor.layout.cardinalities == (4,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a rare value is no news
        codes = transformed(preprocessor, {"c": ["once", "d", "b"]}).code[:, 0]
    assert codes.tolist() == [0, 3, 1]


def test_a_vocabulary_is_never_left_empty():
    assert fit({"c": ["a", "b", "c"]}).layout.cardinalities == (4,)
    assert fit({"c": ["a", "a", "b", "b", "c"]}, min_category_count=5).layout.cardinalities == (3,)


def test_unseen_categories_are_unknown_and_reported_once_per_column():
    preprocessor = fit({"c": ["a", "b"] * 5, "d": ["x", "y"] * 5})
    new = {"c": ["z", "a", None, "z"], "d": ["x", "x", "x", "w"]}
    with pytest.warns(TabmocoWarning) as caught:
        cells = transformed(preprocessor, new)
    assert len(caught) == 2
    assert cells.code.tolist() == [[0, 1], [1, 1], [0, 1], [0, 0]]
    assert cells.missing.tolist() == [[False, False], [False, False], [True, False], [False, False]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transformed(preprocessor, new)
    assert preprocessor.notices[0].startswith("Column 'c' has 4 cells with values never seen in training, encoded")


@pytest.mark.parametrize("values", [[0, 1, 2, 3] * 3, [0.0, 1.0, None, 3.0] * 3])
def test_categories_keep_their_value_when_integers_become_floats(values):
    preprocessor = fit({"c": pa.array([0, 1, 2, 3] * 3)}, kinds={"c": "category"})
    cells = transformed(preprocessor, {"c": pa.array(values, pa.float64())})
    known = [preprocessor.decode_code(0, code) for code in cells.code[:, 0].tolist()]
    assert known == [None if value is None else str(int(value)) for value in values]
    assert transformed(preprocessor, {"c": ["3"]}).code.item() == transformed(preprocessor, {"c": [3]}).code.item()


def test_infinities_are_extreme_values_and_reported():
    frame = {"c": [np.inf, -np.inf, 1.0, 2.0, 3.0, None]}
    preprocessor = fit(frame)
    with pytest.warns(TabmocoWarning, match="'c' has 2 infinite cells"):
        cells = transformed(preprocessor, frame)
    number = cells.number[:, 0]
    assert torch.isfinite(number).all() and not cells.missing[:5].any()
    assert number[0] > transformed(preprocessor, {"c": [1.7e308]}).number[0, 0] > number[4] > number[2] > number[1]
    strict = fit({"c": [1.0, 2.0]}, infinities="refuse")
    with pytest.raises(SchemaError, match="'c' must be finite, but has 1 infinite cell"):
        transformed(strict, {"c": [1.0, np.inf]})


@pytest.mark.parametrize(
    "values",
    [
        [1e300, -1e300, 1.0, 2.0],
        [5e-324, 0.0, 1e-320, 1e-310],
        [1.7e308, -1.7e308, 1.7e308, None],
        [2**63 - 1, -(2**63), 0, 1],
        [-5.0, -5.0, -5.0, None],
        [3.5e38, 3.4e38, 1e39, 0.0],
    ],
)
def test_extreme_numbers_stay_finite(values):
    preprocessor = fit({"c": values})
    cells = transformed(preprocessor, {"c": values})
    assert torch.isfinite(cells.number).all() and torch.isfinite(scores_of(preprocessor, cells)).all()
    assert math.isfinite(preprocessor.decode_number(0, float(cells.number.max())))


def test_times_use_only_the_calendar_parts_that_vary():
    days = pd.date_range("2024-01-01", periods=400, freq="D")
    assert fit({"c": days}).layout.cardinalities == (8, 13)
    assert fit({"c": days}).layout.n_numbers == 1
    mondays = fit({"c": pd.date_range("2024-01-01", periods=3, freq="7D")})
    assert mondays.layout.cardinalities == ()
    hours = fit({"c": pd.date_range("2024-01-01", periods=9, freq="h")})
    assert (hours.layout.n_numbers, hours.layout.cardinalities) == (3, ())
    noon = transformed(hours, {"c": [datetime.datetime(2024, 1, 1, 12)]}).number[0, 1:]
    torch.testing.assert_close(noon, torch.tensor([0.0, -1.0]))


@pytest.mark.parametrize(
    ("first", "last", "cardinalities"),
    [
        ("2024-01-01", "2024-01-06", ()),
        ("2024-01-01", "2024-01-07", (8,)),
        ("2023-01-01", "2023-11-30", (8,)),
        ("2023-01-01", "2023-12-01", (8, 13)),
    ],
)
def test_weekday_and_month_count_once_a_whole_week_or_year_was_seen(first, last, cardinalities):
    assert fit({"c": pd.date_range(first, last, freq="D")}).layout.cardinalities == cardinalities


def test_times_in_any_unit_and_zone_are_instants():
    preprocessor = fit({"c": pd.date_range("2024-01-01", periods=50, freq="7h")})
    moment = datetime.datetime(2024, 1, 5, 12)
    expected = transformed(preprocessor, {"c": [moment]})
    for unit in ("s", "ms", "us", "ns"):
        assert_equal(transformed(preprocessor, {"c": pa.array([moment], pa.timestamp(unit))}), expected)
    tokyo = pa.array([moment], pa.timestamp("us", "Asia/Tokyo"))
    assert_equal(transformed(preprocessor, {"c": tokyo}), expected)
    assert_equal(transformed(preprocessor, {"c": ["2024-01-05T12:00:00"]}), expected)
    assert_equal(transformed(preprocessor, {"c": ["2024-01-05T14:00:00+02:00"]}), expected)


def test_years_1_to_9999_and_constant_dates():
    frame = {"c": [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31), None, START]}
    assert torch.isfinite(fit(frame).encode(open_table(frame)).cells.number).all()
    some = {"c": [START, START, None, START]}
    cells = fit(some).encode(open_table(some)).cells
    assert cells.number.tolist() == [[0.0]] * 4 and cells.missing[:, 0].tolist() == [False, False, True, False]


def test_equal_texts_are_equal_and_similar_texts_near():
    texts = [f"{RNG.choice(['red', 'green'])} {RNG.choice(['pump', 'valve', 'gauge'])} number {i}" for i in range(300)]
    preprocessor = fit({"c": texts}, text_width=8)
    new = ["red pump number 5", "RED  pump\nnumber 5", "red pump number 6", "qqq zzz", ""]
    cells = transformed(preprocessor, {"c": new})
    same, shouted, near, far, _ = cells.number
    assert torch.equal(same, shouted)
    assert (same - near).norm() < 0.5 * (same - far).norm()
    assert torch.isfinite(cells.number).all()


def test_short_samples_leave_text_slots_at_zero():
    frame = {"c": ["one two three four", "five six seven eight", None]}
    cells = fit(frame, text_width=16).encode(open_table(frame)).cells
    assert cells.number.shape == (3, 16) and (cells.number[:, 2:] == 0).all() and torch.isfinite(cells.number).all()


@pytest.mark.parametrize("bad", ["oops", "1,5", ""])
def test_a_number_that_became_text_is_refused_with_an_example(fitted, bad):
    table = MIXED.set_column(0, "amount", pa.array(["1.5"] * (N - 1) + [bad]))
    with pytest.raises(SchemaError, match=f"'amount' must hold a number in every cell, got '{bad}'"):
        fitted.transform(table)
    table = MIXED.set_column(0, "amount", pa.array(["1.5", None] * (N // 2)))
    assert fitted.transform(table).missing[:2, 0].tolist() == [False, True]


ACCEPTED = {
    "amount": [pa.int32(), pa.float32(), pa.decimal128(22, 2), pa.null()],
    "count": [pa.float64(), pa.uint8(), pa.decimal128(22, 2)],
    "town": [pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.string_view(), pa.null()],
    "paid": [pa.int8(), pa.string(), pa.null()],
    "at": [pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.string()],
    "wait": [pa.duration("ms"), pa.null()],
}


@pytest.mark.parametrize(("name", "arrow_type"), [(name, t) for name, types in ACCEPTED.items() for t in types])
def test_widths_and_encodings_may_change(fitted, name, arrow_type):
    position = MIXED.column_names.index(name)
    column = MIXED.column(name).combine_chunks()
    if pa.types.is_null(arrow_type):
        changed = pa.nulls(N)
    elif pa.types.is_dictionary(arrow_type):
        changed = column.dictionary_encode()
    elif pa.types.is_decimal(arrow_type):
        changed = column.cast(pa.int64(), safe=False).cast(pa.decimal128(22, 2), safe=False)
    else:
        changed = column.cast(arrow_type, safe=False)
    cells = fitted.transform(MIXED.set_column(position, name, changed))
    expected = fitted.transform(MIXED)
    if pa.types.is_null(arrow_type):
        assert cells.missing[:, position].all()
    elif name != "amount":  # whose fractions are cut by some of these types
        assert_equal(cells, expected)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("amount", [[1.0]] * N),
        ("amount", [START] * N),
        ("at", [1] * N),
        ("wait", [1.0] * N),
        ("paid", [START] * N),
        ("town", [{"x": 1}] * N),
    ],
)
def test_another_type_is_refused_by_name(fitted, name, values):
    changed = MIXED.set_column(MIXED.column_names.index(name), name, pa.array(values))
    with pytest.raises(SchemaError, match=f"Column '{name}' must hold .* as in training, got .* in new rows"):
        fitted.align(changed.schema, name="new rows")


def test_missing_columns_are_a_diff_of_names(fitted):
    table = MIXED.rename_columns(["Amount", "count", "town", "paid", "at", "notes", "wait"])
    message = r"(?s)2 of 7 are missing \(-\), and 2 are unknown \(\+\).*- amount\n- note\n\+ Amount\n\+ notes"
    with pytest.raises(SchemaError, match=message):
        fitted.align(table.schema)


def test_extra_and_reordered_columns():
    preprocessor = fit({"a": [1.0, 2.0, 3.0], "b": ["x", "y", "x"], "constant": [1, 1, 1]})
    plain = transformed(preprocessor, {"a": [2.0], "b": ["y"]})
    with pytest.warns(TabmocoWarning, match="Columns unknown to the model are ignored: 'new'") as caught:
        for _ in range(2):
            assert_equal(transformed(preprocessor, {"new": [[1]], "constant": [5], "b": ["y"], "a": [2.0]}), plain)
    assert len(caught) == 1


def test_a_column_without_values_at_use_is_reported(fitted):
    preprocessor = fit({"a": [1.0, 2.0], "b": ["x", "y"]})
    with pytest.warns(TabmocoWarning, match="Column 'a' holds no value at all here"):
        cells = preprocessor.encode(open_table({"a": [None, None], "b": ["x", "y"]})).cells
    assert cells.missing[:, 0].all() and torch.isfinite(cells.number).all()


def test_rows_left_out_are_not_learned_from():
    values = [1.0, 2.0, 3.0, 1e6, 2e6]
    frame = {
        "n": values,
        "c": ["a", "a", "b", "z", "z"],
        "t": [START.replace(year=y) for y in (2020, 2021, 2022, 1, 2)],
    }
    part = fit(frame, without=[4, 3, 3])
    first = {name: column[:3] for name, column in frame.items()}
    assert_equal(transformed(part, first), transformed(fit(first), first))
    with pytest.warns(TabmocoWarning, match="'c' has 2 cells with values never seen"):
        transformed(part, frame)
    with pytest.raises(TableError, match="must lie in 0 to 4, got 0 to 5"):
        fit(frame, without=[0, 5])
    with pytest.raises(TableError, match="must have rows to learn from"):
        fit(frame, without=[0, 1, 2, 3, 4])


def test_a_large_table_is_learned_from_a_sample_and_all_its_categories():
    table = pa.table({"n": np.arange(5_000) / 7, "c": ["often"] * 4_998 + ["rare"] * 2})
    preprocessor = fit(table, sample_rows=1_000)
    assert preprocessor.encoders[0].location == pytest.approx(357, rel=0.1)
    assert preprocessor.decode_code(0, 2) == "rare"


def test_encode_reports_progress():
    table = pa.table({"key": [f"k{i}" for i in range(100_000)], "v": np.arange(100_000) / 3})
    source = open_table(table, id_column="key")
    done: list[int] = []
    encoded = Preprocessor.fit(source).encode(source, progress=done.append)
    assert done == [65_536, 100_000]
    assert len(encoded) == 100_000


def test_encoding_can_begin_at_any_row():
    table = pa.table({"v": np.arange(100_000) / 3, "c": ["x", "y"] * 50_000})
    source = open_table(table)
    preprocessor = Preprocessor.fit(source)
    whole = preprocessor.encode(source).cells
    for first in (1, 65_535, 65_536, 70_001, 99_999, 100_000):
        rest = [CellBatch.empty(preprocessor.layout), *preprocessor.iter_cells(source, first=first)]
        assert_equal(CellBatch.cat(rest), whole[first:])


def test_numbers_only_categories_only_and_a_single_column():
    numbers = fit({"a": [1.0, 2.0, 3.0]})
    assert (numbers.layout.n_numbers, numbers.layout.n_codes) == (1, 0)
    codes = fit({"a": ["x", "y", "x"]})
    assert (codes.layout.n_numbers, codes.layout.n_codes) == (0, 1)
    assert codes.knots.shape == (0, 128)
    assert transformed(codes, {"a": ["x"]}).number.shape == (1, 0)


def test_odd_column_names_survive_saving():
    names = pd.Index([7, ("a", 1), "x.y"], dtype=object)
    frame = pd.DataFrame([[1.0, "a b c d e", 2.0], [2.0, "f g h i j", 3.0]], columns=names)
    preprocessor = fit(frame)
    values, arrays = preprocessor.to_state()
    again = Preprocessor.from_state(json.loads(json.dumps(values)), arrays)
    assert again.layout.columns == ("7", "('a', 1)", "x.y")
    assert_equal(transformed(again, frame), transformed(preprocessor, frame))


TYPES = [
    pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(12, 3), pa.string(),
    pa.large_string(), pa.string_view(), pa.dictionary(pa.int16(), pa.string()), pa.dictionary(pa.int8(), pa.int64()),
    pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "Europe/Paris"), pa.time32("s"),
    pa.time64("ns"), pa.duration("ms"), pa.null(), pa.binary(), pa.list_(pa.int8()), pa.struct([("x", pa.int8())]),
]  # fmt: skip


@st.composite
def any_column(draw: st.DrawFn) -> pa.Array:
    arrow_type = draw(st.sampled_from(TYPES))
    types = pa.types
    value_type = arrow_type.value_type if types.is_dictionary(arrow_type) else arrow_type
    if types.is_boolean(value_type):
        values = st.booleans()
    elif types.is_integer(value_type):
        unsigned = types.is_unsigned_integer(value_type)
        bits = value_type.bit_width - (0 if unsigned else 1)
        values = st.integers(0 if unsigned else -(2**bits), 2**bits - 1)
    elif types.is_floating(value_type):
        values = st.floats(width=value_type.bit_width).map(np.dtype(f"f{value_type.bit_width // 8}").type)
    elif types.is_decimal(value_type):
        values = st.decimals(-(10**8), 10**8, places=3)
    elif types.is_date(value_type):
        values = st.dates()
    elif types.is_timestamp(value_type):
        far = value_type.unit == "ns"
        values = st.datetimes(datetime.datetime(1700, 1, 1) if far else datetime.datetime.min,
                              datetime.datetime(2200, 1, 1) if far else datetime.datetime.max)  # fmt: skip
    elif types.is_time(value_type):
        values = st.times().map(lambda value: value.replace(microsecond=0))
    elif types.is_duration(value_type):
        values = st.integers(-(2**53), 2**53)
    elif types.is_null(value_type):
        values = st.none()
    elif types.is_binary(value_type):
        values = st.binary(max_size=4)
    elif types.is_list(value_type):
        values = st.lists(st.integers(0, 9), max_size=2)
    elif types.is_struct(value_type):
        values = st.fixed_dictionaries({"x": st.integers(0, 9)})
    else:
        values = st.text(max_size=20)
    cells = draw(st.lists(st.none() | values, min_size=2, max_size=12))
    array = pa.array(cells, value_type)
    return array.dictionary_encode() if types.is_dictionary(arrow_type) else array


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(any_column(), st.sampled_from([None, "number", "category", "boolean", "timestamp", "text"]))
def test_any_column_becomes_finite_or_is_refused_by_name(column, kind):
    table = pa.table({"odd column": column, "beside": [float(i) for i in range(len(column))]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TabmocoWarning)
        try:
            preprocessor = fit(table, kinds={} if kind is None else {"odd column": kind}, text_width=4)
        except TabmocoError as error:
            assert "odd column" in str(error)
            return
        cells = preprocessor.encode(open_table(table)).cells
        assert torch.isfinite(cells.number).all() and not torch.signbit(cells.number[cells.number == 0]).any()
        assert (cells.code >= 0).all() and (cells.code < torch.tensor(preprocessor.layout.cardinalities)).all()
        assert torch.isfinite(scores_of(preprocessor, cells)).all()
        for row in range(len(column)):
            assert_equal(transformed(preprocessor, table.slice(row, 1)), cells[row : row + 1])
            assert preprocessor.describe("odd column", column[row])
