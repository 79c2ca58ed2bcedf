"""Objectives by name."""

from __future__ import annotations

from collections.abc import Iterable

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


def check_objectives(names: Iterable[str]) -> None:
    """Refuse names that are no objective's."""
    unknown = [name for name in names if name not in OBJECTIVES]
    if unknown:
        raise ConfigError(f"there is no objective {unknown[0]!r}; known objectives: {', '.join(OBJECTIVES)}.")


def build_pretext(encoder: RowEncoder, layout: Layout, config: PretrainConfig) -> Pretext:
    """The encoder with the objectives that `config.objective.weights` names."""
    weights = config.objective.weights
    check_objectives(weights)
    parts = {name: OBJECTIVES[name](encoder, layout, config) for name in weights}
    return Pretext(encoder, parts, dict(weights))


__all__ = ["OBJECTIVES", "Objective", "Pretext", "Step", "build_pretext", "check_objectives"]
