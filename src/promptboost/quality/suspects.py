"""Images to look at: labels that are probably wrong, and images that are like no class.

Everything is asked of embeddings and labels. Whether a label is wrong is judged by probabilities that do
not know it (:func:`set_aside_probabilities`). A label is taken to be wrong with some probability, the
same for all images, and then to be any other; which one suits all labels best is what the labels say
themselves (:func:`label_errors`), and so is how many are wrong. On labels that were made wrong
(``python -m benchmarks.label_errors``) that number is nearer than the one of confident learning
(Northcutt et al., 2021), above all where few or none are wrong.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.baselines.measures import Indices
from promptboost.boosting.residual import set_aside_logits, spread_metric
from promptboost.boosting.scale import dealt
from promptboost.errors import EmbeddingError, LabelError
from promptboost.progress import Progress, no_progress

Floats = NDArray[np.float64]

_FOLDS = 5
# How far out an image is, in deviations of all: the cube root makes squared distances nearly normal.
_FAR = 3.5
_NORMAL = 1.4826  # the deviation of normal numbers, in medians of what they are off theirs
_SHARPNESS = np.geomspace(1.0, 8.0, 13)
_NEIGHBOURS, _BLOCK = 20, 1024
_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class LabelErrors:
    """Which labels are probably wrong.

    Attributes
    ----------
    order : array of shape (n,)
        All images, the most suspicious first.
    count : int
        How many of them to look at: as many as are wrong, by the sum of the scores.
    scores : array of shape (n,)
        The probability that the label is wrong.
    suggested : array of shape (n,)
        The most probable of the other classes.
    share : float
        The share of wrong labels under which the labels are most probable.
    joint : array of shape (K, K)
        How many images with the label i are of class j, as estimated; its sum is n.
    """

    order: Indices
    count: int
    scores: Floats
    suggested: Indices
    share: float
    joint: Floats


def label_errors(probabilities: ArrayLike, labels: ArrayLike) -> LabelErrors:
    """Rank images by how probable it is that their label is wrong, and estimate how many are.

    Parameters
    ----------
    probabilities : array of shape (n, K)
        Of each image, by a classifier that has not learned from it.
    labels : array of shape (n,)
        Class numbers.

    Examples
    --------
    >>> chances = [[0.9, 0.1], [0.99, 0.01], [0.9, 0.1], [0.01, 0.99], [0.1, 0.9], [0.99, 0.01]]
    >>> found = label_errors(chances, [0, 0, 0, 1, 1, 1])
    >>> found.order[: found.count], found.suggested[5].item(), found.scores.round(2)
    (array([5]), 0, array([0.02, 0.  , 0.02, 0.  , 0.02, 0.94]))
    """
    chances, y = _checked(probabilities, labels)
    n, K = chances.shape
    each = np.arange(n)
    own = chances[each, y]
    share = _share_wrong(own, (1 - own) / (K - 1))
    posterior = chances * (share / (K - 1))
    posterior[each, y] = own * (1 - share)
    posterior /= np.maximum(posterior.sum(axis=1, keepdims=True), _TINY)
    scores = 1 - posterior[each, y]
    joint = np.zeros((K, K))
    np.add.at(joint, y, posterior)
    others = chances.copy()
    others[each, y] = -1.0
    order = np.lexsort((each, own, -scores))
    return LabelErrors(order, round(scores.sum()), scores, others.argmax(axis=1), share, joint)


def _share_wrong(right: Floats, wrong: Floats) -> float:
    """Return the share of wrong labels of greatest likelihood, from 0 to a half, by bisection.

    `right` and `wrong` are how probable each label is if it is right, and if it is any other. The
    likelihood is concave. One more image, whose label is right, breaks the tie where nothing is known.
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


