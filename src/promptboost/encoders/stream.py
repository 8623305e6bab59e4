"""Images on their way to embeddings: read, looked up, decoded and encoded, all at the same time.

Threads read, hash and decode the next images while the encoders compute. What waits is bounded, so any
number of images takes the same memory.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from promptboost.data.dataset import LabeledImage
from promptboost.data.decode import BadImage, ImageError, file_bytes, read_image
from promptboost.data.views import draw_view, view_name
from promptboost.encoders.base import UnitRows, batches
from promptboost.errors import StoreError
from promptboost.progress import Advance
from promptboost.threads import thread_count

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.encoders.embedder import Embedder

#: Larger images are read smaller, with no less than this on their shorter side. No encoder sees
#: as many pixels, and a few dozen camera photographs in full would fill the memory.
WORKING_SIDE = 1024
#: Images or texts between two writes: what a killed run can lose.
STORED_AT_ONCE = 256
ENCODED_AT_ONCE = 64
# Crops of an image are the same in all runs, so that runs with other seeds find them in the store.
_VIEW_SEED = 0

# The view of an image that an encoder is to see, by their numbers.
_Place = tuple[int, int]


@dataclass
class ImageBlock:
    """Some images that follow each other, and what became of them."""

    images: list[LabeledImage]
    rows: list[UnitRows]  # of each embedder: shape (images, views, dim), zeros where there is none
    bad: dict[int, BadImage] = field(default_factory=dict)  # by position: those that cannot be read
    digests: list[bytes] = field(default_factory=list)
    # For each embedder what is neither stored nor, by its key, the same as an earlier one here.
    missing: list[list[_Place]] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class ImageStream:
    """Images and the embedders that see them: each is read once for its digest, and decoded at most once.

    Iterating gives the images in order, a block at a time. An image that cannot be read does not stop
    the others.

    Parameters
    ----------
    images : iterable of LabeledImage
        Read a block ahead of what is encoded.
    embedders : sequence of Embedder
        Each with its store, in which embeddings are found and kept.
    views : int
        Views of each image; the first is the image itself.
    scale : (float, float)
        Least and largest share of the image that a view shows.
    workers : int, optional
        Threads that read and decode; by default those of the process.
    advance : callable, optional
        Called with the number of views that the last embedder finished.

    Examples
    --------
    >>> from PIL import Image
    >>> from promptboost.encoders.embedder import Embedder
    >>> red = LabeledImage("0", "", Image.new("RGB", (8, 8), "red"))
    >>> embedder = Embedder.open("fake:16-0", cache=False)
    >>> [block.rows[0].shape for block in ImageStream([red, red], [embedder])]
    [(2, 1, 16)]
    """

    images: Iterable[LabeledImage]
    embedders: "Sequence[Embedder]"
    views: int = 1
    scale: tuple[float, float] = (0.5, 1.0)
    workers: int | None = None
    advance: Advance | None = None

    def __iter__(self) -> Iterator[ImageBlock]:
        with ThreadPoolExecutor(self.workers or thread_count()) as pool:
            try:
                yield from self._encoded(pool)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _encoded(self, pool: ThreadPoolExecutor) -> Iterator[ImageBlock]:
        decoded: dict[_Place, Image] = {}
        for block, index, images in self._decoded(pool):
            if index is not None and isinstance(images, BadImage):
                block.bad[index] = images
            elif index is not None and not isinstance(images, BadImage):
                decoded.update({(index, view): image for view, image in images.items()})
            if index is None or len(decoded) >= ENCODED_AT_ONCE:
                self._encode(block, decoded)
                decoded = {}
            if index is None:
                self._finish(block)
                yield block

    def _decoded(
        self, pool: ThreadPoolExecutor
    ) -> Iterator[tuple[ImageBlock, int | None, "dict[int, Image] | BadImage"]]:
        """Return images in order while the pool works on the next ones; no number ends a block."""
        waiting: deque[tuple[ImageBlock, int | None, Future[dict[int, Image] | BadImage]]] = deque()
        ends: Future[dict[int, Image] | BadImage] = Future()
        ends.set_result({})
        ahead = 0
        for block in self._looked_up(pool):
            wanted: dict[int, set[int]] = {}
            for index, view in sorted(set().union(*block.missing)):
                wanted.setdefault(index, set()).add(view)
            for index, views in wanted.items():
                waiting.append((block, index, pool.submit(self._views, block, index, views)))
                ahead += self.views
                # Enough to keep the threads busy during one call of an encoder, and no more: images
                # are large.
                while waiting[0][1] is None or (ahead > ENCODED_AT_ONCE and len(waiting) > 1):
                    before, number, future = waiting.popleft()
                    ahead -= 0 if number is None else self.views
                    yield before, number, future.result()
            waiting.append((block, None, ends))
            while waiting and waiting[0][1] is None:
                yield waiting.popleft()[0], None, {}
        for block, number, future in waiting:
            yield block, number, future.result()

    def _looked_up(self, pool: ThreadPoolExecutor) -> Iterator[ImageBlock]:
        """Return blocks with what is stored of them, while the next one is read and hashed."""
        coming: deque[tuple[list[LabeledImage], list[Future[bytes | BadImage]]]] = deque()
        for images in batches(self.images, max(1, STORED_AT_ONCE // self.views)):
            coming.append((images, [pool.submit(_digest, image) for image in images]))
            if len(coming) > 1:
                yield self._found(*coming.popleft())
        for part in coming:
            yield self._found(*part)

    def _found(
        self, images: list[LabeledImage], hashed: "list[Future[bytes | BadImage]]"
    ) -> ImageBlock:
        none = [b""] * self.views
        block = ImageBlock(images, [])
        for index, future in enumerate(hashed):
            digest = future.result()
            if isinstance(digest, BadImage):
                block.bad[index], digest = digest, b""
            block.digests.append(digest)
            block.keys += view_keys(digest, self.views, self.scale) if digest else none
        first = {key: position for key, position in _first(block.keys).items() if key}
        positions = list(first.values())
        for embedder in self.embedders:
            rows = np.zeros((len(block.keys), embedder.dim), dtype=np.float32)
            rows[positions], missing = _look_up(embedder, list(first))
            block.rows.append(rows.reshape(len(images), self.views, embedder.dim))
            block.missing.append([divmod(positions[i], self.views) for i in missing])
        if self.advance is not None:
            self.advance(len(block.keys) - len(block.missing[-1]))
        return block

    def _views(
        self, block: ImageBlock, index: int, views: set[int]
    ) -> "dict[int, Image] | BadImage":
        digest = block.digests[index]
        try:
            image = _opened(block.images[index], digest)
        except ImageError as error:
            return error.bad
        return {
            view: draw_view(image, _VIEW_SEED, digest, view, scale=self.scale)
            for view in sorted(views)
        }

    def _encode(self, block: ImageBlock, decoded: "dict[_Place, Image]") -> None:
        """Encode views for each embedder that has no embedding of them."""
        for embedder, rows, missing in zip(self.embedders, block.rows, block.missing, strict=True):
            wanted = set(missing)
            places = [place for place in decoded if place in wanted]
            for some in batches(places, ENCODED_AT_ONCE):
                encoded = embedder.encoder.encode_images([decoded[place] for place in some])
                rows[tuple(np.transpose(some))] = encoded
                embedder.computed["images"] += len(some)
                if self.advance is not None and embedder is self.embedders[-1]:
                    self.advance(len(some))

    def _finish(self, block: ImageBlock) -> None:
        """Store what is new, and give repeated images the embeddings of the first of them."""
        first = _first(block.keys)
        repeated = [first[key] for key in block.keys]
        for number, (embedder, places) in enumerate(
            zip(self.embedders, block.missing, strict=True)
        ):
            rows = block.rows[number].reshape(-1, embedder.dim)
            new = [i * self.views + view for i, view in places if i not in block.bad]
            if new and embedder.store is not None:
                try:
                    rows[new] = embedder.store.add(
                        embedder.fingerprint,
                        [block.keys[position] for position in new],
                        rows[new],
                        name=embedder.id,
                    )
                except StoreError as error:
                    embedder.do_without(error)
            block.rows[number] = rows[repeated].reshape(block.rows[number].shape)
        for index, digest in enumerate(block.digests):
            original = first[block.keys[index * self.views]] // self.views
            if digest and original in block.bad and index not in block.bad:
                reason = block.bad[original].reason
                block.bad[index] = BadImage(block.images[index].name, reason)


def view_keys(digest: bytes, views: int, scale: tuple[float, float]) -> list[bytes]:
    """Return the keys in the store of an image and its crops, by the digest of its content."""
    from promptboost.encoders.store import image_key

    return [image_key(digest, name) for name in _view_names(views, scale)]


@lru_cache(maxsize=16)
def _view_names(views: int, scale: tuple[float, float]) -> tuple[str, ...]:
    return tuple(view_name(_VIEW_SEED, number, scale) for number in range(views))


def _first(keys: Sequence[bytes]) -> dict[bytes, int]:
    """Return where each key comes first."""
    first: dict[bytes, int] = {}
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    return first


def _look_up(embedder: "Embedder", keys: list[bytes]) -> tuple[UnitRows, list[int]]:
    if embedder.store is not None:
        try:
            return embedder.store.find(embedder.fingerprint, keys, dim=embedder.dim)
        except StoreError as error:
            embedder.do_without(error)
    return np.zeros((len(keys), embedder.dim), dtype=np.float32), list(range(len(keys)))


def _digest(image: LabeledImage) -> bytes | BadImage:
    try:
        return image.digest()
    except ImageError as error:
        return error.bad


def _opened(image: LabeledImage, digest: bytes) -> "Image":
    source = image.source
    if isinstance(source, Path):
        source = file_bytes(source, image.name)
        # A file that changes between hashing and decoding would be stored under a wrong key.
        if replace(image, source=source).digest() != digest:
            raise ImageError(BadImage(image.name, "changed while it was read; run it again"))
    return image.framed(read_image(source, image.name, at_least=WORKING_SIDE))
