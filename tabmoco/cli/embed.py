"""`tabmoco embed`: every row as a vector."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import Data, Device, IdColumn, Json, ModelFolder, Overwrite, Quiet
from tabmoco.cli.rows import check_output, load_model, open_for, print_sent, send


@command("tabmoco embed model flights.parquet --out embeddings.parquet")
def embed(
    model: ModelFolder,
    data: Data,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Result: .parquet, .csv, .arrow or .feather.")],
    id_column: IdColumn = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn every row into a vector."""
    check_output(out, data, overwrite=overwrite)
    loaded = load_model(model, device)
    source = open_for(loaded, data, id_column)
    sent = send(
        loaded.iter_embeddings(source),
        loaded.embedding_schema(source),
        label="Embedding",
        total=source.n_rows,
        out=out,
        overwrite=overwrite,
        quiet=quiet,
    )
    if json:
        console.print_json({**sent, "d_embedding": loaded.d_embedding})
    elif not quiet:
        print_sent(sent)
