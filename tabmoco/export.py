"""The encoder as an ONNX graph, for programs that have no torch, and beside it what turns raw cells into its inputs.

| file | holds |
|---|---|
| NAME.onnx | the encoder: `number`, `code` and `missing` of a `CellBatch` in, `embedding` out, any number of rows |
| NAME.json | which slots are whose, and what the preprocessor knows of each column |
| NAME.safetensors | hashing weights of text columns, if there are any |

Preprocessing stays outside the graph: dates, texts and unknown categories are not for a tensor program to read.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
import torch
from jaxtyping import Float
from torch import Tensor, nn

from tabmoco.errors import ModelFileError, TabmocoError
from tabmoco.nn.encoder import RowEncoder
from tabmoco.tables import aside
from tabmoco.tables.cells import CellBatch, Layout
from tabmoco.tables.sink import check_target
from tabmoco.tables.text import TextEncoder

if TYPE_CHECKING:
    from tabmoco.model import RowModel

PACKAGES = ("onnx", "onnxruntime", "onnxscript")

OPSET = 20

DESCRIPTION_VERSION = 1

TOLERANCE = 1e-5
"""Largest difference between the graph's embeddings and torch's, in units of the largest coordinate, or of 1 if that is
less."""

N_CHECKED = 64
"""Rows that both compute."""

N_TRACED = 3
"""Rows that the graph is traced with; one or none would be taken for a constant."""

_INT32, _INT64 = 6, 7  # TensorProto's numbers


@dataclass(frozen=True)
class OnnxFiles:
    """What was written, and how far the graph is from the encoder."""

    graph: Path
    description: Path
    arrays: Path | None
    """None without text columns."""

    max_difference: float
    """Largest difference of a coordinate, on rows of random cells."""


class EncoderGraph(nn.Module):
    """The encoder as a function of tensors; blocks of a `CellBatch` that would have no columns are left out."""

    def __init__(self, encoder: RowEncoder, layout: Layout):
        super().__init__()
        self.columns = encoder.columns
        self.backbone = encoder.backbone
        self.names = input_names(layout)

    def forward(self, *blocks: Tensor) -> Float[Tensor, "N D"]:
        given = dict(zip(self.names, blocks, strict=True))
        missing = given["missing"]
        n_rows = missing.shape[0]
        number = given.get("number", missing.new_zeros((n_rows, 0), dtype=torch.float32))
        code = given.get("code", missing.new_zeros((n_rows, 0), dtype=torch.int64))
        return self.backbone(self.columns(CellBatch(number, code, missing))).float()


def input_names(layout: Layout) -> tuple[str, ...]:
    """The blocks that have columns, in the graph's order."""
    widths = {"number": layout.n_numbers, "code": layout.n_codes, "missing": layout.n_columns}
    return tuple(name for name, width in widths.items() if width)


