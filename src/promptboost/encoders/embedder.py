"""The embedder: from images and texts to embeddings.

Threads read, hash and decode the next images while the encoders compute. The queue is bounded, so memory
does not grow with the number of images.
"""

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.data.dataset import Dataset, LabeledImage
from promptboost.data.decode import BadImage, ImageError, file_bytes, read_image
from promptboost.data.views import ORIGINAL, draw_view, view_name
from promptboost.encoders.base import Encoder, UnitRows
from promptboost.encoders.registry import load_encoder
from promptboost.errors import EmbeddingError, InputError, SettingError, StoreError
from promptboost.progress import Advance, Progress, no_progress, stage
from promptboost.threads import thread_count

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.encoders.store import EmbeddingStore


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

    It is itself an :class:`~promptboost.Encoder`, whose texts go through the store.

    Parameters
    ----------
    encoder : Encoder
        The model.
    store : EmbeddingStore, optional
        Where embeddings of earlier runs are found and new ones kept; None computes everything.
    progress : callable, optional
        Called as ``progress(stage, done, total)``; see :class:`~promptboost.progress.ProgressBars`.
    workers : int, optional
        Threads that read and decode images, by default those of the process; the result does not
        depend on it.
    device : str, optional
        What was asked for to compute on, so that workers elsewhere are asked for the same.

    Examples
    --------
    >>> from PIL import Image
    >>> embedder = Embedder.open("fake:16-0", cache=False)
    >>> embedder.images([Image.new("RGB", (8, 8), "red")], views=2).shape
    (1, 3, 16)
    >>> embedder.texts(["a cat", "a dog", "a cat"]).matrix.shape
    (2, 16)
    """

    encoder: Encoder
    store: "EmbeddingStore | None" = None
    progress: Progress = no_progress
    workers: int | None = None
    device: str | None = None
    #: Time spent on "images" and on "texts".
    seconds: dict[str, float] = field(default_factory=lambda: {"images": 0.0, "texts": 0.0})
    #: How many views of "images" and how many "texts" were computed, and not found.
    computed: dict[str, int] = field(default_factory=lambda: {"images": 0, "texts": 0})
    # What makes it an encoder.
    id: str = field(init=False, repr=False)
    fingerprint: str = field(init=False, repr=False)
    dim: int = field(init=False, repr=False)
    context_length: int = field(init=False, repr=False)
    causal_text: bool = field(init=False, repr=False)
    logit_scale: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise SettingError(f"workers is {self.workers}; one thread at least reads the images")
        for part in Encoder.__annotations__:
            setattr(self, part, getattr(self.encoder, part))

    @classmethod
    def open(
        cls,
        name: str,
        *,
        cache: bool | str | Path = True,
        progress: Progress = no_progress,
        device: str | None = None,
    ) -> "Embedder":
        """Load an encoder by its name, as :func:`~promptboost.load_encoder` does.

        `cache` is True for the user's store, False for none, or the folder of another one.
        """
        with stage(progress, f"loading {name}"):
            encoder = load_encoder(name, device=device)
        if cache is False:
            return cls(encoder, None, progress, device=device)
        from promptboost.encoders.store import EmbeddingStore

        store = EmbeddingStore(None if cache is True else cache)
        return cls(encoder, store, progress, device=device)

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
        return embed_images([self], images, views, view_scale)[0]

    def originals(self, images: "Dataset | Sequence[Any]") -> UnitRows:
        """Embed each image as it is: shape (n, dim)."""
        return self.images(images)[:, 0]

    def texts(self, texts: Iterable[str]) -> EmbeddedTexts:
        """Embed texts, each distinct one once."""
        distinct = list(dict.fromkeys(texts))
        position = {text: i for i, text in enumerate(distinct)}
        return EmbeddedTexts(position, self._embedded(distinct, self.progress))

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed RGB images as unit rows without the store, which knows images by their files."""
        return self.encoder.encode_images(images)

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Count the tokens of each text, before any truncation."""
        return self.encoder.count_tokens(texts)

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed texts as unit rows."""
        return self._embedded(texts, no_progress)

    def _embedded(self, texts: Sequence[str], progress: Progress) -> UnitRows:
        count = len(texts)
        with self._timed("texts"), stage(progress, "encoding texts", count) as advance:
            if self.store is None:
                return self._computed(texts, advance)
            from promptboost.encoders.store import text_key

            try:
                return self.store.get_or_compute(
                    self.fingerprint,
                    [text_key(text) for text in texts],
                    lambda positions: self._computed([texts[i] for i in positions]),
                    dim=self.dim,
                    batch=STORED_AT_ONCE,
                    name=self.id,
                    advance=advance,
                )
            except StoreError as error:
                self.do_without(error)
                return self._embedded(texts, progress)

    def _computed(self, texts: Sequence[str], advance: Advance | None = None) -> UnitRows:
        """Embed texts, always as many at a time: the last bit of a row can depend on that."""
        self.computed["texts"] += len(texts)
        parts = []
        for start in range(0, max(1, len(texts)), STORED_AT_ONCE):
            some = texts[start : start + STORED_AT_ONCE]
            parts.append(np.asarray(self.encoder.encode_texts(some)))
            if advance is not None:
                advance(len(some))
        return np.concatenate(parts)

    def do_without(self, error: StoreError) -> None:
        """Keep nothing from now on: a store only saves time, and its faults are no reason to stop."""
        self.store = None
        warnings.warn(f"{error} Going on without the embedding store", StoreWarning, stacklevel=3)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - start


