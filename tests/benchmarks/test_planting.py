"""Planted anomalies are what they are said to be, every damaged cell is marked, and nothing else is touched."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.clean_table import CleanTable
from benchmarks.planting import KINDS, plant

TOWNS = {"Ulm": "south", "Augsburg": "south", "Kiel": "north", "Husum": "north"}
UNTOUCHED = {"number_plate", "note"}
TABLES = (
    "adult",
    "ames_housing",
    "bank_marketing",
    "bird_strikes",
    "churn",
    "credit_g",
    "hotel_rates",
    "hr_job_change",
)


def draw_rows(n_rows: int, seed: int) -> pa.Table:
    """Towns and their regions, a price that follows the weight, a tax that is mostly zero, and a number of no
    meaning."""
    generator = np.random.default_rng(seed)
    town = generator.choice([*TOWNS, "Celle"], n_rows, p=[0.4, 0.3, 0.15, 0.146, 0.004])
    weight = generator.gamma(4.0, 5.0, n_rows).round(1)
    price = np.round(10 * weight + generator.normal(0, 5, n_rows)).clip(1)
    note = [f"note {seed} {i}" for i in range(n_rows)]
    return pa.table(
        {
            "number_plate": pa.array([f"X-{seed}-{i}" for i in range(n_rows)]),
            "town": pa.array(town).dictionary_encode(),
            "region": pa.array([TOWNS.get(name, "north") for name in town]).dictionary_encode(),
            "weight": pa.array(weight, mask=generator.random(n_rows) < 0.1),
            "price": pa.array(price, pa.int32()),
            "tax": pa.array(
                np.where(generator.random(n_rows) < 0.9, 0, generator.integers(1, 500, n_rows)), pa.int64()
            ),
            "luck": pa.array(generator.integers(0, 100, n_rows), pa.int32()),
            "sold": pa.array(
                [datetime.datetime(2020, 1, 1) + datetime.timedelta(days=int(d)) for d in 30 * weight],
                pa.timestamp("us"),
            ),
            "note": pa.array(note),
        }
    )


@pytest.fixture(scope="module")
def clean_rows() -> pa.Table:
    return draw_rows(2_000, seed=0)


@pytest.fixture(scope="module")
def clean(clean_rows: pa.Table) -> CleanTable:
    return CleanTable.measure(clean_rows)


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return draw_rows(200, seed=1)


def changed_cells(rows: pa.Table, planted) -> list[tuple[str, object, object]]:
    """Column, old and new value of every marked cell."""
    before, after = rows.take(pa.array(planted.source)).to_pylist(), planted.rows.to_pylist()
    return [
        (rows.column_names[j], before[i][rows.column_names[j]], after[i][rows.column_names[j]])
        for i, j in np.argwhere(planted.cells)
    ]


def check_marks(rows: pa.Table, planted) -> None:
    assert planted.rows.schema.equals(rows.schema)
    before = [column.to_pylist() for column in rows.take(pa.array(planted.source)).columns]
    after = [column.to_pylist() for column in planted.rows.columns]
    differ = [[old != new for old, new in zip(*pair, strict=True)] for pair in zip(before, after, strict=True)]
    np.testing.assert_array_equal(planted.cells, np.array(differ).T)
    assert planted.cells.any(1).all()
    assert all(old is not None for _, old, _ in changed_cells(rows, planted))


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_damaged_and_exactly_the_damaged_cells_are_marked(kind, rows, clean):
    planted = plant(rows, kind, 0, clean)
    check_marks(rows, planted)
    assert planted.source.tolist() == list(range(200))
    assert planted.cells.sum(1).max() <= 3
    assert not {name for name, _, _ in changed_cells(rows, planted)} & UNTOUCHED


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind, rows, clean):
    first = plant(rows, kind, 3, clean)
    assert plant(rows, kind, 3, clean).rows.equals(first.rows)
    assert not plant(rows, kind, 4, clean).rows.equals(first.rows)


def test_extremes_lie_outside_the_middle_99_percent_and_look_like_their_column(rows, clean_rows, clean):
    found = changed_cells(rows, plant(rows, "extreme", 0, clean))
    assert {name for name, _, _ in found} == {"weight", "price", "tax", "luck"}
    for name, _, value in found:
        known = clean_rows[name].drop_null().to_numpy()
        assert value > np.quantile(known, 0.99)
        assert isinstance(value, int) == (name != "weight") and value == round(value, 1)
    assert any(
        value > clean_rows["weight"].drop_null().to_numpy().max() for name, _, value in found if name == "weight"
    )


def test_columns_with_negative_numbers_have_extremes_on_both_sides():
    rows = pa.table({"x": np.random.default_rng(0).normal(size=500), "y": np.arange(500.0)})
    values = [value for name, _, value in changed_cells(rows, plant(rows, "extreme", 0)) if name == "x"]
    assert min(values) < -3 and max(values) > 3


def test_rare_categories_are_rare_or_new(rows, clean_rows, clean):
    found = changed_cells(rows, plant(rows, "rare", 0, clean))
    assert {name for name, _, _ in found} == {"town", "region"}
    counts = {name: Counter(clean_rows[name].to_pylist()) for name in ("town", "region")}
    assert all(counts[name][value] < 0.01 * len(clean_rows) for name, _, value in found)
    new = [value for name, _, value in found if value not in counts[name]]
    assert 0.1 < 1 - len(new) / len(found) < 0.5 and len(set(new)) > 50
    assert {value for _, _, value in found} - set(new) == {"Celle"}


def test_a_level_of_a_long_tail_is_not_called_rare():
    names = [f"species {i}" for i in range(200)] * 3 + ["sparrow"] * 600 + ["dodo"]
    rows = pa.table({"species": pa.array(names).dictionary_encode()})
    known = set(names)
    found = [value for _, _, value in changed_cells(rows, plant(rows, "rare", 0)) if value in known]
    assert found and set(found) == {"dodo"}


def test_contradictions_are_made_of_common_values_that_do_not_belong_together(rows, clean_rows, clean):
    planted = plant(rows, "contextual", 0, clean)
    columns = {name for name, _, _ in changed_cells(rows, planted)}
    assert columns == {"town", "region", "weight", "price", "sold"}  # luck and tax depend on nothing
    for name, _, value in changed_cells(rows, planted):
        known = clean_rows[name].drop_null().to_pylist()
        assert value in known
        assert known.count(value) > 0.01 * len(known) or sorted(known)[40] < value < sorted(known)[-40]
    assert sum(map(contradicts_itself, rows.to_pylist())) <= 2
    assert all(map(contradicts_itself, planted.rows.to_pylist()))


def contradicts_itself(row: dict) -> bool:
    days = (row["sold"] - datetime.datetime(2020, 1, 1)).days
    weight = row["price"] / 10 if row["weight"] is None else row["weight"]
    return (
        TOWNS.get(row["town"], "north") != row["region"]
        or abs(row["price"] - 10 * weight) > 20
        or abs(days - 3 * row["price"]) > 60
    )


def test_about_a_third_of_the_dependent_cells_contradict(rows, clean):
    assert clean.dependent.tolist() == [1, 2, 3, 4, 7]
    damaged = plant(rows, "contextual", 0, clean).cells.sum(1)
    assert damaged.mean() == pytest.approx(0.3 * 5, abs=0.6)


def test_format_faults_are_of_all_sorts(rows, clean_rows, clean):
    planted = plant(rows, "format", 0, clean)
    found = changed_cells(rows, planted)
    assert any(new == -old for name, old, new in found if name == "price")
    assert any(new == 1000 * old for name, old, new in found if name == "price")
    assert any(new == pytest.approx(10 * old) for name, old, new in found if name == "weight")
    assert any(new.year == 1970 for name, _, new in found if name == "sold")
    assert any(new.year in (old.year - 100, old.year + 100) for name, old, new in found if name == "sold")
    assert any(new in set(TOWNS.values()) for name, _, new in found if name == "town")
    assert all(new != 0 for name, _, new in found if name in ("price", "weight"))


def test_faults_that_nobody_could_see_are_drawn_again():
    rows = pa.table({"luck": pa.array(np.random.default_rng(0).integers(10, 1_000, 500))})
    values = [value for _, _, value in changed_cells(rows, plant(rows, "format", 0))]
    assert all(value < 20 or value > 990 for value in values)  # and not 50, made of 500


def test_day_and_month_are_exchanged_only_where_the_calendar_allows():
    date = [datetime.date(2020, 1 + i % 12, 1 + i % 28) for i in range(300)]
    rows = pa.table({"day": pa.array(date), "x": pa.array(np.arange(300))})
    found = [(old, new) for name, old, new in changed_cells(rows, plant(rows, "format", 0)) if name == "day"]
    assert any(new.year < 1930 for _, new in found)
    assert all(old.day <= 12 for old, new in found if new.year == old.year)


def test_rows_without_a_cell_to_damage_are_left_out(clean_rows):
    x = pa.array([1.5, None, 2.5, None])
    table = pa.table({"x": x, "town": pa.array(["Ulm", "Kiel", "Ulm", "Kiel"])})
    ordinary = pa.table({"x": np.arange(100.0), "town": ["Ulm", "Kiel"] * 50})
    planted = plant(table, "extreme", 0, CleanTable.measure(ordinary))
    assert planted.source.tolist() == [0, 2] and planted.rows["town"].to_pylist() == ["Ulm", "Ulm"]
    with pytest.raises(ValueError, match="found none"):
        plant(table.select(["x"]), "rare", 0)
    with pytest.raises(ValueError, match="one of extreme, rare"):
        plant(table, "odd", 0)


@pytest.mark.parametrize("name", TABLES)
def test_real_tables_keep_their_shape(name):
    folder = os.environ.get("TABMOCO_DATA_DIR")
    if not folder:
        pytest.skip("TABMOCO_DATA_DIR names no folder of tables")
    table = pq.read_table(Path(folder) / "tables" / f"{name}.parquet")
    order = np.random.default_rng(0).permutation(len(table))
    ordinary, rows = table.take(pa.array(order[100:1_500])), table.take(pa.array(order[:40]))
    clean = CleanTable.measure(ordinary)
    for kind in KINDS:
        planted = plant(rows, kind, 0, clean)
        check_marks(rows, planted)
        assert len(planted.rows) >= 36
        assert not {column for column, _, _ in changed_cells(rows, planted)} & {"PID", "enrollee_id", "remarks"}
