"""Embeddings of shards: a worker with its encoder embeds the images or texts of one, into one file.

The file holds what the store needs: digests of images or keys of texts, and their rows, as safetensors,
with what could not be embedded and why in its header. No byte of it depends on the process that wrote it.
The files are then taken into the embedding store, in their order.
"""

import io
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from platform import node
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load, save

from promptboost.data.dataset import LabeledImage
from promptboost.data.decode import BadImage
from promptboost.distributed.containers import (
    Read,
    RefusedImage,
    UnreadImage,
    archive_images,
    fetched,
    table_images,
)
from promptboost.distributed.items import ImageItem, is_url
from promptboost.distributed.shards import read_list
from promptboost.distributed.storage import Storage, StorageError
from promptboost.distributed.unit import Result
from promptboost.encoders.base import UnitRows
from promptboost.encoders.embedder import STORED_AT_ONCE, Embedder, ImageStream, view_keys
from promptboost.encoders.store import EmbeddingStore, text_key
from promptboost.errors import DataError, count

# Files that are on their way from storage elsewhere while others are decoded.
_AHEAD = 32
_THUMBNAIL = 12 * 12 * 3


class ListedImage(msgspec.Struct, frozen=True, omit_defaults=True):
    """An image of a shard that is done, and what is wrong with it."""

    name: str
    label: str = ""
    split: str = ""
    problem: str = ""
    no_thumbnail: bool = False


@dataclass(frozen=True)
class EmbeddedShard:
    """The images of a shard, and the embeddings of those that could be read.

    Attributes
    ----------
    images : list of ListedImage
        All of them.
    digests : uint8 array of shape (n, 16)
        Of the content of each; zeros where there is none.
    rows : float32 array of shape (n, views, dim)
        Zeros where there are none.
    thumbnails : uint8 array of shape (n, 432) or None
        What copies are found by, if that was asked for; zeros where there is none.
    """

    images: list[ListedImage]
    digests: NDArray[np.uint8]
    rows: UnitRows
    thumbnails: NDArray[np.uint8] | None = None

    def to_bytes(self) -> bytes:
        """Return the content of the shard's file."""
        arrays: dict[str, NDArray[Any]] = {"digests": self.digests, "rows": self.rows}
        if self.thumbnails is not None:
            arrays["thumbnails"] = self.thumbnails
        # One entry: the order of several is not fixed.
        about = msgspec.json.encode({"schema": 1, "images": self.images}).decode()
        return save(arrays, {"about": about})

    @classmethod
    def from_bytes(cls, content: bytes) -> "EmbeddedShard":
        """Read the content of a shard's file."""
        arrays = load(content)
        images = msgspec.convert(_about(content)["images"], list[ListedImage])
        return cls(images, arrays["digests"], arrays["rows"], arrays.get("thumbnails"))


def _about(content: bytes) -> dict[str, Any]:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    about: dict[str, Any] = json.loads(header["__metadata__"]["about"])
    return about


def open_images(
    items: Iterable[ImageItem],
    *,
    labelled: bool = False,
    lost: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Read]:
    """Return the images of items in their order; bytes of files elsewhere come ahead of their turn.

    Those that are `lost` are not touched: see :class:`~promptboost.distributed.unit.ItemWorker`.
    Where none of several is given away by its storage, this machine has not the right to read there.
    """
    refused = others = 0
    for image in _opened(items, labelled, lost):
        if isinstance(image, RefusedImage):
            refused, last = refused + 1, image
        else:
            others += 1
        yield image
    if refused > 1 and not others:
        raise StorageError(
            f"none of {count(refused, 'image')} is given to {node()}, such as {last}"
        )


