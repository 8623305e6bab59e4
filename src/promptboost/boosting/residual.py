r"""The residual: a correction of the text, learned from the training images.

The logits of text and residual are :math:`x \cdot (a W + V)^T`: W are the class rows of the text, a is the
factor on its cosines, and V is the residual, a mixture of linear classifiers of the images:

* a Gaussian classifier: class means, and one covariance matrix for all classes; without crops two of them,
  which shrink the covariance a little and much;
* logistic regression of what the text misses, with a strong L2 penalty;
* logistic regression with a weak penalty.

One row is added to all classes: images unlike the training images then have small logits.

They measure distances by a metric in which the directions in which crops of one image differ (without
crops: images of one class) count less. They are fitted to centered rows, every class with the same total
weight, and their intercepts are moved to the mean image, so that V is one matrix.

The factors of text and classifiers are those of the least log loss on held-out images, none below zero:
each fold is predicted by a text and by classifiers that were learned without it. With one image per class
nothing can be held out: then V is the first of the regressions, and counts the more, the fewer images are
classified correctly by a text that has seen none of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting.compiled import in_threads
from promptboost.boosting.composition import log_losses, rows_at_once
from promptboost.boosting.grid import GridPool
from promptboost.boosting.scale import (
    FoldClassRows,
    balanced_weights,
    held_out_folds,
    sample_prompts,
)
from promptboost.errors import SettingError
from promptboost.progress import Progress, no_progress

Floats = NDArray[np.floating]
Indices = NDArray[np.int64]

#: L2 penalties of the two logistic regressions, on rows whose mean square length is one.
PENALTIES = (0.2, 0.02)
#: Least share of the metric that is the same in all directions.
EVENNESS = 0.03
#: With a residual, the text keeps at least one of these shares of the factor that it has without one.
TEXT_SHARES = (1.0, 0.5, 0.25, 0.1)

#: Share of the images of a class that would be recognized, had it been added by words alone,
RECOGNIZED = 0.7
#: unless the others would lose more than this share of theirs.
LOST = 0.015

# Square of the length of the mean image below which intercepts cannot be moved to it.
_SCATTERED = 0.02
# Images that lie further from the mean than this are hardly moved along it, and say nothing of the lift.
_NEAR = 0.2
_LEAST_SCALE = 1e-3
# Least standard deviation of the cosines with the mean image.
_LEAST_SPREAD = 1e-2
# A mixture is about as good as the best if its loss is at most this many standard errors larger.
_AS_GOOD = 0.1
_STAGE = "fitting the residual"
# Logits that are computed at once.
_LOGITS = 2**20
_HELD_OUT = "classifying held-out images"


@dataclass(frozen=True)
class Residual:
    """What is added to the class rows of a text.

    Attributes
    ----------
    weights : array of shape (K, D)
        V: the logits of embeddings X are ``X @ (text_scale * W + weights).T``. If images add nothing to the
        text, it only moves class rows along the mean image, so that all have the same score there.
    text_scale : float
        a: the factor on the text's class rows.
    losses : tuple of float or None
        Mean log loss on held-out images of the text alone, and with the residual; None if no image
        could be held out.
    held_out : tuple of array or None
        Logits (m, K) of held-out images by what was learned without them, their labels, and their positions
        among the training images.

    Examples
    --------
    >>> residual = Residual(np.array([[0.0, 2.0], [0.0, 0.0]]), text_scale=10.0)
    >>> residual.class_rows(np.array([[1.0, 0.0], [0.0, 1.0]]))
    array([[10.,  2.],
           [ 0., 10.]])
    """

    weights: Floats = field(repr=False)
    text_scale: float
    losses: tuple[float, float] | None = None
    held_out: tuple[Floats, Indices, Indices] | None = field(default=None, repr=False)

    @property
    def is_used(self) -> bool:
        """Whether there is a residual at all."""
        return bool(self.weights.any())

    def calibration(self, scale: float = 1.0) -> Floats | None:
        """Return the largest logit of each held-out image, and the probability of its true class.

        Each in increasing order, shape (2, m), after multiplication of the logits by `scale`. None if no
        image could be held out.

        Examples
        --------
        >>> held_out = np.array([[0.0, 2.0], [1.0, 1.0]]), np.array([1, 0]), np.array([0, 1])
        >>> Residual(np.zeros((2, 3)), 1.0, held_out=held_out).calibration().round(2)
        array([[1.  , 2.  ],
               [0.5 , 0.88]])
        """
        if self.held_out is None:
            return None
        logits, labels, _ = self.held_out
        logits = logits * scale
        losses = log_losses(logits, labels)
        return np.sort([logits.max(axis=1), np.exp(-losses)], axis=1)

    def class_rows(self, text_rows: ArrayLike) -> Floats:
        """Add the residual to the class rows of its text, (K, D): rows whose products are logits."""
        return np.asarray(np.asarray(text_rows) * self.text_scale + self.weights)


def fit_residual(
    embeddings: ArrayLike,
    labels: ArrayLike,
    text_rows: ArrayLike,
    unseen_rows: ArrayLike,
    *,
    folds: FoldClassRows | None = None,
    groups: Indices | None = None,
    weights: ArrayLike | None = None,
    progress: Progress = no_progress,
) -> Residual:
    """Fit the residual of a text, and the factor on the text.

    Parameters
    ----------
    embeddings : array of shape (n, 1 + V, D)
        Each image and its crops.
    labels : array of shape (n,)
        Class numbers.
    text_rows : array of shape (K, D)
        Class rows of the text, composed on these images.
    unseen_rows : array of shape (K, D) or (U, K, D)
        Class rows of texts without training images, such as the mean of the pool's templates; of several,
        the one that suits the images best is used.
    folds : FoldClassRows, optional
        Texts composed without the images of each fold. By default, the unseen text stands for them.
    groups : array of shape (n,), optional
        Without `folds`, images of one class and group are held out together.
    weights : array of shape (n,), optional
        Sample weights; uniform by default. Classes have the same total weight in any case.
    progress : callable, optional
        Called with stage, done and total.

    Examples
    --------
    The text confuses up with down; the images correct it.

    >>> images = np.array([[[0.6, 0.8]], [[0.8, 0.6]], [[0.6, -0.8]], [[0.8, -0.6]]])
    >>> labels, text = [0, 0, 1, 1], np.array([[0.0, -1.0], [0.0, 1.0]])
    >>> residual = fit_residual(images, labels, text, text)
    >>> (images[:, 0] @ residual.class_rows(text).T).argmax(axis=1)
    array([0, 0, 1, 1])
    """
    X, y = np.asarray(embeddings), np.asarray(labels, dtype=np.int64)
    text, unseen = np.asarray(text_rows), np.asarray(unseen_rows)
    counted, metrics = balanced_weights(y, weights), _metrics(X, y)
    unseen = unseen.reshape(-1, *text.shape)
    fold, texts = (held_out_folds(y, groups), None) if folds is None else (folds.fold, folds.rows)
    progress(_STAGE, 0, 1)
    guess = _unseen_text(X[:, 0], y, counted, unseen)
    terms = _linear_terms(X, y, counted, text, guess, metrics)
    used, losses, held_out = fold >= 0, None, None
    if used.any():
        logits = held_out_logits(X, y, fold, texts, unseen, weights=weights, metrics=metrics)
        factors, losses = _text_mixture(logits[:, used], y[used], counted[used])
        held_out = np.tensordot(factors, logits[:, used], 1), y[used], np.flatnonzero(used)
        if X.shape[1] == 1:
            # Without crops the metric, too, comes from the images: with all of them it is better.
            factors[1:] *= np.sqrt(len(y) / np.sum(fold != 0))
    else:
        _, scale, skill = guess
        size = float((X[:, 0] @ terms[2].T).std()) or 1.0
        factors = np.zeros(len(terms))
        factors[0] = min(2 * np.sqrt(skill), 1.0) * scale
        factors[2] = np.sqrt((1 - skill) * np.log(len(text))) / size
    progress(_STAGE, 1, 1)
    scale = max(float(factors[0]), _LEAST_SCALE)
    residual = (np.tensordot(factors, terms, 1) - factors[0] * text).astype(X.dtype)
    if held_out is not None:
        typical, added = _typicality(X[:, 0], held_out[0])
        # In float64: what all classes share is large, and cancels in probabilities.
        residual = residual + typical
        held_out = held_out[0] + added[used, None], *held_out[1:]
    return Residual(residual, scale, losses, held_out)


def _typicality(rows: Floats, logits: Floats) -> tuple[Floats, Floats]:
    """Return a row to add to all class rows, and its products with each image, learned without that.

    It points to the mean image. Probabilities do not depend on it, but images unlike all of the training
    images then have small logits. The products vary as much as the largest logits of held-out images.
    """
    center = rows.mean(axis=0, dtype=np.float64)
    if center @ center < _SCATTERED:
        return np.zeros_like(center), np.zeros(len(rows))
    others = len(rows) * center - rows
    cosines = (rows * others).sum(axis=1) / np.linalg.norm(others, axis=1)
    scale = logits.max(axis=1).std() / max(float(cosines.std()), _LEAST_SPREAD)
    return center / np.linalg.norm(center) * scale, cosines * scale


def held_out_logits(
    embeddings: Floats,
    labels: Indices,
    folds: Indices,
    texts: Floats | None,
    unseen: Floats,
    *,
    weights: ArrayLike | None = None,
    metrics: Sequence[Floats] = (),
    progress: Progress = no_progress,
) -> Floats:
    """Return the logits of each image by a text and by classifiers that were learned without its fold.

    Nothing that is computed for an image depends on the labels of its own fold.

    Parameters
    ----------
    embeddings : array of shape (n, 1 + V, D)
        Each image and its crops.
    labels, folds : array of shape (n,)
        Class and fold of each image; −1 for images in no fold.
    texts : array of shape (F, K, D) or None
        Class rows; number f was composed without the images of fold f. None for those of `unseen` that suit
        the images of the other folds best.
    unseen : array of shape (U, K, D)
        Class rows of texts without training images.
    weights : array of shape (n,), optional
        Sample weights. An image of weight zero has logits, and no classifier learns from it.
    metrics : sequence of array of shape (D, D), optional
        Used where there are crops; see :func:`spread_metric`.
    progress : callable, optional
        Called with stage, done and total.

    Returns
    -------
    array of shape (J, n, K)
        By the text, and by the classifiers of images; zero for images in no fold.
    """
    n, views, dim = embeddings.shape
    n_folds, n_classes = int(folds.max()) + 1, unseen.shape[1]
    logits = np.zeros((1 + (2 if views == 1 else 1) + len(PENALTIES), n, n_classes))
    trusted = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
    done: list[int] = []

    def judge(numbers: slice) -> None:
        for number in range(numbers.start, numbers.stop):
            held_out, learned = folds == number, (folds != number) & (trusted > 0)
            X, y = embeddings[learned], labels[learned]
            fold_metrics = metrics if metrics and views > 1 else _metrics(X, y)
            text = None if texts is None else texts[number]
            counted = balanced_weights(y, trusted[learned])
            guess = _unseen_text(X[:, 0], y, counted, unseen)
            terms = _linear_terms(X, y, counted, text, guess, fold_metrics)
            logits[:, held_out] = embeddings[held_out, 0] @ terms.swapaxes(1, 2)
            done.append(number)
            progress(_HELD_OUT, len(done), n_folds)

    progress(_HELD_OUT, 0, n_folds)
    in_threads(judge, n_folds, 2 * dim**3 + 200 * n * dim * n_classes, chunk=1)
    return logits


def _linear_terms(
    embeddings: Floats,
    labels: Indices,
    weights: Floats,
    text: Floats | None,
    guess: tuple[Floats, float, float],
    metrics: Sequence[Floats],
) -> Floats:
    """Return class rows (J, K, D): the text, a Gaussian classifier, two logistic regressions, and others.

    `guess` is the unseen text with its factor and skill, which stands for the text if that is None.
    Their scores are those on rows centered at the mean image. Classes without images have the mean of the
    others, zero, in all but the text. Each metric has a Gaussian classifier; the regressions use the first.
    The first regression learns what the text misses, whose cosines count as much as the skill of an unseen
    text allows.
    """
    from scipy.linalg import solve_triangular

    unseen, scale, skill = guess
    K, dim = unseen.shape
    center = np.average(embeddings[:, 0], axis=0, weights=weights).astype(np.float64)
    # Between an image, as it is classified later, and the mean of its crops, which varies less.
    rows = (embeddings[:, 0] + embeddings.mean(axis=1, dtype=np.float64)) / 2 - center
    learned, y = np.unique(labels, return_inverse=True)
    count = 1 + len(metrics) + len(PENALTIES)
    terms, scores = np.zeros((count, K, dim)), np.zeros((count, K))
    terms[0] = unseen if text is None else text
    by_text = embeddings[:, 0] @ _level(terms[0], center)[learned].T
    by_text *= np.sqrt(skill) * scale / 2
    offsets = by_text, np.zeros((1, len(learned)))
    done = 1
    for metric in metrics:
        factor = np.linalg.cholesky(metric.astype(np.float64))
        whitened = solve_triangular(factor, rows.T, lower=True).T
        length = np.sqrt(np.average(np.square(whitened).sum(axis=1), weights=weights)) or 1.0
        columns = np.column_stack([whitened / length, np.ones(len(rows))])
        fits = [_gaussian(columns[:, :-1], y, weights)]
        if done == 1:
            fits += _logistic(columns, y, weights, offsets)
        for number, fit in enumerate(fits, start=done):
            fit -= fit.mean(axis=0)
            slopes = solve_triangular(factor, fit[:, :-1].T, lower=True, trans="T").T
            terms[number, learned], scores[number, learned] = slopes / length, fit[:, -1]
        done += len(fits)
    return _level(terms, center, scores)


def _unseen_text(
    images: Floats, labels: Indices, weights: Floats, unseen: Floats
) -> tuple[Floats, float, float]:
    """Return class rows of the unseen text that suits images best, its factor, and its skill.

    Skill is the accuracy above chance, from zero to one: the text has seen no image.
    """
    texts = _level(unseen, np.average(images, axis=0, weights=weights))
    fits = []
    for text in texts:
        cosines = images @ text.T
        factors, loss = _mixture(cosines[None], labels, weights)
        right = np.average(cosines.argmax(axis=1) == labels, weights=weights)
        fits.append((loss, float(factors[0]), float(right)))
    best = int(np.argmin([loss for loss, *_ in fits]))
    _, factor, right = fits[best]
    chance = 1 / unseen.shape[1]
    return texts[best], factor, max((right - chance) / (1 - chance), 0.0)


def _level(class_rows: Floats, center: Floats, intercepts: ArrayLike = 0.0) -> NDArray[np.float64]:
    """Move class rows along the mean image until their scores on it are the intercepts.

    This replaces an intercept, as images hardly differ in their product with the mean image.
    """
    rows = np.asarray(class_rows, dtype=np.float64)
    if center @ center < _SCATTERED:
        return rows
    missing = np.asarray(intercepts) - rows @ center
    missing -= missing.mean(axis=-1, keepdims=True)
    return np.asarray(rows + missing[..., None] * (center / (center @ center)))


def _gaussian(rows: Floats, labels: Indices, weights: Floats) -> Floats:
    """Return slopes and intercepts (K, D + 1) of a Gaussian classifier with unit covariance."""
    onehot = (labels[:, None] == np.arange(labels.max() + 1)) * weights[:, None]
    means = onehot.T @ rows / onehot.sum(axis=0)[:, None]
    return np.column_stack([means, -np.square(means).sum(axis=1) / 2])


def _logistic(
    rows: Floats, labels: Indices, weights: Floats, offsets: Sequence[Floats]
) -> list[Floats]:
    """Return slopes (K, D) of logistic regressions with :data:`PENALTIES`, each added to given logits.

    The rows are turned to their principal axes, each scaled by the square root of its curvature, so that
    few steps suffice.
    """
    from scipy.optimize import minimize

    K, share = int(labels.max()) + 1, weights / weights.sum()
    _, spread, axes = np.linalg.svd(rows * np.sqrt(share)[:, None], full_matrices=False)
    n, slopes, solutions = len(rows), np.zeros((K, rows.shape[1])), []

    def objective(
        flat: Floats, columns: Floats, rates: Floats, offset: Floats
    ) -> tuple[float, Any]:
        V, losses, gradients = flat.reshape(K, -1), np.empty(n), {}

        def add(block: slice) -> None:
            logits = columns[block] @ V.T
            logits += offset[block] if len(offset) > 1 else offset
            logits -= logits.max(axis=1, keepdims=True)
            true = np.arange(len(logits)), labels[block]
            at_true = logits[true]
            powers = np.exp(logits, out=logits)
            totals = powers.sum(axis=1)
            losses[block] = np.log(totals) - at_true
            powers /= totals[:, None]
            powers[true] -= 1
            powers *= share[block, None]
            gradients[block.start] = powers.T @ columns[block]

        in_threads(add, n, 2 * n * V.size, chunk=rows_at_once(K, _LOGITS))
        gradient = sum((gradients[start] for start in sorted(gradients)), rates * V)
        return float(share @ losses + (rates * V * V).sum() / 2), gradient.ravel()

    options = {"maxiter": 200, "ftol": 1e-7, "gtol": 1e-5}
    for penalty, offset in zip(PENALTIES, offsets, strict=True):
        scale = np.sqrt(K / (np.square(spread) + penalty))
        args = rows @ axes.T * scale, penalty / K * np.square(scale), offset
        start = (slopes @ axes.T / scale).ravel()
        best = minimize(objective, start, args, "L-BFGS-B", jac=True, options=options)
        slopes = best.x.reshape(K, -1) * scale @ axes
        solutions.append(slopes)
    return solutions


def _text_mixture(
    logits: Floats, labels: Indices, weights: Floats
) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Return the factors of text and classifiers, and the mean losses of the text alone and of all.

    Of mixtures about as good as the best, that with the most text is taken: sentences can be edited.
    """
    alone, text_loss = _mixture(logits[:1], labels, weights)
    least = [share * float(alone[0]) for share in TEXT_SHARES]
    fits = [_mixture(logits, labels, weights, factor) for factor in least]
    losses = [log_losses(np.tensordot(factors, logits, 1), labels) for factors, _ in fits]

    def as_good(losses_: Floats) -> bool:
        behind = losses_ - losses[-1]
        # As if there were one image more, about which they differ by one: few may agree by luck.
        doubt = np.sqrt(len(labels) * behind.var() + 1) / len(labels)
        return bool(np.average(behind, weights=weights) <= _AS_GOOD * doubt)

    factors, loss = next(fit for fit, each in zip(fits, losses, strict=True) if as_good(each))
    return factors, (text_loss, loss)