def set_aside_probabilities(
    embeddings: ArrayLike,
    labels: ArrayLike,
    unseen_rows: ArrayLike,
    progress: Progress = no_progress,
) -> Floats:
    """Return each image's probabilities by words, and by what other images teach beside them.

    Images are dealt into five folds, and a residual is learned without each. Then it is done once more:
    images whose label looks wrong after the first time teach nothing the second time. An image that is
    the only one of its class is judged by words alone.

    Parameters
    ----------
    embeddings : array of shape (n, D)
        One row of length one for each image.
    labels : array of shape (n,)
        Class numbers.
    unseen_rows : array of shape (K, D)
        Class rows of words that have seen no image, such as the mean of a pool.
    progress : callable, optional
        Called before each fold, and at the end of either time.

    Examples
    --------
    >>> heights = np.array([0.8, 0.6, 0.9, -0.8, -0.6, 0.7])
    >>> images = np.stack([np.sqrt(1 - heights**2), heights], axis=1)
    >>> text = np.array([[0.0, 1.0], [0.0, -1.0]])
    >>> set_aside_probabilities(images, [0, 0, 0, 1, 1, 1], text).argmax(axis=1)
    array([0, 0, 0, 1, 1, 0])
    """
    X, y = np.asarray(embeddings, dtype=np.float32)[:, None], np.asarray(labels, dtype=np.int64)
    fold = dealt(y, _FOLDS)
    first = _softmax(set_aside_logits(X, y, unseen_rows, fold, progress=progress))
    doubted = confident_errors(first, y)
    if not 0 < len(doubted) < len(y):
        return first
    trusted = np.ones(len(y))
    trusted[doubted] = 0
    second = set_aside_logits(X, y, unseen_rows, fold, weights=trusted, progress=progress)
    return _sharpened(second, y)


def _sharpened(logits: NDArray[np.floating], labels: Indices) -> Floats:
    """Return probabilities as sure as suits the labels if some are wrong.

    Wrong labels that nobody doubted would otherwise make all images look uncertain where classes are
    far apart, and then no label is suspicious.
    """
    best, most = _softmax(logits), -np.inf
    for factor in _SHARPNESS:
        chances = _softmax(logits * logits.dtype.type(factor))
        right = chances[np.arange(len(labels)), labels]
        wrong = (1 - right) / (chances.shape[1] - 1)
        share = _share_wrong(right, wrong)
        likelihoods = np.maximum((1 - share) * right + share * wrong, _TINY)
        likelihood = float(np.log(likelihoods).sum()) + np.log(1 - share)
        if likelihood > most:
            best, most = chances, likelihood
    return best


def confident_errors(probabilities: ArrayLike, labels: ArrayLike) -> Indices:
    """Return the images whose label confident learning doubts, the least probable first.

    As many as have another class that is more probable than their label, and at least as probable as it
    is, on average, for its own images. Those are taken whose label is the least probable, beside its
    average. Arguments are those of :func:`label_errors`, but the probabilities may be no surer than
    wrong labels made them.

    Examples
    --------
    >>> chances = [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.2, 0.8], [0.1, 0.9], [0.9, 0.1]]
    >>> confident_errors(chances, [0, 0, 0, 1, 1, 1])
    array([5])
    """
    chances, y = _checked(probabilities, labels)
    n, K = chances.shape
    each, sizes = np.arange(n), np.bincount(y, minlength=K)
    own = chances[each, y]
    means = np.bincount(y, weights=own, minlength=K) / np.maximum(sizes, 1)
    thresholds = np.where(sizes > 0, means, np.inf)
    # A mean may be an ulp above numbers that are all the same.
    sure = np.where(chances >= thresholds - 1e-9, chances, 0.0)
    doubted = int((sure.max(axis=1) > own).sum())
    return np.lexsort((each, own / np.maximum(thresholds[y], _TINY)))[:doubted]


@dataclass(frozen=True)
class Outliers:
    """Images by how far they lie from every class.

    Attributes
    ----------
    order : array of shape (n,)
        All images, the farthest first.
    count : int
        How many of them are too far.
    scores : array of shape (n,)
        How far, in robust deviations from the median image.
    nearest : array of shape (n,)
        The nearest class.
    """

    order: Indices
    count: int
    scores: Floats
    nearest: Indices


