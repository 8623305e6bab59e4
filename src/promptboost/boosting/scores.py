"""What a weak classifier makes of pictures."""

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting import kernel
from promptboost.boosting.composition import Composition
from promptboost.boosting.grid import COSINE_UNIT, GridRows
from promptboost.boosting.problem import GridPool

__all__ = ["scores_of"]


def scores_of(weak: Composition, X: GridRows, pool: GridPool) -> NDArray[np.float64]:
    """Scores of a weak classifier: mean cosine with each bank, shape (n, K).

    Sums are exact; only the final division rounds.
    """
    K = len(pool.prompts)
    scores = np.empty((len(X), K), dtype=np.float64)
    for k in range(K):
        copies = weak.banks[k]
        rows = pool.prompts[k][list(copies)]
        bank = np.concatenate([pool.templates[k, weak.template][None], rows])
        counts = np.array([weak.template_copies[k], *copies.values()], dtype=np.int64)
        cosines = np.empty((len(X), len(bank)), dtype=np.int32)
        kernel.products(bank, X, cosines)
        scores[:, k] = (cosines @ counts) / (int(counts.sum()) * COSINE_UNIT)
    return scores
