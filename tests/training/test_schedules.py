"""The learning rate's schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.training.schedules import warmup_then_cosine

SHARES = st.floats(0, 1)


def test_a_rise_to_1_then_half_a_cosine_to_0():
    assert warmup_then_cosine(0.0, warmup=0.2) == 0.0
    assert warmup_then_cosine(0.1, warmup=0.2) == pytest.approx(0.5)
    assert warmup_then_cosine(0.2, warmup=0.2) == pytest.approx(1.0)
    assert warmup_then_cosine(0.4, warmup=0.2) == pytest.approx(0.5 * (1 + 2**-0.5))
    assert warmup_then_cosine(0.6, warmup=0.2) == pytest.approx(0.5)
    assert warmup_then_cosine(1.0, warmup=0.2) == pytest.approx(0.0)


@given(SHARES, SHARES, SHARES)
def test_it_rises_then_falls_and_stays_within_0_and_1(warmup, a, b):
    early, late = sorted((a, b))
    first, second = warmup_then_cosine(early, warmup=warmup), warmup_then_cosine(late, warmup=warmup)
    assert 0.0 <= first <= 1.0
    assert 0.0 <= second <= 1.0
    if late < warmup:
        assert first <= second
    elif early >= warmup:
        assert first >= second


def test_without_warmup_it_starts_at_the_peak_and_with_nothing_else_ends_there():
    assert warmup_then_cosine(0.0, warmup=0.0) == 1.0
    assert warmup_then_cosine(0.9, warmup=1.0) == pytest.approx(0.9)
    assert warmup_then_cosine(1.0, warmup=1.0) == pytest.approx(1.0)
