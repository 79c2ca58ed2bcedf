"""The encoder: what it depends on and what not, what it learns, what it refuses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn.functional import normalize

import tabmoco
from tabmoco.columns.learning import choose_threshold, train_column_encoder
from tabmoco.columns.matching import assign
from tabmoco.columns.meanings import MeaningHead, label_of
from tabmoco.columns.pool import MAX_COLUMNS, build_pool
from tabmoco.columns.training import _Batches, contrast, new_network, train_network
from tabmoco.columns.traits import FIGURES, N_TRAITS
from tabmoco.errors import ConfigError, TableError, TrainingError
from tabmoco.nn.key_queue import KeyQueue


def test_embeddings_have_unit_length_and_depend_on_neither_names_nor_neighbours(encoder, draw_table):
    table = draw_table(80, seed=50)
    vectors = encoder.embed(table)
    assert vectors.shape == (6, encoder.d_embedding) and vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    renamed = table.rename_columns([f"x{place}" for place in range(6)])
    assert np.array_equal(encoder.embed(renamed), vectors)
    for place, name in enumerate(table.column_names):
        assert np.allclose(encoder.embed(table.select([name]))[0], vectors[place], atol=1e-6)


def test_files_of_either_format_are_judged_alike(encoder, draw_table, tmp_path):
    table = draw_table(80, seed=50)
    pq.write_table(table, tmp_path / "people.parquet")
    pacsv.write_csv(table, tmp_path / "people.csv")
    one, two = encoder.read(tmp_path / "people.parquet"), encoder.read(tmp_path / "people.csv")
    assert np.allclose(one.vectors, two.vectors, atol=1e-5)
    assert one.columns == two.columns and one.name == "people.parquet"


def test_meanings_and_kinds_are_told_of_other_tables(encoder, draw_table):
    view = encoder.read(draw_table(200, seed=33).rename_columns(list("abcdef")))
    assert [column.kind for column in view.columns] == [
        "number", "number", "number", "category", "timestamp", "category",
    ]  # fmt: skip
    assert [column.meaning for column in view.columns] == ["year", "age", "money", None, "date", "sex"]
    assert view.columns[1].missing == pytest.approx(0.1, abs=0.06) and view.columns[0].missing == 0
    assert all(0.5 <= column.probability <= 1 for column in view.columns if column.meaning)


def draw_measures(seed: int) -> pa.Table:
    """Eight columns of numbers, each with a scale, a shape and a rounding of its own."""
    generator = np.random.default_rng(seed)
    columns = {}
    for place in range(8):
        spread, centre = generator.uniform(0.05, 1.5), generator.uniform(0, 6)
        cells = generator.lognormal(centre, spread, 80)
        columns[f"c{place}"] = cells.round(int(generator.integers(0, 3)))
    return pa.table(columns)


def test_training_brings_halves_of_a_column_together(small_training):
    pool = build_pool([(str(seed), draw_measures(seed)) for seed in range(40)], seed=0)
    new = build_pool([(str(seed), draw_measures(seed)) for seed in range(40, 60)], seed=0)

    def found(network) -> float:
        with torch.no_grad():
            one, two = (network(torch.from_numpy(new.pair[:, -1, side])).numpy() for side in (0, 1))
        return float(np.mean((one @ two.T).argmax(axis=1) == np.arange(len(new))))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        before = found(new_network(pool, small_training))
    after = found(train_network(pool, dataclasses.replace(small_training, steps=150), seed=0))
    assert after > before + 0.1, (before, after)


def test_the_same_seed_gives_the_same_encoder_and_leaves_the_generator_alone(training_tables, small_training, encoder):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    again = train_column_encoder(training_tables, config=small_training)
    assert torch.equal(torch.rand(3), expected)
    assert again.fingerprint == encoder.fingerprint
    other = train_column_encoder(training_tables, config=small_training, seed=1)
    assert other.fingerprint != encoder.fingerprint


def test_samples_of_a_pair_share_no_row_and_copies_are_known(draw_table):
    table = pa.table({"row": np.arange(200.0) * 1.5, "constant": ["x"] * 200, "list": [[1]] * 200})
    pool = build_pool([("a", table), ("b", table), ("short", table.slice(0, 19))], seed=0)
    assert pool.names == ("row", "row") and pool.tables == ("a", "b")
    assert pool.content[0] == pool.content[1]
    quantile = FIGURES["quantile 1"], FIGURES["quantile 0"]
    first, last = pool.pair[0, -1]
    assert first[quantile[0]] < last[quantile[1]]
    wide = pa.table({f"c{place}": np.arange(30) + place for place in range(MAX_COLUMNS + 9)})
    assert len(build_pool([("wide", wide)], seed=0)) == MAX_COLUMNS
    assert build_pool([("a", table), ("people", draw_table(60, 0))], seed=0).of_tables(
        np.array([False, True])
    ).tables == ("people",)


def test_the_loss_is_that_of_the_paper_and_copies_do_not_repel():
    generator = torch.Generator().manual_seed(0)
    query, key, queued = (normalize(torch.randn(n, 6, generator=generator), dim=-1) for n in (4, 4, 5))
    content = torch.tensor([1, 2, 3, 1])
    queue = KeyQueue(7, 6)
    queue.push(queued, torch.arange(5), torch.tensor([9, 2, 8, 7, 1]))
    losses = []
    for i in range(4):
        negatives = [queued[j] for j in range(5) if queue.content[j] != content[i]]
        negatives += [key[j] for j in range(4) if content[j] != content[i]]
        powers = torch.stack([key[i], *negatives]) @ query[i] / 0.2
        losses.append(torch.logsumexp(powers, 0) - powers[0])
    assert contrast(query, key, content, queue, temperature=0.2) == pytest.approx(torch.stack(losses).mean().item())


def test_every_round_of_batches_holds_tables_whole(training_tables):
    pool = build_pool(training_tables, seed=0)
    batches = _Batches(pool, 48, seed=3)
    rounds = torch.cat([batches.columns(step) for step in range(batches.per_round)])
    assert sorted(rounds.tolist()) == list(range(len(pool)))
    assert len(set(pool.table[batches.columns(1).numpy()])) == 48 / 6
    assert torch.equal(batches.columns(1), _Batches(pool, 48, seed=3).columns(1))


def test_the_threshold_is_where_pairs_are_most_often_right(training_tables, encoder):
    pool = build_pool(training_tables, seed=0)
    assert -1 < choose_threshold(encoder.network, pool, seed=0) < 1
    few = pool.of_tables(np.arange(len(pool.tables)) < 3)
    assert choose_threshold(encoder.network, few, seed=0) == 0.6


def test_labels_come_from_whole_names():
    assert [label_of(name) for name in ("Year", "AGE", "birth_date", "state_name", "x_date_y", "yearly")] == [
        "year", "age", "date", "state", "other", "other",
    ]  # fmt: skip


def test_meanings_of_two_sorts_or_one():
    generator = np.random.default_rng(0)
    evidence = generator.normal(size=(60, 3)).astype(np.float32)
    evidence[:30, 0] += 9
    head = MeaningHead.fit(evidence, ["year"] * 30 + ["x"] * 30)
    assert head.meanings == ("other", "year")
    assert [meaning for meaning, _ in head.tell(evidence)] == ["year"] * 30 + ["other"] * 30
    assert np.allclose(head.probability(evidence).sum(axis=1), 1)
    assert MeaningHead.fit(evidence, ["x"] * 60).tell(evidence[:1]) == [("other", 1.0)]


def test_pairs_add_up_to_the_most():
    row, column = assign(np.array([[0.9, 0.8], [0.85, 0.1]]))
    assert list(zip(row.tolist(), column.tolist(), strict=True)) == [(0, 1), (1, 0)]


# ---------------------------------------------------------------- what users throw at it


def test_columns_that_cannot_be_judged_are_left_out_with_the_reason(encoder):
    table = pa.table(
        {
            "list": [[1], [2, 3]],
            "nothing": pa.nulls(2),
            "blank": ["", " "],
            "bytes": [b"a", b"b"],
            "number": [1, 2],
            "giant": ["x" * 3_000_000, "y"],
        }
    )
    view = encoder.read(table)
    assert [column.name for column in view.columns] == ["number", "giant"]
    assert view.skipped.keys() == {"list", "nothing", "blank", "bytes"}
    assert "no single values" in view.skipped["list"] and "no value" in view.skipped["nothing"]
    assert view.table().num_rows == 2 and pa.types.is_fixed_size_list(view.table()["embedding"].type)


def test_tables_without_anything_to_judge_are_refused(encoder):
    with pytest.raises(TableError, match="must have rows"):
        encoder.embed(pa.table({"a": pa.array([], pa.int64())}))
    with pytest.raises(TableError, match="column with values.*'a'"):
        encoder.embed(pa.table({"a": pa.nulls(3)}))
    with pytest.raises(TableError, match="column with values.*no single values"):
        encoder.embed(pa.table({"a": [[1], [2]]}))


def test_two_thousand_columns(encoder):
    numbers = np.random.default_rng(0).integers(0, 9, (20, 2_000))
    view = encoder.read(pa.table({f"c{place}": numbers[:, place] for place in range(2_000)}))
    assert view.vectors.shape == (2_000, encoder.d_embedding) and np.isfinite(view.vectors).all()
    assert len(view.alike()) == 2_000


def test_one_row_and_one_column(encoder):
    view = encoder.read({"a": [1]})
    assert view.alike() == [(None, -np.inf)]
    assert view.to_json()["columns"][0]["similarity"] is None


def test_too_little_to_learn_from_is_refused(draw_table, small_training):
    with pytest.raises(TrainingError, match="at least 8 columns to learn from, got 6"):
        train_column_encoder([("one", draw_table(60, 0))], config=small_training)
    with pytest.raises(TrainingError, match="got 0"):
        train_column_encoder([("short", draw_table(5, 0))], config=small_training)
    with pytest.raises(ConfigError, match="temperature must be above 0"):
        train_column_encoder([], config=dataclasses.replace(small_training, temperature=0))
    with pytest.raises(ConfigError, match="steps must be at least 1, got steps=0"):
        train_column_encoder([], config=dataclasses.replace(small_training, steps=0))


# ---------------------------------------------------------------- the one that tabmoco ships


def test_the_shipped_encoder_knows_plain_columns():
    encoder = tabmoco.ColumnEncoder.load()
    assert encoder.network.mean.shape == (N_TRAITS,) and {"year", "age", "sex"} <= set(encoder.meanings)
    generator = np.random.default_rng(0)
    table = pa.table(
        {
            "v1": generator.integers(1950, 2020, 300),
            "v2": generator.choice(["female", "male"], 300),
            "v3": generator.integers(18, 90, 300),
            "v4": np.datetime64("2020-01-01") + generator.integers(0, 900, 300),
        }
    )
    told = [column.meaning for column in encoder.read(table).columns]
    assert told[0] == "year" and told[1] == "sex" and told[3] == "date"
    half = encoder.match(table.slice(0, 150), table.slice(150).select(["v3", "v1", "v4", "v2"]))
    assert half.mapping == {name: name for name in table.column_names}
