"""The batcher: images of all requests are decoded ahead, and embedded in common batches."""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.data.decode import ImageError, read_image
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import WORKING_SIDE
from promptboost.errors import EncoderError, PromptBoostError
from promptboost.serve.limits import MIB, Limits, RequestError
from promptboost.serve.metrics import ServerMetrics

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.model.head import Head

_log = logging.getLogger(__name__)
# Bytes of decoded images that may wait for the encoder, without those being decoded.
_DECODED = 128 * MIB
# An image to warm up with: the decoder is loaded along with the encoder.
_SMALLEST = b"P6 1 1 255 \xff\xff\xff"
_SMOOTH = 0.2  # share of the last batch in the mean time of an image
_LONGEST_PAUSE = 60  # seconds in Retry-After


@dataclass(frozen=True)
class ScoredImage:
    """The embedding and the probabilities of an image."""

    embedding: NDArray[np.float32]
    probabilities: NDArray[np.float64]


Outcome = ScoredImage | PromptBoostError


@dataclass(eq=False, slots=True)
class _Request:
    """Images of one HTTP request, which waits for all of them."""

    head: "Head"
    loop: asyncio.AbstractEventLoop
    done: "asyncio.Future[list[Outcome]]"
    outcomes: list[Any]
    missing: int
    left: bool = False  # the client is gone


@dataclass(eq=False, slots=True)
class _Queued:
    """An image to decode and embed."""

    request: _Request
    place: int
    name: str
    read: Callable[[], bytes] | None
    image: "Image | None" = None
    bytes: int = 0


