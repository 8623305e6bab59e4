"""The connection: what a client sends before there is a request, within limits."""

from asyncio import TimerHandle, Transport
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from promptboost.serve.limits import Limits

_HEAD_BYTES = 64 * 2**10  # of the first line and the headers of a request
_HEADERS = 100
_CHUNK = 2**18  # bytes that a connection hands over at once, at most
_PHRASES = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Headers Too Large", 503: b"Busy"}


class Connection(HttpToolsProtocol):
    """Uvicorn's connection, with limits on the head of a request, and errors in JSON.

    The head has to be there in time and is of a bounded size: clients that send it drop by drop, or for
    ever, are let go before they reach anything.
    """

    limits: ClassVar[Limits] = Limits()
    _timer: TimerHandle | None = None
    _head_bytes: int | None = 0  # received since the last body; None within one
    _head_size = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Take a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._end(503, "too many connections")
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._unset_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, as long as the head is not too large."""
        if self.transport.is_closing():
            return
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            # The body may come along with the head; the parser is asked before it is refused.
            if self._head_bytes > _HEAD_BYTES + _CHUNK:
                self._end(431, "the headers are too large")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Begin a request, whose head has to come in time."""
        super().on_message_begin()
        self._head_size = 0
        if self._timer is None:
            self._wait_for_head()

    def on_url(self, url: bytes) -> None:
        """Count the bytes of the address."""
        super().on_url(url)
        self._check_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the bytes of a header."""
        super().on_header(name, value)
        self._check_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """Hand the request over."""
        self._unset_timer()
        self._head_bytes = None
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Wait for the next head."""
        super().on_message_complete()
        self._head_bytes = 0

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._end(400, "this is not HTTP")

    def _check_head(self, length: int) -> None:
        self._head_size += length
        if self._head_size > _HEAD_BYTES or len(self.headers) > _HEADERS:
            self._end(431, "the headers are too large")

    def _wait_for_head(self) -> None:
        self._timer = self.loop.call_later(
            self.limits.patience, self._end, 408, "the request came too slowly"
        )

    def _unset_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, status: int, error: str) -> None:
        """Answer without the application, and close."""
        self._unset_timer()
        if self.transport.is_closing():
            return
        content = f'{{"error":"{error}"}}'.encode()
        head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        head %= (status, _PHRASES[status], len(content))
        self.transport.write(head + b"connection: close\r\n\r\n" + content)
        self.transport.close()
