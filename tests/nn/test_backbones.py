"""Backbones: shapes, gradients, and no look at the rows beside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tabmoco.config import EncoderConfig
from tabmoco.nn.backbones import BACKBONES, Mlp, ResNet

N_COLUMNS = 4


def build(name: str, **settings: object) -> nn.Module:
    torch.manual_seed(0)
    config = EncoderConfig(**{"d_token": 3, "d_block": 16, "d_embedding": 8, "n_blocks": 2, **settings})
    return BACKBONES[name](N_COLUMNS, config)


def tokens(n_rows: int) -> torch.Tensor:
    return torch.randn(n_rows, N_COLUMNS, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("d_block", [16, 13])  # 13: no multiple of 8 attention heads
def test_rows_become_embeddings_of_the_width_asked_for(name, d_block):
    assert build(name, d_block=d_block)(tokens(5)).shape == (5, 8)


@pytest.mark.parametrize("name", BACKBONES)
def test_no_layer_keeps_or_uses_statistics_of_the_batch(name):
    backbone = build(name)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in backbone.modules())
    assert not list(backbone.buffers())
    backbone.train()
    x = tokens(6)
    assert torch.allclose(backbone(x)[:1], backbone(x[:1]), atol=1e-5)


@pytest.mark.parametrize("name", BACKBONES)
def test_the_gradient_reaches_every_parameter(name):
    backbone = build(name)
    backbone(tokens(6)).square().sum().backward()
    still = [path for path, p in backbone.named_parameters() if p.grad is None or not p.grad.any()]
    assert not [path for path in still if not path.endswith("W_k.bias")]  # softmax cancels a bias of all keys


@pytest.mark.parametrize("name", BACKBONES)
def test_dropout_acts_in_training_only(name):
    backbone, x = build(name, dropout=0.5), tokens(6)
    backbone.train()
    assert not torch.equal(backbone(x), backbone(x))
    backbone.eval()
    assert torch.equal(backbone(x), backbone(x))


@pytest.mark.parametrize("name", BACKBONES)
def test_columns_are_told_apart(name):
    backbone, x = build(name).eval(), tokens(6)
    assert not torch.allclose(backbone(x), backbone(x.flip(1)), atol=1e-4)


@pytest.mark.parametrize("name", BACKBONES)
def test_the_length_of_an_embedding_grows_with_its_tokens(name):
    """No final norm: how far outside a row lies must show, at least where no norm comes before."""
    backbone, x = build(name).eval(), tokens(6)
    near, far = backbone(x).norm(dim=1), backbone(50 * x).norm(dim=1)
    assert torch.isfinite(far).all()
    if name != "ft_transformer":
        assert (far > 5 * near).all()


def test_an_mlp_is_what_its_paper_writes():
    backbone, x = build("mlp"), tokens(5)
    assert isinstance(backbone, Mlp)
    linear = [m for m in backbone.modules() if isinstance(m, nn.Linear)]
    hidden = x.flatten(1)
    for layer in linear[:-1]:
        hidden = torch.relu(layer(hidden))
    assert torch.allclose(backbone(x), linear[-1](hidden), atol=1e-6)
    assert len(linear) == 3


def test_a_resnet_is_its_blocks_beside_a_linear_path():
    backbone, x = build("resnet").eval(), tokens(5)
    assert isinstance(backbone, ResNet)
    hidden = backbone.stem(x.flatten(1))
    for block in backbone.blocks:
        hidden = hidden + block.narrow(torch.relu(block.widen(block.norm(hidden))))
    norm, _, out = backbone.out
    slow = x.flatten(1) @ backbone.linear.weight.T + backbone.linear.bias + out(torch.relu(norm(hidden)))
    assert torch.allclose(backbone(x), slow, atol=1e-5)
