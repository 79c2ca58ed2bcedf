"""A page or a picture becomes a file, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from tabmoco.tables.sink import check_target, replacing

SUFFIXES = (".html", ".htm")


def check_page(path: str | Path, *, overwrite: bool) -> Path:
    """The file that `path` leads to, once it is clear that it may be written; call this before long work.

    Raises
    ------
    TabmocoError
        As `tabmoco.tables.sink.check_target` does.
    """
    return check_target(path, overwrite=overwrite, suffixes=SUFFIXES, what="report")


def write_page(html: str, path: str | Path, *, overwrite: bool) -> int:
    """Write a page; its size in bytes."""
    return write_whole(html, check_page(path, overwrite=overwrite))


def write_whole(text: str, path: str | Path) -> int:
    """Write a text in place of a file of that name, if there is one; its size in bytes."""
    content = text.encode("utf-8", "replace")
    with replacing(Path(os.path.realpath(path)), path) as file:
        file.write(content)
    return len(content)
