"""The model directory: back to the last bit, and nothing but a clear error from a damaged, altered or hostile one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.config import DataConfig, EncoderConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.errors import ModelFileError, TabmocoError
from tabmoco.model import RowModel
from tabmoco.model_files import FORMAT_VERSION, check_target, load_model, save_model
from tabmoco.tables.source import open_table
from tabmoco.training.pretrain import pretrain

pytestmark = pytest.mark.usefixtures("small_forests", "rows_kept_out")

N_ROWS = 80
SMALL = PretrainConfig(
    data=DataConfig(id_column="order", kinds={"note": "text"}, text_width=4),
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=64),
    optimize=OptimizeConfig(steps=4, batch_size=32),
)

FILES = [
    "manifest.json", "config.toml", "schema.json", "preprocessor.safetensors", "encoder.safetensors",
    "objectives.safetensors", "index.safetensors", "ids.arrow", "calibration.json", "record.json", "metrics.jsonl",
    "MODEL_CARD.md",
]  # fmt: skip
CHECKED = FILES[1:]
READ = FILES[1:-1]
"""Files that loading reads; the card is for people."""


def make_table(n_rows: int = N_ROWS) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    size = generator.normal(size=n_rows)
    colour = np.where(size > 0.5, "red", np.where(size < -0.5, "blue", "green"))
    table = pd.DataFrame(
        {
            "order": [f"order {row}" for row in range(n_rows)],
            "size": size,
            "weight": 2 * size + generator.normal(scale=0.1, size=n_rows),
            "colour": colour,
            "fragile": size > 0,
            "opened": pd.date_range("2024-01-01", periods=n_rows, freq="7h"),
            "note": [f"the {word} thing of {float(value):.1f} kilos" for word, value in zip(colour, size, strict=True)],
            "flat": 1,
        }
    )
    table.loc[generator.random(n_rows) < 0.1, "weight"] = None
    return table


TABLE = make_table()


@pytest.fixture(scope="module")
def rows_kept_out() -> Iterator[None]:
    """Small tables keep rows out too, so that all pieces count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tabmoco.training.pretrain.MIN_HELD_OUT_TABLE", 2)
        yield


@pytest.fixture(scope="module")
def model(rows_kept_out) -> RowModel:
    return pretrain(TABLE, SMALL)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("saved") / "model"
    model.save(directory)
    return directory


@pytest.fixture
def directory(saved, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def results(model: RowModel) -> list[Any]:
    source = open_table(TABLE, id_column="order")
    return [
        model.embed(TABLE).tobytes(),
        model.score(source, fpr=0.02, explain="all"),
        model.score(source, fpr=0.3),
        model.search(source, k=3),
        model.contributions(TABLE).tobytes(),
        model.info(),
        model.card(),
    ]


def rehash(directory: Path) -> None:
    """Make the manifest agree with whatever the files now hold."""
    files = {
        path.name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "size_bytes": path.stat().st_size}
        for path in directory.iterdir()
        if path.name != "manifest.json"
    }
    (directory / "manifest.json").write_text(json.dumps({"format_version": FORMAT_VERSION, "files": files}))


def refused(directory: Path, *parts: str, error: type[TabmocoError] = ModelFileError) -> str:
    with pytest.raises(error) as raised:
        load_model(directory)
    for part in parts:
        assert part in str(raised.value)
    return str(raised.value)


# ---------------------------------------------------------------- there and back


def test_a_saved_model_is_the_model_to_the_last_bit(model, directory):
    loaded = RowModel.load(directory)
    assert results(loaded) == results(model)
    assert loaded.record == model.record
    assert loaded.config == model.config
    for (name, mine), theirs in zip(
        model.pretext.state_dict().items(), loaded.pretext.state_dict().values(), strict=True
    ):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), name
    assert not loaded.pretext.training


def test_saving_a_loaded_model_writes_the_same_files(directory, tmp_path):
    RowModel.load(directory).save(tmp_path / "again")
    assert sorted(path.name for path in directory.iterdir()) == sorted(FILES)
    for name in FILES:
        assert (directory / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


@pytest.mark.parametrize(
    "change",
    [
        {"data": DataConfig(exclude=("order", "note"))},
        {"objective": ObjectiveConfig(queue_size=64, weights={"moco": 1.0}, head="mlp")},
        {"objective": ObjectiveConfig(weights={"masked_cells": 0.5})},
        {"data": DataConfig(columns=("colour", "fragile"))},
        {"data": DataConfig(columns=("size",))},
        {"encoder": EncoderConfig(backbone="ft_transformer", d_token=8, n_blocks=1, d_embedding=8)},
        {"encoder": EncoderConfig(backbone="mlp", number_embedding="piecewise", d_block=8, d_embedding=8)},
    ],
    ids=["no ids", "contrast alone", "masked cells alone", "codes", "one number", "transformer", "piecewise"],
)
def test_models_of_other_shapes_come_back_too(tmp_path, change):
    model = pretrain(TABLE, dataclasses.replace(SMALL, **change), out=tmp_path / "model")
    loaded = RowModel.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.embed(TABLE), model.embed(TABLE))
    assert loaded.score(TABLE, fpr=0.1, explain="all") == model.score(TABLE, fpr=0.1, explain="all")
    assert loaded.search(TABLE) == model.search(TABLE)


