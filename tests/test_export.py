"""The encoder as ONNX: the same embeddings, any number of rows, and inputs that the description alone can fill."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import safetensors.numpy
import torch
from typer.testing import CliRunner

from tabmoco import export
from tabmoco.cli import app
from tabmoco.config import DataConfig, EncoderConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.errors import ModelFileError, TabmocoError
from tabmoco.model import RowModel
from tabmoco.tables.cells import Layout
from tabmoco.training.pretrain import pretrain

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")

LAYOUTS = {
    "numbers": Layout(("width", "height", "depth"), (0, 1, 2), (), ()),
    "codes": Layout(("colour", "shape"), (), (0, 1), (4, 90)),
    "one_column": Layout(("amount",), (0,), (), ()),
}
N_ROWS = 90
SMALL = PretrainConfig(
    data=DataConfig(kinds={"note": "text"}, text_width=4),
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=64),
    optimize=OptimizeConfig(steps=4, batch_size=32),
)


def make_table(n_rows: int = N_ROWS, *, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    start = datetime.datetime(2024, 1, 1)
    columns: dict[str, Any] = {
        "size": random.gamma(2, 50, n_rows).round(2).tolist(),
        "pieces": random.integers(0, 9, n_rows).tolist(),
        "colour": random.choice(["red", "green", "blue", "a rare one"], n_rows, p=[0.5, 0.3, 0.19, 0.01]).tolist(),
        "fragile": (random.random(n_rows) < 0.3).tolist(),
        "opened": [start + datetime.timedelta(seconds=int(s)) for s in random.integers(0, 90 * 86_400, n_rows)],
        "note": [f"thing {word} of {n}" for word, n in zip("abcdefghi" * n_rows, range(n_rows), strict=False)],
    }
    for values in columns.values():
        for row in np.flatnonzero(random.random(n_rows) < 0.15):
            values[row] = None
    return pa.table(columns)


@pytest.fixture(scope="module")
def model(small_forests) -> RowModel:
    return pretrain(make_table(), SMALL)


@pytest.fixture(scope="module")
def files(model, tmp_path_factory) -> export.OnnxFiles:
    return model.to_onnx(tmp_path_factory.mktemp("onnx") / "encoder.onnx")


@pytest.fixture(scope="module")
def session(files):
    return onnxruntime.InferenceSession(files.graph, providers=["CPUExecutionProvider"])


def run(session: Any, cells: Any) -> np.ndarray:
    names = [given.name for given in session.get_inputs()]
    return session.run(["embedding"], {name: np.asarray(getattr(cells, name)) for name in names})[0]


def test_real_rows_have_the_same_embeddings_in_batches_of_any_size(model, session):
    for n_rows in (0, 1, 2, 90, 300):
        table = make_table(n_rows, seed=n_rows) if n_rows else make_table(1).slice(0, 0)
        cells = model.preprocessor.transform(table)
        found = run(session, cells)
        assert found.shape == (n_rows, 8) and found.dtype == np.float32
        np.testing.assert_allclose(found, model.embed_cells(cells), atol=1e-5, rtol=0)


def test_random_and_extreme_cells_have_the_same_embeddings(model, session):
    cells = export.random_cells(model.preprocessor.layout, 200, seed=5)
    cells.number[:3] = torch.tensor([[2_000.0], [-101.0], [0.0]])
    cells.missing[3] = True
    np.testing.assert_allclose(run(session, cells), model.embed_cells(cells), atol=1e-5, rtol=1e-6)


def test_numbers_on_and_beside_the_knots_are_placed_alike(model, session):
    """The graph counts knots where torch searches them: an equal value must fall on the same side."""
    knots = torch.from_numpy(model.preprocessor.knots[0])
    cells = export.random_cells(model.preprocessor.layout, 3 * len(knots))
    below, above = torch.nextafter(knots, torch.tensor(-9e9)), torch.nextafter(knots, torch.tensor(9e9))
    cells.number[:, 0] = torch.cat([below, knots, above])
    np.testing.assert_allclose(run(session, cells), model.embed_cells(cells), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("layout", "settings", "names"),
    [
        ("numbers", {"backbone": "ft_transformer"}, ["number", "missing"]),
        ("codes", {"backbone": "mlp"}, ["code", "missing"]),
        pytest.param(
            "one_column",
            {"number_embedding": "piecewise", "norm": "batch"},
            ["number", "missing"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_every_backbone_and_layout(layout, settings, names, build_encoder, draw_cells):
    encoder = build_encoder(LAYOUTS[layout], **settings)
    graph = export._build_graph(encoder, LAYOUTS[layout])
    assert [given.name for given in graph.graph.input] == names
    assert [output.name for output in graph.graph.output] == ["embedding"]
    assert graph.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    cells = draw_cells(LAYOUTS[layout], 50, seed=3)
    assert export.max_difference(graph.SerializeToString(), encoder, cells, LAYOUTS[layout]) < 1e-5


def test_the_description_alone_fills_the_inputs(model, files):
    """The rules of docs/commands/export.md, without tabmoco; a text needs its hashing weights too."""
    described = json.loads(files.description.read_text(encoding="utf-8"))
    table = make_table(40, seed=9)
    expected = model.preprocessor.transform(table)
    n_slots = {name: given["width"] for name, given in described["inputs"].items()}
    number, code = np.zeros((40, n_slots["number"]), np.float32), np.zeros((40, n_slots["code"]), np.int64)
    missing = np.zeros((40, n_slots["missing"]), bool)
    told = [column for column in described["columns"] if column["kind"] != "text"]
    assert {column["kind"] for column in told} == {"number", "category", "boolean", "timestamp"}
    for column in told:
        for row, value in enumerate(table[column["name"]].to_pylist()):
            missing[row, column["missing"]] = value is None
            if value is not None:
                number[row, column["number"]], code[row, column["code"]] = slots(column, value)
    kept = [column["missing"] for column in told]
    np.testing.assert_array_equal(missing[:, kept], expected.missing.numpy()[:, kept])
    for block, name in ((number, "number"), (code, "code")):
        columns = [slot for column in told for slot in column[name]]
        np.testing.assert_allclose(block[:, columns], getattr(expected, name).numpy()[:, columns], atol=1e-6)
    (text,) = (column for column in described["columns"] if column["kind"] == "text")
    arrays = safetensors.numpy.load_file(files.arrays)
    assert arrays[f"{text['missing']}.components"].shape[1] == len(text["number"]) == 4


def slots(column: dict[str, Any], value: Any) -> tuple[list[float], list[int]]:
    known = column["encoder"]
    if column["kind"] == "number":
        return [standardised(value, known)], []
    if column["kind"] == "category":
        coded = known["values"][: known["n_coded"]]
        return [], [coded.index(value) + 1 if value in coded else 0]
    if column["kind"] == "boolean":
        return [], [2 if value else 1]
    since = value - datetime.datetime(1970, 1, 1)
    angle = 2 * math.pi * (int(since.total_seconds()) % 86_400) / 86_400
    numbers = [standardised(since.total_seconds(), known), *([math.sin(angle), math.cos(angle)] * known["has_time"])]
    return numbers, [value.isoweekday()] * known["has_weekday"] + [value.month] * known["has_month"]


def standardised(value: float, known: dict[str, Any]) -> float:
    z = (value - known["location"]) / (known["scale"] or 1.0)
    return z if abs(z) <= 100 else math.copysign(100 + math.log1p(abs(z) - 100), z)


def test_a_graph_that_says_something_else_is_refused(build_encoder, files, model):
    other = build_encoder(model.preprocessor.layout, seed=1)
    cells = export.random_cells(model.preprocessor.layout, 5)
    with pytest.raises(ModelFileError, match=r"within 1\.\de-05 of the encoder's, got .*; nothing was written"):
        export.max_difference(files.graph.read_bytes(), other, cells, model.preprocessor.layout)


def test_nothing_is_replaced_unasked_and_names_are_checked(model, files, tmp_path):
    before = files.graph.read_bytes()
    with pytest.raises(TabmocoError, match="encoder.onnx exists already"):
        model.to_onnx(files.graph)
    assert files.graph.read_bytes() == before
    (tmp_path / "other.json").write_text("mine")
    with pytest.raises(TabmocoError, match=r"other\.json exists already"):
        model.to_onnx(tmp_path / "other.onnx")
    with pytest.raises(TabmocoError, match=r"must end in \.onnx, but .*encoder\.pt ends in \.pt"):
        model.to_onnx(tmp_path / "encoder.pt")
    with pytest.raises(TabmocoError, match="there is no folder"):
        model.to_onnx(tmp_path / "nowhere" / "encoder.onnx")


def test_a_missing_package_is_named(model, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "PACKAGES", ("onnx", "no_such_package"))
    with pytest.raises(TabmocoError, match=r"no_such_package cannot be found; pip install 'tabmoco\[onnx\]'"):
        model.to_onnx(tmp_path / "encoder.onnx")


def test_the_command_writes_and_tells(model, files, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_build_graph", lambda *_: _Graph(files.graph))  # it is the same encoder
    model.save(tmp_path / "model")
    arguments = ["export", str(tmp_path / "model"), "--onnx", str(tmp_path / "encoder.onnx")]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["out"] == str(tmp_path / "encoder.onnx") and told["d_embedding"] == 8
    assert 0 <= told["max_difference"] < 1e-5
    assert Path(told["description"]).read_bytes() == files.description.read_bytes()
    assert Path(told["arrays"]).read_bytes() == files.arrays.read_bytes()
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2 and "exists already" in refused.stderr and refused.stdout == ""
    again = CliRunner().invoke(app, [*arguments, "--overwrite"])
    assert again.exit_code == 0 and again.stdout.startswith("Wrote encoder.onnx, encoder.json, encoder.safetensors in")


class _Graph:
    """A graph that is on the disk already."""

    def __init__(self, path: Path):
        self.path = path

    def SerializeToString(self) -> bytes:
        return self.path.read_bytes()
