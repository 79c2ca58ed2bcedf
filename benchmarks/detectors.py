"""The detectors that are compared: tabmoco, its rivals with their default settings, and plain controls.

Each is called as `detector(train, test, seed)` and gives one float64 per test row, higher = stranger. With `test=None`
it scores the training rows themselves: PyOD's `decision_scores_`, neighbours other than the row itself. Tables may hold
anything; all but tabmoco see them through `benchmarks.cell_matrix`, standardised unless they say otherwise. Some
libraries scale once more (PyOD's PCA, DeepSVDD, LUNAR, AutoEncoder). PyOD's ECOD and COPOD rank test rows among
training and test rows together; that is how they come.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import NearestNeighbors

from benchmarks.cell_matrix import (
    Matrix,
    Scale,
    Table,
    cell_matrix,
    encode_cells,
    quantile_normal,
    standardised,
)

__all__ = ["DETECTORS", "Detector", "build_detector", "encode_cells"]


class Scores(NamedTuple):
    """What a detector says of `N` rows."""

    anomaly_score: np.ndarray
    """Higher = stranger, `[N]` float64."""

    p_value: np.ndarray | None = None
    """Share of normal rows at least as strange, from those that promise one."""

    n_calibration: int = 0
    """Rows that these shares are counted among."""


Score = Callable[[Table, "Table | None", int], "np.ndarray | Scores"]

UNTRAINED = ("optimize.steps=1", "optimize.epochs=none", "optimize.minutes=none", "optimize.learning_rate=0")
"""Settings with which training changes no weight."""

CONTAMINATED = ("index.contaminated=true", *UNTRAINED)
"""Settings for rows that are known to hold anomalies. What counts then is not learned, so nothing is trained."""


@dataclass(frozen=True)
class Detector:
    """One way to score rows."""

    name: str
    family: str
    """What it belongs to; `tabmoco` and `sum` are no single rivals, all others are."""

    sees: str
    """What becomes of the cells before it sees them."""

    score: Score
    package: str = "plain"
    """Where it comes from; plain ones are a few lines of this file."""

    usual_seconds: float = 1.0
    """What 10,000 rows take, roughly; for the first estimate of the time that is left."""

    @property
    def has_p_values(self) -> bool:
        return self.family == "tabmoco"

    @property
    def is_rival(self) -> bool:
        return self.family not in ("tabmoco", "sum")

    def __call__(self, train: Table, test: Table | None, seed: int) -> np.ndarray:
        """Anomaly scores of the test rows, or of the training rows if there are none."""
        return self.scores(train, test, seed).anomaly_score

    def scores(self, train: Table, test: Table | None, seed: int) -> Scores:
        """Anomaly scores, and p-values if there are any."""
        found = self.score(train, test, seed)
        found = found if isinstance(found, Scores) else Scores(found)
        score = np.asarray(found.anomaly_score, dtype=np.float64).ravel()
        expected = len(train if test is None else test)
        if len(score) != expected:
            raise ValueError(f"{self.name} must score {expected} rows, got {len(score)} scores.")
        if not np.isfinite(score).all():
            raise ValueError(f"{self.name} gave {np.sum(~np.isfinite(score))} scores that are not finite.")
        return found._replace(anomaly_score=score)


# ------------------------------------------------------------------ neighbours


def neighbour_distance(train: Matrix, test: Matrix | None, k: int) -> np.ndarray:
    """Mean distance to the `k` nearest training rows; of a training row, apart from itself."""
    known = NearestNeighbors(n_neighbors=min(k, len(train) - (test is None))).fit(train)
    return known.kneighbors(test)[0].mean(1)


def calibrated(distance: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Distances measured by the median and 90 % quantile of the training rows' own, and flattened."""
    median, upper = np.quantile(reference, [0.5, 0.9])
    spread = max(upper - median, 0.01 * abs(median), 1e-6)
    return np.log1p(np.logaddexp(0.0, (distance - median) / spread))


def _neighbours(k: int, scale: Scale) -> Score:
    def score(train: Table, test: Table | None, seed: int) -> np.ndarray:
        return neighbour_distance(*scale(cell_matrix(train, test)), k)

    return score


def _two_scalings(train: Table, test: Table | None, seed: int) -> np.ndarray:
    total = 0.0
    for scale in (standardised, quantile_normal):
        known, asked = scale(cell_matrix(train, test))
        reference = neighbour_distance(known, None, 2)
        distance = reference if asked is None else neighbour_distance(known, asked, 2)
        total = total + calibrated(distance, reference)
    return total


def _whitened(train: Table, test: Table | None, seed: int) -> np.ndarray:
    """Two neighbours among principal components of equal variance, those under a thousandth of the first left out."""
    known, asked = standardised(cell_matrix(train, test))
    variance = PCA(random_state=seed).fit(known).explained_variance_
    n_components = max(1, int(np.sum(variance > 1e-3 * variance[0])))
    pca = PCA(n_components, whiten=True, random_state=seed).fit(known)
    return neighbour_distance(pca.transform(known), None if asked is None else pca.transform(asked), 2)


