"""Any table, in any format and batch size, gives the same rows under the same positions."""

from __future__ import annotations

import bz2
import datetime
import gzip
import os
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.errors import SchemaError, TableError
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.source import open_table

ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": "y, z"}, {"a": 3, "b": None}, {"a": 3, "b": "x"}]
TABLE = pa.Table.from_pylist(ROWS)
CSV = 'a,b\n1,x\n2,"y, z"\n3,\n3,x\n'


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows_of(data, **options) -> list[dict]:
    return [row for batch in open_table(data, **options).batches(batch_rows=3) for row in batch.table.to_pylist()]


def write_stream(path: str) -> None:
    with pa.ipc.new_stream(path, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=3)


def write_zst(path: str) -> None:
    with pa.CompressedOutputStream(path, "zstd") as stream:
        stream.write(CSV.encode())


WRITERS = {
    "t.parquet": lambda path: pq.write_table(TABLE, path, row_group_size=3),
    "t.pq": lambda path: pq.write_table(TABLE, path),
    "t.feather": lambda path: feather.write_feather(TABLE, path),
    "t.arrow": lambda path: feather.write_feather(TABLE, path, compression="uncompressed", chunksize=2),
    "t.arrows": write_stream,
    "t.csv": lambda path: Path(path).write_text(CSV),
    "semicolons.csv": lambda path: Path(path).write_text("a;b\n1;x\n2;y, z\n3;\n3;x\n"),
    "t.tsv": lambda path: Path(path).write_text("a\tb\n1\tx\n2\ty, z\n3\tNA\n3\tx\n"),
    "bom.csv": lambda path: Path(path).write_text("\ufeff" + CSV),
    "t.csv.gz": lambda path: Path(path).write_bytes(gzip.compress(CSV.encode())),
    "t.csv.bz2": lambda path: Path(path).write_bytes(bz2.compress(CSV.encode())),
    "t.csv.zst": write_zst,
    "a[1].csv": lambda path: Path(path).write_text(CSV),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_file_format_gives_the_same_rows(name):
    WRITERS[name](name)
    assert rows_of(name) == ROWS
    assert open_table(Path(name)).count_rows() == 4
    taken = open_table(name).take(np.array([3, 1, 1]))
    assert taken.table.to_pylist() == [ROWS[3], ROWS[1], ROWS[1]]
    assert taken.rows.tolist() == [3, 1, 1]


IN_MEMORY = {
    "pandas": lambda: TABLE.to_pandas(),
    "polars": lambda: pl.DataFrame(ROWS),
    "pyarrow": lambda: TABLE,
    "record batch": lambda: TABLE.to_batches()[0],
    "record batch reader": lambda: TABLE.to_reader(),
    "dataset": lambda: pads.dataset(TABLE),
    "dicts": lambda: ROWS,
    "columns": lambda: {"a": [1, 2, 3, 3], "b": np.array(["x", "y, z", None, "x"], dtype=object)},
}


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_every_object_gives_the_same_rows(kind):
    data = IN_MEMORY[kind]()
    source = open_table(data)
    assert [row for batch in source.batches() for row in batch.table.to_pylist()] == ROWS
    assert source.take(np.array([2, 0])).table.to_pylist() == [ROWS[2], ROWS[0]]
    assert source.n_rows == 4


def test_arrays_and_lists_get_names():
    assert rows_of(np.array([[1.0, 2.0]])) == [{"x0": 1.0, "x1": 2.0}]
    assert rows_of([[1, "a"], [None, "b"]]) == [{"x0": 1, "x1": "a"}, {"x0": None, "x1": "b"}]
    masked = np.ma.masked_array([[1.0, 2.0]], mask=[[True, False]])
    assert rows_of(masked) == [{"x0": None, "x1": 2.0}]
    structured = np.array([(1, 2.5)], dtype=[("n", "i4"), ("v", "f8")])
    assert rows_of(structured) == [{"n": 1, "v": 2.5}]


@given(n_rows=st.integers(0, 40), batch_rows=st.integers(1, 50), chunk_rows=st.integers(1, 50), picks=st.data())
def test_rows_and_ids_do_not_depend_on_batches(n_rows, batch_rows, chunk_rows, picks):
    values = [f"v{row}" for row in range(n_rows)]
    table = pa.table({"key": pa.array(range(100, 100 + n_rows), pa.int64()), "v": pa.array(values, pa.string())})
    chunked = pa.Table.from_batches(table.to_batches(max_chunksize=chunk_rows), schema=table.schema)
    source = open_table(chunked, id_column="key")
    batches = list(source.batches(batch_rows=batch_rows))
    assert [len(batch) for batch in batches[:-1]] == [batch_rows] * (len(batches) - 1)
    assert [row for batch in batches for row in batch.rows.tolist()] == list(range(n_rows))
    assert [key for batch in batches for key in batch.ids.to_pylist()] == list(range(100, 100 + n_rows))
    assert [value for batch in batches for value in batch.table.column("v").to_pylist()] == values
    rows = picks.draw(st.lists(st.integers(0, n_rows - 1), max_size=5)) if n_rows else []
    assert source.take(np.array(rows, dtype=np.int64)).ids.to_pylist() == [100 + row for row in rows]


def test_batches_can_be_read_again_and_are_keyed_by_file_order():
    os.mkdir("parts")
    for name, value in [("b.parquet", 2), ("a.parquet", 1), ("c.parquet", 3)]:
        pq.write_table(pa.table({"v": [value] * 3}), f"parts/{name}", row_group_size=2)
    source = open_table("parts")
    assert rows_of(source) == rows_of(source) == rows_of("parts/*.parquet") == rows_of(["parts/c.parquet", "parts"])
    assert [row["v"] for row in rows_of(source)] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert source.take(np.array([8, 0, 4])).table.column("v").to_pylist() == [3, 1, 2]
    assert open_table("parts/[ab].parquet").count_rows() == 6
    assert open_table("**/?.parquet").count_rows() == 9


def test_hive_folders_become_columns():
    for folder in ("year=2021/town=__HIVE_DEFAULT_PARTITION__", "year=2020/town=New York"):
        os.makedirs(f"hive/{folder}")
        pq.write_table(pa.table({"v": [1]}), f"hive/{folder}/part.parquet")
    Path("hive/_SUCCESS").touch()
    expected = [{"v": 1, "year": 2020, "town": "New York"}, {"v": 1, "year": 2021, "town": None}]
    assert rows_of("hive") == rows_of("hive/*/*/*.parquet") == expected


def test_files_of_one_table_are_unified_or_refused_by_name():
    os.mkdir("parts")
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), "parts/1.parquet")
    pq.write_table(pa.table({"b": pa.array(["y"]).dictionary_encode(), "a": [1.5]}), "parts/2.parquet")
    assert rows_of("parts") == [{"a": 1.0, "b": "x"}, {"a": 1.5, "b": "y"}]
    pq.write_table(pa.table({"b": ["y"], "a": ["1.5"]}), "parts/2.parquet")
    with pytest.raises(TableError, match=r"'a' must have one type.*string in parts/2.*, int64 in parts/1"):
        open_table("parts")
    pq.write_table(pa.table({"b": ["y"], "c": [1]}), "parts/2.parquet")
    with pytest.raises(TableError, match=r"2.parquet lacks 'a' and adds 'c'"):
        open_table("parts")


