"""The embedder: the one way from images and texts to embeddings."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.data.dataset import Dataset, LabelledImage
from promptboost.data.decode import ImageError
from promptboost.encoders.base import Encoder, UnitRows
from promptboost.encoders.registry import load_encoder
from promptboost.encoders.stream import ENCODED_AT_ONCE as ENCODED_AT_ONCE
from promptboost.encoders.stream import STORED_AT_ONCE, ImageStream
from promptboost.encoders.stream import WORKING_SIDE as WORKING_SIDE
from promptboost.errors import EmbeddingError, InputError, SettingError, StoreError
from promptboost.progress import Advance, Progress, no_progress, stage

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.encoders.store import EmbeddingStore


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
        """Load an encoder by its name, as :func:`~promptboost.encoders.load_encoder` does.

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
        if views < 0:
            raise SettingError(f"views is {views}; give the number of crops of each image, or 0")
        items = _labelled(images)
        parts = [np.zeros((0, 1 + views, self.dim), dtype=np.float32)]
        with (
            self._timed("images"),
            stage(self.progress, "encoding images", len(items) * (1 + views)) as advance,
        ):
            scale = (view_scale, 1.0)
            for block in ImageStream(items, [self], 1 + views, scale, self.workers, advance):
                if block.bad:
                    raise ImageError(block.bad[min(block.bad)])
                parts += block.rows
        return np.concatenate(parts)

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


def _labelled(images: "Dataset | Sequence[Any]") -> tuple[LabelledImage, ...]:
    if isinstance(images, Dataset):
        return images.images
    if all(isinstance(image, LabelledImage) for image in images):
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
