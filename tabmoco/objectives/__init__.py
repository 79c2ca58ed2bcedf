"""Objectives by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tabmoco.config import PretrainConfig
from tabmoco.errors import ConfigError
from tabmoco.nn.encoder import RowEncoder
from tabmoco.objectives.base import Objective, Pretext, Step, make_step
from tabmoco.objectives.byol import Byol
from tabmoco.objectives.dino import Dino
from tabmoco.objectives.masked_cells import MaskedCells
from tabmoco.objectives.memory_bank import MemoryBank
from tabmoco.objectives.moco import MoCo
from tabmoco.objectives.moco_v3 import MoCoV3
from tabmoco.objectives.simclr import SimClr
from tabmoco.tables.cells import Layout

OBJECTIVES: dict[str, Callable[[RowEncoder, Layout, PretrainConfig, int], Objective]] = {
    "moco": lambda encoder, layout, config, n_rows: MoCo(encoder, config.objective),
    "moco_v3": lambda encoder, layout, config, n_rows: MoCoV3(encoder, config.objective),
    "simclr": lambda encoder, layout, config, n_rows: SimClr(encoder, config.objective),
    "byol": lambda encoder, layout, config, n_rows: Byol(encoder, config.objective),
    "dino": lambda encoder, layout, config, n_rows: Dino(encoder, config.objective),
    "memory_bank": lambda encoder, layout, config, n_rows: MemoryBank(encoder, config.objective, n_rows),
    "masked_cells": lambda encoder, layout, config, n_rows: MaskedCells(
        encoder, layout, config.encoder.d_block, detection_weight=config.objective.detection_weight
    ),
}


def check_objectives(names: Iterable[str]) -> None:
    """Refuse names that are no objective's."""
    unknown = [name for name in names if name not in OBJECTIVES]
    if unknown:
        raise ConfigError(f"there is no objective {unknown[0]!r}; known objectives: {', '.join(OBJECTIVES)}.")


def build_pretext(encoder: RowEncoder, layout: Layout, config: PretrainConfig, *, n_rows: int = 0) -> Pretext:
    """The encoder with the objectives that `config.objective.weights` names.

    Parameters
    ----------
    n_rows
        Rows of the whole table, of which the memory bank keeps one slot each; no other objective asks.
    """
    weights = config.objective.weights
    check_objectives(weights)
    if config.objective.freeze_tokens:
        encoder.columns.requires_grad_(False)
    parts = {name: OBJECTIVES[name](encoder, layout, config, n_rows) for name in weights}
    return Pretext(encoder, parts, dict(weights))


__all__ = ["OBJECTIVES", "Objective", "Pretext", "Step", "build_pretext", "check_objectives", "make_step"]
