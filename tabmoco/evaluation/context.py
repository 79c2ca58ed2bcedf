"""Labelled rows as context: which of them tell most about other rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch.nn.functional import normalize

from tabmoco.errors import ConfigError, TableError
from tabmoco.model import RowModel
from tabmoco.neighbors.index import RowIndex


def context_rows(model: RowModel, query: Any, labelled: Any, k: int) -> Int64[np.ndarray, "N k"]:
    """Positions of the `k` labelled rows most similar to each query row, the most similar first.

    Similarity is that of `RowModel.search`, the cosine of two embeddings. With fewer than `k` labelled rows all of
    them are returned.

    Parameters
    ----------
    query, labelled
        Anything `open_table` reads.
    """
    if k < 1:
        raise ConfigError(f"k must be at least 1, got k={k}.")
    return nearest_rows(model.embed(query), model.embed(labelled), k)


def nearest_rows(
    query: Float[np.ndarray, "N D"], labelled: Float[np.ndarray, "n D"], k: int
) -> Int64[np.ndarray, "N k"]:
    """Positions of the `k` labelled embeddings of least angle to each query."""
    if len(labelled) == 0:
        raise TableError("there must be labelled rows to choose from, got none.")
    index = RowIndex.build(directions(labelled), np.arange(len(labelled)))
    return index.search(directions(query), min(k, len(labelled)))[1]


def directions(embedding: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    """Embeddings at unit length, float32."""
    return normalize(torch.from_numpy(np.asarray(embedding, dtype=np.float32)), dim=-1).numpy()
