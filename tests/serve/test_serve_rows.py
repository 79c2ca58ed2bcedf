"""Rows of requests: read as the same rows of a table are, each by itself, and refused with the reason."""

from __future__ import annotations

import json
import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from rows_as_json import body, records, stream

from tabmoco.errors import SchemaError, TableError, TabmocoError
from tabmoco.serve.json_cells import cells_to_arrow
from tabmoco.serve.limits import Limits
from tabmoco.serve.refusals import RequestError, status_of
from tabmoco.serve.rows_in import ARROW, JSON, read_rows
from tabmoco.tables.schema import Column

LIMITS = Limits(max_rows=500, max_body_bytes=200_000)


def refusal(model, content, media_type=JSON, id_column=None) -> tuple[int, str]:
    with pytest.raises(TabmocoError) as caught:
        read_rows(content, media_type, model, LIMITS, id_column)
    return status_of(caught.value), str(caught.value)


def check_same_cells(model, found: pa.Table, expected: pa.Table) -> None:
    mine, theirs = model.preprocessor.transform(found), model.preprocessor.transform(expected)
    np.testing.assert_allclose(mine.number, theirs.number, atol=1e-6)
    assert mine.code.equal(theirs.code) and mine.missing.equal(theirs.missing)


# ---------------------------------------------------------------- read


def test_json_and_arrow_are_read_as_the_table_is(model, table):
    for content, media_type in ((body(table), JSON), (stream(table), ARROW)):
        rows = read_rows(content, media_type, model, LIMITS)
        check_same_cells(model, rows.table, table)
        assert rows.names.to_pylist() == table["order"].to_pylist() and rows.id_column == "order" and not rows.notes
        assert rows.table.column_names == [column.name for column in model.schema.used]


@pytest.mark.filterwarnings("ignore::tabmoco.tables.notices.TabmocoWarning")
def test_what_a_row_is_read_as_does_not_depend_on_the_others(model, table):
    odd = [
        {"price": 99, "opened": "2024-02-01", "shelf": "3", "fragile": "yes", "note": 5},
        {"price": "99.5", "opened": "2024-02-01T05:00:00Z", "shelf": 3.0, "fragile": 0, "note": None},
        {"price": None, "opened": "2024-02-01T05:00:00.1234567", "shelf": True, "fragile": None, "note": 2.50},
        {"price": 1e3, "opened": "2024-02-01 05:00+05:30", "shelf": None, "fragile": "F", "note": True},
    ]
    rows = [{**row, **cells} for row, cells in zip(records(table.slice(0, 4)), odd, strict=True)]
    together = model.preprocessor.transform(read_rows(json.dumps({"rows": rows}).encode(), JSON, model, LIMITS).table)
    for number, row in enumerate(rows):
        alone = read_rows(json.dumps({"rows": [row]}).encode(), JSON, model, LIMITS)
        cells = model.preprocessor.transform(alone.table)
        assert cells.number.equal(together[number : number + 1].number)
        assert cells.code.equal(together[number : number + 1].code)
        assert cells.missing.equal(together[number : number + 1].missing)


@pytest.mark.parametrize(
    ("arrow_type", "value", "word"),
    [
        ("int64", 3, "3"),
        ("int64", 3.0, "3"),
        ("int64", "007", "7"),
        ("int64", 2**60 + 1, str(2**60 + 1)),
        ("decimal128(8, 2)", "12.50", "12.5"),
        ("double", 0.1, "0.1"),
        ("string", "3.0", "3.0"),
        ("string", 3.0, "3"),
        ("string", True, "true"),
        ("date32[day]", "2024-01-31", "2024-01-31"),
        ("timestamp[s]", "2024-01-31", "2024-01-31 00:00:00"),
        ("timestamp[s, tz=UTC]", "2024-01-31T01:00+01:00", "2024-01-31 00:00:00Z"),
        ("dictionary<values=date32[day], indices=int32, ordered=0>", "2024-01-31", "2024-01-31"),
        ("time32[s]", "00:01:00", "60"),
        ("duration[s]", 1.5, "1.5"),
    ],
)
def test_categories_are_spelled_as_in_a_table_of_that_type(arrow_type, value, word):
    column = Column("shelf", "category", "", arrow_type)
    array = cells_to_arrow([None, value], column)
    assert pa.compute.cast(array, pa.string()).to_pylist() == [None, word]


