"""How much of everything a service takes on before it refuses."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """Bounds of memory, time and work; beyond each of them a client is refused with the reason."""

    max_body_bytes: int = 8 * MIB
    """Size of a request's body; 413 beyond."""

    max_rows: int = 10_000
    """Rows of one request; 413 beyond."""

    max_neighbours: int = 200_000
    """Rows of one answer of a search: its rows times `k`."""

    max_waiting_rows: int = 40_000
    """Rows that wait for the model, over all requests; 503 beyond."""

    max_concurrent: int = 64
    """Requests that are being read, waiting or answered; 503 beyond."""

    max_connections: int = 512
    """Connections, idle ones included; 503 beyond."""

    read_seconds: float = 30.0
    """Time a client has to send a whole request, and to take some of its answer; 408 beyond."""

    answer_seconds: float = 120.0
    """Time a request may wait for its answer; 503 beyond."""

    join_seconds: float = 0.003
    """How long the first of some requests waits for others to be answered together with it."""

    join_rows: int = 1_024
    """Rows from which on a call of the model is not joined by further requests."""
