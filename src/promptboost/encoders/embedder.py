"""The embedder: the one way from images and texts to embeddings."""

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.data.dataset import Dataset, LabelledImage
from promptboost.data.decode import BadImage, ImageError, file_bytes, read_image
from promptboost.data.views import draw_view, view_name
from promptboost.encoders.base import Encoder, UnitRows
from promptboost.encoders.registry import load_encoder
from promptboost.encoders.runtime import batches
from promptboost.errors import EmbeddingError, SettingError, StoreError

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.encoders.store import EmbeddingStore

#: Larger images are read smaller, with no less than this on their shorter side. No encoder sees
#: as many pixels, and a few dozen camera photographs in full would fill the memory.
WORKING_SIDE = 1024
#: Images or texts between two writes: what a killed run can lose, and how often the bar moves.
STORED_AT_ONCE = 256
ENCODED_AT_ONCE = 64
# Crops of an image are the same in all runs, so that runs with other seeds find them in the store.
_VIEW_SEED = 0


@dataclass(frozen=True)
class EmbeddedTexts:
    """Embeddings of texts, found by text; calling it returns those of a list."""

    position: dict[str, int]
    matrix: UnitRows

    def __call__(self, texts: Sequence[str]) -> UnitRows:
        """Return one row for each text."""
        return self.matrix[[self.position[text] for text in texts]]


class StoreWarning(UserWarning):
    """Embeddings cannot be kept; they are computed, and lost."""


