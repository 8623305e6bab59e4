"""What people pass for pictures and encoders, told apart."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.data import Picture, PictureError, embed_pictures
from promptboost.data.memory import read_pairs
from promptboost.encoders import load_encoder
from promptboost.encoders.base import Encoder
from promptboost.errors import DataError, EmbeddingError, SettingError

__all__ = ["TextSource", "as_pictures", "embed_with_views", "holds_pictures", "text_source"]

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
    """Give one row for each text.

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


def holds_pictures(X: Any) -> bool:
    """Tell pictures (paths, PIL images, arrays of pixels, bytes of files) from rows of numbers.

    Examples
    --------
    >>> holds_pictures(["a.jpg", "b.jpg"]), holds_pictures([[0.6, 0.8], [0.0, 1.0]])
    (True, False)
    """
    if getattr(X, "ndim", 1) != 1:  # an array, a sparse matrix or a data frame
        return bool(X.ndim > 2)
    if isinstance(X, str | bytes) or not hasattr(X, "__len__") or len(X) == 0:
        return False
    from PIL.Image import Image

    first = next(iter(X))
    if isinstance(first, str | bytes | os.PathLike | Image):
        return True
    return isinstance(first, np.ndarray) and first.ndim > 1


def as_pictures(X: Sequence[Any]) -> tuple[Picture, ...]:
    """Make pictures of what :func:`holds_pictures`; a file is called by its path, if all are files.

    Examples
    --------
    >>> [picture.id for picture in as_pictures(["a.jpg", "b.jpg"])]
    ['a.jpg', 'b.jpg']
    """
    items = list(X)
    listing = read_pairs((item, "not known") for item in items)
    if listing.bad:
        raise PictureError(listing.bad[0])
    paths = [os.fspath(item) for item in items if isinstance(item, str | os.PathLike)]
    if len(paths) < len(items) or len(set(paths)) < len(paths):
        return listing.pictures
    named = zip(listing.pictures, paths, strict=True)
    return tuple(replace(picture, id=str(path)) for picture, path in named)


def embed_with_views(
    pictures: Sequence[Picture], source: TextSource | None, *, views: int = 0, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Embed pictures, and so many random views of each.

    Returns
    -------
    tuple of arrays of shape (n, D) and (n, views, D)
        The second is None if no views are asked for.

    Examples
    --------
    >>> from PIL import Image
    >>> from promptboost.testing import FakeEncoder
    >>> red = as_pictures([Image.new("RGB", (8, 8), "red")])
    >>> rows, seen = embed_with_views(red, FakeEncoder(dim=16), views=3)
    >>> rows.shape, seen.shape
    ((1, 16), (1, 3, 16))
    """
    if not isinstance(source, Encoder):
        raise DataError(
            "X holds pictures, and there is no encoder to embed them: set encoder to an encoder or "
            "to the name of one, or give embeddings"
        )
    rows = embed_pictures(
        pictures, source, views=range(views + 1), seed=seed, progress=False
    ).astype(np.float64)
    return rows[:, 0], rows[:, 1:] if views else None