@dataclass(eq=False)
class Batcher:
    """An encoder, the thread that runs it, and threads that decode the next images meanwhile.

    Runs with the same encoder share its batches; each image is then scored by the head of its run.

    Parameters
    ----------
    encoder : Encoder
    limits : Limits
        Sizes of batches and of the queue.
    metrics : ServerMetrics
    name : str
        The name of the encoder in metrics.
    decoders : int, default=2
        Threads that decode.
    """

    encoder: Encoder
    limits: Limits
    metrics: ServerMetrics
    name: str
    decoders: int = 2
    ready: bool = field(default=False, init=False)  # the encoder has embedded an image

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._coming: deque[_Queued] = deque()
        self._decoded: deque[_Queued] = deque()
        self._decoding = self._decoded_bytes = 0
        self._waiting = 0
        self._seconds = 0.0  # per image in the encoder, smoothed
        self._closed = False
        self._warm = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def started(self) -> bool:
        """Whether its threads were started."""
        return bool(self._threads)

    def start(self) -> None:
        """Start the threads, once; it is ready when the encoder has embedded a first image."""
        if self._threads:
            return
        tasks = [self._encode_all, *[self._decode_all] * self.decoders]
        self._threads = [threading.Thread(target=task, daemon=True) for task in tasks]
        for thread in self._threads:
            thread.start()
        self.metrics.watch_queue(self.name, lambda: self._waiting)

    def wait_until_warm(self) -> None:
        """Wait until the encoder has embedded an image; raise if it fails."""
        self._warm.wait()
        if not self.ready:
            raise EncoderError(f"{self.encoder.id} cannot embed an image")

    def close(self) -> None:
        """Finish waiting images, then end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self.metrics.forget_queue(self.name)

    # --- in the event loop ---------------------------------------------------------------------

    async def answer(
        self, images: Sequence[tuple[str, Callable[[], bytes]]], head: "Head"
    ) -> list[Outcome]:
        """Return the probabilities of each image, or an error.

        An image is its name, for errors, and a function that returns the bytes of its file.
        """
        number = len(images)
        loop = asyncio.get_running_loop()
        request = _Request(head, loop, loop.create_future(), [None] * number, number)
        with self._changed:
            self._check_room(number)
            self._waiting += number
            self._coming.extend(
                _Queued(request, place, *image) for place, image in enumerate(images)
            )
            self._changed.notify_all()
        try:
            return await request.done
        finally:
            request.left = True

    def _check_room(self, number: int) -> None:
        if self._closed or not self.ready:
            raise RequestError(503, "not ready", "the server is not ready yet", retry_after=1)
        if self._waiting + number > self.limits.max_queue:
            seconds = math.ceil(self._waiting * self._seconds)
            raise RequestError(
                429,
                "queue",
                f"{self._waiting} images wait already, and {self.limits.max_queue} may: try again later",
                retry_after=min(_LONGEST_PAUSE, max(1, seconds)),
            )

    # --- in the threads ------------------------------------------------------------------------

    def _decode_all(self) -> None:
        while (item := self._next_to_decode()) is not None:
            outcome: PromptBoostError | None = None
            if not item.request.left:
                outcome = self._decode(item)
            with self._changed:
                self._decoding -= 1
                if item.image is not None:
                    self._decoded.append(item)
                    self._decoded_bytes += item.bytes
                self._changed.notify_all()
            if item.image is None:
                self._finish([(item, outcome)])

    def _next_to_decode(self) -> _Queued | None:
        """Wait for an image to decode, and for room to keep it; return None when closed."""
        with self._changed:
            while not self._coming or not self._has_room():
                if self._closed and not self._coming:
                    return None
                self._changed.wait()
            self._decoding += 1
            return self._coming.popleft()

    def _has_room(self) -> bool:
        ahead = len(self._decoded) + self._decoding
        return ahead < 2 * self.limits.max_batch and self._decoded_bytes < _DECODED

    def _decode(self, item: _Queued) -> PromptBoostError | None:
        """Decode an image; return an error if that fails."""
        assert item.read is not None
        try:
            data = item.read()
            item.read = None  # free the file
            most = self.limits.max_image_memory
            item.image = read_image(data, item.name, at_least=WORKING_SIDE, most=most)
            item.bytes = 3 * item.image.width * item.image.height
        except ImageError as error:
            status, reason = (413, "pixels") if error.bad.too_large else (422, "image")
            return RequestError(status, reason, error.bad.reason)
        except RequestError as error:
            return error
        except Exception:
            _log.exception("an image could not be decoded")
            return RequestError(422, "image", "cannot be decoded")
        return None

    def _encode_all(self) -> None:
        try:
            self.ready = self._embed([read_image(_SMALLEST)])[0] is not None
        finally:
            self._warm.set()
        while batch := self._next_batch():
            start = time.perf_counter()
            try:
                outcomes = self._outcomes(batch)
            except Exception:  # the thread must survive
                _log.exception("a batch of %d images failed", len(batch))
                fault = RequestError(500, "fault", "a fault in the server; its log says more")
                outcomes = [fault] * len(batch)
            seconds = time.perf_counter() - start
            self.metrics.batch(self.name, len(batch), seconds)
            share = _SMOOTH if self._seconds else 1.0
            self._seconds += share * (seconds / len(batch) - self._seconds)
            self._finish(list(zip(batch, outcomes, strict=True)))

    def _next_batch(self) -> list[_Queued]:
        """Wait for images, and a little for more that are being decoded; return none when closed."""
        most = self.limits.max_batch
        with self._changed:
            while not self._decoded:
                if self._closed and not self._coming and not self._decoding:
                    return []
                self._changed.wait()
            deadline = time.monotonic() + self.limits.max_wait_ms / 1000
            while len(self._decoded) < most and (self._coming or self._decoding):
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            batch = [self._decoded.popleft() for _ in range(min(most, len(self._decoded)))]
            self._decoded_bytes -= sum(item.bytes for item in batch)
            self._changed.notify_all()
        return batch

    def _outcomes(self, batch: list[_Queued]) -> list[Outcome | None]:
        """Embed and score a batch; outcomes are None where the client is gone."""
        outcomes: list[Outcome | None] = [None] * len(batch)
        wanted = [place for place, item in enumerate(batch) if not item.request.left]
        rows = self._embed([image for place in wanted if (image := batch[place].image)])
        of_head: dict[int, list[tuple[int, NDArray[np.float32]]]] = {}
        for place, row in zip(wanted, rows, strict=True):
            outcomes[place] = RequestError(422, "encoder", "the encoder cannot embed it")
            if row is not None:
                of_head.setdefault(id(batch[place].request.head), []).append((place, row))
        for pairs in of_head.values():
            head = batch[pairs[0][0]].request.head
            try:
                probabilities = head.predict_proba(np.stack([row for _, row in pairs]))
            except PromptBoostError as error:  # such as rows that are not finite
                _log.error("the encoder %s: %s", self.name, error)
                continue
            for (place, row), chances in zip(pairs, probabilities, strict=True):
                outcomes[place] = ScoredImage(row, chances)
        return outcomes

    def _embed(self, images: "list[Image]") -> list[NDArray[np.float32] | None]:
        """Embed images; if that fails, one by one, so that one image does not fail the others."""
        if not images:
            return []
        try:
            return list(self.encoder.encode_images(images))
        except Exception:
            _log.exception("the encoder %s failed on %d images", self.name, len(images))
            if len(images) == 1:
                return [None]
        return [self._embed([image])[0] for image in images]

    def _finish(self, pairs: list[tuple[_Queued, Outcome | None]]) -> None:
        """Store outcomes, and finish requests that are complete."""
        complete: list[_Request] = []
        with self._changed:
            self._waiting -= len(pairs)
            for item, outcome in pairs:
                request = item.request
                request.outcomes[item.place] = outcome
                request.missing -= 1
                if not request.missing and not request.left:
                    complete.append(request)
        for loop in {request.loop for request in complete}:
            mine = [request for request in complete if request.loop is loop]
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_tell, mine)


def _tell(requests: list[_Request]) -> None:
    for request in requests:
        if not request.done.done():
            request.done.set_result(request.outcomes)
