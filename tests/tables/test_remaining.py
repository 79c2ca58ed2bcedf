"""All rows but some: positions, spans and draws as from a list of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.tables.remaining import RemainingRows


@st.composite
def tables(draw):
    n_table = draw(st.integers(1, 40))
    without = draw(st.sets(st.integers(0, n_table - 1)))
    rows = RemainingRows(n_table, np.array(sorted(without), dtype=np.int64))
    return rows, np.array([row for row in range(n_table) if row not in without], dtype=np.int64)


@given(tables())
def test_rows_are_numbered_as_they_stand_in_the_table(case):
    rows, listed = case
    assert len(rows) == len(listed)
    assert np.array_equal(rows.positions(np.arange(len(rows))), listed)
    if len(listed):
        assert np.array_equal(rows.positions(np.full((2, 2), len(rows) - 1)), np.full((2, 2), listed[-1]))


@given(tables(), st.integers(0, 40), st.integers(0, 40))
def test_a_span_holds_the_remaining_positions_in_it(case, start, length):
    rows, listed = case
    first = min(start, rows.n_table)
    last = min(first + length, rows.n_table)
    assert rows.span(first, last).tolist() == [row for row in listed if first <= row < last]


@given(tables(), st.integers(0, 50))
def test_drawn_rows_are_remaining_ones_none_twice(case, wanted):
    rows, listed = case
    drawn = rows.draw(wanted, np.random.default_rng(0)).tolist()
    assert len(drawn) == len(set(drawn)) == min(wanted, len(listed))
    assert set(drawn) <= set(listed.tolist())


def test_a_draw_from_very_many_rows_takes_no_room_for_all_of_them():
    rows = RemainingRows(10**15, np.array([7, 10**14]))
    drawn = rows.draw(1_000, np.random.default_rng(0))
    assert drawn.min() < 10**14 < drawn.max() < 10**15
