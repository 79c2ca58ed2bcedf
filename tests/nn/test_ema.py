"""The moving average of a module."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tabmoco.nn.ema import EmaCopy, momentum_at


def module(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))  # a layer with buffers, one of them a whole number
    net(torch.randn(8, 3))
    return net


def test_update_is_equation_2_of_he_et_al():
    source, m = module(0), 0.9
    target = EmaCopy(source)
    slow = [p.detach().clone() for p in source.parameters()]
    for step in range(3):
        with torch.no_grad():
            for p in source.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(step)))
        target.update(source, m)
        slow = [m * k + (1 - m) * q.detach() for k, q in zip(slow, source.parameters(), strict=True)]
    for mine, theirs in zip(target.module.parameters(), slow, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


@pytest.mark.parametrize(("momentum", "follows"), [(1.0, 0), (0.0, 1)])
def test_momentum_1_stands_still_and_0_copies(momentum, follows):
    sources = module(0), module(1)
    target = EmaCopy(sources[0])
    target.update(sources[1], momentum)
    for mine, theirs in zip(target.module.parameters(), sources[follows].parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_buffers_are_copied():
    source = module(1)
    target = EmaCopy(module(0))
    source(torch.randn(8, 3))  # a second batch: the buffers differ from the target's
    target.update(source, 0.9)
    for mine, theirs in zip(target.module.buffers(), source.buffers(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()


def test_the_copy_is_apart_and_without_gradient():
    source = module(0)
    target = EmaCopy(source)
    before = [p.clone() for p in target.parameters()]
    with torch.no_grad():
        for p in source.parameters():
            p.add_(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters(), strict=True))
    assert not any(p.requires_grad for p in target.parameters())
    assert all(p.requires_grad for p in source.parameters())
    assert not target(torch.randn(2, 3, requires_grad=True)).requires_grad


def test_another_architecture_is_refused():
    with pytest.raises(ValueError, match="zip"):
        EmaCopy(module(0)).update(nn.Linear(3, 4), 0.9)


def test_momentum_is_constant_or_a_cosine_ramp():
    assert momentum_at(0.3, 0.99, None) == 0.99
    assert momentum_at(0.0, 0.9, 1.0) == pytest.approx(0.9)
    assert momentum_at(0.5, 0.9, 1.0) == pytest.approx(0.95)
    assert momentum_at(1.0, 0.9, 1.0) == pytest.approx(1.0)
    ramp = [momentum_at(p / 20, 0.9, 1.0) for p in range(21)]
    assert ramp == sorted(ramp)
    assert ramp[1] - ramp[0] < ramp[10] - ramp[9]  # slow at both ends
