"""What classifier and regressor share: an encoder that learns from all rows, and a head from those with labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.validation import check_consistent_length

from tabmoco.config import Kind, PretrainConfig
from tabmoco.errors import ConfigError, SchemaError, TableError
from tabmoco.estimators.base import RowModelEstimator
from tabmoco.evaluation.blend import Blend, build_head
from tabmoco.evaluation.heads import HEADS
from tabmoco.evaluation.inputs import InputReader
from tabmoco.evaluation.problem import Head, Problem
from tabmoco.evaluation.student import draw_unlabelled
from tabmoco.model import RowModel
from tabmoco.tables.labels import Classes, Numbers
from tabmoco.tables.source import TableSource
from tabmoco.training.pretrain import pretrain

HEAD_NAMES = ("auto", "blend", *HEADS)

_FREE = ("device", "random_state")
"""Encoder settings that mean something beside a given model."""

Read = TypeVar("Read", Classes, Numbers)


class LabelEstimator(RowModelEstimator):
    """Pretrains on all rows, or takes a trained model."""

    def __init__(self, *, model: RowModel | str | Path | None = None, **training: Any):
        self.model = model
        super().__init__(**training)

    def _fit_encoder(self, X: Any, y: Any, read: Callable[[Any], Read]) -> tuple[TableSource, Read, int]:
        """Fit `model_` without labels, or take the one given; returns the table, the labels and the heads' seed."""
        if y is None:
            raise TableError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        source, config = self._open_training(X, self._config())
        check_consistent_length(np.empty(source.n_rows), y)
        labels = read(y)
        given = None if self.model is None else self._given_model()
        columns = source.arrow_schema.names if given is None else given.preprocessor.layout.columns
        name = getattr(y, "name", None)
        if isinstance(name, str) and name in columns:
            raise SchemaError(
                f"the labels must not be among the columns that the model reads, got y named {name!r}; drop that "
                "column from X, and from the table if a model was trained on it."
            )
        if given is None:
            self.model_ = pretrain(source, config)
        else:
            given.preprocessor.align(source.arrow_schema, name=source.name)
            self.model_ = given
        return source, labels, config.seed

    def _given_model(self) -> RowModel:
        given = {name: value for name, value in self.get_params(deep=False).items() if name not in _FREE}
        useless = [n for n in RowModelEstimator().get_params(deep=False) if n not in _FREE and given[n] is not None]
        if useless:
            raise ConfigError(f"with model given no encoder is trained, so {', '.join(useless)} must be None.")
        if isinstance(self.model, RowModel):
            return self.model
        if isinstance(self.model, str | os.PathLike):
            return RowModel.load(self.model, device=self.device or "auto")
        raise ConfigError(f"model must be a RowModel or a model directory, got {type(self.model).__name__}.")


class HeadEstimator(LabelEstimator):
    """Learns labels, from the rows that have one, by a head."""

    def __init__(
        self,
        *,
        model: RowModel | str | Path | None = None,
        head: str = "auto",
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
        self.head = head
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

    def _check_head(self) -> None:
        if self.head not in HEAD_NAMES:
            raise ConfigError(f"head must be one of {', '.join(HEAD_NAMES)}, got {self.head!r}.")

    def _fit_head(self, source: TableSource, rows: np.ndarray, y: np.ndarray, *, n_classes: int, seed: int) -> None:
        self.reader_ = InputReader.fit(self.model_, source, seed=seed)
        problem = Problem(n_classes, self.model_, seed % 2**31)
        head, labelled = build_head(self.head, problem), self.reader_.take(source, rows)
        if isinstance(head, Blend) and head.wants_student(y):
            others = draw_unlabelled(source.n_rows, rows, seed=problem.seed)
            self.head_: Head | Blend = head.fit(labelled, y, self.reader_.take(source, others))
        else:
            self.head_ = head.fit(labelled, y)

    def _outputs(self, X: Any) -> np.ndarray:
        """What the head says of the rows of `X`."""
        source = self._read(X)
        parts = [self.head_.predict(rows) for rows in self.reader_.batches(source)]
        return np.concatenate(parts) if parts else np.zeros((0, max(1, self.head_.problem.n_classes)))

    @property
    def head_weights_(self) -> dict[str, float]:
        """Weight of each head in the average; of one head, 1."""
        return self.head_.weights if isinstance(self.head_, Blend) else {self.head: 1.0}