def embed_images(
    embedders: Sequence[Embedder], images: "Dataset | Sequence[Any]", views: int, view_scale: float
) -> list[UnitRows]:
    """Embed images with several encoders, as :meth:`Embedder.images`; each image is decoded once."""
    if views < 0:
        raise SettingError(f"views is {views}; give the number of crops of each image, or 0")
    items, first, scale = _labeled(images), embedders[0], (view_scale, 1.0)
    blocks = [[np.zeros((0, 1 + views, embedder.dim), np.float32)] for embedder in embedders]
    with (
        first._timed("images"),
        stage(first.progress, "encoding images", len(items) * (1 + views)) as advance,
    ):
        for block in ImageStream(items, embedders, 1 + views, scale, first.workers, advance):
            if block.bad:
                raise ImageError(block.bad[min(block.bad)])
            for parts, rows in zip(blocks, block.rows, strict=True):
                parts.append(rows)
    return [np.concatenate(parts) for parts in blocks]


def _labeled(images: "Dataset | Sequence[Any]") -> tuple[LabeledImage, ...]:
    if isinstance(images, Dataset):
        return images.images
    if all(isinstance(image, LabeledImage) for image in images):
        return tuple(images)
    from promptboost.data.memory import as_images

    return as_images(images)


# float16 rows, as stores keep them, are well within this of length one.
_LENGTH_TOLERANCE = 1e-3

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


def embed_texts(source: TextSource, texts: list[str]) -> NDArray[np.floating]:
    """Return one row of length one for each text."""
    if isinstance(source, Encoder):
        rows, name = np.asarray(source.encode_texts(texts)), f"The encoder {source.id}"
    elif isinstance(source, Mapping):
        rows, name = _look_up(texts, source), "The mapping"
    elif callable(source):
        rows, name = np.asarray(source(texts)), "The function"
    else:
        missing = [name for name in Encoder.__annotations__ if not hasattr(source, name)]
        raise InputError(
            f"A {type(source).__name__} cannot embed texts: give an encoder (this one lacks "
            f"{', '.join(missing) or 'a method'}), a mapping from text to row, or a function."
        )
    dim = source.dim if isinstance(source, Encoder) else rows.shape[-1] if rows.ndim else 0
    if rows.shape != (len(texts), dim) or not np.issubdtype(rows.dtype, np.floating):
        raise EmbeddingError(
            f"{name} gave {rows.dtype} of shape {rows.shape} for {len(texts)} prompts: it must give "
            "floating-point rows of one length, one a prompt."
        )
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    # Written so that NaN, of which no comparison holds, counts as bad.
    bad = np.flatnonzero(~(np.abs(lengths - 1) <= _LENGTH_TOLERANCE))
    if bad.size:
        raise EmbeddingError(
            f"{name} gave {bad.size} of {len(texts)} rows that are not of length one; the first, of "
            f"length {lengths[bad[0]]:.4g}, is for {texts[bad[0]]!r}. Scale rows with "
            "promptboost.encoders.unit_rows."
        )
    return rows


def _look_up(texts: Sequence[str], vectors: Mapping[str, ArrayLike]) -> NDArray[np.floating]:
    missing = [text for text in texts if text not in vectors]
    if missing:
        raise EmbeddingError(
            f"The mapping has no row for {len(missing)} of {len(texts)} prompts, the first is "
            f"{missing[0]!r}."
        )
    rows = [np.asarray(vectors[text], dtype=np.float64) for text in texts]
    if len({row.shape for row in rows}) > 1:
        raise EmbeddingError("The mapping's rows are not all of one length.")
    return np.stack(rows)


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
        source, count = iter(self.images), max(1, STORED_AT_ONCE // self.views)
        while images := list(islice(source, count)):
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
            rows[positions], missing = _stored_rows(embedder, list(first))
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
            view: draw_view(image, _VIEW_SEED, digest, view, scale=self.scale) if view else image
            for view in sorted(views)
        }

    def _encode(self, block: ImageBlock, decoded: "dict[_Place, Image]") -> None:
        """Encode views for each embedder that has no embedding of them."""
        for embedder, rows, missing in zip(self.embedders, block.rows, block.missing, strict=True):
            wanted = set(missing)
            places = [place for place in decoded if place in wanted]
            for start in range(0, len(places), ENCODED_AT_ONCE):
                some = places[start : start + ENCODED_AT_ONCE]
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
    crops = (view_name(_VIEW_SEED, number, scale) for number in range(1, views))
    return (ORIGINAL, *crops)


def _first(keys: Sequence[bytes]) -> dict[bytes, int]:
    """Return where each key comes first."""
    first: dict[bytes, int] = {}
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    return first


def _stored_rows(embedder: "Embedder", keys: list[bytes]) -> tuple[UnitRows, list[int]]:
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
