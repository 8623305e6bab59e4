r"""The residual: what the images teach that the words did not say.

Text and residual together have the logits :math:`x \cdot (a W + V)^T`: W are the class rows of the text, a
is one factor on its cosines, and V a matrix fitted by the logistic loss under a penalty. V = 0 is the text
alone; where the text says nothing, a falls to zero and V is a logistic regression.

Four things make one setting do for all data and any number of images:

* **The words are taken at their worth.** A text that was composed on some images is nearly always right
  about them, and would leave nothing over for V to explain. So the factor a is the one that suits words
  which have seen no image, such as the mean of the templates or of the pool: the less the words alone can
  tell, the less the text counts, and the more is left to the images.
* **Crops say what does not matter.** What differs between crops of one image says nothing of its class.
  V pays for how much its logits differ between crops, and less for everything else; the fewer crops there
  are to know the difference from, the more alike all directions cost.
* **V is held back as far as the images allow.** The penalty is the strongest at which nearly all images to
  learn from are answered rightly, and falls with their number. It is not chosen by setting images
  aside: of two images of a class one would be left, which says little about two, and of one none.
* **It is used as far as images set aside speak for it.** Of all mixtures of the text alone and the text
  with V, it is the one with the most of V that is about as good as the best on images set aside; where
  that is the text alone, and V surely does harm, it is zero.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting.compiled import in_threads
from promptboost.boosting.composition import log_losses
from promptboost.boosting.grid import GridPool, Shots, from_grid
from promptboost.boosting.penalized_loss import ROWS, Floats, Indices, PenalizedLoss
from promptboost.boosting.samme import BoostSettings
from promptboost.boosting.scale import FoldTexts, drawn, fold_texts, lowest
from promptboost.errors import EmbeddingError, LabelError, SettingError, WeightError
from promptboost.progress import Progress, no_progress
from promptboost.threads import single_blas_thread

#: The strongest penalty, where every class has one image; with N images it is an N-th of that. It is what
#: the spread of the residual's logits costs, and the loss is a sum over images.
PENALTY = 0.8
#: Share of the images to learn from that may be answered wrongly; one may in any case. If there are more,
#: the penalty is halved,
UNEXPLAINED = 0.03
#: but not more often than this.
HALVINGS = 5
#: Share of the penalty that is the same in all directions, whether crops differ in them or not; more where
#: the crops are too few to tell in which they do.
EVENNESS = 0.1

#: The same for :func:`set_aside_logits`, where some labels may be wrong: those are not to be explained.
CAUTIOUS_PENALTY = 8 * PENALTY

# Factors on cosines that are tried for the text, and on all logits in the end.
_SCALES = np.geomspace(0.1, 1000.0, 81)
_LOUDNESS = np.geomspace(0.1, 10.0, 41)
# Where some images are set aside and there are more rows than these, the mean of its crops stands for an
# image: a mixture can be judged as well, and the penalty knows how crops differ.
_MOST_ROWS = 1024
_STAGE = "fitting the residual"
_SET_ASIDE = "judging each image by the others"
# Passes over the images that a fold is expected to take.
_PASSES = 6
# Factor on all logits where no image can be set aside. Where some can, 1.5 to 2.4 suits few images best: a
# penalty that is right for who wins leaves the logits low.
_LOUD = 1.75
# Parts of text with residual, beside text alone, that are tried on images set aside, and what is as good as
# the best, in standard errors of the loss. In doubt more: the residual is of more images than theirs.
_PARTS = np.linspace(0.0, 1.0, 11)
_AS_GOOD = 0.25
# How sure it must be that all of the residual does harm for none of it to be used, in the same.
_SURE = 2.0
# Multiplications of one pass over the images beyond which one fold alone is set aside.
_MANY = 5 * 10**9
#: Share of the images of a class that would be recognized, had it been added by words alone,
RECOGNIZED = 0.7
#: unless the others would lose more than this share of theirs.
LOST = 0.015
# Images that lie further from the mean than this are hardly moved along it, and say nothing of the lift.
_NEAR = 0.2


@dataclass(frozen=True)
class Residual:
    """What is added to the class rows of a text.

    Attributes
    ----------
    weights : array of shape (K, D)
        V: the logits of embeddings X are ``X @ (text_scale * W + weights).T``.
    text_scale : float
        a: the factor on the text's class rows beside it.
    penalty : float
        What it was fitted with; infinite if the images say that it does harm: V is zero then.
    losses : tuple of float or None
        Mean log loss of images set aside, by the text alone and with the residual, as far as it is used
        or all of it where it is not; None if no image could be set aside.

    Examples
    --------
    >>> residual = Residual(np.array([[0.0, 2.0], [0.0, 0.0]]), text_scale=10.0, penalty=1.0)
    >>> residual.class_rows(np.array([[1.0, 0.0], [0.0, 1.0]]))
    array([[10.,  2.],
           [ 0., 10.]])
    """

    weights: Floats = field(repr=False)
    text_scale: float
    penalty: float
    losses: tuple[float, float] | None = None

    def class_rows(self, text_rows: ArrayLike) -> Floats:
        """Add the residual to the class rows of its text, (K, D): rows whose products are logits."""
        return np.asarray(np.asarray(text_rows) * self.text_scale + self.weights)


def fit_residual(
    embeddings: ArrayLike,
    labels: ArrayLike,
    text_rows: ArrayLike,
    unseen_rows: ArrayLike,
    *,
    folds: ArrayLike | None = None,
    fold_rows: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    penalty: float = PENALTY,
    progress: Progress = no_progress,
) -> Residual:
    """Fit the residual of a text, and the factor on the text beside it.

    Parameters
    ----------
    embeddings : array of shape (n, 1 + V, D)
        Each image and its crops. The crops of an image share the weight of one.
    labels : array of shape (n,)
        Class numbers.
    text_rows : array of shape (K, D)
        Class rows of the text, composed on these images.
    unseen_rows : array of shape (K, D) or (U, K, D)
        Class rows of words that have seen no image, such as the mean of the pool's templates; of several
        those count that suit the images best.
    folds : array of shape (n,), optional
        The fold of each image, from 0 to F − 1, if images can be set aside; −1 for one that is in none.
    fold_rows : array of shape (F, K, D), optional
        Class rows of F texts: number f is composed without the images of fold f.
    weights : array of shape (n,), optional
        How much each image counts beside the others; alike by default.
    penalty : float, default=0.8
        The strongest that is tried, times the images of a class.
    progress : callable, optional
        Called at the start, after the fit on all images, and after those of the folds.

    Returns
    -------
    Residual
        With folds, it is used as far as it helps on images set aside, not at all where it does harm, and
        its logits are as loud as suits them; without, as suited other data.

    Examples
    --------
    The text takes up for down; the images know better.

    >>> images = np.array([[[0.6, 0.8]], [[0.8, 0.6]], [[0.6, -0.8]], [[0.8, -0.6]]])
    >>> labels, text = [0, 0, 1, 1], np.array([[0.0, -1.0], [0.0, 1.0]])
    >>> residual = fit_residual(images, labels, text, text)
    >>> (images[:, 0] @ residual.class_rows(text).T).argmax(axis=1)
    array([0, 0, 1, 1])
    """
    X, y = _checked_images(embeddings, labels)
    text, unseen = _checked_rows(text_rows, X, y, 2), np.asarray(unseen_rows)
    unseen = _checked_rows(unseen[None] if unseen.ndim == 2 else unseen, X, y, 3)
    if not (np.isfinite(penalty) and penalty > 0):
        raise SettingError(f"penalty is {penalty!r}, but must be a positive number")
    counted = _checked_weights(weights, len(y))
    progress(_STAGE, 0, None)
    scale = min(_worth(X[:, 0] @ rows.T, y, counted) for rows in unseen)[1]
    metric = np.empty((X.shape[2], X.shape[2]), dtype=X.dtype)
    problem = PenalizedLoss(X, y, counted, text * X.dtype.type(scale), metric)

    def prepare(some: slice) -> None:
        for part in ("metric", "curvature")[some]:
            if part == "metric":
                metric[:] = spread_metric(X, y)
            else:
                _ = problem.curvature  # kept by the problem

    # Each is one product of all rows with themselves.
    in_threads(prepare, 2, 2 * X.size * X.shape[2], chunk=1)
    learned, rate = _explained(problem, penalty * len(text) / len(y))
    if folds is None or fold_rows is None:
        progress(_STAGE, 1, 1)
        return Residual(learned * X.dtype.type(_LOUD), scale * _LOUD, rate)
    fold, texts = np.asarray(folds), _checked_rows(fold_rows, X, y, 3)
    if (
        fold.shape != y.shape
        or not np.isin(fold, np.arange(-1, len(texts))).all()
        or fold.max() < 0
    ):
        raise SettingError(
            f"folds must be {len(X)} numbers from 0 to {len(texts) - 1}, or −1 for images in none"
        )
    aside = fold == fold.max() if X.size * len(text) > _MANY else fold >= 0
    scores, logits = np.zeros((2, len(y), len(text)), dtype=X.dtype)
    rows = X.mean(axis=1, keepdims=True) if len(y) * X.shape[1] > _MOST_ROWS else X
    parts = np.unique(fold[aside])
    progress(_STAGE, 1, 1 + len(parts))

    def judge(some: slice) -> None:
        for part in parts[some]:
            kept, out = fold != part, fold == part
            words_of_part = texts[part] * X.dtype.type(scale)
            fewer = PenalizedLoss(rows[kept], y[kept], counted[kept], words_of_part, problem.metric)
            # Neither begun at what was learned from all images nor measured with their curvature: both
            # would still know those set aside, as few steps are taken.
            rest = fewer.solve(rate, tolerance=0.05)
            scores[out] = X[out, 0] @ texts[part].T
            logits[out] = X[out, 0] @ (fewer.text + rest).T

    # Each takes an inverse, and passes over the images, two products a pass.
    passes = _PASSES * 2 * rows.size * len(text)
    in_threads(judge, len(parts), 2 * X.shape[2] ** 3 + passes, chunk=1)
    progress(_STAGE, 1 + len(parts), 1 + len(parts))
    scores, logits, y, counted = scores[aside], logits[aside], y[aside], counted[aside]
    alone, loud, losses = _mixed(scores, logits, y, counted)
    if not loud:
        return Residual(np.zeros_like(learned), alone, np.inf, losses)
    return Residual(learned * X.dtype.type(loud), alone + scale * loud, rate, losses)


def fit_text_residual(
    shots: Shots,
    pool: GridPool,
    text_rows: NDArray[np.floating],
    *,
    weights: ArrayLike | None = None,
    encoder: int = 0,
    folds: FoldTexts | None = None,
    progress: Progress = no_progress,
) -> Residual:
    """Fit the residual of a text that was composed from a pool, with one of several encoders.

    Parameters
    ----------
    shots, pool
        As for :func:`~promptboost.boosting.samme`.
    text_rows : array of shape (K, D)
        The mean rows of the text's banks.
    weights : array of shape (n,), optional
        Sample weights; uniform by default.
    encoder : int
        The number of the encoder that the rows belong to.
    folds : FoldTexts, optional
        Texts composed on parts of the images; see :func:`texts_of_folds`.
    progress : callable, optional
        Called with stage, done and total.
    """
    width, dim = pool.templates.shape[2] // pool.encoders, text_rows.shape[1]
    block = slice(encoder * width, encoder * width + dim)
    rows = shots.originals[:, None]
    if shots.views is not None:
        rows = np.concatenate([rows, shots.views], axis=1)
    templates = from_grid(pool.templates[..., block]).mean(axis=1)
    means = [np.mean(drawn(P[:, block]), axis=0, dtype=np.float64) for P in pool.prompts]
    unseen = np.stack([templates, np.stack(means)])
    lengths = np.linalg.norm(unseen, axis=2, keepdims=True)
    # BLAS has little to do here, and its threads would spin while other processes hold the cores.
    with single_blas_thread():
        return fit_residual(
            from_grid(rows[..., block]),
            shots.labels,
            text_rows,
            unseen / np.where(lengths > 0, lengths, 1),
            folds=None if folds is None else folds.fold,
            fold_rows=None if folds is None else folds.rows[..., block],
            weights=weights,
            progress=progress,
        )


def texts_of_folds(
    shots: Shots, pool: GridPool, settings: BoostSettings, progress: Progress = no_progress
) -> FoldTexts | None:
    """Compose texts on parts of the images, by which a residual is judged on the others.

    They are those that the choice of the logit scale composes. None for the greedy composer, and with too
    few images.
    """
    gradient = settings.gradient
    if gradient is None or gradient.logit_scale is None:
        return None
    return fold_texts(shots, pool, gradient, views=settings.views_per_round, progress=progress)


def set_aside_logits(
    embeddings: ArrayLike,
    labels: ArrayLike,
    unseen_rows: ArrayLike,
    folds: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    progress: Progress = no_progress,
) -> Floats:
    """Return each image's logits by words and by the images of other folds: its label excuses nothing.

    Parameters
    ----------
    embeddings, labels, unseen_rows, weights
        As for :func:`fit_residual`. An image that weighs nothing has logits, and teaches nothing.
    folds : array of shape (n,)
        The fold of each image. One whose class has no image in another fold is judged by words alone.
    progress : callable, optional
        Called before each fold and at the end.

    Returns
    -------
    array of shape (n, K)
        As loud as suits the labels best.

    Examples
    --------
    The last image has a label that the words, and the images of other folds, do not believe.

    >>> heights = np.array([0.8, 0.6, 0.9, -0.8, -0.6, 0.7])
    >>> images = np.stack([np.sqrt(1 - heights**2), heights], axis=1)[:, None]
    >>> text = np.array([[0.0, 1.0], [0.0, -1.0]])
    >>> set_aside_logits(images, [0, 0, 0, 1, 1, 1], text, [0, 1, 2, 0, 1, 2]).argmax(axis=1)
    array([0, 0, 0, 1, 1, 0])
    """
    X, y = _checked_images(embeddings, labels)
    words = _checked_rows(unseen_rows, X, y, 2)
    counted, fold = _checked_weights(weights, len(y)), np.asarray(folds)
    if fold.shape != y.shape:
        raise SettingError(f"folds must be {len(y)} numbers, one for each image")
    scores = X[:, 0] @ words.T
    scale = _suited(scores, y, counted, _SCALES)
    text, by_words = words * X.dtype.type(scale), scores * X.dtype.type(scale)
    metric = spread_metric(X[counted > 0], y[counted > 0])
    logits, lonely = by_words.copy(), np.ones(len(y), dtype=bool)
    parts = np.unique(fold)
    for number, part in enumerate(parts):
        progress(_SET_ASIDE, number, len(parts))
        out, kept = fold == part, (fold != part) & (counted > 0)
        if not kept.any():
            continue
        fewer = PenalizedLoss(X[kept], y[kept], counted[kept], text, metric)
        rest = fewer.solve(CAUTIOUS_PENALTY * len(words) / len(y), tolerance=0.05)
        logits[out] = X[out, 0] @ (text + rest).T
        lonely[out] = ~np.isin(y[out], y[kept])
    progress(_SET_ASIDE, len(parts), len(parts))
    loud = _suited(logits, y, counted, _LOUDNESS)
    return np.where(lonely[:, None], by_words, logits * X.dtype.type(loud))


def spread_metric(embeddings: Floats, labels: Indices) -> Floats:
    """Return M, (D, D): a residual v pays v·M·v, its spread over crops and, a little, over anything.

    Where there are no crops it is the spread over images of a class; where there are not two of those,
    all directions cost the same. On average they cost the variance of all embeddings: it does not matter
    how near to each other an encoder puts everything. Few crops do not tell in which directions they
    differ most: then the share of what is even is not ``EVENNESS`` but that of the oracle approximating
    shrinkage (Chen et al., 2010), which is the larger the more alike the directions are.
    """
    n, views, dim = embeddings.shape
    rows = embeddings.reshape(-1, dim)
    mean = rows.mean(axis=0, dtype=np.float64)
    blocks = (rows[start : start + ROWS] for start in range(0, len(rows), ROWS))
    total = sum(float(np.square(block - mean).sum()) for block in blocks) / len(rows) or 1.0
    centers, known = embeddings.mean(axis=1, keepdims=True), n * (views - 1)
    if views == 1:
        sums = np.zeros((labels.max() + 1, dim), dtype=rows.dtype)
        np.add.at(sums, labels, rows)
        centers = (sums[labels] / np.bincount(labels)[labels, None])[:, None]
        known = n - len(np.unique(labels))
    apart = (embeddings - centers).reshape(-1, dim)
    spread = apart.T @ apart
    shape = np.eye(dim)
    trace = float(np.trace(spread))
    # Rounding leaves a little where all crops are the same.
    if trace > 1e-10 * total * len(rows):
        spread *= dim / trace
        evenness = max(EVENNESS, _shrinkage(dim**2 / float(np.vdot(spread, spread)), known, dim))
        shape = (1 - evenness) * spread + evenness * shape
    return np.asarray(total * shape, dtype=embeddings.dtype)


def _shrinkage(directions: float, known: int, dim: int) -> float:
    """Return how much of a covariance of so many rows is better taken as even: the OAS formula.

    `directions` are those it extends in, as far as the rows tell: its squared trace by that of its square.
    """
    left = (known + 1 - 2 / dim) * (1 - directions / dim)
    return 1.0 if left <= 0 else min((1 - 2 / dim + directions) / left, 1.0)


def _explained(problem: PenalizedLoss, strongest: float) -> tuple[Floats, float]:
    """Return the residual of the strongest penalty that explains the images, and that penalty."""
    penalty, weights = strongest, problem.solve(strongest)
    for _ in range(HALVINGS):
        logits = problem.X[:, 0] @ (problem.text + weights).T
        wrong = problem.counted[logits.argmax(axis=1) != problem.y].sum()
        if wrong <= max(1, UNEXPLAINED * len(logits)):
            break
        penalty /= 2
        weights = problem.solve(penalty, start=weights)
    return weights, penalty


def _mixed(
    scores: Floats, logits: Floats, labels: Indices, counted: Floats
) -> tuple[float, float, tuple[float, float]]:
    """Return the factors on a text and on text with residual that suit images set aside, and the losses.

    Of mixtures that are about as good as the best, it is the one with the most of the residual; but none of
    it where the best is the text alone, and all of the residual does harm for sure.
    """
    alone, loud = (
        _suited(scores, labels, counted, _SCALES),
        _suited(logits, labels, counted, _LOUDNESS),
    )
    factors, losses = [], []
    for part in _PARTS:
        mixture = scores * ((1 - part) * alone) + logits * (part * loud)
        factors.append(_suited(mixture, labels, counted, _LOUDNESS))
        losses.append(log_losses(mixture * factors[-1], labels))
    means = np.average(losses, axis=1, weights=counted)
    behind = np.stack(losses) - losses[means.argmin()]
    # As if there were one image more, about which they differ by one: few may agree by luck.
    doubt = np.sqrt(len(labels) * behind.var(axis=1) + 1) / len(labels)
    behind_best = means - means.min()
    most = int(np.flatnonzero(behind_best <= _AS_GOOD * doubt)[-1])
    if not means.argmin() and behind_best[-1] > _SURE * doubt[-1]:
        most = 0
    part, factor = _PARTS[most], factors[most]
    return (
        float((1 - part) * alone * factor),
        float(part * loud * factor),
        (float(means[0]), float(means[most or -1])),
    )


def _worth(scores: Floats, labels: Indices, counted: Floats) -> tuple[float, float]:
    """Return the log loss of a text's scores, at the factor that suits them, and the factor."""
    factor = _suited(scores, labels, counted, _SCALES)
    return float(counted @ log_losses(scores * factor, labels)), factor