def _opened(items: Iterable[ImageItem], labelled: bool, lost: Mapping[str, str]) -> Iterator[Read]:
    waiting: deque[Read | Future[Read]] = deque()
    with ThreadPoolExecutor(_AHEAD) as threads:
        for item in items:
            if item.holds_many:
                yield from _drained(waiting)
                if item.name in lost:
                    raise DataError(f"{item.name} cannot be read: {lost[item.name]}")
                for image in _contained(item, labelled):
                    if isinstance(image, LabeledImage) and image.id in lost:
                        image = UnreadImage.of(image, lost[image.id])
                    yield image
                continue
            waiting.append(_image(item, threads, lost))
            if len(waiting) > _AHEAD:
                yield _here(waiting.popleft())
        yield from _drained(waiting)


def plain_image() -> LabeledImage:
    """Return an image that nothing is wrong with."""
    content = io.BytesIO()
    Image.new("RGB", (64, 64), "grey").save(content, "PNG")
    return LabeledImage("plain", "", content.getvalue())


def tried_one_by_one(
    items: Iterable[ImageItem],
    lost: Mapping[str, str],
    touch: Callable[[Read], object],
    *,
    labelled: bool = False,
) -> Iterator[str]:
    """Touch images one by one, but for those that are lost; the name of each comes first.

    The first is a plain one, without a name. Of a file that holds many, its own name comes before each
    time that it is read on.
    """
    yield ""
    with suppress(Exception):
        touch(plain_image())
    for item in items:
        if item.name in lost or item.problem:
            continue
        yield item.name
        for image in open_images([item], labelled=labelled, lost=lost):
            if item.holds_many and isinstance(image, LabeledImage):
                yield image.id
            with suppress(Exception):  # what raises is no riddle: it is a line of its own
                touch(image)
            if item.holds_many:
                yield item.name


@contextmanager
def raising(error: Exception) -> Iterator[None]:
    """Raise an error that came first, if another one follows."""
    try:
        yield
    except Exception:
        raise error from None


def _contained(item: ImageItem, labelled: bool) -> Iterator[Read]:
    if item.rows is not None:
        return table_images(item.place, item.rows, name=item.name, labelled=labelled)
    return archive_images(item.place, name=item.name)


def _image(
    item: ImageItem, threads: ThreadPoolExecutor, lost: Mapping[str, str]
) -> "Read | Future[Read]":
    if item.problem:
        return BadImage(item.name, item.problem)
    image = LabeledImage(item.name, item.label, Path(item.place), item.split or None)
    if item.name in lost:
        return UnreadImage.of(image, lost[item.name])
    return threads.submit(fetched, image, item.place) if is_url(item.place) else image


def _here(image: "Read | Future[Read]") -> Read:
    return image.result() if isinstance(image, Future) else image


def _drained(waiting: "deque[Read | Future[Read]]") -> Iterator[Read]:
    while waiting:
        yield _here(waiting.popleft())


