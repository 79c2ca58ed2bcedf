"""Cells to tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.config import EncoderConfig
from tabmoco.nn.columns import ColumnEncoder, temper, untemper
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.scalings import INFINITE_SCORE, normal_scores

EMBEDDINGS = ["linear", "piecewise", "periodic"]


def columns_of(build_encoder, layout, **encoder_settings: object) -> ColumnEncoder:
    return build_encoder(layout, **encoder_settings).columns


@given(st.floats(-INFINITE_SCORE, INFINITE_SCORE, width=32))
def test_untemper_is_the_inverse_of_temper(number):
    there = temper(torch.tensor(number, dtype=torch.float64))
    assert math.isclose(float(untemper(there)), number, rel_tol=1e-9, abs_tol=1e-9)


def test_temper_keeps_the_middle_and_the_order_and_tames_the_far():
    number = torch.tensor([-2000.0, -100.0, -1.0, 0.0, 0.5, 1.0, 100.0, 2000.0])
    tempered = temper(number)
    assert (tempered.diff() > 0).all()
    assert torch.allclose(tempered[2:6], number[2:6], atol=0.02)
    assert tempered[-1] < 25


def test_scalings_are_the_tempered_and_the_normal_score(build_encoder, layout, draw_cells):
    slots = columns_of(build_encoder, layout).number
    number = draw_cells(layout, 5).number
    scalings = slots.scalings(number)
    assert torch.equal(scalings[..., 0], temper(number))
    assert torch.equal(scalings[..., 1], normal_scores(number, slots.knots, slots.knot_scores))
    assert not torch.equal(scalings[..., 0], scalings[..., 1])


def test_a_token_is_the_bias_and_the_sum_of_its_slots(build_encoder, layout, draw_cells):
    encoder = columns_of(build_encoder, layout, number_embedding="linear")
    torch.nn.init.normal_(encoder.bias)
    torch.nn.init.normal_(encoder.number.bias)
    cells = draw_cells(layout, 3, missing=0.0)
    tokens = encoder(cells)
    scalings = encoder.number.scalings(cells.number)
    for i in range(3):
        for column in range(layout.n_columns):
            slots = []
            for s, owner in enumerate(layout.number_owner):
                if owner == column:
                    a, b = scalings[i, s]
                    slots.append(
                        a * encoder.number.weight[s, 0] + b * encoder.number.weight[s, 1] + encoder.number.bias[s]
                    )
            first_code = 0
            for s, owner in enumerate(layout.code_owner):
                if owner == column:
                    slots.append(encoder.code.weight[first_code + cells.code[i, s]])
                first_code += layout.cardinalities[s]
            slow = encoder.bias[column] + sum(slots) / math.sqrt(len(slots))
            assert torch.allclose(tokens[i, column], slow, atol=1e-5)


@pytest.mark.parametrize("number_embedding", EMBEDDINGS)
def test_a_cell_moves_its_own_token_only(build_encoder, layout, draw_cells, number_embedding):
    encoder = columns_of(build_encoder, layout, number_embedding=number_embedding)
    cells = draw_cells(layout, 4, missing=0.0)
    tokens = encoder(cells)
    for slot, owner in enumerate(layout.number_owner):
        number = cells.number.clone()
        number[:, slot] += 0.7
        moved = (encoder(CellBatch(number, cells.code, cells.missing)) != tokens).any(2)
        assert moved[:, owner].all()
        assert not moved[:, [c for c in range(layout.n_columns) if c != owner]].any()
    for slot, owner in enumerate(layout.code_owner):
        code = cells.code.clone()
        code[:, slot] = (code[:, slot] + 1) % layout.cardinalities[slot]
        moved = (encoder(CellBatch(cells.number, code, cells.missing)) != tokens).any(2)
        assert moved[:, owner].all()
        assert not moved[:, [c for c in range(layout.n_columns) if c != owner]].any()


def test_missing_and_masked_cells_have_tokens_of_their_own(build_encoder, layout, draw_cells):
    encoder = columns_of(build_encoder, layout)
    cells = draw_cells(layout, 20, missing=0.4)
    masked = torch.rand(cells.missing.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    tokens = encoder(cells, masked)
    for i in range(20):
        for column in range(layout.n_columns):
            if masked[i, column]:  # hidden whether or not it holds a value
                assert torch.equal(tokens[i, column], encoder.mask_token[column])
            elif cells.missing[i, column]:
                assert torch.equal(tokens[i, column], encoder.missing_token[column])
            else:
                assert not torch.equal(tokens[i, column], encoder.missing_token[column])


@pytest.mark.parametrize("number_embedding", EMBEDDINGS)
def test_every_embedding_serves_every_layout(build_encoder, any_layout, draw_cells, number_embedding):
    tokens = columns_of(build_encoder, any_layout, number_embedding=number_embedding, d_token=6)(
        draw_cells(any_layout, 5)
    )
    assert tokens.shape == (5, any_layout.n_columns, 6)
    assert torch.isfinite(tokens).all()


@pytest.mark.parametrize("number_embedding", ["piecewise", "periodic"])
def test_an_embedding_bends_what_is_linear_without_it(build_encoder, layout, number_embedding):
    slots = columns_of(build_encoder, layout, number_embedding=number_embedding, d_token=16).number
    number = torch.linspace(-1.5, 1.5, 50).unsqueeze(1).expand(-1, layout.n_numbers).contiguous()
    with torch.no_grad():
        scalings = slots.scalings(number)
        linear = torch.einsum("nsi,sie->nse", scalings, slots.weight) + slots.bias
        if number_embedding == "piecewise":
            torch.nn.init.normal_(slots.embedding.linear.weight)
        assert (slots(number) - linear).std(0).max() > 0.01


def test_the_tokens_of_untrained_numbers_and_categories_are_of_one_size(build_encoder, layout, draw_cells):
    config = EncoderConfig()
    encoder = columns_of(build_encoder, layout, d_token=config.d_token, number_embedding=config.number_embedding)
    spread = encoder(draw_cells(layout, 500, missing=0.0)).std(0).mean(1)
    assert spread.max() < 4 * spread.min()
