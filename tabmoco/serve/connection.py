"""Connections of clients that are slow, silent, many, or do not speak HTTP."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tabmoco.serve.limits import Limits
from tabmoco.serve.refusals import error_bytes


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1, with an end to waiting: for a whole request, and for a client to take its answer.

    uvicorn itself waits for ever for the rest of a head or of a body, and for a client that does not read.
    """

    def __init__(self, *arguments: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so that `pause_writing` tells of every byte that is not taken
        if len(self.connections) > self._limits.max_connections:
            self._refuse(503, "there are too many connections; try again soon.")
        else:
            self._reading = self.loop.call_later(self._limits.read_seconds, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_reading_timer()
        self._stop_writing_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_reading_timer()
        elif self._reading is None:
            self._reading = self.loop.call_later(self._limits.read_seconds, self._give_up)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._writing is None:
            self._expect_taking()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_writing_timer()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets JSON, as any other error does."""
        self._refuse(400, "the request must be HTTP/1.1.")

    def _stop_reading_timer(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _stop_writing_timer(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _expect_taking(self) -> None:
        """Hang up, some time from now, if the client has taken nothing until then."""
        n_left = self.transport.get_write_buffer_size()

        def look() -> None:
            if self.transport.get_write_buffer_size() < n_left:
                self._expect_taking()
            else:
                self.transport.abort()

        self._writing = self.loop.call_later(self._limits.read_seconds, look)

    def _give_up(self) -> None:
        self._reading = None
        self._refuse(408, f"the whole request must come within {self._limits.read_seconds:g} seconds.")

    def _refuse(self, status: int, message: str) -> None:
        """Answer if nothing was answered yet, and hang up."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = error_bytes(message)
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
            *([("retry-after", "1")] if status == 503 else []),
        ]
        response = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode())
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
