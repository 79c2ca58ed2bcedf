"""Made aside and then put in its place: whoever looks finds the old file or folder or the whole new one.

What is made lies beside its place under a hidden name and is locked while its maker lives. What a killed process left
there is known by its lock being free, and removed by whoever next writes to that place. Hidden names are read neither
as part of a table nor as a model.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing is locked, and nothing that was left is removed
    fcntl = None  # type: ignore[assignment]

PART = ".part"
OLD = ".old"

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def hidden_name(target: Path) -> Path:
    """A name beside `target` that nothing has yet."""
    return target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}{PART}")


@contextmanager
def held(part: Path) -> Iterator[None]:
    """Lock a part, a file or a folder, against `sweep` of other processes; where there are no locks, do nothing."""
    descriptor = os.open(part, os.O_RDONLY) if fcntl is not None else None
    try:
        if descriptor is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def put_in_place(part: Path, target: Path) -> None:
    """Give a folder made aside the name `target`; a folder that has it already is removed.

    On Linux the two are exchanged in one step. Where the file system cannot do that, the old folder is moved away
    first, and `restore` brings it back if the process is killed before the new one is in its place.
    """
    old = part.with_suffix(OLD)
    if not target.exists():
        os.replace(part, target)
    elif exchange(part, target):
        shutil.rmtree(part, ignore_errors=True)
    else:
        os.replace(target, old)
        try:
            os.replace(part, target)
        finally:
            if not target.exists():
                os.replace(old, target)
        shutil.rmtree(old, ignore_errors=True)


def exchange(one: Path, other: Path) -> bool:
    """Let two names change what they lead to, in one step; False if the system or the file system cannot."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0


def restore(target: Path) -> None:
    """Give back its name to what a process moved away and was killed before it could put the new one in its place."""
    for old in () if os.path.lexists(target) else _beside(target, OLD):
        if _is_left(old.with_suffix(PART)):
            with suppress(OSError):
                os.replace(old, target)
            return


def sweep(target: Path) -> None:
    """Remove what killed processes left while they were making `target`."""
    restore(target)
    for path in [*_beside(target, PART), *_beside(target, OLD)]:
        if _is_left(path.with_suffix(PART)):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there and as far as it goes."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _beside(target: Path, suffix: str) -> list[Path]:
    """The hidden names of `target` with this suffix."""
    start = f".{target.name}."
    try:
        names = os.listdir(target.parent)
    except OSError:
        return []
    return [
        target.with_name(name)
        for name in sorted(names)
        if name.startswith(start)
        and name.endswith(suffix)
        and len(name) == len(start) + 8 + len(suffix)
        and set(name[len(start) :][:8]) <= set("0123456789abcdef")
    ]


def _is_left(part: Path) -> bool:
    """Whether nobody is at work on this part any more."""
    if fcntl is None:
        return False
    try:
        descriptor = os.open(part, os.O_RDONLY)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
