"""The model directory: plain text, safetensors and Arrow, with a checksum for every file. No pickle anywhere.

| file | holds |
|---|---|
| manifest.json | format version, and SHA-256 and size of every other file; checked before anything is read |
| config.toml | all settings |
| schema.json | the columns, their kinds and what the preprocessor knows of them |
| preprocessor.safetensors | its arrays: quantiles and text statistics |
| encoder.safetensors | the encoder |
| objectives.safetensors | heads, target, queue, bank and centre |
| index.safetensors | reference rows in every space, rows kept out, whitening, forests, rarity, times, blame, errors |
| ids.arrow | their names, if the table has an id column |
| calibration.json | the scales and weights of the evidence and the calibration scores |
| record.json | how the model came to be |
| metrics.jsonl | what was measured while training |
| MODEL_CARD.md | all of it for people |
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.numpy
import safetensors.torch
import torch
from safetensors import SafetensorError

from tabmoco.card import model_card
from tabmoco.config import PretrainConfig
from tabmoco.devices import resolve_device
from tabmoco.errors import ModelFileError, TabmocoError
from tabmoco.model import RowModel, build_untrained
from tabmoco.model_checks import (
    NoLargerThan,
    check_metrics,
    check_names,
    check_record,
    check_reference,
    check_widths,
    restore,
)
from tabmoco.neighbors.anomaly import Calibration, PieceScale
from tabmoco.neighbors.forest import OutsideForest
from tabmoco.neighbors.index import RowIndex
from tabmoco.neighbors.known_times import KnownTimes
from tabmoco.neighbors.rarity import Rarity
from tabmoco.neighbors.reference import (
    DISTANCE_SPACES,
    FOREST_VECTORS,
    SEARCH_SPACE,
    Reference,
)
from tabmoco.neighbors.whitening import Whitening
from tabmoco.tables import aside
from tabmoco.tables.preprocess import Preprocessor

FORMAT_VERSION = 3

MANIFEST = "manifest.json"


def save_model(model: RowModel, directory: Path, *, overwrite: bool = False) -> None:
    """Write a model directory aside and rename it when it is whole."""
    check_target(directory, overwrite=overwrite)
    with _aside(directory) as part:
        _write(model, part)
        mode = 0o666 & ~_umask()
        for path in part.iterdir():
            path.chmod(mode)  # safetensors writes files that only their owner can read
        files = {
            path.name: {"sha256": _sha256(path), "size_bytes": path.stat().st_size} for path in sorted(part.iterdir())
        }
        _write_json(part / MANIFEST, {"format_version": FORMAT_VERSION, "files": files})
        for path in part.iterdir():
            _flush(path)


def check_target(directory: Path, *, overwrite: bool) -> None:
    """Refuse to write over anything that exists, unless `overwrite` allows it and it is a model directory."""
    if directory.name in ("", ".."):
        raise ModelFileError(f"a model needs a directory of its own, for instance model, got {directory}.")
    aside.restore(directory.resolve())
    _check_writable(directory)
    if not directory.exists() and not directory.is_symlink():
        return
    if not overwrite:
        raise ModelFileError(f"{directory} exists already; choose another directory or pass --overwrite.")
    is_empty = directory.is_dir() and not any(directory.iterdir())
    if not is_empty and not (directory / MANIFEST).is_file():
        raise ModelFileError(f"{directory} is not a model directory, so it is not overwritten; choose another --out.")


def _check_writable(directory: Path) -> None:
    """Refuse a place where no directory can be made, as far as that can be told without making one."""
    existing = next(parent for parent in directory.resolve().parents if parent.exists())
    if not existing.is_dir():
        raise ModelFileError(f"{directory} cannot be written: {existing} is not a folder; choose another place.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ModelFileError(f"{directory} cannot be written: the folder {existing} is read-only; choose another one.")


def load_model(directory: Path, *, device: str = "auto") -> RowModel:
    """Read a model directory after checking that it is whole, unaltered and of this format version."""
    try:
        aside.restore(directory.resolve())
        return _read(directory, _checked_files(directory), device)
    except TabmocoError:
        raise
    except OSError as error:
        raise ModelFileError(f"{error.filename or directory} cannot be read: {error.strerror or error}.") from error
    except MemoryError as error:
        raise ModelFileError(
            f"there is not enough memory for the model in {directory}; make room, or train it again if it once fitted."
        ) from error
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
        SafetensorError,
        pa.ArrowException,
    ) as error:
        raise ModelFileError(
            f"the model in {directory} does not fit together ({_in_short(error)}); train it again."
        ) from error


def _write(model: RowModel, directory: Path) -> None:
    settings, arrays = model.preprocessor.to_state()
    (directory / "config.toml").write_text(model.config.to_toml(), encoding="utf-8")
    _write_json(directory / "schema.json", settings)
    safetensors.numpy.save_file(
        {name: np.ascontiguousarray(a) for name, a in arrays.items()}, directory / "preprocessor.safetensors"
    )
    safetensors.torch.save_file(_tensors(model.pretext.encoder), directory / "encoder.safetensors")
    safetensors.torch.save_file(_tensors(model.pretext.objectives), directory / "objectives.safetensors")
    if model.reference is not None:
        _write_reference(model.reference, directory)
    _write_json(directory / "record.json", {key: value for key, value in model.record.items() if key != "metrics"})
    lines = [json.dumps(line) for line in model.record.get("metrics", [])]
    (directory / "metrics.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    (directory / "MODEL_CARD.md").write_text(model_card(model), encoding="utf-8")


def _write_reference(reference: Reference, directory: Path) -> None:
    arrays: dict[str, np.ndarray] = {}
    for name, index in reference.indexes.items():
        arrays |= {f"{name}/{part}": a for part, a in index.to_arrays().items()}
    for name, forest in reference.forests.items():
        arrays |= {f"{name}_forest/{part}": a for part, a in forest.to_arrays().items()}
    arrays |= {"whitening/mean": reference.whitening.mean, "whitening/matrix": reference.whitening.matrix}
    arrays["expected/error"] = reference.expected_error
    if reference.rarity is not None:
        arrays["rarity/surprise"] = reference.rarity.surprise
    if reference.known_times is not None:
        arrays |= {f"times/{part}": a for part, a in vars(reference.known_times).items()}
    arrays |= {f"usual_blame/{piece}": a for piece, a in reference.usual_blame.items()}
    if reference.held_out is not None:
        arrays |= {f"held_out/{part}": a for part, a in reference.held_out.to_arrays().items()}
    safetensors.numpy.save_file(
        {name: np.ascontiguousarray(a) for name, a in arrays.items()}, directory / "index.safetensors"
    )
    if reference.ids is not None:
        table = pa.table({"id": reference.ids})
        with pa.OSFile(str(directory / "ids.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    calibration = reference.calibration
    _write_json(
        directory / "calibration.json",
        {
            "n_neighbors": reference.n_neighbors,
            "held_out": calibration.held_out,
            "pieces": {name: dataclasses.asdict(s) for name, s in calibration.scales.items()},
            "scores": calibration.scores.tolist(),
        },
    )


def _read(directory: Path, files: set[str], device: str) -> RowModel:
    config = PretrainConfig.from_toml(directory / "config.toml")
    arrays = safetensors.numpy.load_file(directory / "preprocessor.safetensors")
    preprocessor = Preprocessor.from_state(_read_json(directory / "schema.json"), arrays)
    record = _read_json(directory / "record.json")
    check_record(record)
    if preprocessor.config != config.data:
        raise ModelFileError("config.toml and schema.json must agree on how a table is read; train the model again.")
    with NoLargerThan([directory / "encoder.safetensors", directory / "objectives.safetensors"]):
        pretext = build_untrained(preprocessor, config, n_rows=record.get("n_rows", 0))
    restore(pretext.encoder, directory / "encoder.safetensors")
    restore(pretext.objectives, directory / "objectives.safetensors")
    reference = _read_reference(directory, files) if "index.safetensors" in files else None
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    record["metrics"] = [json.loads(line) for line in lines]
    check_metrics(record["metrics"])
    model = RowModel(config, preprocessor, pretext, reference, record, resolve_device(device))
    _try_out(model)
    return model


def _try_out(model: RowModel) -> None:
    """Send a row of missing cells through everything: parts that do not fit together fail here, not at first use."""
    if model.reference is not None:
        check_widths(model, model.reference)
    row = pa.table({name: pa.nulls(1) for name in model.preprocessor.layout.columns})
    model.card()
    model.embed(row)
    if model.reference is not None:
        model.score(row, fpr=1.0, explain=True)


def _read_reference(directory: Path, files: set[str]) -> Reference:
    arrays = safetensors.numpy.load_file(directory / "index.safetensors")
    spaces: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        space, _, part = name.partition("/")
        spaces.setdefault(space, {})[part] = array
    ids = None
    if "ids.arrow" in files:
        with pa.OSFile(str(directory / "ids.arrow"), "rb") as file, pa.ipc.open_file(file) as reader:
            ids = reader.read_all().column("id").combine_chunks()
        ids.validate(full=True)
    settings = _read_json(directory / "calibration.json")
    calibration = Calibration(
        {name: PieceScale.from_dict(scale) for name, scale in settings["pieces"].items()},
        np.asarray(settings["scores"], dtype=np.float64),
        bool(settings["held_out"]),
    )
    indexes = {space: RowIndex.from_arrays(spaces[space]) for space in (*DISTANCE_SPACES, SEARCH_SPACE)}
    reference = Reference(
        indexes,
        Whitening(**spaces["whitening"]),
        {
            name: OutsideForest.from_arrays(spaces[f"{name}_forest"])
            for name in calibration.scales
            if name in FOREST_VECTORS
        },
        int(settings["n_neighbors"]),
        ids,
        calibration,
        spaces["usual_blame"],
        spaces["expected"]["error"],
        Rarity(**spaces["rarity"]) if "rarity" in spaces else None,
        KnownTimes(**spaces["times"]) if "times" in spaces else None,
        RowIndex.from_arrays(spaces["held_out"]) if "held_out" in spaces else None,
    )
    check_reference(reference)
    return reference


def _checked_files(directory: Path) -> set[str]:
    """The files of the manifest, after comparing each with its checksum."""
    if not directory.is_dir():
        raise ModelFileError(f"{directory} is not a directory; give the directory that pretrain wrote.")
    path = directory / MANIFEST
    if not path.is_file():
        raise ModelFileError(f"{directory} has no {MANIFEST}, so it is no model directory, or its writing never ended.")
    manifest = _read_json(path)
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if type(version) is not int:
        raise ModelFileError(f"{path} states no format version; the file is damaged: train the model again.")
    if version != FORMAT_VERSION:
        age = "newer" if version > FORMAT_VERSION else "older"
        raise ModelFileError(
            f"{directory} has format version {version}, {age} than the {FORMAT_VERSION} that this tabmoco reads; "
            f"{'upgrade tabmoco' if version > FORMAT_VERSION else 'train the model again'}."
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or not files:
        raise ModelFileError(f"{path} lists no files; it is damaged: train the model again.")
    for name in files:
        if Path(name).name != name or name in (".", ".."):
            raise _lies_outside(directory, name)
    check_names(files)
    for name, entry in files.items():
        _check_file(directory, name, entry)
    return set(files)


def _check_file(directory: Path, name: str, entry: Any) -> None:
    path = directory / name
    if path.is_symlink():
        raise _lies_outside(directory, name)
    if not path.is_file():
        raise ModelFileError(f"{name} is missing from {directory}; copy the model again or train it again.")
    if (
        not isinstance(entry, dict)
        or path.stat().st_size != entry.get("size_bytes")
        or _sha256(path) != entry.get("sha256")
    ):
        raise ModelFileError(f"{name} in {directory} was altered or cut off; copy the model again or train it again.")


def _lies_outside(directory: Path, name: str) -> ModelFileError:
    return ModelFileError(
        f"the manifest of {directory} names {name!r:.100}, which does not lie inside it; do not trust it."
    )


@contextmanager
def _aside(directory: Path) -> Iterator[Path]:
    """A directory that takes the place of `directory` once the block ends well, and vanishes if it does not.

    Whatever happens, a kill included, `directory` is afterwards either the old one or the new one.
    """
    directory = directory.resolve()  # a link stays a link
    part = aside.hidden_name(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        aside.sweep(directory)
        part.mkdir()
        with aside.held(part):
            yield part
            aside.put_in_place(part, directory)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{directory} cannot be written: {reason}; make room or choose another place.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _flush(path: Path) -> None:
    """Wait until a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} cannot be read as JSON ({error}); the file is damaged.") from error


def _in_short(error: Exception) -> str:
    """An error of another library's on one line of moderate length."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
