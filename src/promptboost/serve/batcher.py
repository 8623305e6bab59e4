"""The batcher: decodes the images of all requests ahead, and embeds them in common batches."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptboost.data.decode import ImageError, read_image
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import WORKING_SIDE
from promptboost.errors import EncoderError, PromptBoostError
from promptboost.run.predict import ScoredRow
from promptboost.serve.limits import MIB, Limits, RequestError
from promptboost.serve.metrics import ServerMetrics

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.model.head import Head
    from promptboost.serve.messages import NamedImage

_log = logging.getLogger(__name__)
# Bytes of decoded images that may wait for the encoder, without those being decoded.
_DECODED = 32 * MIB
# An image to warm up with: the decoder is loaded along with the encoder.
_SMALLEST = b"P6 1 1 255 \xff\xff\xff"
_DECODERS = 2  # threads


Outcome = ScoredRow | RequestError


@dataclass(eq=False, slots=True)
class _Decoded:
    """A decoded image that waits for the encoder; its outcome is cancelled if the client is gone."""

    name: str
    image: "Image"
    head: "Head"
    outcome: "asyncio.Future[Outcome]"

    @property
    def bytes(self) -> int:
        return 3 * self.image.width * self.image.height


class Batcher:
    """An encoder, the thread that runs it, and threads that decode the next images.

    Runs with the same encoder share its batches; each image is then scored by the head of its run. `name`
    is that of the encoder in metrics.
    """

    def __init__(self, encoder: Encoder, limits: Limits, metrics: ServerMetrics, name: str) -> None:
        self.encoder, self.limits, self.metrics, self.name = encoder, limits, metrics, name
        self.ready = False  # the encoder has embedded an image
        self._encoder_thread = ThreadPoolExecutor(1)
        # All others are used in the event loop only.
        self._room = asyncio.Semaphore(3 * limits.max_batch)  # one batch in the encoder, two ahead
        self._decoders = asyncio.Semaphore(_DECODERS)
        self._has_memory, self._arrived = asyncio.Event(), asyncio.Event()
        self._has_memory.set()
        self._waiting = self._decoding = self._decoded_bytes = 0
        self._decoded: deque[_Decoded] = deque()
        self._embedding: asyncio.Task[None] | None = None

    def start(self) -> "Future[None]":
        """Embed a first image in the thread of the encoder; it is ready once that is done."""
        self.metrics.queue_images.labels(self.name).set_function(lambda: self._waiting)
        return self._encoder_thread.submit(self._warm_up)

    def _warm_up(self) -> None:
        if self._embed([read_image(_SMALLEST)])[0] is None:
            raise EncoderError(f"{self.encoder.id} cannot embed an image")
        self.ready = True

    def retire(self) -> None:
        """Remove it from the metrics; running requests are finished."""
        self.metrics.queue_images.remove(self.name)

    # --- in the event loop ---------------------------------------------------------------------

    async def answer(self, images: "Sequence[NamedImage]", head: "Head") -> list[Outcome]:
        """Return the probabilities of each image, or an error.

        An image is its name, for errors, and a function that returns the bytes of its file.
        """
        if not self.ready:
            raise RequestError(503, "not ready", "the server is not ready yet", retry_after=1)
        if self._waiting + len(images) > self.limits.max_queue:
            raise RequestError(
                429,
                "queue",
                f"the queue has {self._waiting} of at most {self.limits.max_queue} images: try again later",
                retry_after=1,
            )
        self._waiting += len(images)
        try:
            return await asyncio.gather(*(self._score(*image, head) for image in images))
        finally:
            self._waiting -= len(images)

    async def _score(self, name: str, read: Callable[[], bytes], head: "Head") -> Outcome:
        """Decode an image when there is room to keep it, and wait for its batch."""
        loop = asyncio.get_running_loop()
        async with self._room:
            self._decoding += 1
            try:
                async with asyncio.timeout(self.limits.decode_seconds):
                    image = await self._decode_in_thread(name, read)
            except TimeoutError:
                return RequestError(503, "busy", "takes too long to decode: try again later")
            except RequestError as error:
                return error
            finally:
                self._decoding -= 1
                self._arrived.set()
            decoded = _Decoded(name, image, head, loop.create_future())
            self._decoded.append(decoded)
            self._decoded_bytes += decoded.bytes
            if self._decoded_bytes >= _DECODED:
                self._has_memory.clear()
            if self._embedding is None or self._embedding.done():
                self._embedding = loop.create_task(self._embed_decoded())
            return await decoded.outcome

    async def _decode_in_thread(self, name: str, read: Callable[[], bytes]) -> "Image":
        """Decode an image in a thread that does not delay the end of the process."""
        loop, decoded = asyncio.get_running_loop(), Future["Image"]()
        decoded.set_running_or_notify_cancel()

        def work() -> None:
            try:
                decoded.set_result(self._decode(name, read))
            except BaseException as error:
                decoded.set_exception(error)
            with suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(self._decoders.release)

        await self._decoders.acquire()
        try:
            await self._has_memory.wait()
            threading.Thread(target=work, daemon=True).start()
        except BaseException:
            self._decoders.release()
            raise
        return await asyncio.wrap_future(decoded)

    def _take(self) -> _Decoded:
        decoded = self._decoded.popleft()
        self._decoded_bytes -= decoded.bytes
        if self._decoded_bytes < _DECODED:
            self._has_memory.set()
        return decoded

    async def _embed_decoded(self) -> None:
        """Embed batches until no decoded image is left; wait a little for images being decoded."""
        loop, limits = asyncio.get_running_loop(), self.limits
        while self._decoded:
            with suppress(TimeoutError):
                async with asyncio.timeout(limits.max_wait_ms / 1000):
                    while len(self._decoded) < limits.max_batch and self._decoding:
                        self._arrived.clear()
                        await self._arrived.wait()
            taken = [self._take() for _ in range(min(limits.max_batch, len(self._decoded)))]
            batch = [decoded for decoded in taken if not decoded.outcome.done()]
            if not batch:
                continue
            start = time.perf_counter()
            try:
                outcomes = await loop.run_in_executor(self._encoder_thread, self._outcomes, batch)
            except Exception:  # the next batches must be embedded
                _log.exception("a batch of %d images failed", len(batch))
                fault = RequestError(500, "fault", "a fault in the server; see its log")
                outcomes = [fault] * len(batch)
            self.metrics.batch_images.labels(self.name).observe(len(batch))
            self.metrics.encoder_seconds.labels(self.name).inc(time.perf_counter() - start)
            for decoded, outcome in zip(batch, outcomes, strict=True):
                if not decoded.outcome.done():
                    decoded.outcome.set_result(outcome)

    # --- in the threads ------------------------------------------------------------------------

    def _decode(self, name: str, read: Callable[[], bytes]) -> "Image":
        most = self.limits.max_image_memory
        try:
            return read_image(read(), name, at_least=WORKING_SIDE, most=most)
        except ImageError as error:
            raise unusable_image(error, error.bad.reason) from None
        except RequestError:
            raise
        except Exception:
            _log.exception("an image could not be decoded")
            raise RequestError(422, "image", "cannot be decoded") from None

    def _outcomes(self, batch: list[_Decoded]) -> list[Outcome]:
        """Embed a batch, and score it by the head of each run."""
        rows = self._embed([decoded.image for decoded in batch])
        error = RequestError(422, "encoder", "the encoder cannot embed it")
        outcomes: list[Outcome] = [error] * len(batch)
        for head in {id(decoded.head): decoded.head for decoded in batch}.values():
            scored = {
                index: row
                for index, (decoded, row) in enumerate(zip(batch, rows, strict=True))
                if decoded.head is head and row is not None
            }
            if not scored:
                continue
            try:
                probabilities = head.predict_proba(np.stack(list(scored.values())))
            except PromptBoostError as error:  # such as rows that are not finite
                _log.error("the encoder %s: %s", self.name, error)
                continue
            for (index, row), values in zip(scored.items(), probabilities, strict=True):
                outcomes[index] = ScoredRow(batch[index].name, (row,), values)
        return outcomes

    def _embed(self, images: "list[Image]") -> list[NDArray[np.float32] | None]:
        """Embed images; if that fails, one by one, so that one image does not fail the others."""
        try:
            return list(self.encoder.encode_images(images))
        except Exception:
            _log.exception("the encoder %s failed on %d images", self.name, len(images))
            if len(images) == 1:
                return [None]
        return [self._embed([image])[0] for image in images]


def unusable_image(error: ImageError, message: str) -> RequestError:
    """Return the response to an image that cannot be used."""
    status, reason = (413, "pixels") if error.bad.too_large else (422, "image")
    return RequestError(status, reason, message)
