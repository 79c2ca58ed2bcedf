"""From a table to a model: read, encode, split, train, index, calibrate, save."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import hashlib
import json
import platform
import shutil
import tempfile
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tabmoco.config import PretrainConfig
from tabmoco.corruption import Corruption
from tabmoco.devices import resolve_device
from tabmoco.errors import CheckpointError, TableError
from tabmoco.model import RowModel, build_untrained
from tabmoco.model_files import check_target
from tabmoco.nn.encoder import RowEncoder
from tabmoco.objectives import Pretext, check_objectives
from tabmoco.plausibility import corruption_plausibility
from tabmoco.ranks import all_or_none, rank, told_by_first
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.hidden import untold
from tabmoco.tables.names import require_columns
from tabmoco.tables.notices import TabmocoWarning, warn
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.remaining import RemainingRows
from tabmoco.tables.schema import infer_schema
from tabmoco.tables.source import TableSource, open_table
from tabmoco.tables.store import EncodedTable, MemoryTable, StoredTable, memory_bytes, stored_bytes
from tabmoco.tables.target import Target, read_target
from tabmoco.training.batches import DONORS, MONITOR, PLAUSIBILITY, PROBE, SPLIT, derive_seed
from tabmoco.training.display import reading_display, training_display
from tabmoco.training.identity import check_identity, check_same_run, identity_of, libraries, uses_bfloat16, version_of
from tabmoco.training.indexing import index_rows
from tabmoco.training.journal import JournalName, check_journal, opened_journal
from tabmoco.training.loop import Progress, steps_within, timed_copy, train
from tabmoco.training.monitor import MAX_ROWS, Monitor, verdict
from tabmoco.training.online_probe import MIN_ROWS, OnlineProbe
from tabmoco.training.processes import joined, own_device
from tabmoco.training.rows import ResidentRows, StreamedRows, TrainingRows
from tabmoco.training.shares import check_shares

DEFAULT_STEPS = 800
DEFAULT_MAX_EPOCHS = 300

RECORDED = ("tabmoco", "torch", "numpy", "pyarrow", "faiss-cpu", "scikit-learn")
"""Packages whose versions a model names."""

MIN_HELD_OUT_TABLE = 500
"""A table of fewer rows keeps none out: every row is needed, and the reference rows calibrate themselves."""

MAX_DONORS = 200_000
"""Rows whose cells are swapped into others', where the table is not in memory."""


def pretrain(
    table: Any,
    config: PretrainConfig | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    log: JournalName | None = None,
) -> RowModel:
    """Learn a row encoder from a table without labels, and index the table's rows.

    Started by torchrun, several processes train one model, each on its share of every batch: `optimize.batch_size` is
    that of all together, and the model is that of one process but for rounding. The first one alone writes it.

    Parameters
    ----------
    table
        Anything `open_table` reads: files, frames, Arrow tables, arrays.
    config
        All settings; the defaults are one choice for all tables.
    out
        Model directory to write. While training runs its checkpoint lies beside it in `<out>.training`.
    resume
        Go on from that checkpoint, if there is one; on a CPU the result equals that of an undisturbed run bit for bit,
        or but for rounding with another number of processes.
    overwrite
        Replace an existing model directory, once the new one is whole.
    progress
        Show a progress bar on standard error.
    log
        Write the figures for TensorBoard, into `<out>.log`, or for MLflow as well, wherever it is told to keep runs.

    Returns
    -------
    The trained model, with its index and calibration; of several processes all but the first get it without.

    Raises
    ------
    TabmocoError
        If the table, a setting or a file does not allow it; `Interrupted` after Ctrl-C, with a checkpoint written.
    """
    config = config or PretrainConfig()
    directory = None if out is None else Path(out)
    check_journal(log, directory)
    if directory is not None:
        check_target(directory, overwrite=overwrite)
        check_no_run(checkpoint_path(directory), resume=resume, overwrite=overwrite)
    check_objectives(config.objective.weights)
    device = resolve_device(config.device)
    with ExitStack() as stack:
        stack.enter_context(untold(not config.data.keep_values))
        together = stack.enter_context(ExitStack())
        together.enter_context(joined(device))
        first = rank() == 0
        if not first:
            stack.enter_context(warnings.catch_warnings(action="ignore", category=TabmocoWarning))
        with all_or_none():
            device = own_device(device)
            source, target = _open(table, config)
            identity, checkpoint = identity_of(source, config, device), checkpoint_path(directory)
            resume = resume and checkpoint is not None and checkpoint.exists()
            planned = check_identity(checkpoint, identity) if resume and checkpoint is not None else None
            reading = stack.enter_context(ExitStack())
            watch = reading.enter_context(reading_display(source.n_rows, shown=progress and first))
            preprocessor, kept, held = _fit(source.watched(watch), config)
            check_shares(len(kept), config)
        check_same_run(identity, planned)
        encoded = encode_table(preprocessor, source.watched(watch), config, identity, checkpoint, stack)
        reading.close()
        pretext = build_untrained(preprocessor, config, n_rows=source.n_rows).to(device)
        set_half_precision(pretext, uses_bfloat16(config, device))
        data, donors = training_rows(encoded, kept, config, device)
        corruption = Corruption(donors, preprocessor.layout, config.corruption)
        monitor = _monitor(encoded, kept, held, corruption, config, device, n_local_views=pretext.n_local_views)
        if target is not None and first:
            monitor = dataclasses.replace(monitor, probe=_probe(read_target(target), encoded, held, config, device))
        n_steps, n_done = planned or (told_by_first(_n_steps(pretext, data, corruption, config)), 0)
        display = stack.enter_context(training_display(n_steps, shown=progress and first))
        if resume:
            display.say(f"Resuming at step {n_done:,} of {n_steps:,}.")
        if len(kept) < config.optimize.batch_size:
            wanted = config.optimize.batch_size
            display.say(
                f"There are {len(kept):,} rows to train on, fewer than batch_size = {wanted:,}: all are one batch."
            )
        with opened_journal(log if first else None, directory, config, n_done=n_done) as journal:
            run = train(
                pretext, data, corruption, monitor, config,
                n_steps=n_steps, display=display, checkpoint=checkpoint,
                identity={**identity, "libraries": libraries()}, resume=resume, journal=journal,
            )  # fmt: skip
        together.close()  # the rest is for one process
        set_half_precision(pretext, False)  # what is indexed and saved is what a loaded model computes
        model = RowModel(config, preprocessor, pretext, device=device)
        if not first:
            return model
        model.record = _record(source, identity["table"], kept, held, run, monitor)
        display.say("Indexing the reference rows and calibrating.")
        model.reference = index_rows(model, encoded, source, kept, held)
        model.record["n_indexed"] = len(model.reference)
        if directory is not None and checkpoint is not None:
            model.record["plausibility"] = corruption_plausibility(
                donors, preprocessor.layout, config.corruption, seed=derive_seed(config.seed, PLAUSIBILITY)
            )
            model.save(directory, overwrite=overwrite)
            shutil.rmtree(checkpoint.parent, ignore_errors=True)
        display.say(model.record["verdict"])
    return model


