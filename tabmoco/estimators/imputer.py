"""The transformer that fills missing cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils._set_output import _get_output_config

from tabmoco.config import Kind, PretrainConfig
from tabmoco.errors import SchemaError
from tabmoco.estimators.base import _is_array, _is_positional
from tabmoco.estimators.few_label import LabelEstimator
from tabmoco.imputation.arrow_values import gaps_of
from tabmoco.model import RowModel
from tabmoco.tables.names import list_names
from tabmoco.tables.source import open_table
from tabmoco.training.pretrain import pretrain


class TabMoCoImputer(OneToOneFeatureMixin, TransformerMixin, LabelEstimator):
    """Fills missing cells with what the rest of their rows and similar rows make likely; all other cells stay as they
    are.

    What comes out is what went in: a pandas or polars frame, an Arrow table or an array, with the columns of `fit` in
    their order. An array of numbers comes out as floats, one with other cells as objects; files, dicts and lists of
    dicts come out as an Arrow table. Texts, constants and identifiers are not filled.

    Every parameter not described here is that of `TabMoCoEmbedder`; every one that is None takes its value from
    `config`.

    Parameters
    ----------
    model : RowModel, str or path, default=None
        A model made by `pretrain`, or its directory. Then nothing is trained, and the parameters of training must be
        None.

    Attributes
    ----------
    model_ : RowModel
        The trained model; its `impute` also says how sure each filled cell is.
    n_features_in_ : int
        Number of columns seen in `fit`, without an id column.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, if all of them are strings.

    Examples
    --------
    >>> from tabmoco import TabMoCoImputer
    >>> imputer = TabMoCoImputer(steps=300)
    """

    def __init__(
        self,
        *,
        model: RowModel | str | Path | None = None,
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
        super().__init__(
            model=model,
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

    def fit(self, X: Any, y: Any = None) -> TabMoCoImputer:
        """Learn from the rows of `X`, gaps included.

        Parameters
        ----------
        X : table or array of shape (n_samples, n_features)
            A pandas or polars frame, an Arrow table, a 2-D array or a list of rows; also files.
        y : None
            Ignored.
        """
        source, config = self._open_training(X, self._config())
        if self.model is None:
            self.model_ = pretrain(source, config)
        else:
            given = self._given_model()
            given.preprocessor.align(source.arrow_schema, name=source.name)
            self.model_ = given
        return self

    def transform(self, X: Any) -> Any:
        """`X` with its missing cells filled; what fills a cell depends on its row alone."""
        source = self._read(X)
        lacking = [name for name in self._names if name not in source.arrow_schema.names]
        if lacking:
            raise SchemaError(
                f"The columns that come out are those of fit, but {source.name} lacks {list_names(lacking)}; add them, "
                "empty if need be, or leave them out in fit."
            )
        filled = self.model_.impute(open_table(source, columns=self._names)).select(list(self._names))
        if hasattr(X, "iloc"):
            return _pandas_like(X, filled)
        if _is_positional(X):
            return _array_like(X, filled)
        if _get_output_config("transform", self)["dense"] == "pandas":
            return filled.to_pandas()  # pandas' own constructor understands neither Arrow nor polars
        if type(X).__module__.partition(".")[0] == "polars":
            return _polars_like(X, filled)
        return filled

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _pandas_like(frame: Any, filled: pa.Table) -> Any:
    """The frame's columns of these names, with values in place of their gaps; index and types stay."""
    places = {str(name): place for place, name in enumerate(frame.columns)}
    result = frame.iloc[:, [places[name] for name in filled.column_names]].copy()
    for place, name in enumerate(filled.column_names):
        column = result.iloc[:, place]
        values = filled.column(name)
        rows = np.flatnonzero(column.isna().to_numpy() & ~gaps_of(values.combine_chunks()))
        if not len(rows):
            continue
        told = _bare(values).take(pa.array(rows)).to_pandas().tolist()
        dtype = type(column.dtype).__name__
        if dtype == "SparseDtype":
            column = column.sparse.to_dense()
        elif dtype == "CategoricalDtype":
            known = set(column.cat.categories)
            column = column.cat.add_categories([value for value in dict.fromkeys(told) if value not in known])
        else:
            column = column.copy()
        column.iloc[rows] = told
        result.isetitem(place, column)
    return result


def _polars_like(frame: Any, filled: pa.Table) -> Any:
    """A polars frame of the same types."""
    table = pa.table([_bare(column) for column in filled.columns], names=filled.column_names)
    return type(frame)(table).cast({name: frame.schema[name] for name in filled.column_names})


def _array_like(array: Any, filled: pa.Table) -> np.ndarray:
    """Floats, in the array's own precision, if all cells are numbers or truth values; else objects."""
    numeric = all(_is_number(column.type) for column in filled.columns)
    dtype: Any = object
    if numeric:
        own = getattr(array, "dtype", None) if _is_array(array) else None
        dtype = np.float32 if own == np.float32 else np.float64
    result = np.empty(filled.shape, dtype=dtype)
    for place, column in enumerate(filled.columns):
        values = _bare(column)
        result[:, place] = values.cast(pa.float64()).to_numpy() if numeric else np.array(values.to_pylist(), object)
    return result


def _bare(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values without a dictionary."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _is_number(arrow_type: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_integer(arrow_type)
        or types.is_floating(arrow_type)
        or types.is_boolean(arrow_type)
        or types.is_null(arrow_type)
    )
