"""Embeddings of shards: one safetensors file per shard, added to the embedding store in their order.

A file holds rows and the digests of images or keys of texts; unreadable images are in its header. No byte
depends on the process that wrote it.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from promptboost.data.dataset import LabeledImage
from promptboost.data.decode import BadImage
from promptboost.distributed.engine import (
    Job,
    Placement,
    Say,
    ShardPlan,
    Worker,
    map_shards,
    read_shard,
)
from promptboost.distributed.images import (
    SHARD_IMAGES,
    ImageItem,
    UnreadImage,
    cut,
    list_items,
    open_images,
)
from promptboost.distributed.storage import is_url
from promptboost.encoders.base import UnitRows
from promptboost.encoders.embedder import STORED_AT_ONCE, Embedder, ImageStream, view_keys
from promptboost.encoders.store import EmbeddingStore, text_key
from promptboost.errors import DataError
from promptboost.io import cache_folder
from promptboost.progress import Progress

_THUMBNAIL = 12 * 12 * 3
_VIEW_SCALE = 0.5, 1.0


class ListedImage(msgspec.Struct, frozen=True, omit_defaults=True):
    """An image of a finished shard, and its problem if it could not be read."""

    name: str
    label: str = ""
    split: str = ""
    problem: str = ""
    no_thumbnail: bool = False


@dataclass(frozen=True)
class EmbeddedShard:
    """The images of a shard and their embeddings; rows of unreadable images are zero."""

    images: list[ListedImage]
    digests: NDArray[np.uint8]  # of the content of each image, (n, 16)
    rows: UnitRows  # (n, views, dim)
    thumbnails: NDArray[np.uint8] | None = None  # for finding copies, (n, 432)

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
        self, encoder: str, device: str | None = None, views: int = 0, labeled: bool = False
    ) -> None:
        # No store: its content would change which images are encoded together, and so the last bit.
        self._embedder = Embedder.open(encoder, cache=False, device=device)
        self._views = 1 + views
        self._labeled = labeled  # with labels and thumbnails

    def do(self, order: bytes) -> bytes:
        """Embed one shard; the result records unreadable images."""
        listed: list[ListedImage] = []
        # The index in `listed` of each image of the stream.
        positions: list[int] = []

        def readable() -> Iterator[LabeledImage]:
            for image in open_images(read_shard(order, ImageItem)):
                if isinstance(image, UnreadImage):
                    listed.append(ListedImage(image.path, image.label, image.split, image.reason))
                    continue
                positions.append(len(listed))
                listed.append(ListedImage(image.id, image.label, image.split or ""))
                yield image

        rows = [np.zeros((0, self._views, self._embedder.dim), np.float32)]
        digests: list[bytes] = []
        thumbnails: list[bytes] = []
        for block in ImageStream(readable(), [self._embedder], self._views, _VIEW_SCALE):
            rows.append(block.rows[0])
            for index, image in enumerate(block.images):
                position, bad = positions[len(digests)], block.bad.get(index)
                changes: dict[str, Any] = {} if bad is None else {"problem": bad.reason}
                digests.append(b"" if bad is not None else block.digests[index])
                if self._labeled:
                    small = None if bad is not None else image.thumbnail()
                    thumbnails.append(small or b"")
                    changes |= {"no_thumbnail": True} if small is None else {}
                listed[position] = msgspec.structs.replace(listed[position], **changes)

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
        ).to_bytes()


def _matrix(rows: list[bytes], width: int) -> NDArray[np.uint8]:
    content = b"".join(row.ljust(width, b"\0") for row in rows)
    return np.frombuffer(content, np.uint8).reshape(len(rows), width)


class TextShardWorker:
    """Embeds the texts of shards: rows with their keys, or with `grid` rows on the grid of a fit."""

    def __init__(
        self, encoder: str, device: str | None = None, grid: bool = False, cache: bool = False
    ) -> None:
        self._embedder = Embedder.open(encoder, cache=cache, device=device)
        self._grid = grid

    def do(self, order: bytes) -> bytes:
        """Embed one shard."""
        texts = list(dict.fromkeys(read_shard(order, str)))
        # In the batches of a fit in one process, on which the last bit of a row can depend.
        blocks = [
            self._embedder.encode_texts(texts[start : start + STORED_AT_ONCE])
            for start in range(0, len(texts), STORED_AT_ONCE)
        ]
        rows = np.concatenate(blocks)
        if not self._grid:
            return save({"keys": _matrix([text_key(text) for text in texts], 16), "rows": rows})
        from promptboost.boosting.grid import to_grid

        on_grid = to_grid(rows, name=f"texts such as {texts[0]!r}")
        return np.ascontiguousarray(on_grid, dtype="<i2").tobytes()


def shard_storage(placement: Placement) -> str:
    """Return the folder or URL of shard results; by default next to the store."""
    out = placement.storage or str(cache_folder() / "shards")
    return out if is_url(out) else os.path.abspath(out)


def map_images(
    source: str,
    embedder: Embedder,
    placement: Placement,
    *,
    views: int = 0,
    labeled: bool = False,
    progress: Progress,
    say: Say,
) -> ShardPlan:
    """Embed the images of a source in shards; `labeled` ones with labels and thumbnails."""
    size = placement.per_shard or SHARD_IMAGES
    plan = map_shards(
        cut(list_items(source, labeled=labeled, table_rows=size), size),
        _job(ImageShardWorker, embedder, shard_storage(placement), views=views, labeled=labeled),
        [embedder.fingerprint, f"views {views}", f"labeled {labeled}"],
        placement,
        of="images",
        ending=".images.safetensors",
        title="embedding images",
        progress=progress,
        say=say,
    )
    if not plan.units and placement.share is None:
        raise DataError(f"there are no images in {source}")
    return plan


def map_texts(
    lists: Iterable[Sequence[str]],
    embedder: Embedder,
    placement: Placement,
    *,
    grid_folder: Path | None = None,
    progress: Progress,
    say: Say,
) -> ShardPlan:
    """Embed lists of texts, each in one shard; for the grid of a fit into a folder of the run."""
    if grid_folder is None:
        job, ending = (
            _job(TextShardWorker, embedder, shard_storage(placement)),
            ".texts.safetensors",
        )
    else:
        cache, out = embedder.store is not None, str(grid_folder.absolute())
        job, ending = _job(TextShardWorker, embedder, out, grid=True, cache=cache), ".int16"
    return map_shards(
        lists,
        job,
        [embedder.fingerprint],
        placement,
        of="texts",
        ending=ending,
        title="encoding texts",
        progress=progress,
        say=say,
    )


def _job(worker: type[Worker], embedder: Embedder, out: str, **settings: Any) -> Job:
    settings |= {"encoder": embedder.id, "device": embedder.device}
    return Job(f"{__name__}:{worker.__name__}", settings, out, device=embedder.device)


@dataclass
class StoreCount:
    """Counts of what was added to the store, and unreadable images."""

    items: int = 0
    rows: int = 0
    new: int = 0
    bad: list[BadImage] = field(default_factory=list)


def add_images_to_store(
    store: EmbeddingStore, embedder: Embedder, results: Iterable[bytes]
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
            for key in view_keys(shard.digests[index].tobytes(), views, _VIEW_SCALE)
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
    def new_rows(positions: list[int]) -> UnitRows:
        total.new += len(positions)
        return rows[positions]

    total.rows += len(keys)
    store.get_or_compute(
        embedder.fingerprint,
        keys,
        new_rows,
        dim=embedder.dim,
        batch=STORED_AT_ONCE,
        name=embedder.id,
    )
