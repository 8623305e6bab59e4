"""The gate: checks of every request, and headers of every response."""

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from promptboost.errors import human_bytes
from promptboost.serve.limits import Limits, RequestError
from promptboost.serve.messages import ErrorAnswer
from promptboost.serve.metrics import ServerMetrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_log = logging.getLogger(__name__)
#: Paths for probes, open without a token.
OPEN = frozenset({"/healthz", "/readyz"})
#: Names of this machine. A web page that resolves its name to this machine uses another.
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
#: Pages of the server may load nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
# Refused bodies are read for a while, as clients may not read the response before they have sent all.
_POLITE_BYTES, _POLITE_SECONDS = 4, 5.0  # times the bytes of a body


class Guarded(Protocol):
    """A service behind a gate."""

    limits: Limits
    metrics: ServerMetrics
    stopping: bool

    def reload(self) -> Any:
        """Handle SIGHUP: files may have changed."""


class Gate:
    """An ASGI middleware that authorizes, limits and counts requests, and hides stack traces.

    Parameters
    ----------
    app : application
    service : Guarded
    token : str, optional
        Clients must send it.
    hosts : set of str, optional
        Allowed values of the Host header; None for any.
    open_paths : set of str
        Paths that need no token.
    policy : str
        The ``Content-Security-Policy`` of responses.
    """

    def __init__(
        self,
        app: Application,
        service: Guarded,
        token: str | None = None,
        hosts: frozenset[str] | None = None,
        open_paths: frozenset[str] = OPEN,
        policy: str = POLICY,
    ) -> None:
        self.app, self.service, self.hosts = app, service, hosts
        self._open_paths = open_paths
        self._always = (*_ALWAYS, (b"content-security-policy", policy.encode()))
        self._token = None if token is None else token.encode()
        self.running = 0
        self._held = 0  # bytes of all bodies
        service.metrics.watch_requests(lambda: self.running)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._always)
        start = time.perf_counter()
        self.running += 1
        try:
            await self._answer(exchange)
        except RequestError as refusal:
            await self._refuse(exchange, refusal)
        except _GoneError:
            self.service.metrics.rejected("gone")
        except Exception:
            _log.exception("a request failed")
            fault = RequestError(500, "fault", "a fault in the server; its log says more")
            await self._refuse(exchange, fault)
        finally:
            self.running -= 1
            self._held -= exchange.received
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if route != "other" else "other"
            seconds = time.perf_counter() - start
            self.service.metrics.request(route, method, exchange.status, seconds)

    async def _answer(self, exchange: "_Exchange") -> None:
        self._check(exchange)
        body = await self._body(exchange)
        if exchange.scope["method"] != "POST":
            await self.app(exchange.scope, _replay(body), exchange.reply)
            return
        # Stop working for a client that is gone.
        work = asyncio.ensure_future(self.app(exchange.scope, _replay(body), exchange.reply))
        gone = asyncio.ensure_future(_until_gone(exchange.receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not exchange.status:
                raise _GoneError
            await work
        finally:
            for task in (work, gone):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    def _check(self, exchange: "_Exchange") -> None:
        path, header = exchange.scope["path"], exchange.header
        host = header(b"host").lower()
        if self.hosts is not None and re.sub(r":\d+$", "", host) not in self.hosts:
            raise RequestError(421, "host", "the server is not called by this name")
        # Browsers send the origin: a page of another site could send requests, although not read responses.
        origin = header(b"origin").lower()
        if origin and origin.partition("://")[2] != host:
            raise RequestError(403, "origin", "pages of other sites may not ask this server")
        if path in self._open_paths:
            return
        if self._token is not None:
            kind, _, shown = header(b"authorization").partition(" ")
            right = hmac.compare_digest(shown.strip().encode(), self._token)
            if kind.lower() != "bearer" or not right:
                raise RequestError(
                    401, "token", "show the token of the server: Authorization: Bearer TOKEN"
                )
        if self.service.stopping:
            raise RequestError(503, "stopping", "the server stops", retry_after=5)

    async def _body(self, exchange: "_Exchange") -> bytes:
        """Read the body, within the limits on bytes and time."""
        limits, parts = self.service.limits, []
        announced = exchange.header(b"content-length")
        if announced.isdigit() and int(announced[:20]) > limits.max_bytes:
            raise _too_many_bytes(limits)
        start = asyncio.get_running_loop().time()
        more = True
        while more:
            allowed = limits.patience + exchange.received / limits.slowest
            try:
                async with asyncio.timeout_at(start + allowed):
                    message = await exchange.receive()
            except TimeoutError:
                raise RequestError(408, "slow", "the request came too slowly") from None
            if message["type"] == "http.disconnect":
                raise _GoneError
            part = message.get("body", b"")
            exchange.received += len(part)
            self._held += len(part)
            parts.append(part)
            more = message.get("more_body", False)
            if exchange.received > limits.max_bytes:
                raise _too_many_bytes(limits)
            if self._held > limits.max_held:
                raise RequestError(
                    429, "memory", "other requests take all the memory there is", retry_after=1
                )
        exchange.whole = True
        return b"".join(parts)

    async def _refuse(self, exchange: "_Exchange", refusal: RequestError) -> None:
        self.service.metrics.rejected(refusal.reason)
        if exchange.status:  # too late for another response
            return
        headers = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
        if not exchange.whole and refusal.status != 408:
            await self._let_finish(exchange)
        if not exchange.whole:
            headers.append((b"connection", b"close"))
        content = msgspec.json.encode(ErrorAnswer(str(refusal)))
        headers += [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
        ]
        start = {"type": "http.response.start", "status": refusal.status, "headers": headers}
        with suppress(_GoneError):
            await exchange.reply(start)
            await exchange.reply({"type": "http.response.body", "body": content})

    async def _let_finish(self, exchange: "_Exchange") -> None:
        """Read and discard for a while: a client that still sends would miss the response."""
        if exchange.header(b"expect"):  # it waits for 100 Continue
            return
        left = _POLITE_BYTES * self.service.limits.max_bytes
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_POLITE_SECONDS, self.service.limits.patience)):
                while left > 0:
                    message = await exchange.receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        exchange.whole = True
                        return


class _GoneError(Exception):
    """The client has closed the connection, or does not read."""


class _Exchange:
    """A request and its response."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, always: tuple[tuple[bytes, bytes], ...]
    ) -> None:
        self.scope, self.receive, self._send, self._always = scope, receive, send, always
        self.status = 0
        self.received = 0
        self.whole = False
        self._headers = dict(reversed(scope["headers"]))

    def header(self, name: bytes) -> str:
        """Return the first header of a name, or an empty string."""
        value: bytes = self._headers.get(name, b"")
        return value.decode("latin-1")

    async def reply(self, message: Message) -> None:
        """Send a message; give up on a client that does not read it."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self._always]}
        try:
            async with asyncio.timeout(60):
                await self._send(message)
        except TimeoutError:
            raise _GoneError from None


def _too_many_bytes(limits: Limits) -> RequestError:
    most = human_bytes(limits.max_bytes)
    return RequestError(413, "bytes", f"the request is too large; send no more than {most}")


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _replay(body: bytes) -> Receive:
    """Return a receive function for a body that was already read."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive
