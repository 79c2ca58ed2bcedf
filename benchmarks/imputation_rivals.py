"""What others fill gaps with, all on the same preparation: numbers standardised, categories one-hot or in codes.

- mean: the mean of a number, the most frequent category;
- KNN: scikit-learn's KNNImputer, 5 neighbours, categories one-hot and divided by √2, so that two categories lie one
  apart;
- iterative: scikit-learn's IterativeImputer with its Bayesian ridge regression; with categories the same by hand and
  logistic regression for these, because the one-hot columns of a category tell one another and would keep their means;
- forest: as missForest does (Stekhoven and Bühlmann, "MissForest", Bioinformatics 2012), with 100 extremely randomised
  trees instead of a random forest, classifiers for categories, and 5 rounds at most.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.linear_model import BayesianRidge, LogisticRegression

from benchmarks.imputation_gaps import is_number, to_frame

N_TREES = 100
MAX_ROUNDS = 5


@dataclass(frozen=True)
class Prepared:
    """Numbers standardised by the cells that are there, and categories as codes, -1 for missing."""

    names: tuple[str, ...]
    number: dict[str, np.ndarray]
    code: dict[str, np.ndarray]
    location: dict[str, float]
    scale: dict[str, float]
    words: dict[str, np.ndarray]

    @classmethod
    def of(cls, table: pa.Table) -> Prepared:
        frame = to_frame(table)
        number, code, location, scale, words = {}, {}, {}, {}, {}
        for name in frame.columns:
            if is_number(table, name):
                location[name] = float(frame[name].mean())
                scale[name] = float(frame[name].std(ddof=0)) or 1.0
                number[name] = ((frame[name] - location[name]) / scale[name]).to_numpy()
            else:
                code[name], uniques = pd.factorize(frame[name])
                words[name] = np.asarray(uniques, dtype=object)
        return cls(tuple(frame.columns), number, code, location, scale, words)

    def frame(self, number: dict[str, np.ndarray], code: dict[str, np.ndarray]) -> pd.DataFrame:
        """Numbers and codes in their own units and words."""
        return pd.DataFrame(
            {
                name: number[name] * self.scale[name] + self.location[name]
                if name in number
                else self.words[name][code[name]]
                for name in self.names
            }
        )

    def matrix(self) -> np.ndarray:
        """Numbers, then one-hot categories, NaN where a cell is missing."""
        parts = [values[:, None] for values in self.number.values()]
        for name, codes in self.code.items():
            one_hot = np.eye(len(self.words[name]))[codes] / np.sqrt(2)
            one_hot[codes < 0] = np.nan
            parts.append(one_hot)
        return np.concatenate(parts, axis=1)

    def split(self, matrix: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The inverse of `matrix`: the largest of a category's values wins."""
        number = {name: matrix[:, place] for place, name in enumerate(self.number)}
        code, start = {}, len(number)
        for name in self.code:
            width = len(self.words[name])
            code[name] = matrix[:, start : start + width].argmax(1)
            start += width
        return number, code


def mean(prepared: Prepared, seed: int) -> pd.DataFrame:
    number = {name: np.nan_to_num(values) for name, values in prepared.number.items()}
    return prepared.frame(number, {name: _with_mode(codes) for name, codes in prepared.code.items()})


def nearest(prepared: Prepared, seed: int) -> pd.DataFrame:
    return prepared.frame(*prepared.split(KNNImputer().fit_transform(prepared.matrix())))


def iterative(prepared: Prepared, seed: int) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they say that they have not converged
        if not prepared.code:
            return prepared.frame(*prepared.split(IterativeImputer(random_state=seed).fit_transform(prepared.matrix())))
        return _chained(prepared, BayesianRidge(), LogisticRegression(max_iter=100), one_hot=True)


def forest(prepared: Prepared, seed: int) -> pd.DataFrame:
    regressor = ExtraTreesRegressor(N_TREES, max_features=1 / 3, random_state=seed)
    classifier = ExtraTreesClassifier(N_TREES, max_features="sqrt", random_state=seed)
    return _chained(prepared, regressor, classifier, one_hot=False)


def _chained(prepared: Prepared, regressor: Any, classifier: Any, *, one_hot: bool) -> pd.DataFrame:
    """Columns in turn, those with the fewest gaps first, each predicted from all others, until a round changes more
    than the one before, which then counts."""
    number = {name: np.nan_to_num(values) for name, values in prepared.number.items()}
    code = {name: _with_mode(codes) for name, codes in prepared.code.items()}
    missing = {name: np.isnan(values) for name, values in prepared.number.items()}
    missing |= {name: codes < 0 for name, codes in prepared.code.items()}
    order = sorted((name for name in missing if missing[name].any()), key=lambda name: missing[name].sum())
    last, told = [np.inf, np.inf], (dict(number), dict(code))
    for _ in range(MAX_ROUNDS):
        before = dict(number), dict(code)
        for name in order:
            gone, column = missing[name], number if name in number else code
            parts = [values[:, None] for other, values in number.items() if other != name]
            for other, codes in code.items():
                if other != name:
                    parts.append(np.eye(len(prepared.words[other]))[codes] if one_hot else codes[:, None])
            others = np.concatenate(parts, axis=1)
            values = column[name].copy()
            if len(np.unique(values[~gone])) > 1:
                model = regressor if name in number else classifier
                values[gone] = clone(model).fit(others[~gone], values[~gone]).predict(others[gone])
            column[name] = values
        changed = _change(before, (number, code), missing)
        if all(now > then for now, then in zip(changed, last, strict=False)):
            break
        last, told = changed, (dict(number), dict(code))
    return prepared.frame(*told)


RIVALS: dict[str, Callable[[Prepared, int], pd.DataFrame]] = {
    "mean": mean,
    "KNN": nearest,
    "iterative": iterative,
    "forest": forest,
}


def _with_mode(codes: np.ndarray) -> np.ndarray:
    return np.where(codes < 0, np.bincount(codes[codes >= 0]).argmax(), codes)


def _change(before: tuple, after: tuple, missing: dict[str, np.ndarray]) -> list[float]:
    """How much a round changed numbers and categories, whichever there are (Stekhoven and Bühlmann 2012, section 2)."""
    gaps = [name for name in missing if missing[name].any()]
    numbers = [name for name in gaps if name in before[0]]
    codes = [name for name in gaps if name in before[1]]
    changed = []
    if numbers:
        moved = sum(np.square(after[0][n] - before[0][n])[missing[n]].sum() for n in numbers)
        changed.append(float(moved / sum(np.square(after[0][n])[missing[n]].sum() for n in numbers)))
    if codes:
        flipped = sum((after[1][n] != before[1][n])[missing[n]].sum() for n in codes)
        changed.append(float(flipped / sum(missing[n].sum() for n in codes)))
    return changed
