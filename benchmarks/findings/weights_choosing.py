"""How strongly to hold real weights back: chosen as promptboost chooses the logit scale."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.findings.sets import Floats
from benchmarks.findings.weights_problem import Problem
from benchmarks.findings.weights_solvers import unconstrained
from promptboost.boosting.composition import log_losses
from promptboost.boosting.scale import stratified_folds

#: Tried from strong to weak.
STRENGTHS = (20.0, 2.0, 0.2, 0.02)
#: Where a class has one image only, and none can be set aside: what the spread is by default.
FIXED_STRENGTH = 2.0

_MOST_FOLDS = 4
# Each strength goes on from where the stronger one before it ended, so it needs few.
_ITERATIONS = 40
_LOUDNESS = np.geomspace(0.1, 10.0, 41)


def choose_strength(problem: Problem, originals: Floats, labels: NDArray[np.int64]) -> float:
    """Choose by the log loss on images set aside, at the loudness that suits a strength best.

    The strongest is taken that is no worse than the best beyond one standard error of the difference.
    """
    folds = min(int(np.bincount(labels).min()), _MOST_FOLDS)
    if folds < 2:
        return FIXED_STRENGTH
    logits = np.empty((len(STRENGTHS), len(labels), len(problem.atoms)))
    fold = stratified_folds(labels, folds)
    views = len(problem.labels) // len(labels)
    for part in range(folds):
        kept = np.repeat(fold != part, views)
        posed = problem.of(problem.rows[kept], problem.labels[kept])
        weights = posed.start()
        for number, strength in enumerate(STRENGTHS):
            weights = unconstrained(replace(posed, strength=strength), _ITERATIONS, weights).weights
            scores = originals[fold == part] @ posed.classes(weights).T
            logits[number, fold == part] = problem.scale * scores
    losses = np.stack([_at_best_loudness(one, labels) for one in logits])
    behind = losses - losses[losses.mean(axis=1).argmin()]
    doubt = behind.std(axis=1, ddof=1) / np.sqrt(len(labels))
    return STRENGTHS[np.flatnonzero(behind.mean(axis=1) <= doubt)[0]]


def _at_best_loudness(
    logits: NDArray[np.float64], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    tried = np.stack([log_losses(logits * loud, labels) for loud in _LOUDNESS])
    return np.asarray(tried[tried.mean(axis=1).argmin()])
