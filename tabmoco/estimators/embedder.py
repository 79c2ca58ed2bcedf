"""The transformer: rows to vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags

from tabmoco.config import Kind, PretrainConfig, Space, require_space
from tabmoco.estimators.base import RowModelEstimator


class TabMoCoEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, RowModelEstimator):
    """Rows to vectors, learned without labels by momentum contrast and by rebuilding masked cells.

    Every parameter that is None takes its value from `config`.

    Parameters
    ----------
    space : {"embedding", "expected"}, default="embedding"
        Vectors: "embedding", where rows lie near each other that share their cells, for neighbours and clusters; or
        "expected", what the model expects in every cell, for classifiers and regressions, which learn more from it
        with few labels.
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
    >>> from sklearn.preprocessing import StandardScaler
    >>> from tabmoco import TabMoCoEmbedder
    >>> embedder = TabMoCoEmbedder(space="expected", steps=200)
    >>> classifier = make_pipeline(embedder, StandardScaler(), LogisticRegression(max_iter=1_000))
    """

    def __init__(
        self,
        *,
        space: Space = "embedding",
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
        self.space = space
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
        require_space(self.space, self._config().objective)
        self._pretrain(X)
        return self

    def transform(self, X: Any) -> Float32[np.ndarray, "N D"]:
        """The rows of `X` as vectors; each depends on its row alone."""
        source = self._read(X)
        return self.model_.embed(source, space=self.space)

    @property
    def _n_features_out(self) -> int:
        return self.model_.width(self.space)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # embeddings are float32 whatever the cells are
        return tags
