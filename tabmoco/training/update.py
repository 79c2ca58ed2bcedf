"""From a model and new rows to a model of both: learn on, with old rows replayed, and index the new ones too.

Old rows are at hand only as far as the model keeps them: those that strangeness is measured against, as encoded cells.
They fill half of every batch, so that half of the queue's keys are theirs, swapped cells come from old and new rows
alike, and an anchor holds their embeddings where they were. The rate of learning is a fraction of pretraining's and
the target follows slower.

What each is worth (benchmarks/results/update-quick.md, flights and stops cut in time): of an old row's ten nearest rows
95 % stay, without the anchor 88 %, with it at pretraining's rate 94 %, with none of all this and the new rows alone 66
to 81 %, and after training from scratch 56 to 60 %. A classifier fitted to the old embeddings loses up to 1 point of
accuracy on old rows, without the anchor 2 to 19.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Generator

from tabmoco.config import PretrainConfig
from tabmoco.corruption import Corruption
from tabmoco.errors import ConfigError, ModelFileError, TableError
from tabmoco.model import RowModel
from tabmoco.model_files import check_target
from tabmoco.neighbors.reference import SEARCH_SPACE, Reference
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.remaining import RemainingRows
from tabmoco.tables.source import TableSource, open_table
from tabmoco.training.batches import MONITOR, SPLIT, UPDATES, derive_seed
from tabmoco.training.display import training_display
from tabmoco.training.indexing import KnownRows, directions
from tabmoco.training.loop import train
from tabmoco.training.monitor import MAX_ROWS, Monitor
from tabmoco.training.pretrain import encode_table, training_rows
from tabmoco.training.rows import ResidentRows
from tabmoco.training.update_growth import grown_pretext, new_categories
from tabmoco.training.update_index import Joined, cast_ids, read_back
from tabmoco.training.update_replay import ANCHOR, Anchor, ReplayedRows

DEFAULT_STEPS = 300
DEFAULT_MAX_EPOCHS = 50
"""Passes over the new rows, at most: few rows are not learned by heart."""

RATE = 0.25
"""Learning rate as a share of that of pretraining."""

MOMENTUM = 0.999
"""Least momentum of the target: it changes hardly while the queue is filled once."""

ANCHOR_WEIGHT = 30.0

N_NEAREST = 10
"""Nearest rows of old rows that are compared before and after."""


def update(
    model: RowModel | str | Path,
    table: Any,
    *,
    out: str | Path | None = None,
    steps: int | None = None,
    drop_oldest: bool = False,
    seed: int | None = None,
    device: str = "auto",
    overwrite: bool = False,
    progress: bool = False,
) -> RowModel:
    """Learn on from new rows and take them into the index; embeddings stay comparable with those of before.

    Categories that the model had no code for get one if they are frequent enough; scales and quantiles of numbers stay
    as they were fitted. Embeddings that were stored can still be compared with new ones, but anomaly scores are
    calibrated anew: on rows kept out of training, old and new.

    Parameters
    ----------
    model
        The model or its directory; neither is changed.
    table
        Anything `open_table` reads, with the columns of training. Its rows count as the newest.
    out
        Model directory to write, once the new model is whole.
    steps
        Training steps; by default 300, fewer for rows so few that this would be over 50 passes. 0 trains nothing.
    drop_oldest
        Whether as many of the oldest rows as there are new ones leave the index and the calibration.
    seed
        Seed of this update, instead of one that follows from the model's and the number of updates before. On a CPU
        equal seeds give equal models, bit for bit.
    device
        Where training runs, if a directory is given.
    overwrite
        Replace an existing model directory: also the one that the model comes from.
    progress
        Show a progress bar on standard error.

    Returns
    -------
    The new model. Its `record["updates"]` tells of each update the date, rows, steps, new categories and figures.

    Raises
    ------
    TabmocoError
        If the table lacks rows or does not fit the model, or a file cannot be written; `Interrupted` after Ctrl-C,
        with nothing changed.
    """
    if steps is not None and steps < 0:
        raise ConfigError(f"steps must be at least 0, got steps={steps}.")
    if out is not None:
        check_target(Path(out), overwrite=overwrite)
    before = model if isinstance(model, RowModel) else RowModel.load(model, device=device)
    old, source = _updatable(before), _open(before, table)
    config = _config(before, seed)
    known, apart = read_back(before, old.indexes["cells"]), _apart(before, old)
    kept, held = _split(before.record, source, config, calibrated=old.calibration.held_out)
    preprocessor = before.preprocessor.grown(source, without=held)
    n_old = before.record["n_rows"]
    with ExitStack() as stack:
        encoded = encode_table(preprocessor, source, config, {}, None, stack)
        pretext = grown_pretext(before, preprocessor, config, n_rows=n_old + source.n_rows).to(before.device)
        new, donors = training_rows(encoded, kept, config, before.device)
        replayed = _resident(known, before.device)
        data = ReplayedRows(new, replayed, n_old)
        corruption = Corruption(CellBatch.cat([replayed.cells, donors]), preprocessor.layout, config.corruption)
        watched = encoded.take(held if len(held) else kept.positions(np.arange(min(len(kept), MAX_ROWS))))
        monitors = {
            name: _monitor(cells, corruption, config.seed, pretext.n_local_views)
            for name, cells in (("old", (apart if len(apart) else known).cells), ("new", watched))
        }
        seen = {name: [monitor.look(pretext)] for name, monitor in monitors.items()}
        n_steps = _n_steps(data, config) if steps is None else steps
        display = stack.enter_context(training_display(n_steps, shown=progress))
        if n_steps:
            pretext.objectives[ANCHOR] = Anchor(pretext.encoder, n_old).to(before.device)
            pretext.weights[ANCHOR] = ANCHOR_WEIGHT
            train(pretext, data, corruption, monitors["new"], config, n_steps=n_steps, display=display)
            del pretext.objectives[ANCHOR], pretext.weights[ANCHOR]
        for name, monitor in monitors.items():
            seen[name].append(monitor.look(pretext))
        record = copy.deepcopy(before.record)
        after = RowModel(before.config, preprocessor, pretext, record=record, device=before.device)
        display.say("Indexing the reference rows and calibrating.")
        n_dropped = record.get("n_dropped", 0) + (source.n_rows if drop_oldest else 0)
        joined = Joined(old, known, apart, encoded, source, kept, held, n_old, n_dropped)
        after.reference = joined.reference(after, config)
        told = {
            **_facts(source, config, n_steps, held, drop_oldest),
            "new_categories": new_categories(before.preprocessor, preprocessor),
            **_figures(seen, old, directions(after, known.cells)),
        }
        after.record = _record(record, after.reference, told, kept, held, n_dropped)
        if out is not None:
            after.save(out, overwrite=overwrite)
        display.say(told["verdict"])
    return after


def _updatable(model: RowModel) -> Reference:
    """The reference of a model that keeps what an update needs."""
    if model.reference is None:
        raise TableError("this model keeps no rows that could be replayed; pretrain again with --index auto.")
    if model.reference.calibration.held_out and model.reference.held_out is None:
        raise ModelFileError(
            "to be updated a model must keep the rows it was calibrated on, but this one was made before models did; "
            "pretrain again."
        )
    return model.reference


def _apart(model: RowModel, reference: Reference) -> KnownRows:
    """The rows kept out of training; none of a small table."""
    if reference.held_out is None:
        return read_back(model, reference.indexes["cells"])[:0]
    return read_back(model, reference.held_out)


def _open(model: RowModel, table: Any) -> TableSource:
    """A table that fits the model, its rows named if the model's are."""
    whole = table if isinstance(table, TableSource) else open_table(table)
    assert model.reference is not None
    id_column = None if model.reference.ids is None else model.config.data.id_column
    source = open_table(whole, id_column=id_column)
    model.preprocessor.align(source.arrow_schema, name=source.name)
    if source.n_rows < 1:
        raise TableError(f"an update needs at least 1 row, {source.name} has none.")
    if model.reference.ids is not None:
        cast_ids(source, np.zeros(1, dtype=np.int64), model.reference.ids.type)
    return source


