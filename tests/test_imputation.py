"""Gaps filled: what is told of missing cells, and that nothing else changes."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import decimal
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tabmoco
from tabmoco import PretrainConfig, RowModel
from tabmoco.config import EncoderConfig, ObjectiveConfig, OptimizeConfig
from tabmoco.errors import SchemaError
from tabmoco.imputation.arrow_values import gaps_of, instants_as, numbers_as, replaced, words_as
from tabmoco.imputation.blend import Blend, Ridge, Row, _weights
from tabmoco.neighbors.evidence import CellSpace
from tabmoco.tables.convert import to_instants, to_numbers, to_strings
from tabmoco.tables.notices import TabmocoWarning

pytestmark = pytest.mark.usefixtures("small_forests")

NOISE = 0.2
SMALL = PretrainConfig(
    encoder=EncoderConfig(d_token=4, d_block=32, n_blocks=1, d_embedding=32),
    objective=ObjectiveConfig(queue_size=128),
    optimize=OptimizeConfig(steps=80, batch_size=128),
)
FILLED = ("size", "weight", "count", "colour", "big", "opened")


def make_table(n_rows: int, seed: int = 0) -> pa.Table:
    """All columns but `note` hang on one hidden number."""
    generator = np.random.default_rng(seed)
    hidden = generator.normal(size=n_rows)
    days = np.datetime64("2024-01-01") + np.round(100 * hidden).astype(int)
    return pa.table(
        {
            "size": 3 * hidden + NOISE * generator.normal(size=n_rows),
            "weight": 50 - 4 * hidden + NOISE * generator.normal(size=n_rows),
            "count": np.clip(np.round(5 + 2 * hidden), 0, 10).astype(np.int32),
            "colour": np.array(["red", "green", "blue"])[np.digitize(hidden, [-0.5, 0.5])],
            "big": hidden > 0,
            "opened": days,
            "note": [f"a note on row {row} of {seed}" for row in range(n_rows)],
        }
    )


def with_gaps(table: pa.Table, rate: float = 0.3, seed: int = 0) -> tuple[pa.Table, dict[str, np.ndarray]]:
    """The table without some of its cells, and which are gone."""
    generator = np.random.default_rng(seed)
    hidden = {name: generator.random(table.num_rows) < rate for name in table.column_names}
    columns = [pc.if_else(pa.array(hidden[field.name]), None, table[field.name]) for field in table.schema]
    return pa.table(columns, schema=table.schema), hidden


def impute(model: RowModel, table: object, **options: bool) -> pa.Table:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TabmocoWarning)
        return model.impute(table, **options)


@pytest.fixture(scope="module")
def model() -> RowModel:
    table, _ = with_gaps(make_table(600), 0.1, seed=3)
    return tabmoco.pretrain(table, SMALL)


@pytest.fixture(scope="module")
def fresh() -> pa.Table:
    """Rows that the model never saw."""
    return make_table(600, seed=1)


# ---------------------------------------------------------------- what is told


def rmse(found: pa.ChunkedArray, true: pa.ChunkedArray, hidden: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(found.to_numpy() - true.to_numpy())[hidden])))


@pytest.mark.parametrize(("column", "slope"), [("size", 3), ("weight", 4)])
def test_numbers_are_recovered_to_about_the_noise(model, fresh, column, slope):
    """The weight tells the size but for the noise of both; with three in ten cells missing it is missing itself."""
    gaps, hidden = with_gaps(fresh)
    error = rmse(impute(model, gaps)[column], fresh[column], hidden[column])
    assert error < 0.3 * slope  # the mean errs by the slope
    floor = NOISE * np.hypot(1, 3 / 4 if column == "size" else 4 / 3)
    alone = {name: np.zeros(fresh.num_rows, bool) for name in fresh.column_names} | {column: hidden[column]}
    columns = [pc.if_else(pa.array(alone[field.name]), None, fresh[field.name]) for field in fresh.schema]
    error = rmse(impute(model, pa.table(columns, schema=fresh.schema))[column], fresh[column], hidden[column])
    assert error < 2 * floor


def test_categories_and_truth_values_are_recovered(model, fresh):
    gaps, hidden = with_gaps(fresh)
    filled = impute(model, gaps)
    for column in ("colour", "big"):
        right = pc.equal(filled[column], fresh[column]).to_numpy()[hidden[column]]
        assert right.mean() > 0.85


def test_times_are_recovered_to_the_day(model, fresh):
    gaps, hidden = with_gaps(fresh)
    found = impute(model, gaps)["opened"].to_numpy().astype(np.int64)
    true = fresh["opened"].to_numpy().astype(np.int64)
    assert np.abs(found - true)[hidden["opened"]].mean() < 30  # days; the mean errs by 80


def test_whole_numbers_stay_whole_and_within_what_was_seen(model, fresh):
    gaps, hidden = with_gaps(fresh)
    found = impute(model, gaps)["count"]
    assert found.type == pa.int32() and 0 <= pc.min(found).as_py() <= pc.max(found).as_py() <= 10
    decimal_numbers = gaps.set_column(2, "count", gaps["count"].cast(pa.float64()))
    told = impute(model, decimal_numbers)["count"].to_numpy()
    assert (told == np.rint(told)).all() and hidden["count"].any()


def test_decimal_numbers_that_are_all_whole_stay_whole():
    """As pandas gives integers with gaps."""
    table = make_table(120).select(["size", "count"])
    table = table.set_column(1, "count", table["count"].cast(pa.float64()))
    model = tabmoco.pretrain(table, dataclasses.replace(SMALL, optimize=OptimizeConfig(steps=2)))
    filled = model.impute(with_gaps(table)[0])
    told, sizes = filled["count"].to_numpy(), filled["size"].to_numpy()
    assert (told == np.rint(told)).all() and (sizes != np.rint(sizes)).all()


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_nine_in_ten_true_numbers_lie_in_the_range(model, fresh, rate):
    gaps, hidden = with_gaps(fresh, rate)
    filled = impute(model, gaps, uncertainty=True)
    inside = []
    for column in ("size", "weight"):
        low, high = (filled[column + end].to_numpy() for end in ("_low", "_high"))
        true, there = fresh[column].to_numpy(), hidden[column]
        inside.append(((low <= true) & (true <= high))[there])
        told = filled[column].to_numpy()
        assert ((low <= told) & (told <= high))[there].all()
    assert 0.8 <= np.concatenate(inside).mean() <= 0.97


def test_confidence_is_about_the_share_that_is_right(model, fresh):
    gaps, hidden = with_gaps(fresh, 0.5)
    filled = impute(model, gaps, uncertainty=True)
    there = hidden["colour"]
    right = pc.equal(filled["colour"], fresh["colour"]).to_numpy()[there]
    confidence = filled["colour_confidence"].to_numpy()[there]
    assert ((confidence >= 0) & (confidence <= 1)).all()
    assert abs(confidence.mean() - right.mean()) < 0.1
    assert right[confidence > np.median(confidence)].mean() > right[confidence <= np.median(confidence)].mean()


def test_uncertainty_stands_behind_the_table_and_is_null_where_cells_were_given(model, fresh):
    gaps, hidden = with_gaps(fresh)
    filled = impute(model, gaps, uncertainty=True)
    added = [
        *(f"{name}_{end}" for name in ("size", "weight", "count") for end in ("low", "high")),
        "colour_confidence",
        "big_confidence",
        "opened_low",
        "opened_high",
    ]
    assert filled.column_names == [*fresh.column_names, *added]
    assert filled.select(fresh.column_names).equals(impute(model, gaps))
    for name in added:
        base, _, end = name.rpartition("_")
        assert filled[name].type == (pa.float64() if end == "confidence" else fresh[base].type)
        np.testing.assert_array_equal(filled[name].is_null().to_numpy(), ~hidden[base])


def test_a_column_named_like_an_uncertainty_is_refused(model, fresh):
    taken = fresh.append_column("size_low", fresh["size"])
    with pytest.raises(SchemaError, match="'size_low'"):
        impute(model, taken, uncertainty=True)
    assert impute(model, taken).equals(taken)


# ---------------------------------------------------------------- that nothing else changes


def test_a_table_without_gaps_comes_back_as_it_is(model, fresh):
    assert impute(model, fresh).equals(fresh)
    assert impute(model, fresh.slice(0, 0)).equals(fresh.slice(0, 0))


NUMBERS = [pa.int8(), pa.uint16(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(12, 3), pa.string()]
WORDS = [
    pa.string(),
    pa.large_string(),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
]
TRUTHS = [pa.bool_(), pa.uint8(), pa.float32()]
TIMES = [pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ns", "Asia/Tokyo"), pa.string()]


def cell_values(arrow_type: pa.DataType) -> st.SearchStrategy:
    if arrow_type in (pa.float32(), pa.float64()):
        return st.floats(allow_nan=True, width=32)
    if arrow_type == pa.string():
        return st.integers(-9, 9).map(str)
    if pa.types.is_decimal(arrow_type):
        return st.decimals(-9, 9, places=3)
    return st.integers(0, 100)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    n_rows = draw(st.integers(1, 6))

    def column(arrow_type: pa.DataType, values: st.SearchStrategy) -> pa.Array:
        cells = draw(st.lists(st.none() | values, min_size=n_rows, max_size=n_rows))
        if pa.types.is_dictionary(arrow_type):
            encoded = pa.array(cells, arrow_type.value_type).dictionary_encode()
            return pa.DictionaryArray.from_arrays(encoded.indices.cast(arrow_type.index_type), encoded.dictionary)
        return pa.array(cells, arrow_type)

    def any_of(types: list[pa.DataType]) -> pa.DataType:
        return draw(st.sampled_from(types))

    size, weight, truth, time = any_of(NUMBERS), any_of(NUMBERS), any_of(TRUTHS), any_of(TIMES)
    instants = st.datetimes(dt.datetime(2023, 1, 1), dt.datetime(2025, 1, 1))
    if time == pa.string():
        instants = instants.map(lambda instant: instant.isoformat(timespec="seconds"))
    elif time == pa.date32() or time == pa.date64():
        instants = instants.map(lambda instant: instant.date())
    arrays = {
        "extra": column(pa.list_(pa.int8()), st.lists(st.integers(0, 9), max_size=2)),
        "opened": column(time, instants.map(lambda i: i.replace(microsecond=0) if isinstance(i, dt.datetime) else i)),
        "size": column(size, cell_values(size)),
        "big": column(truth, st.booleans().map(bool if truth == pa.bool_() else int)),
        "weight": column(weight, cell_values(weight)),
        "colour": column(any_of(WORDS), st.sampled_from(["red", "blue", "never seen"])),
        "note": column(pa.string(), st.text(max_size=5)),
        "count": column(any_of([pa.int8(), pa.int64()]), st.integers(0, 10)),
    }
    return pa.table(arrays)


def cell_bytes(column: pa.ChunkedArray, rows: np.ndarray) -> list[object]:
    """The cells so that equal means equal bit for bit."""
    array = column.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    array = array.take(pa.array(rows, pa.int64()))
    if pa.types.is_floating(array.type):
        return array.to_numpy(zero_copy_only=False).tobytes(), array.is_null().to_pylist()
    return array.to_pylist()


@settings(max_examples=40)
@given(table=tables())
def test_only_gaps_change_and_no_type_does(model, table):
    filled = impute(model, table)
    assert filled.schema.equals(table.schema)
    for name in table.column_names:
        gaps = gaps_of(table[name].combine_chunks())
        kept = np.arange(len(gaps)) if name in ("extra", "note") else np.flatnonzero(~gaps)
        assert cell_bytes(filled[name], kept) == cell_bytes(table[name], kept)
        if name in FILLED:
            assert not gaps_of(filled[name].combine_chunks()).any()
    filled.validate(full=True)


def test_what_fills_a_row_does_not_depend_on_the_rows_beside_it(model, fresh):
    gaps, _ = with_gaps(fresh.slice(0, 60), 0.4)
    whole = impute(model, gaps, uncertainty=True)
    parts = pa.concat_tables([impute(model, gaps.slice(row, 1), uncertainty=True) for row in range(20)])
    for name in whole.column_names:
        one, other = (table[name].to_pylist() for table in (whole.slice(0, 20), parts))
        if pa.types.is_floating(whole[name].type):
            np.testing.assert_allclose(np.array(one, float), np.array(other, float), rtol=1e-4, atol=1e-4)
        elif name not in ("opened", "opened_low", "opened_high"):
            assert one == other
    with pytest.warns(TabmocoWarning, match="'note'"):
        batches = list(model.filling(gaps).batches(batch_rows=7))
    assert [len(batch) for batch in batches] == [7] * 8 + [4]
    assert pa.Table.from_batches(batches)["colour"].to_pylist() == whole["colour"].to_pylist()


def test_columns_come_in_any_order_and_unknown_ones_pass_through(model, fresh):
    gaps, _ = with_gaps(fresh.slice(0, 9))
    nested = pa.array([[row, None] for row in range(9)])
    shuffled = gaps.select(gaps.column_names[::-1]).add_column(2, "more", nested)
    twin = copy.deepcopy(model)
    twin.preprocessor.forget_notices()
    with pytest.warns(TabmocoWarning) as caught:
        filled = twin.impute(shuffled)
    assert "Columns unknown to the model are ignored: 'more'." in map(str, (one.message for one in caught))
    assert filled.schema.equals(shuffled.schema) and filled["more"].equals(shuffled["more"])
    assert filled.drop_columns(["more"]).select(fresh.column_names).equals(impute(model, gaps))


def test_texts_stay_empty_with_a_notice(model, fresh):
    gaps, hidden = with_gaps(fresh.slice(0, 50))
    filling = model.filling(gaps)
    with pytest.warns(TabmocoWarning, match=f"{hidden['note'].sum()} gaps in 'note', texts"):
        filled = filling.table()
    assert filled["note"].equals(gaps["note"])
    assert filling.n_left == {"note": hidden["note"].sum()}
    assert filling.n_filled == {name: hidden[name].sum() for name in FILLED}


def test_an_id_column_stands_first_and_is_not_filled(model, fresh):
    gaps, _ = with_gaps(fresh.slice(0, 5))
    named = gaps.append_column("ticket", pa.array(["a", None, "c", "d", "e"]))
    filled = impute(model, tabmoco.open_table(named, id_column="ticket"))
    assert filled.column_names == ["ticket", *fresh.column_names]
    assert filled["ticket"].equals(named["ticket"])


# ---------------------------------------------------------------- rows and columns out of the ordinary


def test_a_row_and_a_column_without_any_cell_are_filled(model, fresh):
    nothing = pa.table([pa.nulls(3, field.type) for field in fresh.schema], schema=fresh.schema)
    filled = impute(model, nothing)
    assert all(filled[name].null_count == 0 for name in FILLED)
    np.testing.assert_allclose(filled["size"].to_numpy(), filled["size"][0].as_py(), rtol=1e-4)
    assert filled["colour"].to_pylist() == 3 * [filled["colour"][0].as_py()]
    assert abs(filled["size"][0].as_py()) < 2 and filled["opened"].type == pa.date32()
    column = fresh.slice(0, 50).set_column(0, "size", pa.nulls(50))
    filled = impute(model, column)
    assert filled["size"].type == pa.float64()
    assert np.corrcoef(filled["size"].to_numpy(), fresh["size"].to_numpy()[:50])[0, 1] > 0.9


def test_unseen_categories_and_infinite_numbers_elsewhere_do_no_harm(model, fresh):
    rows = fresh.slice(0, 40)
    gaps = rows.set_column(3, "colour", pa.array(["violet"] * 40)).set_column(0, "size", pa.nulls(40, pa.float64()))
    filled = impute(model, gaps)
    assert filled["colour"].to_pylist() == ["violet"] * 40
    assert np.corrcoef(filled["size"].to_numpy(), rows["size"].to_numpy())[0, 1] > 0.9
    gaps = gaps.set_column(1, "weight", pa.array([np.inf] * 40))
    told = impute(model, gaps)["size"].to_numpy()
    assert np.isfinite(told).all()


def test_nan_is_a_gap_and_infinity_is_none(model, fresh):
    rows = fresh.slice(0, 3).set_column(0, "size", pa.array([np.nan, np.inf, 1.0]))
    told = impute(model, rows)["size"].to_pylist()
    assert np.isfinite(told[0]) and told[1:] == [np.inf, 1.0]


def test_without_a_decoder_neighbours_and_regression_fill_alone(fresh):
    config = SMALL.override(["objective.weights={moco = 1.0}", "optimize.steps=30"])
    model = tabmoco.pretrain(make_table(300), config)
    assert model.decoder is None
    gaps, hidden = with_gaps(fresh, 0.2)
    filled = impute(model, gaps)
    assert rmse(filled["size"], fresh["size"], hidden["size"]) < 0.5 * 3
    assert pc.equal(filled["colour"], fresh["colour"]).to_numpy()[hidden["colour"]].mean() > 0.6


def test_a_saved_model_fills_alike(model, fresh, tmp_path):
    gaps, _ = with_gaps(fresh.slice(0, 30))
    model.save(tmp_path / "model")
    assert impute(RowModel.load(tmp_path / "model", device="cpu"), gaps).equals(impute(model, gaps))
    assert impute(copy.deepcopy(model), gaps).equals(impute(model, gaps))


def test_reference_rows_are_restored(model):
    vectors = torch.from_numpy(model.reference.indexes["cells"].vectors)
    cells = model.cell_space.cells_at(vectors)
    torch.testing.assert_close(model.cell_space.standard(cells, model.scalings(cells)), vectors)


def test_codes_of_many_values_are_restored(any_layout, draw_cells, build_encoder):
    encoder = build_encoder(any_layout)
    space = CellSpace(any_layout, encoder.columns.number.knots.numpy())
    cells = draw_cells(any_layout, 50)
    restored = space.cells_at(space.standard(cells, encoder.columns.number.scalings(cells.number)))
    torch.testing.assert_close(restored.number, cells.number)
    assert torch.equal(restored.code, cells.code) and torch.equal(restored.missing, cells.missing)


# ---------------------------------------------------------------- blends


def draw_rows(n_rows: int, n_traits: int = 4, seed: int = 0) -> Row:
    """An embedding and cells that agree, and an expectation of 0."""
    traits = torch.randn(n_rows, n_traits, generator=torch.Generator().manual_seed(seed))
    return Row(traits, traits, torch.zeros(n_rows, 1))


def test_the_error_told_of_a_row_is_the_one_without_it(monkeypatch):
    penalty = 0.1
    monkeypatch.setattr("tabmoco.imputation.blend.PENALTIES", (penalty,))
    generator = torch.Generator().manual_seed(0)
    traits = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    target = traits[:, :1] + 0.5 * torch.randn(40, 1, generator=generator, dtype=torch.float64)
    whole, errors = Ridge.fit(traits, target)
    standardised = (traits - whole.location) / whole.scale
    for left_out in (0, 7):
        kept = torch.arange(40) != left_out
        x, y = standardised[kept], target[kept]
        x_mean, y_mean = x.mean(0), y.mean(0)
        gram = (x - x_mean).T @ (x - x_mean) + penalty * 40 * torch.eye(3)
        slope = torch.linalg.solve(gram, (x - x_mean).T @ (y - y_mean))
        torch.testing.assert_close(
            errors[left_out], target[left_out] - y_mean - (standardised[left_out] - x_mean) @ slope
        )


@pytest.mark.parametrize("n_traits", [5, 200])
def test_what_traits_do_not_tell_is_told_by_the_mean(n_traits):
    truth = 7 + torch.randn(100, 1, generator=torch.Generator().manual_seed(1))
    blend = Blend.fit(draw_rows(100, n_traits), truth)
    told, spread = blend(draw_rows(50, n_traits, seed=1))
    assert (told - 7).abs().mean() < 0.5 and 0.5 < spread.mean() < 1.2
    assert blend.weights[1] < 0.01  # of an expectation that errs by 7


def test_what_traits_tell_is_told():
    rows, other = draw_rows(300), draw_rows(50, seed=1)
    told, spread = Blend.fit(rows, rows.cells[:, :1])(other)
    assert (told - other.cells[:, :1]).abs().mean() < 0.05 and spread.mean() < 0.05


def test_a_perfect_expectation_is_believed():
    rows = draw_rows(200)
    truth = torch.randn(200, 1, generator=torch.Generator().manual_seed(1))
    blend = Blend.fit(dataclasses.replace(rows, expected=truth), truth)
    assert blend.weights[1] + blend.weights[3] > 0.99 and blend.error.abs().max() < 1e-6


def test_an_expectation_that_remembers_its_rows_is_believed_less():
    """It errs by 0.9 where the mean errs by 1, but by a quarter more in other rows."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(500, 1, generator=generator)
    expected = 0.19 * truth + 0.39 * torch.randn(500, 1, generator=generator)
    rows = Row(torch.zeros(500, 2), torch.zeros(500, 2), expected)
    plain, wary = (Blend.fit(rows, truth, remembered=share) for share in (0.0, 0.25))
    assert plain.weights[0] < 0.2 < 0.4 < wary.weights[0]
    assert wary.spread.mean() > plain.spread.mean()


