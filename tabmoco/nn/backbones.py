"""Tokens to embeddings: MLP, ResNet and FT-Transformer.

NOTE[DIFF]: Gorishniy et al., "Revisiting Deep Learning Models for Tabular Data" (2021), use batch normalisation in
their ResNet. Here it is layer normalisation unless asked for, so that a row's embedding does not depend on the rows
beside it in training either, and no norm follows the last layer, because the length of an embedding is evidence of
strangeness.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from rtdl_revisiting_models import FTTransformerBackbone
from torch import Tensor, nn

from tabmoco.config import EncoderConfig
from tabmoco.nn.norms import build_norm


class Mlp(nn.Module):
    """Linear layers and ReLU over the concatenated tokens (Gorishniy et al. 2021, section 3.1)."""

    def __init__(self, n_columns: int, config: EncoderConfig):
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        width = n_columns * config.d_token
        for _ in range(config.n_blocks):
            layers += [nn.Linear(width, config.d_block), nn.ReLU(), nn.Dropout(config.dropout)]
            width = config.d_block
        self.layers = nn.Sequential(*layers, nn.Linear(width, config.d_embedding))

    def forward(self, tokens: Float[Tensor, "N C E"]) -> Float[Tensor, "N D"]:
        return self.layers(tokens)


class ResNetBlock(nn.Module):
    """`x + Linear(Dropout(ReLU(Linear(Norm(x)))))` (Gorishniy et al. 2021, section 3.2)."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        width = config.d_block
        self.norm = build_norm(config.norm, width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(self.dropout(torch.relu(self.widen(self.norm(x)))))


class ResNet(nn.Module):
    """Residual blocks over the concatenated tokens, beside a linear path (Gorishniy et al. 2021, section 3.2).

    NOTE[DIFF]: the paper has no linear path. Added up cell by cell, it is what recognises a row by its intact cells
    when others are damaged; the blocks learn what cells say of one another.
    """

    def __init__(self, n_columns: int, config: EncoderConfig):
        super().__init__()
        width = n_columns * config.d_token
        self.linear = nn.Linear(width, config.d_embedding)
        self.stem = nn.Linear(width, config.d_block)
        self.blocks = nn.Sequential(*(ResNetBlock(config) for _ in range(config.n_blocks)))
        norm = build_norm(config.norm, config.d_block)
        self.out = nn.Sequential(norm, nn.ReLU(), nn.Linear(config.d_block, config.d_embedding))

    def forward(self, tokens: Float[Tensor, "N C E"]) -> Float[Tensor, "N D"]:
        flat = tokens.flatten(1)
        return self.linear(flat) + self.out(self.blocks(self.stem(flat)))


class FtTransformer(nn.Module):
    """Self-attention over the tokens and a [CLS] token (Gorishniy et al. 2021, section 3.3), from the authors'
    library."""

    def __init__(self, n_columns: int, config: EncoderConfig):
        super().__init__()
        self.widen = nn.Linear(config.d_token, config.d_block)
        self.column_bias = nn.Parameter(torch.randn(n_columns, config.d_block) * config.d_block**-0.5)
        self.cls = nn.Parameter(torch.randn(config.d_block) * config.d_block**-0.5)
        self.transformer = FTTransformerBackbone(
            d_out=None,
            n_blocks=config.n_blocks,
            d_block=config.d_block,
            attention_n_heads=8 if config.d_block % 8 == 0 else 1,
            attention_dropout=config.dropout,
            ffn_d_hidden_multiplier=4 / 3,
            ffn_dropout=config.dropout,
            residual_dropout=0.0,
        )
        self.out = nn.Linear(config.d_block, config.d_embedding)

    def forward(self, tokens: Float[Tensor, "N C E"]) -> Float[Tensor, "N D"]:
        tokens = self.widen(tokens) + self.column_bias
        cls = self.cls.expand(len(tokens), 1, -1).to(tokens.dtype)
        return self.out(self.transformer(torch.cat([cls, tokens], dim=1)))


BACKBONES = {"mlp": Mlp, "resnet": ResNet, "ft_transformer": FtTransformer}
