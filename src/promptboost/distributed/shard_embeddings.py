"""Embeddings of shards: workers write the embeddings of a shard into one file.

It holds rows and digests of images or keys of texts, as safetensors, with the images that could not be read
in its header. No byte of it depends on the process that wrote it. The files are then added to the embedding
store in their order.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from promptboost.data.dataset import LabeledImage
from promptboost.data.decode import BadImage
from promptboost.distributed.engine import UnitResult
from promptboost.distributed.images import Read, UnreadImage, open_images
from promptboost.distributed.shards import read_list
from promptboost.distributed.storage import Storage
from promptboost.encoders.base import UnitRows
from promptboost.encoders.embedder import STORED_AT_ONCE, Embedder, ImageStream, view_keys
from promptboost.encoders.store import EmbeddingStore, text_key

_THUMBNAIL = 12 * 12 * 3


class ListedImage(msgspec.Struct, frozen=True, omit_defaults=True):
    """An image of a finished shard, and its problem if it could not be read."""

    name: str
    label: str = ""
    split: str = ""
    problem: str = ""
    no_thumbnail: bool = False


@dataclass(frozen=True)
class EmbeddedShard:
    """The images of a shard and their embeddings; rows of unreadable images are zero.

    Attributes
    ----------
    images : list of ListedImage
    digests : uint8 array of shape (n, 16)
        Of the content of each image.
    rows : float32 array of shape (n, views, dim)
    thumbnails : uint8 array of shape (n, 432) or None
        For finding copies.
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
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        records = json.loads(header["__metadata__"]["about"])["images"]
        images = msgspec.convert(records, list[ListedImage])
        return cls(images, arrays["digests"], arrays["rows"], arrays.get("thumbnails"))


class ImageShardWorker:
    """Embeds the images of shards, and crops of each."""

    def __init__(
        self,
        out: str,
        encoder: str,
        device: str | None = None,
        views: int = 0,
        view_scale: float = 0.5,
        labeled: bool = False,
    ) -> None:
        self._storage = Storage(out)
        # No store: its content would change which images are encoded together, and so the last bit.
        self._embedder = Embedder.open(encoder, cache=False, device=device)
        self._views, self._scale = 1 + views, (view_scale, 1.0)
        self._labeled = labeled  # with labels and thumbnails

    def do(self, order: dict[str, Any]) -> UnitResult:
        """Embed one shard; the result records unreadable images."""
        images = open_images(read_list(self._storage, order), labeled=self._labeled)
        shard = self._embedded(images)
        return UnitResult(shard.to_bytes(), len(shard.images))

    def _embedded(self, images: Iterable[Read]) -> EmbeddedShard:
        listed: list[ListedImage] = []
        # The index in `listed` of each image of the stream.
        positions: list[int] = []

        def readable() -> Iterator[LabeledImage]:
            for image in images:
                if isinstance(image, BadImage):
                    known = image if isinstance(image, UnreadImage) else UnreadImage("", "")
                    listed.append(ListedImage(image.path, known.label, known.split, image.reason))
                    continue
                positions.append(len(listed))
                listed.append(ListedImage(image.id, image.label, image.split or ""))
                yield image

        streamed, dim = 0, self._embedder.dim
        rows = [np.zeros((0, self._views, dim), np.float32)]
        digests: list[bytes] = []
        thumbnails: list[bytes] = []
        for block in ImageStream(readable(), [self._embedder], self._views, self._scale):
            for index, image in enumerate(block.images):
                position, bad = positions[streamed + index], block.bad.get(index)
                changes: dict[str, Any] = {} if bad is None else {"problem": bad.reason}
                digests.append(b"" if bad is not None else block.digests[index])
                if self._labeled:
                    small = None if bad is not None else image.thumbnail()
                    thumbnails.append(small or b"")
                    changes |= {"no_thumbnail": True} if small is None else {}
                listed[position] = msgspec.structs.replace(listed[position], **changes)
            rows.append(block.rows[0])
            streamed += len(block.images)

        def spread(array: NDArray[Any]) -> NDArray[Any]:
            """Insert zeros for unreadable images."""
            every = np.zeros((len(listed), *array.shape[1:]), array.dtype)
            every[positions] = array
            return every

        return EmbeddedShard(
            listed,
            spread(_matrix(digests, 16)),
            spread(np.concatenate(rows)),
            spread(_matrix(thumbnails, _THUMBNAIL)) if self._labeled else None,
        )


def _matrix(rows: list[bytes], width: int) -> NDArray[np.uint8]:
    content = b"".join(row.ljust(width, b"\0") for row in rows)
    return np.frombuffer(content, np.uint8).reshape(len(rows), width)


class TextShardWorker:
    """Embeds the texts of shards."""

    def __init__(self, out: str, encoder: str, device: str | None = None) -> None:
        self._storage = Storage(out)
        self._encoder = Embedder.open(encoder, cache=False, device=device)

    def do(self, order: dict[str, Any]) -> UnitResult:
        """Embed one shard."""
        texts = list(dict.fromkeys(read_list(self._storage, order)))
        blocks = [
            self._encoder.encode_texts(texts[start : start + STORED_AT_ONCE])
            for start in range(0, len(texts), STORED_AT_ONCE)
        ]
        keys = _matrix([text_key(text) for text in texts], 16)
        return UnitResult(save({"keys": keys, "rows": np.concatenate(blocks)}), len(texts))


@dataclass
class StoreCount:
    """Counts of what was added to the store, and unreadable images."""

    items: int = 0
    rows: int = 0
    new: int = 0
    bad: list[BadImage] = field(default_factory=list)


def add_images_to_store(
    store: EmbeddingStore, embedder: Embedder, results: Iterable[bytes], view_scale: float = 0.5
) -> StoreCount:
    """Add the image embeddings of shards to the store, one shard after the other."""
    total = StoreCount()
    for content in results:
        shard = EmbeddedShard.from_bytes(content)
        views = shard.rows.shape[1]
        readable = [index for index, image in enumerate(shard.images) if not image.problem]
        total.items += len(readable)
        total.bad += [BadImage(i.name, i.problem) for i in shard.images if i.problem]
        keys = [
            key
            for index in readable
            for key in view_keys(shard.digests[index].tobytes(), views, (view_scale, 1.0))
        ]
        _add(store, embedder, keys, shard.rows[readable].reshape(-1, embedder.dim), total)
    return total


def add_texts_to_store(
    store: EmbeddingStore, embedder: Embedder, results: Iterable[bytes]
) -> StoreCount:
    """Add the text embeddings of shards to the store, one shard after the other."""
    total = StoreCount()
    for content in results:
        arrays = load(content)
        keys = [key.tobytes() for key in arrays["keys"]]
        total.items += len(keys)
        _add(store, embedder, keys, arrays["rows"], total)
    return total


def _add(
    store: EmbeddingStore, embedder: Embedder, keys: list[bytes], rows: UnitRows, total: StoreCount
) -> None:
    total.rows += len(keys)
    first: dict[bytes, int] = {}
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    distinct = list(first)
    _, missing = store.find(embedder.fingerprint, distinct, dim=embedder.dim)
    total.new += len(missing)
    for start in range(0, len(missing), STORED_AT_ONCE):
        new_keys = [distinct[index] for index in missing[start : start + STORED_AT_ONCE]]
        new_rows = rows[[first[key] for key in new_keys]]
        store.add(embedder.fingerprint, new_keys, new_rows, name=embedder.id)