def _suited(
    scores: Floats, labels: Indices, counted: Floats, factors: NDArray[np.float64]
) -> float:
    """Return the factor of least log loss.

    Few images may all be right by luck, and then the loss falls for ever: as Platt does, it is taken as
    if, beside the n images, half an image were of any class.
    """
    n = len(labels)
    further = scores[np.arange(n), labels] - scores.mean(axis=1)

    def loss(factor: float) -> float:
        losses = log_losses(scores * factor, labels) + further * factor / (2 * n + 1)
        return float(counted @ losses)

    return float(f"{lowest(loss, factors):.4g}")


def _checked_images(embeddings: ArrayLike, labels: ArrayLike) -> tuple[Floats, Indices]:
    """Check images and labels; numbers are in single precision if they were given so."""
    X, y = np.asarray(embeddings), np.asarray(labels, dtype=np.int64)
    if X.ndim != 3 or 0 in X.shape:
        raise EmbeddingError(f"embeddings must be of shape (n, 1 + V, D), got {X.shape}")
    X = X.astype(np.float32 if X.dtype == np.float32 else np.float64, copy=False)
    if not np.isfinite(X).all():
        raise EmbeddingError("there are embeddings that are not finite")
    if y.shape != X.shape[:1] or y.min() < 0:
        raise LabelError(f"labels must be {len(X)} class numbers, from 0")
    return X, y