def test_a_model_knows_how_often_it_saw_its_rows(model):
    assert model.imputer.epochs == pytest.approx(80 * 128 / 540)


def test_weights_are_those_of_the_smallest_square_error():
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(5_000, 1, generator=generator, dtype=torch.float64)
    errors = {way: shared + (way + 1) * torch.randn_like(shared) for way in (0, 1)}
    weights = _weights(errors)
    assert weights.sum() == pytest.approx(1)
    assert weights[0].item() == pytest.approx(0.8, abs=0.03)  # variances of 1 and 4


@pytest.mark.parametrize("n_rows", [0, 1, 5])
def test_from_a_few_rows_nothing_is_learned(n_rows):
    blend = Blend.fit(draw_rows(n_rows), torch.ones(n_rows, 1))
    expected = torch.arange(4.0).unsqueeze(1)
    told, _ = blend(dataclasses.replace(draw_rows(4), expected=expected))
    assert torch.equal(told, expected.double())


# ---------------------------------------------------------------- Arrow


@pytest.mark.parametrize(
    "array",
    [
        pa.array([0, 255], pa.uint8()),
        pa.array([-(2**40), 2**40], pa.int64()),
        pa.array([np.float16(0.5), np.float16(-1.25)], pa.float16()),
        pa.array([decimal.Decimal("1.50"), decimal.Decimal("-2.25")], pa.decimal128(5, 2)),
        pa.array([True, False]),
        pa.array(["1.5", "-7"]),
        pa.array([dt.timedelta(seconds=90), dt.timedelta(days=-1)], pa.duration("ms")),
        pa.array([dt.time(0, 0, 1), dt.time(23, 59, 59)], pa.time32("s")),
        pa.array([dt.time(0, 0, 1), dt.time(23, 59, 59)], pa.time64("ns")),
        pa.array([1, 2], pa.int16()).dictionary_encode(),
        pa.array([dt.date(1999, 12, 31), dt.date(2024, 2, 29)]),
    ],
)
def test_numbers_are_written_as_they_are_read(array):
    assert numbers_as(to_numbers(array, "x"), array.type).to_pylist() == array.to_pylist()


