"""Cells in words: what stands in the table, and what a decoder's numbers and logits mean there."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.config import DataConfig
from tabmoco.tables.cell_words import UNKNOWN, expected_words, found_words
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.source import TableBatch, open_table

N_ROWS = 40
TABLE = pa.table(
    {
        "amount": [1.5 + row for row in range(N_ROWS)],
        "count": [10 * row for row in range(N_ROWS)],
        "wait": pa.array([60 * row for row in range(N_ROWS)], pa.duration("s")),
        "opened": pa.array([dt.datetime(2024, 1, 1) + row * dt.timedelta(days=1, hours=5) for row in range(N_ROWS)]),
        "city": [("Oslo", "Rome", "Riga")[row % 3] for row in range(N_ROWS - 2)] + ["Cork", None],
        "grade": pa.array([(7, 8)[row % 2] for row in range(N_ROWS)], pa.int64()),
        "fragile": [row % 2 == 0 for row in range(N_ROWS)],
        "note": [f"a thing of {row} kilos,\n to be sent" for row in range(N_ROWS)],
    }
)
CONFIG = DataConfig(kinds={"note": "text", "grade": "category", "count": "number"}, text_width=4)


@pytest.fixture(scope="module")
def preprocessor() -> Preprocessor:
    return Preprocessor.fit(open_table(TABLE), CONFIG)


@pytest.fixture(scope="module")
def batch() -> TableBatch:
    (batch,) = open_table(TABLE).batches()
    return batch


def place(preprocessor: Preprocessor, *names: str) -> np.ndarray:
    """Where columns stand in the layout."""
    return np.array([preprocessor.layout.columns.index(name) for name in names])


def say(
    preprocessor: Preprocessor,
    name: str,
    *,
    number: float = 0.0,
    high: float | None = None,
    code: int = 0,
    logit: float = 50.0,
) -> str | None:
    """What is expected in one column if all numbers lie from `number` to `high`, at `number` if none is given, and the
    likeliest codes of the decoder are the given ones."""
    layout = preprocessor.layout
    logits = [torch.zeros(1, n_codes) for n_codes in layout.cardinalities]
    for slot in logits:
        slot[0, min(code, slot.shape[1] - 1)] = logit
    ends = [torch.full((1, layout.n_numbers), end) for end in (number, number if high is None else high)]
    return expected_words(preprocessor, place(preprocessor, name), *ends, logits)[0]


# ---------------------------------------------------------------- found


def test_found_cells_are_written_as_they_stand_in_the_table(preprocessor, batch):
    row = [0, 3, 2, 1, 38, 39, 4, 0, 5]
    names = ["amount", "count", "wait", "opened", "city", "city", "grade", "fragile", "note"]
    assert found_words(preprocessor, batch, np.array(row), place(preprocessor, *names)) == [
        "1.5", "30", "00:02:00", "2024-01-02T05:00", "Cork", "(missing)", "7", "true",
        "a thing of 5 kilos, to be sent",
    ]  # fmt: skip


def test_cells_may_be_asked_for_in_any_order_and_again(preprocessor, batch):
    generator = np.random.default_rng(0)
    row = generator.integers(0, N_ROWS, 200)
    column = generator.integers(0, preprocessor.layout.n_columns, 200)
    together = found_words(preprocessor, batch, row, column)
    alone = [found_words(preprocessor, batch, row[[n]], column[[n]])[0] for n in range(200)]
    assert together == alone
    assert found_words(preprocessor, batch, np.array([], np.int64), np.array([], np.int64)) == []


def test_a_batch_with_other_types_and_columns_is_read_as_it_is(preprocessor):
    other = pa.table({"surplus": [1, 2], **{name: pa.nulls(2) for name in TABLE.column_names[::-1]}})
    other = other.set_column(other.column_names.index("city"), "city", pa.array(["Paris", "Oslo"]).dictionary_encode())
    (batch,) = open_table(other).batches()
    words = found_words(preprocessor, batch, np.array([0, 1, 1]), place(preprocessor, "city", "city", "amount"))
    assert words == ["Paris", "Oslo", "(missing)"]


# ---------------------------------------------------------------- expected


@given(row=st.integers(0, N_ROWS - 1))
def test_an_encoded_number_is_expected_as_what_it_was(preprocessor, row):
    cells = preprocessor.transform(TABLE.slice(row, 1))
    layout = preprocessor.layout
    for name in ("amount", "count", "wait", "opened"):
        slot = layout.number_owner.index(layout.columns.index(name))
        found = found_words(
            preprocessor, TableBatch(np.arange(1), None, TABLE.slice(row, 1)), np.array([0]), place(preprocessor, name)
        )
        expected = say(preprocessor, name, number=float(cells.number[0, slot]))
        if name == "opened":
            gap = dt.datetime.fromisoformat(expected) - dt.datetime.fromisoformat(found[0])
            assert abs(gap) <= dt.timedelta(seconds=60)  # of 48 days, in single precision
        else:
            assert expected == found[0]


@pytest.mark.parametrize("number", [-1e30, -50.0, 50.0, 1e30])
def test_an_expected_number_stays_within_the_range_of_training(preprocessor, number):
    low = number < 0
    assert say(preprocessor, "amount", number=number) == ("1.5" if low else "40.5")
    assert say(preprocessor, "count", number=number) == ("0" if low else "390")
    assert say(preprocessor, "wait", number=number) == ("00:00:00" if low else "00:39:00")


def test_an_expected_number_has_the_digits_it_is_worth():
    generator = np.random.default_rng(0)
    table = pa.table(
        {
            "small": 1e-3 * generator.normal(size=50),
            "plain": generator.normal(size=50),
            "large": 1e6 * generator.normal(size=50),
        }
    )
    preprocessor = Preprocessor.fit(open_table(table), DataConfig())
    for name, longest in (("small", 5), ("plain", 2), ("large", 0)):
        word = say(preprocessor, name, number=0.123456)
        value, spread = float(word), np.ptp(table[name].to_numpy())
        exact = preprocessor.decode_number(preprocessor.layout.columns.index(name), 0.123456)
        assert value == pytest.approx(exact, abs=spread / 100)
        assert len(f"{value:f}".rstrip("0").partition(".")[2]) <= longest, word


@pytest.mark.parametrize(
    "values",
    [[-1.7e308, 1.7e308, 0.0], [5e-324, 1e-323, 0.0], [1e300, 1e300, 2e300], [-1e-310, 1e-310, 0.0]],
    ids=["the widest range", "the narrowest", "huge", "denormal"],
)
def test_numbers_of_any_size_can_be_said(values):
    preprocessor = Preprocessor.fit(open_table(pa.table({"amount": values * 10})), DataConfig())
    for number in (-100.0, 0.0, 0.5, 100.0):
        word = say(preprocessor, "amount", number=number)
        assert min(values) <= float(word) <= max(values)


def test_whole_numbers_are_expected_to_be_whole(preprocessor):
    for number in np.linspace(-2, 2, 21):
        assert say(preprocessor, "count", number=float(number)).isdigit()


@given(first=st.floats(-2, 2), width=st.floats(0, 3))
def test_two_ends_make_a_range_of_the_words_of_each(preprocessor, first, width):
    for name in ("amount", "count", "wait", "opened"):
        low, high = (say(preprocessor, name, number=end) for end in (first, first + width))
        range_said = say(preprocessor, name, number=first, high=first + width)
        assert range_said == (low if low == high else f"{low} … {high}"), name


def test_a_range_is_one_value_if_both_ends_read_the_same(preprocessor):
    assert say(preprocessor, "amount", number=-1e30, high=1e30) == "1.5 … 40.5"
    assert say(preprocessor, "amount", number=50.0, high=60.0) == "40.5"  # both lie beyond what was seen
    assert say(preprocessor, "count", number=0.0, high=1e-4) == say(preprocessor, "count", number=0.0)
    assert say(preprocessor, "wait", number=-50.0, high=50.0) == "00:00:00 … 00:39:00"
    low, dash, high = say(preprocessor, "opened", number=-0.5, high=0.5).partition(" … ")
    assert dash and dt.datetime.fromisoformat(low) < dt.datetime.fromisoformat(high)


@pytest.mark.parametrize(
    ("logit", "words"), [(50.0, "Oslo (100%)"), (np.log(28), "Oslo (90%)"), (np.log(4), "Oslo (57%)")]
)
def test_the_likeliest_category_comes_first_with_its_probability(preprocessor, logit, words):
    # Oslo and Rome are seen 13 times, Riga 12 times, and Cork, seen once, shares the code of unknown values.
    first, _, second = say(preprocessor, "city", code=1, logit=float(logit)).partition(", ")
    assert first == words
    assert second.endswith("(14%)") if logit == np.log(4) else second == ""


def test_of_equally_likely_categories_two_are_named(preprocessor):
    assert [word[-6:] for word in say(preprocessor, "city", logit=0.0).split(", ")] == [" (25%)"] * 2


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.098, "Rome (88%)"),
        (0.102, "Rome (88%), Oslo (10%)"),
        (0.4, "Rome (58%), Oslo (40%)"),
        (0.7, "Oslo (70%), Rome (28%)"),
    ],
)
def test_the_second_category_is_named_from_ten_percent_on(preprocessor, share, words):
    layout = preprocessor.layout
    slot = layout.code_owner.index(place(preprocessor, "city")[0])
    code = {preprocessor.decode_code(slot, code): code for code in range(layout.cardinalities[slot])}
    logits = [torch.zeros(1, n_codes) for n_codes in layout.cardinalities]
    logits[slot][0, :] = np.log(0.01)
    logits[slot][0, code["Oslo"]], logits[slot][0, code["Rome"]] = np.log(share), np.log(0.98 - share)
    number = torch.zeros(1, layout.n_numbers)
    assert expected_words(preprocessor, place(preprocessor, "city"), number, number, logits) == [words]


def test_a_rare_value_is_not_expected_by_name(preprocessor):
    assert say(preprocessor, "city", code=0) == f"{UNKNOWN} (100%)"


def test_booleans_numbers_as_categories_and_texts(preprocessor):
    assert say(preprocessor, "fragile", code=1) == "false (100%)"
    assert say(preprocessor, "fragile", code=2) == "true (100%)"
    assert {say(preprocessor, "grade", code=1), say(preprocessor, "grade", code=2)} == {"7 (100%)", "8 (100%)"}
    assert say(preprocessor, "note") is None


def test_a_time_is_said_as_an_instant_not_as_its_weekday(preprocessor):
    instant = dt.datetime.fromisoformat(say(preprocessor, "opened", number=0.0, code=3))
    assert dt.datetime(2024, 1, 1) < instant < dt.datetime(2024, 2, 20)


def test_every_row_has_its_own_expectation(preprocessor):
    layout = preprocessor.layout
    generator = torch.Generator().manual_seed(0)
    number = torch.randn(60, layout.n_numbers, generator=generator)
    logits = [torch.randn(60, n_codes, generator=generator) for n_codes in layout.cardinalities]
    high = number + torch.rand(60, layout.n_numbers, generator=generator)
    column = np.random.default_rng(0).integers(0, layout.n_columns, 60)

    def say_of(rows: list[int]) -> list[str | None]:
        return expected_words(preprocessor, column[rows], number[rows], high[rows], [logit[rows] for logit in logits])

    together = say_of(list(range(60)))
    assert together == [say_of([row])[0] for row in range(60)]
    assert len(set(together)) > 30
    assert say_of([]) == []


def test_frames_and_arrow_tables_give_the_same_words(preprocessor):
    (batch,) = open_table(pd.DataFrame({name: TABLE[name].to_pandas() for name in TABLE.column_names})).batches()
    row = np.arange(N_ROWS)
    for name in ("amount", "count", "opened", "city", "fragile", "note"):
        column = np.repeat(place(preprocessor, name), N_ROWS)
        arrow = TableBatch(row, None, TABLE.combine_chunks().to_batches()[0])
        assert found_words(preprocessor, batch, row, column) == found_words(preprocessor, arrow, row, column)
