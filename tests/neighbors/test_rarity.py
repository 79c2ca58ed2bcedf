"""How rare a row's rarest level is: counted slowly, for levels seen and unseen and for missing cells."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.neighbors.rarity import Rarity


def slow_surprise(reference: list[int], level: int) -> float:
    """Minus the logarithm of the share of cells, this one among them, whose level is at most as frequent."""
    there = [other for other in reference if other]
    at_most = sum(there.count(other) <= there.count(level) for other in there)
    return -np.log((1 + at_most) / (1 + len(there)))


@given(st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1, max_size=40))
def test_surprise_is_that_of_slow_counting(reference):
    rarity = Rarity.fit(np.array(reference, dtype=np.float32), 10)
    asked = np.array(np.meshgrid([0, 1, 4, 9], [0, 2, 6], [0, 3, 8])).reshape(3, -1).T
    slow = np.array(
        [
            [slow_surprise([row[slot] for row in reference], level) if level else 0.0 for slot, level in enumerate(row)]
            for row in asked
        ]
    )
    assert rarity(asked.astype(np.float32)) == pytest.approx(slow.max(1), abs=1e-6)
    blame = rarity.blame(asked.astype(np.float32))
    assert (blame >= 0).all() and blame.max(1) == pytest.approx(slow.max(1), abs=1e-6)
    assert (blame[slow < slow.max(1, keepdims=True) - 1e-5] == 0).all()


def test_the_rarer_a_level_the_greater_the_surprise_and_unseen_is_the_rarest():
    ranks = np.repeat([1.0, 2.0, 3.0], [90, 9, 1])[:, None]
    common, seldom, once, unseen, missing = Rarity.fit(ranks, 5)(np.array([[1.0], [2.0], [3.0], [4.0], [0.0]]))
    assert missing == common == 0.0
    assert (seldom, once, unseen) == pytest.approx((-np.log(11 / 101), -np.log(2 / 101), -np.log(1 / 101)))


def test_equally_frequent_levels_surprise_nobody_and_no_slot_is_no_surprise():
    even = Rarity.fit(np.repeat([1.0, 2.0, 3.0, 4.0], 5)[:, None], 5)
    assert even(np.array([[1.0], [4.0]])).tolist() == [0.0, 0.0]
    none = Rarity.fit(np.zeros((5, 0)), 1)
    assert none(np.zeros((2, 0))).tolist() == [0.0, 0.0] and none.blame(np.zeros((2, 0))).shape == (2, 0)
