"""The row encoder: an embedding is a function of its row alone, and of nothing hidden."""

from __future__ import annotations

import pytest
import torch

from tabmoco.nn.backbones import BACKBONES
from tabmoco.nn.encoder import MAX_FLAT_WIDTH
from tabmoco.nn.norms import GroupedBatchNorm
from tabmoco.tables.cells import CellBatch, Layout
from tabmoco.tables.scalings import INFINITE_SCORE

EMBEDDINGS = ["linear", "piecewise", "periodic"]


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("training", [False, True])
def test_a_row_alone_equals_the_row_in_a_batch(build_encoder, any_layout, draw_cells, backbone, training):
    encoder = build_encoder(any_layout, backbone=backbone).train(training)
    cells = draw_cells(any_layout, 33)
    together = encoder(cells)
    alone = torch.cat([encoder(cells[i : i + 1]) for i in range(33)])
    assert (alone - together).abs().max() < 1e-5
    shuffled = torch.randperm(33, generator=torch.Generator().manual_seed(0))
    assert (encoder(cells[shuffled]) - together[shuffled]).abs().max() < 1e-5


@pytest.mark.parametrize("backbone", BACKBONES)
def test_no_rows_give_no_embeddings(build_encoder, any_layout, backbone):
    assert build_encoder(any_layout, backbone=backbone)(CellBatch.empty(any_layout)).shape == (0, 8)


@pytest.mark.parametrize("half_precision", [False, True])
@pytest.mark.parametrize("number_embedding", EMBEDDINGS)
@pytest.mark.parametrize("backbone", BACKBONES)
def test_extreme_values_stay_finite(build_encoder, layout, draw_cells, backbone, number_embedding, half_precision):
    encoder = build_encoder(layout, backbone=backbone, number_embedding=number_embedding)
    encoder.half_precision = half_precision
    cells = draw_cells(layout, 6, missing=0.0)
    cells.number[:] = torch.tensor([INFINITE_SCORE, -INFINITE_SCORE, 3e38, -3e38, 1e-45, 0.0]).unsqueeze(1)
    embedding = encoder(cells)
    assert torch.isfinite(embedding).all()
    embedding.square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters() if p.grad is not None)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_an_extreme_value_shows_in_the_embedding(build_encoder, layout, draw_cells, backbone):
    encoder, cells = build_encoder(layout, backbone=backbone), draw_cells(layout, 2, missing=0.0)
    cells.number[:, 0] = torch.tensor([100.0, INFINITE_SCORE])  # both beyond the last knot
    apart = (encoder(CellBatch(cells.number, cells.code[:1].expand(2, -1), cells.missing)) - encoder(cells[:1])).norm(
        dim=1
    )
    assert apart[1] > 1e-3


@pytest.mark.parametrize("backbone", BACKBONES)
def test_what_is_masked_has_no_influence_at_all(build_encoder, layout, draw_cells, backbone):
    encoder = build_encoder(layout, backbone=backbone)
    cells, other = draw_cells(layout, 16, seed=0), draw_cells(layout, 16, seed=1, missing=0.5)
    masked = torch.rand(cells.missing.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    changed = CellBatch(
        torch.where(masked[:, list(layout.number_owner)], other.number, cells.number),
        torch.where(masked[:, list(layout.code_owner)], other.code, cells.code),
        torch.where(masked, other.missing, cells.missing),
    )
    assert torch.equal(encoder(changed, masked), encoder(cells, masked))
    assert not torch.equal(encoder(changed), encoder(cells))
    assert not torch.equal(encoder(cells), encoder(cells, masked))


def test_whatever_lies_in_a_missing_cells_slots_has_no_influence(build_encoder, layout, draw_cells):
    encoder, cells = build_encoder(layout), draw_cells(layout, 16, missing=0.5)
    noisy = torch.where(cells.missing[:, list(layout.number_owner)], torch.tensor(5.0), cells.number)
    assert torch.equal(encoder(CellBatch(noisy, cells.code, cells.missing)), encoder(cells))


@pytest.mark.parametrize("backbone", BACKBONES)
def test_half_precision_returns_float32_near_full_precision(build_encoder, any_layout, draw_cells, backbone):
    encoder, cells = build_encoder(any_layout, backbone=backbone), draw_cells(any_layout, 16)
    full = encoder(cells)
    encoder.half_precision = True
    half = encoder(cells)
    assert half.dtype == full.dtype == torch.float32
    assert not torch.equal(half, full)
    assert (half - full).norm() < 0.05 * full.norm()


def test_very_many_columns_get_narrower_tokens(build_encoder, draw_cells):
    n_columns = MAX_FLAT_WIDTH // 4
    wide = Layout(tuple(map(str, range(n_columns))), tuple(range(n_columns)), (), ())
    encoder = build_encoder(wide, d_token=16, number_embedding="linear", d_block=2)
    assert encoder.columns.bias.shape == (n_columns, 4)
    assert encoder(draw_cells(wide, 2)).shape == (2, 8)


def test_batch_statistics_end_with_training(build_encoder, any_layout, draw_cells):
    encoder = build_encoder(any_layout, norm="batch", n_blocks=2).train()
    cells = draw_cells(any_layout, 33)
    together = encoder(cells)
    assert not torch.allclose(encoder(cells[:9]), together[:9], atol=1e-3)
    encoder.eval()
    together = encoder(cells)
    alone = torch.cat([encoder(cells[i : i + 1]) for i in range(33)])
    assert (alone - together).abs().max() < 1e-5


def test_an_encoder_knows_whether_rows_share_statistics(build_encoder, layout):
    for norm, shares in (("layer", False), ("batch", True)):
        encoder = build_encoder(layout, norm=norm)
        assert encoder.shares_statistics == shares == any(isinstance(m, GroupedBatchNorm) for m in encoder.modules())
