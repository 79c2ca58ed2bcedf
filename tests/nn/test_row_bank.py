"""The bank: a slot per row, moved when the row is seen."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from tabmoco.nn.row_bank import UNSEEN, RowBank

N_ROWS = 9


def key(n_keys: int, *, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(n_keys, 4, generator=torch.Generator().manual_seed(seed)), dim=1)


def test_slots_are_random_directions_of_unseen_rows_at_first():
    bank = RowBank(N_ROWS, 4)
    assert len(bank) == N_ROWS
    assert torch.allclose(bank.slot.norm(dim=1), torch.ones(N_ROWS), atol=1e-6)
    assert len(torch.unique(bank.slot, dim=0)) == N_ROWS
    assert (bank.content == UNSEEN).all()


@pytest.mark.parametrize("momentum", [0.0, 0.5, 1.0])
def test_an_update_is_a_moving_average_of_unit_length(momentum):
    bank = RowBank(N_ROWS, 4)
    before, row = bank.slot.clone(), torch.tensor([7, 2, 4])
    bank.update(key(3), row, torch.tensor([70, 20, 40]), momentum=momentum)
    for number, place in enumerate(row.tolist()):
        moved = momentum * before[place] + (1 - momentum) * key(3)[number]
        assert torch.allclose(bank.slot[place], moved / moved.norm(), atol=1e-6)
        assert bank.content[place] == 10 * place
    others = [0, 1, 3, 5, 6, 8]
    assert torch.equal(bank.slot[others], before[others])
    assert (bank.content[others] == UNSEEN).all()


def test_a_row_that_comes_twice_moves_once_towards_the_mean():
    bank = RowBank(N_ROWS, 4)
    before = bank.slot[3].clone()
    bank.update(key(3), torch.tensor([3, 5, 3]), torch.tensor([1, 2, 1]), momentum=0.5)
    moved = 0.5 * before + 0.5 * (key(3)[0] + key(3)[2]) / 2
    assert torch.allclose(bank.slot[3], moved / moved.norm(), atol=1e-6)


def test_all_of_it_is_in_the_state_dict():
    bank, other = RowBank(N_ROWS, 4), RowBank(N_ROWS, 4)
    bank.update(key(2), torch.tensor([0, 8]), torch.tensor([5, 6]), momentum=0.5)
    other.load_state_dict(bank.state_dict())
    assert torch.equal(bank.slot, other.slot) and torch.equal(bank.content, other.content)
    assert not list(bank.parameters())
