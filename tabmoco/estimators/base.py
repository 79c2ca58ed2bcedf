"""What all estimators share: the settings of the encoder, and how tables and arrays are read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from tabmoco.config import Kind, PretrainConfig
from tabmoco.errors import ConfigError, SchemaError
from tabmoco.model import RowModel
from tabmoco.tables.frames import to_arrow
from tabmoco.tables.schema import natural_kind
from tabmoco.tables.source import TableSource, open_table
from tabmoco.training.pretrain import pretrain

_HOME = {
    "steps": "optimize",
    "epochs": "optimize",
    "minutes": "optimize",
    "batch_size": "optimize",
    "learning_rate": "optimize",
    "backbone": "encoder",
    "d_embedding": "encoder",
    "temperature": "objective",
    "queue_size": "objective",
    "n_neighbors": "index",
    "fpr": "index",
    "contaminated": "index",
    "kinds": "data",
    "exclude": "data",
}
"""Group of `PretrainConfig` that each parameter of the same name belongs to."""

_BUDGETS = ("steps", "epochs", "minutes")


class RowModelEstimator(BaseEstimator):
    """Fits a `RowModel` and reads the tables handed to it."""

    def __init__(
        self,
        *,
        steps: int | None = None,
        epochs: float | None = None,
        minutes: float | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        backbone: str | None = None,
        d_embedding: int | None = None,
        temperature: float | None = None,
        queue_size: int | None = None,
        kinds: Mapping[str, Kind] | None = None,
        exclude: Sequence[str] | None = None,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
        config: PretrainConfig | None = None,
    ):
        self.steps = steps
        self.epochs = epochs
        self.minutes = minutes
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.backbone = backbone
        self.d_embedding = d_embedding
        self.temperature = temperature
        self.queue_size = queue_size
        self.kinds = kinds
        self.exclude = exclude
        self.device = device
        self.random_state = random_state
        self.config = config

    def _pretrain(self, X: Any) -> TableSource:
        """Fit `model_`; returns the training table as the model reads it."""
        source, config = self._open_training(X, self._config())
        self.model_ = pretrain(source, config)
        return source

    def _open_training(self, X: Any, config: PretrainConfig) -> tuple[TableSource, PretrainConfig]:
        """The table to learn from, and the configuration with what is known of its columns."""
        data = config.data
        if _is_positional(X):
            table = self._read_positions(X, reset=True)
            source = open_table(table, columns=data.columns, exclude=data.exclude, id_column=data.id_column)
            measured = {name: natural_kind(table.schema.field(name).type) for name in _number_columns(table)}
            kinds = {name: kind for name, kind in measured.items() if name in source.arrow_schema.names}
            config = _replaced(config, {"data.kinds": {**kinds, **data.kinds}})
            names = table.column_names
        else:
            whole = open_table(X, id_column=data.id_column)
            names = whole.arrow_schema.names
            self._check_shape((whole.n_rows, len(names)), reset=True)
            if all(isinstance(name, str) for name in (X.columns if hasattr(X, "iloc") else names)):
                self.feature_names_in_ = np.array(names, dtype=object)
            source = open_table(whole, columns=data.columns, exclude=data.exclude)
        self._names = tuple(names)
        self._by_position = _is_positional(X)
        return source, config

    def _read(self, X: Any) -> TableSource:
        """A table at use, in the columns of training."""
        check_is_fitted(self, "model_")
        if self._by_position or _is_positional(X):
            return open_table(self._read_positions(X, reset=False).rename_columns(list(self._names)))
        source = open_table(X)
        _refuse_missing(source, self.model_)
        return source

    def _read_positions(self, X: Any, *, reset: bool) -> pa.Table:
        """Rows of unnamed cells as an Arrow table, checked as scikit-learn checks arrays."""
        if not _is_array(X):
            table, _ = to_arrow(X)
            self._check_shape(table.shape, reset=reset)
            return table
        checked = validate_data(self, X, **_array_rules(reset))
        return to_arrow(X if isinstance(X, np.ma.MaskedArray) else checked)[0]

    def _check_shape(self, shape: tuple[int, int], *, reset: bool) -> None:
        """Let scikit-learn count the rows and columns of what is no array."""
        validate_data(self, np.broadcast_to(np.float64(0), shape), **_array_rules(reset))

    def _config(self) -> PretrainConfig:
        """`config` with the parameters that are given."""
        if not (self.config is None or isinstance(self.config, PretrainConfig)):
            raise ConfigError(
                f"config must be a PretrainConfig, got {type(self.config).__name__}; use PretrainConfig.from_dict."
            )
        base = PretrainConfig() if self.config is None else self.config
        parameters = self.get_params(deep=False)
        changes = {f"{_HOME[name]}.{name}": parameters[name] for name in _HOME if name in parameters}
        changes |= {"device": self.device, "index.rows": parameters.get("index_rows")}
        seed = self.random_state
        changes["seed"] = int(seed.randint(2**31 - 1)) if isinstance(seed, np.random.RandomState) else seed
        return _replaced(base, changes)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags


def _is_array(X: Any) -> bool:
    """Whether `X` is a NumPy-like or sparse array, to be judged by scikit-learn's rules."""
    is_table = hasattr(X, "columns") or hasattr(X, "__arrow_c_stream__")
    return not is_table and (hasattr(X, "__array__") or hasattr(X, "tocsr"))


def _is_positional(X: Any) -> bool:
    """Whether the columns of `X` have no names: arrays and lists of rows."""
    if isinstance(X, list | tuple):
        return not (X and isinstance(X[0], Mapping | str | os.PathLike))
    return _is_array(X)


def _array_rules(reset: bool) -> dict[str, Any]:
    return {"reset": reset, "dtype": None, "ensure_all_finite": False, "ensure_min_samples": 2 if reset else 0}


def _number_columns(table: pa.Table) -> Iterable[str]:
    """Columns of numbers or truth values that hold at least one."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if natural_kind(column.type) in ("number", "boolean") and column.null_count < len(column):
            yield name


def _refuse_missing(source: TableSource, model: RowModel) -> None:
    """Raise what scikit-learn says of columns that are not those of training; order and further columns are free."""
    found, known = source.arrow_schema.names, [column.name for column in model.schema.columns]
    missing = [column.name for column in model.schema.used if column.name not in found]
    if not missing:
        return
    unseen = [name for name in found if name not in known]
    sections = {"Feature names unseen at fit time": unseen, "Feature names seen at fit time, yet now missing": missing}
    listed = "".join(f"{title}:\n" + "".join(f"- {n}\n" for n in names) for title, names in sections.items() if names)
    raise SchemaError(f"The feature names should match those that were passed during fit.\n{listed}")


def _replaced(config: PretrainConfig, changes: Mapping[str, Any]) -> PretrainConfig:
    """A copy of `config` with the changes that are not None, checked like any configuration."""
    settings = config.to_dict()
    if any(changes.get(f"optimize.{budget}") is not None for budget in _BUDGETS):
        for budget in _BUDGETS:
            settings["optimize"].pop(budget, None)
    for name, value in changes.items():
        if value is not None:
            group, _, leaf = name.rpartition(".")
            parent = settings[group] if group else settings
            parent[leaf] = _plain(value)
    return PretrainConfig.from_dict(settings)


def _plain(value: Any) -> Any:
    """NumPy scalars as Python ones, and column names as the strings that tables call them by."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple | np.ndarray):
        return [str(name) for name in value]
    return value
