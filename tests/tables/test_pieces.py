"""Pieces of a table have its rows, each once, under the positions that the whole table gives them."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabmoco.errors import TableError
from tabmoco.tables.pieces import Extent, Piece, cut
from tabmoco.tables.readers import ParquetPart
from tabmoco.tables.source import TableSource, open_table


def write(folder, n_rows: list[int], group_rows: int) -> TableSource:
    first = 0
    for number, n in enumerate(n_rows):
        table = pa.table({"name": [f"r{row}" for row in range(first, first + n)], "a": range(first, first + n)})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=group_rows)
        first += n
    return open_table(folder, id_column="name")


def rows_of(source: TableSource, batch_rows: int) -> list[tuple]:
    return [
        row
        for batch in source.batches(batch_rows=batch_rows)
        for row in zip(batch.rows.tolist(), batch.ids.to_pylist(), batch.table["a"].to_pylist(), strict=True)
    ]


@pytest.mark.parametrize("n_rows", [[100], [37, 0, 64], [5, 5, 5, 5], [200, 1]])
@pytest.mark.parametrize("group_rows", [7, 32, 1_000])
@pytest.mark.parametrize(("at_least", "multiple"), [(8, 8), (20, 8), (1, 1), (500, 8)])
def test_pieces_are_the_table(tmp_path, n_rows, group_rows, at_least, multiple):
    source = write(tmp_path, n_rows, group_rows)
    extents = cut(source, at_least=at_least, multiple=multiple)
    assert [extent.first for extent in extents] == [sum(e.n_rows for e in extents[:n]) for n in range(len(extents))]
    assert all(extent.first % multiple == 0 for extent in extents)
    assert all(extent.n_rows >= at_least for extent in extents[:-1])
    pieces = [Piece(source, extent) for extent in extents]
    assert [row for piece in pieces for row in rows_of(piece, 3)] == [(n, f"r{n}", n) for n in range(source.n_rows)]


def test_read_in_batches_of_the_multiple_pieces_have_the_batches_of_the_whole(tmp_path):
    source = write(tmp_path, [61, 90], 20)
    extents = cut(source, at_least=16, multiple=16)
    assert len(extents) > 4
    pieces = [Piece(source, extent) for extent in extents]
    cut_apart = [batch.rows.tolist() for piece in pieces for batch in piece.batches(batch_rows=16)]
    assert cut_apart == [batch.rows.tolist() for batch in source.batches(batch_rows=16)]


def test_a_large_row_group_is_cut_and_a_small_one_is_not(tmp_path):
    source = write(tmp_path, [1_000], 1_000)
    assert cut(source, at_least=10, multiple=10) == [Extent(first, 160) for first in range(0, 960, 160)] + [
        Extent(960, 40)
    ]
    assert cut(source, at_least=100, multiple=10) == [Extent(0, 1_000)]


def test_an_empty_table_is_one_empty_piece(tmp_path):
    source = write(tmp_path, [0], 10)
    assert cut(source, at_least=8, multiple=8) == [Extent(0, 0)]
    assert rows_of(Piece(source, Extent(0, 0)), 3) == []


def test_a_piece_reads_no_other_row_group(tmp_path, monkeypatch):
    source = write(tmp_path, [40, 40], 10)
    read = []
    plain = pq.ParquetFile.iter_batches

    def counted(self, *arguments, row_groups, **named):
        read.extend(row_groups)
        return plain(self, *arguments, row_groups=row_groups, **named)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    assert len(rows_of(Piece(source, Extent(50, 20)), 16)) == 20
    assert read == [1, 2]


def test_a_piece_takes_rows_by_their_positions_in_the_whole(tmp_path):
    source = write(tmp_path, [40, 40], 10)
    batch = Piece(source, Extent(50, 20)).take([69, 50])
    assert batch.rows.tolist() == [69, 50] and batch.table["a"].to_pylist() == [69, 50]


def test_a_table_goes_to_another_process_with_what_it_knows_of_its_files(tmp_path, monkeypatch):
    sent = pickle.dumps(write(tmp_path, [40, 40], 10))

    def forbidden(*_):
        raise AssertionError("a footer is read again")

    monkeypatch.setattr(ParquetPart, "__init__", forbidden)
    assert rows_of(Piece(pickle.loads(sent), Extent(70, 10)), 16)[-1] == (79, "r79", 79)


@pytest.mark.parametrize("what", ["memory", "CSV"])
def test_only_parquet_is_read_in_pieces(tmp_path, what):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    source = open_table({"a": [1]} if what == "memory" else tmp_path / "t.csv")
    with pytest.raises(TableError, match="must be in Parquet files"):
        cut(source, at_least=1, multiple=1)
