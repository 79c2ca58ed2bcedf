"""Reaching a Ray cluster, and telling what went wrong on it in one sentence."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tabmoco import errors
from tabmoco.errors import TabmocoError

LOCAL = "local"
"""The address that stands for a cluster of this machine alone, which lives as long as the job."""

SECONDS = 5.0
"""How long a cluster has to answer the first call."""

_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")
"""The line of a traceback that names the error."""

TELEMETRY = "RAY_USAGE_STATS_ENABLED"


class ClusterError(TabmocoError):
    """A Ray cluster that cannot be reached, is too small, or lost what a job needs."""


def require_ray() -> Any:
    """The package `ray`, with its reports of its own usage turned off.

    Raises
    ------
    ClusterError
        If it is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise ClusterError("engine = ray needs the package ray, which is not installed; pip install 'tabmoco[ray]'.")
    os.environ[TELEMETRY] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # nobody can act on what its core tells
    import ray

    return ray


@contextmanager
def connected(address: str | None = None) -> Iterator[Any]:
    """Ray, connected to a cluster while the job lasts.

    Parameters
    ----------
    address
        ``HOST:PORT`` of the cluster's head, ``auto`` for the cluster that this machine belongs to, or ``local``; by
        default what the variable RAY_ADDRESS says, or else ``local``. A program that is connected already stays so.

    Raises
    ------
    ClusterError
        If there is no Ray, no cluster at the address, or nothing left to work with.
    """
    ray = require_ray()
    with _own_errors(ray):
        if ray.is_initialized():
            yield ray
            return
        address = address or os.environ.get("RAY_ADDRESS") or LOCAL
        _check_reachable(address)
        with _own_signals():
            _connect(ray, address)
        try:
            yield ray
        finally:
            ray.shutdown()


def hush(*names: str) -> None:
    """Let these parts of Ray, once they are imported, be silent: what matters they raise."""
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def count(ray: Any, resource: str) -> int:
    """How many CPUs or GPUs the machines have that are left in the cluster."""
    return int(sum(node["Resources"].get(resource, 0) for node in machines(ray)))


def machines(ray: Any) -> list[dict[str, Any]]:
    """The machines of the cluster that answer and have work to give."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def _connect(ray: Any, address: str) -> None:
    local = {"include_dashboard": False} if address == LOCAL else {}
    try:
        with _silenced():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        raise ClusterError(
            f"the Ray cluster at {address} must let this job in, but did not: {first_line(error)}; check the address, "
            "and that both sides have the same versions of Ray and Python."
        ) from error


def _check_reachable(address: str) -> None:
    """Ask for a connection ourselves: Ray tries for a minute, and then says a page about it."""
    if address in (LOCAL, "auto"):
        return
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not (host and port.isdecimal()):
        raise ClusterError(f"the address of a Ray cluster must be HOST:PORT, auto or local, got {address!r}.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ClusterError(
            f"there must be a Ray cluster at {address}, but it cannot be reached ({reason}); check the address, or "
            "start one there with ray start --head."
        ) from error


@contextmanager
def _silenced() -> Iterator[None]:
    """Without what the core of Ray, which is no Python, prints when it starts; it raises what matters."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep what SIGTERM does here; Ray would have it end the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _own_errors(ray: Any) -> Iterator[None]:
    """Say in one sentence what Ray has a page for."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raise ClusterError(
            f"the job on Ray must come to its end, but failed: {first_line(error)}; look into the logs of Ray, and "
            "that tabmoco is installed on every machine."
        ) from error


def spelled(error: Exception) -> str:
    """An error as text: of a worker's error Ray keeps no more than the traceback."""
    return json.dumps([type(error).__name__, str(error)])


def read(text: str) -> TabmocoError:
    """The error that a worker spelled."""
    name, sentence = json.loads(text)
    kind = getattr(errors, name, None)
    return ClusterError(f"a worker failed by {name}: {sentence}") if kind is None else kind(sentence)


def first_line(error: BaseException) -> str:
    """What happened, without the traceback that Ray puts around it."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised or lines)[0].strip().rstrip(".")
