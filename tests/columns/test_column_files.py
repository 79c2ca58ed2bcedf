"""What is saved is read back; what was damaged, altered or made by another is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy

from tabmoco.columns import files
from tabmoco.columns.catalogue import Catalogue
from tabmoco.columns.encoder import ColumnEncoder
from tabmoco.errors import IndexMismatchError, ModelFileError


@pytest.fixture
def saved(encoder, tmp_path):
    encoder.save(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.fixture
def catalogue(encoder, training_tables):
    return encoder.learn(training_tables[:3])


def rewrite(folder, *, settings=None, arrays=None) -> None:
    """Change a folder and its checksums with it."""
    path = folder / files.SETTINGS
    if settings is not None:
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    if arrays is not None:
        held = safetensors.numpy.load_file(folder / files.ARRAYS) | arrays
        safetensors.numpy.save_file(held, folder / files.ARRAYS)
    manifest = json.loads((folder / files.MANIFEST).read_text())
    manifest["files"] = {name: files._facts(folder / name) for name in manifest["files"]}
    (folder / files.MANIFEST).write_text(json.dumps(manifest))


def test_an_encoder_is_read_back_as_it_was(encoder, saved, draw_table):
    again = ColumnEncoder.load(saved)
    table = draw_table(50, seed=9)
    assert np.array_equal(again.embed(table), encoder.embed(table))
    assert again.read(table).columns == encoder.read(table).columns
    assert (again.fingerprint, again.threshold, again.record) == (
        encoder.fingerprint, encoder.threshold, encoder.record,
    )  # fmt: skip
    assert sorted(path.name for path in saved.iterdir()) == [files.SETTINGS, files.ARRAYS, files.MANIFEST]
    assert not [path for path in saved.parent.iterdir() if path.name.startswith(".")]


def test_a_catalogue_is_read_back_as_it_was(encoder, catalogue, tmp_path, draw_table):
    catalogue.save(tmp_path / "known")
    again = Catalogue.load(tmp_path / "known", encoder=encoder)
    table = draw_table(50, seed=9)
    assert again.like(table).to_json() == catalogue.like(table).to_json()
    assert again.tables == catalogue.tables and again.columns == catalogue.columns
    assert files.is_catalogue(tmp_path / "known") and not files.is_catalogue(tmp_path)
    with pytest.raises(IndexMismatchError, match="the column encoder that made it"):
        Catalogue.load(tmp_path / "known")


def test_existing_folders_are_not_overwritten_unasked(encoder, saved, tmp_path):
    with pytest.raises(ModelFileError, match="exists already"):
        encoder.save(saved)
    encoder.save(saved, overwrite=True)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"x")
    with pytest.raises(ModelFileError, match="not overwritten"):
        encoder.save(tmp_path / "photos", overwrite=True)
    assert (tmp_path / "photos" / "cat.png").exists()
    with pytest.raises(ModelFileError, match="folder of its own"):
        encoder.save("")


@pytest.mark.parametrize("name", [files.SETTINGS, files.ARRAYS])
def test_altered_files_are_refused(saved, name):
    content = bytearray((saved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (saved / name).write_bytes(content)
    with pytest.raises(ModelFileError, match="altered or cut off"):
        ColumnEncoder.load(saved)
    (saved / name).unlink()
    with pytest.raises(ModelFileError, match="damaged"):
        ColumnEncoder.load(saved)


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"holds": 1}', "[" * 100_000, '{"files": {}, "holds": "x"}'])
def test_damaged_manifests_are_refused(saved, manifest):
    (saved / files.MANIFEST).write_text(manifest)
    with pytest.raises(ModelFileError, match="is damaged"):
        ColumnEncoder.load(saved)


def test_other_folders_are_refused(saved, catalogue, tmp_path, encoder):
    with pytest.raises(ModelFileError, match=r"no manifest\.json"):
        ColumnEncoder.load(tmp_path)
    with pytest.raises(ModelFileError, match="must be a column catalogue, but is a column encoder"):
        Catalogue.load(saved, encoder=encoder)
    manifest = json.loads((saved / files.MANIFEST).read_text())
    (saved / files.MANIFEST).write_text(json.dumps(manifest | {"format_version": 99}))
    with pytest.raises(ModelFileError, match="format version 99"):
        ColumnEncoder.load(saved)


@pytest.mark.parametrize(
    ("settings", "arrays"),
    [
        ({"n_traits": 7}, None),
        ({"d_hidden": 8}, None),
        ({"d_embedding": "wide"}, None),
        ({"meanings": ["year"]}, None),
        ({"meanings": None}, None),
        ({"threshold": None}, None),
        (None, {"centre": np.zeros(3, np.float32)}),
        (None, {"meaning/weight": np.zeros((2, 2), np.float32)}),
        (None, {"network/mean": np.full(314, np.nan, np.float32)}),
        (None, {"network/more": np.zeros(2, np.float32)}),
    ],
)
def test_encoders_whose_parts_do_not_fit_are_refused(saved, settings, arrays):
    rewrite(saved, settings=settings, arrays=arrays)
    with pytest.raises(ModelFileError, match="does not fit together"):
        ColumnEncoder.load(saved)


@pytest.mark.parametrize(
    ("settings", "arrays"),
    [
        ({"columns": []}, None),
        ({"columns": [{"name": "x"}]}, None),
        ({"tables": ["one"]}, None),
        (None, {"owner": np.full(18, 9)}),
        (None, {"vectors": np.zeros((18, 2), np.float32)}),
        (None, {"vectors": np.full((18, 16), np.nan, np.float32)}),
    ],
)
def test_catalogues_whose_parts_do_not_fit_are_refused(catalogue, encoder, tmp_path, settings, arrays):
    catalogue.save(tmp_path / "known")
    rewrite(tmp_path / "known", settings=settings, arrays=arrays)
    with pytest.raises(ModelFileError, match="does not fit together"):
        Catalogue.load(tmp_path / "known", encoder=encoder)


def test_the_shipped_encoder_is_small():
    size = sum(path.stat().st_size for path in files.SHIPPED.iterdir())
    assert size < 1_000_000
    assert not any(path.suffix in (".pkl", ".pt", ".bin") for path in files.SHIPPED.iterdir())