@pytest.mark.parametrize(
    "arrow_type", [pa.int8(), pa.uint64(), pa.int64(), pa.float32(), pa.decimal128(4, 1), pa.time32("s")]
)
def test_numbers_beyond_a_type_become_its_last(arrow_type):
    low, high = numbers_as(np.array([-1e300, 1e300]), arrow_type)
    assert low.is_valid and high.is_valid and str(low) != str(high)


INSTANTS = [dt.datetime(1969, 7, 20, 20, 17), dt.datetime(2024, 2, 29)]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(INSTANTS, pa.timestamp("ns")),
        pa.array(INSTANTS, pa.timestamp("s", "America/New_York")),
        pa.array([instant.date() for instant in INSTANTS], pa.date32()),
        pa.array([instant.date() for instant in INSTANTS], pa.date64()),
        pa.array(["1969-07-20T20:17:00", "2024-02-29"]),
        pa.array(INSTANTS, pa.timestamp("ms")).dictionary_encode(),
    ],
)
def test_instants_are_written_as_they_are_read(array):
    seconds = to_instants(array, "x").astype(np.int64) / 1e6
    assert instants_as(seconds, array.type).to_pylist() == array.to_pylist()


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a", "ü"], pa.large_string()),
        pa.array([3, 70], pa.int16()),
        pa.array([3.0, 0.5]),
        pa.array([True, False]),
        pa.array([dt.date(2024, 1, 1)]),
        pa.array([dt.datetime(2024, 1, 1, 12)], pa.timestamp("us", "UTC")),
        pa.array([decimal.Decimal("1.50")]),
        pa.array([dt.time(1, 2, 3)], pa.time32("s")),
        pa.array(["a"]).dictionary_encode(),
    ],
)
def test_words_are_written_as_they_are_read(array):
    words = to_strings(array, "x").cast(pa.string()).to_pylist()
    assert words_as(words, array.type).to_pylist() == array.to_pylist()


def test_a_word_that_a_type_cannot_hold_is_null():
    assert words_as(["7", "many"], pa.int8()).to_pylist() == [7, None]


def test_a_dictionary_takes_new_words_as_long_as_it_has_room():
    array = pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.int8()), pa.array(["a", "b"]))
    filled = replaced(array, np.array([1]), words_as(["c"], array.type), column="x")
    assert filled.type == array.type and filled.to_pylist() == ["a", "c", "b"]
    full = pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), pa.array(list(map(str, range(128)))))
    with pytest.raises(SchemaError, match="'x' has a dictionary of int8"):
        replaced(full, np.array([1]), words_as(["c"], full.type), column="x")
