"""Cell values that are not told: keyed hashes in their place in a model, and messages that do not quote them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b

from tabmoco.errors import ModelFileError
from tabmoco.tables.names import quoted

SALT_BYTES = 16
DIGEST_BYTES = 12
SHOWN_DIGITS = 8
"""Hexadecimal digits by which people tell hidden values apart."""

_untold: ContextVar[bool] = ContextVar("untold", default=False)


def new_salt() -> str:
    """A random key for the hashes of one column, in hexadecimal."""
    return secrets.token_hex(SALT_BYTES)


def check_salt(salt: str, column: str) -> None:
    """Refuse what `new_salt` cannot have made."""
    if len(salt) != 2 * SALT_BYTES or not set(salt) <= set("0123456789abcdef"):
        raise ModelFileError(
            f"the salt of column {column!r} must be {2 * SALT_BYTES} hexadecimal digits, got {salt!r:.100}; train the "
            "model again."
        )


def keyed_hash(value: str, salt: str) -> str:
    """The BLAKE2b hash of a value under a column's salt, in hexadecimal."""
    return blake2b(value.encode(), key=bytes.fromhex(salt), digest_size=DIGEST_BYTES).hexdigest()


def hidden_name(digest: str) -> str:
    """What people see in place of a value."""
    return f"(hidden {digest[:SHOWN_DIGITS]})"


@contextmanager
def untold(hidden: bool = True) -> Iterator[None]:
    """While the block runs, errors about a cell do not quote it if `hidden`."""
    token = _untold.set(hidden or _untold.get())
    try:
        yield
    finally:
        _untold.reset(token)


def is_untold() -> bool:
    """Whether messages must not quote cells."""
    return _untold.get()


def quoted_cell(value: object) -> str:
    """The value in quotes for a message, or that it is not told."""
    return "a value that is not told (data.keep_values = false)" if is_untold() else quoted(value)
