"""Logistic regression on the same embeddings: what the same images teach without any text.

It is scikit-learn's, imported when it is asked for: the import takes longer than many fits.
"""

import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.base import FewShotSet, Group, Method, Transfer, check_two_classes
from promptboost.baselines.fitted import LinearClassifier
from promptboost.boosting.composition import log_losses
from promptboost.boosting.scale import dealt
from promptboost.encoders.base import Encoder
from promptboost.pool import PromptPool
from promptboost.progress import Progress, no_progress
from promptboost.threads import single_blas_thread

#: Inverse strengths of regularisation to choose from. Rows have length one, so little is needed.
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)

#: Used where a class has one image only, and nothing can be set aside to choose by.
FIXED_C = 10.0

_FOLDS = 3
_STAGE = "fitting logistic regression"
# Products of a step from which threads save more than they cost: some twenty milliseconds of one core.
_WORTH_THREADS = 500_000_000


@dataclass(frozen=True)
class Logistic(Method):
    """Logistic regression on the rows of images and their crops; no text is read.

    How strongly it is held back is chosen by cross-validation over the few images, and kept in
    the classifier's details as ``C``.

    Parameters
    ----------
    seed : int
        Divides the images into folds.
    """

    name: ClassVar[str] = "logistic"
    group: ClassVar[Group] = Group.IMAGES
    carries_over: ClassVar[Transfer] = Transfer.REFIT

    seed: int = 0

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that every class has images."""
        check_two_classes(shots, "logistic regression", "reads no text")

    def fit(
        self,
        shots: FewShotSet,
        pool: PromptPool,
        encoder: Encoder,
        progress: Progress = no_progress,
    ) -> LinearClassifier:
        """Fit; the pool is not looked at."""
        self.check(shots, pool, encoder)
        views = shots.images.views(encoder)
        weights, intercepts, C = fit_probe(views, shots.labels, seed=self.seed, progress=progress)
        arrays = weights.astype(np.float32), intercepts.astype(np.float32)
        return LinearClassifier(self.origin(shots, encoder), *arrays, details={"C": C})


def _folds(labels: NDArray[np.int64]) -> int:
    """Return into how many parts the images are dealt to choose C; 1 if nothing can be set aside."""
    return min(int(np.bincount(labels).min()), _FOLDS)


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
    folds = _folds(labels)
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
