"""The regressor for few targets and many rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64
from sklearn.base import RegressorMixin

from tabmoco.estimators.few_label import HeadEstimator
from tabmoco.tables.labels import read_numbers


class TabMoCoRegressor(RegressorMixin, HeadEstimator):
    """Numbers from few targets and many rows: the encoder learns from all rows, heads on top of it from the targets.

    A row without a target has NaN in `y`.

    Every parameter not described here is that of `TabMoCoEmbedder`; every one that is None takes its value from
    `config`.

    Parameters
    ----------
    model : RowModel, str or path, default=None
        A model made by `pretrain`, or its directory. Then no encoder is trained, and the parameters of training must
        be None. It must not have seen the targets.
    head : str, default="auto"
        What learns the targets, as for `TabMoCoClassifier`, with ridge in place of logistic regression and nothing
        learned from rows without targets beyond the encoder.

    Attributes
    ----------
    model_ : RowModel
        The trained model.
    head_weights_ : dict of str to float
        Weight of each head in the average.
    n_labels_ : int
        Rows with a target.
    n_features_in_ : int
        Number of columns seen in `fit`, without an id column.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, if all of them are strings.

    Examples
    --------
    >>> from tabmoco import TabMoCoRegressor
    >>> regressor = TabMoCoRegressor(steps=300)
    """

    def fit(self, X: Any, y: Any) -> TabMoCoRegressor:
        """Learn from all rows of `X`, and targets from those that have one.

        Parameters
        ----------
        X : table or array of shape (n_samples, n_features)
            A pandas or polars frame, an Arrow table, a 2-D array or a list of rows; also files. Cells may be missing
            or infinite.
        y : array-like of shape (n_samples,)
            Numbers; NaN for rows without a target.
        """
        self._check_head()
        source, targets, seed = self._fit_encoder(X, y, read_numbers)
        self.n_labels_ = len(targets.rows)
        self._centre = float(targets.value.mean())
        self._scale = float(targets.value.std()) or 1.0
        self._fit_head(source, targets.rows, (targets.value - self._centre) / self._scale, n_classes=0, seed=seed)
        return self

    def predict(self, X: Any) -> Float64[np.ndarray, " N"]:
        """The expected number of each row; each depends on its row alone."""
        standardised = self._outputs(X).reshape(-1)
        return self._centre + self._scale * standardised