def _config(model: RowModel, seed: int | None) -> PretrainConfig:
    """The settings of pretraining, slowed down."""
    config, n_before = model.config, len(model.record.get("updates", []))
    pace = dataclasses.replace(
        config.optimize,
        steps=None,
        epochs=None,
        minutes=None,
        patience=1.0,
        learning_rate=RATE * config.optimize.learning_rate,
    )
    return dataclasses.replace(
        config,
        seed=derive_seed(config.seed, UPDATES, n_before) if seed is None else derive_seed(seed, UPDATES),
        optimize=pace,
        objective=dataclasses.replace(
            config.objective, ema_momentum=max(MOMENTUM, config.objective.ema_momentum), ema_momentum_end=None
        ),
    )


def _split(
    record: dict[str, Any], source: TableSource, config: PretrainConfig, *, calibrated: bool
) -> tuple[RemainingRows, Int64[np.ndarray, " m"]]:
    """The new rows to train on, and those kept out: the same share as of the old ones, all updates together.

    Models of tables so small that none was kept out stay as they are.
    """
    index, n_old, n_new = config.index, record["n_rows"], source.n_rows
    share = index.calibration_share if calibrated else 0.0
    n_held = min(index.calibration_rows, int(share * (n_old + n_new)) - int(share * n_old), n_new - 1)
    random = np.random.default_rng(derive_seed(config.seed, SPLIT))
    held = np.sort(random.choice(n_new, n_held, replace=False))
    return RemainingRows(n_new, held), held