def _open(table: Any, config: PretrainConfig) -> tuple[TableSource, TableSource | None]:
    """What is learned from, and the column to be predicted, if one is named."""
    data = config.data
    whole = table if isinstance(table, TableSource) else open_table(table, id_column=data.id_column)
    exclude, id_column, target = data.left_out, data.id_column, None
    if data.target is not None:
        require_columns([data.target], whole.arrow_schema.names, option="target", where=whole.name)
        target = open_table(whole, columns=[data.target])
    if whole is table:  # it may have been narrowed already
        exclude = tuple(name for name in exclude if name in whole.arrow_schema.names)
        id_column = id_column if id_column in whole.arrow_schema.names else None
    return open_table(whole, columns=data.columns, exclude=exclude, id_column=id_column), target


def _fit(source: TableSource, config: PretrainConfig) -> tuple[Preprocessor, RemainingRows, np.ndarray]:
    """The preprocessor, the rows to train on, and the positions of those kept out."""
    n_rows = source.n_rows
    if n_rows < 2:
        raise TableError(f"training needs at least 2 rows, {source.name} has {n_rows}.")
    index = config.index
    n_held = min(index.calibration_rows, int(index.calibration_share * n_rows)) if n_rows >= MIN_HELD_OUT_TABLE else 0
    random = np.random.default_rng(derive_seed(config.seed, SPLIT))
    held = np.sort(random.choice(n_rows, n_held, replace=False))
    schema = infer_schema(source, config.data).without_examples(keep_values=config.data.keep_values)
    return Preprocessor.fit(source, config.data, schema=schema, without=held), RemainingRows(n_rows, held), held


def encode_table(
    preprocessor: Preprocessor,
    source: TableSource,
    config: PretrainConfig,
    identity: dict[str, Any],
    checkpoint: Path | None,
    stack: ExitStack,
) -> EncodedTable:
    """The whole table encoded: in memory, or in files beside the checkpoint where it takes too much.

    Of several processes each has it in memory; the files are written by the first, and the others wait for it.
    """
    layout, n_rows = preprocessor.layout, source.n_rows
    with warnings.catch_warnings():
        # Rows kept out may hold values that no training row has; that is nothing the user has to know.
        warnings.filterwarnings("ignore", message=".*never seen in training", category=TabmocoWarning)
        if memory_bytes(layout, n_rows) <= config.data.in_memory_mb * 2**20:
            with all_or_none():
                encoded: EncodedTable = preprocessor.encode(source)
        else:
            if checkpoint is None:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tabmoco-")))
            else:
                directory = checkpoint.parent / "cells"
            warn(
                f"The encoded table is larger than data.in_memory_mb = {config.data.in_memory_mb:,}: it is kept in "
                f"{directory}, {stored_bytes(layout, n_rows) / 1e9:.2f} GB, while training lasts."
            )
            key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
            encoded = _store(preprocessor, source, Path(told_by_first(str(directory))), key)
    preprocessor.forget_notices()
    return encoded


