"""The queue against a deque."""

from __future__ import annotations

from collections import deque

import torch
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.nn.key_queue import NO_ROW, KeyQueue

N_ROWS = 6

BATCH_SIZES = st.lists(st.integers(0, 20), max_size=8)


def batch(n_keys: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(NO_ROW, N_ROWS, (n_keys,), generator=generator)  # rows repeat, and some keys belong to none
    return torch.randn(n_keys, 3, generator=generator), row, 1000 + row


def in_order(queue: KeyQueue) -> list[tuple[list[float], int, int]]:
    """What the queue holds, oldest first."""
    n_pushed, size = int(queue.n_pushed), len(queue)
    places = [n % size for n in range(max(0, n_pushed - size), n_pushed)]
    return [(queue.key[p].tolist(), int(queue.row[p]), int(queue.content[p])) for p in places]


def latest_first(entries: list[tuple[list[float], int, int]]) -> list[int]:
    rows = [row for _, row, _ in reversed(entries) if row != NO_ROW]
    return list(dict.fromkeys(rows))


@given(size=st.integers(1, 9), batch_sizes=BATCH_SIZES)
def test_any_size_and_any_batches_behave_like_a_deque(size, batch_sizes):
    queue, model = KeyQueue(size, 3), deque(maxlen=size)
    for seed, n_keys in enumerate(batch_sizes):
        key, row, content = batch(n_keys, seed=seed)
        queue.push(key, row, content)
        model.extend(zip(key.tolist(), row.tolist(), content.tolist(), strict=True))
        assert in_order(queue) == list(model)
        assert int(queue.filled.sum()) == len(model)
        assert queue.rows().tolist() == latest_first(list(model))
    assert len(queue) == size


def test_a_queue_starts_empty():
    queue = KeyQueue(4, 3)
    assert not queue.filled.any()
    assert queue.rows().shape == (0,)
    assert queue.rows().dtype == torch.int64


def test_pushed_keys_are_copies_and_float32():
    queue = KeyQueue(4, 3)
    key, row, content = batch(2, seed=0)
    queue.push(key.bfloat16(), row, content)
    queue.push(key, row, content)
    stored = queue.key.clone()
    key.zero_()
    assert queue.key.dtype == torch.float32
    assert torch.equal(queue.key, stored)


@given(size=st.integers(1, 9), before=BATCH_SIZES, after=BATCH_SIZES)
def test_the_state_dict_holds_everything(size, before, after):
    queue, resumed = KeyQueue(size, 3), KeyQueue(size, 3)
    for seed, n_keys in enumerate(before):
        queue.push(*batch(n_keys, seed=seed))
    resumed.load_state_dict({name: tensor.clone() for name, tensor in queue.state_dict().items()})
    for seed, n_keys in enumerate(after):
        queue.push(*batch(n_keys, seed=100 + seed))
        resumed.push(*batch(n_keys, seed=100 + seed))
    assert resumed.state_dict().keys() == queue.state_dict().keys()
    assert all(
        torch.equal(a, b) for a, b in zip(resumed.state_dict().values(), queue.state_dict().values(), strict=True)
    )
    assert torch.equal(resumed.rows(), queue.rows())


def test_random_replacement_fills_empty_places_first_and_then_any():
    queue = KeyQueue(20, 2, "random")
    torch.manual_seed(0)
    for first in (0, 8):
        row = torch.arange(first, first + 8)
        queue.push(torch.ones(8, 2), row, row)
    assert sorted(queue.rows().tolist()) == list(range(16))
    row = torch.arange(16, 24)
    queue.push(torch.ones(8, 2), row, row)
    left = set(queue.rows().tolist())
    assert queue.filled.all() and len(left) == 20 and set(range(16, 24)) < left
    gone = set(range(16)) - left
    assert gone != {0, 1, 2, 3}  # not the oldest
    row = torch.arange(100, 130)
    queue.push(torch.ones(30, 2), row, row)  # larger than the queue: its last keys stay
    assert sorted(queue.rows().tolist()) == list(range(110, 130))


def test_the_oldest_are_replaced_without_a_draw():
    queue, state = KeyQueue(4, 2), torch.get_rng_state()
    queue.push(torch.ones(3, 2), torch.arange(3), torch.arange(3))
    assert torch.equal(torch.get_rng_state(), state)