@dataclass(eq=False)  # two are never the same; a cache may be keyed by one
class Embedder:
    """An encoder with a store: each image, each crop of it and each text is embedded once.

    It is itself an :class:`~promptboost.encoders.Encoder`, whose texts go through the store.

    Parameters
    ----------
    encoder : Encoder
        The model.
    store : EmbeddingStore, optional
        Where embeddings of earlier runs are found and new ones kept; None computes everything.
    progress : bool, default=True
        Show progress bars on a terminal.
    workers : int, default=2
        Threads that read and decode images; the result does not depend on it.
    dtype : {"float32", "float16"}, default="float32"
        Number type of stored texts; half precision is for very large pools.

    Examples
    --------
    >>> from PIL import Image
    >>> embedder = Embedder.open("fake:16-0", cache=False, progress=False)
    >>> embedder.images([Image.new("RGB", (8, 8), "red")], views=2).shape
    (1, 3, 16)
    >>> embedder.texts(["a cat", "a dog", "a cat"]).matrix.shape
    (2, 16)
    """

    encoder: Encoder
    store: "EmbeddingStore | None" = None
    progress: bool = True
    workers: int = 2
    dtype: Literal["float32", "float16"] = "float32"
    #: Time spent on "images" and on "texts".
    seconds: dict[str, float] = field(default_factory=lambda: {"images": 0.0, "texts": 0.0})
    # What makes it an encoder.
    id: str = field(init=False, repr=False)
    fingerprint: str = field(init=False, repr=False)
    dim: int = field(init=False, repr=False)
    context_length: int = field(init=False, repr=False)
    causal_text: bool = field(init=False, repr=False)
    logit_scale: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SettingError(f"workers is {self.workers}; one thread at least reads the images")
        for part in Encoder.__annotations__:
            setattr(self, part, getattr(self.encoder, part))

    @classmethod
    def open(
        cls,
        name: str,
        *,
        cache: bool | str | Path = True,
        progress: bool = True,
        device: str | None = None,
    ) -> "Embedder":
        """Load an encoder by its name, as :func:`~promptboost.encoders.load_encoder` does.

        `cache` is True for the user's store, False for none, or the folder of another one.
        """
        encoder = load_encoder(name, device=device)
        if cache is False:
            return cls(encoder, None, progress)
        from promptboost.encoders.store import EmbeddingStore

        return cls(encoder, EmbeddingStore(None if cache is True else cache), progress)

    def images(
        self,
        images: "Dataset | Sequence[Any]",
        *,
        views: int = 0,
        view_scale: float = 0.5,
    ) -> UnitRows:
        """Embed each image and some random crops of it.

        Parameters
        ----------
        images : Dataset or sequence
            A data set, or images: paths, PIL images, arrays of height × width × 3 bytes.
        views : int, default=0
            Crops of each image. The same image has the same crops in every run.
        view_scale : float, default=0.5
            Least share of the image's area that a crop shows.

        Returns
        -------
        float32 array of shape (n, 1 + views, dim)
            The image itself, then its crops.
        """
        if views < 0:
            raise SettingError(f"views is {views}; give the number of crops of each image, or 0")
        items = _labelled(images)
        with (
            self._timed("images"),
            ThreadPoolExecutor(self.workers) as pool,
            self._bar(len(items) * (1 + views), "encoding", "views") as bar,
        ):
            digests = list(pool.map(lambda image: image.digest(), items))
            scale = (view_scale, 1.0)
            job = _Job(items, digests, 1 + views, scale, self.encoder, pool, bar)
            try:
                try:
                    embeddings = job.embeddings(self.store)
                except StoreError as error:
                    self.do_without(error)
                    bar.reset()
                    embeddings = job.embeddings(None)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return embeddings.reshape(len(items), 1 + views, self.dim)

    def originals(self, images: "Dataset | Sequence[Any]") -> UnitRows:
        """Embed each image as it is: shape (n, dim)."""
        return self.images(images)[:, 0]

    def texts(self, texts: Iterable[str]) -> EmbeddedTexts:
        """Embed texts, each distinct one once."""
        distinct = list(dict.fromkeys(texts))
        position = {text: i for i, text in enumerate(distinct)}
        with self._timed("texts"):
            if self.store is None or not self.progress:
                return EmbeddedTexts(position, self.encode_texts(distinct))
            with self._bar(len(distinct), "texts", "texts", leave=False) as bar:
                return EmbeddedTexts(position, self.encode_texts(distinct, bar.update))

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed RGB images as unit rows without the store, which knows images by their files."""
        return self.encoder.encode_images(images)

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Count the tokens of each text, before any truncation."""
        return self.encoder.count_tokens(texts)

    def encode_texts(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> UnitRows:
        """Embed texts as unit rows; `progress` is told how many more of them are done."""
        if self.store is None:
            return np.asarray(self.encoder.encode_texts(texts))
        from promptboost.encoders.store import text_key

        try:
            return self.store.get_or_compute(
                self.fingerprint,
                [text_key(text) for text in texts],
                lambda positions: self.encoder.encode_texts([texts[i] for i in positions]),
                dim=self.dim,
                batch=STORED_AT_ONCE,
                dtype=self.dtype,
                name=self.id,
                progress=progress,
            )
        except StoreError as error:
            self.do_without(error)
            return np.asarray(self.encoder.encode_texts(texts))

    def do_without(self, error: StoreError) -> None:
        """Keep nothing from now on: a store only saves time, and its faults are no reason to stop."""
        self.store = None
        warnings.warn(f"{error} Going on without the embedding store", StoreWarning, stacklevel=3)

    def _bar(self, total: int, what: str, unit: str, leave: bool = True) -> Any:
        from tqdm import tqdm

        # disable=None: shown on a terminal only.
        hidden = None if self.progress else True
        return tqdm(total=total, desc=what, unit=f" {unit}", disable=hidden, leave=leave)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - start


def _labelled(images: "Dataset | Sequence[Any]") -> tuple[LabelledImage, ...]:
    if isinstance(images, Dataset):
        return images.images
    if all(isinstance(image, LabelledImage) for image in images):
        return tuple(images)
    from promptboost.data.memory import as_images

    return as_images(images)


@dataclass(frozen=True)
class _Job:
    """Position ``p`` stands for view ``p % views`` of image ``p // views``; view 0 is the image."""

    images: tuple[LabelledImage, ...]
    digests: list[bytes]
    views: int
    scale: tuple[float, float]
    encoder: Encoder
    pool: ThreadPoolExecutor
    bar: Any

    def embeddings(self, store: "EmbeddingStore | None") -> UnitRows:
        if store is None:
            return self.compute(list(range(len(self.images) * self.views)))
        from promptboost.encoders.store import image_key

        names = [view_name(_VIEW_SEED, number, self.scale) for number in range(self.views)]
        keys = [image_key(digest, name) for digest in self.digests for name in names]
        return store.get_or_compute(
            self.encoder.fingerprint,
            keys,
            self.compute,
            dim=self.encoder.dim,
            batch=STORED_AT_ONCE,
            name=self.encoder.id,
            progress=self._found,
        )

    def compute(self, positions: list[int]) -> UnitRows:
        parts = [np.zeros((0, self.encoder.dim), dtype=np.float32)]
        for images in batches(self._decoded(positions), ENCODED_AT_ONCE):
            parts.append(self.encoder.encode_images(images))
            self.bar.update(len(images))
        return np.concatenate(parts)

    def _decoded(self, positions: list[int]) -> Iterator["Image"]:
        """Return images in order while the pool already works on the next ones."""
        waiting: deque[Future[list[Image]]] = deque()
        for index, members in groupby(positions, key=lambda position: position // self.views):
            numbers = [position % self.views for position in members]
            waiting.append(self.pool.submit(self._views, index, numbers))
            # Enough to keep the threads busy during one call of the encoder, and no more: images
            # are large.
            if len(waiting) * self.views > ENCODED_AT_ONCE and len(waiting) > 1:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()

    def _views(self, index: int, numbers: list[int]) -> list["Image"]:
        digest = self.digests[index]
        image = _decoded(self.images[index], digest)
        return [draw_view(image, _VIEW_SEED, digest, n, scale=self.scale) for n in numbers]

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


TextSource = Encoder | Mapping[str, ArrayLike] | Callable[[list[str]], ArrayLike]

# Copies of an estimator, such as a grid search makes, share the model that a name stands for.
_loaded = lru_cache(maxsize=4)(load_encoder)


def text_source(encoder: object) -> TextSource | None:
    """Turn an encoder, its name, a table of rows by text, or a function, into what embeds texts."""
    if isinstance(encoder, str):
        return _loaded(encoder)
    if encoder is None or isinstance(encoder, Encoder | Mapping) or callable(encoder):
        return encoder
    raise SettingError(
        f"encoder is {encoder!r}: give an encoder or its name, a mapping from text to row, a "
        "function that embeds a list of texts, or None"
    )


def embed_texts(source: TextSource, texts: list[str]) -> NDArray[Any]:
    """Return one row for each text."""
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
