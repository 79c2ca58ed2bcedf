"""A page or a picture becomes a file, whole or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tabmoco.errors import TabmocoError
from tabmoco.tables import aside

SUFFIXES = (".html", ".htm")


def check_page(path: str | Path, *, overwrite: bool) -> Path:
    """The file that `path` leads to, once it is clear that it may be written; call this before long work.

    Raises
    ------
    TabmocoError
        If `path` is a folder or has another suffix than a page, its folder is missing or cannot be written to, or the
        file exists and `overwrite` is false.
    """
    target = Path(os.path.realpath(path))
    if os.path.isdir(target):
        raise TabmocoError(f"the report must be a file, but {path} is a folder; add a file name such as report.html.")
    if target.suffix.lower() not in SUFFIXES:
        found = f"ends in {target.suffix}" if target.suffix else "has no suffix"
        raise TabmocoError(f"the report must end in {' or '.join(SUFFIXES)}, but {path} {found}; rename it.")
    if not os.path.isdir(target.parent):
        raise TabmocoError(f"{path} cannot be written: there is no folder {target.parent}; create it first.")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise TabmocoError(f"{path} cannot be written: the folder {target.parent} is read-only; choose another one.")
    if os.path.lexists(target) and not overwrite:
        raise TabmocoError(f"{path} exists already; choose another name, or replace it with overwrite (--overwrite).")
    return target


def write_page(html: str, path: str | Path, *, overwrite: bool) -> int:
    """Write a page; its size in bytes."""
    return write_whole(html, check_page(path, overwrite=overwrite))


def write_whole(text: str, path: str | Path) -> int:
    """Write a text aside and rename it when it is on the disk, in place of a file of that name; its size in bytes."""
    target = Path(os.path.realpath(path))
    content = text.encode("utf-8", "replace")
    part = aside.hidden_name(target)
    try:
        aside.sweep(target)
        with part.open("xb") as file, aside.held(part):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, part)
            os.replace(part, target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TabmocoError(f"{path} cannot be written: {reason}; make room or choose another place.") from error
    finally:
        part.unlink(missing_ok=True)
    return len(content)
