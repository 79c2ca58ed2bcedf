"""Damaged checkpoints: refused, or the very run they were."""

from __future__ import annotations

import pytest
from test_fuzzed_models import fuzz


@pytest.mark.parametrize("n_trials", [300, pytest.param(5_000, marks=pytest.mark.slow)])
def test_a_damaged_checkpoint_is_refused_or_not_different(tmp_path, n_trials):
    found = fuzz("fuzz_checkpoints.py", tmp_path, n_trials=n_trials)
    assert found["not_allowed"] == []
    assert found["n_trials"] == n_trials
    assert n_trials * 0.8 < found["n_refused"] <= n_trials
