"""From a table to a model: runs that stop and go on, files that are never half a model, rows that are kept out."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

import tabmoco.tables.aside
import tabmoco.training.pretrain
from tabmoco.config import (
    CorruptionConfig,
    DataConfig,
    EncoderConfig,
    IndexConfig,
    ObjectiveConfig,
    OptimizeConfig,
    PretrainConfig,
)
from tabmoco.corruption import Corruption
from tabmoco.errors import CheckpointError, Interrupted, ModelFileError, TableError, TrainingError
from tabmoco.model import RowModel
from tabmoco.neighbors.explain import usual_blame
from tabmoco.neighbors.reference import Reference
from tabmoco.nn.row_bank import UNSEEN
from tabmoco.objectives import OBJECTIVES, Pretext
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.source import open_table
from tabmoco.training.checkpoint import read_facts, save_checkpoint
from tabmoco.training.display import _Quiet
from tabmoco.training.pretrain import MIN_HELD_OUT_TABLE, pretrain

pytestmark = pytest.mark.usefixtures("small_forests")

N_ROWS = 520  # 52 kept out, 468 trained on: an epoch is 7.3 batches
N_STEPS = 24
MOMENTS = {
    "the first step": 1,
    "before the queue is full": 3,
    "the middle of an epoch": 11,
    "the end of an epoch": 15,
    "the last step but one": 23,
    "the last step": 24,
}

SMALL = PretrainConfig(
    data=DataConfig(id_column="order"),
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8, dropout=0.1),
    objective=ObjectiveConfig(queue_size=300, ema_momentum_end=1.0, head="mlp", d_projection=6),
    optimize=OptimizeConfig(steps=N_STEPS, batch_size=64, patience=1.0),
)


def make_table(n_rows: int = N_ROWS, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    size = generator.normal(size=n_rows)
    table = pd.DataFrame(
        {
            "order": [f"order {row:05d}" for row in range(n_rows)],
            "size": size,
            "weight": 2 * size + generator.normal(scale=0.1, size=n_rows),
            "colour": np.where(size > 0.5, "red", np.where(size < -0.5, "blue", "green")),
            "fragile": size > 0,
            "opened": pd.Timestamp("2024-01-01") + pd.to_timedelta(generator.integers(0, 10**7, n_rows), unit="s"),
        }
    )
    table.loc[generator.random(n_rows) < 0.1, "weight"] = None
    table.loc[generator.random(n_rows) < 0.1, "colour"] = None
    return table


def change(config: PretrainConfig = SMALL, *, seed: int | None = None, **groups: dict[str, object]) -> PretrainConfig:
    """`change(optimize={"steps": 3})`: a copy with some settings replaced."""
    parts = {name: dataclasses.replace(getattr(config, name), **values) for name, values in groups.items()}
    return dataclasses.replace(config, seed=config.seed if seed is None else seed, **parts)


def assert_same(model: RowModel, other: RowModel) -> None:
    """Equal to the last bit, in everything but the time of day."""
    for (name, mine), theirs in zip(
        model.pretext.state_dict().items(), other.pretext.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs), name
    assert_same_reference(model.reference, other.reference)
    assert timeless(model.record) == timeless(other.record)


def timeless(record: dict[str, object]) -> dict[str, object]:
    """The record without the time of day and without what is only measured for a model card."""
    return {name: value for name, value in record.items() if name not in ("created", "plausibility")}


def assert_same_reference(reference: Reference, other: Reference) -> None:
    assert reference.indexes.keys() == other.indexes.keys()
    for name, index in reference.indexes.items():
        np.testing.assert_array_equal(index.vectors, other.indexes[name].vectors)
        np.testing.assert_array_equal(index.rows, other.indexes[name].rows)
    assert reference.forests.keys() == other.forests.keys()
    for name, forest in reference.forests.items():
        assert_same_arrays(forest.to_arrays(), other.forests[name].to_arrays())
    assert_same_arrays(vars(reference.whitening), vars(other.whitening))
    assert_same_arrays(reference.usual_blame, other.usual_blame)
    np.testing.assert_array_equal(reference.expected_error, other.expected_error)
    assert reference.ids == other.ids
    assert reference.calibration.scales == other.calibration.scales
    np.testing.assert_array_equal(reference.calibration.scores, other.calibration.scores)


def assert_same_arrays(arrays: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> None:
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)


def queue_of(pretext: Pretext) -> object:
    return pretext.objectives["moco"].queue


@pytest.fixture(scope="module", autouse=True)
def measure() -> Iterator[Callable[..., dict[str, float]]]:
    """How plausible damaged rows look is measured in one test only, for want of time."""
    with pytest.MonkeyPatch.context() as patch:
        original = tabmoco.training.pretrain.corruption_plausibility
        patch.setattr(tabmoco.training.pretrain, "corruption_plausibility", lambda *_, **__: {"query views": 0.75})
        yield original


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> RowModel:
    out = tmp_path_factory.mktemp("undisturbed") / "model"
    model = pretrain(make_table(), SMALL, out=out)
    assert [path.name for path in out.parent.iterdir()] == ["model"]  # the checkpoint is gone
    return model


# ---------------------------------------------------------------- larger than memory

STREAMED = dataclasses.replace(SMALL, data=dataclasses.replace(SMALL.data, in_memory_mb=0))


@pytest.fixture
def small_windows(monkeypatch):
    """Blocks of 20 rows, windows of 100: each epoch reads five of them."""
    monkeypatch.setattr("tabmoco.training.rows.BLOCK_ROWS", 20)
    monkeypatch.setattr("tabmoco.training.rows.WINDOW_BLOCKS", 5)


@pytest.mark.filterwarnings("ignore:The encoded table is larger")
def test_a_table_kept_in_files_is_learned_from_like_one_in_memory(undisturbed, tmp_path, small_windows, monkeypatch):
    seen: list[int] = []
    forward = Pretext.forward

    def watched(pretext: Pretext, step: object) -> dict[str, torch.Tensor]:
        seen.extend(step.row.tolist())
        return forward(pretext, step)

    monkeypatch.setattr(Pretext, "forward", watched)
    model = pretrain(make_table(), STREAMED, out=tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]  # the files are gone
    assert set(seen) - {-2} == set(range(N_ROWS)) - held_out_of(model)
    assert held_out_of(model) == held_out_of(undisturbed)
    assert model.reference.ids.equals(undisturbed.reference.ids)
    cells, others = model.reference.indexes["cells"].vectors, undisturbed.reference.indexes["cells"].vectors
    np.testing.assert_array_equal(cells, others)  # what was encoded is the same
    assert RowModel.load(tmp_path / "model").score(make_table()) == model.score(make_table())


@pytest.mark.filterwarnings("ignore:The encoded table is larger")
@pytest.mark.parametrize("step", [1, 11, 24])
def test_a_streamed_run_that_was_stopped_ends_like_an_undisturbed_one(tmp_path, small_windows, monkeypatch, step):
    whole, out = pretrain(make_table(), STREAMED), tmp_path / "model"
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop(patch, Pretext, "after_step", step, press_ctrl_c)
        pretrain(make_table(), STREAMED, out=out)
    written = {path.name: path.stat().st_mtime_ns for path in (checkpoint_of(out).parent / "cells").iterdir()}
    assert written.keys() == {"number", "code", "missing", "store.json"}
    with monkeypatch.context() as patch:
        patch.setattr("tabmoco.tables.preprocess.Preprocessor.iter_cells", lambda *_, **__: pytest.fail("encoded anew"))
        assert_same(resume(out, config=STREAMED), whole)


def test_where_the_files_are_and_how_large_is_said(tmp_path):
    with pytest.warns(TabmocoWarning, match=r"in_memory_mb = 0: it is kept in .*model\.training/cells, 0\.00 GB"):
        pretrain(make_table(), change(STREAMED, optimize={"steps": 1}), out=tmp_path / "model")


# ---------------------------------------------------------------- stopped and resumed


def at_call(number: int, what: Callable[[], None], original: Callable) -> Callable:
    """`original`, with `what` done before its call of that number, counted from 1."""
    n_calls = 0

    def wrapped(*arguments: object, **options: object) -> object:
        nonlocal n_calls
        n_calls += 1
        if n_calls == number:
            what()
        return original(*arguments, **options)

    return wrapped


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def crash() -> None:
    raise KeyboardInterrupt("as if the process had been killed")


def stop(monkeypatch: pytest.MonkeyPatch, place: object, name: str, call: int, how: Callable[[], None]) -> None:
    monkeypatch.setattr(place, name, at_call(call, how, getattr(place, name)))


def resume(out: Path, *, config: PretrainConfig = SMALL, table: pd.DataFrame | None = None) -> RowModel:
    torch.manual_seed(99)  # the state of the global generators must not matter
    np.random.seed(99)  # noqa: NPY002
    return pretrain(make_table() if table is None else table, config, out=out, resume=True)


def checkpoint_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.training") / "checkpoint.safetensors"


@pytest.mark.parametrize("step", MOMENTS.values(), ids=MOMENTS)
def test_a_run_stopped_by_ctrl_c_ends_like_an_undisturbed_one(undisturbed, tmp_path, monkeypatch, step):
    out = tmp_path / "model"
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match=f"after step {step} of 24.*--resume"):
        stop(patch, Pretext, "after_step", step, press_ctrl_c)
        pretrain(make_table(), SMALL, out=out)
    assert not out.exists()
    assert read_facts(checkpoint_of(out))["progress"]["step"] == step
    n_queued = int(safetensors.torch.load_file(checkpoint_of(out))["objectives.moco.queue.filled"].sum())
    assert n_queued == min(300, 64 * step)

    assert_same(resume(out), undisturbed)
    assert_same(RowModel.load(out), undisturbed)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("step", [1, 3, 11, 24])
@pytest.mark.parametrize(
    ("place", "name", "call"),
    [(Corruption, "query_view", 2), (Pretext, "after_step", 1)],  # the first view is the monitor's
    ids=["making views", "before the queue moves"],
)
def test_a_run_killed_within_a_step_goes_on_from_the_last_checkpoint(
    undisturbed, tmp_path, monkeypatch, step, place, name, call
):
    out = tmp_path / "model"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop(patch, place, name, step - 1 + call, crash)
        pretrain(make_table(), change(optimize={"checkpoint_seconds": 0.0}), out=out)
    assert checkpoint_of(out).exists() == (step > 1)
    assert_same(resume(out), undisturbed)


def test_a_run_may_be_stopped_again_and_again(undisturbed, tmp_path, monkeypatch):
    out = tmp_path / "model"
    for _ in range(3):
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            stop(patch, Pretext, "after_step", 5, press_ctrl_c)
            resume(out)
    assert read_facts(checkpoint_of(out))["progress"]["step"] == 15
    assert_same(resume(out), undisturbed)


@pytest.mark.parametrize("how", [press_ctrl_c, crash])
@pytest.mark.parametrize(
    ("place", "name"),
    [
        (RowModel, "points"),
        (Reference, "build"),
        (tabmoco.training.indexing, "_reference_rows"),
        (RowModel, "save"),
        (shutil, "rmtree"),
    ],
    ids=["embedding", "calibrating", "choosing rows", "before saving", "cleaning up after saving"],
)
def test_a_run_stopped_after_training_goes_on_without_training_again(
    undisturbed, tmp_path, monkeypatch, place, name, how
):
    out = tmp_path / "model"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop(patch, place, name, 1, how)
        pretrain(make_table(), SMALL, out=out)
    assert read_facts(checkpoint_of(out))["progress"]["step"] == N_STEPS
    if out.exists():  # whole: only the checkpoint was still to be removed
        assert_same(RowModel.load(out), undisturbed)
        shutil.rmtree(out)
    monkeypatch.setattr(Pretext, "after_step", lambda *_: pytest.fail("trained again"))
    assert_same(resume(out), undisturbed)


def test_a_run_without_a_directory_keeps_nothing(monkeypatch):
    stop(monkeypatch, Pretext, "after_step", 2, press_ctrl_c)
    with pytest.raises(Interrupted, match="nothing was kept"):
        pretrain(make_table(), SMALL)


def test_resuming_without_a_checkpoint_starts_afresh(undisturbed, tmp_path):
    assert_same(resume(tmp_path / "model"), undisturbed)


def test_a_run_stopped_early_on_a_plateau_is_not_trained_further_when_resumed(tmp_path, monkeypatch):
    config = change(optimize={"learning_rate": 0.0, "patience": 0.25, "steps": 40})
    whole = pretrain(make_table(), config)
    assert whole.record["stopped_early"] and whole.record["steps_done"] < 40
    out = tmp_path / "model"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop(patch, Reference, "build", 1, crash)
        pretrain(make_table(), config, out=out)
    assert_same(resume(out, config=config), whole)


@pytest.fixture(scope="module")
def halted(tmp_path_factory) -> Path:
    """Where a run was stopped after step 5."""
    out = tmp_path_factory.mktemp("halted") / "model"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        stop(patch, Pretext, "after_step", 5, press_ctrl_c)
        pretrain(make_table(), SMALL, out=out)
    return out


OTHER_RUNS = {
    "batch size": (change(optimize={"batch_size": 32}), ["optimize.batch_size was 64, is 32"]),
    "budget": (change(optimize={"steps": 25}), ["optimize.steps was 24, is 25"]),
    "another kind of budget": (
        change(optimize={"steps": None, "epochs": 3.0}),
        ["optimize.steps was 24, is None", "optimize.epochs was None, is 3.0"],
    ),
    "seed": (change(seed=7), ["seed was 0, is 7"]),
    "queue": (change(objective={"queue_size": 301}), ["objective.queue_size was 300, is 301"]),
    "objectives": (change(objective={"weights": {"moco": 1.0}}), ["objective.weights.masked_cells was 1.0, is None"]),
    "views": (change(corruption={"mask": (0.0, 0.1)}), ["corruption.mask was [0.0, 0.3], is [0.0, 0.1]"]),
    "encoder": (change(encoder={"backbone": "mlp"}), ["encoder.backbone was resnet, is mlp"]),
    "kinds": (change(data={"kinds": {"colour": "text"}}), ["data.kinds.colour was None, is text"]),
    "a column to be predicted": (change(data={"target": "fragile"}), ["another table or other columns"]),
    "where the encoded table is": (change(data={"in_memory_mb": 0}), ["data.in_memory_mb was 384, is 0"]),
    "norm": (change(encoder={"norm": "batch"}), ["encoder.norm was layer, is batch"]),
    "rows kept out": (change(index={"calibration_share": 0.2}), ["index.calibration_share was 0.1, is 0.2"]),
    "columns": (change(data={"exclude": ("colour",)}), ["another table or other columns"]),
}


@pytest.mark.parametrize(("config", "parts"), OTHER_RUNS.values(), ids=OTHER_RUNS)
def test_resuming_another_run_is_refused_with_what_differs(halted, config, parts):
    before = checkpoint_of(halted).read_bytes()
    with pytest.raises(CheckpointError) as raised:
        resume(halted, config=config)
    for part in parts:
        assert part in str(raised.value)
    assert str(raised.value).count(", is ") == sum(", is " in part for part in parts)  # and nothing else
    assert "delete" in str(raised.value)
    assert checkpoint_of(halted).read_bytes() == before and not halted.exists()


CHANGES = {
    "a cell": lambda table: table.assign(size=table["size"].where(table.index != 3, 0.25)),
    "the order of the rows": lambda table: table.iloc[::-1],
    "a row less": lambda table: table.iloc[1:],
    "a name": lambda table: table.rename(columns={"size": "extent"}),
    "a type": lambda table: table.assign(size=table["size"].astype("float32")),
    "the ids": lambda table: table.assign(order=table["order"].str.upper()),
}


@pytest.mark.parametrize("edit", CHANGES.values(), ids=CHANGES)
def test_resuming_on_another_table_is_refused(halted, edit):
    with pytest.raises(CheckpointError, match="another table"):
        resume(halted, table=edit(make_table()))


def test_resuming_with_another_version_is_refused_with_both(halted, monkeypatch):
    monkeypatch.setattr(tabmoco.training.identity, "version_of", lambda _: "99.9")
    with pytest.raises(CheckpointError, match=r"tabmoco \d+\.\d+\.\d+, this is 99\.9"):
        resume(halted)


def test_other_libraries_or_threads_are_told_of_when_resumed(halted, undisturbed, tmp_path, monkeypatch):
    shutil.copytree(halted.with_name("model.training"), tmp_path / "model.training")
    with monkeypatch.context() as patch:
        patch.setattr(tabmoco.training.identity, "libraries", lambda: {"torch": "99.9", "numpy": np.__version__})
        with pytest.warns(TabmocoWarning, match=r"torch was \d.*, is 99\.9, threads was \d+, is None.*may round"):
            resume(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error", TabmocoWarning)
        shutil.rmtree(tmp_path / "model")
        shutil.copytree(halted.with_name("model.training"), tmp_path / "model.training")
        assert_same(resume(tmp_path / "model"), undisturbed)


def test_settings_that_do_not_touch_training_may_change_when_resumed(halted, undisturbed, tmp_path):
    out = tmp_path / "model"
    shutil.copytree(halted.with_name("model.training"), tmp_path / "model.training")
    config = change(index={"rows": 50, "n_neighbors": 1, "fpr": 0.2}, optimize={"checkpoint_seconds": 5.0})
    model = resume(out, config=config)
    for (name, mine), theirs in zip(
        model.pretext.state_dict().items(), undisturbed.pretext.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs), name
    assert len(model.reference) == 50 and model.reference.n_neighbors == 1


def test_an_interrupted_run_is_not_silently_thrown_away(halted, undisturbed, tmp_path, monkeypatch):
    shutil.copytree(halted.with_name("model.training"), tmp_path / "model.training")
    out = tmp_path / "model"
    before = checkpoint_of(out).read_bytes()
    with (
        monkeypatch.context() as patch,
        pytest.raises(CheckpointError, match=r"model\.training.*--resume.*--overwrite"),
    ):
        patch.setattr(tabmoco.training.pretrain, "_open", lambda *_: pytest.fail("the table was read first"))
        pretrain(make_table(), SMALL, out=out)
    assert checkpoint_of(out).read_bytes() == before
    assert_same(pretrain(make_table(), SMALL, out=out, overwrite=True), undisturbed)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_metrics_can_be_watched_beside_the_checkpoint(halted):
    lines = (halted.with_name("model.training") / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 3, 4, 5]


def test_a_damaged_checkpoint_is_an_error_not_a_fresh_start(tmp_path):
    checkpoint = checkpoint_of(tmp_path / "model")
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"no checkpoint")
    with pytest.raises(CheckpointError, match="checkpoint.safetensors is damaged"):
        resume(tmp_path / "model")


@pytest.mark.parametrize(
    "facts", [{}, {"table": 1, "settings": []}, {"progress": None}], ids=["none", "of other types", "half"]
)
def test_a_checkpoint_of_foreign_facts_is_refused(halted, tmp_path, facts):
    shutil.copytree(halted.with_name("model.training"), tmp_path / "model.training")
    checkpoint = checkpoint_of(tmp_path / "model")
    linear = torch.nn.Linear(2, 2)
    save_checkpoint(checkpoint, linear, torch.optim.AdamW(linear.parameters()), facts)
    with pytest.raises(CheckpointError, match="another table"):
        resume(tmp_path / "model")


# ---------------------------------------------------------------- the directory


def test_a_directory_that_exists_is_refused_before_any_work(undisturbed, tmp_path, monkeypatch):
    out = tmp_path / "model"
    undisturbed.save(out)
    monkeypatch.setattr(tabmoco.training.pretrain, "_open", lambda *_: pytest.fail("the table was read first"))
    for resumed in (False, True):
        with pytest.raises(ModelFileError, match="exists already.*--overwrite"):
            pretrain(make_table(), SMALL, out=out, resume=resumed)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.md").write_text("of another's")
    (tmp_path / "file").write_text("of another's")
    for foreign in ("thesis", "file"):
        with pytest.raises(ModelFileError, match="not a model directory"):
            pretrain(make_table(), SMALL, out=tmp_path / foreign, overwrite=True)
    assert (tmp_path / "thesis" / "chapter1.md").exists() and (tmp_path / "file").exists()
    assert_same(RowModel.load(out), undisturbed)


def test_an_old_model_stays_until_the_new_one_is_whole(undisturbed, tmp_path, monkeypatch):
    out = tmp_path / "model"
    undisturbed.save(out)
    config = change(seed=1)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop(patch, Pretext, "after_step", 5, press_ctrl_c)
        pretrain(make_table(), config, out=out, overwrite=True)
    assert_same(RowModel.load(out), undisturbed)
    stop(monkeypatch, RowModel, "save", 1, lambda: assert_same(RowModel.load(out), undisturbed))
    model = pretrain(make_table(), config, out=out, overwrite=True, resume=True)
    assert_same(RowModel.load(out), model)
    with pytest.raises(AssertionError):
        assert_same(model, undisturbed)


def full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("place", "name", "call"),
    [
        (Path, "mkdir", 1),
        (Path, "write_text", 1),
        (Path, "write_text", 4),
        (safetensors.torch, "save_file", 1),
        (safetensors.torch, "save_file", 2),
        (os, "replace", 1),  # the old model cannot be moved away
        (os, "replace", 2),  # the new one cannot take its place
    ],
)
@pytest.mark.parametrize("failure", [full, crash])
def test_a_save_that_fails_leaves_the_old_model_and_no_litter(
    undisturbed, tmp_path, monkeypatch, place, name, call, failure
):
    monkeypatch.setattr(tabmoco.tables.aside, "exchange", lambda *_: False)  # as on a system that cannot
    out, config = tmp_path / "model", change(optimize={"steps": 2})
    undisturbed.save(out)
    with monkeypatch.context() as patch, pytest.raises((ModelFileError, KeyboardInterrupt)) as raised:
        save = RowModel.save
        patch.setattr(
            RowModel,
            "save",
            lambda *arguments, **options: (
                stop(patch, place, name, call, failure),  # from here on, not while training
                save(*arguments, **options),
            ),
        )
        pretrain(make_table(), config, out=out, overwrite=True)
    if failure is full:
        assert "No space left" in str(raised.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.training"]
    assert_same(RowModel.load(out), undisturbed)
    resumed = pretrain(make_table(), config, out=out, overwrite=True, resume=True)
    assert_same(RowModel.load(out), resumed)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_checkpoint_that_cannot_be_written_leaves_no_model(tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="No space left"):
        stop(monkeypatch, os, "fsync", 1, full)
        pretrain(make_table(), SMALL, out=tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"metrics.jsonl"}


# ---------------------------------------------------------------- which rows go where


def held_out_of(model: RowModel, n_rows: int = N_ROWS) -> set[int]:
    """Rows of the table that are in no reference of all training rows."""
    assert len(model.reference) == model.record["n_trained"]
    return set(range(n_rows)) - set(model.reference.rows.tolist())


def test_rows_kept_out_are_neither_learned_from_nor_indexed(undisturbed, monkeypatch):
    seen: set[int] = set()
    forward = Pretext.forward

    def watched(pretext: Pretext, step: object) -> dict[str, torch.Tensor]:
        seen.update(step.row.tolist())
        return forward(pretext, step)

    monkeypatch.setattr(Pretext, "forward", watched)
    model = pretrain(make_table(), SMALL)
    assert_same(model, undisturbed)
    held = held_out_of(model)
    assert len(held) == 52 == model.record["n_held_out"]
    assert seen - {-2} == set(range(N_ROWS)) - held  # the monitor's rows carry -2
    assert set(queue_of(model.pretext).rows().tolist()) <= seen
    assert len(model.reference.calibration.scores) == 52 and model.reference.calibration.held_out
    ids = model.reference.ids.to_pylist()
    assert ids == [f"order {row:05d}" for row in model.reference.rows]


def test_what_is_kept_out_leaves_no_trace_in_the_preprocessor(undisturbed):
    table = make_table()
    held = sorted(held_out_of(undisturbed))
    table.loc[held, "size"] = 1e6
    table.loc[held, "colour"] = "never trained on"
    with warnings.catch_warnings():
        warnings.simplefilter("error", TabmocoWarning)  # values of rows kept out are nobody's concern in training
        model = pretrain(table, SMALL)
    with pytest.warns(TabmocoWarning, match="52 cells with values never seen in training"):
        model.score(table)
    assert held_out_of(model) == set(held)
    np.testing.assert_array_equal(model.preprocessor.knots, undisturbed.preprocessor.knots)
    assert model.preprocessor.layout == undisturbed.preprocessor.layout
    for (name, mine), theirs in zip(
        model.encoder.state_dict().items(), undisturbed.encoder.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize(
    ("settings", "n_held"),
    [
        ({"calibration_share": 0.5}, 260),
        ({"calibration_share": 0.0}, 0),
        ({"calibration_share": 0.5, "calibration_rows": 7}, 7),
    ],
)
def test_how_many_rows_are_kept_out(settings, n_held):
    model = pretrain(make_table(), change(index=settings, optimize={"steps": 1}))
    assert (model.record["n_held_out"], model.record["n_trained"]) == (n_held, N_ROWS - n_held)
    assert len(held_out_of(model)) == n_held
    assert model.reference.calibration.held_out == (n_held > 0)
    assert len(model.reference.calibration.scores) == (n_held or N_ROWS)


@pytest.mark.parametrize("n_rows", [MIN_HELD_OUT_TABLE - 1, MIN_HELD_OUT_TABLE])
def test_a_small_table_keeps_no_row_out(n_rows):
    model = pretrain(make_table(n_rows), change(optimize={"steps": 1}))
    assert model.record["n_held_out"] == (0 if n_rows < MIN_HELD_OUT_TABLE else 50)


@pytest.mark.parametrize(
    ("rows", "n_indexed"),
    [("queue", "queue"), ("all", 468), ("auto", 468), (100, 100), (350, 350), (468, 468), (10_000, 468), (1, 1)],
)
def test_the_index_holds_the_rows_it_promises_the_latest_of_the_queue_first(rows, n_indexed):
    # After 3 steps of 50 the queue of 60 holds the last 60 keys: two batches' rows, all different.
    settings = {"steps": 3, "batch_size": 50}
    model = pretrain(make_table(), change(objective={"queue_size": 60}, optimize=settings, index={"rows": rows}))
    queued = queue_of(model.pretext).rows().tolist()
    assert len(queued) == 60
    indexed = model.reference.rows.tolist()
    assert indexed == sorted(set(indexed))
    assert len(indexed) == (60 if n_indexed == "queue" else n_indexed) == model.record["n_indexed"]
    assert set(queued[: len(indexed)]) <= set(indexed)


def test_auto_indexes_the_queue_and_a_sample_of_a_large_table(monkeypatch):
    monkeypatch.setattr(tabmoco.training.indexing, "AUTO_INDEX_ROWS", 120)
    config = change(objective={"queue_size": 60}, optimize={"steps": 3, "batch_size": 50})
    model = pretrain(make_table(), config)
    assert len(model.reference) == 120
    assert set(queue_of(model.pretext).rows().tolist()) < set(model.reference.rows.tolist())


def test_without_a_queue_the_index_holds_the_rows_asked_for():
    for rows, n_indexed in (("queue", 468), ("all", 468), (30, 30)):
        config = change(objective={"weights": {"masked_cells": 1.0}}, optimize={"steps": 1}, index={"rows": rows})
        assert len(pretrain(make_table(), config).reference) == n_indexed


def test_reference_rows_are_points_of_clean_rows_under_the_final_encoder(undisturbed):
    table = make_table().iloc[undisturbed.reference.rows]
    embedding = undisturbed.embed(table)
    direction = embedding / np.linalg.norm(embedding, axis=1, keepdims=True)
    np.testing.assert_allclose(undisturbed.reference.indexes["direction"].vectors, direction, atol=1e-5)


def test_usual_blame_and_errors_are_those_of_the_reference_rows(undisturbed):
    source = open_table(make_table().iloc[undisturbed.reference.rows])
    cells = undisturbed.preprocessor.transform(next(iter(source.batches())))
    errors = undisturbed.expectation.errors(cells, undisturbed.scalings(cells)[..., 0])
    np.testing.assert_allclose(errors, undisturbed.reference.expected_error, atol=1e-5)
    points = undisturbed.points(cells)
    evidence = undisturbed.reference.evidence(points)
    found = usual_blame(undisturbed.reference, undisturbed.cell_space, points, evidence)
    assert found.keys() == undisturbed.reference.usual_blame.keys()
    for name, blame in found.items():
        np.testing.assert_allclose(blame, undisturbed.reference.usual_blame[name], rtol=1e-4, atol=1e-6)


def test_forests_learn_from_reference_rows_and_from_rows_made_from_them(monkeypatch):
    seen: dict[str, object] = {}
    build = Reference.build.__func__

    def spy(cls, points, rows, held_out, outside, origin, **options):
        seen.update(points=points, held_out=held_out, outside=outside, origin=origin)
        return build(cls, points, rows, held_out, outside, origin, **options)

    monkeypatch.setattr(Reference, "build", classmethod(spy))
    monkeypatch.setattr(tabmoco.training.indexing, "MIN_OUTSIDE_ROWS", 10)
    model = pretrain(make_table(), change(optimize={"steps": 2}))
    assert len(seen["points"]) == 468
    assert len(seen["outside"]) == len(seen["origin"]) == pytest.approx(468, rel=0.1)  # some damage changes nothing
    assert len(seen["held_out"]) == 52
    assert 0 <= seen["origin"].min() and seen["origin"].max() < 468
    assert np.isin(seen["outside"].content, seen["points"].content).mean() < 0.1
    assert all(forest.seen.shape == (468, 8) for forest in model.reference.forests.values())
    monkeypatch.setattr(tabmoco.training.indexing, "MIN_OUTSIDE_ROWS", 900)
    pretrain(make_table(), change(optimize={"steps": 2}))
    assert len(seen["outside"]) == pytest.approx(900, rel=0.1)


# ---------------------------------------------------------------- objectives


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_alone_gives_a_model_that_scores_and_comes_back(tmp_path, name):
    objective = {"weights": {name: 1.0}, "head": "none", "ema_momentum_end": None}
    model = pretrain(make_table(), change(objective=objective, optimize={"steps": 4}), out=tmp_path / "model")
    figures = model.record["figures"]
    assert all(math.isfinite(value) for value in figures.values())
    assert {f"{name}/loss", "effective_rank"} <= figures.keys()
    assert (model.decoder is not None) == (name == "masked_cells")
    scores = model.score(make_table(40, seed=1), fpr=0.5, explain="all")
    assert np.isfinite(scores["anomaly_score"].to_numpy()).all()
    assert_same(RowModel.load(tmp_path / "model"), model)


def test_the_bank_has_a_slot_for_every_row_of_the_table_and_only_those_trained_on_are_used():
    config = change(objective={"weights": {"memory_bank": 1.0}}, optimize={"steps": 8})  # all rows at least once
    model = pretrain(make_table(), config)
    bank = model.pretext.objectives["memory_bank"].bank
    assert len(bank) == N_ROWS
    assert set(torch.nonzero(bank.content == UNSEEN).flatten().tolist()) == held_out_of(model)


# ---------------------------------------------------------------- seeds and budgets


def test_equal_seeds_give_equal_models_and_other_seeds_others(undisturbed):
    assert_same(pretrain(make_table(), SMALL), undisturbed)
    assert_same(pretrain(open_table(make_table(), id_column="order"), SMALL), undisturbed)
    other = pretrain(make_table(), change(seed=1))
    assert not np.array_equal(other.embed(make_table(20)), undisturbed.embed(make_table(20)))
    assert held_out_of(other) != held_out_of(undisturbed)


def test_a_model_does_not_depend_on_or_touch_the_global_generators(undisturbed):
    torch.manual_seed(123)
    np.random.seed(123)  # noqa: NPY002
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    assert_same(pretrain(make_table(), SMALL), undisturbed)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(np.random.get_state()[1], before_numpy)  # noqa: NPY002


@pytest.mark.parametrize(
    ("budget", "n_steps"),
    [
        ({"steps": 3}, 3),
        ({"epochs": 1.0}, 7),  # 468 rows in batches of 64
        ({"epochs": 2.5}, 18),
        ({"epochs": 1e-9}, 1),
        ({}, 12),
    ],
)
def test_budgets(monkeypatch, budget, n_steps):
    monkeypatch.setattr(tabmoco.training.pretrain, "DEFAULT_STEPS", 12)
    optimize = {"steps": None, **budget}
    record = pretrain(make_table(), change(optimize=optimize)).record
    assert record["n_steps"] == record["steps_done"] == record["metrics"][-1]["step"] == n_steps


def test_a_small_table_is_not_passed_over_again_and_again(monkeypatch):
    monkeypatch.setattr(tabmoco.training.pretrain, "DEFAULT_MAX_EPOCHS", 6)
    record = pretrain(make_table(12), change(optimize={"steps": None, "batch_size": 500})).record
    assert record["n_steps"] == 6


def test_minutes_are_turned_into_steps_once_and_a_resumed_run_keeps_the_plan(tmp_path, monkeypatch):
    config = change(optimize={"steps": None, "minutes": 2.0})
    planned = [10, 99]
    monkeypatch.setattr(tabmoco.training.pretrain, "steps_within", lambda minutes, one_step: planned.pop(0))
    out = tmp_path / "model"
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="after step 4 of 10"):
        stop(patch, Pretext, "after_step", 4, press_ctrl_c)
        pretrain(make_table(), config, out=out)
    resumed = resume(out, config=config)
    assert resumed.record["n_steps"] == 10
    planned[:] = [10]
    assert_same(resumed, pretrain(make_table(), config))
    planned[:] = [10]
    by_steps = pretrain(make_table(), change(optimize={"steps": 10}))  # timing left no trace in the weights
    np.testing.assert_array_equal(resumed.embed(make_table(20)), by_steps.embed(make_table(20)))


def test_minutes_really_pass():
    model = pretrain(make_table(), change(optimize={"steps": None, "minutes": 0.005}))  # 0.3 seconds
    assert 1 <= model.record["n_steps"] == model.record["steps_done"] < 1_000


# ---------------------------------------------------------------- small and odd tables


@pytest.mark.parametrize("n_rows", [0, 1])
def test_fewer_than_two_rows_are_refused_with_their_number(tmp_path, n_rows):
    with pytest.raises(TableError, match=f"at least 2 rows.*{n_rows}"):
        pretrain(make_table(n_rows), SMALL, out=tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("n_rows", [2, 3, 30])
def test_tiny_tables(tmp_path, n_rows):
    table = make_table(n_rows)
    model = pretrain(table, SMALL, out=tmp_path / "model")
    assert sorted(queue_of(model.pretext).rows().tolist()) == list(range(n_rows)) == model.reference.rows.tolist()
    scores = model.score(table, fpr=0.5, explain="all")
    assert np.isfinite(scores["anomaly_score"].to_numpy()).all()
    assert (scores["p_value"].to_numpy() > 0).all() and (scores["p_value"].to_numpy() <= 1).all()
    assert np.isfinite(model.embed(table)).all()
    assert_same(RowModel.load(tmp_path / "model"), model)


def test_a_table_of_exact_duplicates_trains_and_stays_finite():
    table = pd.concat([make_table(260)] * 2, ignore_index=True)
    model = pretrain(table, change(data={"id_column": None, "exclude": ("order",)}))
    assert all(math.isfinite(value) for look in model.record["metrics"] for value in look.values())
    held = sorted(held_out_of(model))
    scores = model.score(table.iloc[held], fpr=0.5)
    assert np.isfinite(scores["anomaly_score"].to_numpy()).all()
    twins = [row for row in held if (row + 260) % N_ROWS not in held]
    found = model.search(table.iloc[twins], k=1)
    assert found["neighbour_row_id"].to_pylist() == [(row + 260) % N_ROWS for row in twins]
    np.testing.assert_allclose(found["similarity"].to_numpy(), 1.0, atol=1e-6)


def test_a_table_of_one_row_repeated_is_refused_for_it_has_nothing_to_learn():
    table = pd.DataFrame({"size": [1.0] * 50, "colour": ["red"] * 50})
    with pytest.raises(ValueError, match="'size'"):
        pretrain(table, change(data={"id_column": None}))


def test_training_on_numbers_that_blow_up_is_an_error_and_leaves_no_model(tmp_path):
    config = change(optimize={"learning_rate": 1e25, "warmup": 1.0})
    with pytest.raises(TrainingError, match="finite.*learning_rate"):
        pretrain(make_table(), config, out=tmp_path / "model")
    assert not (tmp_path / "model").exists()


# ---------------------------------------------------------------- what is said and recorded


def test_the_record_is_json_safe_and_complete(undisturbed):
    record = undisturbed.record
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["table"] == "pandas DataFrame"
    assert (record["n_rows"], record["n_trained"], record["n_held_out"], record["n_indexed"]) == (520, 468, 52, 468)
    assert (record["n_steps"], record["steps_done"], record["stopped_early"]) == (N_STEPS, N_STEPS, False)
    assert isinstance(record["worked"], bool) and record["verdict"].startswith("Training ")
    assert record["metrics"][0] == record["untrained"] and record["metrics"][-1] == record["figures"]
    assert record["fingerprint"] == open_table(make_table(), id_column="order").fingerprint()
    assert record["versions"]["numpy"] == np.__version__


def test_a_saved_model_records_how_plausible_damaged_rows_look(measure, tmp_path, monkeypatch):
    monkeypatch.setattr(tabmoco.training.pretrain, "corruption_plausibility", measure)
    config = change(optimize={"steps": 1})
    record = pretrain(make_table(), config, out=tmp_path / "model").record
    assert record["plausibility"] and all(0 <= value <= 1 for value in record["plausibility"].values())
    assert RowModel.load(tmp_path / "model").record == json.loads(json.dumps(record, allow_nan=False)) == record
    assert "plausibility" not in pretrain(make_table(), config).record


def test_a_few_steps_already_work_on_a_table_whose_columns_hang_together():
    config = change(
        encoder={"dropout": 0.0, "d_block": 64, "d_embedding": 32},
        objective={"head": "none", "ema_momentum_end": None},
        optimize={"steps": 80},
    )
    record = pretrain(make_table(), config).record
    assert record["worked"] and "Training worked" in record["verdict"]
    assert record["figures"]["retrieval_accuracy"] > record["untrained"]["retrieval_accuracy"]


def test_the_display_hears_of_a_small_batch_of_resuming_and_of_the_verdict(halted, tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(_Quiet, "say", lambda _, text: said.append(text))
    shutil.copytree(halted.with_name("model.training"), tmp_path / "model.training")
    model = resume(tmp_path / "model")
    assert said[0] == "Resuming at step 5 of 24." and said[-1] == model.record["verdict"]
    said.clear()
    pretrain(make_table(30), change(optimize={"steps": 1}))
    assert said[0] == "There are 30 rows to train on, fewer than batch_size = 64: all are one batch."


def test_a_view_without_damage_and_no_outside_rows_trains():
    config = change(
        corruption=dataclasses.asdict(
            CorruptionConfig(query_swap=(0.0, 0.0), mask=(0.0, 0.0), noisy_rows=0.0, outside_rows=0.0)
        ),
        index=dataclasses.asdict(IndexConfig()),
        optimize={"steps": 3},
    )
    assert all(math.isfinite(value) for value in pretrain(make_table(), config).record["figures"].values())
