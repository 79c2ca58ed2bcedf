"""Matching two tables, catalogues, and the folders both come from."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import tabmoco
from tabmoco.columns.folders import each_table, table_files
from tabmoco.columns.matching import overlap
from tabmoco.errors import ConfigError, TableError
from tabmoco.tables.notices import TabmocoWarning


def test_the_columns_of_two_halves_are_paired_whatever_they_are_called(encoder, draw_table):
    table = draw_table(300, seed=33)
    cryptic = table.slice(150).select(["sex", "date", "age", "year", "name", "price"])
    cryptic = cryptic.rename_columns([f"x{place}" for place in range(6)])
    found = encoder.match(table.slice(0, 150), cryptic)
    assert found.mapping == {"x0": "sex", "x1": "date", "x2": "age", "x3": "year", "x4": "name", "x5": "price"}
    assert [pair.column for pair in found.pairs] == table.column_names
    assert found.unmatched == () and found.other_unmatched == () and found.similarity.shape == (6, 6)
    assert all(pair.margin > 0 and pair.similarity >= found.threshold for pair in found.pairs)
    frame = cryptic.to_pandas().rename(columns=found.mapping)
    assert set(frame) == set(table.column_names)


def test_what_has_no_partner_is_left(encoder, draw_table):
    one = draw_table(100, seed=33).select(["year", "name", "sex"])
    two = draw_table(100, seed=33).select(["name", "price"])
    found = tabmoco.match_columns(one, two, encoder=encoder, threshold=0.9)
    assert [(pair.column, pair.other) for pair in found.pairs] == [("name", "name")]
    assert found.unmatched == ("year", "sex") and found.other_unmatched == ("price",)
    assert encoder.match(one, two, threshold=1).threshold == 1
    assert len(encoder.match(one, two, threshold=-1).pairs) == 2
    assert encoder.match(one, two, threshold=-1).table().num_rows == 2


def test_the_margin_tells_of_rivals(encoder):
    numbers = list(range(50))
    twice = encoder.match({"a": numbers, "b": numbers}, {"c": numbers})
    assert len(twice.pairs) == 1 and twice.pairs[0].margin == pytest.approx(0, abs=1e-5)
    alone = encoder.match({"a": numbers}, {"c": numbers})
    assert alone.pairs[0].margin == pytest.approx(3, abs=1e-5)


def test_shared_values_are_counted_once_and_decide_between_equals(encoder):
    keys = [np.array(found, dtype=np.int64) for found in ([1, 2], [], [2, 3], [1, 2])]
    assert overlap(keys[:2], keys[2:]).tolist() == [[1 / 3, 1], [0, 0]]
    one = {"a": [1, 2, 3, 4] * 9, "b": [5, 6, 7, 8] * 9}
    found = encoder.match(one, {"y": [8, 7, 6, 5] * 9, "x": [4, 3, 2, 1] * 9})
    assert found.mapping == {"x": "a", "y": "b"}
    assert [pair.shared for pair in found.pairs] == [1, 1]


def test_pandas_frames_are_matched_and_thresholds_checked(encoder):
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [[1], [2], [3]]})
    found = encoder.match(frame, frame[["a"]])
    assert found.mapping == {"a": "a"} and "b" in found.skipped and not found.other_skipped
    with pytest.raises(ConfigError, match="between -1 and 1, got threshold=1.5"):
        encoder.match(frame, frame, threshold=1.5)


# ---------------------------------------------------------------- catalogues


@pytest.fixture(scope="module")
def folder(tmp_path_factory, draw_table):
    folder = tmp_path_factory.mktemp("known")
    people, other = draw_table(100, seed=33), draw_table(100, seed=4)
    pq.write_table(people.select(["year", "age", "sex"]), folder / "people.parquet")
    (folder / "more").mkdir()
    pacsv.write_csv(people.select(["name", "date"]), folder / "more" / "names.csv")
    pq.write_table(other.select(["price"]), folder / "prices.parquet")
    (folder / "_hidden.csv").write_text("a\n1\n")
    (folder / "notes.txt").write_text("no table")
    return folder


def test_known_columns_are_found_again(encoder, folder, draw_table):
    catalogue = encoder.learn(folder)
    assert set(catalogue.tables) == {"people", "more/names", "prices"} and len(catalogue) == 6
    asked = draw_table(200, seed=33).slice(100).select(["date", "sex", "year"]).rename_columns(["a", "b", "c"])
    like = catalogue.like(asked)
    assert [(known[0].table, known[0].column) for known in like.columns] == [
        ("more/names", "date"), ("people", "sex"), ("people", "year"),
    ]  # fmt: skip
    assert like.told(1) == "looks like sex of people"
    assert like.tables[0][0] == "people" and len(like.tables) == 3
    similarity = [known.similarity for known in like.columns[0]]
    assert similarity == sorted(similarity, reverse=True) and len(similarity) == 3
    assert like.table().num_rows == 9 and catalogue.like(asked, k=1).table().num_rows == 3
    assert len(catalogue.like(asked, k=99).columns[0]) == 6
    with pytest.raises(ConfigError, match="k must be at least 1"):
        catalogue.like(asked, k=0)


def test_a_column_that_resembles_none_is_not_told_to(encoder, folder):
    catalogue = encoder.learn(folder)
    like = catalogue.like({"noise": [f"{n * 7919 % 9973:x}-{n}" for n in range(60)]})
    if like.columns[0][0].similarity < like.threshold:
        assert like.told(0) == "looks like no known column"
    else:
        assert like.told(0).startswith("looks like ")


def test_a_table_is_nearest_to_itself(encoder, training_tables):
    catalogue = encoder.learn(training_tables)
    name, table = training_tables[5]
    nearest = catalogue.like(table).tables[0]
    assert nearest[0] == name and nearest[1] == pytest.approx(1, abs=1e-5)
    assert np.allclose(np.linalg.norm(catalogue.embeddings, axis=1), 1, atol=1e-5)


def test_tables_that_cannot_be_read_are_passed_over_with_a_warning(encoder, folder, tmp_path):
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "good.parquet")
    pq.write_table(pa.table({"a": pa.nulls(2)}), tmp_path / "empty.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.warns(TabmocoWarning) as notes:
        catalogue = encoder.learn(tmp_path)
    assert catalogue.tables == ("good",)
    assert {str(note.message).split(" is passed over")[0] for note in notes} == {"empty", "broken"}
    with pytest.warns(TabmocoWarning), pytest.raises(TableError, match="must have a table to remember"):
        encoder.learn([("empty", pa.table({"a": pa.nulls(2)}))])


def test_folders_name_their_tables(tmp_path):
    for name in ("a.csv", "a.parquet", "b.CSV.GZ", "sub.dir/c.tsv", ".git/d.csv", "e.gz", "f.parquet.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n1\n")
    assert list(table_files(tmp_path)) == ["a", "a.parquet", "b", "sub.dir/c"]
    assert [name for name, _ in each_table([("here", {"a": [1]})])] == ["here"]
    with pytest.raises(TableError, match="is not a folder"):
        table_files(tmp_path / "a.csv")
    (tmp_path / "none").mkdir()
    with pytest.raises(TableError, match="holds no tables; they are known by"):
        table_files(tmp_path / "none")
