"""Objectives by name."""

from __future__ import annotations

from tabmoco.config import PretrainConfig
from tabmoco.errors import ConfigError
from tabmoco.nn.encoder import RowEncoder
from tabmoco.objectives.base import Objective, Pretext, Step
from tabmoco.objectives.masked_cells import MaskedCells
from tabmoco.objectives.moco import MoCo
from tabmoco.tables.cells import Layout

OBJECTIVES = {
    "moco": lambda encoder, layout, config: MoCo(encoder, config.objective),
    "masked_cells": lambda encoder, layout, config: MaskedCells(encoder, layout, config.encoder.d_block),
}


def build_pretext(encoder: RowEncoder, layout: Layout, config: PretrainConfig) -> Pretext:
    """The encoder with the objectives that `config.objective.weights` names."""
    weights = config.objective.weights
    unknown = [name for name in weights if name not in OBJECTIVES]
    if unknown:
        raise ConfigError(f"there is no objective {unknown[0]!r}; known objectives: {', '.join(OBJECTIVES)}.")
    parts = {name: OBJECTIVES[name](encoder, layout, config) for name in weights}
    return Pretext(encoder, parts, dict(weights))


__all__ = ["OBJECTIVES", "Objective", "Pretext", "Step", "build_pretext"]