def test_an_index_in_lists_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr("tabmoco.neighbors.index.FLAT_UP_TO", 50)
    monkeypatch.setattr("tabmoco.neighbors.index.RECALL_SAMPLE", 20)
    monkeypatch.setattr("tabmoco.neighbors.index.MOST_VISITED", 1.0)
    model = pretrain(TABLE, SMALL, out=tmp_path / "model")
    loaded = RowModel.load(tmp_path / "model")
    assert loaded.reference.indexes["direction"].centroids is not None
    assert results(loaded) == results(model)


def test_a_model_without_reference_rows_embeds_but_compares_with_nothing(model, tmp_path):
    dataclasses.replace(model, reference=None).save(tmp_path / "model")
    loaded = RowModel.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.embed(TABLE), model.embed(TABLE))
    for compare in (loaded.score, loaded.search, loaded.contributions):
        with pytest.raises(TabmocoError, match="no reference rows"):
            compare(TABLE)


@pytest.mark.parametrize("id_type", [pa.int32(), pa.large_string(), pa.timestamp("ns", "UTC"), pa.float64()])
def test_ids_keep_their_type(tmp_path, id_type):
    ids = pa.array(range(N_ROWS)).cast(pa.int64()).cast(id_type if not pa.types.is_timestamp(id_type) else pa.int64())
    table = pa.table({"order": ids.cast(id_type), "size": TABLE["size"], "colour": TABLE["colour"]})
    model = pretrain(table, dataclasses.replace(SMALL, data=DataConfig(id_column="order")), out=tmp_path / "model")
    loaded = RowModel.load(tmp_path / "model")
    assert loaded.reference.ids.type == id_type
    assert loaded.search(table, k=2) == model.search(table, k=2)


def test_a_model_trained_on_a_gpu_loads_on_a_cpu(model, tmp_path):
    on_gpu = dataclasses.replace(model, config=dataclasses.replace(model.config, device="cuda"))
    on_gpu.save(tmp_path / "model")
    loaded = RowModel.load(tmp_path / "model", device="cpu")
    assert loaded.device.type == "cpu"
    np.testing.assert_array_equal(loaded.embed(TABLE), model.embed(TABLE))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_asking_for_a_gpu_that_is_not_there_is_an_error(directory):
    with pytest.raises(TabmocoError, match="cuda"):
        RowModel.load(directory, device="cuda")


def test_the_directory_may_be_moved_and_reached_through_a_link(directory, tmp_path, model):
    directory.rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(tmp_path / "moved", target_is_directory=True)
    np.testing.assert_array_equal(RowModel.load(tmp_path / "link").embed(TABLE), model.embed(TABLE))
    model.save(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "moved"]
    RowModel.load(tmp_path / "moved")


# ---------------------------------------------------------------- where to write