def test_rows_without_the_id_column_are_known_by_position(model, table):
    rows = read_rows(body(table.drop_columns("order")), JSON, model, LIMITS)
    assert rows.names is None and len(rows) == table.num_rows
    named = read_rows(body(table), JSON, model, LIMITS, "shelf")
    assert named.names.to_pylist() == table["shelf"].to_pylist() and named.id_column == "shelf"


def test_unknown_columns_are_told_and_forgotten(model, table):
    before = model.preprocessor.notices
    for content, media_type in ((body, JSON), (stream, ARROW)):
        extra = table.append_column("colour é", pa.array(["red"] * len(table)))
        rows = read_rows(content(extra), media_type, model, LIMITS)
        assert rows.notes == ("Columns unknown to the model are ignored: 'colour é'.",)
        assert "colour é" not in rows.table.column_names
    assert model.preprocessor.notices == before


def test_no_rows_are_rows(model):
    rows = read_rows(b'{"rows": []}', JSON, model, LIMITS)
    assert len(rows) == 0 and model.score(rows.table).num_rows == 0


# ---------------------------------------------------------------- refused: JSON

MALFORMED = {
    b"": "must be JSON: Expecting value",
    b"{": "must be JSON",
    b"\xff\xfe{": "must be JSON",
    b'{"rows": [{"size": "\xff"}]}': "UTF-8",
    b"[" * 100_000: "nested so deeply",
    b'{"rows":' * 50_000: "nested so deeply",
    b"[]": 'must look like {"rows"',
    b'{"rows": {}}': 'must look like {"rows"',
    b'{"rows": [], "more": 1}': 'must look like {"rows"',
    b'{"rows": [], "rows": []}': "names 'rows' twice",
    b'{"rows": [{"a": 1, "b": 2, "a": 3}]}': "names 'a' twice",
    b'{"rows": [1]}': "row 0 is none",
    b'{"rows": [{"size": NaN}]}': "NaN is no JSON; write null",
    b'{"rows": [{"size": -Infinity}]}': "-Infinity is no JSON",
    b'{"rows": [{"size": ' + b"9" * 5_000 + b"}]}": "must be JSON",
}


@pytest.mark.parametrize("content", MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_no_json_rows_is_refused(model, content):
    status, message = refusal(model, content)
    assert status == 400 and MALFORMED[content] in message


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("size", True, "must hold a number in every cell, got True in row 1"),
        ("size", "much", "'size' must hold a number in every cell, got 'much'"),
        ("size", [1], "got a list in row 1"),
        ("size", {"a": 1}, "got an object in row 1"),
        ("size", 10**400, "'size' must hold numbers within the range of 64-bit floats"),
        ("price", "12,50", "'price' must hold a number"),
        ("opened", 5, "'opened' must hold ISO 8601 dates or times, as text, got 5 in row 1"),
        ("opened", "soon", "'opened' must hold an ISO 8601 date or time in every cell, got 'soon'"),
        ("day", "soon", "'day' must hold an ISO 8601 date"),
        ("noon", "25:00", "'noon' must hold times of day such as 17:30:00, as text, got '25:00' in row 1"),
        ("noon", 5, "'noon' must hold times of day"),
        ("waited", 1e300, "'waited' must hold durations, as a number of seconds"),
        ("waited", "soon", "'waited' must hold a number"),
        ("note", "\ud800", "'note' must hold text, got half of a surrogate pair"),
        ("city", ["Oslo"], "'city' must hold a single value"),
    ],
)
def test_cells_that_do_not_fit_are_refused_with_their_column(model, table, column, value, reason):
    rows = records(table.slice(0, 2))
    rows[1][column] = value
    status, message = refusal(model, json.dumps({"rows": rows}).encode())
    assert status == 422 and reason in message


def test_truth_values_are_checked_by_the_model_itself(model, table):
    rows = records(table.slice(0, 2))
    rows[1]["fragile"] = "perhaps"
    cells = read_rows(json.dumps({"rows": rows}).encode(), JSON, model, LIMITS).table
    with pytest.raises(SchemaError, match="'fragile' must hold true or false .* got 'perhaps'"):
        model.score(cells)


def test_columns_that_are_missing_are_named(model, table):
    status, message = refusal(model, body(table.drop_columns(["city", "size"]).append_column("town", table["city"])))
    assert status == 422 and "- size\n- city\n+ town" in message and "the request must have" in message
    rows = records(table.slice(0, 2))
    del rows[1]["city"]
    _, message = refusal(model, json.dumps({"rows": rows}).encode())
    assert "row 1 lacks 'city', which row 0 has; write null" in message


