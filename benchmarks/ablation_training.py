"""One run of the ablation: train an encoder and hold it against both yardsticks.

It trains as `tabmoco.pretrain` does, from the same parts, but keeps no rows out to calibrate and builds no index of
strangeness, which would take longer than training.

- Linear probe: logistic regression as strong as that of `tabmoco probe`, learned from the labelled rows; AUROC on rows
  that were never trained on, of several classes the mean of each against the rest.
- Retrieval: the share of damaged rows, never trained on, that are found again by cosine among clean ones; an exact
  copy counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float32
from sklearn.linear_model import LogisticRegression

from benchmarks.ablation_protocol import N_QUERIES, Sample
from benchmarks.ablation_questions import Setting, spaces_of
from benchmarks.retrieval import accuracy
from benchmarks.runs import Run
from tabmoco.config import PretrainConfig
from tabmoco.corruption import Corruption
from tabmoco.evaluation.figures import class_figures
from tabmoco.evaluation.heads import Linear
from tabmoco.model import build_untrained
from tabmoco.neighbors.evidence import CellSpace
from tabmoco.objectives import Pretext
from tabmoco.tables.cells import CellBatch
from tabmoco.training.display import training_display
from tabmoco.training.loop import train
from tabmoco.training.monitor import Monitor
from tabmoco.training.rows import ResidentRows

N_INDEXED = 6_000
"""Rows that are searched: all that are tested, and as many of those trained on."""

N_WATCHED = 64
"""Rows that are watched in training, few so that little time goes into it."""

N_KEYS = 8_192
"""Keys of the queue, drawn at random, that are searched at most."""

BATCH_ROWS = 512
"""Rows embedded at a time, few so that the memory of a run is that of its training."""

Points: TypeAlias = Float32[np.ndarray, "N D"]
Embed: TypeAlias = Callable[[CellBatch], torch.Tensor]


def evaluate(sample: Sample, setting: Setting, steps: int, seed: int) -> Run:
    """Train and measure; AUROC and the share found again are between 0 and 1."""
    config = setting.config(steps=steps, seed=seed)
    pretext = build_untrained(sample.preprocessor, config, n_rows=sample.n_train)
    found = learn(pretext, sample, config) if setting.steps_share else {}
    pretext.eval()
    figures = {"embedding": measure(sample, pretext.encoder)}
    spaces = spaces_of(setting)
    if "projection" in spaces:
        head = pretext.objectives["moco"].head
        figures["projection"] = measure(sample, lambda rows: head(pretext.encoder(rows)))
    if "expected" in spaces:
        decoder, layout = pretext.objectives["masked_cells"].decoder, sample.preprocessor.layout
        cells = CellSpace(layout, sample.preprocessor.knots)
        figures["expected"] = measure(sample, lambda rows: cells.expected(*decoder(pretext.encoder(rows))))
    if "stale" in spaces:
        figures |= measure_queue(sample, pretext, seed)
    return found | {"figures": figures}


def learn(pretext: Pretext, sample: Sample, config: PretrainConfig) -> Run:
    """Train in place; what it took, and the effective rank of what came out (near 1: all rows became one)."""
    cells, watched = sample.train.batch(), sample.test.batch()[:N_WATCHED]
    data = ResidentRows(cells, torch.arange(len(cells)), cells.content_hash())
    corruption = Corruption(cells, sample.preprocessor.layout, config.corruption)
    monitor = Monitor.build(watched, corruption, seed=config.seed, n_local_views=pretext.n_local_views)
    n_steps = config.optimize.steps or 1
    started = time.monotonic()
    with training_display(n_steps, shown=False) as display:
        progress = train(pretext, data, corruption, monitor, config, n_steps=n_steps, display=display)
    seconds = time.monotonic() - started
    return {
        "train_seconds": round(seconds, 3),
        "rows_per_second": round(n_steps * min(config.optimize.batch_size, len(cells)) / seconds, 1),
        "effective_rank": round(progress.metrics[-1]["effective_rank"], 2),
    }


def measure(sample: Sample, embed: Embed) -> dict[str, float]:
    """Both yardsticks of what `embed` makes of rows."""
    train_cells = sample.train.batch()
    tested = _points(embed, sample.test.batch())
    learned = _points(embed, train_cells[torch.from_numpy(sample.labelled)])
    n_more = max(0, N_INDEXED - len(tested))
    index = CellBatch.cat([sample.test.batch(), train_cells[:n_more]])
    among = np.concatenate([tested, _points(embed, train_cells[:n_more])])
    queries = _points(embed, sample.test_damaged.batch())
    content = index.content_hash().numpy()
    return {
        "auroc": probe(learned, sample.label, tested, sample.test_label, sample.n_classes),
        "retrieval": accuracy(queries, among, np.arange(len(queries)), content, "cosine"),
    }


def measure_queue(sample: Sample, pretext: Pretext, seed: int) -> dict[str, dict[str, float]]:
    """Both yardsticks of the queue's keys as they are, and of the same rows encoded anew."""
    moco, cells = pretext.objectives["moco"], sample.train.batch()
    place = np.flatnonzero(moco.queue.filled.numpy())
    if len(place) > N_KEYS:
        place = np.sort(np.random.default_rng(seed).choice(place, N_KEYS, replace=False))
    row = moco.queue.row.numpy()[place]
    distinct, first, inverse = np.unique(row, return_index=True, return_inverse=True)
    asked = np.sort(np.random.default_rng(seed).permutation(len(distinct))[:N_QUERIES])

    def project(rows: CellBatch) -> torch.Tensor:
        return moco.head(pretext.encoder(rows))

    keys = {
        "stale": moco.queue.key.numpy()[place],
        "refreshed": _points(project, cells[torch.from_numpy(distinct)])[inverse],
    }
    queries = _points(project, sample.train_damaged.batch()[torch.from_numpy(distinct[asked])])
    content = cells.content_hash().numpy()[row]
    tested = _points(project, sample.test.batch())
    class_of = dict(zip(sample.labelled.tolist(), sample.label.tolist(), strict=True))
    labelled = np.flatnonzero([number in class_of for number in row.tolist()])
    label = np.array([class_of[number] for number in row[labelled].tolist()], dtype=np.int64)
    return {
        name: {
            "auroc": probe(key[labelled], label, tested, sample.test_label, sample.n_classes),
            "retrieval": accuracy(queries, key, first[asked], content, "cosine"),
        }
        for name, key in keys.items()
    }


def probe(learned: Points, label: np.ndarray, tested: Points, test_label: np.ndarray, n_classes: int) -> float:
    """AUROC of logistic regression on standardised coordinates."""
    centre, scale = learned.mean(0, dtype=np.float64), learned.std(0, dtype=np.float64) + 1e-6
    x, x_tested = ((points - centre) / scale / np.sqrt(learned.shape[1]) for points in (learned, tested))
    probability = np.zeros((len(tested), n_classes))
    present = np.unique(label)
    if len(present) > 1:
        probability[:, present] = (
            LogisticRegression(C=Linear.strength, max_iter=2_000).fit(x, label).predict_proba(x_tested)
        )
    else:
        probability[:, present] = 1.0
    return class_figures(test_label, probability)["auroc"]


@torch.inference_mode()
def _points(embed: Embed, cells: CellBatch) -> Points:
    parts = [embed(cells[start : start + BATCH_ROWS]).numpy() for start in range(0, len(cells), BATCH_ROWS)]
    return np.concatenate(parts)
