"""Label errors and outliers, from embeddings and labels.

Label errors are found by out-of-fold probabilities (:func:`held_out_probabilities`). A label is assumed to
be wrong with some probability, the same for all images, and then any other class with equal probability;
maximum likelihood gives that probability and so the number of errors (:func:`label_errors`).
On artificial errors (``python -m benchmarks.label_errors``) the number is closer to the truth than that of
confident learning (Northcutt et al., 2021), above all if there are few errors or none.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from promptboost.baselines import Indices
from promptboost.boosting.residual import held_out_prediction, spread_metric
from promptboost.boosting.scale import stratified_folds
from promptboost.errors import EmbeddingError, LabelError
from promptboost.progress import Progress, no_progress

Floats = NDArray[np.float64]

_FOLDS = 5
# How far out an image is, in deviations of all: the cube root makes squared distances nearly normal.
_FAR = 3.5
_NORMAL = 1.4826  # the deviation of normal numbers, in medians of what they are off theirs
_FACTORS = np.geomspace(0.125, 8.0, 25)  # on logits
# Share of the first pass: with few wrong labels it ranks better than the second, with many worse.
_FIRST = 0.25
_NEIGHBOURS, _BLOCK = 20, 1024
_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class Suspects:
    """Suspicious images; arrays are of shape (n,)."""

    order: Indices  # all images, the most suspicious first
    count: int  # the number of wrong labels, by the sum of the scores, or of outliers
    scores: Floats  # the probability that the label is wrong, or robust deviations of an outlier
    suggested: Indices  # the most probable of the other classes, or the nearest class
    share: float | None = None  # of wrong labels, under which the labels are most probable


def label_errors(probabilities: ArrayLike, labels: ArrayLike) -> Suspects:
    """Rank images by how probable it is that their label is wrong, and estimate how many are.

    `probabilities`, (n, K), are those of a classifier that has not learned from the image.
    """
    chances, y = _checked(probabilities, labels)
    n, K = chances.shape
    each = np.arange(n)
    of_label = chances[each, y]
    share = _share_wrong(of_label, (1 - of_label) / (K - 1))
    posterior = chances * (share / (K - 1))
    posterior[each, y] = of_label * (1 - share)
    posterior /= np.maximum(posterior.sum(axis=1, keepdims=True), _TINY)
    scores = 1 - posterior[each, y]
    others = chances.copy()
    others[each, y] = -1.0
    order = np.lexsort((each, of_label, -scores))
    return Suspects(order, round(scores.sum()), scores, others.argmax(axis=1), share)


def _share_wrong(right: Floats, wrong: Floats) -> float:
    """Return the share of wrong labels of greatest likelihood, from 0 to a half, by bisection.

    `right` and `wrong` are the probabilities of each label if it is right, and if it is wrong. The
    likelihood is concave. One more image with a right label breaks ties.
    """

    def slope(share: float) -> float:
        likelihoods = np.maximum((1 - share) * right + share * wrong, _TINY)
        return float(((wrong - right) / likelihoods).sum()) - 1 / (1 - share)

    low, high = 0.0, 0.5
    if slope(low) <= 0:
        return low
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return low


def held_out_probabilities(
    embeddings: ArrayLike,
    labels: ArrayLike,
    unseen_rows: ArrayLike,
    progress: Progress = no_progress,
) -> Floats:
    """Return out-of-fold probabilities of each image, from text and a residual.

    A residual is learned without each of five folds, then once more without the images whose label
    looked wrong; the probabilities are a weighted mean of both. An image that is the only one of its class
    is classified by the text alone.

    Class rows and classifiers of a fold are learned without its labels. The factors on their logits, the
    temperature, and the images that are left out of the second pass are chosen with all labels: four
    factors and a temperature for all images.

    `unseen_rows`, (K, D), are class embeddings of texts that no image influenced, such as the mean of a
    pool.
    """
    X, y = np.asarray(embeddings, dtype=np.float32)[:, None], np.asarray(labels, dtype=np.int64)
    fold = stratified_folds(y, _FOLDS)
    logits = held_out_prediction(X, y, unseen_rows, fold, progress=progress)
    first = _tempered(logits, y)
    doubted = confident_errors(softmax(logits.astype(np.float64), axis=1), y)
    if not 0 < len(doubted) < len(y):
        return first
    trusted = np.ones(len(y))
    trusted[doubted] = 0
    logits = held_out_prediction(X, y, unseen_rows, fold, weights=trusted, progress=progress)
    mean = _FIRST * first + (1 - _FIRST) * _tempered(logits, y)
    return _tempered(np.log(np.maximum(mean, _TINY)), y)


def _tempered(logits: NDArray[np.floating], labels: Indices) -> Floats:
    """Return probabilities with the temperature of greatest likelihood if some labels are wrong.

    Undetected wrong labels make probabilities too flat, and then no label is suspicious. Without the
    images that were doubted, they are too sharp, and too many labels are.
    """
    best, most = softmax(logits.astype(np.float64), axis=1), -np.inf
    for factor in _FACTORS:
        scaled = logits * logits.dtype.type(factor)
        chances = softmax(scaled.astype(np.float64), axis=1)
        right = chances[np.arange(len(labels)), labels]
        wrong = (1 - right) / (chances.shape[1] - 1)
        share = _share_wrong(right, wrong)
        likelihoods = np.maximum((1 - share) * right + share * wrong, _TINY)
        likelihood = float(np.log(likelihoods).sum()) + np.log(1 - share)
        if likelihood > most:
            best, most = chances, likelihood
    return np.asarray(best)


def confident_errors(probabilities: ArrayLike, labels: ArrayLike) -> Indices:
    """Return the images whose label confident learning doubts, the least probable first.

    Their number is that of the images with a class that is more probable than their label and at least
    as probable as on average for the images of that class; they are ranked by the probability of the
    label relative to its average. Arguments are those of :func:`label_errors`.
    """
    chances, y = _checked(probabilities, labels)
    n, K = chances.shape
    each, sizes = np.arange(n), np.bincount(y, minlength=K)
    of_label = chances[each, y]
    means = np.bincount(y, weights=of_label, minlength=K) / np.maximum(sizes, 1)
    thresholds = np.where(sizes > 0, means, np.inf)
    # A mean may be an ulp above numbers that are all the same.
    sure = np.where(chances >= thresholds - 1e-9, chances, 0.0)
    doubted = int((sure.max(axis=1) > of_label).sum())
    return np.lexsort((each, of_label / np.maximum(thresholds[y], _TINY)))[:doubted]


def find_outliers(embeddings: ArrayLike, labels: ArrayLike) -> Suspects:
    """Find images that are far from every class and from their nearest images.

    Two distances have equal weight: to the mean of the nearest class (Mahalanobis) and to the twenty
    nearest images (cosine). The label of an image matters only for the mean of its class, from which the
    image is left out. The only image of a class is never an outlier.
    """
    X, y = np.asarray(embeddings, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if X.ndim != 2 or not X.size or not np.isfinite(X).all():
        raise EmbeddingError(f"embeddings must be finite and of shape (n, D), got {X.shape}")
    if y.shape != X.shape[:1] or y.min() < 0:
        raise LabelError(f"labels must be {len(X)} class numbers, from 0")
    classes, index, sizes = np.unique(y, return_inverse=True, return_counts=True)
    squares, alone = _to_classes(X, index, sizes), sizes[index] == 1
    scores, each = np.zeros(len(X)), np.arange(len(X))
    if not alone.all():
        ways = (np.cbrt(squares.min(axis=1)), np.cbrt(_to_neighbors(X)))
        both = sum(_deviations(way, ~alone) for way in ways)
        scores = np.where(alone, 0.0, _deviations(np.asarray(both), ~alone))
    order = np.lexsort((each, -scores))
    return Suspects(order, int((scores > _FAR).sum()), scores, classes[squares.argmin(axis=1)])


def _to_classes(X: Floats, index: Indices, sizes: Indices) -> Floats:
    """Return squared distances to the mean of each class, (n, K), leaving out the image itself."""
    X = X - X.mean(axis=0)  # squares of small differences of large numbers lose digits
    sums = np.zeros((len(sizes), X.shape[1]))
    np.add.at(sums, index, X)
    means = sums / sizes[:, None]
    metric = np.asarray(spread_metric(X[:, None], index.astype(np.int64)), dtype=np.float64)
    inverse = np.linalg.pinv(metric)
    squares = np.einsum("nd,nd->n", X @ inverse, X)[:, None] - 2 * X @ inverse @ means.T
    squares += np.einsum("kd,kd->k", means @ inverse, means)
    squares = np.maximum(squares, 0.0)
    each, own_size = np.arange(len(X)), sizes[index]
    squares[each, index] *= (own_size / np.maximum(own_size - 1, 1)) ** 2
    if len(sizes) > 1:
        squares[each[own_size == 1], index[own_size == 1]] = np.inf  # it is its own_size mean
    return np.asarray(squares)


def _to_neighbors(X: Floats) -> Floats:
    """Return one minus the mean cosine to the nearest other images, a block at a time."""
    unit = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), _TINY)
    few = min(_NEIGHBOURS, max(len(X) // 4, 1), len(X) - 1)
    if not few:
        return np.zeros(len(X))
    near = np.empty(len(X))
    for start in range(0, len(X), _BLOCK):
        block = np.arange(start, min(start + _BLOCK, len(X)))
        cosines = unit[block] @ unit.T
        cosines[np.arange(len(block)), block] = -2.0
        near[block] = np.partition(cosines, -few, axis=1)[:, -few:].mean(axis=1)
    return np.maximum(1 - near, 0.0)


def _deviations(values: Floats, counted: NDArray[np.bool_]) -> Floats:
    """Return how far numbers are above the median, in robust deviations."""
    middle = np.median(values[counted])
    spread = _NORMAL * np.median(np.abs(values[counted] - middle))
    # Where nearly all are the same, what rounding makes of them is no difference.
    return np.asarray((values - middle) / max(spread, 1e-3 * abs(middle), 1e-9))


def _checked(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.int64]]:
    chances, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if chances.ndim != 2 or 0 in chances.shape or not np.isfinite(chances).all():
        raise EmbeddingError(f"probabilities must be finite and (n, K), got {chances.shape}")
    if y.shape != chances.shape[:1] or y.min() < 0 or y.max() >= chances.shape[1]:
        raise LabelError(f"labels must be {len(chances)} class numbers below {chances.shape[1]}")
    return chances, y
