"""Limits of the server, and the error of a refused request."""

from dataclasses import dataclass, fields

from promptboost.errors import PromptBoostError, SettingError

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """Limits on each request and on all requests together."""

    max_batch: int = 32  # images that go through the encoder at once
    max_wait_ms: float = 5.0  # how long a batch waits for images being decoded; zero: not at all
    max_queue: int = 256  # images that wait for an encoder
    max_images: int = 64  # per request
    max_bytes: int = 32 * MIB  # in the body of a request
    max_held: int = 64 * MIB  # in the bodies of all requests
    max_image_memory: int = 256 * MIB  # for decoding an image, estimated from its header
    decode_seconds: float = 10.0  # for decoding an image, with the wait for a decoder
    max_connections: int = 1024
    patience: float = 10.0  # seconds for the head of a request, and before `slowest` applies
    slowest: int = 64 * 2**10  # bytes per second of a body
    stop_seconds: float = 30.0  # for running requests when the server stops

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not (value > 0 or (limit.name == "max_wait_ms" and value == 0)):
                raise SettingError(f"{limit.name} is {value!r}: give a number above zero")

    @property
    def most_images(self) -> int:
        """Most images per request: a request larger than the queue would never be answered."""
        return min(self.max_images, self.max_queue)


class RequestError(PromptBoostError):
    """A refused request: its status, the reason in one word, and when to retry."""

    def __init__(
        self, status: int, reason: str, message: str, *, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.reason, self.retry_after = status, reason, retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers
