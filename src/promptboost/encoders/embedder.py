"""The embedder: from images and texts to embeddings.

Threads read, hash, decode and preprocess the next images. A thread of its own runs the networks, while the
caller looks up and stores embeddings. All queues are bounded.
"""

import os
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
from promptboost.data.decode import BadImage, ImageError, read_file, read_image
from promptboost.data.views import draw_view
from promptboost.encoders.base import (
    Encoder,
    Item,
    StagedEncoder,
    UnitRows,
    lacking_parts,
)
from promptboost.encoders.registry import load_encoder
from promptboost.errors import EmbeddingError, InputError, SettingError, StoreError
from promptboost.progress import Advance, Progress, no_progress, stage
from promptboost.threads import thread_count

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.encoders.group import EncoderGroup
    from promptboost.encoders.store import EmbeddingStore


#: Larger images are read smaller, with no less than this on their shorter side. No encoder sees
#: as many pixels, and a few dozen camera photographs in full would fill the memory.
WORKING_SIDE = 1024
#: Images or texts between two writes: what a killed run can lose.
STORED_AT_ONCE = 256
#: Images of a batch, of encoders without a `batch_size`.
ENCODED_AT_ONCE = 64
# Batches of the encoders at a time: the one that is computed, and the next.
_BATCHES_AHEAD = 2
# Crops of an image are the same in all runs, so that runs with other seeds find them in the store.
_VIEW_SEED = 0

# For each encoder, the views of an image with what its network takes.
_Inputs = list[list[tuple[int, Any]]]


@dataclass(frozen=True)
class EmbeddedTexts:
    """Embeddings of texts, found by text; calling it returns those of a list."""

    position: dict[str, int]
    matrix: UnitRows

    def __call__(self, texts: Sequence[str]) -> UnitRows:
        """Return one row for each text."""
        return self.matrix[[self.position[text] for text in texts]]


class StoreWarning(UserWarning):
    """Embeddings cannot be stored."""


