"""`tabmoco embed`: every row as a vector."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.engine import ROWS_OUT, Address, Engine, Workers, check_place, chosen, send_by_ray
from tabmoco.cli.options import Data, Device, IdColumn, Json, ModelFolder, Overwrite, Quiet
from tabmoco.cli.rows import load_model, open_for, print_sent, send
from tabmoco.config import Space

LABEL = "Embedding"


@command("tabmoco embed model flights.parquet --out embeddings.parquet")
def embed(
    model: ModelFolder,
    data: Data,
    out: Annotated[str, typer.Option(metavar="FILE", help=ROWS_OUT)],
    space: Annotated[
        str,
        typer.Option(
            metavar="embedding|expected",
            help="The embedding, for search, maps and clusters; or what each cell is expected to hold, from which a "
            "classifier of your own learns more with few labels.",
        ),
    ] = "embedding",
    id_column: IdColumn = None,
    device: Device = None,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn every row into a vector."""
    wanted, cluster = cast(Space, space), chosen(engine, address, workers)
    check_place(cluster, out, data, overwrite=overwrite)
    loaded = load_model(model, device if cluster is None else "cpu")
    source = open_for(loaded, data, id_column)
    if cluster is None:
        sent = send(
            loaded.iter_embeddings(source, space=wanted),
            loaded.embedding_schema(source, wanted),
            label=LABEL,
            total=source.n_rows,
            out=Path(out),
            overwrite=overwrite,
            quiet=quiet,
        )
    else:
        from tabmoco.ray_jobs.rows import Embed

        _, sent = send_by_ray(
            cluster, Embed(wanted), model, loaded, source,
            label=LABEL, out=out, device=device, overwrite=overwrite, quiet=quiet,
        )  # fmt: skip
    if json:
        console.print_json({**sent, "space": space, "width": loaded.width(wanted)})
    elif not quiet:
        print_sent(sent)