def find_outliers(embeddings: ArrayLike, labels: ArrayLike) -> Outliers:
    """Find images that are far from every class, and from the images nearest to them.

    Both distances count alike: to the mean of the nearest class, beside how far images of a class
    spread (Mahalanobis), and to the twenty nearest images (cosine). The label of an image does not matter,
    but for its own part in the mean of its class, which is taken out. One that is the only one of
    its class is never called an outlier.

    Parameters
    ----------
    embeddings : array of shape (n, D)
        One row for each image.
    labels : array of shape (n,)
        Class numbers.

    Examples
    --------
    >>> images = np.random.default_rng(0).normal(size=(60, 16)) + np.eye(16)[[0, 1] * 30] * 20
    >>> images[7] = np.eye(16)[5] * 30
    >>> found = find_outliers(images, [0, 1] * 30)
    >>> found.order[: found.count]
    array([7])
    """
    X, y = np.asarray(embeddings, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if X.ndim != 2 or not X.size or not np.isfinite(X).all():
        raise EmbeddingError(f"embeddings must be finite and of shape (n, D), got {X.shape}")
    if y.shape != X.shape[:1] or y.min() < 0:
        raise LabelError(f"labels must be {len(X)} class numbers, from 0")
    classes, place, sizes = np.unique(y, return_inverse=True, return_counts=True)
    squares, alone = _to_classes(X, place, sizes), sizes[place] == 1
    scores, each = np.zeros(len(X)), np.arange(len(X))
    if not alone.all():
        ways = (np.cbrt(squares.min(axis=1)), np.cbrt(_to_neighbors(X)))
        both = sum(_deviations(way, ~alone) for way in ways)
        scores = np.where(alone, 0.0, _deviations(np.asarray(both), ~alone))
    order = np.lexsort((each, -scores))
    return Outliers(order, int((scores > _FAR).sum()), scores, classes[squares.argmin(axis=1)])


def _to_classes(X: Floats, place: Indices, sizes: Indices) -> Floats:
    """Return squared distances to the mean of each class, (n, K), without an image's own part in it."""
    X = X - X.mean(axis=0)  # squares of small differences of large numbers lose digits
    sums = np.zeros((len(sizes), X.shape[1]))
    np.add.at(sums, place, X)
    means = sums / sizes[:, None]
    metric = np.asarray(spread_metric(X[:, None], place.astype(np.int64)), dtype=np.float64)
    inverse = np.linalg.pinv(metric)
    squares = np.einsum("nd,nd->n", X @ inverse, X)[:, None] - 2 * X @ inverse @ means.T
    squares += np.einsum("kd,kd->k", means @ inverse, means)
    squares = np.maximum(squares, 0.0)
    each, own = np.arange(len(X)), sizes[place]
    squares[each, place] *= (own / np.maximum(own - 1, 1)) ** 2
    if len(sizes) > 1:
        squares[each[own == 1], place[own == 1]] = np.inf  # it is its own mean
    return np.asarray(squares)


def _to_neighbors(X: Floats) -> Floats:
    """Return one minus the mean cosine to the nearest other images, a block at a time."""
    unit = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), _TINY)
    few = min(_NEIGHBOURS, max(len(X) // 4, 1), len(X) - 1)
    if not few:
        return np.zeros(len(X))
    near = np.empty(len(X))
    for start in range(0, len(X), _BLOCK):
        part = np.arange(start, min(start + _BLOCK, len(X)))
        cosines = unit[part] @ unit.T
        cosines[np.arange(len(part)), part] = -2.0
        near[part] = np.partition(cosines, -few, axis=1)[:, -few:].mean(axis=1)
    return np.maximum(1 - near, 0.0)


def _deviations(values: Floats, counted: NDArray[np.bool_]) -> Floats:
    """Return how far numbers are above the median, in robust deviations."""
    middle = np.median(values[counted])
    spread = _NORMAL * np.median(np.abs(values[counted] - middle))
    # Where nearly all are the same, what rounding makes of them is no difference.
    return np.asarray((values - middle) / max(spread, 1e-3 * abs(middle), 1e-9))


def _softmax(logits: NDArray[np.floating]) -> Floats:
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _checked(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.int64]]:
    chances, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if chances.ndim != 2 or 0 in chances.shape or not np.isfinite(chances).all():
        raise EmbeddingError(f"probabilities must be finite and (n, K), got {chances.shape}")
    if y.shape != chances.shape[:1] or y.min() < 0 or y.max() >= chances.shape[1]:
        raise LabelError(f"labels must be {len(chances)} class numbers below {chances.shape[1]}")
    return chances, y
