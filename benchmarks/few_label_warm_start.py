"""What every run of the few-label benchmark needs and no run should pay for; nothing here may start threads."""

from __future__ import annotations

import contextlib

import benchmarks.few_label_methods  # noqa: F401

for name in ("catboost", "lightgbm", "xgboost"):
    with contextlib.suppress(ImportError):
        __import__(name)
