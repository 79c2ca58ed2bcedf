"""Why a request is not answered, and the JSON that says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tabmoco.errors import TabmocoError

LONGEST_MESSAGE = 2_000
"""Characters of a message: names and values of a request come back in it, and may be long."""

UNFIT_ROWS = 422
"""Status of a `TabmocoError` without one of its own: the request is well formed, its rows do not fit the model."""


class RequestError(TabmocoError):
    """A request that is refused before its rows meet the model."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


class ClientGone(Exception):
    """The client hung up, so that nobody waits for the answer."""


def busy(message: str) -> RequestError:
    """A refusal after which the client should try again soon."""
    return RequestError(503, message, {"retry-after": "1"})


def status_of(error: TabmocoError) -> int:
    return error.status if isinstance(error, RequestError) else UNFIT_ROWS


def error_bytes(message: str) -> bytes:
    """`{"error": message}`, cut where it is very long."""
    text = message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 1] + "…"
    return json_bytes({"error": text})


def json_bytes(value: Any) -> bytes:
    """One JSON document in ASCII; values that JSON lacks a type for become text."""
    return json.dumps(value, allow_nan=False, default=_text, separators=(",", ":")).encode("ascii")


def _text(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
