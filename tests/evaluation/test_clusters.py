"""Clusters: planted groups are found and told by the columns that make them, whatever the order of the rows."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.metrics import adjusted_rand_score, completeness_score

import tabmoco
from tabmoco.config import DataConfig, EncoderConfig, IndexConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.errors import ConfigError, SchemaError, TableError
from tabmoco.evaluation import cluster_partition
from tabmoco.evaluation.cluster_partition import NOISE, agreement, by_hdbscan, by_kmeans, choose_k, own_order, unit
from tabmoco.evaluation.cluster_traits import traits
from tabmoco.evaluation.clusters import cluster
from tabmoco.model import RowModel
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.schema import Column
from tabmoco.tables.source import open_table

SIZES = (150, 100, 50)


def plant(seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Flights in three groups, shuffled, and the group of each."""
    random = np.random.default_rng(seed)
    group = random.permutation(np.repeat(np.arange(3), SIZES))
    n_rows = len(group)
    table = pd.DataFrame(
        {
            "ticket": [f"T{row:03d}" for row in range(n_rows)],
            "diståns ✈": np.array([764, 2475, 200])[group] + random.normal(0, 20, n_rows).round(),
            "carrier": np.array(["UA", "HA", "[red]é"])[group],
            "late": group == 2,
            "speed": np.array([0.0, 50.0, 100.0])[group] + random.normal(0, 2, n_rows),
            "gate": np.where(group == 1, None, "a"),
            "noise": random.random(n_rows),
        }
    )
    return table, group


@pytest.fixture(scope="module")
def planted() -> tuple[pd.DataFrame, np.ndarray]:
    return plant()


@pytest.fixture(scope="module")
def model(planted, small_forests) -> RowModel:
    config = PretrainConfig(
        data=DataConfig(id_column="ticket"),
        encoder=EncoderConfig(d_token=8, d_block=32, n_blocks=1, d_embedding=32),
        objective=ObjectiveConfig(queue_size=64),
        optimize=OptimizeConfig(steps=2, batch_size=64),
        index=IndexConfig(calibration_share=0.3),
    )
    return tabmoco.pretrain(planted[0], config)


def rows_of(table: pd.DataFrame):
    return open_table(table, id_column="ticket")


