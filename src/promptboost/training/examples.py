"""Labeled training examples, ready for boosting."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting import Shots
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import Embedder, TextSource, text_source
from promptboost.encoders.group import EncoderGroup
from promptboost.errors import DataError, EmbeddingError, LabelError, SettingError, WeightError
from promptboost.progress import ProgressBars, is_interactive

Rows = NDArray[np.floating]
# Where embeddings are kept: the user's store, nowhere, or a folder.
Cache = bool | str | os.PathLike[str]
# Example → the example it was merged into, and its part of that one's weight.
Parts = dict[str, tuple[str, float]]


@dataclass(frozen=True)
class RowSpace:
    """Scale rows of numbers to length one.

    Embeddings only need scaling. Other features have an origin that matters and may be all zero: they
    get one constant coordinate before they are scaled. For rows of equal length this changes no
    comparison of cosines; for others it separates those that differ in length only, as the intercept of
    a linear model does.
    """

    constant: float | None = None

    @classmethod
    def around(cls, rows: Rows, weights: Rows) -> "RowSpace":
        """Use the typical length of the rows as constant: features in other units give the same fit."""
        largest = float(np.abs(rows).max()) or 1.0  # divided out, so that squares do not overflow
        squares = np.einsum("nd,nd->n", rows / largest, rows / largest)
        return cls(float(np.sqrt(np.average(squares, weights=weights))) * largest or 1.0)

    def unit(self, rows: Rows) -> Rows:
        """Scale to length one; without a constant, a row of zeros stays as it is."""
        if self.constant is not None:
            column = np.full((*rows.shape[:-1], 1), self.constant)
            rows = np.concatenate([rows, column], axis=-1)
        largest = np.abs(rows).max(axis=-1, keepdims=True, initial=0.0)
        rows = rows / np.where(largest > 0, largest, 1.0)
        lengths = np.sqrt(np.einsum("...d,...d->...", rows, rows))[..., None]
        return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


@dataclass(frozen=True)
class Examples:
    """Labeled embeddings of images and of their views.

    Attributes
    ----------
    rows : array of shape (n, D)
        The images; the embeddings of several encoders are next to each other, see
        :class:`~promptboost.encoders.group.EncoderGroup`.
    labels : array of shape (n,)
        Class numbers.
    ids : tuple of str
        A name for each image.
    weights : array of shape (n,), optional
        Start weights; uniform by default.
    views : array of shape (n, V, D), optional
        Random crops of each image.
    encoders : int
        Number of encoders in the rows.
    """

    rows: Rows
    labels: NDArray[np.int64]
    ids: tuple[str, ...]
    weights: Rows | None = None
    views: Rows | None = None
    encoders: int = 1

    def weighted(self, class_names: Sequence[str]) -> "Examples":
        """Leave out examples of weight zero."""
        if self.weights is None:
            return self
        if (self.weights < 0).any():
            worst = int(np.argmin(self.weights))
            raise WeightError(f"sample weight {worst} is negative ({self.weights[worst]:.4g})")
        if self.weights.max(initial=0.0) > np.finfo(np.float64).max / len(self.weights):
            raise WeightError(
                "sample weights are too large to be added up: divide them all by the same"
            )
        index = np.flatnonzero(self.weights)
        if not len(index):
            raise WeightError("all sample weights are zero: no image counts")
        lost = np.setdiff1d(self.labels, self.labels[index])
        if len(lost):
            raise LabelError(f"all examples of the class {class_names[lost[0]]!r} have weight zero")
        return self._subset(index, self.weights[index])

    def _subset(self, index: NDArray[np.intp], weights: Rows | None) -> "Examples":
        ids = tuple(self.ids[i] for i in index)
        views = None if self.views is None else self.views[index]
        return replace(
            self,
            rows=self.rows[index],
            labels=self.labels[index],
            ids=ids,
            weights=weights,
            views=views,
        )

    def merged(self) -> tuple["Examples", Parts]:
        """Sort examples by value, and merge equal ones with their weights added.

        Then neither the order of the examples matters nor whether an example is given twice or with twice
        the weight. Also returns the merged example of each one, and its share of it.
        """
        n = len(self.rows)
        values = [self.labels[:, None], self.rows]
        if self.views is not None:
            values.append(self.views.reshape(n, -1))
        _, first, into = np.unique(
            np.concatenate(values, axis=1), axis=0, return_index=True, return_inverse=True
        )
        into = into.reshape(n)
        weights = self.relative_weights()
        total = np.bincount(into, weights=weights).astype(np.float64)
        uniform = self.weights is None and len(first) == n
        together = self._subset(first, None if uniform else total)
        shares = zip(self.ids, into, weights / total[into], strict=True)
        return together, {name: (together.ids[i], float(share)) for name, i, share in shares}

    def relative_weights(self) -> Rows:
        """Return the start weights, ones where there are none."""
        return np.ones(len(self.rows)) if self.weights is None else self.weights

    def unit(self, space: RowSpace) -> "Examples":
        """Scale all rows to length one.

        Single-precision rows come from an encoder: they have length one, and stay as they are to the last
        bit, so that the command line and the estimator learn the same text from them.
        """
        if self.rows.dtype == np.float32:
            return self
        views = None if self.views is None else space.unit(self.views)
        return replace(self, rows=space.unit(self.rows), views=views)

    def shots(self) -> Shots:
        """Round the rows to the grid of the composer."""
        return Shots.from_rows(self.rows, self.labels, self.views, self.encoders)


def checked_views(views: ArrayLike | None, rows: Rows) -> Rows | None:
    """Check that views belong to rows."""
    if views is None:
        return None
    seen = np.asarray(views, dtype=rows.dtype)
    if seen.ndim != 3 or seen.shape[::2] != rows.shape or seen.shape[1] == 0:
        raise EmbeddingError(
            f"views: expected shape ({rows.shape[0]}, V, {rows.shape[1]}) with V >= 1 views of each "
            f"row of X, got {seen.shape}"
        )
    if not np.isfinite(seen).all():
        raise EmbeddingError("views: there are values that are not finite")
    return seen


def embedder_of(
    encoder: object, cache: Cache = True
) -> Embedder | EncoderGroup | TextSource | None:
    """Return what embeds texts, and images where it is an embedder or a group of several."""
    if isinstance(encoder, list | tuple):
        if not encoder:
            raise SettingError("encoder is an empty list: name one encoder or more")
        members: list[Any] = [image_embedder(member, cache) for member in encoder]
        return members[0] if len(members) == 1 else EncoderGroup(members)
    source = text_source(encoder)
    if isinstance(cache, bool):
        folder = None
    elif isinstance(cache, str | os.PathLike):
        folder = Path(cache)
    else:
        raise SettingError(f"cache is {cache!r}: give True, False, or the path of a folder")
    if not isinstance(source, Encoder) or isinstance(source, Embedder | EncoderGroup):
        return source
    if cache is False:
        return Embedder(source, None, ProgressBars(shown=is_interactive()))
    from promptboost.encoders.store import EmbeddingStore

    return Embedder(source, EmbeddingStore(folder), ProgressBars(shown=is_interactive()))


def image_embedder(encoder: object, cache: Cache = True) -> Embedder | EncoderGroup:
    """Return what embeds images, or raise if nothing can."""
    source = embedder_of(encoder, cache)
    if isinstance(source, Embedder | EncoderGroup):
        return source
    raise DataError(
        "X holds images, and there is no encoder to embed them: set encoder to an encoder or to the "
        "name of one, to 'auto' for the one that the command line takes, or give embeddings"
    )


def check_embeddings(X: Any, encoder: object) -> None:
    """Raise if X is an empty list, a gray image or a table of paths, not embeddings."""
    if encoder is None:
        return
    if getattr(X, "ndim", 1) == 1 and hasattr(X, "__len__") and len(X) == 0:
        # What a pattern gives that matches no file; scikit-learn would ask for a matrix.
        raise DataError(
            "X is empty: give images; does the pattern that they come from match a file?"
        )
    if getattr(X, "ndim", 0) != 2:
        return
    if isinstance(X, np.ndarray) or hasattr(X, "columns"):
        first = np.asarray(X[:1]).ravel()[:1].tolist()
        if first and isinstance(first[0], str | os.PathLike):
            raise DataError("X is a table of texts: give its column of paths, X['path'] or X[:, 0]")
    if isinstance(X, np.ndarray) and X.dtype == np.uint8 and encoder != "auto":
        raise DataError(
            f"X is a matrix of bytes of shape {X.shape}: one image without colors is written [X]; "
            "embeddings are floats, X.astype(float)"
        )
