"""Which learning images look wrongly labeled: chances of their labels, in sample and set aside."""

import numpy as np
from numpy.typing import NDArray

from benchmarks.findings.sets import Floats, Words
from promptboost.baselines import FIXED_C
from promptboost.boosting import GradientSettings, Shots
from promptboost.boosting.composition import scores_of
from promptboost.boosting.gradient.compose import compose_by_gradient
from promptboost.boosting.scale import stratified_folds

Chances = NDArray[np.float64]
Labels = NDArray[np.int64]

FOLDS = 4


def precision(suspicion: Chances, wrong: NDArray[np.bool_]) -> float:
    """Return the share of wrong labels among as many most suspicious ones as are wrong, in per cent.

    Examples
    --------
    >>> precision(np.array([0.9, 0.1, 0.8, 0.2]), np.array([True, True, False, False]))
    50.0
    """
    suspects = np.argsort(-suspicion, kind="stable")[: int(wrong.sum())]
    return 100 * float(wrong[suspects].mean())


def doubt(chances: Chances, labels: Labels) -> Chances:
    """Return 1 − p of each image's own label.

    It is the length of the image's part in the composer's gradient by its own class row, but for the
    factor β that all have.
    """
    return np.asarray(1 - chances[np.arange(len(labels)), labels])


def in_sample(originals: Floats, classes: Floats, scale: float) -> Chances:
    """Return the chances of all classes under a fit, for the images it was fitted on."""
    return _softmax(scale * (originals @ classes.T).astype(np.float64))


def set_aside(shots: Shots, words: Words, settings: GradientSettings) -> Chances:
    """Return the chances of all classes under a fit that did not see the image.

    Images are split into four folds as for the choice of the scale. A class of one image has none in
    the fold that sets it aside; the composer still knows it by its sentences.
    """
    assert shots.views is not None
    fold = stratified_folds(shots.labels, FOLDS)
    scores = np.empty((len(fold), len(words.grid.prompts)))
    for part in range(FOLDS):
        kept, aside = fold != part, fold == part
        rows = shots.views[kept]
        y = shots.labels[kept].repeat(rows.shape[1])
        weak = compose_by_gradient(
            np.ascontiguousarray(rows.reshape(len(y), -1)),
            y,
            np.ones(len(y)),
            words.grid,
            settings,
            rng=np.random.default_rng(0),
        )
        scores[aside] = scores_of(weak, shots.originals[aside], words.grid)
    return _softmax(settings.scale * scores)


def probe_set_aside(originals: Floats, labels: Labels, seed: int) -> Chances:
    """Return the chances of all classes under a logistic regression that did not see the image."""
    import warnings

    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    model = LogisticRegression(C=FIXED_C, max_iter=2000, tol=1e-3)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # A class of fewer images than folds is set aside whole by one of them: no chance for it there.
        warnings.filterwarnings("ignore", message="The least populated class")
        warnings.filterwarnings("ignore", message="Number of classes in training fold")
        rows = originals.astype(np.float64)
        chances = cross_val_predict(model, rows, labels, cv=folds, method="predict_proba")
    return np.asarray(chances)


def cleanlab_doubt(chances: Chances, labels: Labels, method: str = "self_confidence") -> Chances:
    """Return what cleanlab thinks of each label, by its default method or another: high is bad."""
    try:
        from cleanlab.rank import get_label_quality_scores
    except ImportError as missing:
        raise SystemExit(
            "the question 'noise' compares with cleanlab, which is not installed; type: "
            "pip install cleanlab"
        ) from missing
    return np.asarray(1 - get_label_quality_scores(labels, chances, method=method))


def _softmax(logits: Chances) -> Chances:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