def blobs(n_groups: int, n_each: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Directions around as many axes."""
    random = np.random.default_rng(seed)
    group = random.permutation(np.repeat(np.arange(n_groups), n_each))
    return unit(np.eye(n_groups + 2)[group] + random.normal(0, 0.05, (len(group), n_groups + 2))), group


# ---------------------------------------------------------------- planted groups


def test_planted_groups_are_found_and_told(planted, model):
    table, group = planted
    found = tabmoco.cluster(model, rows_of(table), k=3)
    assert adjusted_rand_score(group, found.labels) == 1
    assert [one.n_rows for one in found.clusters] == list(SIZES)
    assert (found.labels == group).all(), "the largest comes first"
    assert found.agreement == pytest.approx(1) and found.scores == ()
    assert "3 clusters of 300 rows" in found.verdict and "in the same way" in found.verdict
    one = {trait.column: trait for trait in found.clusters[1].traits}
    assert set(one) == {"diståns ✈", "carrier", "speed", "gate", "late"}
    assert one["carrier"].told == "carrier: HA 100 % (others 0 %)"
    assert one["carrier"].effect == 1 and one["carrier"].lift is None
    assert one["gate"].told == "gate: missing 100 % (others 0 %)"
    distance = table["diståns ✈"].to_numpy()
    assert abs(float(one["diståns ✈"].here) - np.median(distance[group == 1])) <= 1
    assert abs(float(one["diståns ✈"].elsewhere) - np.median(distance[group != 1])) <= 1
    third = {trait.column: trait for trait in found.clusters[2].traits}
    assert third["carrier"].told == "carrier: [red]é 100 % (others 0 %)"
    assert third["late"].told == "late: true 100 % (others 0 %)"
    assert third["diståns ✈"].effect == 1
    assert "noise" not in " ".join(found.descriptions)


def test_the_planted_number_is_chosen(planted, model):
    found = cluster(model, rows_of(planted[0]))
    assert len(found.clusters) == 3 and adjusted_rand_score(planted[1], found.labels) == 1
    assert dict(found.scores)[3] == found.agreement == max(dict(found.scores).values())
    assert "the number chosen from 2 to 20" in found.verdict


def test_ids_distances_and_typical_rows(planted, model):
    table, _ = planted
    found = cluster(model, rows_of(table), k=3)
    told = found.table()
    assert told.schema.names == ["ticket", "cluster", "distance"]
    assert told["ticket"].to_pylist() == table["ticket"].tolist()
    points = unit(model.embed(rows_of(table)))
    for one in found.clusters:
        inside = found.labels == one.number
        far = np.linalg.norm(points - points[inside].mean(0, dtype=np.float64), axis=1)
        assert np.allclose(found.distance[inside], far[inside], atol=1e-5)
        place = np.flatnonzero(inside)[np.argsort(far[inside], kind="stable")[:3]]
        assert one.typical == tuple(table["ticket"].iloc[place])
        assert one.share == pytest.approx(inside.mean())
    unnamed = cluster(model, table.drop(columns="ticket"), k=3)
    assert unnamed.table().schema.names[0] == "row_id" and unnamed.table()["row_id"].to_pylist()[:2] == [0, 1]
    assert (unnamed.labels == found.labels).all()


def test_the_order_of_the_rows_does_not_matter(planted, model):
    table = planted[0].loc[np.r_[0:300, 0:40]]  # with copies
    shuffled = np.random.default_rng(1).permutation(len(table))
    for settings in ({"k": 7}, {"method": "hdbscan"}):
        found, other = (cluster(model, rows_of(rows), **settings) for rows in (table, table.iloc[shuffled]))
        assert (found.labels[shuffled] == other.labels).all()
        assert [one.traits for one in found.clusters] == [one.traits for one in other.clusters]
        again = cluster(model, rows_of(table), **settings)
        assert (again.labels == found.labels).all() and (again.distance == found.distance).all()


def test_other_rows_are_assigned_one_by_one_as_together(planted, model):
    found = cluster(model, rows_of(planted[0]), k=3)
    table, group = plant(seed=5)
    told = found.assign(rows_of(table))
    assert told["cluster"].to_pylist() == group.tolist() and told["ticket"][0].as_py() == "T000"
    alone = pa.concat_tables([found.assign(rows_of(table.iloc[[row]])) for row in range(5)])
    assert alone["cluster"].to_pylist() == told["cluster"].to_pylist()[:5]
    assert np.allclose(alone["distance"], told["distance"][:5], atol=1e-5)


def test_results_are_json(planted, model):
    found = cluster(model, rows_of(planted[0]), k=3)
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["n_clusters"] == 3 and told["n_rows"] == 300 and told["n_noise"] == 0
    assert told["clusters"][0]["description"] == found.descriptions[0]
    assert told["clusters"][0]["traits"][0]["column"] == found.clusters[0].traits[0].column
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.name = "other"


# ---------------------------------------------------------------- HDBSCAN


def test_hdbscan_leaves_out_rows_that_lie_alone():
    points, group = blobs(3, 60)
    alone = unit(-np.eye(points.shape[1]))
    partition = by_hdbscan(np.concatenate([points, alone]), 15)
    label, distance = partition.assign(np.concatenate([points, alone]))
    assert len(partition.centres) == 3
    assert adjusted_rand_score(group, label[:180]) > 0.95 and (label[180:] == NOISE).all()
    assert np.isfinite(distance).all()


def test_hdbscan_of_a_table(planted, model):
    found = cluster(model, rows_of(planted[0]), method="hdbscan", min_size=20)
    kept = found.labels != NOISE
    assert kept.mean() > 0.8 and len(found.clusters) >= 2
    assert completeness_score(planted[1][kept], found.labels[kept]) == pytest.approx(1), "no group is torn apart"
    assert found.n_noise == (~kept).sum() and f"{found.n_noise} row" in found.verdict and found.agreement is None
    none = cluster(model, rows_of(planted[0]), method="hdbscan", min_size=299)
    assert none.clusters == () and none.n_noise == 300 and none.table()["distance"].null_count == 300
    assert "0 clusters of 300 rows; 300 rows (100 %) in none." in none.verdict
    json.dumps(none.to_json(), allow_nan=False)


def test_large_tables_are_grouped_by_some_of_their_rows(planted, model, monkeypatch):
    monkeypatch.setattr(cluster_partition, "HDBSCAN_ROWS", 120)
    monkeypatch.setattr(cluster_partition, "KMEANS_ROWS", 120)
    monkeypatch.setattr(cluster_partition, "CHOICE_ROWS", 80)
    monkeypatch.setattr("tabmoco.evaluation.clusters.DESCRIBED_ROWS", 150)
    with pytest.warns(TabmocoWarning, match="HDBSCAN groups 120 of 300 rows"):
        found = cluster(model, rows_of(planted[0]), method="hdbscan", min_size=25)
    kept = found.labels != NOISE
    assert kept.mean() > 0.7 and adjusted_rand_score(planted[1][kept], found.labels[kept]) == 1
    found = cluster(model, rows_of(planted[0]))
    assert adjusted_rand_score(planted[1], found.labels) == 1 and found.n_described == 150
    assert "carrier: HA 100 %" in found.descriptions[1]


# ---------------------------------------------------------------- points


def test_the_largest_number_that_halves_agree_on_is_chosen():
    points, group = blobs(5, 40)
    best, scores = choose_k(points, (2, 3, 4, 5, 6, 8), seed=0)
    assert best == 5 and dict(scores)[5] == pytest.approx(1) and dict(scores)[8] < 0.95
    assert (by_kmeans(points, 5, seed=0).assign(points)[0] >= 0).all()
    assert adjusted_rand_score(group, by_kmeans(points, 5, seed=0).assign(points)[0]) == 1
    chance = unit(np.random.default_rng(0).normal(size=(300, 20)))
    assert agreement(chance, 8, seed=0) < 0.3


def test_rows_have_an_order_of_their_own():
    content = np.array([5, 7, 5, 9, 5, 7] * 20)
    shuffled = np.random.default_rng(0).permutation(len(content))
    order = own_order(content, 0)
    assert sorted(order.tolist()) == list(range(len(content)))
    assert (content[order] == content[shuffled][own_order(content[shuffled], 0)]).all()
    assert (content[order] != content[own_order(content, 1)]).any()
    assert set(content[order[:20]].tolist()) == {5, 7, 9}, "copies do not stand together"


# ---------------------------------------------------------------- traits


def contrast(kind: str, values: list, label: list[int], arrow_type: str = "double", n_groups: int = 1):
    column = Column("c", kind, "", arrow_type)
    return traits([column], pa.table({"c": values}), np.array(label), n_groups)


def test_effects_of_numbers_are_cliffs_delta():
    random = np.random.default_rng(0)
    here, elsewhere = random.normal(1, 1, 80).round(1), random.normal(0, 1, 90).round(1)
    ((trait,),) = contrast("number", [*here, *elsewhere], [0] * 80 + [-1] * 90)
    pairs = np.sign(here[:, None] - elsewhere[None])
    assert trait.effect == pytest.approx(abs(pairs.mean())) and trait.what == "number"


def test_columns_that_are_hardly_filled_say_little():
    values = [1.0] * 10 + [None] * 190 + [2.0] * 200
    ((gap,),) = contrast("number", values, [0] * 200 + [-1] * 200)
    assert gap.what == "missing" and gap.effect == pytest.approx(0.95)
    values = [1.0] * 100 + [None] * 100 + [2.0] * 200
    ((size, gap),) = contrast("number", values, [0] * 200 + [-1] * 200)
    assert size.told == "c: 1 (others 2)" and size.effect == pytest.approx(0.5) == gap.effect


def test_numbers_with_one_median_are_told_by_what_differs():
    zeros = [0.0] * 60
    ((trait,),) = contrast("number", [*zeros, *[3.0] * 40, *zeros, *[0.0] * 40], [0] * 100 + [-1] * 100)
    assert trait.told == "c: middle half 0 to 3 (others middle half 0 to 0)"
    ((trait,),) = contrast("number", [*[0.0] * 240, *[3.0] * 60, *[0.0] * 300], [0] * 300 + [-1] * 300)
    assert trait.told == "c: mean 0.6 (others mean 0)"


def test_other_kinds_are_told_too():
    label = [0] * 50 + [-1] * 50
    days = pa.array([np.datetime64("2013-01-05T10:00", "us")] * 50 + [np.datetime64("2014-01-05", "us")] * 50)
    ((trait,),) = contrast("timestamp", days, label, "timestamp[us]")
    assert trait.told == "c: 2013-01-05T10:00 (others 2014-01-05)" and trait.effect == 1
    ((word, gap),) = contrast("text", ["engine fire", "an engine"] * 25 + ["bird", None] * 25, label, "string")
    assert word.told == "c: 'engine' 100 % (others 0 %)" and word.what == "word"
    assert gap.told == "c: missing 0 % (others 50 %)" and gap.effect == 0.5
    ((trait,),) = contrast("category", [*"abdef"] * 10 + [*"abdefccccc"] * 5, label, "string")
    assert trait.here == "c 0 %" and trait.elsewhere == "c 50 %" and trait.lift == 0
    ((trait,),) = contrast("category", ["a"] * 30 + ["b"] * 20 + ["a"] * 10 + ["c"] * 40, label, "string")
    assert trait.told == "c: b 40 % (others 0 %), a 60 % (others 20 %)" and trait.effect == pytest.approx(0.8)
    assert contrast("text", ["?"] * 100, label, "string") == [()]


def test_nothing_is_told_that_may_be_chance():
    random = np.random.default_rng(0)
    noise = random.normal(size=400)
    words = random.choice(["a", "b"], 400)
    assert contrast("number", noise, random.integers(-1, 3, 400), n_groups=3) == [()] * 3
    assert contrast("category", words, random.integers(-1, 3, 400), "string", n_groups=3) == [()] * 3
    few = [0] * 4 + [-1] * 396
    assert contrast("number", [*np.sort(noise)[100:104], *noise[4:]], few) == [()]
    ((trait,),) = contrast("number", [9.0] * 4 + noise[4:].tolist(), few)
    assert trait.effect == 1


# ---------------------------------------------------------------- refusals


def test_tables_without_groups_are_refused(planted, model):
    table = planted[0]
    for rows, found in ((table.iloc[:1], "1 row alike"), (table.iloc[[4] * 9], "9 rows alike")):
        with pytest.raises(TableError, match=f"two different rows or more to cluster, found {found}"):
            cluster(model, rows_of(rows))
    with pytest.raises(TableError, match="must have rows to cluster, found none"):
        cluster(model, rows_of(table.iloc[:0]))
    with pytest.raises(SchemaError, match="carrier"):
        cluster(model, table.drop(columns="carrier"))
    with pytest.raises(TableError, match="'cluster'; rename it"):
        cluster(model, open_table(table.rename(columns={"ticket": "cluster"}), id_column="cluster"))


def test_more_clusters_than_different_rows_are_as_many_as_there_are(planted, model):
    few = planted[0].iloc[[0, 1, 2] * 5]
    with pytest.warns(TabmocoWarning, match="has 3 different rows, so there are 3 clusters, not k=6"):
        found = cluster(model, rows_of(few), k=6)
    assert [one.n_rows for one in found.clusters] == [5, 5, 5] and len(set(found.labels[:3].tolist())) == 3
    assert len(cluster(model, rows_of(planted[0].iloc[[0, 1] * 3])).clusters) == 2
    assert len(cluster(model, rows_of(planted[0].iloc[:2])).clusters) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 1}, "k must be auto or a whole number from 2 on, got 1"),
        ({"k": 2.5}, "got 2.5"),
        ({"method": "kmean"}, "method must be kmeans or hdbscan, got 'kmean'"),
        ({"method": "hdbscan", "k": 4}, "by itself, got k=4"),
        ({"min_size": 9}, "belongs to hdbscan, got min_size=9"),
        ({"method": "hdbscan", "min_size": 1}, "at least 2, got min_size=1"),
    ],
)
def test_settings_out_of_range_are_refused(planted, model, settings, message):
    with pytest.raises(ConfigError, match=message):
        cluster(model, planted[0], **settings)
