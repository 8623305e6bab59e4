"""Labeled training examples, ready for boosting."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting import Shots
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import Embedder, TextSource, text_source
from promptboost.encoders.group import EncoderGroup
from promptboost.errors import (
    DataError,
    EmbeddingError,
    LabelError,
    SettingError,
    WeightError,
    a_type,
)
from promptboost.progress import ProgressBars, is_interactive

Rows = NDArray[np.floating]
# The user's embedding cache (True), none (False), or a folder.
Cache = bool | str | os.PathLike[str]
# Example → the example it was merged into, and its share of the weight.
Shares = dict[str, tuple[str, float]]


@dataclass(frozen=True)
class RowSpace:
    """Scale rows of numbers to length one.

    Embeddings only need scaling. Other features may be all zero or differ only in length, so a constant
    coordinate is appended before scaling, like the intercept of a linear model.
    """

    constant: float | None = None

    @classmethod
    def around(cls, rows: Rows, weights: Rows) -> "RowSpace":
        """Use the root mean square length of the rows as constant, so that units do not matter."""
        largest = float(np.abs(rows).max()) or 1.0  # avoids overflow of squares
        squares = np.einsum("nd,nd->n", rows / largest, rows / largest)
        return cls(float(np.sqrt(np.average(squares, weights=weights))) * largest or 1.0)

    def unit(self, rows: Rows) -> Rows:
        """Scale rows to length one; without a constant, rows of zeros are unchanged."""
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
        The images; the embeddings of an :class:`~promptboost.encoders.group.EncoderGroup` are
        concatenated.
    labels : array of shape (n,)
        Class numbers.
    ids : tuple of str
        A unique name for each image.
    weights : array of shape (n,), optional
        Initial sample weights; uniform by default.
    views : array of shape (n, V, D), optional
        Random crops of each image.
    encoders : int
        Number of encoders in the rows.
    groups : array of shape (n,), optional
        Group numbers; images of one class and group are held out together in cross-validation.
    """

    rows: Rows
    labels: NDArray[np.int64]
    ids: tuple[str, ...]
    weights: Rows | None = None
    views: Rows | None = None
    encoders: int = 1
    groups: NDArray[np.int64] | None = None

    @classmethod
    def with_views(
        cls,
        rows: Rows,
        labels: NDArray[np.int64],
        ids: tuple[str, ...],
        weights: Rows | None = None,
        encoders: int = 1,
        groups: NDArray[np.int64] | None = None,
    ) -> "Examples":
        """Make examples of images and their views together, (n, 1 + V, D), the images first."""
        views = rows[:, 1:] if rows.shape[1] > 1 else None
        return cls(rows[:, 0], labels, ids, weights, views, encoders, groups)

    def weighted(self, class_names: Sequence[str]) -> "Examples":
        """Remove examples of weight zero."""
        if self.weights is None:
            return self
        if (self.weights < 0).any():
            worst = int(np.argmin(self.weights))
            raise WeightError(f"sample weight {worst} is negative ({self.weights[worst]:.4g})")
        if self.weights.max(initial=0.0) > np.finfo(np.float64).max / len(self.weights):
            raise WeightError(
                "the sum of sample weights overflows: divide all weights by the same number"
            )
        index = np.flatnonzero(self.weights)
        if not len(index):
            raise WeightError("all sample weights are zero")
        missing = np.setdiff1d(self.labels, self.labels[index])
        if len(missing):
            raise LabelError(
                f"all examples of the class {class_names[missing[0]]!r} have weight zero"
            )
        return self.subset(index, self.weights[index])

    def subset(self, index: NDArray[np.intp], weights: Rows | None = None) -> "Examples":
        """Return some of the examples, with weights of their own."""
        return replace(
            self,
            rows=self.rows[index],
            labels=self.labels[index],
            ids=tuple(self.ids[i] for i in index),
            weights=weights,
            views=None if self.views is None else self.views[index],
            groups=None if self.groups is None else self.groups[index],
        )

    def merged(self) -> tuple["Examples", Shares]:
        """Sort examples by value and merge equal ones, adding their weights.

        So the order of examples does not matter, and a repeated example is equivalent to twice its weight.
        Also return the merged example of each one, and its share of the weight.
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
        merged = self.subset(first, None if uniform else total)
        shares = zip(self.ids, into, weights / total[into], strict=True)
        return merged, {name: (merged.ids[i], float(share)) for name, i, share in shares}

    def relative_weights(self) -> Rows:
        """Return the weights, ones by default."""
        return np.ones(len(self.rows)) if self.weights is None else self.weights

    def unit(self, space: RowSpace) -> "Examples":
        """Scale all rows to length one.

        Single-precision rows come from an encoder and already have length one. They are not changed, so
        that the command line and the estimator give identical results.
        """
        if self.rows.dtype == np.float32:
            return self
        views = None if self.views is None else space.unit(self.views)
        return replace(self, rows=space.unit(self.rows), views=views)

    def shots(self) -> Shots:
        """Round the rows to the grid of the composer."""
        shots = Shots.from_rows(self.rows, self.labels, self.views, self.encoders)
        return replace(shots, groups=self.groups)


def checked_views(views: ArrayLike | None, rows: Rows) -> Rows | None:
    """Check the shape and values of views."""
    if views is None:
        return None
    checked = np.asarray(views, dtype=rows.dtype)
    if checked.ndim != 3 or checked.shape[::2] != rows.shape or checked.shape[1] == 0:
        raise EmbeddingError(
            f"views: expected shape ({rows.shape[0]}, V, {rows.shape[1]}) with V >= 1 views of each "
            f"row of X, got {checked.shape}"
        )
    if not np.isfinite(checked).all():
        raise EmbeddingError("views: some values are not finite")
    return checked


def embedder_of(
    encoder: object, cache: Cache = True
) -> Embedder | EncoderGroup | TextSource | None:
    """Return an embedder for an encoder, a group for several, or a source of texts only."""
    if isinstance(encoder, list | tuple):
        if not encoder:
            raise SettingError("encoder is an empty list: pass one encoder or more")
        members: list[Any] = [image_embedder(member, cache) for member in encoder]
        return members[0] if len(members) == 1 else EncoderGroup(members)
    source = text_source(encoder)
    if not isinstance(cache, bool | str | os.PathLike):
        raise SettingError(f"cache is {cache!r}: pass True, False, or the path of a folder")
    if not isinstance(source, Encoder) or isinstance(source, EncoderGroup):
        return source
    return Embedder.open(source, cache=cache, progress=ProgressBars(shown=is_interactive()))


def image_embedder(encoder: object, cache: Cache = True) -> Embedder | EncoderGroup:
    """Return the embedder of an encoder; raise if it cannot embed images."""
    source = embedder_of(encoder, cache)
    if isinstance(source, Embedder | EncoderGroup):
        return source
    raise DataError(
        "X has images, and there is no encoder to embed them: set encoder to an encoder or its name, to "
        "'auto' for the default of the command line, or pass embeddings"
    )


def check_embeddings(X: Any, encoder: object) -> None:
    """Raise if X is an empty list, objects, a gray image or a table of paths, not embeddings."""
    if getattr(X, "ndim", 1) == 1 and hasattr(X, "__len__") and len(X):
        first = next(iter(X))
        if isinstance(first, Mapping) or not (
            first is None or isinstance(first, Number) or hasattr(first, "__len__")
        ):
            # Of such objects scikit-learn's message would hold all the content.
            raise DataError(
                f"X holds {a_type(first)}, neither an image nor a row of numbers: give paths, PIL images, "
                "arrays of pixels, bytes, rows with a column image, or embeddings of shape (n, D)"
            )
    if encoder is None:
        return
    if getattr(X, "ndim", 1) == 1 and hasattr(X, "__len__") and len(X) == 0:
        # Such as from a glob without matches.
        raise DataError("X is empty: pass images; does the pattern for their paths match any file?")
    if getattr(X, "ndim", 0) != 2:
        return
    if isinstance(X, np.ndarray) or hasattr(X, "columns"):
        first = np.asarray(X[:1]).ravel()[:1].tolist()
        if first and isinstance(first[0], str | os.PathLike):
            raise DataError("X is a table of texts: pass its column of paths, X['path'] or X[:, 0]")
    if isinstance(X, np.ndarray) and X.dtype == np.uint8 and encoder != "auto":
        raise DataError(
            f"X is a matrix of bytes of shape {X.shape}: for one grayscale image pass [X], for embeddings "
            "X.astype(float)"
        )
