"""The server: one process on one address, which stops and reloads without dropping requests."""

import ctypes
import ipaddress
import logging
import signal
import socket
import threading
import time
from asyncio import TimerHandle, Transport
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import Any, ClassVar

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from promptboost.errors import SettingError
from promptboost.serve.app import create_app
from promptboost.serve.gate import LOOPBACK_NAMES, Guarded
from promptboost.serve.limits import MIB, Limits
from promptboost.serve.service import Service
from promptboost.threads import single_blas_thread

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # of glibc's malloc.h
_HEAD_BYTES = 64 * 2**10  # of the first line and the headers of a request
_HEADERS = 100
_CHUNK = 2**18  # the most bytes that a connection receives at once; a body may come with the head
_PHRASES = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Headers Too Large", 503: b"Busy"}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingError(
            f"cannot listen on {host}, port {port}: {reason}; choose another with --host and --port"
        ) from None


def serve(
    service: Service,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    watch: bool = False,
    started: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; `started` is called with the address.

    Without a token, only addresses of this machine are allowed.
    """
    local = is_loopback(host)
    if not local and token is None:
        raise SettingError(
            f"{host} can be reached from other machines: set a token in PROMPTBOOST_TOKEN or with "
            "--token-file FILE, or serve on 127.0.0.1"
        )
    app = create_app(service, token=token, hosts=LOOPBACK_NAMES if local else None, watch=watch)
    with suppress(OSError, AttributeError, TypeError):  # not glibc
        # Return freed memory, which malloc would keep after a single large request.
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 4 * MIB)
        library.mallopt(_ARENA_MAX, 2)
    with listen(host, port) as listening:
        bound, number = listening.getsockname()[:2]
        bound = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)
        address = f"http://{f'[{bound}]' if ':' in bound else bound}:{number}"
        # Batches are small: waiting threads take more time than they save.
        with single_blas_thread():
            Server(app, service, lambda: started(address)).run(sockets=[listening])


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


class Server(uvicorn.Server):
    """A uvicorn server that refuses new requests on a signal, and finishes the running ones."""

    def __init__(
        self, app: FastAPI, service: Guarded, started: Callable[[], None] = lambda: None
    ) -> None:
        limits = service.limits
        super().__init__(
            uvicorn.Config(
                app,
                http=type("LimitedConnection", (Connection,), {"limits": limits}),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=max(1, round(limits.stop_seconds)),
            )
        )
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._service, self._call_started, self._stop_by = service, started, 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept requests; reload on SIGHUP."""
        await super().startup(sockets)
        if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
            reload = self._service.reload
            signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=reload).start())
        self._call_started()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop accepting requests; a second signal does not wait for the running ones."""
        if self._service.stopping:
            self.force_exit = self.should_exit = True
        self._service.stopping = True
        self._stop_by = time.monotonic() + self._service.limits.stop_seconds

    async def on_tick(self, counter: int) -> bool:
        """Exit when no request is running."""
        if self._service.stopping and not self.should_exit:
            self.should_exit = not self.server_state.tasks or time.monotonic() > self._stop_by
        return await super().on_tick(counter)
