"""What every run needs and no run should pay for: imports, and the functions that PyOD compiles at their first call.

Imported once, by the process that all runs are forked from. Nothing here may start threads: they do not survive a fork.
"""

from __future__ import annotations

import contextlib

import faiss  # noqa: F401
import numpy as np
import torch  # noqa: F401

import benchmarks.anomaly_protocol  # noqa: F401
import tabmoco.training.pretrain  # noqa: F401

with contextlib.suppress(ImportError):
    import pyod.models.auto_encoder
    import pyod.models.cblof
    import pyod.models.copod
    import pyod.models.deep_svdd
    import pyod.models.ecod
    import pyod.models.gmm
    import pyod.models.hbos
    import pyod.models.iforest
    import pyod.models.knn
    import pyod.models.lof
    import pyod.models.lunar
    import pyod.models.ocsvm
    import pyod.models.pca
    from pyod.utils.stat_models import pairwise_distances_no_broadcast

    few = np.random.default_rng(0).normal(size=(50, 3))
    pyod.models.hbos.HBOS().fit(few).decision_function(few)
    pyod.models.ecod.ECOD().fit(few).decision_function(few)
    pairwise_distances_no_broadcast(few, few)
