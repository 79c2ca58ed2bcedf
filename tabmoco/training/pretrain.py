"""From a table to a model: read, encode, split, train, index, calibrate, save."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import importlib.metadata
import platform
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.nn.functional import normalize

from tabmoco.config import PretrainConfig
from tabmoco.corruption import Corruption
from tabmoco.devices import resolve_device
from tabmoco.errors import CheckpointError, TableError
from tabmoco.model import RowModel, build_untrained
from tabmoco.model_files import check_target
from tabmoco.neighbors.clumps import SUSPECT_SHARE, clumped_rows
from tabmoco.neighbors.explain import usual_blame
from tabmoco.neighbors.index import RowIndex
from tabmoco.neighbors.reference import Points, Reference
from tabmoco.nn.encoder import RowEncoder
from tabmoco.objectives import Pretext, check_objectives
from tabmoco.objectives.moco import MoCo
from tabmoco.outside import OutsideRows
from tabmoco.plausibility import corruption_plausibility
from tabmoco.ranks import n_ranks
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.names import list_names
from tabmoco.tables.notices import TabmocoWarning, warn
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.schema import infer_schema
from tabmoco.tables.source import TableSource, open_table
from tabmoco.tables.store import EncodedTable
from tabmoco.training.batches import BatchOrder, derive_seed
from tabmoco.training.checkpoint import read_facts
from tabmoco.training.display import training_display
from tabmoco.training.loop import Progress, TrainingRows, steps_within, timed_copy, train
from tabmoco.training.monitor import MAX_ROWS, Monitor, verdict

DEFAULT_STEPS = 800
DEFAULT_MAX_EPOCHS = 300

MIN_HELD_OUT_TABLE = 500
"""A table of fewer rows keeps none out: every row is needed, and the reference rows calibrate themselves."""

MONITOR, SPLIT, REFERENCE, PLAUSIBILITY = 3, 4, 5, 6
"""Streams of randomness beside those of the batches."""

AUTO_INDEX_ROWS = 100_000
"""Rows that `index.rows = "auto"` indexes at most."""

MIN_OUTSIDE_ROWS = 12_000
"""Rows made to lie outside the data, for the forests to tell from the reference rows; or as many as these."""

BLAMED_ROWS = 1_000
"""Reference rows on which it is measured what each column is usually blamed for."""

N_CLUMPED_NAMED = 5
"""Rows in clumps that a warning names."""

FREE_SETTINGS = {"device": None, "optimize": {"checkpoint_seconds"}, "index": None}
"""Settings that a resumed run may change: they do not touch training."""


def pretrain(
    table: Any,
    config: PretrainConfig | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> RowModel:
    """Learn a row encoder from a table without labels, and index the table's rows.

    Parameters
    ----------
    table
        Anything `open_table` reads: files, frames, Arrow tables, arrays.
    config
        All settings; the defaults are one choice for all tables.
    out
        Model directory to write. While training runs its checkpoint lies beside it in `<out>.training`.
    resume
        Go on from that checkpoint, if there is one; on a CPU the result equals that of an undisturbed run bit for bit.
    overwrite
        Replace an existing model directory, once the new one is whole.
    progress
        Show a progress bar on standard error.

    Returns
    -------
    The trained model, with its index and calibration.

    Raises
    ------
    TabmocoError
        If the table, a setting or a file does not allow it; `Interrupted` after Ctrl-C, with a checkpoint written.
    """
    config = config or PretrainConfig()
    directory = None if out is None else Path(out)
    if directory is not None:
        check_target(directory, overwrite=overwrite)
        _check_no_run(_checkpoint_path(directory), resume=resume, overwrite=overwrite)
    check_objectives(config.objective.weights)
    device = resolve_device(config.device)
    source = _open(table, config)

    preprocessor, encoded, kept, held = _encode(source, config)
    pretext = build_untrained(preprocessor, config, n_rows=source.n_rows).to(device)
    _set_half_precision(pretext, _uses_bfloat16(config, device))
    cells = encoded.cells[torch.from_numpy(kept)]
    data = TrainingRows(cells.to(device), torch.from_numpy(kept).to(device), cells.content_hash().to(device))
    corruption = Corruption(data.cells, preprocessor.layout, config.corruption)
    watched = np.random.default_rng(derive_seed(config.seed, MONITOR)).permutation(held if len(held) else kept)
    monitor = Monitor.build(
        encoded.cells[torch.from_numpy(watched[:MAX_ROWS])].to(device),
        corruption,
        seed=derive_seed(config.seed, MONITOR),
        n_local_views=pretext.n_local_views,
    )

    identity = _identity(source, config, device)
    checkpoint = _checkpoint_path(directory)
    resume = resume and checkpoint is not None and checkpoint.exists()
    if resume and checkpoint is not None:
        n_steps, n_done = _check_identity(checkpoint, identity)
    else:
        n_steps, n_done = _n_steps(pretext, data, corruption, config), 0
    with training_display(n_steps, shown=progress) as display:
        if resume:
            display.say(f"Resuming at step {n_done:,} of {n_steps:,}.")
        if len(kept) < config.optimize.batch_size:
            wanted = config.optimize.batch_size
            display.say(
                f"There are {len(kept):,} rows to train on, fewer than batch_size = {wanted:,}: all are one batch."
            )
        run = train(
            pretext, data, corruption, monitor, config,
            n_steps=n_steps, display=display, checkpoint=checkpoint, identity=identity, resume=resume,
        )  # fmt: skip
        _set_half_precision(pretext, False)  # what is indexed and saved is what a loaded model computes
        model = RowModel(config, preprocessor, pretext, device=device)
        model.record = _record(source, identity["table"], kept, held, run, monitor)
        display.say("Indexing the reference rows and calibrating.")
        model.reference = _reference(model, encoded, kept, held)
        model.record["n_indexed"] = len(model.reference)
        if directory is not None and checkpoint is not None:
            model.record["plausibility"] = corruption_plausibility(
                data.cells, preprocessor.layout, config.corruption, seed=derive_seed(config.seed, PLAUSIBILITY)
            )
            model.save(directory, overwrite=overwrite)
            shutil.rmtree(checkpoint.parent, ignore_errors=True)
        display.say(model.record["verdict"])
    return model


def _open(table: Any, config: PretrainConfig) -> TableSource:
    data = config.data
    if not isinstance(table, TableSource):
        return open_table(table, columns=data.columns, exclude=data.exclude, id_column=data.id_column)
    names = table.arrow_schema.names  # a source may have been narrowed already
    return open_table(
        table,
        columns=data.columns,
        exclude=[name for name in data.exclude if name in names],
        id_column=data.id_column if data.id_column in names else None,
    )


def _encode(source: TableSource, config: PretrainConfig) -> tuple[Preprocessor, EncodedTable, np.ndarray, np.ndarray]:
    """Preprocessor, the whole table encoded, and the positions of the rows to train on and of those kept out."""
    n_rows = source.n_rows
    if n_rows < 2:
        raise TableError(f"training needs at least 2 rows, {source.name} has {n_rows}.")
    index = config.index
    n_held = min(index.calibration_rows, int(index.calibration_share * n_rows)) if n_rows >= MIN_HELD_OUT_TABLE else 0
    shuffled = np.random.default_rng(derive_seed(config.seed, SPLIT)).permutation(n_rows)
    held, kept = np.sort(shuffled[:n_held]), np.sort(shuffled[n_held:])
    schema = infer_schema(source, config.data).without_examples()
    preprocessor = Preprocessor.fit(source, config.data, schema=schema, rows=kept)
    with warnings.catch_warnings():
        # Rows kept out may hold values that no training row has; that is nothing the user has to know.
        warnings.filterwarnings("ignore", message=".*never seen in training", category=TabmocoWarning)
        encoded = preprocessor.encode(source)
    preprocessor.forget_notices()
    return preprocessor, encoded, kept, held


def _n_steps(pretext: Pretext, data: TrainingRows, corruption: Corruption, config: PretrainConfig) -> int:
    budget, order = config.optimize, BatchOrder(len(data.row), config.optimize.batch_size, seed=config.seed)
    if budget.steps is not None:
        return budget.steps
    if budget.epochs is not None:
        return order.steps_of(budget.epochs)
    if budget.minutes is not None:
        return steps_within(budget.minutes, timed_copy(pretext, data, corruption, config))
    return min(DEFAULT_STEPS, order.steps_of(DEFAULT_MAX_EPOCHS))


def _reference(model: RowModel, encoded: EncodedTable, kept: np.ndarray, held: np.ndarray) -> Reference:
    """Embed the reference rows, uncorrupted, with the final encoder; index them and calibrate."""
    config, seed = model.config.index, derive_seed(model.config.seed, REFERENCE)
    rows = _reference_rows(model, kept)
    scored, rows = np.sort(rows[: config.score_rows]), np.sort(rows)
    points = model.points(encoded.cells[torch.from_numpy(scored)])
    held_out = model.points(encoded.cells[torch.from_numpy(held)]) if len(held) else None
    search_index = None
    if len(rows) > len(scored):
        cells = encoded.cells[torch.from_numpy(rows)]
        direction = normalize(torch.from_numpy(model.embed_cells(cells)), dim=-1).numpy()
        search_index = RowIndex.build(direction, rows, content=cells.content_hash().numpy(), seed=seed)
    ids = None if encoded.ids is None else encoded.ids.take(pa.array(rows))
    outside, origin = _outside_points(model, encoded.cells[torch.from_numpy(scored)], seed)
    reference = Reference.build(
        points,
        scored,
        held_out,
        outside,
        origin,
        n_neighbors=config.n_neighbors,
        ids=ids,
        seed=seed,
        contaminated=config.contaminated,
        search_index=search_index,
    )
    _look_for_clumps(model, reference, points, scored, seed)
    few = points[:BLAMED_ROWS]
    usual = usual_blame(reference, model.cell_space, few, reference.evidence(few))
    cells = encoded.cells[torch.from_numpy(scored)]
    errors = model.expectation.errors(cells, model.scalings(cells)[..., 0])
    return dataclasses.replace(reference, usual_blame=usual, expected_error=errors)


def _look_for_clumps(model: RowModel, reference: Reference, points: Points, scored: np.ndarray, seed: int) -> None:
    """Warn if it looks as if anomalies were among the reference rows."""
    share, places = clumped_rows(points.vectors["cells"], points.content, seed=seed)
    model.record["clumped_share"] = share
    if share >= SUSPECT_SHARE and not model.config.index.contaminated:
        examples = list_names(map(str, reference.names(scored[places[:N_CLUMPED_NAMED]]).to_pylist()))
        warn(
            f"{share:.0%} of the reference rows lie in clumps apart from all others, such as the rows {examples}. If "
            "they are not normal, rows like them are not found strange: take them out and pretrain again, or pretrain "
            "with index.contaminated=true."
        )


def _outside_points(model: RowModel, cells: CellBatch, seed: int) -> tuple[Points, np.ndarray]:
    """Rows made to lie outside the reference rows, and the place of the row that each was made from."""
    made = OutsideRows(cells, model.preprocessor.layout)
    outside, origin = made.draw(max(MIN_OUTSIDE_ROWS, len(cells)), torch.Generator().manual_seed(seed))
    return model.points(outside), origin.numpy()


def _reference_rows(model: RowModel, kept: np.ndarray) -> np.ndarray:
    """Which training rows to index: the queue's first, then as many more as `index.rows` asks for, drawn at random."""
    wanted = model.config.index.rows
    queued = [o.queue.rows().cpu().numpy() for o in model.pretext.objectives.values() if isinstance(o, MoCo)]
    rows = queued[0] if queued else np.empty(0, dtype=np.int64)
    if wanted == "queue" and queued:
        return rows
    n_wanted = len(kept) if wanted in ("all", "queue") else AUTO_INDEX_ROWS if wanted == "auto" else int(wanted)
    others = np.random.default_rng(derive_seed(model.config.seed, REFERENCE)).permutation(np.setdiff1d(kept, rows))
    return np.concatenate([rows, others])[:n_wanted]


