"""The classifier for few labels and many rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64
from sklearn.base import ClassifierMixin

from tabmoco.estimators.few_label import HeadEstimator
from tabmoco.tables.labels import read_classes


class TabMoCoClassifier(ClassifierMixin, HeadEstimator):
    """Classes from few labels and many rows: the encoder learns from all rows, heads on top of it from the labels.

    A row without a label has None or NaN in `y`, or -1 where labels are numbers. Where -1 and 1 are all the values
    there are, both are classes.

    Every parameter not described here is that of `TabMoCoEmbedder`; every one that is None takes its value from
    `config`.

    Parameters
    ----------
    model : RowModel, str or path, default=None
        A model made by `pretrain`, or its directory. Then no encoder is trained, and the parameters of training must
        be None. It must not have seen the labels.
    head : str, default="auto"
        What learns the labels. "auto" averages "expected", "cells", "trees", "trees_on_cells" and, from 20 labels on,
        "boosted" and, from 1,000 on, "finetune", each weighted by how well it predicts labels that it did not learn
        from; with fewer than 500 labels a forest learns their average from rows without labels, and has half of the
        say. "blend" averages the same heads as they are. One head alone: "expected", logistic regression on what the
        encoder expects in every cell; "cells", the same on cells and expected cells; "linear_on_cells", on cells only;
        "linear", on the embedding; "trees", extremely randomised trees on cells and expected cells, "trees_on_cells" on
        cells only; "boosted", boosted trees on the cells, "boosted_on_both" on the leading components of the expected
        cells as well; "neighbours", the nearest labelled rows in the embedding; "finetune", the encoder itself, trained
        on the labels.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes among the labels.
    model_ : RowModel
        The trained model.
    head_weights_ : dict of str to float
        Weight of each head in the average.
    n_labels_ : int
        Rows with a label.
    n_features_in_ : int
        Number of columns seen in `fit`, without an id column.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, if all of them are strings.

    Examples
    --------
    >>> from tabmoco import TabMoCoClassifier
    >>> classifier = TabMoCoClassifier(steps=300)
    """

    def fit(self, X: Any, y: Any) -> TabMoCoClassifier:
        """Learn from all rows of `X`, and labels from those that have one.

        Parameters
        ----------
        X : table or array of shape (n_samples, n_features)
            A pandas or polars frame, an Arrow table, a 2-D array or a list of rows; also files. Cells may be missing
            or infinite.
        y : array-like of shape (n_samples,)
            Classes as words, numbers or truth values; None, NaN or -1 for rows without label.
        """
        self._check_head()
        source, labels, seed = self._fit_encoder(X, y, read_classes)
        self.classes_, self.n_labels_ = labels.classes, len(labels.rows)
        self._fit_head(source, labels.rows, labels.code, n_classes=len(labels.classes), seed=seed)
        return self

    def predict_proba(self, X: Any) -> Float64[np.ndarray, "N K"]:
        """Probability of each class of `classes_`; each row's depend on it alone."""
        return self._outputs(X)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        probability = self.predict_proba(X)
        return self.classes_[np.argmax(probability, axis=1)]