def export_onnx(model: RowModel, path: str | Path, *, overwrite: bool = False) -> OnnxFiles:
    """Write the encoder as ONNX, after comparing it with torch on random rows.

    The graph holds the arithmetic of float32 whatever the model was trained in.

    Raises
    ------
    TabmocoError
        If a package of the extra `onnx` is missing, or a file cannot be written.
    ModelFileError
        If the graph's embeddings are not the encoder's.
    """
    graph = check_onnx_target(path, overwrite=overwrite)
    layout = model.preprocessor.layout
    encoder = copy.deepcopy(model.encoder).cpu().eval()
    program = _build_graph(encoder, layout)
    difference = max_difference(program.SerializeToString(), encoder, random_cells(layout, N_CHECKED), layout)
    arrays = _text_arrays(model)
    files = OnnxFiles(
        graph, graph.with_suffix(".json"), graph.with_suffix(".safetensors") if arrays else None, difference
    )
    text = json.dumps(describe_inputs(model), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if files.arrays is not None:
        stored = safetensors.numpy.save(arrays)
        _write(files.arrays, lambda part: part.write_bytes(stored))
    _write(files.description, lambda part: part.write_text(text, encoding="utf-8"))
    _write(graph, lambda part: part.write_bytes(program.SerializeToString()))
    return files


def check_onnx_target(path: str | Path, *, overwrite: bool = False) -> Path:
    """The file that `path` leads to, once it is clear that all may be written; call this before long work."""
    lacking = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if lacking:
        raise TabmocoError(
            f"an export to ONNX needs the packages {', '.join(PACKAGES)}, of which {', '.join(lacking)} cannot be "
            "found; pip install 'tabmoco[onnx]'."
        )
    target = check_target(path, overwrite=overwrite, suffixes=(".onnx",), what="encoder")
    for other in (target.with_suffix(".json"), target.with_suffix(".safetensors")):
        if other.exists() and not overwrite:
            raise TabmocoError(f"{other} exists already; choose another name, or replace it with --overwrite.")
    return target


def describe_inputs(model: RowModel) -> dict[str, Any]:
    """How to fill the graph's inputs, as JSON-safe values."""
    layout = model.preprocessor.layout
    widths = {"number": layout.n_numbers, "code": layout.n_codes, "missing": layout.n_columns}
    types = {"number": "float32", "code": "int64", "missing": "bool"}
    columns = []
    for position, (column, encoder) in enumerate(zip(model.schema.used, model.preprocessor.encoders, strict=True)):
        columns.append(
            {
                "name": column.name,
                "kind": column.kind,
                "arrow_type": str(column.arrow_type),
                "missing": position,
                "number": [slot for slot, owner in enumerate(layout.number_owner) if owner == position],
                "code": [slot for slot, owner in enumerate(layout.code_owner) if owner == position],
                "cardinalities": list(encoder.cardinalities),
                "encoder": encoder.to_json(),
            }
        )
    return {
        "format_version": DESCRIPTION_VERSION,
        "opset": OPSET,
        "inputs": {name: {"type": types[name], "width": widths[name]} for name in input_names(layout)},
        "output": {"name": "embedding", "type": "float32", "width": model.d_embedding},
        "columns": columns,
        "versions": model.record.get("versions", {}),
    }


def random_cells(layout: Layout, n_rows: int, *, seed: int = 0) -> CellBatch:
    """Rows of random cells, a tenth of them missing."""
    generator = torch.Generator().manual_seed(seed)
    missing = torch.rand(n_rows, layout.n_columns, generator=generator) < 0.1
    number = 2 * torch.randn(n_rows, layout.n_numbers, generator=generator)
    chance = torch.rand(n_rows, layout.n_codes, generator=generator, dtype=torch.float64)
    code = (chance * torch.tensor(layout.cardinalities, dtype=torch.float64)).long()
    number[missing[:, list(layout.number_owner)]] = 0.0
    code[missing[:, list(layout.code_owner)]] = 0
    return CellBatch(number, code, missing)


@torch.inference_mode()
def max_difference(graph: bytes, encoder: RowEncoder, cells: CellBatch, layout: Layout) -> float:
    """Largest difference between the embeddings that the graph and the encoder give.

    Raises
    ------
    ModelFileError
        If it is more than rounding.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {name: getattr(cells, name).numpy() for name in input_names(layout)})
    expected = encoder(cells).numpy()
    difference = float(np.abs(found - expected).max(initial=0.0))
    allowed = TOLERANCE * max(1.0, float(np.abs(expected).max(initial=0.0)))
    if not difference <= allowed:
        raise ModelFileError(
            f"the graph's embeddings must be within {allowed:.1e} of the encoder's, got {difference:.1e}; nothing was "
            "written. Try other versions of torch and onnxscript."
        )
    return difference


def _build_graph(encoder: RowEncoder, layout: Layout) -> Any:
    """The encoder as an ONNX `ModelProto`."""
    cells, names = random_cells(layout, N_TRACED), input_names(layout)
    blocks = tuple(getattr(cells, name) for name in names)
    n_rows = torch.export.Dim("N", min=0)
    with _hushed():
        traced = torch.export.export(
            EncoderGraph(encoder, layout),
            blocks,
            dynamic_shapes=(tuple({0: n_rows} for _ in blocks),),
            strict=True,  # the transformer asks for len(x), which only this way stays a variable
        )
        program = torch.onnx.export(
            traced,
            (),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=list(names),
            custom_translation_table={torch.ops.aten.searchsorted.Tensor: _searchsorted},
        )
    assert program is not None
    _rename(program.model.graph)
    return program.model_proto


def _searchsorted(
    sorted_sequence: Any,
    values: Any,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> Any:
    """`torch.searchsorted(sorted_sequence, values, right=True)` of matrices `[S, Q]` and `[S, N]`: ONNX has no such
    operator, so the elements that are not above each value are counted, over `[S, N, Q]`."""
    from onnxscript import opset20

    op: Any = opset20
    assert right and side is None and sorter is None
    not_above = op.LessOrEqual(
        op.Unsqueeze(sorted_sequence, op.Constant(value_ints=[1])), op.Unsqueeze(values, op.Constant(value_ints=[2]))
    )
    counted = op.ReduceSum(op.Cast(not_above, to=_INT32), op.Constant(value_ints=[2]), keepdims=0)
    return op.Cast(counted, to=_INT64)


def _rename(graph: Any) -> None:
    """Call the output `embedding` and the free axis `N`."""
    (output,) = graph.outputs
    for node in graph:
        for value in node.outputs:
            if value.name == "embedding":  # what torch calls a looked-up code
                value.name = "code_embedding"
    output.name = "embedding"
    for value in (*graph.inputs, output):
        value.shape[0] = "N"


def _text_arrays(model: RowModel) -> dict[str, np.ndarray]:
    """Arrays of the text columns by `<column position>.<array>`."""
    return {
        f"{position}.{name}": np.ascontiguousarray(array)
        for position, encoder in enumerate(model.preprocessor.encoders)
        if isinstance(encoder, TextEncoder)
        for name, array in encoder.arrays().items()
    }


def _write(target: Path, fill: Callable[[Path], object]) -> None:
    """Fill a file aside and give it its name."""
    part = aside.hidden_name(target)
    try:
        fill(part)
        os.replace(part, target)
    except OSError as error:
        raise TabmocoError(
            f"{target} cannot be written: {error.strerror or error}; make room or choose another place."
        ) from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _hushed() -> Iterator[None]:
    """No word about torch's own affairs, such as packages that it could do without."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