def _store(preprocessor: Preprocessor, source: TableSource, directory: Path, key: str) -> StoredTable:
    """The table in files, written by the first process."""
    layout, n_rows = preprocessor.layout, source.n_rows
    if rank() == 0:
        StoredTable.write(
            directory,
            layout,
            n_rows,
            key,
            lambda first: preprocessor.iter_cells(source, first=first),
            progress=lambda n_done: told_by_first(False),  # word for the others, who give up after a long silence
        )
    while not told_by_first(True):
        pass
    return StoredTable(directory, layout, n_rows)


def training_rows(
    encoded: EncodedTable, kept: RemainingRows, config: PretrainConfig, device: torch.device
) -> tuple[TrainingRows, CellBatch]:
    """The rows to train on, and rows whose cells are swapped into theirs: the same, or a sample of very many."""
    if isinstance(encoded, MemoryTable):
        data = ResidentRows.of(encoded, kept.positions(np.arange(len(kept))), device)
        return data, data.cells
    random = np.random.default_rng(derive_seed(config.seed, DONORS))
    donors = encoded.take(np.sort(kept.draw(MAX_DONORS, random)))
    return StreamedRows(encoded, kept, device), donors.to(device)


def _monitor(
    encoded: EncodedTable,
    kept: RemainingRows,
    held: np.ndarray,
    corruption: Corruption,
    config: PretrainConfig,
    device: torch.device,
    *,
    n_local_views: int,
) -> Monitor:
    """What watches training: rows kept out of it, or rows of it where none are."""
    seed = derive_seed(config.seed, MONITOR)
    random = np.random.default_rng(seed)
    watched = random.permutation(held)[:MAX_ROWS] if len(held) else kept.draw(MAX_ROWS, random)
    return Monitor.build(encoded.take(watched).to(device), corruption, seed=seed, n_local_views=n_local_views)


def _probe(
    target: Target, encoded: EncodedTable, held: np.ndarray, config: PretrainConfig, device: torch.device
) -> OnlineProbe | None:
    probe = OnlineProbe.build(target, encoded, held, seed=derive_seed(config.seed, PROBE), device=device)
    if probe is None:
        warn(
            f"{len(target.rows):,} rows have a {config.data.target!r}: too few for a probe, which learns from at least "
            f"{MIN_ROWS} of those trained on and is judged on as many others."
        )
    return probe


def _n_steps(pretext: Pretext, data: TrainingRows, corruption: Corruption, config: PretrainConfig) -> int:
    budget = config.optimize
    order = data.batches(budget.batch_size, seed=config.seed)
    if budget.steps is not None:
        return budget.steps
    if budget.epochs is not None:
        return order.steps_of(budget.epochs)
    if budget.minutes is not None:
        return steps_within(budget.minutes, timed_copy(pretext, data, corruption, config))
    return min(DEFAULT_STEPS, order.steps_of(DEFAULT_MAX_EPOCHS))


def check_no_run(checkpoint: Path | None, *, resume: bool, overwrite: bool) -> None:
    """Refuse to write over the checkpoint of an interrupted run, unless told to."""
    if checkpoint is not None and checkpoint.exists() and not resume and not overwrite:
        raise CheckpointError(
            f"{checkpoint.parent} holds an interrupted run; pass --resume to go on with it, or --overwrite to start "
            "again."
        )


def checkpoint_path(directory: Path | None) -> Path | None:
    """Where the checkpoint of a model lies while it is trained."""
    return None if directory is None else directory.with_name(f"{directory.name}.training") / "checkpoint.safetensors"


def set_half_precision(pretext: Pretext, enabled: bool) -> None:
    """Whether all its encoders compute in bfloat16 where that is safe."""
    for module in pretext.modules():
        if isinstance(module, RowEncoder):  # the query encoder and the target's
            module.half_precision = enabled


def _record(
    source: TableSource, fingerprint: str, kept: RemainingRows, held: np.ndarray, run: Progress, monitor: Monitor
) -> dict[str, Any]:
    before, after = run.metrics[0], run.metrics[-1]
    worked, sentence = verdict(before, after, n_rows=len(monitor.step.clean))
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "table": source.name.rpartition("/")[2],
        "fingerprint": fingerprint,
        "n_rows": len(kept) + len(held),
        "n_trained": len(kept),
        "n_held_out": len(held),
        "n_steps": run.n_steps,
        "steps_done": run.step,
        "stopped_early": run.stopped_early,
        "worked": worked,
        "verdict": sentence,
        "figures": after,
        "untrained": before,
        "metrics": copy.deepcopy(run.metrics),
        "versions": {
            "python": platform.python_version(),
            **{name: version_of(name) for name in RECORDED},
        },
    }