def _checked_weights(weights: ArrayLike | None, n: int) -> Floats:
    """Check how much images count, and make it one on average."""
    counted = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
    if counted.shape != (n,) or not np.isfinite(counted).all() or (counted < 0).any():
        raise WeightError(f"weights must be {n} numbers of 0 or more")
    if not counted.any():
        raise WeightError("all weights are zero: no image counts")
    return np.asarray(counted / counted.mean())


def _checked_rows(rows: ArrayLike, X: Floats, y: Indices, dimensions: int) -> Floats:
    """Check class rows: one for every label."""
    checked = np.asarray(rows, dtype=X.dtype)
    shape = ("F", "K", str(X.shape[2]))[-dimensions:]
    if checked.ndim != dimensions or checked.shape[-1] != X.shape[2]:
        raise EmbeddingError(
            f"class rows must be of shape ({', '.join(shape)}), got {checked.shape}"
        )
    if checked.shape[-2] <= y.max():
        raise LabelError(f"there is a label {y.max()}, and {checked.shape[-2]} class rows")
    if not np.isfinite(checked).all():
        raise EmbeddingError("there are class rows that are not finite")
    return checked


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
    scores, own = rows @ matrix.T, (np.arange(len(labels)), labels)
    right = scores.argmax(axis=1) == labels
    start = (matrix.mean(axis=0) - unseen) @ center
    added = rows @ unseen.T + along[:, None] * start
    # The lift beyond which an image is taken from its class by each of the others, if that had it.
    taken = (scores[own][:, None] - added) / along[:, None]
    taken[own] = np.inf
    taken[~right] = np.inf
    scores[own] = -np.inf
    found = (scores.max(axis=1) - added[own]) / along
    allowed = int(LOST * (taken.size - len(labels)))
    most = float(np.partition(taken, allowed, axis=None)[allowed])
    return min(float(np.quantile(found, RECOGNIZED)), most)