class ImageShardWorker:
    """Embeds the images of shards, and crops of each, with an encoder that is loaded once."""

    def __init__(
        self,
        out: str,
        encoder: str,
        device: str | None = None,
        views: int = 0,
        view_scale: float = 0.5,
        thumbnails: bool = False,
        labelled: bool = False,
    ) -> None:
        self._storage = Storage(out)
        # No store: what is in it would change which images are encoded together, and so the last bit.
        self._embedder = Embedder.open(encoder, cache=False, device=device)
        self._views, self._scale = 1 + views, (view_scale, 1.0)
        self._thumbnails, self._labelled = thumbnails, labelled

    def do(self, order: dict[str, Any]) -> Result:
        """Embed one shard; an image that cannot be used is noted in the result."""
        items, lost = read_list(self._storage, order), order.get("lost", {})
        try:
            shard = self._embedded(open_images(items, labelled=self._labelled, lost=lost))
        except MemoryError:
            raise
        except Exception as error:
            shard = self._one_by_one(items, lost, error)
        return Result(shard.to_bytes(), len(shard.images))

    def items(self, order: dict[str, Any]) -> Iterator[str]:
        """Embed the images of a shard one by one, for nothing."""
        items, lost = read_list(self._storage, order), order.get("lost", {})
        return tried_one_by_one(
            items, lost, lambda image: self._embedded([image]), labelled=self._labelled
        )

    def _one_by_one(
        self, items: Sequence[ImageItem], lost: Mapping[str, str], error: Exception
    ) -> EmbeddedShard:
        """Find the images that an encoder fails on; if it fails on a plain one, the fault is not theirs."""
        parts: list[EmbeddedShard] = []
        sound = 0
        for image in open_images(items, labelled=self._labelled, lost=lost):
            try:
                parts.append(self._embedded([image]))
                sound += not parts[-1].images[0].problem
            except Exception as fault:
                assert isinstance(image, LabeledImage)
                unread = UnreadImage.of(image, str(fault) or type(fault).__name__)
                parts.append(self._embedded([unread]))
        if not sound:
            with raising(error):
                self._embedded([plain_image()])
        thumbnails = [part.thumbnails for part in parts if part.thumbnails is not None]
        return EmbeddedShard(
            [part.images[0] for part in parts],
            np.concatenate([part.digests for part in parts]),
            np.concatenate([part.rows for part in parts]),
            np.concatenate(thumbnails) if thumbnails else None,
        )

    def _embedded(self, images: Iterable[Read]) -> EmbeddedShard:
        every: list[ListedImage] = []
        # Where each image of the stream is among all, those that cannot be opened included.
        places: list[int] = []

        def sound() -> Iterator[LabeledImage]:
            for image in images:
                if isinstance(image, BadImage):
                    known = image if isinstance(image, UnreadImage) else UnreadImage("", "")
                    every.append(ListedImage(image.path, known.label, known.split, image.reason))
                    continue
                places.append(len(every))
                every.append(ListedImage(image.id, image.label, image.split or ""))
                yield image

        dim, seen = self._embedder.dim, 0
        rows, digests, thumbnails = [], [], []
        for block in ImageStream(sound(), [self._embedder], self._views, self._scale):
            for index, image in enumerate(block.images):
                place, bad = places[seen + index], block.bad.get(index)
                if bad is not None:
                    every[place] = msgspec.structs.replace(every[place], problem=bad.reason)
                digests.append(b"" if bad is not None else block.digests[index])
                if self._thumbnails:
                    small = None if bad is not None else image.thumbnail()
                    thumbnails.append(small or b"")
                    if small is None:
                        every[place] = msgspec.structs.replace(every[place], no_thumbnail=True)
            rows.append(block.rows[0])
            seen += len(block.images)
        return EmbeddedShard(
            every,
            _spread(_matrix(digests, 16), places, len(every)),
            _spread(
                np.concatenate([np.zeros((0, self._views, dim), np.float32), *rows]),
                places,
                len(every),
            ),
            _spread(_matrix(thumbnails, _THUMBNAIL), places, len(every))
            if self._thumbnails
            else None,
        )


def _matrix(rows: list[bytes], width: int) -> NDArray[np.uint8]:
    content = b"".join(row.ljust(width, b"\0") for row in rows)
    return np.frombuffer(content, np.uint8).reshape(len(rows), width)


def _spread(rows: NDArray[Any], places: list[int], total: int) -> NDArray[Any]:
    """Put rows where they belong among all, and zeros elsewhere."""
    spread = np.zeros((total, *rows.shape[1:]), rows.dtype)
    spread[places] = rows
    return spread