def test_a_target_is_refused_unless_it_is_free_or_may_be_overwritten(saved, tmp_path):
    check_target(tmp_path / "new" / "deep" / "model", overwrite=False)
    with pytest.raises(ModelFileError, match="exists already.*--overwrite"):
        check_target(saved, overwrite=False)
    check_target(saved, overwrite=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match="exists already"):
        check_target(tmp_path / "empty", overwrite=False)
    check_target(tmp_path / "empty", overwrite=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for taken in ("file", "dangling"):
        with pytest.raises(ModelFileError, match="exists already"):
            check_target(tmp_path / taken, overwrite=False)
        with pytest.raises(ModelFileError, match="not a model directory"):
            check_target(tmp_path / taken, overwrite=True)


@pytest.mark.parametrize("path", [".", "..", "model/..", "/"])
def test_a_target_must_have_a_name(model, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(ModelFileError, match="directory of its own"):
            save_model(model, Path(path), overwrite=overwrite)
    assert not list(tmp_path.iterdir())


def test_missing_folders_are_made_and_a_file_in_the_way_is_named(model, tmp_path):
    model.save(tmp_path / "a" / "b" / "model")
    assert RowModel.load(tmp_path / "a" / "b" / "model").d_embedding == 8
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFileError, match="file/model cannot be written: .*file is not a folder"):
        model.save(tmp_path / "file" / "model")


@pytest.mark.parametrize("n_written", range(0, 12, 3))
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_save_that_fails_midway_changes_nothing(model, saved, tmp_path, monkeypatch, n_written, overwrite):
    target = tmp_path / "model"
    if overwrite:
        shutil.copytree(saved, target)
    sums = iter(range(100))

    def failing(path: Path) -> str:
        if next(sums) >= n_written:
            raise OSError(5, "Input/output error")
        return "0"

    monkeypatch.setattr("tabmoco.model_files._sha256", failing)
    with pytest.raises(ModelFileError, match="model cannot be written: Input/output error"):
        model.save(target, overwrite=overwrite)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == (["model"] if overwrite else [])
    if overwrite:
        RowModel.load(target)


def test_files_have_the_permissions_of_other_new_files(saved, tmp_path):
    (tmp_path / "new").write_text("")
    for path in saved.iterdir():
        assert path.stat().st_mode == (tmp_path / "new").stat().st_mode, path.name


# ---------------------------------------------------------------- damage that the checksums find


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "a byte less", "longer", "a directory", "a link"])
def test_damage_of_any_file_is_found_and_the_file_named(directory, name, damage):
    path = directory / name
    whole = path.read_bytes()
    path.unlink()
    if damage == "a directory":
        path.mkdir()
    elif damage == "a link":
        path.with_name(f"other {name}").write_bytes(whole)
        path.symlink_to(path.with_name(f"other {name}"))
    elif damage != "missing":
        cut = {"empty": 0, "cut": len(whole) // 2, "a byte less": -1}.get(damage, None)
        path.write_bytes(whole + b"\n" if damage == "longer" else whole[:cut])
    if name == "manifest.json" and damage in ("a link", "longer", "a byte less"):
        RowModel.load(directory)  # says the same as before
    else:
        refused(directory, name)


@pytest.mark.parametrize("name", CHECKED)
def test_one_flipped_bit_anywhere_is_found(directory, name):
    path = directory / name
    whole = path.read_bytes()
    for place in {0, 7, len(whole) // 3, len(whole) // 2, len(whole) - 1}:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        refused(directory, name, "altered")


@pytest.mark.parametrize("name", CHECKED)
def test_a_file_swapped_with_another_is_found(directory, name):
    other = CHECKED[CHECKED.index(name) - 1]
    mine, theirs = (directory / name).read_bytes(), (directory / other).read_bytes()
    (directory / name).write_bytes(theirs)
    (directory / other).write_bytes(mine)
    refused(directory, "altered")


@given(st.data())
def test_no_change_of_a_byte_of_the_manifest_does_more_than_refuse(saved, tmp_path_factory, data):
    whole = (saved / "manifest.json").read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[place] = data.draw(st.integers(0, 255))
    directory = tmp_path_factory.mktemp("changed") / "model"
    directory.mkdir()
    for name in CHECKED:
        os.link(saved / name, directory / name)
    (directory / "manifest.json").write_bytes(changed)
    try:
        load_model(directory)
    except ModelFileError:
        pass
    else:
        assert json.loads(changed)["files"].keys() <= set(CHECKED)


def test_what_is_no_model_directory_is_refused(tmp_path, saved):
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no manifest.json")
    refused(tmp_path / "nowhere", "nowhere is not a directory")
    refused(saved / "manifest.json", "is not a directory")


# ---------------------------------------------------------------- the manifest


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the content in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("version", "parts"),
    [
        (FORMAT_VERSION + 1, [f"format version {FORMAT_VERSION + 1}", "newer", "upgrade tabmoco"]),
        (99, ["format version 99", "newer", "upgrade tabmoco"]),
        (FORMAT_VERSION - 1, [f"format version {FORMAT_VERSION - 1}", "older", "train the model again"]),
        ("1", ["no format version"]),
        (None, ["no format version"]),
        (1.0, ["no format version"]),
        (True, ["no format version"]),
        ([1], ["no format version"]),
    ],
)
def test_another_format_version_is_refused_before_anything_else(directory, version, parts):
    (directory / "encoder.safetensors").write_bytes(b"of another format")
    edit_json(directory / "manifest.json", lambda manifest: manifest.update(format_version=version))
    refused(directory, *parts)


@pytest.mark.parametrize("manifest", [[], 3, None, "text", {}, {"files": {}}, [{"format_version": 1}]])
def test_a_manifest_of_another_shape_is_refused(directory, manifest):
    (directory / "manifest.json").write_text(json.dumps(manifest))
    refused(directory, "manifest.json", "no format version")


@pytest.mark.parametrize("files", [None, [], {}, "encoder.safetensors", 5, ["encoder.safetensors"]])
def test_a_manifest_without_files_is_refused(directory, files):
    edit_json(directory / "manifest.json", lambda manifest: manifest.update(files=files))
    refused(directory, "manifest.json", "lists no files")


ENTRIES = [None, 3, "x", [], {}, {"sha256": 5, "size_bytes": 5}, {"sha256": None}, {"size_bytes": -1}, [["sha256", 1]]]


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_an_entry_of_another_type_is_refused(directory, entry):
    edit_json(directory / "manifest.json", lambda manifest: manifest["files"].update({"config.toml": entry}))
    refused(directory, "config.toml", "altered")


@pytest.mark.parametrize("lacking", ["sha256", "size_bytes"])
def test_size_and_checksum_are_both_needed(directory, lacking):
    edit_json(directory / "manifest.json", lambda manifest: manifest["files"]["config.toml"].pop(lacking))
    refused(directory, "config.toml", "altered")


NAMES = [
    "../secret.txt", "/etc/hostname", "..", ".", "", "a/b", "./config.toml", "sub/../config.toml", "\0", "n" * 5_000,
    "\ud800", "C:\\secret.txt", "config.toml/",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=[ascii(name)[:20] for name in NAMES])
def test_a_manifest_that_names_strange_files_is_refused(directory, name):
    secret = directory.parent / "secret.txt"
    secret.write_text("not of this model")
    entry = {"sha256": hashlib.sha256(secret.read_bytes()).hexdigest(), "size_bytes": secret.stat().st_size}
    edit_json(directory / "manifest.json", lambda manifest: manifest["files"].update({name: entry}))
    message = refused(directory)
    if "/" in name or name in ("..", "."):
        assert "does not lie inside it" in message


def test_a_linked_file_is_refused_though_its_content_is_right(directory):
    path = directory / "encoder.safetensors"
    path.rename(directory.parent / "elsewhere")
    path.symlink_to(directory.parent / "elsewhere")
    refused(directory, "encoder.safetensors", "does not lie inside it")


@pytest.mark.parametrize("name", sorted(set(READ) - {"ids.arrow", "index.safetensors"}))  # a model may have none
def test_a_manifest_that_forgets_a_file_is_refused(directory, name):
    (directory / name).unlink()
    rehash(directory)
    refused(directory, name, error=TabmocoError)


def test_a_file_that_cannot_be_read_is_an_error(directory, monkeypatch):
    def denied(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("tabmoco.model_files._sha256", denied)
    refused(directory, "Permission denied")


def test_deeply_nested_json_is_refused(directory):
    (directory / "manifest.json").write_text("[" * 200_000)
    refused(directory, "manifest.json", "JSON")


# ---------------------------------------------------------------- damage behind valid checksums


GARBAGE = {
    "nothing": b"",
    "text": b"no such thing",
    "zeros": bytes(4_096),
    "ones": b"\xff" * 4_096,
    "a pickle": pickle.dumps({"weights": [1.0, 2.0]}),
    "null": b"null",
    "a list": b"[]",
    "an object": b"{}",
    "deep": b"[" * 100_000,
    "a number too many": b'{"n": NaN}',
}
ALLOWED = {
    ("config.toml", "nothing"),  # all defaults, which would not fit, were the model not as small as it is
    ("metrics.jsonl", "nothing"),
    ("metrics.jsonl", "null"),
    ("metrics.jsonl", "a list"),
    ("metrics.jsonl", "an object"),
    ("metrics.jsonl", "a number too many"),
    ("record.json", "an object"),
}
"""What is empty of meaning, but no harm."""


@pytest.mark.parametrize(
    ("name", "content"), [(name, content) for name in READ for content in GARBAGE if (name, content) not in ALLOWED]
)
def test_garbage_with_valid_checksums_is_refused(directory, name, content):
    (directory / name).write_bytes(GARBAGE[content])
    rehash(directory)
    refused(directory, error=TabmocoError)


@pytest.mark.parametrize("name", sorted(set(READ) - {"calibration.json", "record.json", "metrics.jsonl"}))
def test_one_file_of_another_model_does_not_fit(directory, tmp_path, name):
    table = TABLE.drop(columns=["weight", "note"]).assign(shape=TABLE["fragile"].map({True: "up", False: "down"}))
    config = dataclasses.replace(
        SMALL, data=DataConfig(id_column="order", n_knots=16), encoder=EncoderConfig(d_block=8)
    )
    pretrain(table.head(70), config, out=tmp_path / "other")
    shutil.copy(tmp_path / "other" / name, directory / name)
    rehash(directory)
    refused(directory, error=TabmocoError)


RESHAPED: dict[str, Callable[[np.ndarray], np.ndarray | None]] = {
    "gone": lambda array: None,
    "one axis": lambda array: array.reshape(-1),
    "an axis more": lambda array: array[None],
    "shorter": lambda array: array[:-1],
    "narrower": lambda array: array[..., :-1],
    "empty": lambda array: array[:0],
}


@pytest.mark.parametrize("name", [name for name in READ if name.endswith(".safetensors")])
@pytest.mark.parametrize("reshape", RESHAPED.values(), ids=RESHAPED)
def test_arrays_of_wrong_shape_with_valid_checksums_are_refused(directory, name, reshape):
    arrays = safetensors.numpy.load_file(directory / name)
    n_refused = 0
    for array_name, array in arrays.items():
        changed = reshape(array) if array.ndim else None
        if changed is not None and changed.shape == array.shape:
            continue
        others = {other: array for other, array in arrays.items() if other != array_name}
        added = {} if changed is None else {array_name: np.ascontiguousarray(changed)}
        safetensors.numpy.save_file({**others, **added}, directory / name)
        rehash(directory)
        refused(directory, error=TabmocoError)
        n_refused += 1
    assert n_refused > 0


def edit_arrays(path: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Change the arrays in place."""
    arrays = {name: array.copy() for name, array in safetensors.numpy.load_file(path).items()}
    change(arrays)
    safetensors.numpy.save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


def test_the_files_hold_what_the_score_is_made_of(model, directory):
    reference, pieces = model.reference, ["cells", "whitened", "far", "forest", "residual", "rarity"]
    arrays = safetensors.numpy.load_file(directory / "index.safetensors")
    np.testing.assert_array_equal(arrays["whitening/matrix"], reference.whitening.matrix)
    np.testing.assert_array_equal(arrays["whitening/mean"], reference.whitening.mean)
    np.testing.assert_array_equal(arrays["expected/error"], reference.expected_error)
    for piece in pieces:
        np.testing.assert_array_equal(arrays[f"usual_blame/{piece}"], reference.usual_blame[piece])
    for name, forest in reference.forests.items():
        for part, array in forest.to_arrays().items():
            np.testing.assert_array_equal(arrays[f"{name}_forest/{part}"], array)
    assert {name.partition("/")[0] for name in arrays} == {
        "cells", "whitened", "direction", "whitening", "expected", "usual_blame", "forest_forest", "residual_forest",
        "held_out", "rarity", "times",
    }  # fmt: skip
    np.testing.assert_array_equal(arrays["rarity/surprise"], reference.rarity.surprise)
    for part, array in vars(reference.known_times).items():
        np.testing.assert_array_equal(arrays[f"times/{part}"], array)
    np.testing.assert_array_equal(arrays["held_out/rows"], reference.held_out.rows)
    assert len(arrays["held_out/vectors"]) == len(reference.calibration.scores)
    calibration = json.loads((directory / "calibration.json").read_text())
    assert calibration.keys() == {"n_neighbors", "held_out", "pieces", "scores"}
    assert list(calibration["pieces"]) == pieces
    for piece, facts in calibration["pieces"].items():
        assert facts.keys() == {"quantiles", "excess", "weight"}
        assert facts["weight"] == reference.calibration.scales[piece].weight


def set_to(name: str, place: Any, value: float) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda arrays: arrays[name].__setitem__(place, value)


def reshaped(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda arrays: arrays.update({name: change(arrays[name])})


WHITENING, FOREST, RESIDUAL, BLAME = "whitening/matrix", "forest_forest", "residual_forest", "usual_blame/cells"
N_TRAITS = 2 * 9 + 3 + 6
"""Coordinates that the first forest may split on: two for each number, one for each code, one for each column."""

ARRAYS = {
    "no whitening": (lambda arrays: arrays.pop(WHITENING), "Whitening"),
    "a whitening that is not square": (reshaped(WHITENING, lambda a: a[:, :-1]), WHITENING),
    "a whitening of two factors": (reshaped(WHITENING, lambda a: a[:, :2]), WHITENING),
    "a whitening of another width": (reshaped(WHITENING, lambda a: a[:-1, :-1]), WHITENING),
    "a whitening that is not finite": (set_to(WHITENING, (2, 1), np.nan), WHITENING),
    "a mean that fits any width": (reshaped("whitening/mean", lambda a: a[:1]), "whitening/mean"),
    "a mean that is not finite": (set_to("whitening/mean", 0, np.inf), "whitening/mean"),
    "a point that is not finite": (set_to("cells/vectors", (3, 0), np.nan), "cells/vectors"),
    "a whitened point that is not finite": (set_to("whitened/vectors", (3, 0), np.inf), "whitened/vectors"),
    "a direction that is not finite": (set_to("direction/vectors", (3, 0), np.nan), "direction/vectors"),
    "points of another width": (reshaped("cells/vectors", lambda a: a[:, 1:]), "cells/vectors"),
    "no errors": (lambda arrays: arrays.pop("expected/error"), "expected"),
    "the errors of one number": (reshaped("expected/error", lambda a: a[:1]), "expected/error"),
    "errors at one end": (reshaped("expected/error", lambda a: a[:, :1]), "expected/error"),
    "errors that are not finite": (set_to("expected/error", (0, 1), np.nan), "expected/error"),
    "no blame of a piece": (lambda arrays: arrays.pop(BLAME), "usual blame"),
    "the blame of another piece": (lambda arrays: arrays.update({"usual_blame/other": arrays[BLAME]}), "usual blame"),
    "the blame of one column": (reshaped(BLAME, lambda a: a[:1]), BLAME),
    "blame that is not finite": (set_to(BLAME, 0, np.nan), BLAME),
    "rows a forest does not know": (reshaped(f"{FOREST}/seen", lambda a: a[:-1]), "72 rows"),
    "rows a forest knows alone": (reshaped(f"{RESIDUAL}/seen", lambda a: np.vstack([a, a])), "72 rows"),
    "a split beyond the width": (set_to(f"{FOREST}/coordinate", 0, N_TRAITS), f"{N_TRAITS} coordinates of the traits"),
    "a split far beyond the width": (set_to(f"{RESIDUAL}/coordinate", 0, 10_000), "got 10001"),
    "a split before the first": (set_to(f"{FOREST}/coordinate", 0, -1), "leaves"),
    "a threshold that is no number": (set_to(f"{FOREST}/threshold", 0, np.nan), "leaves"),
    "a share that is no number": (set_to(f"{RESIDUAL}/outside", 0, np.nan), "leaves"),
    "a share above one": (set_to(f"{FOREST}/outside", 0, 1.5), "leaves"),
    "a tree that goes round": (set_to(f"{FOREST}/child", 1, 0), "leaves"),
    "a root beyond the trees": (set_to(f"{FOREST}/root", 0, 10**9), "leaves"),
    **{
        f"no {part} of a forest": (lambda arrays, part=part: arrays.pop(f"{FOREST}/{part}"), part)
        for part in ("root", "child", "coordinate", "threshold", "outside", "seen")
    },
    "no forest of residuals": (
        lambda arrays: [arrays.pop(name) for name in list(arrays) if name.startswith(RESIDUAL)],
        RESIDUAL,
    ),
}


@pytest.mark.parametrize(("change", "part"), ARRAYS.values(), ids=ARRAYS)
def test_arrays_that_do_not_fit_the_score_are_refused(directory, change, part):
    edit_arrays(directory / "index.safetensors", change)
    rehash(directory)
    refused(directory, part)


def test_a_split_on_the_last_coordinate_is_none_too_many(model, directory):
    assert len(model.cell_space.trait_owner) == N_TRAITS
    edit_arrays(directory / "index.safetensors", set_to(f"{FOREST}/coordinate", 0, N_TRAITS - 1))
    rehash(directory)
    load_model(directory)


def test_a_whitening_of_one_factor_per_coordinate_is_allowed(directory):
    edit_arrays(directory / "index.safetensors", reshaped(WHITENING, lambda a: a[:, :1]))
    rehash(directory)
    assert not load_model(directory).reference.whitening.is_turned


def test_residuals_are_calibrated_if_and_only_if_there_is_a_decoder(directory, tmp_path):
    bare = dataclasses.replace(SMALL, objective=ObjectiveConfig(queue_size=64, weights={"moco": 1.0}))
    pretrain(TABLE, bare, out=tmp_path / "bare")
    load_model(tmp_path / "bare")
    for name in ("index.safetensors", "calibration.json"):  # each with the evidence of the other
        mine, theirs = (directory / name).read_bytes(), (tmp_path / "bare" / name).read_bytes()
        (directory / name).write_bytes(theirs)
        (tmp_path / "bare" / name).write_bytes(mine)
    for exchanged in (directory, tmp_path / "bare"):
        rehash(exchanged)
        refused(exchanged, "calibration of this model must be of cells, whitened, far, forest")


def test_without_rows_kept_out_only_what_was_not_fitted_to_the_rows_is_calibrated(tmp_path, monkeypatch):
    monkeypatch.setattr("tabmoco.training.pretrain.MIN_HELD_OUT_TABLE", 500)
    pretrain(TABLE, SMALL, out=tmp_path / "all")
    assert list(load_model(tmp_path / "all").reference.calibration.scales) == ["cells", "far", "forest"]
    path = tmp_path / "all" / "calibration.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"held_out": True}))
    rehash(tmp_path / "all")
    refused(tmp_path / "all", "must be of cells, whitened, far, forest, residual, got cells, far, forest")


def test_the_distance_to_the_bulk_alone_is_calibrated_where_anomalies_are_among_the_rows(directory, tmp_path):
    contaminated = dataclasses.replace(SMALL, index=dataclasses.replace(SMALL.index, contaminated=True))
    model = pretrain(TABLE, contaminated, out=tmp_path / "contaminated")
    loaded = load_model(tmp_path / "contaminated")
    assert list(loaded.reference.calibration.scales) == ["far"]
    assert loaded.score(TABLE, explain="all") == model.score(TABLE, explain="all")
    shutil.copy(directory / "config.toml", tmp_path / "contaminated" / "config.toml")
    rehash(tmp_path / "contaminated")
    refused(tmp_path / "contaminated", "must be of cells, whitened, far, forest, residual, got far")


CALIBRATIONS = {
    "no neighbours": lambda content: content.update(n_neighbors=0),
    "fewer than no neighbours": lambda content: content.update(n_neighbors=-2),
    "neighbours in words": lambda content: content.update(n_neighbors="two"),
    "no pieces": lambda content: content.update(pieces={}),
    **{
        f"no {piece}": lambda content, piece=piece: content["pieces"].pop(piece)
        for piece in ("cells", "whitened", "far", "forest", "residual", "rarity")
    },
    "a piece more": lambda content: content["pieces"].update(other=content["pieces"]["cells"]),
    "a piece without quantiles": lambda content: content["pieces"]["cells"].pop("quantiles"),
    "a piece without excess": lambda content: content["pieces"]["far"].pop("excess"),
    "a piece without weight": lambda content: content["pieces"]["forest"].pop("weight"),
    "a quantile less": lambda content: content["pieces"]["cells"]["quantiles"].pop(),
    "a quantile more": lambda content: content["pieces"]["cells"]["quantiles"].append(1e9),
    "quantiles that fall": lambda content: content["pieces"]["cells"]["quantiles"].reverse(),
    "a quantile that is not finite": lambda content: content["pieces"]["cells"]["quantiles"].__setitem__(-1, 1e999),
    "a quantile in words": lambda content: content["pieces"]["cells"]["quantiles"].__setitem__(0, "low"),
    "no excess": lambda content: content["pieces"]["whitened"].update(excess=0.0),
    "a negative excess": lambda content: content["pieces"]["whitened"].update(excess=-1.0),
    "a negative weight": lambda content: content["pieces"]["forest"].update(weight=-0.5),
    "a weight in words": lambda content: content["pieces"]["forest"].update(weight="much"),
    "a weight of none": lambda content: content["pieces"]["forest"].update(weight=None),
    "scores that fall": lambda content: content["scores"].reverse(),
    "scores that are not finite": lambda content: content["scores"].append(float("inf")),
    "scores in words": lambda content: content.update(scores=["low", "high"]),
    "nested scores": lambda content: content.update(scores=[content["scores"]]),
}


@pytest.mark.parametrize("change", CALIBRATIONS.values(), ids=CALIBRATIONS)
def test_a_calibration_that_does_not_fit_is_refused(directory, change):
    edit_json(directory / "calibration.json", change)
    rehash(directory)
    refused(directory)


SETTINGS = {
    "another width": ("d_embedding = 8", "d_embedding = 9"),
    "an unknown setting": ("d_embedding = 8", "d_embeding = 8"),
    "another type": ("d_embedding = 8", 'd_embedding = "8"'),
    "out of range": ("d_embedding = 8", "d_embedding = -8"),
    "too much memory": ("d_embedding = 8", "d_embedding = 1000000000000"),
    "another backbone": ('backbone = "resnet"', 'backbone = "mlp"'),
    "another queue": ("queue_size = 64", "queue_size = 65"),
    "no contrast": ('"moco" = 1.0', '"masked_cells" = 1.0'),
}


@pytest.mark.parametrize(("old", "new"), SETTINGS.values(), ids=SETTINGS)
def test_settings_that_do_not_fit_are_refused(directory, old, new):
    path = directory / "config.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    rehash(directory)
    refused(directory, error=TabmocoError)


COLUMNS = {
    "a column less": lambda content: content["schema"]["columns"].pop(0),
    "a column of another kind": lambda content: content["schema"]["columns"][0].update(kind="category"),
    "a column of no kind": lambda content: content["schema"]["columns"][0].update(kind="colour"),
    "a column without a name": lambda content: content["schema"]["columns"][0].pop("name"),
    "an encoder less": lambda content: content["encoders"].pop(),
    "an encoder more": lambda content: content["encoders"].append(content["encoders"][0]),
    "encoders in another order": lambda content: content["encoders"].reverse(),
    "a category less": lambda content: next(e for e in content["encoders"] if "values" in e).update(n_coded=1),
    "a time without hours": lambda content: next(e for e in content["encoders"] if "has_time" in e).update(
        has_time=False
    ),
    "a location in words": lambda content: content["encoders"][0].update(location="here"),
    "a location beyond all numbers": lambda content: content["encoders"][0].update(location=1e999),
    "a scale below 0": lambda content: content["encoders"][0].update(scale=-1.0),
    "more codes than values": lambda content: next(e for e in content["encoders"] if "values" in e).update(n_coded=9),
    "a value twice": lambda content: next(e for e in content["encoders"] if "values" in e)["values"].append("red"),
    "an encoder of another column": lambda content: content["encoders"][0].update(column="other"),
    "a count below 0": lambda content: content["schema"]["columns"][0].update(n_missing=-1),
    "a count in words": lambda content: content["schema"]["columns"][0].update(n_distinct="many"),
    "a range of another kind": lambda content: content["schema"]["columns"][0].update(earliest="2024-01-01"),
    "a time that is none": lambda content: next(c for c in content["schema"]["columns"] if c["earliest"]).update(
        latest="2024-03-11T07:0"
    ),
    "a name twice": lambda content: content["schema"]["columns"][0].update(name="weight"),
    "other settings than config.toml": lambda content: content["config"].update(max_categories=17),
}


@pytest.mark.parametrize("change", COLUMNS.values(), ids=COLUMNS)
def test_a_schema_that_does_not_fit_is_refused(directory, change):
    edit_json(directory / "schema.json", change)
    rehash(directory)
    refused(directory, error=TabmocoError)


def test_a_network_that_the_files_do_not_hold_is_refused_before_memory_is_taken(directory):
    path = directory / "config.toml"
    for old, new in {"d_block = 16": "d_block = 1000000", "n_blocks = 1": "n_blocks = 1000000000"}.items():
        whole = path.read_text()
        assert old in whole
        path.write_text(whole.replace(old, new))
        rehash(directory)
        refused(directory, "which the files do not hold")
        path.write_text(whole)


def test_weights_that_are_not_finite_or_of_another_type_are_refused(directory):
    path = directory / "encoder.safetensors"
    whole = path.read_bytes()
    for change in (lambda a: a.fill(np.nan), lambda a: a.fill(np.inf)):
        edit_arrays(path, lambda arrays, change=change: change(arrays["backbone.linear.bias"]))
        rehash(directory)
        refused(directory, "backbone.linear.bias")
        path.write_bytes(whole)
    edit_arrays(path, reshaped("backbone.linear.bias", lambda a: a.astype(np.float64)))
    rehash(directory)
    refused(directory, "backbone.linear.bias", "float64")


def test_weights_that_overflow_are_an_error_at_use_and_no_result(directory):
    edit_arrays(directory / "encoder.safetensors", lambda arrays: arrays["backbone.linear.weight"].fill(1e38))
    rehash(directory)
    with pytest.raises(ModelFileError, match="embeddings must be finite"):
        load_model(directory).embed(TABLE)


RECORDS = [
    [],
    "text",
    {"n_rows": -1},
    {"n_trained": 0},
    {"n_rows": 1.5},
    {"n_steps": "many"},
    {"x": [[[[[[[[[[1]]]]]]]]]]},
]


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_a_record_of_no_counts_is_refused(directory, record):
    (directory / "record.json").write_text(json.dumps(record))
    rehash(directory)
    refused(directory, "record.json")


def test_a_file_that_no_model_has_is_refused(directory):
    (directory / "weights.pt").write_text("")
    rehash(directory)
    refused(directory, "weights.pt", "none of them")


@pytest.mark.parametrize("n_ids", [0, N_ROWS - 1, N_ROWS + 1])
def test_ids_must_be_as_many_as_the_reference_rows(directory, n_ids):
    table = pa.table({"id": [f"order {row}" for row in range(n_ids)]})
    with pa.OSFile(str(directory / "ids.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    rehash(directory)
    refused(directory, "id per row")


def test_loading_unpickles_nothing(directory, monkeypatch, model):
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    monkeypatch.setattr(torch, "load", forbidden)
    monkeypatch.setattr(np, "load", forbidden)
    loaded = load_model(directory)
    np.testing.assert_array_equal(loaded.embed(TABLE), model.embed(TABLE))
    (directory / "encoder.safetensors").write_bytes(pickle.dumps(Trap()))
    rehash(directory)
    refused(directory)
    assert Trap.sprung == 0


class Trap:
    """Counts how often it is unpickled."""

    sprung = 0

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return spring, ()


def spring() -> None:
    Trap.sprung += 1
