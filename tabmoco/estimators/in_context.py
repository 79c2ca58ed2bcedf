"""A classifier of any kind that is shown, for each group of rows, the labelled rows most like them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.cluster import KMeans

from tabmoco.config import Kind, PretrainConfig
from tabmoco.errors import ConfigError
from tabmoco.estimators.few_label import LabelEstimator
from tabmoco.evaluation.context import directions, nearest_rows
from tabmoco.evaluation.inputs import HeadInput, InputReader
from tabmoco.model import RowModel
from tabmoco.tables.labels import read_classes

MAX_GROUPED = 20_000
"""Rows that the groups are found on at most."""

SPACES = ("traits", "cells", "embedding", "expected", "components")
"""What a base classifier may read of a row."""


class InContextClassifier(ClassifierMixin, MetaEstimatorMixin, LabelEstimator):
    """Fits a copy of a classifier for each group of similar rows on the labelled rows nearest to the group.

    For classifiers that take their training rows as a prompt, such as TabPFN or TabICL, whose context is short, and for
    others that do better near by. Groups are found by k-means among the embeddings of all rows of `fit`, labelled or
    not; a row belongs to the group whose centre is nearest, so what is said of it depends on the row alone.

    Every parameter not described here is that of `TabMoCoEmbedder`; every one that is None takes its value from
    `config`.

    Parameters
    ----------
    base_estimator : estimator
        Any scikit-learn classifier with `predict_proba`; it is cloned for each group, never fitted itself.
    model : RowModel, str or path, default=None
        A model made by `pretrain`, or its directory. Then no encoder is trained.
    k : int, default=512
        Labelled rows that a group is shown; with no more than that all groups are one.
    group_size : int, default=512
        Rows of `fit` per group, on average.
    space : {"traits", "cells", "embedding", "expected", "components"}, default="traits"
        What the base classifier reads of a row: numbers in two scalings with codes by rank, the one-hot cells, the
        embedding, what is expected in every cell, or the leading principal components of that.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes among the labels.
    context_ : list of ndarray
        For each group the positions, in `fit`'s `X`, of the labelled rows that it was shown.
    model_ : RowModel
        The trained model.

    Examples
    --------
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from tabmoco import InContextClassifier
    >>> classifier = InContextClassifier(RandomForestClassifier(), k=200, steps=300)
    """

    def __init__(
        self,
        base_estimator: BaseEstimator,
        *,
        model: RowModel | str | Path | None = None,
        k: int = 512,
        group_size: int = 512,
        space: str = "traits",
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
        self.base_estimator = base_estimator
        self.k = k
        self.group_size = group_size
        self.space = space
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

    def fit(self, X: Any, y: Any) -> InContextClassifier:
        """Learn from all rows of `X`, and labels from those that have one.

        Parameters
        ----------
        X : table or array of shape (n_samples, n_features)
            A pandas or polars frame, an Arrow table, a 2-D array or a list of rows; also files.
        y : array-like of shape (n_samples,)
            Classes as words, numbers or truth values; None, NaN or -1 for rows without label.
        """
        if self.k < 1 or self.group_size < 1:
            raise ConfigError(f"k and group_size must be at least 1, got {self.k} and {self.group_size}.")
        if self.space not in SPACES:
            raise ConfigError(f"space must be one of {', '.join(SPACES)}, got {self.space!r}.")
        source, labels, seed = self._fit_encoder(X, y, read_classes)
        self.classes_ = labels.classes
        self.reader_ = InputReader.fit(self.model_, source, seed=seed)
        shown = self.reader_.take(source, labels.rows)
        n_groups = -(-source.n_rows // self.group_size) if len(labels.rows) > self.k else 1
        grouped = np.arange(source.n_rows)
        if len(grouped) > MAX_GROUPED:
            grouped = np.random.default_rng(seed).choice(len(grouped), MAX_GROUPED, replace=False)
        self._centres = _centres(self.reader_.take(source, np.sort(grouped)), n_groups, seed)
        nearest = nearest_rows(self._centres, shown.spaces["embedding"], self.k)
        self.context_ = [labels.rows[places] for places in nearest]
        self.estimators_ = [self._fit_one(shown[places], labels.code[places]) for places in nearest]
        return self

    def predict_proba(self, X: Any) -> Float64[np.ndarray, "N K"]:
        """Probability of each class of `classes_`, by the classifier of each row's group."""
        source = self._read(X)
        parts = [np.zeros((0, len(self.classes_)))]
        for rows in self.reader_.batches(source):
            group = np.argmax(directions(rows.spaces["embedding"]).astype(np.float64) @ self._centres.T, axis=1)
            probability = np.zeros((len(rows), len(self.classes_)))
            for number in np.unique(group):
                members = np.flatnonzero(group == number)
                classes, estimator = self.estimators_[number]
                given = rows.spaces[self.space][members]
                probability[np.ix_(members, classes)] = 1.0 if estimator is None else estimator.predict_proba(given)
            parts.append(probability)
        return np.concatenate(parts)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        probability = self.predict_proba(X)
        return self.classes_[np.argmax(probability, axis=1)]

    def _fit_one(self, shown: HeadInput, code: np.ndarray) -> tuple[np.ndarray, Any]:
        """The classes that a context holds, and a classifier of them; none where there is but one."""
        classes = np.unique(code)
        if len(classes) == 1:
            return classes, None
        return classes, clone(self.base_estimator).fit(shown.spaces[self.space], np.searchsorted(classes, code))


def _centres(rows: HeadInput, n_groups: int, seed: int) -> Float64[np.ndarray, "g D"]:
    """Directions in the embedding around which rows gather."""
    direction = directions(rows.spaces["embedding"]).astype(np.float64)
    if n_groups == 1:
        return direction.mean(axis=0, keepdims=True)
    n_groups = min(n_groups, len(np.unique(direction, axis=0)))
    return KMeans(n_groups, n_init=1, random_state=seed % 2**31).fit(direction).cluster_centers_
