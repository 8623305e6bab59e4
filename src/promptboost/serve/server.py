"""The server: one process on one address, which stops and reloads without dropping requests."""

import ctypes
import ipaddress
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from fastapi import FastAPI

from promptboost.errors import SettingError
from promptboost.serve.app import create_app
from promptboost.serve.connection import Connection
from promptboost.serve.gate import LOOPBACK_NAMES, Guarded
from promptboost.serve.limits import MIB
from promptboost.serve.service import Service
from promptboost.threads import single_blas_thread

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # of glibc's malloc.h


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