def test_urls_are_read_through_fsspec():
    memory = fsspec.filesystem("memory")
    memory.pipe("/tables/1.csv", CSV.encode())
    memory.pipe("/tables/2.csv", CSV.encode())
    assert rows_of("memory://tables/1.csv") == ROWS
    assert rows_of("memory://tables") == rows_of("memory://tables/*.csv") == ROWS + ROWS
    WRITERS["t.parquet"]("t.parquet")
    assert rows_of(f"file://{os.getcwd()}/t.parquet") == ROWS
    with pytest.raises(TableError, match=r"nowhere://x.parquet cannot be opened.*driver for nowhere"):
        open_table("nowhere://x.parquet")


def damaged(name: str) -> None:
    WRITERS["t.parquet"]("t.parquet")
    whole = Path("t.parquet").read_bytes()
    Path(name).write_bytes(whole[: len(whole) // 2])


def corrupt_page(name: str) -> None:
    WRITERS["t.parquet"](name)
    content = bytearray(Path(name).read_bytes())
    content[10:40] = b"\xff" * 30
    Path(name).write_bytes(content)


def mixed_folder(name: str) -> None:
    os.mkdir(name)
    WRITERS["t.csv"](f"{name}/t.csv")
    WRITERS["t.parquet"](f"{name}/t.parquet")


def folder_with_notes(name: str) -> None:
    os.mkdir(name)
    Path(name, "README.md").write_text("notes")


UNREADABLE = {
    "missing.parquet": (lambda name: None, "There is no file missing.parquet"),
    "no*.parquet": (lambda name: None, r"No file matches no\*.parquet"),
    "truncated.parquet": (damaged, "truncated.parquet cannot be read as Parquet.*written completely"),
    "corrupt.parquet": (corrupt_page, "corrupt.parquet cannot be read as Parquet"),
    "empty.parquet": (lambda name: Path(name).touch(), r"empty.parquet is empty \(0 bytes\)"),
    "text.parquet": (lambda name: Path(name).write_text(CSV), "text.parquet cannot be read as Parquet"),
    "encrypted.parquet": (lambda name: Path(name).write_bytes(b"PARE" * 9), "encrypted.parquet cannot.*encrypted"),
    "empty.csv": (lambda name: Path(name).touch(), "empty.csv is empty; a CSV needs a header"),
    "ragged.csv": (lambda name: Path(name).write_text("a,b\n1,2\n1,2,3\n"), "ragged.csv.*Expected 2 columns, got 3"),
    "latin.csv": (lambda name: Path(name).write_bytes("a\né\n".encode("latin-1")), r"latin.csv must be UTF-8.*xe9"),
    "wide.csv": (lambda name: Path(name).write_bytes("a,b\n1,2\n".encode("utf-16")), "wide.csv.*UTF-16"),
    "late.csv": (
        lambda name: Path(name).write_bytes(b"a,b\n" + b"1,x\n" * 600_000 + b"1,\xe9\n"),
        "late.csv cannot be read as CSV.*UTF8",
    ),
    "broken.csv.gz": (
        lambda name: Path(name).write_bytes(gzip.compress(os.urandom(9_000).hex().encode())[:5_000]),
        "broken.csv.gz cannot be read as CSV.*Truncated",
    ),
    "broken.arrow": (lambda name: Path(name).write_bytes(b"ARROW1" + bytes(90)), "broken.arrow cannot be read"),
    "table.xlsx": (lambda name: Path(name).touch(), "table.xlsx must end in .parquet"),
    "nothing": (os.mkdir, "directory nothing holds no data files"),
    "mixed": (mixed_folder, r"must share one format, found 1 CSV \(mixed/t.csv\) and 1 Parquet \(mixed/t.parquet\)"),
    "notes": (folder_with_notes, "notes/README.md must end in .parquet"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_file_is_named(name):
    write, message = UNREADABLE[name]
    write(name)
    with pytest.raises(TableError, match=f"(?s){message}"):
        list(open_table(name).batches())


NOT_TABLES = {
    "1-D array": (np.ones(3), r"got a 1-D array of 3 values; pass values.reshape\(-1, 1\)"),
    "3-D array": (np.ones((1, 1, 1)), r"shape \(1, 1, 1\)"),
    "scipy": (scipy.sparse.eye_array(3).tocsr(), "must be dense, got a SciPy csr_array.*toarray"),
    "pandas series": (pd.Series([1]), "one pandas Series"),
    "polars series": (pl.Series([1]), "one polars Series"),
    "lazy": (pl.LazyFrame({"a": [1]}), r"pass frame.collect\(\)"),
    "number": (3, "A table must be a path"),
    "nothing": (None, "A table must be a path"),
    "empty list": ([], "needs columns, got an empty list"),
    "list of numbers": ([1, 2], "must hold rows"),
    "ragged rows": ([[1], [1, 2]], "rows of 1 and of 2"),
    "uneven columns": ({"a": [1], "b": []}, r"same length, got \{'a': 1, 'b': 0\}"),
    "scalar columns": ({"a": 1}, "must be a list of cells, got a=1"),
    "no columns": (pd.DataFrame(index=[0]), "at least one column"),
}


@pytest.mark.parametrize("kind", NOT_TABLES)
def test_what_is_no_table_is_refused_with_a_hint(kind):
    data, message = NOT_TABLES[kind]
    with pytest.raises(TableError, match=message):
        open_table(data)


def test_csv_types_hold_for_the_whole_file():
    late_text = "7,01234,true,2024-05-31,2024-05-31T10:00:00Z,1,\n" * 300_000 + "x,9,False,NaN,NA,2.5,\n"
    Path("t.csv").write_text("a,zip,flag,day,at,number,nothing\n" + late_text)
    source = open_table("t.csv")
    assert [str(field.type) for field in source.arrow_schema] == [
        "string", "string", "bool", "date32[day]", "timestamp[us, tz=UTC]", "double", "null",
    ]  # fmt: skip
    last = source.take(np.array([300_000])).table.to_pylist()[0]
    expected = {"a": "x", "zip": "9", "flag": False, "day": None, "at": None, "number": 2.5, "nothing": None}
    assert last == expected
    first = next(source.batches(batch_rows=1)).table.to_pylist()[0]
    assert first["day"] == datetime.date(2024, 5, 31) and first["zip"] == "01234"


def test_csv_types_are_those_of_all_files_together():
    os.mkdir("parts")
    Path("parts/1.csv").write_text("a,b\n1,1\n")
    Path("parts/2.csv").write_text("b,a\n2.5,x\n")
    assert rows_of("parts") == [{"a": "1", "b": 1.0}, {"a": "x", "b": 2.5}]


def test_quoted_csv_cells_keep_their_line_breaks():
    Path("t.csv").write_text('"a","b"\r\n1,"x\r\ny, z"\r\n2,"say ""hi"""\r\n')
    assert [row["b"] for row in rows_of("t.csv")] == ["x\r\ny, z", 'say "hi"']


@pytest.mark.parametrize(
    "data",
    [
        pd.DataFrame([[1, 2, 3]], columns=["a", "b", "a"]),
        pd.DataFrame([[1, 2, 3]], columns=["b", 1, "1"]),
        pa.Table.from_arrays([pa.array([1])] * 3, names=["a", "b", "a"]),
    ],
)
def test_duplicate_names_are_refused(data):
    with pytest.raises(SchemaError, match="must be unique.*repeats '(a|1)'"):
        open_table(data)


def test_duplicate_names_in_a_csv_are_refused():
    Path("t.csv").write_text("a,b,a\n1,2,3\n")
    with pytest.raises(SchemaError, match=r"t.csv repeats 'a'"):
        open_table("t.csv")


def test_odd_pandas_names_become_strings():
    frame = pd.DataFrame([[1, 2, 3]], columns=pd.Index(["x", 7, ("a", 1)], dtype=object))
    assert open_table(frame).arrow_schema.names == ["x", "7", "('a', 1)"]


def test_options_narrow_the_columns():
    source = open_table(TABLE.append_column("c", pa.array([1, 2, 3, 4])), columns=["c", "a"], id_column="b")
    assert source.arrow_schema.names == ["a", "c"]
    assert next(source.batches()).ids.to_pylist() == ["x", "y, z", None, "x"]
    assert source.id_type == pa.string() and open_table(TABLE).id_type is None
    assert open_table(source, exclude=["a"]).arrow_schema.names == ["c"]
    for option in ("columns", "exclude"):
        with pytest.raises(SchemaError, match=rf"{option} names the column 'bb'.*did you mean 'b'\?"):
            open_table(TABLE, **{option: ["bb"]})
    with pytest.raises(SchemaError, match="id_column names the column 'key'.*it has 'a', 'b'"):
        open_table(TABLE, id_column="key")
    with pytest.raises(SchemaError, match="no column left"):
        open_table(TABLE, exclude=["a", "b"])


def test_the_pandas_index_counts_only_as_ids():
    frame = pd.DataFrame({"v": [1.0, 2.0]}, index=pd.Index([8, 9], name="key"))
    assert open_table(frame).arrow_schema.names == ["v"]
    assert next(open_table(frame, id_column="key").batches()).ids.to_pylist() == [8, 9]


def test_positions_outside_the_table_are_refused():
    for row in (-1, 4):
        with pytest.raises(TableError, match=f"must lie in 0 to 3, got {row}"):
            open_table(TABLE).take(np.array([row]))


def test_fingerprint_depends_on_content_alone():
    os.mkdir("elsewhere")
    for path in ("t.parquet", "elsewhere/other.parquet"):
        WRITERS["t.parquet"](path)
    first = open_table("t.parquet").fingerprint()
    assert open_table("elsewhere/other.parquet").fingerprint() == first
    pq.write_table(TABLE.slice(1), "t.parquet")
    assert open_table("t.parquet").fingerprint() != first
    chunked = pa.Table.from_batches(TABLE.to_batches(max_chunksize=2))
    assert open_table(TABLE).fingerprint() == open_table(chunked).fingerprint()
    assert open_table(TABLE).fingerprint() != open_table(TABLE, exclude=["a"]).fingerprint()
    other_cells = TABLE.set_column(1, "b", pa.array(["x", "y, z", None, "y"]))
    assert open_table(TABLE).fingerprint() != open_table(other_cells).fingerprint()


def test_text_mixed_with_numbers_becomes_text_with_a_warning():
    with pytest.warns(TabmocoWarning, match="'a' mixes float and int and str"):
        assert rows_of(pd.DataFrame({"a": [1, "x", 2.5, None]})) == [{"a": "1"}, {"a": "x"}, {"a": "2.5"}, {"a": None}]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([object(), object()], "'a' must hold numbers, text, dates or truth values, got object"),
        ([1j, 2j], "'a' must hold numbers.*got complex"),
        (pd.arrays.IntervalArray.from_breaks([0, 1, 2]), "'a' holds intervals"),
    ],
)
def test_objects_that_are_no_cells_are_refused_by_name(values, message):
    with pytest.raises(SchemaError, match=message):
        open_table(pd.DataFrame({"a": values}))


def test_pandas_types_are_converted():
    ids = [uuid.uuid4(), uuid.uuid4()]
    frame = pd.DataFrame(
        {
            "period": pd.period_range("2024-01", periods=2, freq="M"),
            "sparse": pd.arrays.SparseArray([0.0, 1.0]),
            "bins": pd.cut([1.0, 2.0], [0, 1, 3]),
            "uuid": ids,
            "huge": [10**30, None],
            "null": pd.array([pd.NA, 1], "Int64"),
        }
    )
    first = rows_of(frame)[0]
    assert first["period"] == datetime.datetime(2024, 1, 1)
    assert first["sparse"] == 0.0 and first["huge"] == 1e30 and first["null"] is None
    assert first["bins"] == "(0, 1]" and first["uuid"] == str(ids[0])


def test_a_watched_table_tells_how_many_rows_were_done_with():
    seen = []
    source = open_table(pa.table({"a": range(10)}))
    watched = source.watched(seen.append)
    assert [len(batch) for batch in watched.batches(batch_rows=4)] == [4, 4, 2] == seen
    list(source.batches())
    assert len(seen) == 3