def _check_no_run(checkpoint: Path | None, *, resume: bool, overwrite: bool) -> None:
    """Refuse to write over the checkpoint of an interrupted run, unless told to."""
    if checkpoint is not None and checkpoint.exists() and not resume and not overwrite:
        raise CheckpointError(
            f"{checkpoint.parent} holds an interrupted run; pass --resume to go on with it, or --overwrite to start "
            "again."
        )


def _checkpoint_path(directory: Path | None) -> Path | None:
    return None if directory is None else directory.with_name(f"{directory.name}.training") / "checkpoint.safetensors"


def _identity(source: TableSource, config: PretrainConfig, device: torch.device) -> dict[str, Any]:
    settings = config.to_dict()
    for group, names in FREE_SETTINGS.items():
        if names is None:
            settings.pop(group, None)
        else:
            settings[group] = {name: value for name, value in settings[group].items() if name not in names}
    settings["index"] = {
        "calibration_share": config.index.calibration_share,
        "calibration_rows": config.index.calibration_rows,
    }
    settings["arithmetic"] = {
        "device": device.type,
        "bfloat16": _uses_bfloat16(config, device),
        "ranks": n_ranks(),
    }
    return {"table": source.fingerprint(), "settings": settings, "version": _version("tabmoco")}


def _check_identity(checkpoint: Path, identity: dict[str, Any]) -> tuple[int, int]:
    """Refuse to resume another run; returns the number of steps planned and the number done."""
    facts = read_facts(checkpoint)
    start_again = f"use the same, or delete {checkpoint.parent} to start again"
    if facts.get("table") != identity["table"]:
        raise CheckpointError(
            f"the checkpoint {checkpoint} was made from another table or other columns; {start_again}."
        )
    if facts.get("version") != identity["version"]:
        raise CheckpointError(
            f"the checkpoint {checkpoint} was made by tabmoco {facts.get('version')}, this is {identity['version']}; "
            f"{start_again}."
        )
    old, new = _flatten(facts.get("settings", {})), _flatten(identity["settings"])
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if changed:
        found = ", ".join(f"{name} was {old.get(name)}, is {new.get(name)}" for name in changed)
        raise CheckpointError(f"a run can only be resumed with its own settings: {found}; {start_again}.")
    return int(facts["progress"]["n_steps"]), int(facts["progress"]["step"])


def _flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _set_half_precision(pretext: Pretext, enabled: bool) -> None:
    for module in pretext.modules():
        if isinstance(module, RowEncoder):  # the query encoder and the target's
            module.half_precision = enabled


def _uses_bfloat16(config: PretrainConfig, device: torch.device) -> bool:
    if config.optimize.precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return config.optimize.precision == "bfloat16"


def _record(
    source: TableSource, fingerprint: str, kept: np.ndarray, held: np.ndarray, run: Progress, monitor: Monitor
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
            **{name: _version(name) for name in ("tabmoco", "torch", "numpy", "pyarrow", "faiss-cpu", "scikit-learn")},
        },
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
