"""Batch normalisation by groups, and the shuffling that it makes necessary."""

from __future__ import annotations

import pytest
import torch

from tabmoco.nn.norms import EPSILON, N_GROUPS, NEW_SHARE, GroupedBatchNorm, build_norm, encode_shuffled


def rows(n_rows: int, *, seed: int = 0) -> torch.Tensor:
    return 3 + 2 * torch.randn(n_rows, 5, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def norm() -> GroupedBatchNorm:
    norm = GroupedBatchNorm(5)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 1.5, 5))
        norm.bias.copy_(torch.linspace(-1, 1, 5))
    return norm


@pytest.mark.parametrize(("n_rows", "sizes"), [(16, [4, 4, 4, 4]), (10, [3, 3, 2, 2]), (5, [3, 2]), (3, [3]), (2, [2])])
def test_every_group_has_statistics_of_its_own(norm, n_rows, sizes):
    x, start = rows(n_rows), 0
    y = norm(x)
    means, variances = [], []
    for size in sizes:
        group = x[start : start + size]
        mean, variance = group.mean(0), ((group - group.mean(0)) ** 2).mean(0)
        slow = (group - mean) / (variance + EPSILON).sqrt() * norm.weight + norm.bias
        assert torch.allclose(y[start : start + size], slow, atol=1e-5)
        means.append(mean)
        variances.append(variance * size / (size - 1))
        start += size
    assert torch.allclose(norm.running_mean, NEW_SHARE * sum(means) / len(sizes), atol=1e-6)
    expected = (1 - NEW_SHARE) + NEW_SHARE * sum(variances) / len(sizes)
    assert torch.allclose(norm.running_variance, expected, atol=1e-5)
    assert len(sizes) <= N_GROUPS


def test_one_group_is_ordinary_batch_normalisation(norm, monkeypatch):
    monkeypatch.setattr("tabmoco.nn.norms.N_GROUPS", 1)
    ordinary = torch.nn.BatchNorm1d(5)
    ordinary.load_state_dict({"weight": norm.weight, "bias": norm.bias}, strict=False)
    for seed in range(3):
        x = rows(9, seed=seed)
        assert torch.allclose(norm(x), ordinary(x), atol=1e-5)
    norm.eval(), ordinary.eval()
    assert torch.allclose(norm(rows(4)), ordinary(rows(4)), atol=1e-5)


def test_after_training_a_row_knows_nothing_of_the_others(norm):
    norm(rows(16))
    norm.eval()
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    x = rows(9, seed=1)
    assert torch.allclose(norm(x)[:1], norm(x[:1]), atol=1e-6)
    assert all(torch.equal(tensor, before[name]) for name, tensor in norm.state_dict().items())


def test_a_row_alone_is_normalised_by_the_running_statistics_in_training_too(norm):
    x = rows(1)
    trained = norm(x)
    assert torch.equal(trained, norm.eval()(x))
    assert not norm.running_mean.any()


def test_no_rows_stay_no_rows(norm):
    assert norm(rows(0)).shape == (0, 5)


def test_half_precision_comes_back_as_it_came_and_is_computed_in_full(norm):
    x = rows(16)
    half = norm(x.bfloat16())
    assert half.dtype == torch.bfloat16 and norm.running_mean.dtype == torch.float32
    assert torch.allclose(half.float(), norm(x), atol=0.05)


def test_a_norm_by_name():
    assert isinstance(build_norm("batch", 5), GroupedBatchNorm)
    assert isinstance(build_norm("layer", 5), torch.nn.LayerNorm)


def test_shuffled_rows_come_back_in_their_own_order(layout, draw_cells):
    cells = draw_cells(layout, 30)
    masked = torch.rand(cells.missing.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    seen: list[torch.Tensor] = []

    def encode(cells, masked=None):
        seen.append(cells.number[:, :1])
        extra = torch.zeros(len(cells), 1) if masked is None else masked.float()
        return torch.cat([cells.number, cells.code, cells.missing, extra], dim=1)

    torch.manual_seed(0)
    for hidden in ((), (masked,)):
        assert torch.equal(encode_shuffled(encode, cells, *hidden), encode(cells, *hidden))
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])  # another order each time
    assert torch.equal(seen[0].sort(0).values, seen[1].sort(0).values)


def test_shuffling_changes_who_shares_statistics_and_passes_no_gradient(build_encoder, layout, draw_cells):
    encoder = build_encoder(layout, norm="batch").train()
    cells = draw_cells(layout, 16)
    in_order, shuffled = encoder(cells), encode_shuffled(encoder, cells)
    assert not torch.allclose(in_order, shuffled, atol=1e-3)
    assert not shuffled.requires_grad
    encoder.eval()
    assert torch.allclose(encoder(cells), encode_shuffled(encoder, cells), atol=1e-6)
