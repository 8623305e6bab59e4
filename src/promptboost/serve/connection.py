"""Connections of the server, with limits on request heads that uvicorn has no options for."""

from asyncio import TimerHandle, Transport
from itertools import chain
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from promptboost.serve.limits import Limits

_HEAD_BYTES = 64 * 2**10  # of the first line and the headers of a request
_HEADERS = 100
_CHUNK = 2**18  # the most bytes that a connection receives at once; a body may come with the head
_PHRASES = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Headers Too Large", 503: b"Busy"}


class Connection(HttpToolsProtocol):
    """A uvicorn connection that limits the size and duration of request heads.

    Its own errors are JSON. It closes connections that send nothing, or a head without an end.
    """

    limits: ClassVar[Limits] = Limits()
    _timer: TimerHandle | None = None  # while the head of a request is expected
    _head_bytes: int | None = 0  # received since the last body; None within one

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Accept a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._end(503, "too many connections")
        else:
            self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Parse data, unless the head is too large."""
        if self.transport.is_closing():
            return
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        if (self._head_bytes or 0) > _HEAD_BYTES + _CHUNK:
            self._end(431, "the headers are too large")
        else:
            super().data_received(data)

    def on_message_begin(self) -> None:
        """Limit the time for the head of a request on an open connection."""
        super().on_message_begin()
        if self._timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        """Hand the request over, if its head is small enough."""
        self._stop_timer()
        self._head_bytes = None
        size = len(self.url) + sum(map(len, chain.from_iterable(self.headers)))
        if size > _HEAD_BYTES or len(self.headers) > _HEADERS:
            self._end(431, "the headers are too large")
        elif not self.transport.is_closing():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the next head."""
        super().on_message_complete()
        self._head_bytes = 0

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._end(400, "this is not HTTP")

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(
            self.limits.patience, self._end, 408, "the request came too slowly"
        )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, status: int, error: str) -> None:
        """Respond without the application, and close."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        content = f'{{"error":"{error}"}}'.encode()
        head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        head %= (status, _PHRASES[status], len(content))
        self.transport.write(head + b"connection: close\r\n\r\n" + content)
        self.transport.close()
