"""The labelled examples a fit learns from, ready for boosting."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting import Shots
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import Embedder, TextSource, text_source
from promptboost.errors import DataError, EmbeddingError, LabelError, SettingError, WeightError
from promptboost.progress import ProgressBars, is_interactive

Rows = NDArray[np.floating]
# Where embeddings are kept: the user's store, nowhere, or a folder.
Cache = bool | str | os.PathLike[str]
# Example → the example it was merged into, and its part of that one's weight.
Parts = dict[str, tuple[str, float]]


@dataclass(frozen=True)
class RowSpace:
    """How rows of numbers become rows of length one.

    Embeddings only need scaling. Other features have an origin that matters and may be all zero:
    they get one more coordinate, the same for all rows, before they are scaled. For rows that are
    of one length anyway this changes no comparison of cosines; for others it keeps apart those
    that differ in length only, as the intercept of a linear model does.
    """

    constant: float | None = None  # the further coordinate

    @classmethod
    def around(cls, rows: Rows, weights: Rows) -> "RowSpace":
        """Append the typical length of the rows: features in other units then give the same fit."""
        largest = float(np.abs(rows).max()) or 1.0  # divided out, so that squares do not overflow
        squares = np.einsum("nd,nd->n", rows / largest, rows / largest)
        return cls(float(np.sqrt(np.average(squares, weights=weights))) * largest or 1.0)

    def unit(self, rows: Rows) -> Rows:
        """Scale to length one; a row of zeros stays one if there is no further coordinate."""
        if self.constant is not None:
            further = np.full((*rows.shape[:-1], 1), self.constant)
            rows = np.concatenate([rows, further], axis=-1)
        largest = np.abs(rows).max(axis=-1, keepdims=True, initial=0.0)
        rows = rows / np.where(largest > 0, largest, 1.0)
        lengths = np.sqrt(np.einsum("...d,...d->...", rows, rows))[..., None]
        return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


@dataclass(frozen=True)
class Examples:
    """Labelled rows, as they were given."""

    rows: Rows  # (n, D); of several encoders, on the grid and side by side
    labels: NDArray[np.int64]
    ids: tuple[str, ...]
    weights: Rows | None = None  # to start with, if not uniform
    views: Rows | None = None  # (n, V, D)

    def weighted(self, class_names: Sequence[str]) -> "Examples":
        """Leave out what has no weight: it would never count."""
        if self.weights is None:
            return self
        if (self.weights < 0).any():
            worst = int(np.argmin(self.weights))
            raise WeightError(f"sample weight {worst} is negative ({self.weights[worst]:.4g})")
        if self.weights.max(initial=0.0) > np.finfo(np.float64).max / len(self.weights):
            raise WeightError(
                "sample weights are too large to be added up: divide them all by the same"
            )
        kept = np.flatnonzero(self.weights)
        if not len(kept):
            raise WeightError("all sample weights are zero: no image counts")
        lost = np.setdiff1d(self.labels, self.labels[kept])
        if len(lost):
            raise LabelError(f"all examples of the class {class_names[lost[0]]!r} have weight zero")
        return self._some(kept, self.weights[kept])

    def _some(self, kept: NDArray[np.intp], weights: Rows | None) -> "Examples":
        ids = tuple(self.ids[i] for i in kept)
        views = None if self.views is None else self.views[kept]
        return Examples(self.rows[kept], self.labels[kept], ids, weights, views)

    def merged(self) -> tuple["Examples", Parts]:
        """Put examples in the order of their values, and equal ones together with their weights added.

        Then it decides nothing in which order examples were given, or whether one was given twice or
        with twice the weight. Which merged example each one went into, and its part of that, is
        returned too.
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
        together = self._some(first, None if uniform else total)
        shares = zip(self.ids, into, weights / total[into], strict=True)
        return together, {name: (together.ids[i], float(share)) for name, i, share in shares}

    def relative_weights(self) -> Rows:
        """Return the start weights, ones where there are none."""
        return np.ones(len(self.rows)) if self.weights is None else self.weights

    def shots(self, space: RowSpace) -> Shots:
        """Put the rows on the grid.

        Rows in single precision are an encoder's own: they are of length one, and stay as they are to
        the last bit, so that the command line learns the same text from them. Those of several encoders
        are on the grid already, side by side.
        """
        if self.rows.dtype in (np.float32, np.int16):
            return Shots.from_rows(self.rows, self.labels, self.views)
        views = None if self.views is None else space.unit(self.views)
        return Shots.from_rows(space.unit(self.rows), self.labels, views)


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


def embedder_of(encoder: object, cache: Cache = True) -> Embedder | TextSource | None:
    """Return what embeds texts, and images where it is an embedder; of several, the first."""
    if isinstance(encoder, list | tuple):
        if not encoder:
            raise SettingError("encoder is an empty list: name one encoder or more")
        encoder = encoder[0]
    source = text_source(encoder)
    if isinstance(cache, bool):
        place = None
    elif isinstance(cache, str | os.PathLike):
        place = Path(cache)
    else:
        raise SettingError(f"cache is {cache!r}: give True, False, or the path of a folder")
    if not isinstance(source, Encoder) or isinstance(source, Embedder):
        return source
    if cache is False:
        return Embedder(source, None, ProgressBars(shown=is_interactive()))
    from promptboost.encoders.store import EmbeddingStore

    return Embedder(source, EmbeddingStore(place), ProgressBars(shown=is_interactive()))


def further_embedders(encoder: object, cache: Cache = True) -> tuple[Embedder, ...]:
    """Return the embedders after the first, where several encoders are given."""
    if not isinstance(encoder, list | tuple):
        return ()
    every = [image_embedder(one, cache) for one in encoder]
    if len({one.fingerprint for one in every}) < len(every):
        raise SettingError("encoder names one encoder twice: give each once")
    return tuple(every[1:])


def image_embedder(encoder: object, cache: Cache = True) -> Embedder:
    """Return what embeds images, or raise if there is nothing that can."""
    source = embedder_of(encoder, cache)
    if isinstance(source, Embedder):
        return source
    raise DataError(
        "X holds images, and there is no encoder to embed them: set encoder to an encoder or to the "
        "name of one, to 'auto' for the one that the command line takes, or give embeddings"
    )


def check_embeddings(X: Any, encoder: object) -> None:
    """Raise if X is no list of images, an image without colours, or a table of paths, not embeddings."""
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
    if isinstance(X, np.ndarray) and X.dtype == np.uint8:
        raise DataError(
            f"X is a matrix of bytes of shape {X.shape}: one image without colours is written [X]; "
            "embeddings are floats, X.astype(float)"
        )
