"""The scikit-learn contract: estimators that take any table or array.

Tables with column names are read by name: at use their columns may stand in any order, further ones are ignored with
a notice, and a missing one is an error. Arrays and lists of rows are read by position, under the names ``x0``,
``x1``, and so on. A table says what its columns are; an array does not, so each of its columns of numbers counts as
measured: none is left out as constant or as an identifier, only those without a single value are.

Fitted estimators can be copied, pickled and read from several threads. To keep one for later, save its model
(`estimator.model_.save(directory)`), whose files cannot execute code.
"""

from __future__ import annotations

from tabmoco.estimators.classifier import TabMoCoClassifier
from tabmoco.estimators.detector import TabMoCoDetector
from tabmoco.estimators.embedder import TabMoCoEmbedder
from tabmoco.estimators.imputer import TabMoCoImputer
from tabmoco.estimators.in_context import InContextClassifier
from tabmoco.estimators.regressor import TabMoCoRegressor

__all__ = [
    "InContextClassifier",
    "TabMoCoClassifier",
    "TabMoCoDetector",
    "TabMoCoEmbedder",
    "TabMoCoImputer",
    "TabMoCoRegressor",
]
