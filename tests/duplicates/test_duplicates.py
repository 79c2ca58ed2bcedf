"""Duplicates: what is planted is found, what is different is not, and nothing depends on the order of the rows."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

import tabmoco
from tabmoco.duplicates.agreement import USUAL_M, Level, Weights, levels
from tabmoco.duplicates.candidates import candidates
from tabmoco.duplicates.compared import ComparedRows, Words
from tabmoco.duplicates.null import LOWEST, USUAL, auto_threshold
from tabmoco.errors import TabmocoError
from tabmoco.model import RowModel
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.schema import Column, infer_schema
from tabmoco.tables.source import open_table

SMALL = (
    "optimize.steps=2",
    "optimize.batch_size=32",
    "objective.queue_size=64",
    "encoder.d_block=16",
    "encoder.d_embedding=8",
    "encoder.n_blocks=1",
    "encoder.d_token=4",
    "index.rows=50",
)
KINDS = ["data.kinds={name = 'text'}"]
NAMES = ["Zoë", "Müller", "Ørsted", "Łucja", "大橋", "O'Neil", "García", "Smith", "Jónsdóttir", "Ivanova"]
CITIES = ["Kraków", "Oslo", "Reykjavík", "São Paulo", "Perth"]

pytestmark = [
    pytest.mark.usefixtures("small_forests"),
    pytest.mark.filterwarnings("ignore::tabmoco.tables.notices.TabmocoWarning"),
]


def people(n_rows: int = 200, seed: int = 0) -> pa.Table:
    generator = np.random.default_rng(seed)
    first, last = generator.choice(NAMES, (2, n_rows))
    day = generator.integers(0, 9_000, n_rows)
    number = generator.integers(99, 999, n_rows)
    return pa.table(
        {
            "name": [f"{a} {b} {n}" for a, b, n in zip(first, last, number, strict=True)],
            "city": generator.choice(CITIES, n_rows),
            "amount": generator.gamma(2, 500, n_rows).round(2),
            "visits": generator.integers(0, 40, n_rows),
            "limit": generator.integers(100, 9_999, n_rows),
            "born": [datetime.datetime(1970, 1, 1) + datetime.timedelta(days=int(d)) for d in day],
            "member": generator.random(n_rows) < 0.4,
        }
    )


def with_rows(table: pa.Table, rows: list[dict]) -> pa.Table:
    return pa.concat_tables([table, pa.Table.from_pylist(rows, schema=table.schema)])


def planted(table: pa.Table) -> tuple[pa.Table, set[tuple[int, int]], dict[int, set[str]]]:
    """The table with seven rows repeated, the pairs, and the columns in which each copy differs."""
    rows = table.to_pylist()
    name = rows[0]["name"]
    changes: list[dict] = [
        {"name": name[0] + name[2:]},
        {"amount": None, "city": None},
        {"amount": rows[2]["amount"] * 1_000},
        {"limit": rows[3]["visits"], "visits": rows[3]["limit"]},
        {"name": rows[4]["city"], "city": rows[4]["name"]},
        {"born": rows[5]["born"] + datetime.timedelta(days=1), "member": not rows[5]["member"]},
        {},
    ]
    copies = [rows[i] | change for i, change in enumerate(changes)]
    n = len(rows)
    return (
        with_rows(table, copies),
        {(i, n + i) for i in range(len(changes))},
        {i: set(change) for i, change in enumerate(changes)},
    )


@pytest.fixture(scope="module")
def model() -> RowModel:
    return tabmoco.pretrain(people(seed=99), tabmoco.PretrainConfig().override([*SMALL, *KINDS]))


def found_pairs(found) -> set[tuple[int, int]]:
    return set(zip(found.pairs["row_id"].to_pylist(), found.pairs["other_row_id"].to_pylist(), strict=True))


def found_groups(found, name: str = "rows") -> set[frozenset]:
    return {frozenset(rows) for rows in found.groups[name].to_pylist()}


# ---------------------------------------------------------------- what is found


def test_planted_duplicates_are_found_with_the_cells_that_differ(model):
    table, truth, changed = planted(people())
    found = model.duplicates(table)

    assert found_pairs(found) == truth
    for pair in found.pairs.to_pylist():
        assert {cell["column"] for cell in pair["cells"]} == changed[pair["row_id"]]
        assert pair["match"] == ("near" if changed[pair["row_id"]] else "exact")
        assert (pair["similarity"] == 1.0) == (pair["match"] == "exact")
    slip = next(pair for pair in found.pairs.to_pylist() if pair["row_id"] == 2)["cells"][0]
    assert float(slip["other_value"]) == pytest.approx(1_000 * float(slip["value"]), rel=1e-4)
    gap = next(pair for pair in found.pairs.to_pylist() if pair["row_id"] == 1)["cells"]
    assert {cell["other_value"] for cell in gap} == {"(missing)"}
    assert found.repeated.tolist() == list(range(200, 207))


@pytest.mark.parametrize("seed", range(4))
def test_different_rows_are_no_duplicates(model, seed):
    found = model.duplicates(people(seed=seed))
    assert len(found.groups) == found.n_pairs == len(found.repeated) == 0


def test_a_group_holds_all_its_rows_and_says_how_they_hang_together(model):
    table = people()
    row = table.slice(0, 1).to_pylist()[0]
    near = row | {"visits": row["visits"] + 50}
    found = model.duplicates(with_rows(table, [row, near, near]))
    assert found_groups(found) == {frozenset([0, 200, 201, 202])}
    (group,) = found.groups.to_pylist()
    assert (group["n_rows"], group["n_different"], group["linked"]) == (4, 2, 1.0)
    assert 0.5 < group["lowest"] < 1
    assert found_pairs(found) == {(0, 200), (201, 202), (0, 201)}
    assert found.group_of_row[0][[0, 200, 201, 202]].tolist() == [0] * 4 and found.group_of_row[0][1] == -1


def test_another_threshold_gives_what_a_new_search_would(model):
    table, _, _ = planted(people())
    found = model.duplicates(table)
    for threshold in (0.3, 0.8, 0.95, 1.0):
        again = model.duplicates(table, threshold=threshold)
        assert found.at(threshold).pairs == again.pairs and found.at(threshold).groups == again.groups
    assert len(found.at(0.3).pairs) >= 7 > len(found.at(0.95).pairs) > len(found.at(1.0).pairs) == 1
    assert found.at(0.95).at("auto").pairs == found.pairs


def test_the_order_of_the_rows_does_not_matter(model):
    table, _, _ = planted(people())
    order = np.random.default_rng(1).permutation(len(table))
    found, shuffled = model.duplicates(table), model.duplicates(table.take(pa.array(order)))
    assert {frozenset(order[list(rows)].tolist()) for rows in found_groups(shuffled)} == found_groups(found)
    assert shuffled.threshold == found.threshold
    assert sorted(shuffled.pairs["similarity"].to_pylist()) == sorted(found.pairs["similarity"].to_pylist())


def test_examples_show_a_few_pairs_of_the_first_groups_those_that_differ_first(model):
    table = people()
    row = table.slice(0, 1).to_pylist()[0]
    found = model.duplicates(with_rows(table, [*[row] * 6, row | {"visits": 77}, *table.slice(1, 1).to_pylist()]))
    shown = found.examples(1, 3)
    assert shown["group"].to_pylist() == [0, 0, 0]
    assert shown["match"].to_pylist() == ["near", "exact", "exact"]
    assert found.examples(5, 1)["group"].to_pylist() == [0, 1]
    assert len(found.examples(0, 3)) == 0


# ---------------------------------------------------------------- two tables


def test_rows_of_one_table_are_found_in_another(model):
    train, test = people(seed=1), people(100, seed=2)
    rows = train.slice(0, 3).to_pylist()
    leaked = with_rows(test, [rows[0], rows[0], rows[1] | {"amount": None}, rows[2] | {"visits": 99}])
    found = model.duplicates(leaked, against=with_rows(train, [rows[1]]))

    assert found_pairs(found) == {(100, 0), (101, 0), (102, 1), (102, 200), (103, 2)}
    matches = dict(zip(found.pairs["row_id"].to_pylist(), found.pairs["match"].to_pylist(), strict=True))
    assert matches == {100: "exact", 101: "exact", 102: "near", 103: "near"}
    assert found.repeated.tolist() == [100, 101, 102, 103]
    assert found_groups(found) == {frozenset([100, 101]), frozenset([102]), frozenset([103])}
    assert found_groups(found, "other_rows") == {frozenset([0]), frozenset([1, 200]), frozenset([2])}


def test_two_tables_without_common_rows_share_none_though_each_repeats_itself(model):
    table = people(seed=3)
    found = model.duplicates(with_rows(table, table.slice(0, 5).to_pylist()), against=people(seed=4))
    assert len(found.groups) == found.n_pairs == 0


# ---------------------------------------------------------------- ids


def test_rows_are_called_by_their_id(model):
    table, truth, _ = planted(people())
    ids = [f"P{row:03}" for row in range(len(table))]
    named = open_table(table.append_column("person", pa.array(ids)), id_column="person")
    found = model.duplicates(named)
    assert found.pairs.column_names[:3] == ["group", "person", "other_person"]
    pairs = set(zip(found.pairs["person"].to_pylist(), found.pairs["other_person"].to_pylist(), strict=True))
    assert pairs == {(ids[i], ids[j]) for i, j in truth}


def test_an_id_column_named_like_a_result_is_refused(model):
    table = people().append_column("match", pa.array(range(200)))
    with pytest.raises(TabmocoError, match="'match'"):
        model.duplicates(open_table(table, id_column="match"))


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan"), "high"])
def test_a_threshold_that_is_none_is_refused(model, threshold):
    with pytest.raises(TabmocoError, match="threshold must be auto or lie between 0 and 1"):
        model.duplicates(people(20), threshold=threshold)


def test_k_must_be_positive(model):
    with pytest.raises(TabmocoError, match="k=0"):
        model.duplicates(people(20), k=0)


# ---------------------------------------------------------------- tables that break things


def test_ten_thousand_copies_are_one_group_not_fifty_million_pairs(model):
    table = people(1)
    found = model.duplicates(table.take(pa.array(np.zeros(10_000, dtype=np.int64))))
    assert found.n_pairs == 9_999 and len(found.first) == 0
    assert found.groups["n_rows"].to_pylist() == [10_000] and found.groups["n_different"].to_pylist() == [1]
    assert set(found.pairs["match"].to_pylist()) == {"exact"}
    assert len(found.repeated) == 9_999


@pytest.mark.parametrize("n_rows", [0, 1, 2])
def test_hardly_any_rows(model, n_rows):
    found = model.duplicates(people(n_rows))
    assert len(found.groups) == found.n_pairs == 0 and found.threshold == USUAL
    assert found.pairs.schema == found.pair_schema
    assert len(model.duplicates(people(n_rows), against=people(5, seed=3)).groups) == 0
    assert len(model.duplicates(people(5, seed=3), against=people(n_rows)).groups) == 0


def test_columns_without_values_and_with_one_value_say_nothing(model):
    table, truth, _ = planted(people())
    table = table.set_column(1, "city", pa.array(["Oslo"] * len(table)))
    table = table.set_column(3, "visits", pa.nulls(len(table), pa.int64()))
    found = model.duplicates(table)
    assert truth - {(4, 204), (3, 203)} <= found_pairs(found) <= truth


def test_rows_without_any_value_are_copies_of_one_another_only(model):
    empty = pa.Table.from_pylist([dict.fromkeys(people(1).column_names)] * 3, schema=people(1).schema)
    found = model.duplicates(pa.concat_tables([people(), empty]))
    assert found_groups(found) == {frozenset([200, 201, 202])}


def test_extreme_numbers_are_compared(model):
    table = people()
    row = table.slice(0, 1).to_pylist()[0]
    strange = [row | {"amount": value} for value in (float("inf"), -float("inf"), 1e300, -0.0, float("nan"))]
    found = model.duplicates(with_rows(table, strange))
    assert found_groups(found) == {frozenset([0, *range(200, 205)])}
    assert np.isfinite(found.similarity).all()


def test_values_never_seen_in_training_are_told_apart(model):
    """They share one code, so that the encoded cells of such rows are equal."""
    table = people()
    row = table.slice(0, 1).to_pylist()[0]
    found = model.duplicates(with_rows(table, [row | {"city": "Atlantis"}, row | {"city": "El Dorado"}]))
    assert set(found.pairs["match"].to_pylist()) == {"near"}


def test_long_chains_are_reported(model):
    """Each row of the chain differs from the one before in one column, and from the fifth before in all."""
    first = people(1).to_pylist()[0]
    chain = [
        first
        | {
            "name": f"{NAMES[step // 4 % len(NAMES)]} {step // 4}",
            "amount": 10.0 * ((step + 1) // 4),
            "visits": 100 + (step + 2) // 4,
            "limit": 10_000 + (step + 3) // 4,
        }
        for step in range(60)
    ]
    with pytest.warns(TabmocoWarning, match="the largest has 60 rows; raise the threshold above 0.300"):
        found = model.duplicates(with_rows(people(80), chain), threshold=0.3, k=3)
    assert found.groups["linked"][0].as_py() < 0.2


# ---------------------------------------------------------------- candidates


def compared(table: pa.Table, **kinds: str) -> ComparedRows:
    config = tabmoco.DataConfig(kinds=kinds)
    source, words = open_table(table), Words()
    schema = infer_schema(source, config)
    return ComparedRows.cat([ComparedRows.read(schema.used, batch, words) for batch in source.batches()])


def test_candidates_are_few_and_each_comes_once():
    rows = compared(people(500), name="text")
    vectors = [np.random.default_rng(seed).normal(size=(500, 4)).astype(np.float32) for seed in range(2)]
    first, second = candidates(rows, vectors, np.zeros(500, dtype=bool), k=3)
    assert (first < second).all() and len(set(zip(first.tolist(), second.tolist(), strict=True))) == len(first)
    assert len(first) <= 500 * 3 * 2 + 500 * 3 * 2
    assert {0} <= set(first.tolist())


def test_candidates_between_two_tables_are_between_two_tables():
    rows = compared(people(300), name="text")
    vectors = [np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)]
    is_other = np.arange(300) >= 120
    first, second = candidates(rows, vectors, is_other, k=3)
    assert (~is_other[first]).all() and is_other[second].all() and len(first) >= 3 * 120


def test_an_equal_rare_value_makes_a_candidate_of_rows_far_apart():
    table = people(60)
    names = table["name"].to_pylist()
    names[7] = names[40] = "Æthelred II"
    rows = compared(table.set_column(0, "name", pa.array(names)), name="text")
    line = [np.arange(60, dtype=np.float32)[:, None] ** 2]
    first, second = candidates(rows, line, np.zeros(60, dtype=bool), k=2)
    assert (7, 40) in set(zip(first.tolist(), second.tolist(), strict=True))


# ---------------------------------------------------------------- agreement


def level_of(column: str, a: object, b: object) -> Level:
    """The level of two cells among those of other people."""
    table = people()
    rows = table.to_pylist()
    rows[0][column], rows[1][column] = a, b
    read = compared(pa.Table.from_pylist(rows, schema=table.schema), name="text")
    place = [facts.name for facts in read.columns].index(column)
    return Level(int(levels(read, np.array([0]), np.array([1]))[0, place]))


@pytest.mark.parametrize(
    ("column", "a", "b", "level"),
    [
        ("name", "Łucja García", "Łucja García", Level.EQUAL),
        ("name", "Łucja García", "ŁUCJA GARCÍA", Level.CLOSE),
        ("name", "Łucja García", "García Łucja", Level.CLOSE),
        ("name", "Łucja García", "Łucja Garcka", Level.CLOSE),
        ("name", "Łucja García", "Łucja G.", Level.SIMILAR),
        ("name", "Łucja García", "Smith", Level.DIFFERENT),
        ("name", "Łucja García", None, Level.MISSING),
        ("name", None, None, Level.MISSING),
        ("city", "Kraków", "Krakow", Level.SIMILAR),
        ("city", "", " ", Level.CLOSE),
        ("amount", 120.0, 120.0, Level.EQUAL),
        ("amount", 0.0, -0.0, Level.EQUAL),
        ("amount", 120.0, 121.0, Level.CLOSE),
        ("amount", 120.0, 150.0, Level.SIMILAR),
        ("amount", 120.0, 1_200.0, Level.SLIPPED),
        ("amount", 120.0, 0.12, Level.SLIPPED),
        ("amount", 2_000.0, -2_000.0, Level.SLIPPED),
        ("amount", 120.0, float("inf"), Level.DIFFERENT),
        ("amount", float("nan"), 5.0, Level.MISSING),
        ("limit", 5_678, 567, Level.SLIPPED),
        ("limit", 5_678, 568, Level.SLIPPED),
        ("limit", 5_678, 600, Level.DIFFERENT),
        ("born", datetime.datetime(1980, 5, 1), datetime.datetime(1980, 5, 2), Level.CLOSE),
        ("member", True, False, Level.DIFFERENT),
    ],
)
def test_levels(column, a, b, level):
    assert level_of(column, a, b) == level == level_of(column, b, a)


def test_swapped_cells_are_seen_in_both_columns():
    table = people()
    rows = table.to_pylist()
    rows[1] = rows[1] | {"name": rows[0]["city"], "city": rows[0]["name"]}
    read = compared(pa.Table.from_pylist(rows, schema=table.schema), name="text", city="text")
    assert levels(read, np.array([0]), np.array([1]))[0, :2].tolist() == [Level.SWAPPED] * 2


def test_the_evidence_is_the_log_likelihood_ratio_of_fellegi_and_sunter():
    colour = ["red"] * 60 + ["blue"] * 30 + ["green"] * 8 + [None] * 2
    rows = compared(pa.table({"colour": colour, "x": [float(i % 50) for i in range(100)]}))
    weights = Weights.fit(rows)
    pairs = {"red": (0, 1), "blue": (60, 61), "green": (90, 91), "other": (0, 60), "gap": (0, 99)}
    first, second = (np.array([pair[i] for pair in pairs.values()]) for i in (0, 1))
    found = dict(zip(pairs, weights.evidence(levels(rows, first, second), first, second)[:, 0], strict=True))
    for name, count in (("red", 60), ("blue", 30), ("green", 8)):
        assert found[name] == pytest.approx(np.log(USUAL_M[Level.EQUAL] / (count / 98)), rel=1e-5)
    n_pairs = 98 * 97 / 2
    n_equal = sum(n * (n - 1) / 2 for n in (60, 30, 8))
    share = (n_pairs - n_equal + 0.5) / (n_pairs + 6 * 0.5)
    assert found["other"] == pytest.approx(np.log(USUAL_M[Level.DIFFERENT] / share), rel=1e-5)
    assert found["gap"] == 0.0
    assert weights.similarity(rows, np.array([0]), np.array([0]))[0] == pytest.approx(1.0)


def test_to_differ_never_speaks_for_a_pair_and_nothing_says_more_than_equal():
    rows = compared(people(), name="text")
    weights = Weights.fit(rows)
    first, second = np.triu_indices(200, 1)
    level = levels(rows, first, second)
    said = weights.evidence(level, first, second)
    assert (said[level == Level.DIFFERENT] <= 0).all() and (said[level == Level.EQUAL] >= 0).all()
    assert (said <= np.maximum(weights.equal[first], weights.equal[second]) + 1e-6).all()


def test_equal_rows_have_equal_content_in_whatever_order_their_words_were_met():
    table = people(50)
    there, back = compared(table, name="text"), compared(table.take(pa.array(range(49, -1, -1))), name="text")
    assert (there.content() == back.content()[::-1]).all() and len(set(there.content().tolist())) == 50


def test_the_similarity_of_spellings():
    words = Words()
    a, b = words.positions(["night", ""]), words.positions(["nacht", ""])
    assert words.similarity(a, b).tolist() == pytest.approx([2 * 3 / 12, 1.0])  # " n", "ht" and "t " of 6 and 6


def test_cells_are_told_in_their_own_unit():
    table = pa.table(
        {
            "day": pa.array([datetime.date(2020, 2, 29), datetime.date(9999, 12, 31), None]),
            "n": pa.array([7, 12, None], pa.int64()),
            "ok": pa.array([True, False, None]),
            "word": ["a", "", None],
        }
    )
    rows = compared(table)
    assert [rows.told(0, c) for c in range(4)] == ["2020-02-29", "7", "true", "a"]
    assert [rows.told(1, c) for c in range(4)] == ["9999-12-31", "12", "false", "(empty)"]
    assert [rows.told(2, c) for c in range(4)] == ["(missing)"] * 4
    assert rows.differing(0, 1) == [0, 1, 2, 3] and rows.differing(2, 2) == []


# ---------------------------------------------------------------- the threshold


def null_candidates(n_rows: int, seed: int, scale: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Ten best of a hundred draws from an exponential tail for each row."""
    draws = np.random.default_rng(seed).exponential(scale, (n_rows, 100))
    best = -np.sort(-draws, axis=1)[:, :10]
    return np.repeat(np.arange(n_rows), 10), best.ravel()


