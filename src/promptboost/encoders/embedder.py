"""What people pass for images and encoders, told apart."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.data.dataset import Dataset, LabelledImage
from promptboost.data.decode import BadImage, ImageError, file_bytes, read_image
from promptboost.data.views import DEFAULT_SCALE, draw_view, view_name
from promptboost.encoders.base import Encoder, UnitRows
from promptboost.encoders.registry import load_encoder
from promptboost.errors import EmbeddingError, SettingError

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.data import Dataset
    from promptboost.encoders.base import Encoder
    from promptboost.encoders.store.store import EmbeddingStore

__all__ = [
    "WORKING_SIDE",
    "embed_images",
    "Embedder",
    "TextRows",
    "TextSource",
    "text_source",
]

#: Larger images are read smaller, with no less than this on their shorter side. No encoder sees
#: as many pixels, and a few dozen camera photographs in full would fill the memory.
WORKING_SIDE = 1024

# An image costs much more than a small file: little is lost when a run is killed.
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
        """Return one row for each key, computing those that are missing."""
        ...


def embed_images(
    images: Dataset | Sequence[LabelledImage],
    encoder: "Encoder",
    *,
    views: Sequence[int] = (0,),
    seed: int = 0,
    scale: tuple[float, float] = DEFAULT_SCALE,
    store: Store | None = None,
    workers: int = 2,
    progress: bool = True,
) -> NDArray[np.float32]:
    """Embed views of images.

    Parameters
    ----------
    images : Dataset or sequence of LabelledImage
        What to embed.
    encoder : Encoder
        The model.
    views : sequence of int, default=(0,)
        Numbers of the views; 0 is the image itself.
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
    float32 array of shape (n images, n views, dim)
        Unit rows.

    Raises
    ------
    ImageError
        If an image cannot be opened; the message names it.

    Examples
    --------
    >>> from PIL import Image
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> red = LabelledImage("0", "warm", Image.new("RGB", (8, 8), "red"))
    >>> embed_images([red], FakeEncoder(dim=16), views=(0, 1, 2)).shape
    (1, 3, 16)
    """
    if workers < 1 or len(views) == 0:
        raise SettingError(
            f"workers is {workers} and views {list(views)}; give at least one of each"
        )
    items = tuple(images.images if isinstance(images, Dataset) else images)
    with ThreadPoolExecutor(workers) as pool, _bar(len(items) * len(views), progress) as bar:
        digests = list(pool.map(lambda image: image.digest(), items))
        job = _Job(items, digests, tuple(views), seed, scale, encoder, pool, bar)
        try:
            rows = job.rows() if store is None else job.stored_rows(store)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return rows.reshape(len(items), len(views), encoder.dim)


@dataclass(frozen=True)
class _Job:
    """Position ``p`` stands for view ``p % n views`` of image ``p // n views``."""

    images: tuple[LabelledImage, ...]
    digests: list[bytes]
    views: tuple[int, ...]
    seed: int
    scale: tuple[float, float]
    encoder: "Encoder"
    pool: ThreadPoolExecutor
    bar: Any

    def rows(self) -> NDArray[np.float32]:
        return self.compute(list(range(len(self.images) * len(self.views))))

    def stored_rows(self, store: Store) -> NDArray[np.float32]:
        from promptboost.encoders.store.segment import image_key

        names = [view_name(self.seed, number, self.scale) for number in self.views]
        keys = [image_key(digest, name) for digest in self.digests for name in names]
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
        """Return images in order while the pool already works on the next ones."""
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
        image = _decoded(self.images[index], digest)
        return [draw_view(image, self.seed, digest, number, scale=self.scale) for number in numbers]

    def _found(self, count: int) -> None:
        # The first report is of rows found in the store: they must not count for the rate. Later
        # ones repeat what the bar already shows.
        if self.bar.n == 0:
            self.bar.initial = self.bar.n = count
            self.bar.refresh()


def _decoded(image: LabelledImage, digest: bytes) -> "Image":
    source = image.source
    if isinstance(source, Path):
        source = file_bytes(source, image.name)
        # A file that changes between hashing and decoding would be stored under a wrong key.
        if replace(image, source=source).digest() != digest:
            raise ImageError(BadImage(image.name, "changed while it was read; run it again"))
    return image.framed(read_image(source, image.name, at_least=WORKING_SIDE))


def _bar(total: int, progress: bool) -> Any:
    from tqdm import tqdm

    # disable=None: shown on a terminal only.
    return tqdm(total=total, desc="encoding", unit=" views", disable=None if progress else True)


# Crops of an image are the same in all runs, so that runs with other seeds find them in the store.
_VIEW_SEED = 0


@dataclass(frozen=True)
class TextRows:
    """Rows of texts, found by text; calling it gives the rows of a list.

    Examples
    --------
    >>> import numpy as np
    >>> rows = TextRows({"a cat": 0, "a dog": 1}, np.eye(2, dtype=np.float32))
    >>> rows(["a dog", "a dog"])
    array([[0., 1.],
           [0., 1.]], dtype=float32)
    """

    position: dict[str, int]
    matrix: UnitRows

    def __call__(self, texts: Sequence[str]) -> UnitRows:
        """Return one row for each text."""
        return self.matrix[[self.position[text] for text in texts]]