@dataclass(eq=False)  # two are never the same; a cache may be keyed by one
class Embedder:
    """An encoder with a store: each image, crop and text is embedded once.

    It is itself an :class:`~promptboost.Encoder`; its texts go through the store.

    Parameters
    ----------
    encoder : Encoder
        The model.
    store : EmbeddingStore, optional
        Cache of embeddings; None computes everything.
    progress : callable, optional
        Called as ``progress(stage, done, total)``; see :class:`~promptboost.progress.ProgressBars`.
    workers : int, optional
        Threads that read and decode images, by default those of the process.
    device : str, optional
        Device of the encoder, for workers on other machines.

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
    #: Number of views of "images" and of "texts" computed, not found in the store.
    computed: dict[str, int] = field(default_factory=lambda: {"images": 0, "texts": 0})
    # The attributes of an encoder.
    id: str = field(init=False, repr=False)
    fingerprint: str = field(init=False, repr=False)
    dim: int = field(init=False, repr=False)
    context_length: int = field(init=False, repr=False)
    causal_text: bool = field(init=False, repr=False)
    logit_scale: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in Encoder.__annotations__:
            setattr(self, name, getattr(self.encoder, name))

    @classmethod
    def open(
        cls,
        name: "str | Encoder",
        *,
        cache: bool | str | os.PathLike[str] = True,
        progress: Progress = no_progress,
        device: str | None = None,
    ) -> "Embedder":
        """Load an encoder by its name, as :func:`~promptboost.load_encoder` does, or use a given one.

        An embedder is returned unchanged. `cache` is True for the user's store, False for none, or the
        folder of another one.
        """
        if isinstance(name, Embedder):
            return name
        if isinstance(name, str):
            with stage(progress, f"loading {name}"):
                encoder = load_encoder(name, device=device)
        else:
            encoder = name
        if cache is False:
            return cls(encoder, None, progress, device=device)
        from promptboost.encoders.store import EmbeddingStore

        store = EmbeddingStore(None if cache is True else Path(cache))
        return cls(encoder, store, progress, device=device)

    def images(
        self, images: "Dataset | Sequence[Any]", *, views: int = 0, view_scale: float = 0.5
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
        """Embed RGB images as unit rows, without the store."""
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
        """Embed texts in batches of fixed size, on which the last bit of a row can depend."""
        self.computed["texts"] += len(texts)
        rows = []
        for start in range(0, max(1, len(texts)), STORED_AT_ONCE):
            batch = texts[start : start + STORED_AT_ONCE]
            rows.append(np.asarray(self.encoder.encode_texts(batch)))
            if advance is not None:
                advance(len(batch))
        return np.concatenate(rows)

    def stored(self, keys: list[bytes]) -> tuple[UnitRows, list[int]]:
        """Return one row for each key, and the positions of those that the store lacks."""
        if self.store is not None:
            try:
                return self.store.find(self.fingerprint, keys, dim=self.dim)
            except StoreError as error:
                self.do_without(error)
        return np.zeros((len(keys), self.dim), dtype=np.float32), list(range(len(keys)))

    def add(self, keys: list[bytes], rows: UnitRows) -> UnitRows:
        """Add rows to the store; return them as later runs will find them."""
        if self.store is not None:
            try:
                return self.store.add(self.fingerprint, keys, rows, name=self.id)
            except StoreError as error:
                self.do_without(error)
        return rows

    def do_without(self, error: StoreError) -> None:
        """Continue without the store after an error, with a warning."""
        self.store = None
        reason = str(error).rstrip(".")
        warnings.warn(f"{reason}. Going on without the embedding store", StoreWarning, stacklevel=3)

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
    if not 0 < view_scale <= 1:
        raise SettingError(f"view_scale must be above 0 and at most 1, got {view_scale}")
    if isinstance(images, Dataset):
        labeled = images.images
    else:
        from promptboost.data.memory import as_images

        labeled = as_images(images)
    first, scale = embedders[0], (view_scale, 1.0)
    blocks_of = [[np.zeros((0, 1 + views, embedder.dim), np.float32)] for embedder in embedders]
    with (
        first._timed("images"),
        stage(first.progress, "encoding images", len(labeled) * (1 + views)) as advance,
    ):
        for block in ImageStream(labeled, embedders, 1 + views, scale, first.workers, advance):
            if block.bad:
                raise ImageError(block.bad[min(block.bad)])
            for blocks, rows in zip(blocks_of, block.rows, strict=True):
                blocks.append(rows)
    return [np.concatenate(blocks) for blocks in blocks_of]


# float16 rows, as stores keep them, are well within this of length one.
_LENGTH_TOLERANCE = 1e-3

TextSource = Encoder | Mapping[str, ArrayLike] | Callable[[list[str]], ArrayLike]


def open_embedder(encoders: "Sequence[str | Encoder]", **options: Any) -> "Embedder | EncoderGroup":
    """Open an encoder, or a group of several; options as for :meth:`Embedder.open`."""
    embedders = [Embedder.open(encoder, **options) for encoder in encoders]
    if len(embedders) == 1:
        return embedders[0]
    from promptboost.encoders.group import EncoderGroup

    return EncoderGroup(embedders)


# Copies of an estimator, as in a grid search, share the loaded model.
_loaded = lru_cache(maxsize=4)(load_encoder)


def text_source(encoder: object) -> TextSource | None:
    """Return a source of text embeddings: an encoder by its name, others unchanged."""
    if isinstance(encoder, str):
        return _loaded(encoder)
    if encoder is None or isinstance(encoder, Encoder | Mapping) or callable(encoder):
        return encoder
    raise SettingError(
        f"encoder is {encoder!r}: give an encoder or its name, a mapping from text to row, a "
        "function that embeds a list of texts, or None"
    )


def embed_texts(source: TextSource, texts: list[str]) -> NDArray[np.floating]:
    """Return one row of length one for each text; check what the source returns."""
    if isinstance(source, Encoder):
        rows, name = np.asarray(source.encode_texts(texts)), f"The encoder {source.id}"
    elif isinstance(source, Mapping):
        if missing := [text for text in texts if text not in source]:
            raise EmbeddingError(
                f"The mapping has no row for {len(missing)} of {len(texts)} prompts, the first is "
                f"{missing[0]!r}."
            )
        every = [np.asarray(source[text], dtype=np.float64) for text in texts]
        if len({row.shape for row in every}) > 1:
            raise EmbeddingError("The mapping's rows are not all of one length.")
        rows, name = np.stack(every), "The mapping"
    elif callable(source):
        rows, name = np.asarray(source(texts)), "The function"
    else:
        raise InputError(
            f"A {type(source).__name__} cannot embed texts: give an encoder (this one lacks "
            f"{lacking_parts(source)}), a mapping from text to row, or a function."
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


@dataclass
class ImageBlock:
    """Consecutive images with their embeddings."""

    images: list[LabeledImage]
    # Of each embedder: shape (images, views, dim), one row for each key until the block is done; zeros
    # for unreadable images.
    rows: list[UnitRows]
    bad: dict[int, BadImage] = field(default_factory=dict)  # unreadable images by position
    digests: list[bytes] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)  # of the views of all images
    # For each embedder the keys to compute: neither stored nor equal to an earlier one of the block.
    missing: list[list[int]] = field(default_factory=list)
    first: dict[bytes, int] = field(default_factory=dict)  # where each distinct key comes first


@dataclass(frozen=True)
class ImageStream:
    """Embeds images with several encoders; each image is hashed once and decoded at most once.

    Iterating returns the images in order, a block at a time; unreadable ones are in ``bad``. The first of
    the `views` is the image itself. `advance` is called with the number of views that are done.
    """

    images: Iterable[LabeledImage]
    embedders: "Sequence[Embedder]"
    views: int = 1
    scale: tuple[float, float] = (0.5, 1.0)
    workers: int | None = None
    advance: Advance | None = None

    def __iter__(self) -> Iterator[ImageBlock]:
        with (
            ThreadPoolExecutor(self.workers or thread_count()) as pool,
            ThreadPoolExecutor(1) as device,
        ):
            try:
                yield from self._encoded(pool, device)
            except BaseException:
                for threads in (pool, device):
                    threads.shutdown(wait=False, cancel_futures=True)
                raise

    def _encoded(
        self, pool: ThreadPoolExecutor, device: ThreadPoolExecutor
    ) -> Iterator[ImageBlock]:
        """Finish blocks whose batches are all computed."""
        for block, number, job in prefetched(self._batched(pool, device), _BATCHES_AHEAD):
            if job is None:
                self._finish(block)
                yield block
            elif (computed := job.result()) and self.advance and number == len(self.embedders) - 1:
                self.advance(computed)

    def _batched(
        self, pool: ThreadPoolExecutor, device: ThreadPoolExecutor
    ) -> "Iterator[tuple[ImageBlock, int, Future[int] | None]]":
        """Submit batches of each encoder; no job ends a block."""
        waiting: list[list[tuple[int, Any]]] = [[] for _ in self.embedders]
        # The images of a batch are decoded while the one before it is computed.
        ahead = max(1, max(self._sizes) // self.views)
        for block, index, inputs in prefetched(self._decoded(pool), ahead):
            if inputs is not None:
                try:
                    for batch, views in zip(waiting, inputs.result(), strict=True):
                        batch += [(index * self.views + view, value) for view, value in views]
                except ImageError as error:
                    block.bad[index] = error.bad
            for number, batch in enumerate(waiting):
                while len(batch) >= (size := self._sizes[number]) or (inputs is None and batch):
                    yield block, number, device.submit(self._encode, block, number, batch[:size])
                    del batch[:size]
            if inputs is None:
                yield block, -1, None

    @property
    def _sizes(self) -> list[int]:
        """The number of images in a batch of each encoder, which shrinks if memory runs out."""
        encoders = (embedder.encoder for embedder in self.embedders)
        return [getattr(encoder, "batch_size", ENCODED_AT_ONCE) for encoder in encoders]

    def _decoded(
        self, pool: ThreadPoolExecutor
    ) -> "Iterator[tuple[ImageBlock, int, Future[_Inputs] | None]]":
        """Submit the images that some encoder lacks; no job ends a block."""
        size = max(1, max(STORED_AT_ONCE, *self._sizes) // self.views)
        source = iter(self.images)
        hashed = (
            (images, [pool.submit(image.digest) for image in images])
            for images in iter(lambda: list(islice(source, size)), [])
        )
        # The next block is read and hashed meanwhile.
        for images, digests in prefetched(hashed, 1):
            block = self._block(images, digests)
            views: dict[int, list[list[int]]] = {}
            for number, missing in enumerate(block.missing):
                for index, view in (divmod(position, self.views) for position in missing):
                    views.setdefault(index, [[] for _ in self.embedders])[number].append(view)
            for index in sorted(views):
                yield block, index, pool.submit(self._inputs, block, index, views[index])
            yield block, -1, None

    def _block(self, images: list[LabeledImage], digests: "list[Future[bytes]]") -> ImageBlock:
        block = ImageBlock(images, [])
        for index, future in enumerate(digests):
            try:
                block.digests.append(future.result())
                keys = view_keys(block.digests[index], self.views, self.scale)
            except ImageError as error:
                block.bad[index] = error.bad
                block.digests.append(b"")
                keys = [b""] * self.views
            for key in keys:
                block.first.setdefault(key, len(block.keys))
                block.keys.append(key)
        first = {key: position for key, position in block.first.items() if key}
        positions = list(first.values())
        for embedder in self.embedders:
            rows = np.zeros((len(block.keys), embedder.dim), dtype=np.float32)
            rows[positions], missing = embedder.stored(list(first))
            block.rows.append(rows)
            block.missing.append([positions[i] for i in missing])
        if self.advance is not None:
            self.advance(len(block.keys) - len(block.missing[-1]))
        return block

    def _inputs(self, block: ImageBlock, index: int, views: list[list[int]]) -> "_Inputs":
        """Open an image, and preprocess the views that each encoder lacks."""
        digest = block.digests[index]
        image = _opened(block.images[index], digest)
        images = {
            view: draw_view(image, _VIEW_SEED, digest, view, scale=self.scale) if view else image
            for view in set().union(*views)
        }
        return [
            [(view, _preprocessed(embedder.encoder, images[view])) for view in lacking]
            for embedder, lacking in zip(self.embedders, views, strict=True)
        ]

    def _encode(self, block: ImageBlock, number: int, batch: list[tuple[int, Any]]) -> int:
        """Encode a batch into the rows of its block; return its size."""
        positions, inputs = zip(*batch, strict=True)
        embedder = self.embedders[number]
        block.rows[number][list(positions)] = _rows_of(embedder.encoder, inputs)
        embedder.computed["images"] += len(batch)
        return len(batch)

    def _finish(self, block: ImageBlock) -> None:
        """Store new embeddings, and copy those of repeated images."""
        originals = [block.first[key] for key in block.keys]
        for number, embedder in enumerate(self.embedders):
            rows, missing = block.rows[number], block.missing[number]
            if new := [i for i in missing if i // self.views not in block.bad]:
                rows[new] = embedder.add([block.keys[i] for i in new], rows[new])
            shape = len(block.images), self.views, embedder.dim
            block.rows[number] = rows[originals].reshape(shape)
        for index, digest in enumerate(block.digests):
            original = originals[index * self.views] // self.views
            if digest and original in block.bad and index not in block.bad:
                reason = block.bad[original].reason
                block.bad[index] = BadImage(block.images[index].name, reason)


def prefetched(items: Iterable[Item], ahead: int) -> Iterator[Item]:
    """Yield items after the next `ahead` are created, so that jobs they submit run meanwhile."""
    waiting: deque[Item] = deque()
    for job in items:
        waiting.append(job)
        if len(waiting) > ahead:
            yield waiting.popleft()
    yield from waiting


def _preprocessed(encoder: Encoder, image: "Image") -> Any:
    return encoder.preprocess(image) if isinstance(encoder, StagedEncoder) else image


def _rows_of(encoder: Any, inputs: Sequence[Any]) -> UnitRows:
    """Encode a batch; in halves, as all later ones, if it does not fit into the memory of a GPU."""
    staged = isinstance(encoder, StagedEncoder)
    try:
        rows: UnitRows = (encoder.encode_preprocessed if staged else encoder.encode_images)(inputs)
        return rows
    except Exception as error:  # torch and other libraries have no common base for it
        if "out of memory" not in str(error).lower() or len(inputs) == 1:
            raise
    half = encoder.batch_size = len(inputs) // 2
    return np.concatenate([_rows_of(encoder, inputs[:half]), _rows_of(encoder, inputs[half:])])


def members_of(encoder: Encoder) -> tuple[Any, ...]:
    """Return the encoders of a group, or the encoder itself."""
    return getattr(encoder, "members", (encoder,))


def view_keys(digest: bytes, views: int, scale: tuple[float, float]) -> list[bytes]:
    """Return the keys in the store of an image and its crops, by its digest."""
    from promptboost.encoders.store import image_key

    low, high = map(float, scale)
    # "crop-1" is the version of draw_view.
    crops = (f"crop-1/{low}-{high}/seed-{_VIEW_SEED}/{number}" for number in range(1, views))
    return [image_key(digest, name) for name in ("original", *crops)]


def _opened(image: LabeledImage, digest: bytes) -> "Image":
    source = image.source
    if isinstance(source, Path):
        source = read_file(source, image.name)[0]
        # Otherwise it would be stored under a wrong key.
        if replace(image, source=source).digest() != digest:
            raise ImageError(BadImage(image.name, "changed while it was read; run it again"))
    return image.framed(read_image(source, image.name, at_least=WORKING_SIDE))
