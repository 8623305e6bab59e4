"""Logistic regression on image embeddings, without any text.

scikit-learn is imported where it is used: the import takes longer than many fits.
"""

import warnings
from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.composition import log_losses
from promptboost.boosting.gradient.scale import dealt
from promptboost.progress import Progress, no_progress
from promptboost.threads import single_blas_thread

#: Inverse strengths of regularization to choose from. Rows have length one, so little is needed.
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)

#: Used where a class has one image only, so that there is nothing to validate on.
FIXED_C = 10.0

_FOLDS = 3
_STAGE = "fitting logistic regression"
# Products of a step from which threads save more than they cost: some twenty milliseconds of one core.
_WORTH_THREADS = 500_000_000


def fit_probe(
    rows: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    seed: int = 0,
    progress: Progress = no_progress,
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Fit logistic regression on images and their crops, (n, 1 + V, D); every class has one at least.

    The crops of an image share the weight of one, and never stand on both sides of a fold. Returns
    weights (K, D), intercepts (K,), and the C that was used.
    """
    folds = min(int(np.bincount(labels).min()), _FOLDS)
    C = FIXED_C if folds < 2 else _choose(rows[:, 0], labels, folds, seed, progress)
    views = rows.shape[1]
    weights, intercepts = _fit(
        rows.reshape(-1, rows.shape[2]), labels.repeat(views), C, share=1 / views
    )
    return weights, intercepts, C


def _choose(
    rows: NDArray[np.float32], labels: NDArray[np.int64], folds: int, seed: int, progress: Progress
) -> float:
    """Choose C by the loss on images left out; by accuracy a few images could not tell."""
    fold = dealt(labels, folds, np.random.default_rng(seed))
    losses, done = dict.fromkeys(STRENGTHS, 0.0), 0
    progress(_STAGE, 0, len(STRENGTHS) * folds)
    for C in STRENGTHS:
        for part in range(folds):
            weights, intercepts = _fit(rows[fold != part], labels[fold != part], C)
            logits = rows[fold == part] @ weights.T + intercepts
            losses[C] += float(log_losses(logits, labels[fold == part]).sum())
            done += 1
            progress(_STAGE, done, len(STRENGTHS) * folds)
    return min(losses, key=losses.__getitem__)


def _fit(
    rows: NDArray[np.float32], labels: NDArray[np.int64], C: float, share: float = 1.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    from sklearn.linear_model import LogisticRegression

    weight = np.full(len(rows), share)
    # A loose tolerance: the last digits of the weights change no prediction, but take most steps.
    model = LogisticRegression(C=C, max_iter=2000, tol=1e-3)
    # A step over few images is over before a second thread of BLAS has begun, and waiting for it takes
    # five times as long as the step.
    is_small = rows.size * len(np.unique(labels)) < _WORTH_THREADS
    one = single_blas_thread() if is_small else nullcontext()
    with warnings.catch_warnings(), one:
        # With few shots of many classes it suspects that the labels are measurements.
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        model.fit(rows.astype(np.float64), labels, sample_weight=weight)
    weights, intercepts = np.asarray(model.coef_), np.asarray(model.intercept_)
    if len(weights) == 1:  # two classes are kept as one row: the log-odds of the second
        halves, half = weights / 2, intercepts / 2
        weights, intercepts = np.vstack([-halves, halves]), np.r_[-half, half]
    return weights, intercepts
