"""The gate: checks of every request, and headers of every response."""

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

import msgspec
from starlette.datastructures import Headers

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
_SEND_SECONDS = 60  # for a client to read a message


class Gate:
    """An ASGI middleware that authorizes, limits and counts requests, and hides stack traces.

    Requests with another Host than `hosts`, unless that is None, or without the `token` are refused, the
    latter except for `open_paths`; `policy` is the ``Content-Security-Policy`` of responses.
    """

    def __init__(
        self,
        app: Application,
        limits: Limits,
        metrics: ServerMetrics,
        token: str | None = None,
        hosts: frozenset[str] | None = None,
        open_paths: frozenset[str] = OPEN,
        policy: str = POLICY,
    ) -> None:
        self.app, self.limits, self.metrics, self.hosts = app, limits, metrics, hosts
        self._open_paths = open_paths
        self._always = (*_ALWAYS, (b"content-security-policy", policy.encode()))
        self._token = None if token is None else token.encode()
        self.running = 0
        self._held = 0  # bytes of all bodies
        metrics.running.set_function(lambda: self.running)

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
            self.metrics.rejected.labels("gone").inc()
        except asyncio.CancelledError:  # the time for stopping is over
            await self._refuse(exchange, RequestError(503, "stopping", "the server is stopping"))
            raise
        except Exception:
            _log.exception("a request failed")
            fault = RequestError(500, "fault", "a fault in the server; see its log")
            await self._refuse(exchange, fault)
        finally:
            self.running -= 1
            self._held -= exchange.received
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if route != "other" else "other"
            self.metrics.requests.labels(route, method, str(exchange.status)).inc()
            self.metrics.request_seconds.labels(route).observe(time.perf_counter() - start)

    async def _answer(self, exchange: "_Exchange") -> None:
        self._check(exchange.header, exchange.scope["path"])
        # The body is held by the application only, which frees it once it is parsed.
        messages = _replay(await self._body(exchange))
        # Stop working for a client that is gone.
        work = asyncio.ensure_future(self.app(exchange.scope, messages, exchange.reply))
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

    def _check(self, header: Callable[[str], str], path: str) -> None:
        host = header("host").lower()
        if self.hosts is not None and re.sub(r":\d+$", "", host) not in self.hosts:
            raise RequestError(421, "host", "this is not a name of the server")
        # A page of another site could send requests, although not read responses. Browsers send the origin,
        # or for images and links, whose open pages are harmless, the relation of the sites.
        origin, is_open = header("origin").lower(), path in self._open_paths
        other_site = header("sec-fetch-site").lower() in ("cross-site", "same-site")
        if (origin and origin.partition("://")[2] != host) or (other_site and not is_open):
            raise RequestError(403, "origin", "pages of other sites may not use this server")
        if is_open or self._token is None:
            return
        kind, _, shown = header("authorization").partition(" ")
        right = hmac.compare_digest(shown.strip().encode(), self._token)
        if kind.lower() != "bearer" or not right:
            raise RequestError(
                401, "token", "send the token of the server: Authorization: Bearer TOKEN"
            )

    async def _body(self, exchange: "_Exchange") -> bytes:
        """Read the body, within the limits on bytes and time."""
        limits, chunks = self.limits, []
        most = human_bytes(limits.max_bytes)
        # Not an exception yet: as a variable here it would keep the body in a cycle.
        too_large = 413, "bytes", f"the request is too large; send no more than {most}"
        announced = exchange.header("content-length")
        if announced.isdigit() and int(announced[:20]) > limits.max_bytes:
            raise RequestError(*too_large)
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
            chunk = message.get("body", b"")
            exchange.received += len(chunk)
            self._held += len(chunk)
            chunks.append(chunk)
            more = message.get("more_body", False)
            if exchange.received > limits.max_bytes:
                raise RequestError(*too_large)
            if self._held > limits.max_held:
                raise RequestError(
                    429, "memory", "other requests use all the memory", retry_after=1
                )
        return b"".join(chunks)

    async def _refuse(self, exchange: "_Exchange", refusal: RequestError) -> None:
        self.metrics.rejected.labels(refusal.reason).inc()
        if exchange.status:  # a response was already started
            return
        content = msgspec.json.encode(ErrorAnswer(str(refusal)))
        headers = refusal.headers | {
            "content-type": "application/json",
            "content-length": str(len(content)),
        }
        if refusal.status == 408:  # the rest would not come either
            headers["connection"] = "close"
        with suppress(_GoneError):
            await exchange.reply(
                {
                    "type": "http.response.start",
                    "status": refusal.status,
                    "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
                }
            )
            await exchange.reply({"type": "http.response.body", "body": content})


class _GoneError(Exception):
    """The client has closed the connection, or does not read."""


class _Exchange:
    """A request and its response."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, always: tuple[tuple[bytes, bytes], ...]
    ) -> None:
        self.scope, self.receive, self._send, self._always = scope, receive, send, always
        self.status = self.received = 0
        self._headers = Headers(scope=scope)

    def header(self, name: str) -> str:
        """Return the first header of a name, or an empty string."""
        return self._headers.get(name, "")

    async def reply(self, message: Message) -> None:
        """Send a message; give up on a client that does not read it."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self._always]}
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._send(message)
        except TimeoutError:
            raise _GoneError from None


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _replay(body: bytes) -> Receive:
    """Return a receive function for a body that was already read."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive
