r"""The residual: what the images teach that the words did not say.

Text and residual together have the logits :math:`x \cdot (a W + V)^T`: W are the class rows of the text, a
is one factor on its cosines, and V a matrix fitted by the logistic loss under a penalty. V = 0 is the text
alone; where the text says nothing, a falls to zero and V is a logistic regression.

Three things make one setting do for all data and any number of images:

* **Honest text.** A text that was composed on some images is nearly always right about them, and would
  leave nothing over for V to explain. So a and V are fitted to what texts say about images that they have
  not seen. Where a class has one image only, a at least comes from a text that has seen none.
* **Crops say what does not matter.** What differs between crops of one image says nothing of its class.
  V pays for how much its logits differ between crops, and less for everything else.
* **Few images are trusted less.** The penalty falls with the number of images of a class. It is not chosen
  by setting images aside: of two images of a class one would be left, which says little about two.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting.composition import log_losses
from promptboost.errors import EmbeddingError, LabelError, SettingError

Floats = NDArray[np.floating]
Indices = NDArray[np.int64]

#: How much the residual pays for the spread of its logits where every class has one image; with N images
#: it is an N-th of that. The loss is a sum over images.
PENALTY = 100.0
#: Share of the penalty that is the same in all directions, whether crops differ in them or not.
EVENNESS = 0.1

# Factors on cosines that are tried for the text, and on all logits in the end.
_SCALES = np.geomspace(0.1, 1000.0, 161)
_LOUDNESS = np.geomspace(0.1, 10.0, 61)
# Rows whose probabilities stand in memory at once.
_ROWS = 8192
# Steps that the solver remembers, and takes at most.
_MEMORY, _STEPS = 8, 100
# How sure it must be that the residual does harm: in standard errors of the loss on images set aside.
_SURE = 2.0
# Multiplications of one pass over the images beyond which one fold alone is set aside.
_MANY = 5 * 10**9


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
        Mean log loss of images set aside, by the text alone and with the residual; None if no image
        could be set aside.

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
    texts: ArrayLike,
    folds: ArrayLike | None = None,
    *,
    unseen: ArrayLike | None = None,
    penalty: float = PENALTY,
) -> Residual:
    """Fit the residual of a text, and the factor on the text beside it.

    Parameters
    ----------
    embeddings : array of shape (n, 1 + V, D)
        Each image and its crops. The crops of an image share the weight of one.
    labels : array of shape (n,)
        Class numbers.
    texts : array of shape (F, K, D)
        Class rows of F texts: number f is composed without the images of fold f. One text, composed on
        all images, where a class has too few to set some aside.
    folds : array of shape (n,), optional
        The fold of each image; None if there is one text.
    unseen : array of shape (K, D), optional
        With one text only: class rows of a text that has seen no image, such as the mean of the pool's
        templates. The factor is fitted to it. None if the one text itself has seen none.
    penalty : float, default=100.0
        How much the residual pays for the spread of its logits, times the images of a class.

    Returns
    -------
    Residual
        Zero where images set aside say so. Then, and otherwise, its logits are as loud as suits them;
        with one text only nothing is set aside, and they may be too loud.

    Examples
    --------
    The text takes up for down; the images know better.

    >>> images = np.array([[[0.6, 0.8]], [[0.8, 0.6]], [[0.6, -0.8]], [[0.8, -0.6]]])
    >>> labels, text = [0, 0, 1, 1], np.array([[0.0, -1.0], [0.0, 1.0]])
    >>> residual = fit_residual(images, labels, text[None])
    >>> (images[:, 0] @ residual.class_rows(text).T).argmax(axis=1)
    array([0, 0, 1, 1])
    """
    X, y, rows, fold = _checked(embeddings, labels, texts, folds)
    if not (np.isfinite(penalty) and penalty > 0):
        raise SettingError(f"penalty is {penalty!r}, but must be a positive number")
    K = rows.shape[1]
    if folds is not None or unseen is None:
        scores = _aside(X, rows, fold)
    else:
        scores = X[:, 0] @ np.asarray(unseen, dtype=X.dtype).T
    scale = _suited(scores, y, _SCALES)
    rate = penalty * K / len(y)
    metric = spread_metric(X, y) * X.dtype.type(rate)
    problem = _Problem(X, y, rows * X.dtype.type(scale), fold, metric)
    weights = problem.solve()
    if folds is None:
        return Residual(weights, scale, rate)
    many = X.size * K > _MANY
    aside = fold == fold[0] if many else np.ones(len(y), dtype=bool)
    logits = scale * scores
    by_text = log_losses(logits, y)[aside]
    for part in np.unique(fold[aside]):
        # Not begun at what was learnt from all images: it would still know those set aside.
        learnt = problem.without(int(part)).solve(tolerance=0.01)
        logits[fold == part] += X[fold == part, 0] @ learnt.T
    loud = _suited(logits[aside], y[aside], _LOUDNESS)
    more = log_losses(loud * logits, y)[aside] - by_text
    losses = float(by_text.mean()), float((by_text + more).mean())
    if more.mean() > _SURE * more.std() / np.sqrt(len(more)):
        return Residual(np.zeros_like(weights), scale, np.inf, losses)
    return Residual(weights * X.dtype.type(loud), scale * loud, rate, losses)


def spread_metric(embeddings: Floats, labels: Indices, evenness: float = EVENNESS) -> Floats:
    """Return M, (D, D): a residual v pays v·M·v, its spread over crops and, a little, over anything.

    Where there are no crops it is the spread over images of a class; where there are not two of those,
    that over all images, the same in all directions. Its trace is the variance of all embeddings, so
    that the number of images and the encoder do not matter.
    """
    dim = embeddings.shape[2]
    rows = embeddings.reshape(-1, dim).astype(np.float64)
    total = float(((rows - rows.mean(axis=0)) ** 2).sum()) / len(rows) or 1.0
    apart = embeddings - embeddings.mean(axis=1, keepdims=True)
    if embeddings.shape[1] == 1:
        means = np.zeros((labels.max() + 1, dim))
        np.add.at(means, labels, embeddings[:, 0])
        apart = embeddings - (means / np.maximum(np.bincount(labels), 1)[:, None])[labels][:, None]
    apart = apart.reshape(-1, dim).astype(np.float64)
    spread = apart.T @ apart
    even = np.eye(dim) / dim
    trace = float(np.trace(spread))
    # Rounding leaves a little where all crops are the same.
    if trace > 1e-10 * total * len(rows):
        even = (1 - evenness) * spread / trace + evenness * even
    return np.asarray(total * even, dtype=embeddings.dtype)


def _aside(X: Floats, texts: Floats, fold: Indices) -> Floats:
    """Return the cosines of each image with the text that has not seen it, (n, K)."""
    scores = np.empty((len(X), texts.shape[1]), dtype=X.dtype)
    for part, text in enumerate(texts):
        scores[fold == part] = X[fold == part, 0] @ text.T
    return scores


def _suited(scores: Floats, labels: Indices, factors: NDArray[np.float64]) -> float:
    """Return the factor of least log loss.

    Few images may all be right by luck, and then the loss falls for ever: as Platt does, it is taken as
    if, beside the n images, half an image were of any class.
    """
    n = len(labels)
    further = scores[np.arange(n), labels] - scores.mean(axis=1)
    losses = [
        float((log_losses(scores * factor, labels) + further * factor / (2 * n + 1)).mean())
        for factor in factors
    ]
    return float(f"{factors[int(np.argmin(losses))]:.4g}")


@dataclass(frozen=True)
class _Problem:
    """Images with the logits of honest text, and the penalty: all that V depends on."""

    X: Floats  # (n, 1 + V, D)
    y: Indices
    texts: Floats  # (F, K, D), with the factor in them
    fold: Indices
    metric: Floats  # (D, D), with the penalty in it

    def without(self, part: int) -> "_Problem":
        """Set the images of a fold aside."""
        kept = self.fold != part
        return _Problem(self.X[kept], self.y[kept], self.texts, self.fold[kept], self.metric)

    def _blocks(self) -> Iterator[tuple[int, Floats, Indices]]:
        """Yield rows that the same text speaks about, few enough at a time, and their labels."""
        views = self.X.shape[1]
        for part in range(len(self.texts)):
            members = np.flatnonzero(self.fold == part)
            for start in range(0, len(members), max(_ROWS // views, 1)):
                at = members[start : start + max(_ROWS // views, 1)]
                yield part, self.X[at].reshape(-1, self.X.shape[2]), self.y[at].repeat(views)

    def objective(self, V: Floats) -> tuple[float, Floats]:
        """Return the loss with the penalty, and its gradient (K, D)."""
        share = 1 / self.X.shape[1]
        pull = V @ self.metric
        loss, gradient = float(np.vdot(V, pull)) / 2, pull
        for part, rows, labels in self._blocks():
            logits = rows @ (self.texts[part] + V).T
            logits -= logits.max(axis=1, keepdims=True)
            at = np.arange(len(labels)), labels
            loss -= share * float(logits[at].sum(dtype=np.float64))
            np.exp(logits, out=logits)
            totals = logits.sum(axis=1, keepdims=True)
            loss += share * float(np.log(totals).sum(dtype=np.float64))
            logits /= totals
            logits[at] -= 1
            logits *= share
            gradient += logits.T @ rows
        return loss, gradient

    def solve(self, tolerance: float = 1e-3) -> Floats:
        """Return the V of least objective, by L-BFGS; the gradient falls to a share of its first length.

        Distances are measured with the penalty and the covariance of the rows at equal probabilities,
        so that the first steps are about as long as they should be whatever the penalty.
        """
        rows = self.X.reshape(-1, self.X.shape[2])
        K = self.texts.shape[1]
        curvature = rows.T @ rows * self.X.dtype.type((K - 1) / K**2 / self.X.shape[1])
        inverse = np.linalg.inv(curvature.astype(np.float64) + self.metric).astype(self.X.dtype)
        V = np.zeros_like(self.texts[0])
        loss, gradient = self.objective(V)
        enough = tolerance * _length(gradient, inverse)
        moves: list[tuple[Floats, Floats]] = []
        for _ in range(_STEPS):
            if _length(gradient, inverse) <= enough:
                break
            step = -_times_inverse_hessian(gradient, moves, inverse)
            slope, size = float(np.vdot(step, gradient)), 1.0
            while True:
                tried = V + step * V.dtype.type(size)
                new_loss, new_gradient = self.objective(tried)
                # The last term: losses are equal to rounding before gradients are.
                if new_loss <= loss + 1e-4 * size * slope + 1e-7 * abs(loss) or size < 1e-4:
                    break
                size /= 2
            moves = [*moves[1 - _MEMORY :], (tried - V, new_gradient - gradient)]
            V, loss, gradient = tried, new_loss, new_gradient
        return V


def _length(gradient: Floats, inverse: Floats) -> float:
    return float(np.sqrt(max(np.vdot(gradient, gradient @ inverse), 0.0)))


def _times_inverse_hessian(
    gradient: Floats, moves: list[tuple[Floats, Floats]], inverse: Floats
) -> Floats:
    """Multiply by what is known of the inverse Hessian: the two loops of L-BFGS."""
    direction = gradient.copy()
    taken: list[tuple[float, float]] = []
    moves = [(move, change) for move, change in moves if np.vdot(move, change) > 0]
    for move, change in reversed(moves):
        rate = 1 / float(np.vdot(move, change))
        taken.append((rate, rate * float(np.vdot(move, direction))))
        direction -= change * direction.dtype.type(taken[-1][1])
    direction = direction @ inverse
    if moves:
        move, change = moves[-1]
        direction *= direction.dtype.type(np.vdot(move, change) / np.vdot(change, change @ inverse))
    for (move, change), (rate, part) in zip(moves, reversed(taken), strict=True):
        direction += move * direction.dtype.type(part - rate * float(np.vdot(change, direction)))
    return np.asarray(direction)


def _checked(
    embeddings: ArrayLike, labels: ArrayLike, texts: ArrayLike, folds: ArrayLike | None
) -> tuple[Floats, Indices, Floats, Indices]:
    """Check shapes and values; rows become floats of one type."""
    X, rows = np.asarray(embeddings), np.asarray(texts)
    precision = np.float32 if X.dtype == np.float32 else np.float64
    X, rows = X.astype(precision, copy=False), rows.astype(precision, copy=False)
    if X.ndim != 3 or 0 in X.shape:
        raise EmbeddingError(f"embeddings must be of shape (n, 1 + V, D), got {X.shape}")
    if rows.ndim != 3 or 0 in rows.shape or rows.shape[2] != X.shape[2]:
        raise EmbeddingError(f"texts must be of shape (F, K, {X.shape[2]}), got {rows.shape}")
    if not (np.isfinite(X).all() and np.isfinite(rows).all()):
        raise EmbeddingError("there are embeddings that are not finite")
    y = np.asarray(labels, dtype=np.int64)
    if y.shape != X.shape[:1] or y.min() < 0 or y.max() >= rows.shape[1]:
        raise LabelError(f"labels must be {len(X)} numbers from 0 to {rows.shape[1] - 1}")
    fold = np.zeros(len(y), np.int64) if folds is None else np.asarray(folds, dtype=np.int64)
    if fold.shape != y.shape or fold.min() < 0 or fold.max() >= len(rows):
        raise SettingError(f"folds must be {len(X)} numbers from 0 to {len(rows) - 1}")
    if folds is None and len(rows) > 1:
        raise SettingError(
            f"there are {len(rows)} texts, and no folds that say which image is whose"
        )
    return X, y, rows, fold
