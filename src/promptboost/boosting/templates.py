"""Stage 1 of every composer: the one template that all banks begin with."""

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting import kernel
from promptboost.boosting.grid import GridRows
from promptboost.boosting.search import in_threads

__all__ = ["pick_template", "template_hits"]


def template_hits(X: GridRows, y: NDArray[np.int64], templates: GridRows) -> NDArray[np.bool_]:
    """Which template alone classifies which row rightly.

    This does not depend on the weights, so rows that return in later rounds need it only once.

    Returns
    -------
    array of bool, shape (n, number of templates)
    """
    number = templates.shape[1]
    winners = np.empty((number, len(X)), dtype=np.int32)

    def fill(part: slice) -> None:
        for j in range(part.start, part.stop):
            kernel.nearest(X, np.ascontiguousarray(templates[:, j]), winners[j])

    in_threads(fill, number, X.size * len(templates) * number)
    return np.ascontiguousarray((winners == y).T)


def pick_template(
    hits: NDArray[np.bool_], grid_weights: NDArray[np.int64], rng: np.random.Generator
) -> int:
    """Pick the template of least weighted error; ties are broken at random."""
    errors = np.array([int(grid_weights[~column].sum()) for column in hits.T])
    return int(rng.choice(np.flatnonzero(errors == errors.min())))
