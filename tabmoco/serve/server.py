"""A port, and the service behind it until a signal says stop."""

from __future__ import annotations

import functools
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from tabmoco.errors import ConfigError
from tabmoco.serve.connection import Connection
from tabmoco.serve.limits import Limits

TOKEN_VARIABLE = "TABMOCO_TOKEN"  # noqa: S105  the name of a variable
SHORTEST_TOKEN = 16

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def bind(host: str, port: int) -> socket.socket:
    """A socket that holds the port; nobody can connect before `run`.

    Raises
    ------
    ConfigError
        If there is no such address here, or another process has the port.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host must be an address of this machine, got {host!r} ({error}).") from error
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"port {port} of {host} cannot be served: {error.strerror or error}; choose another --port."
        ) from error
    return bound


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_local(bound: socket.socket) -> bool:
    """Whether only this machine reaches the port."""
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def read_token(path: Path | None) -> str | None:
    """The token of a file, or else of the environment; never of the command line, which other users can read.

    Raises
    ------
    ConfigError
        If the file cannot be read, or the token is short or cannot stand in a header.
    """
    if path is not None:
        try:
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file must be a text file, but {path} cannot be read: {error}.") from error
    elif TOKEN_VARIABLE in os.environ:
        token = os.environ[TOKEN_VARIABLE].strip()
    else:
        return None
    if len(token) < SHORTEST_TOKEN or not token.isascii() or any(letter.isspace() for letter in token):
        where = str(path) if path is not None else TOKEN_VARIABLE
        raise ConfigError(
            f"the token in {where} must be one word of at least {SHORTEST_TOKEN} ASCII characters, got {len(token)}; "
            "make one with `openssl rand -hex 32`."
        )
    return token


def run(app: FastAPI, bound: socket.socket, limits: Limits, *, started: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that began are answered first. A second Ctrl-C does not wait."""
    config = uvicorn.Config(
        app,
        http=functools.partial(Connection, limits=limits),  # type: ignore[arg-type]
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(limits.answer_seconds),
    )
    _Server(config, started).run([bound])


class _Server(uvicorn.Server):
    """uvicorn, ending in peace: it would send itself the signal again that stopped it."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tell_started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
