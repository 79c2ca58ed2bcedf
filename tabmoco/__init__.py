"""Self-supervised MoCo pretraining on raw tables: embeddings, anomaly scores and similar rows."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tabmoco.columns.catalogue import Catalogue
    from tabmoco.columns.encoder import ColumnEncoder
    from tabmoco.columns.learning import train_column_encoder
    from tabmoco.columns.matching import match_columns
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
    from tabmoco.estimators import (
        InContextClassifier,
        TabMoCoClassifier,
        TabMoCoDetector,
        TabMoCoEmbedder,
        TabMoCoImputer,
        TabMoCoRegressor,
    )
    from tabmoco.evaluation.clusters import Cluster, Clusters, cluster
    from tabmoco.evaluation.comparison import Comparison, benchmark
    from tabmoco.evaluation.context import context_rows
    from tabmoco.evaluation.drift import drift
    from tabmoco.evaluation.drift_result import Drift
    from tabmoco.evaluation.probes import ProbeResult, probe
    from tabmoco.model import RowModel
    from tabmoco.report.make import Report, make_report
    from tabmoco.tables.schema import Schema, infer_schema
    from tabmoco.tables.source import open_table
    from tabmoco.training.pretrain import pretrain
    from tabmoco.training.update import update

    __version__: str

_HOME = {
    "Catalogue": "tabmoco.columns.catalogue",
    "Cluster": "tabmoco.evaluation.clusters",
    "Clusters": "tabmoco.evaluation.clusters",
    "ColumnEncoder": "tabmoco.columns.encoder",
    "Comparison": "tabmoco.evaluation.comparison",
    "CorruptionConfig": "tabmoco.config",
    "DataConfig": "tabmoco.config",
    "Drift": "tabmoco.evaluation.drift_result",
    "EncoderConfig": "tabmoco.config",
    "InContextClassifier": "tabmoco.estimators",
    "IndexConfig": "tabmoco.config",
    "ObjectiveConfig": "tabmoco.config",
    "OptimizeConfig": "tabmoco.config",
    "PretrainConfig": "tabmoco.config",
    "ProbeResult": "tabmoco.evaluation.probes",
    "Report": "tabmoco.report.make",
    "RowModel": "tabmoco.model",
    "Schema": "tabmoco.tables.schema",
    "TabMoCoClassifier": "tabmoco.estimators",
    "TabMoCoDetector": "tabmoco.estimators",
    "TabMoCoEmbedder": "tabmoco.estimators",
    "TabMoCoImputer": "tabmoco.estimators",
    "TabMoCoRegressor": "tabmoco.estimators",
    "TabmocoError": "tabmoco.errors",
    "benchmark": "tabmoco.evaluation.comparison",
    "cluster": "tabmoco.evaluation.clusters",
    "context_rows": "tabmoco.evaluation.context",
    "drift": "tabmoco.evaluation.drift",
    "infer_schema": "tabmoco.tables.schema",
    "make_report": "tabmoco.report.make",
    "match_columns": "tabmoco.columns.matching",
    "open_table": "tabmoco.tables.source",
    "pretrain": "tabmoco.training.pretrain",
    "probe": "tabmoco.evaluation.probes",
    "train_column_encoder": "tabmoco.columns.learning",
    "update": "tabmoco.training.update",
}
"""Module of each public name; imported when the name is first used, so that `import tabmoco` stays light."""

__all__ = [
    "Catalogue",
    "Cluster",
    "Clusters",
    "ColumnEncoder",
    "Comparison",
    "CorruptionConfig",
    "DataConfig",
    "Drift",
    "EncoderConfig",
    "InContextClassifier",
    "IndexConfig",
    "ObjectiveConfig",
    "OptimizeConfig",
    "PretrainConfig",
    "ProbeResult",
    "Report",
    "RowModel",
    "Schema",
    "TabMoCoClassifier",
    "TabMoCoDetector",
    "TabMoCoEmbedder",
    "TabMoCoImputer",
    "TabMoCoRegressor",
    "TabmocoError",
    "__version__",
    "benchmark",
    "cluster",
    "context_rows",
    "drift",
    "infer_schema",
    "make_report",
    "match_columns",
    "open_table",
    "pretrain",
    "probe",
    "train_column_encoder",
    "update",
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
