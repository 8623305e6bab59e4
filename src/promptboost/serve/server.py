"""The server: one process on one address, which stops and reloads without dropping a request."""

import ctypes
import ipaddress
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from promptboost.errors import SettingError, place
from promptboost.io import read_text
from promptboost.serve.app import create_app
from promptboost.serve.connection import Connection
from promptboost.serve.gate import LOOPBACK_NAMES, Guarded
from promptboost.serve.limits import MIB
from promptboost.serve.service import Service
from promptboost.threads import single_blas_thread

TOKEN_VARIABLE = "PROMPTBOOST_TOKEN"
_SHORTEST_TOKEN = 16
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # of glibc's malloc.h


def read_token(file: str | os.PathLike[str] | None = None) -> str | None:
    """Return the token from a file, else from the environment; None where there is none."""
    if file is not None:
        where, token = place(Path(file)), read_text(file, error=SettingError).strip()
    elif TOKEN_VARIABLE in os.environ:
        where, token = TOKEN_VARIABLE, os.environ[TOKEN_VARIABLE].strip()
    else:
        return None
    if (
        len(token) < _SHORTEST_TOKEN
        or not token.isascii()
        or not token.isprintable()
        or " " in token
    ):
        raise SettingError(
            f"{where} holds no token: it must be {_SHORTEST_TOKEN} letters and digits or more. To make "
            "one, type: python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token


def is_loopback(host: str) -> bool:
    """Tell whether an address is one that only this machine reaches.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Open the address; the error says what is wrong with it."""
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
    """Answer until told to stop, by SIGTERM or Ctrl-C; `started` is told the address.

    Raises
    ------
    SettingError
        If the address cannot be had, or others could reach it and there is no token.
    """
    if not is_loopback(host) and token is None:
        raise SettingError(
            f"{host} can be reached from other machines: set a token in {TOKEN_VARIABLE} or with "
            "--token-file FILE, or serve on 127.0.0.1"
        )
    names = LOOPBACK_NAMES if is_loopback(host) else None
    app = create_app(service, token=token, hosts=names, watch=watch)
    _return_memory()
    with listen(host, port) as listening:
        bound, number = listening.getsockname()[:2]
        bound = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)
        address = f"http://{f'[{bound}]' if ':' in bound else bound}:{number}"
        # The products of a batch are small: threads that wait for the next take more than they save.
        with single_blas_thread():
            Server(app, service, lambda: started(address)).run(sockets=[listening])


def _return_memory() -> None:
    """Let glibc give large pieces of memory back as soon as they are free, and keep few heaps.

    By default it keeps what was once taken: a single large request would count for ever.
    """
    with suppress(OSError, AttributeError, TypeError):  # another system
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 4 * MIB)
        library.mallopt(_ARENA_MAX, 2)


def greeting(service: Service, address: str, has_token: bool) -> str:
    """Return what a server says when it starts: where it is, and lines to paste."""
    header = f' -H "Authorization: Bearer ${TOKEN_VARIABLE}"' if has_token else ""
    first, *others = service.runs
    lines = [f"serving {', '.join(service.runs)} on {address}", "", "Ask it:"]
    lines.append(f"  curl{header} -F image=@photo.jpg {address}/predict")
    lines += [
        f"  curl{header} -F image=@photo.jpg {address}/runs/{one}/predict" for one in others[:3]
    ]
    lines.append(f"  curl{header} {address}/runs/{first}/sentences")
    return "\n".join([*lines, "", "Ctrl-C stops it, after the requests in hand."])


class Server(uvicorn.Server):
    """Uvicorn with other manners: on a signal it refuses what is new, and ends what is in hand first.

    Parameters
    ----------
    app : FastAPI
        What :func:`~promptboost.serve.create_app` made, or another behind the same gate.
    service : Guarded
        What it answers from.
    begun : callable, optional
        What is called as soon as requests are taken and signals heeded.
    """

    def __init__(
        self, app: FastAPI, service: Guarded, begun: Callable[[], None] = lambda: None
    ) -> None:
        limits = service.limits
        config = uvicorn.Config(
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
        super().__init__(config)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._service, self._begun = service, begun
        self._stop_by = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take requests."""
        await super().startup(sockets)
        self._begun()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Heed the signals to stop, and SIGHUP to reload, while the server runs."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers: dict[int, Any] = dict.fromkeys((signal.SIGINT, signal.SIGTERM), self.handle_exit)
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = lambda *_: threading.Thread(
                target=self._service.reload
            ).start()
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Turn new requests away from now on; the second signal does not wait for those in hand."""
        if self._service.stopping:
            self.force_exit = self.should_exit = True
        self._service.stopping = True
        self._stop_by = time.monotonic() + self._service.limits.stop_seconds

    async def on_tick(self, counter: int) -> bool:
        """Leave once nothing is in hand."""
        if self._service.stopping and not self.should_exit:
            idle = not self.server_state.tasks
            self.should_exit = idle or time.monotonic() > self._stop_by
        return await super().on_tick(counter)