class TextShardWorker:
    """Embeds the texts of shards with an encoder that is loaded once."""

    def __init__(self, out: str, encoder: str, device: str | None = None) -> None:
        self._storage = Storage(out)
        self._encoder = Embedder.open(encoder, cache=False, device=device)

    def do(self, order: dict[str, Any]) -> Result:
        """Embed one shard; a text that the encoder fails on is noted in the result."""
        texts = list(dict.fromkeys(read_list(self._storage, order)))
        lost = order.get("lost", {})
        problems = {index: lost[text] for index, text in enumerate(texts) if text in lost}
        parts = [
            self._rows(texts, start, problems) for start in range(0, len(texts), STORED_AT_ONCE)
        ]
        if len(problems) == len(texts):
            with raising(RuntimeError(next(iter(problems.values())))):
                self._encoder.encode_texts(["a photo."])
        keys = _matrix([text_key(text) for text in texts], 16)
        listed = [[texts[index], problem] for index, problem in sorted(problems.items())]
        about = json.dumps({"schema": 1, "problems": listed})
        content = save({"keys": keys, "rows": np.concatenate(parts)}, {"about": about})
        return Result(content, len(texts))

    def items(self, order: dict[str, Any]) -> Iterator[str]:
        """Embed the texts of a shard one by one, for nothing."""
        lost = order.get("lost", {})
        # What comes first has no name, and is a text that nothing is wrong with.
        for text in ("", *dict.fromkeys(read_list(self._storage, order))):
            if text not in lost:
                yield text
                with suppress(Exception):  # what raises is no riddle: it is a line of its own
                    self._encoder.encode_texts([text or "a photo."])

    def _rows(self, texts: list[str], start: int, problems: dict[int, str]) -> UnitRows:
        """Embed some of the texts, without those that have a problem; note what the encoder fails on."""
        some = texts[start : start + STORED_AT_ONCE]
        sound = [index for index in range(len(some)) if start + index not in problems]
        rows = np.zeros((len(some), self._encoder.dim), np.float32)
        try:
            rows[sound] = self._encoder.encode_texts([some[index] for index in sound])
        except MemoryError:
            raise
        except Exception:
            for index in sound:
                try:
                    rows[index] = self._encoder.encode_texts([some[index]])[0]
                except Exception as fault:
                    problems[start + index] = str(fault) or type(fault).__name__
        return rows


@dataclass
class StoreCount:
    """What the files of shards held, and how much of it was new to the store."""

    items: int = 0
    rows: int = 0
    new: int = 0
    bad: list[BadImage] = field(default_factory=list)


def add_images_to_store(
    store: EmbeddingStore, embedder: Embedder, results: Iterable[bytes], view_scale: float = 0.5
) -> StoreCount:
    """Put the embeddings of shards into the store, one shard after the other."""
    total = StoreCount()
    for content in results:
        shard = EmbeddedShard.from_bytes(content)
        views = shard.rows.shape[1]
        sound = [index for index, image in enumerate(shard.images) if not image.problem]
        total.items += len(sound)
        total.bad += [BadImage(i.name, i.problem) for i in shard.images if i.problem]
        keys = [
            key
            for index in sound
            for key in view_keys(shard.digests[index].tobytes(), views, (view_scale, 1.0))
        ]
        _add(store, embedder, keys, shard.rows[sound].reshape(-1, embedder.dim), total)
    return total


def add_texts_to_store(
    store: EmbeddingStore, embedder: Embedder, results: Iterable[bytes]
) -> StoreCount:
    """Put the embeddings of shards of texts into the store, one shard after the other."""
    total = StoreCount()
    for content in results:
        arrays = load(content)
        problems = dict(_about(content)["problems"])
        unusable = {text_key(text) for text in problems}
        keys = [key.tobytes() for key in arrays["keys"]]
        sound = [index for index, key in enumerate(keys) if key not in unusable]
        total.items += len(sound)
        total.bad += [BadImage(text, why) for text, why in problems.items()]
        _add(store, embedder, [keys[index] for index in sound], arrays["rows"][sound], total)
    return total


def _add(
    store: EmbeddingStore,
    embedder: Embedder,
    keys: list[bytes],
    rows: UnitRows,
    total: StoreCount,
) -> None:
    total.rows += len(keys)
    first = list({key: position for position, key in reversed(list(enumerate(keys)))}.values())
    first.sort()
    distinct = [keys[position] for position in first]
    _, missing = store.find(embedder.fingerprint, distinct, dim=embedder.dim)
    total.new += len(missing)
    for start in range(0, len(missing), STORED_AT_ONCE):
        some = missing[start : start + STORED_AT_ONCE]
        store.add(
            embedder.fingerprint,
            [distinct[position] for position in some],
            rows[[first[position] for position in some]],
            name=embedder.id,
        )
