"""What a server allows, and what it answers where more is asked."""

from dataclasses import dataclass, fields

from promptboost.errors import PromptBoostError, SettingError

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request, and all of them together, may take.

    Parameters
    ----------
    max_batch : int, default=32
        Most images that go through the encoder at once.
    max_wait_ms : float, default=5
        How long a batch waits for images that are still being decoded. Nobody waits when there are none.
    max_queue : int, default=256
        Most images that wait for an encoder; a request that would be more is told to come back.
    max_images : int, default=64
        Most images in one request.
    max_bytes : int, default=33554432
        Most bytes in the body of one request.
    max_held : int, default=268435456
        Most bytes in the bodies of all requests at once.
    max_image_memory : int, default=268435456
        Most bytes that decoding one image may take, worked out from its header.
    max_connections : int, default=1024
        Most connections at once.
    patience : float, default=10
        Seconds in which the head of a request has to be there, and its body at `slowest` bytes a second.
    slowest : int, default=65536
        Bytes a second that a body has to come with, after `patience`.
    stop_seconds : float, default=30
        How long requests in hand may take when the server stops.

    Examples
    --------
    >>> Limits(max_batch=0)
    Traceback (most recent call last):
    promptboost.errors.SettingError: max_batch is 0: give a number above zero
    """

    max_batch: int = 32
    max_wait_ms: float = 5.0
    max_queue: int = 256
    max_images: int = 64
    max_bytes: int = 32 * MIB
    max_held: int = 256 * MIB
    max_image_memory: int = 256 * MIB
    max_connections: int = 1024
    patience: float = 10.0
    slowest: int = 64 * 2**10
    stop_seconds: float = 30.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            least = item.name == "max_wait_ms"  # the one that may be zero: never wait
            if not (value > 0 or (least and value == 0)):
                raise SettingError(f"{item.name} is {value!r}: give a number above zero")

    @property
    def most_images(self) -> int:
        """Most images in one request: a request that fits no queue would never be answered."""
        return min(self.max_images, self.max_queue)


class RequestError(PromptBoostError):
    """A request that is not answered: with what status, why in one word, and when to come back."""

    def __init__(
        self, status: int, reason: str, message: str, *, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.reason, self.retry_after = status, reason, retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with the answer."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers
