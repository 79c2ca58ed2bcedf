"""The folders of column encoders and catalogues: JSON and safetensors, with a checksum of every file. No pickle.

| file | holds |
|---|---|
| manifest.json | what the folder is, its format version, and SHA-256 and size of every other file; checked first |
| columns.json | an encoder's sizes, meanings, threshold and record; a catalogue's tables and columns |
| columns.safetensors | an encoder's weights, or a catalogue's embeddings |
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError

from tabmoco.columns.catalogue import Catalogue
from tabmoco.columns.encoder import ColumnEncoder, ColumnView
from tabmoco.columns.meanings import MeaningHead
from tabmoco.columns.network import ColumnNetwork
from tabmoco.columns.traits import N_TRAITS
from tabmoco.errors import IndexMismatchError, ModelFileError, TabmocoError
from tabmoco.tables import aside

FORMAT_VERSION = 1
"""Of the files and of the traits: an encoder is of use only with the traits it learned from."""

MANIFEST, SETTINGS, ARRAYS = "manifest.json", "columns.json", "columns.safetensors"
SHIPPED = Path(__file__).parent / "shipped"
"""The encoder that tabmoco ships; `benchmarks.columns_tables` says how it was made."""

What = Literal["column encoder", "column catalogue"]


def save_encoder(encoder: ColumnEncoder, folder: Path, *, overwrite: bool = False) -> None:
    """Write an encoder's folder aside and rename it when it is whole."""
    settings = {
        "n_traits": N_TRAITS,
        "d_hidden": encoder.network.d_hidden,
        "d_embedding": encoder.d_embedding,
        "meanings": list(encoder.head.meanings),
        "threshold": encoder.threshold,
        "record": encoder.record,
    }
    arrays = {f"network/{name}": tensor.numpy() for name, tensor in encoder.network.state_dict().items()}
    arrays |= {"meaning/weight": encoder.head.weight, "meaning/bias": encoder.head.bias, "centre": encoder.centre}
    _save(folder, "column encoder", settings, arrays, overwrite=overwrite)


def load_encoder(folder: Path) -> ColumnEncoder:
    """Read an encoder's folder after checking that it is whole, unaltered and of this format version."""
    settings, arrays = _load(folder, "column encoder")
    try:
        if settings["n_traits"] != N_TRAITS:
            raise ValueError(f"it was trained on {settings['n_traits']} traits, not {N_TRAITS}")
        network = ColumnNetwork(N_TRAITS, d_hidden=settings["d_hidden"], d_embedding=settings["d_embedding"])
        weights = {name.removeprefix("network/"): a for name, a in arrays.items() if name.startswith("network/")}
        network.load_state_dict({name: torch.from_numpy(a) for name, a in weights.items()}, strict=True)
        head = MeaningHead(tuple(settings["meanings"]), arrays["meaning/weight"], arrays["meaning/bias"])
        encoder = ColumnEncoder(
            network.eval(), head, arrays["centre"], float(settings["threshold"]), settings["record"]
        )
        _try_out(encoder, arrays)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"the column encoder in {folder} does not fit together ({type(error).__name__}: {error}); train it again."
        ) from error
    return encoder


def save_catalogue(catalogue: Catalogue, folder: Path, *, overwrite: bool = False) -> None:
    """Write a catalogue's folder aside and rename it when it is whole."""
    settings = {
        "encoder": catalogue.encoder.fingerprint,
        "tables": list(catalogue.tables),
        "columns": [dataclasses.asdict(column) for column in catalogue.columns],
    }
    arrays = {"owner": catalogue.owner, "vectors": catalogue.vectors, "embeddings": catalogue.embeddings}
    _save(folder, "column catalogue", settings, arrays, overwrite=overwrite)


