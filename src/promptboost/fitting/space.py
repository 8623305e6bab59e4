"""Rows of any numbers, made comparable by cosines."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowSpace", "Rows"]

Rows = NDArray[np.float64]


@dataclass(frozen=True)
class RowSpace:
    """How rows of numbers become rows of length one.

    Embeddings only need scaling. Other features have an origin that matters and may be all zero:
    they get one more coordinate, the same for all rows, before they are scaled. For rows that are
    of one length anyway this changes no comparison of cosines; for others it keeps apart those
    that differ in length only, as the intercept of a linear model does.

    Attributes
    ----------
    constant : float or None
        The further coordinate, if there is one.

    Examples
    --------
    >>> space = RowSpace.around(np.array([[3.0, 4.0], [0.0, 5.0]]), np.array([1.0, 1.0]))
    >>> space.constant
    5.0
    >>> space.unit(np.array([[0.0, 0.0]]))
    array([[0., 0., 1.]])
    """

    constant: float | None = None

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
