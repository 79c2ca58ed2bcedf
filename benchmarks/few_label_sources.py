"""What makes the rows that methods look at, each once for a table and seed, without labels, for all budgets and draws.

`cells` encodes the rows and trains nothing; what it makes depends on no setting of training, so neither do the rivals
that look at it. `encoder` pretrains tabmoco. SCARF and VIME train for as many steps as that took, so they run after it.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.decomposition import PCA

from benchmarks.few_label_store import PARTS, Part, Store
from benchmarks.runs import Run
from tabmoco.config import PretrainConfig
from tabmoco.evaluation.inputs import HeadInput, InputReader
from tabmoco.evaluation.probes import N_COMPONENTS
from tabmoco.model import RowModel, build_untrained
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.source import open_table
from tabmoco.training.pretrain import pretrain

INDEX = ("index.rows=1000", "index.score_rows=1000")
"""An index is not looked at here, so it is a small one, and is not kept."""


@dataclass(frozen=True)
class Source:
    """Something that makes rows as heads read them, in a folder, from settings and a seed."""

    make: Callable[[Path, Sequence[str], int], Run]
    after: tuple[str, ...] = ()
    """Sources that must have run before."""

    model: str = "encoder"
    """The source whose encoder goes with these rows."""


def make_source(name: str, path: Path, settings: Sequence[str], seed: int) -> Run:
    """Run a source; called in a process of its own."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return SOURCES[name].make(path, settings, seed)


def encoded(path: Path, settings: Sequence[str], seed: int) -> Run:
    """Cells, standardised or not, their principal components, and traits; the preprocessor is fitted on all training
    rows."""
    store, config = Store(path), dataclasses.replace(PretrainConfig(), seed=seed)
    preprocessor = Preprocessor.fit(open_table(store.table("train")), config.data)
    model = RowModel(config, preprocessor, build_untrained(preprocessor, config))
    store.keep_model("cells", model)
    reader = fit_reader(store, model, seed)
    known = read_rows(store, "train", reader)
    cells = known.spaces["cells"].astype(np.float64)
    pca = PCA(min(N_COMPONENTS, model.d_embedding, *cells.shape), random_state=0).fit(cells)
    scale = np.sqrt(pca.explained_variance_.mean()) or 1.0
    for part, rows in (("train", known), ("test", read_rows(store, "test", reader))):
        standardised = rows.spaces["cells"]
        spaces = {
            "cells": standardised,
            "plain_cells": standardised * reader.scale["cells"] + reader.centre["cells"],
            "cell_components": (pca.transform(standardised.astype(np.float64)) / scale).astype(np.float32),
            "traits": rows.spaces["traits"],
        }
        store.keep("cells", part, HeadInput(rows.cells, spaces))
    return {}


def pretrained(path: Path, settings: Sequence[str], seed: int) -> Run:
    """Rows by an encoder pretrained on the training rows, and their embeddings by the same encoder untrained."""
    store = Store(path)
    config = dataclasses.replace(PretrainConfig().override([*INDEX, *settings]), seed=seed)
    model = pretrain(store.table("train"), config)
    model.reference = None
    store.keep_model("encoder", model)
    readers = [fit_reader(store, one, seed) for one in (model, untrained_twin(model))]
    for part in PARTS:
        own, untrained = (read_rows(store, part, reader) for reader in readers)
        spaces = {**own.spaces, "untrained": untrained.spaces["embedding"]}
        store.keep("encoder", part, HeadInput(own.cells, spaces))
    return {"n_steps": model.record["steps_done"], "verdict": model.record["verdict"]}


def untrained_twin(model: RowModel) -> RowModel:
    """The model as it was before the first step, its preprocessor fitted all the same."""
    return RowModel(model.config, model.preprocessor, build_untrained(model.preprocessor, model.config))


def fit_reader(store: Store, model: RowModel, seed: int) -> InputReader:
    """What turns rows into what heads read, scaled by the training rows."""
    return InputReader.fit(model, open_table(store.table("train")), seed=seed)


def read_rows(store: Store, part: Part, reader: InputReader) -> HeadInput:
    source = open_table(store.table(part))
    return reader.take(source, np.arange(source.n_rows))


def ts3l_source(name: str) -> Callable[[Path, Sequence[str], int], Run]:
    """SCARF or VIME; its embedding, standardised by the training rows, beside the cells that tabmoco's encoder saw."""

    def make(path: Path, settings: Sequence[str], seed: int) -> Run:
        from benchmarks.few_label_ts3l import embed

        store = Store(path)
        n_steps = json.loads((path / "encoder.json").read_text(encoding="utf-8"))["n_steps"]
        found = embed(name, store.table("train"), store.table("test"), n_steps=n_steps, seed=seed)
        centre, scale = found[0].mean(0, dtype=np.float64), np.maximum(found[0].std(0, dtype=np.float64), 1e-6)
        for part, points in zip(PARTS, found, strict=True):
            embedding = ((points - centre) / scale).astype(np.float32)
            store.keep(name, part, HeadInput(store.rows("encoder", part).cells, {"embedding": embedding}))
        return {"n_steps": n_steps}

    return make


SOURCES = {
    "cells": Source(encoded, model="cells"),
    "encoder": Source(pretrained),
    "SCARF": Source(ts3l_source("SCARF"), after=("encoder",)),
    "VIME": Source(ts3l_source("VIME"), after=("encoder",)),
}
