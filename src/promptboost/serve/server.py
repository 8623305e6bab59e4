"""The server: one process on one address, which stops and reloads without dropping requests."""

import ctypes
import ipaddress
import logging
import signal
import socket
import threading
from asyncio import TimerHandle, Transport
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from promptboost.errors import SettingError
from promptboost.serve.app import create_app
from promptboost.serve.gate import LOOPBACK_NAMES
from promptboost.serve.limits import Limits
from promptboost.serve.service import Service
from promptboost.threads import single_blas_thread

_HEAD_BYTES = 64 * 2**10  # of the first line and the headers of a request
_MAX_LINES = 2000  # of a chunked body at once: parsing tiny chunks would delay other requests
# Options of glibc: blocks of this size are returned to the system when they are freed.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _RETURNED_BYTES = -1, -3, 128 * 2**10


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
    with suppress(OSError, AttributeError, TypeError):  # another library than glibc
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(option, _RETURNED_BYTES)
    with listen(host, port) as listening:
        bound, number = listening.getsockname()[:2]
        bound = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)
        address = f"http://{f'[{bound}]' if ':' in bound else bound}:{number}"
        # Batches are small: waiting threads take more time than they save.
        with single_blas_thread():
            server = Server(app, service.limits, lambda: started(address), hangup=service.reload)
            server.run(sockets=[listening])


class Connection(H11Protocol):
    """A uvicorn connection that is closed if the head of a request takes too long."""

    patience: ClassVar[float] = Limits.patience
    _timer: TimerHandle | None = None  # while no request is running

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Accept a connection."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.patience, transport.close)

    def data_received(self, data: bytes) -> None:
        """Limit the number of chunks, and the time for a head and for the rest of a refused body."""
        chunked = any(name == b"transfer-encoding" for name, _ in self.headers or ())
        if data.count(b"\r\n") > _MAX_LINES and (chunked or b"chunked" in data.lower()):
            self.send_400_response("")
            return
        super().data_received(data)
        if self.cycle and not self.cycle.response_complete:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
        elif self._timer is None:
            self._timer = self.loop.call_later(self.patience, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Send an error for bytes that are not HTTP, or too many of them."""
        content = (
            b'{"error":"this is not HTTP, its head is too large, or its chunks are too small"}'
        )
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
        head += b"content-length: %d\r\nconnection: close\r\n\r\n" % len(content)
        self.transport.write(head + content)
        self.transport.close()


class Server(uvicorn.Server):
    """A uvicorn server that finishes the running requests before it stops.

    It calls `started` when it accepts requests, `hangup` on SIGHUP, and stops when `stop` is set.
    """

    def __init__(
        self,
        app: FastAPI,
        limits: Limits,
        started: Callable[[], None] = lambda: None,
        *,
        hangup: Callable[[], None],
        stop: threading.Event | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=type("LimitedConnection", (Connection,), {"patience": limits.patience}),
                h11_max_incomplete_event_size=_HEAD_BYTES,
                limit_concurrency=limits.max_connections,
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
        self._call_started, self._hangup = started, hangup
        self._stop = stop or threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept requests."""
        await super().startup(sockets)
        if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
            hangup = self._hangup
            signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=hangup).start())
        self._call_started()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop; a second signal does not wait for the running requests."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Stop when the event is set."""
        self.should_exit = self.should_exit or self._stop.is_set()
        return await super().on_tick(counter)
