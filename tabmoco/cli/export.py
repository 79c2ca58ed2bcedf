"""`tabmoco export`: the encoder for programs without torch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import Json, ModelFolder, Overwrite, Quiet
from tabmoco.cli.rows import load_model


@command("tabmoco export model --onnx encoder.onnx")
def export(
    model: ModelFolder,
    onnx: Annotated[
        Path, typer.Option(metavar="FILE", help="The encoder as ONNX; what fills its inputs is written beside it.")
    ],
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the encoder as ONNX, without preprocessing, and check that it gives the same embeddings."""
    from tabmoco.export import check_onnx_target, export_onnx

    check_onnx_target(onnx, overwrite=overwrite)
    loaded = load_model(model, "cpu")
    start = time.perf_counter()
    files = export_onnx(loaded, onnx, overwrite=overwrite)
    seconds = round(time.perf_counter() - start, 3)
    if json:
        console.print_json(
            {
                "out": str(files.graph),
                "description": str(files.description),
                "arrays": None if files.arrays is None else str(files.arrays),
                "d_embedding": loaded.d_embedding,
                "max_difference": files.max_difference,
                "seconds": seconds,
            }
        )
    elif not quiet:
        written = [file.name for file in (files.graph, files.description, files.arrays) if file is not None]
        console.print_line(
            f"Wrote {', '.join(written)} in {seconds:,.1f} s; the embeddings differ from torch's by at most "
            f"{files.max_difference:.1e}."
        )