def _mixture(
    logits: Floats, labels: Indices, weights: Floats, least: float = 0.0
) -> tuple[NDArray[np.float64], float]:
    """Return factors of zero or more on logits (J, n, K) whose sum has the least log loss, and the loss.

    The first is at least `least`. Targets are softened as Platt does: as if half an image of any class
    were added to the n images.
    """
    from scipy.optimize import minimize

    logits = logits - logits.mean(axis=2, keepdims=True)
    sizes = logits.std(axis=(1, 2))
    logits /= np.maximum(sizes, 1e-9)[:, None, None]
    true, share = logits[:, np.arange(len(labels)), labels], weights / weights.sum()
    softening = 1 / (2 * len(labels) + 1)

    def objective(factors: Floats) -> tuple[float, Floats]:
        by_truth = factors @ true
        losses, slopes = np.empty(len(labels)), np.empty(true.shape)

        def add(block: slice) -> None:
            sums = np.tensordot(factors, logits[:, block], 1)
            losses[block] = log_losses(sums, labels[block])
            sums -= (losses[block] + by_truth[block])[:, None]
            slopes[:, block] = np.einsum("jnk,nk->jn", logits[:, block], np.exp(sums, out=sums))

        in_threads(add, len(labels), 20 * logits.size, chunk=rows_at_once(logits.shape[2], _LOGITS))
        slopes -= (1 - softening) * true
        return float(share @ (losses + softening * by_truth)), slopes @ share

    start = np.full(len(logits), 0.5)
    bounds = [(least * sizes[0], None)] + [(0, None)] * (len(logits) - 1)
    options = {"ftol": 1e-12, "gtol": 1e-8}
    best = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    loss = float(share @ log_losses(np.tensordot(best.x, logits, 1), labels))
    return np.where(sizes > 1e-9, best.x / np.maximum(sizes, 1e-9), 0.0), loss