def test_ids_that_cannot_come_back_are_refused(model, table):
    rows = records(table.slice(0, 2))
    for value in (1.5, True, 10**30, "\ud800"):
        rows[0]["order"] = rows[1]["order"] = value
        assert "'order' names the rows" in refusal(model, json.dumps({"rows": rows}).encode())[1]
    assert "does not have; leave it out" in refusal(model, body(table), id_column="id")[1]
    taken = table.append_column("rank", table["order"])
    with pytest.raises(TableError, match="like an output column, got 'rank'"):
        read_rows(body(taken), JSON, model, LIMITS, "rank")
    nested = table.append_column("list", pa.array([[1]] * len(table)))
    assert "'list' names the rows" in refusal(model, stream(nested), ARROW, "list")[1]


def test_too_many_rows_are_refused_before_they_are_read(model, table):
    many = pa.concat_tables([table] * 3)
    for content, media_type in ((body(many), JSON), (stream(many), ARROW)):
        status, message = refusal(model, content, media_type)
        assert status == 413 and "at most 500 rows" in message


# ---------------------------------------------------------------- refused: Arrow


def test_what_is_no_stream_is_refused(model, table):
    whole = stream(table)
    for content in (b"", b"ARROW1\0\0", b"\0" * 100, b"\xff" * 100, whole[:100], whole[: len(whole) // 2], body(table)):
        status, message = refusal(model, content, ARROW)
        assert status in (400, 422) and len(message) < 500
    doubled = pa.Table.from_arrays([table["size"]] * 2, names=["size", "size"])
    assert "must be unique" in refusal(model, stream(doubled), ARROW)[1]
    wrong = table.set_column(1, "size", pa.array([[1.0]] * len(table)))
    assert "'size' must hold double as in training" in refusal(model, stream(wrong), ARROW)[1]


@pytest.mark.filterwarnings("ignore::tabmoco.tables.notices.TabmocoWarning")
def test_damage_of_any_kind_ends_in_a_refusal_or_an_answer(model, table):
    """Flipped bytes in streams with texts, dictionaries and nulls; what gets through can be scored or is refused."""
    generator = np.random.default_rng(0)
    whole = np.frombuffer(stream(table.slice(0, 20)), np.uint8)
    n_refused = 0
    for _ in range(400):
        damaged = whole.copy()
        places = generator.integers(0, len(whole), generator.integers(1, 9))
        damaged[places] = generator.integers(0, 256, len(places))
        try:
            rows = read_rows(damaged.tobytes(), ARROW, model, LIMITS)
            model.embed(rows.table)
        except TabmocoError:
            n_refused += 1
    assert n_refused > 100


def test_few_bytes_do_not_become_many(model, table):
    one, n_rows = table, len(table)
    long = pa.array(["x" * 50_000])
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * n_rows, pa.int8()), long)
    one_view = struct.pack("<i4sii", 50_000, b"xxxx", 0, 0)
    buffers = [None, pa.py_buffer(one_view * n_rows), pa.py_buffer(b"x" * 50_000)]
    views = pa.Array.from_buffers(pa.string_view(), n_rows, buffers)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([n_rows], pa.int32()), pa.array([1.0]))
    bombs = {
        "take at most 800,000 bytes with each text written out": (
            stream(one.set_column(3, "city", repeated)),
            stream(one.set_column(3, "city", views)),
        ),
        "must not be run-length encoded": (stream(one.set_column(1, "size", runs)),),
        "must not be compressed": (stream(one, compression="zstd"), stream(one, compression="lz4")),
        "at most 500 rows": (stream(pa.table({"size": pa.Array.from_buffers(pa.null(), 2**31 - 1, [None])})),),
    }
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    for reason, contents in bombs.items():
        for content in contents:
            assert len(content) < 200_000
            assert reason in refusal(model, content, ARROW)[1]
    assert tracemalloc.get_traced_memory()[1] < 2e7 and pa.total_allocated_bytes() - before < 2e6
    tracemalloc.stop()


def test_views_and_dictionaries_of_usual_size_are_read(model, table):
    city = table["city"].combine_chunks()
    for column in (city, city.cast(pa.string()).cast(pa.string_view()), city.cast(pa.large_string())):
        other = table.set_column(table.column_names.index("city"), "city", column)
        rows = read_rows(stream(other), ARROW, model, LIMITS)
        check_same_cells(model, rows.table, table)


def test_refusals_keep_their_status():
    assert status_of(RequestError(413, "no")) == 413 and status_of(SchemaError("no")) == 422