def load_catalogue(folder: Path, encoder: ColumnEncoder) -> Catalogue:
    """Read a catalogue's folder; refuse one that another encoder made."""
    settings, arrays = _load(folder, "column catalogue")
    try:
        if settings["encoder"] != encoder.fingerprint:
            raise IndexMismatchError(
                f"the catalogue in {folder} must be used with the column encoder that made it, got another; name it "
                "with --encoder, or make the catalogue again."
            )
        columns = tuple(ColumnView(**column) for column in settings["columns"])
        owner, vectors, embeddings = (arrays[name] for name in ("owner", "vectors", "embeddings"))
        n_tables, width = len(settings["tables"]), encoder.d_embedding
        shapes = ((len(columns),), (len(columns), width), (n_tables, width))
        if (owner.shape, vectors.shape, embeddings.shape) != shapes or not columns:
            raise ValueError("arrays of other shapes than its tables and columns need")
        if owner.min() < 0 or owner.max() >= n_tables or not np.isfinite(vectors).all():
            raise ValueError("columns of no table, or vectors that are not finite")
    except TabmocoError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"the catalogue in {folder} does not fit together ({type(error).__name__}: {error}); make it again."
        ) from error
    return Catalogue(encoder, tuple(settings["tables"]), columns, owner, vectors, embeddings)


def is_catalogue(folder: Path) -> bool:
    """Whether a folder is a catalogue, and not one of tables."""
    return (folder / MANIFEST).is_file() and (folder / ARRAYS).is_file()


def check_target(folder: Path, *, overwrite: bool) -> None:
    """Refuse to write over anything that exists, unless `overwrite` allows it and it is such a folder."""
    if folder.name in ("", ".."):
        raise ModelFileError(f"--out must be a folder of its own, for instance catalogue, got {folder}.")
    if not folder.exists() and not folder.is_symlink():
        return
    if not overwrite:
        raise ModelFileError(f"{folder} exists already; choose another folder or pass --overwrite.")
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if not is_empty and not is_catalogue(folder):
        raise ModelFileError(f"{folder} is no folder of tabmoco's, so it is not overwritten; choose another --out.")


def _try_out(encoder: ColumnEncoder, arrays: dict[str, np.ndarray]) -> None:
    """Send one column through everything: parts that do not fit together fail here, not at first use."""
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise ValueError("weights that are not finite")
    nothing = np.zeros((1, N_TRAITS), np.float32)
    shape = encoder.head.probability(encoder.evidence(nothing)).shape
    if shape != (1, len(encoder.head.meanings)) or encoder.centre.shape != (encoder.d_embedding,):
        raise ValueError(f"{shape[1]} meanings where {len(encoder.head.meanings)} are named, or a centre of other size")


def _save(
    folder: Path, what: What, settings: dict[str, Any], arrays: dict[str, np.ndarray], *, overwrite: bool
) -> None:
    check_target(folder, overwrite=overwrite)
    folder = folder.resolve()  # a link stays a link
    part = aside.hidden_name(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside.sweep(folder)
        part.mkdir()
        with aside.held(part):
            _write_json(part / SETTINGS, settings)
            content = safetensors.numpy.save({name: np.ascontiguousarray(a) for name, a in arrays.items()})
            (part / ARRAYS).write_bytes(content)
            files = {name: _facts(part / name) for name in (SETTINGS, ARRAYS)}
            _write_json(part / MANIFEST, {"holds": what, "format_version": FORMAT_VERSION, "files": files})
            aside.put_in_place(part, folder)
    except OSError as error:
        raise ModelFileError(
            f"{folder} cannot be written: {error.strerror or error}; make room or choose another place."
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _load(folder: Path, what: What) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Settings and arrays of a folder, after comparing each file with its checksum."""
    if not (folder / MANIFEST).is_file():
        raise ModelFileError(f"{folder} has no {MANIFEST}, so it is no {what}; give the folder that --out wrote.")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        found, version, files = (manifest[key] for key in ("holds", "format_version", "files"))
        if found != what:
            raise ModelFileError(f"{folder} must be a {what}, but is a {found}; give another folder.")
        if version != FORMAT_VERSION:
            raise ModelFileError(
                f"{folder} has format version {version}, this tabmoco reads {FORMAT_VERSION}; make it again."
            )
        for name in (SETTINGS, ARRAYS):
            if _facts(folder / name) != files[name]:
                raise ModelFileError(f"{name} in {folder} was altered or cut off; copy the folder or make it again.")
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        return settings, safetensors.numpy.load((folder / ARRAYS).read_bytes())
    except TabmocoError:
        raise
    except (OSError, LookupError, TypeError, ValueError, RecursionError, SafetensorError) as error:
        raise ModelFileError(f"the {what} in {folder} is damaged ({error}); copy it or make it again.") from error


def _facts(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "size_bytes": os.stat(path).st_size}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
