"""What a fit learns from: rows, labels, weights and names, ready for boosting."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting import Shots
from promptboost.errors import EmbeddingError, LabelError, WeightError
from promptboost.fitting.space import Rows, RowSpace

__all__ = ["Examples", "checked_views"]


@dataclass(frozen=True)
class Examples:
    """Labelled rows, as they were given.

    Attributes
    ----------
    rows : array of shape (n, D)
        One for each example.
    labels : array of int of shape (n,)
        Class index of each.
    ids : tuple of str
        Name of each.
    weights : array of shape (n,), or None
        Weights to start with, if not uniform.
    views : array of shape (n, V, D), or None
        Further rows of each example.

    Examples
    --------
    >>> rows, labels = np.eye(3), np.array([0, 1, 1])
    >>> some = Examples(rows, labels, ("a", "b", "c"), np.array([1.0, 0.0, 2.0]))
    >>> some.weighted(["cat", "dog"]).ids
    ('a', 'c')
    """

    rows: Rows
    labels: NDArray[np.int64]
    ids: tuple[str, ...]
    weights: Rows | None = None
    views: Rows | None = None

    def weighted(self, class_names: Sequence[str]) -> "Examples":
        """Leave out what has no weight: it would never count.

        Raises
        ------
        WeightError
            If a weight is negative, or all are zero.
        LabelError
            If a class is left without examples.
        """
        if self.weights is None:
            return self
        if (self.weights < 0).any():
            worst = int(np.argmin(self.weights))
            raise WeightError(f"sample weight {worst} is negative ({self.weights[worst]:.4g})")
        kept = np.flatnonzero(self.weights)
        if not len(kept):
            raise WeightError("all sample weights are zero: no picture counts")
        lost = np.setdiff1d(self.labels, self.labels[kept])
        if len(lost):
            raise LabelError(f"all examples of the class {class_names[lost[0]]!r} have weight zero")
        return Examples(
            self.rows[kept],
            self.labels[kept],
            tuple(self.ids[i] for i in kept),
            self.weights[kept],
            None if self.views is None else self.views[kept],
        )

    def relative_weights(self) -> Rows:
        """Give the start weights, ones where there are none."""
        return np.ones(len(self.rows)) if self.weights is None else self.weights

    def shots(self, space: RowSpace) -> Shots:
        """Put the rows on the grid."""
        views = None if self.views is None else space.unit(self.views)
        return Shots.from_rows(space.unit(self.rows), self.labels, views)


def checked_views(views: ArrayLike | None, rows: Rows) -> Rows | None:
    """Check that views belong to rows.

    Examples
    --------
    >>> checked_views(np.ones((2, 3, 5)), np.ones((2, 4)))
    Traceback (most recent call last):
        ...
    promptboost.errors.EmbeddingError: views: expected shape (2, V, 4) with V >= 1 views of each row \
of X, got (2, 3, 5)
    """
    if views is None:
        return None
    seen = np.asarray(views, dtype=np.float64)
    if seen.ndim != 3 or seen.shape[::2] != rows.shape or seen.shape[1] == 0:
        raise EmbeddingError(
            f"views: expected shape ({rows.shape[0]}, V, {rows.shape[1]}) with V >= 1 views of each "
            f"row of X, got {seen.shape}"
        )
    if not np.isfinite(seen).all():
        raise EmbeddingError("views: there are values that are not finite")
    return seen
