"""The outlier detector: rows to anomaly scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64, Int64
from sklearn.base import OutlierMixin

from tabmoco.config import Kind, PretrainConfig
from tabmoco.errors import ConfigError
from tabmoco.estimators.base import RowModelEstimator
from tabmoco.tables.source import TableSource

_CELL_FIELDS = ("column", "found", "expected", "share")


class TabMoCoDetector(OutlierMixin, RowModelEstimator):
    """Finds strange rows: unlike the most similar training rows, or with cells that do not fit one another.

    As everywhere in scikit-learn higher scores mean more ordinary rows: `score_samples` is minus the anomaly score. A
    row is compared with the training rows apart from one exact twin, so training rows are scored like any others.

    Every parameter not described here is that of `TabMoCoEmbedder`; every one that is None takes its value from
    `config`.

    Parameters
    ----------
    contamination : "auto" or float in (0, 0.5], default="auto"
        Share of the training rows that `predict` flags. "auto" promises something about new rows instead: see `fpr`.
    contaminated : bool, default=None
        Whether the anomalies to be found are among the rows of `fit`, False. Then only the distance to the bulk of the
        rows counts, which anomalies of one kind cannot hide from each other.
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
        contaminated: bool | None = None,
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
        self.contaminated = contaminated
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
