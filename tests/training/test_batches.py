"""Which rows a step uses."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.training.batches import BatchOrder, derive_seed

SIZES = st.integers(1, 40)


@given(n_rows=SIZES, batch_size=st.integers(1, 60), seed=st.integers(0, 2**63 - 1))
def test_every_epoch_is_a_permutation_of_the_rows(n_rows, batch_size, seed):
    order = BatchOrder(n_rows, batch_size, seed=seed)
    n_steps = 3 * n_rows // order.batch_size + 1
    batches = [order(step) for step in range(n_steps)]
    assert all(batch.shape == (min(batch_size, n_rows),) and batch.dtype == torch.int64 for batch in batches)
    stream = torch.cat(batches)
    for epoch in range(3):
        assert sorted(stream[epoch * n_rows : (epoch + 1) * n_rows].tolist()) == list(range(n_rows))


@given(n_rows=SIZES, batch_size=SIZES, seed=st.integers(0, 99), steps=st.lists(st.integers(0, 10_000), max_size=6))
def test_a_step_is_a_function_of_seed_and_number_whatever_was_asked_before(n_rows, batch_size, seed, steps):
    order = BatchOrder(n_rows, batch_size, seed=seed)
    for step in steps:
        assert torch.equal(order(step), BatchOrder(n_rows, batch_size, seed=seed)(step))


def test_seeds_and_epochs_differ():
    order = BatchOrder(50, 50, seed=0)
    assert not torch.equal(order(0), order(1))
    assert not torch.equal(order(0), BatchOrder(50, 50, seed=1)(0))
    assert not torch.equal(order(0), torch.arange(50))


def test_drawing_batches_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    BatchOrder(50, 7, seed=0)(3)
    assert torch.equal(torch.get_rng_state(), state)


def test_steps_of_epochs():
    assert BatchOrder(100, 10, seed=0).steps_of(3) == 30
    assert BatchOrder(100, 10, seed=0).steps_of(0.25) == 2
    assert BatchOrder(100, 10, seed=0).steps_of(1e-9) == 1
    assert BatchOrder(5, 10, seed=0).steps_of(3) == 3


def test_derived_seeds_are_unrelated_and_fit_every_generator():
    seeds = [derive_seed(a, b) for a in range(60) for b in range(60)]
    assert len(set(seeds)) == len(seeds)
    assert derive_seed(1, 2) != derive_seed(2, 1)
    assert derive_seed(3) != derive_seed(3, 0)
    for seed in (*seeds[:50], derive_seed(2**63 - 1, 2**40)):
        assert 0 <= seed < 2**63
        torch.Generator().manual_seed(seed)
    ones = [bin(seed).count("1") for seed in seeds]
    assert 30 < sum(ones) / len(ones) < 33  # of 63 bits, half are set