def _resident(known: KnownRows, device: torch.device) -> ResidentRows:
    row, content = torch.from_numpy(known.row), torch.from_numpy(known.content)
    return ResidentRows(known.cells.to(device), row.to(device), content.to(device))


def _monitor(cells: CellBatch, corruption: Corruption, seed: int, n_local_views: int) -> Monitor:
    seed, n_watched = derive_seed(seed, MONITOR), min(MAX_ROWS, len(cells))
    drawn = torch.randperm(len(cells), generator=Generator().manual_seed(seed))[:n_watched]
    rows = cells[drawn].to(corruption.donors.missing.device)
    return Monitor.build(rows, corruption, seed=seed, n_local_views=n_local_views)


def _n_steps(data: ReplayedRows, config: PretrainConfig) -> int:
    most = data.batches(config.optimize.batch_size, seed=config.seed).steps_of(DEFAULT_MAX_EPOCHS)
    return min(DEFAULT_STEPS, most)


def neighbours_kept(before: Float[np.ndarray, "N D"], after: Float[np.ndarray, "N D"], *, k: int = N_NEAREST) -> float:
    """Share of the `k` nearest rows of up to 1,000 rows, evenly spaced, that are the same in both; by cosine, of unit
    vectors. NaN with fewer than two rows."""
    k = min(k, len(before) - 1)
    if k < 1:
        return float("nan")
    asked = np.arange(min(len(before), MAX_ROWS)) * len(before) // min(len(before), MAX_ROWS)
    nearest = []
    for vectors in (before, after):
        similarity = vectors[asked] @ vectors.T
        similarity[np.arange(len(asked)), asked] = -np.inf
        nearest.append(np.argpartition(-similarity, k - 1, axis=1)[:, :k])
    return float(np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(*nearest, strict=True)]))


def _figures(
    seen: dict[str, list[dict[str, float]]], old: Reference, again: Float[np.ndarray, "n D"]
) -> dict[str, Any]:
    """What changed for old and new rows, in figures and in a sentence."""
    search, rows = old.indexes[SEARCH_SPACE], old.indexes["cells"].rows
    kept = neighbours_kept(search.vectors_of(rows), again)
    found = {name: [look["retrieval_accuracy"] for look in looks] for name, looks in seen.items()}
    sentence = (
        f"From half of its cells a new row is found again in {found['new'][1]:.0%} of the cases (before: "
        f"{found['new'][0]:.0%}), an old one in {found['old'][1]:.0%} ({found['old'][0]:.0%})"
    )
    kept_told = "" if np.isnan(kept) else f"; old rows keep {kept:.0%} of their nearest rows"
    return {
        "figures": {
            "retrieval_accuracy": {name: {"before": b, "after": a} for name, (b, a) in found.items()},
            "neighbours_kept": None if np.isnan(kept) else kept,
        },
        "verdict": f"{sentence}{kept_told}.",
    }


def _facts(
    source: TableSource, config: PretrainConfig, n_steps: int, held: np.ndarray, drop_oldest: bool
) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "table": source.name.rpartition("/")[2],
        "n_rows": source.n_rows,
        "n_held_out": len(held),
        "n_steps": n_steps,
        "seed": config.seed,
        "drop_oldest": drop_oldest,
    }


def _record(
    record: dict[str, Any],
    reference: Reference,
    told: dict[str, Any],
    kept: RemainingRows,
    held: np.ndarray,
    n_dropped: int,
) -> dict[str, Any]:
    """The record of the model with this update behind those before it."""
    return {
        **record,
        "n_rows": record["n_rows"] + kept.n_table,
        "n_trained": record["n_trained"] + len(kept),
        "n_held_out": record["n_held_out"] + len(held),
        "n_indexed": len(reference),
        "n_dropped": n_dropped,
        "updates": [*record.get("updates", []), told],
    }
