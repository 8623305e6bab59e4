"""Pictures to vectors: threads decode while the encoder computes, and nothing is computed twice."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from promptboost.data.dataset import Dataset, Picture
from promptboost.data.reading import BadPicture, PictureError, file_bytes, read_picture
from promptboost.data.views import DEFAULT_SCALE, draw_view, view_name
from promptboost.errors import SettingError

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.encoders.base import Encoder

__all__ = ["WORKING_SIDE", "embed_pictures"]

#: Larger pictures are read smaller, with no less than this on their shorter side. No encoder sees
#: as many pixels, and a few dozen camera photographs in full would fill the memory.
WORKING_SIDE = 1024

# A picture costs much more than a small file: little is lost when a run is killed.
_KEPT_AT_ONCE = 256
_ENCODED_AT_ONCE = 64


class Store(Protocol):
    """What is needed of the embedding store."""

    def get_or_compute(
        self,
        fingerprint: str,
        keys: Sequence[bytes],
        compute: Callable[[list[int]], NDArray[np.float32]],
        *,
        dim: int,
        batch: int = 1024,
        name: str = "",
        progress: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        """Give one row for each key, computing those that are missing."""
        ...


def embed_pictures(
    pictures: Dataset | Sequence[Picture],
    encoder: "Encoder",
    *,
    views: Sequence[int] = (0,),
    seed: int = 0,
    scale: tuple[float, float] = DEFAULT_SCALE,
    store: Store | None = None,
    workers: int = 2,
    progress: bool = True,
) -> NDArray[np.float32]:
    """Embed views of pictures.

    Parameters
    ----------
    pictures : Dataset or sequence of Picture
        What to embed.
    encoder : Encoder
        The model.
    views : sequence of int, default=(0,)
        Numbers of the views; 0 is the picture itself.
    seed : int, default=0
        Decides the crops of the other views.
    scale : tuple of float, default=DEFAULT_SCALE
        See :func:`draw_view`.
    store : EmbeddingStore, optional
        Where embeddings of earlier runs are found and new ones kept.
    workers : int, default=2
        Threads that read and decode; the result does not depend on it.
    progress : bool, default=True
        Show a progress bar on a terminal.

    Returns
    -------
    float32 array of shape (n pictures, n views, dim)
        Unit rows.

    Raises
    ------
    PictureError
        If a picture cannot be opened; the message names it.

    Examples
    --------
    >>> from PIL import Image
    >>> from promptboost.testing import FakeEncoder
    >>> red = Picture("0", "warm", Image.new("RGB", (8, 8), "red"))
    >>> embed_pictures([red], FakeEncoder(dim=16), views=(0, 1, 2)).shape
    (1, 3, 16)
    """
    if workers < 1 or len(views) == 0:
        raise SettingError(
            f"workers is {workers} and views {list(views)}; give at least one of each"
        )
    items = tuple(pictures.pictures if isinstance(pictures, Dataset) else pictures)
    with ThreadPoolExecutor(workers) as pool, _bar(len(items) * len(views), progress) as bar:
        digests = list(pool.map(lambda picture: picture.digest(), items))
        job = _Job(items, digests, tuple(views), seed, scale, encoder, pool, bar)
        try:
            rows = job.rows() if store is None else job.stored_rows(store)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return rows.reshape(len(items), len(views), encoder.dim)


@dataclass(frozen=True)
class _Job:
    """Position ``p`` stands for view ``p % n views`` of picture ``p // n views``."""

    pictures: tuple[Picture, ...]
    digests: list[bytes]
    views: tuple[int, ...]
    seed: int
    scale: tuple[float, float]
    encoder: "Encoder"
    pool: ThreadPoolExecutor
    bar: Any

    def rows(self) -> NDArray[np.float32]:
        return self.compute(list(range(len(self.pictures) * len(self.views))))

    def stored_rows(self, store: Store) -> NDArray[np.float32]:
        from promptboost.encoders.store import picture_key

        names = [view_name(self.seed, number, self.scale) for number in self.views]
        keys = [picture_key(digest, name) for digest in self.digests for name in names]
        return store.get_or_compute(
            self.encoder.fingerprint,
            keys,
            self.compute,
            dim=self.encoder.dim,
            batch=_KEPT_AT_ONCE,
            name=self.encoder.id,
            progress=self._found,
        )

    def compute(self, positions: list[int]) -> NDArray[np.float32]:
        parts = [np.zeros((0, self.encoder.dim), dtype=np.float32)]
        images_in_order = self._images(positions)
        while images := list(islice(images_in_order, _ENCODED_AT_ONCE)):
            parts.append(self.encoder.encode_images(images))
            self.bar.update(len(images))
        return np.concatenate(parts)

    def _images(self, positions: list[int]) -> Iterator["Image"]:
        """Give images in order while the pool already works on the next ones."""
        grouped = groupby(positions, key=lambda position: position // len(self.views))
        waiting: deque[Future[list[Image]]] = deque()
        for index, members in grouped:
            numbers = [self.views[position % len(self.views)] for position in members]
            waiting.append(self.pool.submit(self._views, index, numbers))
            # Enough to keep the threads busy during one call of the encoder, and no more: images
            # are large.
            if len(waiting) * len(self.views) > _ENCODED_AT_ONCE and len(waiting) > 1:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()

    def _views(self, index: int, numbers: list[int]) -> list["Image"]:
        digest = self.digests[index]
        image = _decoded(self.pictures[index], digest)
        return [draw_view(image, self.seed, digest, number, scale=self.scale) for number in numbers]

    def _found(self, count: int) -> None:
        # The first report is of rows found in the store: they must not count for the rate. Later
        # ones repeat what the bar already shows.
        if self.bar.n == 0:
            self.bar.initial = self.bar.n = count
            self.bar.refresh()


def _decoded(picture: Picture, digest: bytes) -> "Image":
    source = picture.source
    if isinstance(source, Path):
        source = file_bytes(source, picture.name)
        # A file that changes between hashing and decoding would be stored under a wrong key.
        if replace(picture, source=source).digest() != digest:
            raise PictureError(BadPicture(picture.name, "changed while it was read; run it again"))
    return picture.framed(read_picture(source, picture.name, at_least=WORKING_SIDE))


def _bar(total: int, progress: bool) -> Any:
    from tqdm import tqdm

    # disable=None: shown on a terminal only.
    return tqdm(total=total, desc="encoding", unit=" views", disable=None if progress else True)
