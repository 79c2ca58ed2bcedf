"""The scikit-learn contract: an embedder and an anomaly detector that take any table or array.

Tables with column names are read by name: at use their columns may stand in any order, further ones are ignored with
a notice, and a missing one is an error. Arrays and lists of rows are read by position, under the names ``x0``,
``x1``, and so on. A table says what its columns are; an array does not, so each of its columns of numbers counts as
measured: none is left out as constant or as an identifier, only those without a single value are.

Fitted estimators can be copied, pickled and read from several threads. To keep one for later, save its model
(`estimator.model_.save(directory)`), whose files cannot execute code.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float32, Float64, Int64
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin
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
    "kinds": "data",
    "exclude": "data",
}
"""Group of `PretrainConfig` that each parameter of the same name belongs to."""

_BUDGETS = ("steps", "epochs", "minutes")
_CELL_FIELDS = ("column", "found", "expected", "share")


class _RowModelEstimator(BaseEstimator):
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
        config = self._config()
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
        self.model_ = pretrain(source, config)
        self._names = tuple(names)
        self._by_position = _is_positional(X)
        return source

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


class TabMoCoEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _RowModelEstimator):
    """Rows to embeddings, learned without labels by momentum contrast and by rebuilding masked cells.

    Every parameter that is None takes its value from `config`.

    Parameters
    ----------
    steps, epochs, minutes : int, float, float, default=None
        Training budget: optimizer steps, passes over the rows, or wall-clock minutes. At most one is given; with none,
        800 steps, fewer for a small table.
    batch_size : int, default=None
        Rows per step, 256; a smaller table is one batch.
    learning_rate : float, default=None
        Peak learning rate of AdamW, 2e-3.
    backbone : {"mlp", "resnet", "ft_transformer"}, default=None
        Network over the columns' tokens, "resnet".
    d_embedding : int, default=None
        Width of an embedding, 256.
    temperature : float, default=None
        Temperature of the contrastive loss, 0.05.
    queue_size : int, default=None
        Past keys kept as negatives, 4,096.
    kinds : dict of str to str, default=None
        Kind of a column ("number", "category", "boolean", "timestamp", "text" or "dropped") where the inferred one is
        not wanted. The columns of an array are called ``x0``, ``x1``, and so on.
    exclude : sequence of str, default=None
        Columns to leave out.
    device : {"auto", "cpu", "cuda", "mps"}, default=None
        Where the model runs; "auto" takes a GPU if there is one.
    random_state : int or RandomState instance, default=None
        Seed of everything random. None takes the seed of `config`, so that two fits of the same table agree.
    config : PretrainConfig, default=None
        All other settings, and the values of the parameters that are None.

    Attributes
    ----------
    model_ : RowModel
        The trained model. It also scores, explains and searches rows, and can be saved.
    n_features_in_ : int
        Number of columns seen in `fit`, without an id column.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, if all of them are strings.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from tabmoco import TabMoCoEmbedder
    >>> classifier = make_pipeline(TabMoCoEmbedder(steps=200), LogisticRegression(max_iter=1_000))
    """

    def fit(self, X: Any, y: Any = None) -> TabMoCoEmbedder:
        """Learn from the rows of `X`.

        Parameters
        ----------
        X : table or array of shape (n_samples, n_features)
            A pandas or polars frame, an Arrow table, a 2-D array or a list of rows; also files. Cells may be missing
            or infinite.
        y : None
            Ignored.
        """
        self._pretrain(X)
        return self

    def transform(self, X: Any) -> Float32[np.ndarray, "N D"]:
        """Embeddings of the rows of `X`; each depends on its row alone."""
        source = self._read(X)
        return self.model_.embed(source)

    @property
    def _n_features_out(self) -> int:
        return self.model_.d_embedding

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # embeddings are float32 whatever the cells are
        return tags


class TabMoCoDetector(OutlierMixin, _RowModelEstimator):
    """Finds strange rows: unlike the most similar training rows, or with cells that do not fit one another.

    As everywhere in scikit-learn higher scores mean more ordinary rows: `score_samples` is minus the anomaly score. A
    row is compared with the training rows apart from one exact twin, so training rows are scored like any others.

    Every parameter not described here is that of `TabMoCoEmbedder`; every one that is None takes its value from
    `config`.

    Parameters
    ----------
    contamination : "auto" or float in (0, 0.5], default="auto"
        Share of the training rows that `predict` flags. "auto" promises something about new rows instead: see `fpr`.
    fpr : float, default=None
        With ``contamination="auto"``, the share of ordinary new rows that `predict` may flag, 0.01. The threshold is
        conformal: rows kept out of training calibrate it, or the training rows themselves where a table has fewer than
        500. With fewer than ``1 / fpr - 1`` of them nothing is flagged.
    n_neighbors : int, default=None
        Training rows that a row is compared with, 2.
    index_rows : {"auto", "queue", "all"} or int, default=None
        Training rows that are kept for comparison, "auto": all of up to 100,000, else a sample.

    Attributes
    ----------
    model_ : RowModel
        The trained model.
    offset_ : float
        Rows whose `score_samples` lies below are flagged.
    n_features_in_ : int
        Number of columns seen in `fit`, without an id column.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, if all of them are strings.

    Examples
    --------
    >>> from tabmoco import TabMoCoDetector
    >>> detector = TabMoCoDetector(contamination=0.02, steps=500)
    """

    def __init__(
        self,
        *,
        contamination: float | str = "auto",
        fpr: float | None = None,
        n_neighbors: int | None = None,
        index_rows: int | str | None = None,
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
        self.contamination = contamination
        self.fpr = fpr
        self.n_neighbors = n_neighbors
        self.index_rows = index_rows
        super().__init__(
            steps=steps,
            epochs=epochs,
            minutes=minutes,
            batch_size=batch_size,
            learning_rate=learning_rate,
            backbone=backbone,
            d_embedding=d_embedding,
            temperature=temperature,
            queue_size=queue_size,
            kinds=kinds,
            exclude=exclude,
            device=device,
            random_state=random_state,
            config=config,
        )

    def fit(self, X: Any, y: Any = None) -> TabMoCoDetector:
        """Learn from the rows of `X`, most of which should be ordinary.

        Parameters
        ----------
        X : table or array of shape (n_samples, n_features)
            A pandas or polars frame, an Arrow table, a 2-D array or a list of rows; also files. Cells may be missing
            or infinite.
        y : None
            Ignored.
        """
        contamination = _checked_contamination(self.contamination)
        source = self._pretrain(X)
        if contamination is None:
            reference = self.model_.reference
            assert reference is not None
            flagged_from = reference.calibration.threshold(self.model_.config.index.fpr)
            self.offset_ = -float(np.nextafter(flagged_from, -np.inf))
        else:
            scores = -_column(self._scored(source), "anomaly_score")
            self.offset_ = float(np.percentile(scores, 100 * contamination))
        return self

    def score_samples(self, X: Any) -> Float64[np.ndarray, " N"]:
        """Minus the anomaly score of each row: 0 or less, lower for stranger rows."""
        source = self._read(X)
        return -_column(self._scored(source), "anomaly_score")

    def decision_function(self, X: Any) -> Float64[np.ndarray, " N"]:
        """`score_samples` minus `offset_`: negative for the rows that `predict` flags."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> Int64[np.ndarray, " N"]:
        """-1 for a strange row, +1 for an ordinary one."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def p_values(self, X: Any) -> Float64[np.ndarray, " N"]:
        """Share of ordinary rows that are at least as strange as each row; above 0 and up to 1."""
        source = self._read(X)
        return _column(self._scored(source), "p_value")

    def explain(self, X: Any, *, top_cells: int = 5) -> pa.Table:
        """The cells that make each row strange, most to blame first.

        Parameters
        ----------
        X : table or array of shape (n_samples, n_features)
            Rows to explain.
        top_cells : int, default=5
            Cells per row.

        Returns
        -------
        A table of `row`, the position in `X`; `column`; `found` and `expected`, the cell as it is and as the rest of
        its row makes likely; and `share`, the part of the row's anomaly score that the cell answers for, 0 to 1.
        """
        source = self._read(X)
        cells = self._scored(source, explain="all", top_cells=top_cells)["cells"].combine_chunks()
        rows = pc.list_parent_indices(cells).cast(pa.int64())
        return pa.table({"row": rows, **dict(zip(_CELL_FIELDS, cells.flatten().flatten(), strict=True))})

    def _scored(self, source: TableSource, **options: Any) -> pa.Table:
        """What the model says of rows. Its `fpr`, and the warning that it is too small to flag anything, counts for
        "auto" alone."""
        fpr = None if _checked_contamination(self.contamination) is None else 1.0
        return self.model_.score(source, fpr=fpr, **options)


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


def _checked_contamination(contamination: Any) -> float | None:
    """The share, or None for "auto"."""
    if isinstance(contamination, str) and contamination == "auto":
        return None
    is_number = isinstance(contamination, Real) and not isinstance(contamination, bool)
    if not (is_number and 0 < contamination <= 0.5):
        raise ConfigError(f'contamination must be "auto" or above 0 and up to 0.5, got {contamination!r}.')
    return float(contamination)


def _column(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_numpy()
