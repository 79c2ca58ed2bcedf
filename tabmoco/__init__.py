"""Self-supervised MoCo pretraining on raw tables: embeddings, anomaly scores and similar rows."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tabmoco.config import (
        CorruptionConfig,
        DataConfig,
        EncoderConfig,
        IndexConfig,
        ObjectiveConfig,
        OptimizeConfig,
        PretrainConfig,
    )
    from tabmoco.errors import TabmocoError
    from tabmoco.estimators import TabMoCoDetector, TabMoCoEmbedder
    from tabmoco.model import RowModel
    from tabmoco.tables.schema import Schema, infer_schema
    from tabmoco.tables.source import open_table
    from tabmoco.training.pretrain import pretrain

    __version__: str

_HOME = {
    "CorruptionConfig": "tabmoco.config",
    "DataConfig": "tabmoco.config",
    "EncoderConfig": "tabmoco.config",
    "IndexConfig": "tabmoco.config",
    "ObjectiveConfig": "tabmoco.config",
    "OptimizeConfig": "tabmoco.config",
    "PretrainConfig": "tabmoco.config",
    "RowModel": "tabmoco.model",
    "Schema": "tabmoco.tables.schema",
    "TabMoCoDetector": "tabmoco.estimators",
    "TabMoCoEmbedder": "tabmoco.estimators",
    "TabmocoError": "tabmoco.errors",
    "infer_schema": "tabmoco.tables.schema",
    "open_table": "tabmoco.tables.source",
    "pretrain": "tabmoco.training.pretrain",
}
"""Module of each public name; imported when the name is first used, so that `import tabmoco` stays light."""

__all__ = [
    "CorruptionConfig",
    "DataConfig",
    "EncoderConfig",
    "IndexConfig",
    "ObjectiveConfig",
    "OptimizeConfig",
    "PretrainConfig",
    "RowModel",
    "Schema",
    "TabMoCoDetector",
    "TabMoCoEmbedder",
    "TabmocoError",
    "__version__",
    "infer_schema",
    "open_table",
    "pretrain",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value = _installed_version()
    elif name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'tabmoco' has no attribute {name!r}")
    globals()[name] = value
    return value


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tabmoco")
    except PackageNotFoundError:
        return "0.1.0"


def __dir__() -> list[str]:
    return sorted(__all__)
