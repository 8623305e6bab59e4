"""One exchange with a server: so many bytes, so much time, and nothing that grows when it is read.

A server may be a stranger's, or broken. The clients of both providers wait for each single byte anew,
unpack whatever is sent, and parse all of it; what is here bounds each of these.
"""

import re
import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Any

from promptboost.llm.client import AskError, TemporaryError

#: The most bytes of a reply, unpacked: some hundred thousand words.
MAX_REPLY_BYTES = 2**20
#: The most lists and objects of a reply, how deep they lie within each other, and the digits of a number.
MAX_PARTS, MAX_DEPTH, MAX_DIGITS = 10_000, 64, 100

_REDIRECTS = 5
_PIECE = 2**16
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def limited_client(library: Any, seconds: float) -> Any:
    """Return a client of the library's own kind that bounds every exchange; `seconds` is for all of one.

    The libraries come with different versions of their HTTP client, so only what all have is used.
    """

    class LimitedClient(library.DefaultHttpxClient):  # type: ignore[misc]
        def send(self, request: Any, **options: Any) -> Any:
            options |= {"stream": True, "follow_redirects": False}
            with _deadline(seconds) as sockets:
                for _ in range(_REDIRECTS):
                    # A connection of its own: the deadline ends it, and nobody else's.
                    request.headers["connection"] = "close"
                    request.headers["accept-encoding"] = "identity"
                    request.extensions = {**request.extensions, "trace": sockets.see}
                    answer = super().send(request, **options)
                    try:
                        if answer.next_request is None:
                            return _read(answer)
                        _check_same_server(request.url, answer.next_request.url)
                        request = answer.next_request
                    finally:
                        answer.close()
            raise AskError(f"the server sent the question on more than {_REDIRECTS} times")

    return LimitedClient()


class _Sockets:
    """The socket in use, so that another thread can end what waits for it."""

    def __init__(self) -> None:
        self.over = False
        self._last: socket.socket | None = None

    def see(self, event: str, info: dict[str, Any]) -> None:
        """Remember the newest connection; called by the HTTP client for each of its steps."""
        # With encryption there are two: the one below is handed over to the one above.
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._last = info["return_value"].get_extra_info("socket")
            if self.over:
                self.end()

    def end(self) -> None:
        """Let nothing more be sent or received."""
        self.over = True
        if self._last is not None:
            with suppress(OSError):
                # Not that of an encrypted socket, which would take apart what a thread still reads with.
                socket.socket.shutdown(self._last, socket.SHUT_RDWR)


@contextmanager
def _deadline(seconds: float) -> Iterator[_Sockets]:
    """End the connection after so many seconds, whatever trickles in, and raise TemporaryError."""
    sockets = _Sockets()
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), sockets.end)
    timer.daemon = True
    timer.start()
    late = TemporaryError("the server did not answer in time")
    try:
        yield sockets
    except Exception as error:
        if sockets.over:
            raise late from error
        raise
    finally:
        timer.cancel()
    if sockets.over:  # where no length is given, a connection that ends is the end of a reply
        raise late


def _check_same_server(asked: Any, sent_on: Any) -> None:
    """Raise AskError where a question is sent on to another server: it would get the key with it."""
    # What the libraries take away on the way is one header, and providers have keys in others.
    same = (asked.scheme, asked.port) == (sent_on.scheme, sent_on.port)
    encrypted = asked.scheme == "http" and sent_on.scheme == "https"
    if sent_on.host != asked.host or not (same or encrypted):
        raise AskError(
            f"the server sends questions on to {sent_on.scheme}://{sent_on.netloc.decode()[:200]}, "
            "which gets no key unasked; if you trust it, give its address as --base-url"
        )


def _read(answer: Any) -> Any:
    """Read an answer within the limits; return one that is complete and not packed."""
    body = b"".join(_unpacked(answer))
    if problem := _problem(body):
        if answer.status_code < 400:
            raise AskError(f"the server's reply {problem}")
        body = b""  # its number says enough
    kept = ("content-type", "retry-after", "retry-after-ms", "request-id", "x-request-id")
    headers = {name: value for name, value in answer.headers.items() if name.lower() in kept}
    return type(answer)(answer.status_code, headers=headers, content=body, request=answer.request)


def _unpacked(answer: Any) -> Iterator[bytes]:
    """Yield the bytes of an answer as they come; raise AskError where they are too many."""
    packing = answer.headers.get("content-encoding", "identity").strip().lower()
    if packing not in ("identity", "gzip", "x-gzip", "deflate", ""):
        raise AskError(
            f"the server packed its reply with {packing[:20]!r}, which was not asked for"
        )
    inflate = zlib.decompressobj(47) if packing not in ("identity", "") else None
    size = 0
    for part in answer.iter_raw(_PIECE):
        while part:
            piece = part
            part = b""
            if inflate is not None:
                try:
                    piece = inflate.decompress(piece, _PIECE)
                except zlib.error as error:
                    raise TemporaryError("the server's reply cannot be unpacked") from error
                part = inflate.unconsumed_tail
            size += len(piece)
            if size > MAX_REPLY_BYTES:
                raise AskError(f"the server's reply has more than {MAX_REPLY_BYTES:,} bytes")
            yield piece


def _problem(body: bytes) -> str | None:
    """Return what would make a reply grow when it is read, or None."""
    bare = _TEXT.sub(b"", body)
    steps = [_STEPS[byte] for byte in bare if byte in _STEPS]
    if len(steps) > 2 * MAX_PARTS:
        return f"has more than {MAX_PARTS:,} lists and objects"
    if max(accumulate(steps), default=0) > MAX_DEPTH:
        return f"has lists in each other more than {MAX_DEPTH} deep"
    if re.search(rb"\d{%d}" % (MAX_DIGITS + 1), bare):
        return f"has a number of more than {MAX_DIGITS} digits"
    return None