@dataclass
class Embedder:
    """An encoder with a store, that knows how long it took.

    Attributes
    ----------
    encoder : Encoder
        The model itself.
    store : EmbeddingStore or None
        Where rows of earlier runs are found and new ones kept; None computes everything.
    progress : bool
        Show progress bars on a terminal.
    seconds : dict of str to float
        Time spent on ``"pictures"`` and on ``"texts"``.

    Examples
    --------
    >>> embedder = Embedder.open("fake:16-0", cache=False, progress=False)
    >>> embedder.texts(["a cat", "a dog", "a cat"]).matrix.shape
    (2, 16)
    """

    encoder: Encoder
    store: "EmbeddingStore | None" = None
    progress: bool = True
    seconds: dict[str, float] = field(default_factory=lambda: {"pictures": 0.0, "texts": 0.0})
    # What makes it an encoder.
    id: str = field(init=False, repr=False)
    fingerprint: str = field(init=False, repr=False)
    dim: int = field(init=False, repr=False)
    context_length: int = field(init=False, repr=False)
    causal_text: bool = field(init=False, repr=False)
    logit_scale: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.id = self.encoder.id
        self.fingerprint = self.encoder.fingerprint
        self.dim = self.encoder.dim
        self.context_length = self.encoder.context_length
        self.causal_text = self.encoder.causal_text
        self.logit_scale = self.encoder.logit_scale

    @classmethod
    def open(
        cls,
        name: str,
        *,
        cache: bool | str | Path = True,
        progress: bool = True,
        device: str | None = None,
    ) -> "Embedder":
        """Load an encoder by its name, with the user's store, none, or that of a folder."""
        encoder = load_encoder(name, device=device)
        if cache is False:
            return cls(encoder, None, progress)
        from promptboost.encoders.store import EmbeddingStore

        return cls(encoder, EmbeddingStore(None if cache is True else cache), progress)

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed texts as unit rows, through the store."""
        return self._encode(list(texts), progress=False)

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed RGB images as unit rows without the store, which knows images by their files."""
        return self.encoder.encode_images(images)

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Count the tokens of each text, before any truncation."""
        return self.encoder.count_tokens(texts)

    def images(self, data: "Dataset", *, views: int = 0, view_scale: float = 0.5) -> UnitRows:
        """Embed each image and some crops of it.

        Returns
        -------
        float32 array of shape (n, 1 + views, dim)
            The image itself, then its crops.
        """
        with self._timed("pictures"):
            return embed_images(
                data,
                self.encoder,
                views=range(1 + views),
                seed=_VIEW_SEED,
                scale=(view_scale, 1.0),
                store=self.store,
                progress=self.progress,
            )

    def originals(self, data: "Dataset") -> UnitRows:
        """Embed each image as it is: shape (n, dim)."""
        return self.images(data)[:, 0]

    def texts(self, texts: Iterable[str]) -> TextRows:
        """Embed texts, each distinct one once."""
        distinct = list(dict.fromkeys(texts))
        position = {text: i for i, text in enumerate(distinct)}
        with self._timed("texts"):
            return TextRows(position, self._encode(distinct, progress=self.progress))

    def _encode(self, texts: list[str], *, progress: bool) -> UnitRows:
        if self.store is None:
            return np.asarray(self.encoder.encode_texts(texts))
        from tqdm import tqdm

        from promptboost.encoders.store.store import StoredEncoder

        hidden = None if progress else True  # None: shown on a terminal only
        # 256 texts between two writes: what a killed run can lose, and how often the bar moves.
        with tqdm(
            total=len(texts), desc="texts", unit=" texts", disable=hidden, leave=False
        ) as bar:
            stored = StoredEncoder(self.encoder, self.store, batch=256, progress=bar.update)
            return stored.encode_texts(texts)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - start


TextSource = Encoder | Mapping[str, ArrayLike] | Callable[[list[str]], ArrayLike]

# Copies of an estimator, such as a grid search makes, share the model that a name stands for.
_loaded = lru_cache(maxsize=2)(load_encoder)


def text_source(encoder: object) -> TextSource | None:
    """Turn an encoder, its name, a table of rows by text, or a function, into what embeds texts.

    Examples
    --------
    >>> text_source("fake:16-0").dim
    16
    >>> text_source(3)
    Traceback (most recent call last):
        ...
    promptboost.errors.SettingError: encoder is 3: give an encoder or its name, a mapping from text \
to row, a function that embeds a list of texts, or None
    """
    if encoder is None or isinstance(encoder, Encoder | Mapping):
        return encoder
    if isinstance(encoder, str):
        return _loaded(encoder)
    if callable(encoder):
        return encoder
    raise SettingError(
        f"encoder is {encoder!r}: give an encoder or its name, a mapping from text to row, a "
        "function that embeds a list of texts, or None"
    )


def embed_texts(source: TextSource, texts: list[str]) -> NDArray[Any]:
    """Return one row for each text.

    Examples
    --------
    >>> embed_texts({"a cat": [0.6, 0.8]}, ["a cat", "a cat"])
    array([[0.6, 0.8],
           [0.6, 0.8]])
    """
    if isinstance(source, Encoder):
        return np.asarray(source.encode_texts(texts))
    if callable(source):
        return np.asarray(source(texts))
    missing = [text for text in texts if text not in source]
    if missing:
        raise EmbeddingError(
            f"the mapping has no row for {len(missing)} of {len(texts)} texts, the first is "
            f"{missing[0]!r}"
        )
    return np.stack([np.asarray(source[text], dtype=np.float64) for text in texts])