def unseen_texts(pool: GridPool) -> NDArray[np.float64]:
    """Return class rows (2, K, D) of texts without training images: means of templates, and of prompts."""
    means = [
        [np.mean(rows, axis=0, dtype=np.float64) for rows in (templates, sample_prompts(prompts))]
        for templates, prompts in zip(pool.templates, pool.prompts, strict=True)
    ]
    texts = np.swapaxes(means, 0, 1)
    lengths = np.linalg.norm(texts, axis=2, keepdims=True)
    return np.asarray(texts / np.where(lengths > 0, lengths, 1))


def held_out_prediction(
    embeddings: ArrayLike,
    labels: ArrayLike,
    unseen_rows: ArrayLike,
    folds: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    progress: Progress = no_progress,
) -> Floats:
    """Return the logits of each image by a text and by the images of other folds.

    Parameters
    ----------
    embeddings, labels, unseen_rows, weights
        As for :func:`fit_residual`. An image of weight zero has logits, and nothing is learned from it.
    folds : array of shape (n,)
        The fold of each image. One whose class has no image in another fold is classified by the text.
    progress : callable, optional
        Called with stage, done and total.

    Returns
    -------
    array of shape (n, K)

    Examples
    --------
    The last image has a label that neither the text nor the images of other folds support.

    >>> heights = np.array([0.8, 0.6, 0.9, -0.8, -0.6, 0.7])
    >>> images = np.stack([np.sqrt(1 - heights**2), heights], axis=1)[:, None]
    >>> text = np.array([[0.0, 1.0], [0.0, -1.0]])
    >>> folds = [0, 1, 2, 0, 1, 2]
    >>> held_out_prediction(images, [0, 0, 0, 1, 1, 1], text, folds).argmax(axis=1)
    array([0, 0, 0, 1, 1, 0])
    """
    X, y = np.asarray(embeddings), np.asarray(labels, dtype=np.int64)
    text, trusted = np.asarray(unseen_rows), np.ones(len(y)) if weights is None else weights
    trusted = np.asarray(trusted, dtype=np.float64)
    if np.shape(folds) != y.shape:
        raise SettingError(f"folds must be {len(y)} numbers, one for each image")
    counted = balanced_weights(y, trusted)
    _, fold = np.unique(folds, return_inverse=True)
    by_text = np.asarray(X[:, 0] @ text.T, dtype=np.float64)
    by_text *= max(float(_mixture(by_text[None], y, counted)[0][0]), _LEAST_SCALE)
    same_class = (fold[:, None] != fold) & (y[:, None] == y) & (trusted > 0)
    alone = ~same_class.any(axis=1)
    if len(np.unique(y[trusted > 0])) < 2 or alone.all():
        return by_text
    logits = held_out_logits(X, y, fold, None, text[None], weights=trusted, progress=progress)
    judged = ~alone & (trusted > 0)
    factors, _ = _text_mixture(logits[:, judged], y[judged], counted[judged])
    return np.where(alone[:, None], by_text, np.tensordot(factors, logits, 1))