@pytest.mark.parametrize("scale", [0.02, 0.05, 0.08])
def test_chance_passes_the_threshold_hardly_ever(scale):
    n_passing = 0
    for seed in range(20):
        owner, similarity = null_candidates(500, seed, scale)
        n_passing += int((similarity >= auto_threshold(owner, similarity, 500)).sum())
    assert n_passing <= 40


@pytest.mark.parametrize("n_copies", [1, 3, 5])
def test_the_threshold_lies_between_duplicates_and_the_others(n_copies):
    owner, similarity = null_candidates(500, 0)
    similarity = similarity.reshape(500, 10)
    similarity[:, -n_copies:] = np.random.default_rng(1).uniform(0.8, 0.9, (500, n_copies))
    assert auto_threshold(owner, similarity.ravel(), 500) < 0.8
    some = similarity.copy()
    some[50:, -n_copies:] = 0.0
    assert LOWEST <= auto_threshold(owner, some.ravel(), 500) < 0.8


def test_a_small_table_gets_the_usual_threshold():
    owner, similarity = null_candidates(20, 0)
    assert auto_threshold(owner, similarity, 20) == USUAL
    assert auto_threshold(np.zeros(0, np.int64), np.zeros(0), 0) == USUAL


def test_no_threshold_will_do_where_all_rows_are_nearly_alike():
    owner = np.repeat(np.arange(100), 10)
    assert auto_threshold(owner, np.full(1_000, 0.995), 100) == 1.0


def test_columns_keep_their_order_and_kind():
    rows = compared(people(), name="text")
    assert [column.kind for column in rows.columns] == [
        "text", "category", "number", "number", "number", "timestamp", "boolean",
    ]  # fmt: skip
    assert isinstance(rows.columns[0], Column)
