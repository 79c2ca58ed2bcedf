"""The gate before every route: who may ask, how many at once, and that whatever happens has an answer."""

from __future__ import annotations

import hmac
import logging
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from tabmoco.errors import TabmocoError
from tabmoco.serve.limits import Limits
from tabmoco.serve.live import Live
from tabmoco.serve.metrics import Metrics
from tabmoco.serve.refusals import ClientGone, RequestError, busy, error_bytes, status_of

logger = logging.getLogger("tabmoco.serve")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/health", "/docs")
"""Paths that need no token: they tell nothing of the data."""

UNCOUNTED = ("/health", "/metrics")
"""Paths that answer even when the service is busy."""

HANGING_UP = 499
"""Status in the metrics of requests whose clients did not wait; nobody sees it."""

SAFE_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class Guard:
    """ASGI middleware; every answer names the model and the schema version in its headers.

    Parameters
    ----------
    token
        What clients must send as `Authorization: Bearer ...`; None lets everybody in.
    hosts
        Names under which the service may be addressed; None for any. On a port that only this machine reaches, another
        name means that a web page made a browser of this machine ask (DNS rebinding).
    routes
        Paths that metrics tell apart.
    """

    def __init__(
        self,
        app: Application,
        *,
        live: Live,
        limits: Limits,
        metrics: Metrics,
        token: str | None,
        hosts: Collection[str] | None,
        routes: Collection[str],
    ) -> None:
        self._app = app
        self._live = live
        self._limits = limits
        self._metrics = metrics
        self._token = None if token is None else token.encode()
        self._hosts = hosts
        self._routes = frozenset(routes)
        self._n_running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        scope["generation"] = self._live.current
        status = HANGING_UP
        path = scope["path"]

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                generation = scope["generation"]
                names = (
                    (b"x-tabmoco-model", generation.fingerprint.encode()),
                    (b"x-tabmoco-schema", generation.schema_version.encode()),
                )
                message = {**message, "headers": [*message.get("headers", ()), *SAFE_HEADERS, *names]}
            await send(message)

        self._n_running += 1
        try:
            self._admit(scope)
            await self._app(scope, receive, tell)
        except ClientGone:
            pass
        except Exception as error:
            if status != HANGING_UP:  # half of an answer is out already
                raise
            await _refuse(tell, error)
        finally:
            self._n_running -= 1
            route = path if path in self._routes else "other"
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.rows.labels(route).inc(scope.get("n_rows", 0))
            self._metrics.seconds.labels(route).observe(time.perf_counter() - start)

    def _admit(self, scope: Scope) -> None:
        """Refuse who may not ask, before anything of the body is read."""
        headers = dict(scope["headers"])
        path = scope["path"]
        if self._hosts is not None and _host(headers.get(b"host", b"")) not in self._hosts:
            raise RequestError(403, f"the host must be one of {', '.join(sorted(self._hosts))}; others need a token.")
        if self._token is not None and path not in OPEN and not self._knows_token(headers):
            raise RequestError(401, "a bearer token is needed.", {"www-authenticate": "Bearer"})
        if self._n_running > self._limits.max_concurrent and path not in UNCOUNTED:
            raise busy(f"{self._limits.max_concurrent} requests are being answered already; try again soon.")

    def _knows_token(self, headers: dict[bytes, bytes]) -> bool:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token or b"")


async def _refuse(send: Send, error: Exception) -> None:
    """The reason where the client can do something about it, otherwise where the log has it."""
    headers: dict[str, str] = {}
    if isinstance(error, TabmocoError):
        status, message = status_of(error), str(error)
        headers = error.headers if isinstance(error, RequestError) else headers
    elif isinstance(error, MemoryError):
        status, message, headers = 503, "there is not enough memory; send fewer rows.", {"retry-after": "1"}
    else:
        number = secrets.token_hex(6)
        logger.error("Error %s: %s", number, _without_values(error))
        status, message = 500, f"something went wrong; the log has more under {number}."
    body = error_bytes(message)
    fixed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    named = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *named]})
    await send({"type": "http.response.body", "body": body})


def _host(value: bytes) -> str:
    """The name without its port."""
    text = value.decode("latin-1").lower()
    return text.partition("]")[0] + "]" if text.startswith("[") else text.partition(":")[0]


def _without_values(error: BaseException) -> str:
    """Where it happened; the message is left out, for it may quote cells."""
    return type(error).__name__ + "\n" + "".join(traceback.format_tb(error.__traceback__)).rstrip()