def _metrics(embeddings: Floats, labels: Indices) -> list[Floats]:
    """Return the metric, and without crops another that is shrunk as in Wang et al. (2024)."""
    metrics, (n, views, dim) = [spread_metric(embeddings, labels)], embeddings.shape
    if views == 1:
        evenness = dim / (dim + n - len(np.unique(labels)))
        metrics.append(spread_metric(embeddings, labels, evenness))
    return metrics


def spread_metric(embeddings: Floats, labels: Indices, evenness: float = EVENNESS) -> Floats:
    """Return the metric M, (D, D), whose inverse weights the directions of embeddings.

    It is the covariance of crops about the mean of their image; without crops, of images about the mean of
    their class; without two images of a class, the identity. Its mean eigenvalue is one. A few crops do not
    determine a covariance: it is shrunk toward the identity by the oracle approximating shrinkage (Chen et
    al., 2010), or by `evenness` if that is more.
    """
    n, views, dim = embeddings.shape
    centers, n_free = embeddings.mean(axis=1, keepdims=True), n * (views - 1)
    if views == 1:
        sums = np.zeros((labels.max() + 1, dim), dtype=embeddings.dtype)
        np.add.at(sums, labels, embeddings[:, 0])
        centers = (sums[labels] / np.bincount(labels)[labels, None])[:, None]
        n_free = n - len(np.unique(labels))
    apart = (embeddings - centers).reshape(-1, dim)
    spread = apart.T @ apart
    shape = np.eye(dim)
    trace = float(np.trace(spread))
    # Rounding leaves a little where all crops are the same.
    if trace > 1e-10 * float(np.vdot(embeddings, embeddings)):
        spread *= dim / trace
        directions = dim**2 / float(np.vdot(spread, spread))
        left = (n_free + 1 - 2 / dim) * (1 - directions / dim)
        shrinkage = (1 - 2 / dim + directions) / left if left > 0 else 1.0
        evenness = min(max(evenness, shrinkage), 1.0)
        shape = (1 - evenness) * spread + evenness * shape
    return np.asarray(shape, dtype=embeddings.dtype)


