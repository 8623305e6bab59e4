"""What a weak classifier makes of pictures, and what scores are worth."""

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting import kernel
from promptboost.boosting.composition import Composition
from promptboost.boosting.grid import COSINE_UNIT, GridRows
from promptboost.boosting.problem import GridPool

__all__ = ["log_losses", "scores_of"]


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


def log_losses(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Give each row's log loss: minus the logarithm of the probability of its own class.

    Examples
    --------
    >>> log_losses(np.array([[0.0, 0.0], [1000.0, 0.0]]), np.array([0, 1])).round(3)
    array([6.93e-01, 1.00e+03])
    """
    highest = logits.max(axis=1)
    total = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
    return np.asarray(total - logits[np.arange(len(labels)), labels], dtype=np.float64)
