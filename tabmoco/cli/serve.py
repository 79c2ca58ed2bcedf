"""`tabmoco serve`: a model as an HTTP service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import Device, Json, ModelFolder, Quiet
from tabmoco.errors import ConfigError

NEEDED = ("fastapi", "prometheus_client", "uvicorn")


@command("tabmoco serve model --port 8000")
def serve(
    model: ModelFolder,
    port: Annotated[int, typer.Option(min=0, max=65_535, metavar="N", help="Port; 0 takes any that is free.")] = 8000,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; by default only this machine reaches it.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the token that clients must send; or set TABMOCO_TOKEN."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Serve another model as soon as it lies in MODEL.")] = False,
    max_body_mb: Annotated[float, typer.Option(min=0.001, max=1024, metavar="MB", help="Size of a request.")] = 8,
    max_rows: Annotated[int, typer.Option(min=1, metavar="N", help="Rows of a request.")] = 10_000,
    max_concurrent: Annotated[int, typer.Option(min=1, metavar="N", help="Requests answered at a time.")] = 64,
    read_seconds: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="Time a client has to send a whole request.")
    ] = 30,
    device: Device = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Answer over HTTP how strange rows are, and which are like them, until stopped."""
    _require_extra()
    from tabmoco.serve.app import build_app
    from tabmoco.serve.limits import MIB, Limits
    from tabmoco.serve.live import Generation, Live
    from tabmoco.serve.server import LOCAL_NAMES, bind, is_local, read_token, run, url_of

    limits = Limits(
        max_body_bytes=int(max_body_mb * MIB),
        max_rows=max_rows,
        max_waiting_rows=4 * max_rows,
        max_concurrent=max_concurrent,
        read_seconds=read_seconds,
    )
    token = read_token(token_file)
    with bind(host, port) as bound:
        generation = Generation.load(model, device=device or "auto")
        open_to_all = token is None and not is_local(bound)
        if open_to_all and not quiet:
            console.print_note(f"whoever reaches {host} can use the model and see rows of it; set a --token-file.")
        hosts = LOCAL_NAMES if token is None and is_local(bound) else None
        app = build_app(Live(model, generation, device=device or "auto"), limits, token=token, hosts=hosts, watch=watch)
        url = url_of(bound)

        def started() -> None:
            if json:
                told = {"url": url, "model": generation.fingerprint, "schema": generation.schema_version}
                console.print_json({**told, "needs_token": token is not None})
            elif not quiet:
                console.print_line(f"Serving {model} on {url}, examples on {url}/docs; Ctrl-C stops.")
            sys.stdout.flush()

        _log(quiet=quiet)
        run(app, bound, limits, started=started)


def _require_extra() -> None:
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"tabmoco serve needs {', '.join(missing)}; install them with pip install 'tabmoco[serve]'.")


def _log(*, quiet: bool) -> None:
    """Say on stderr what happens meanwhile: other models, and errors. Rows' own notices would quote cells."""
    import logging
    import warnings

    from tabmoco.tables.notices import TabmocoWarning

    warnings.simplefilter("ignore", TabmocoWarning)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("tabmoco.serve")
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR if quiet else logging.INFO)
    logger.propagate = False