def added_class_lift(
    rows: Floats, labels: NDArray[np.integer], matrix: Floats, unseen: Floats, center: Floats
) -> float:
    """Return how far a class that is added by text alone is lifted on the mean image `center`.

    Each class of the fit is treated as if it had been added by text alone, with the rows `unseen`, to all
    others, with the rows `matrix`: a share of ``RECOGNIZED`` of its images is then recognized, or fewer if
    the others lost more than a share of ``LOST`` of theirs.
    """
    along = rows @ center / (center @ center)
    near = along > _NEAR
    rows, labels, along = rows[near], labels[near], along[near]
    scores, true = rows @ matrix.T, (np.arange(len(labels)), labels)
    right = scores.argmax(axis=1) == labels
    start = (matrix.mean(axis=0) - unseen) @ center
    added = rows @ unseen.T + along[:, None] * start
    # The lift beyond which an image is taken from its class by each of the others, if that had it.
    taken = (scores[true][:, None] - added) / along[:, None]
    taken[true] = np.inf
    taken[~right] = np.inf
    scores[true] = -np.inf
    needed = (scores.max(axis=1) - added[true]) / along
    allowed = int(LOST * (taken.size - len(labels)))
    most = float(np.partition(taken, allowed, axis=None)[allowed])
    return min(float(np.quantile(needed, RECOGNIZED)), most)