# ------------------------------------------------------------------ other libraries


def _pyod(module: str, name: str) -> Score:
    def score(train: Table, test: Table | None, seed: int) -> np.ndarray:
        known, asked = standardised(cell_matrix(train, test))
        build = getattr(importlib.import_module(f"pyod.models.{module}"), name)
        settings = {"random_state": seed, "n_features": known.shape[1], "verbose": 0}
        if name == "PCA":  # it divides by the variance of every component, those without any included
            settings["n_components"] = int(np.linalg.matrix_rank(known - known.mean(0)))
        model = build(**{key: settings[key] for key in settings if key in inspect.signature(build).parameters})
        model.fit(known)
        return model.decision_scores_ if asked is None else model.decision_function(asked)

    return score


def _isolation_forest(train: Table, test: Table | None, seed: int) -> np.ndarray:
    known, asked = standardised(cell_matrix(train, test))
    forest = IsolationForest(random_state=seed).fit(known)
    return -forest.score_samples(known if asked is None else asked)


# ------------------------------------------------------------------ tabmoco


def _tabmoco(settings: Sequence[str] = ()) -> Score:
    def score(train: Table, test: Table | None, seed: int) -> Scores:
        import tabmoco

        config = dataclasses.replace(tabmoco.PretrainConfig().override(settings), seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model = tabmoco.pretrain(train, config)
            found = model.score(train if test is None else test)
        n_calibration = model.info()["index"]["n_calibration_rows"]
        return Scores(found["anomaly_score"].to_numpy(), found["p_value"].to_numpy(), n_calibration)

    return score


Z, Q = "z-scored cells", "quantile-normal cells"

DETECTORS: dict[str, Detector] = {
    detector.name: detector
    for detector in (
        Detector("HBOS", "tails", Z, _pyod("hbos", "HBOS"), "PyOD"),
        Detector("PCA", "linear", Z, _pyod("pca", "PCA"), "PyOD"),
        Detector("ECOD", "tails", Z, _pyod("ecod", "ECOD"), "PyOD"),
        Detector("COPOD", "tails", Z, _pyod("copod", "COPOD"), "PyOD"),
        Detector("IForest", "trees", Z, _pyod("iforest", "IForest"), "PyOD"),
        Detector("sklearn-IForest", "trees", Z, _isolation_forest, "scikit-learn"),
        Detector("GMM", "density", Z, _pyod("gmm", "GMM"), "PyOD"),
        Detector("CBLOF", "clusters", Z, _pyod("cblof", "CBLOF"), "PyOD", 2),
        Detector("KNN", "neighbours", Z, _pyod("knn", "KNN"), "PyOD"),
        Detector("LOF", "neighbours", Z, _pyod("lof", "LOF"), "PyOD", 4),
        *(Detector(f"{k}NN-z", "neighbours", Z, _neighbours(k, standardised)) for k in (1, 2, 5)),
        *(Detector(f"{k}NN-q", "neighbours", Q, _neighbours(k, quantile_normal)) for k in (1, 2, 5)),
        Detector("2NN-whitened", "neighbours", "whitened cells", _whitened),
        Detector("two-scalings", "sum", f"{Z} and {Q}", _two_scalings),
        Detector("OCSVM", "boundary", Z, _pyod("ocsvm", "OCSVM"), "PyOD", 8),
        Detector("tabmoco-contaminated", "tabmoco", "the table", _tabmoco(CONTAMINATED), "tabmoco", 5),
        Detector("untrained", "tabmoco", "the table", _tabmoco(UNTRAINED), "tabmoco", 15),
        Detector("tabmoco", "tabmoco", "the table", _tabmoco(), "tabmoco", 60),
        Detector("AutoEncoder", "deep", Z, _pyod("auto_encoder", "AutoEncoder"), "PyOD", 15),
        Detector("DeepSVDD", "deep", Z, _pyod("deep_svdd", "DeepSVDD"), "PyOD", 60),
        Detector("LUNAR", "deep", Z, _pyod("lunar", "LUNAR"), "PyOD", 120),
    )
}
"""Every detector by its name, cheap ones first. `kNN-z` and `kNN-q` are mean distances to k neighbours."""


def build_detector(name: str, settings: Sequence[str] = ()) -> Detector:
    """A detector by name, those of tabmoco with settings such as `index.n_neighbors=1`."""
    if name not in DETECTORS:
        raise ValueError(f"there is no detector {name!r}; known: {', '.join(DETECTORS)}.")
    detector = DETECTORS[name]
    if not settings or detector.family != "tabmoco":
        return detector
    own = {"untrained": UNTRAINED, "tabmoco-contaminated": CONTAMINATED}.get(name, ())
    return dataclasses.replace(detector, score=_tabmoco((*settings, *own)))
