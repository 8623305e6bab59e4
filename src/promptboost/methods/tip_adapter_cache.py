"""A cache of pictures, on arrays alone: its scores, the choice of its two numbers, its tuning.

Every key is the row of a picture, every value the class of that picture. A new picture asks the keys
how near they are; their answers, summed by class, are added to what the text says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.choosing import dealt
from promptboost.boosting.scores import log_losses

__all__ = ["ALPHAS", "BETAS", "Cache", "Tuning", "choose_weights", "gradient", "tune"]

Floats = NDArray[np.float32]

#: What is tried for the weight of the cache; the authors start at about one.
ALPHAS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
#: What is tried for how near a key has to be to count; the authors start at 5.5.
BETAS = (0.5, 1.0, 2.0, 4.0, 5.5, 8.0, 12.0, 16.0, 24.0, 32.0)

#: Where a class has one picture only, nothing can be set aside to choose by.
FIXED_ALPHA, FIXED_BETA = 1.0, 5.5

_LOUDNESS = np.geomspace(0.1, 10.0, 9, dtype=np.float32)


@dataclass(frozen=True)
class Cache:
    """Keys, their classes, and the two numbers of the formula.

    Attributes
    ----------
    keys : array of float32, shape (n, D)
        Rows of pictures; of length one until they are tuned.
    labels : array of int, shape (n,)
        The class each key speaks for.
    n_classes : int
        K.
    alpha : float
        Weight of the cache beside the text.
    beta : float
        How fast a key's say falls off with its distance.

    Examples
    --------
    >>> cache = Cache(np.eye(2, dtype=np.float32), np.array([0, 1]), 2, alpha=1.0, beta=1.0)
    >>> cache.scores(np.array([[1.0, 0.0]], dtype=np.float32)).round(3)
    array([[1.   , 0.368]], dtype=float32)
    """

    keys: Floats
    labels: NDArray[np.int64]
    n_classes: int
    alpha: float = FIXED_ALPHA
    beta: float = FIXED_BETA

    def scores(self, rows: Floats) -> Floats:
        """Give what the cache adds to the logits of each row: shape (n, K)."""
        return np.asarray(self.alpha * (self.nearness(rows) @ self.values))

    def nearness(self, rows: Floats) -> Floats:
        """Give how much each key counts for each row: exp(−β (1 − cosine))."""
        return _nearness(rows @ self.keys.T, self.beta)

    @property
    def values(self) -> Floats:
        """The classes of the keys as rows with a single one."""
        return np.eye(self.n_classes, dtype=np.float32)[self.labels]


def choose_weights(
    cache: Cache,
    rows: Floats,
    text: Floats,
    alphas: Sequence[float],
    betas: Sequence[float],
    *,
    by_loss: bool = False,
) -> Cache:
    """Choose α and β by cross-validation over the pictures of the cache.

    Each fold takes pictures of all classes out of the cache, so that no class speaks louder because
    a picture of another is missing. What is left is weighed up to what the whole would weigh.

    Parameters
    ----------
    cache : Cache
        The keys; its own α and β are kept where a class has one picture only.
    rows : array of float32, shape (n, D)
        The pictures themselves, in the order of the keys.
    text : array of float32, shape (K, D)
        Class rows of the text, with the logit scale in them.
    alphas, betas : sequence of float
        What may be chosen.
    by_loss : bool, default=False
        Choose by the log loss. Otherwise by how many are right, the log loss deciding between equals.
        Log losses are compared at the loudness that suits each: else the choice would be about the
        encoder's logit scale.

    Examples
    --------
    >>> from promptboost.testing import clip_like
    >>> task = clip_like(n_classes=3, shots=4, confusion=0.5)
    >>> cache = Cache(task.pictures, task.labels, 3)
    >>> misleading = task.pictures[[4, 8, 0]] * np.float32(20)
    >>> choose_weights(cache, task.pictures, misleading, (0.125, 64.0), (5.5,)).alpha
    64.0
    """
    counts = np.bincount(cache.labels, minlength=cache.n_classes)
    folds = int(counts[counts > 0].min())
    if folds < 2:
        return cache
    fold = dealt(cache.labels, folds)
    said, cosines = rows @ text.T, rows @ cache.keys.T
    best, found = (np.inf, np.inf), cache
    for beta in betas:
        sums = _set_aside(cosines, beta, cache.values, fold)
        for alpha in alphas:
            logits = said + alpha * sums
            wrong = 0.0 if by_loss else float(np.mean(logits.argmax(axis=1) != cache.labels))
            if wrong > best[0]:
                continue  # what its loss is does not matter
            if (cost := (wrong, _loss(logits, cache.labels))) < best:
                best, found = cost, replace(cache, alpha=alpha, beta=beta)
    return found


def _nearness(cosines: Floats, beta: float) -> Floats:
    return np.asarray(np.exp(beta * (cosines - 1)))


def _set_aside(cosines: Floats, beta: float, values: Floats, fold: NDArray[np.int64]) -> Floats:
    """Give what a cache says about each picture while the pictures of its fold are not in it."""
    scores = np.empty_like(values)
    folds = int(fold.max()) + 1
    for part in range(folds):
        aside = fold == part
        near = _nearness(cosines[np.ix_(aside, ~aside)], beta)
        scores[aside] = near @ values[~aside] * (folds / (folds - 1))
    return scores


def _loss(logits: Floats, labels: NDArray[np.int64]) -> float:
    """Give the mean log loss at the loudness that suits the logits best."""
    return min(float(log_losses(loud * logits, labels).mean()) for loud in _LOUDNESS)


@dataclass(frozen=True)
class Tuning:
    """How keys are tuned: AdamW, the step falling to zero along a cosine.

    Attributes
    ----------
    epochs, batch : int
        How often each picture is seen, and how many at a time.
    step : float
        The first step.
    seed : int
        Decides the order of the pictures and which view of each is seen.
    """

    epochs: int = 20
    batch: int = 256
    step: float = 0.001
    seed: int = 0


def tune(cache: Cache, views: Floats, text: Floats, tuning: Tuning) -> Cache:
    """Move the keys so that the pictures are classified better: the log loss falls.

    Parameters
    ----------
    cache : Cache
        Where to begin. α and β stay.
    views : array of float32, shape (n, 1 + V, D)
        The pictures and their views, in the order of the keys; an epoch sees one of each.
    text : array of float32, shape (K, D)
        Class rows of the text, with the logit scale in them.
    tuning : Tuning
        How.
    """
    rng = np.random.default_rng(tuning.seed)
    count, n_views = views.shape[:2]
    batches = range(0, count, tuning.batch)
    optimiser = _AdamW(cache.keys, tuning.step, steps=tuning.epochs * len(batches))
    for _ in range(tuning.epochs):
        order = rng.permutation(count)
        seen = views[np.arange(count), rng.integers(n_views, size=count)]
        for start in batches:
            at = order[start : start + tuning.batch]
            now = replace(cache, keys=optimiser.values)
            optimiser.move(gradient(now, seen[at], text, cache.labels[at]))
    return replace(cache, keys=optimiser.values)


def gradient(cache: Cache, rows: Floats, text: Floats, labels: NDArray[np.int64]) -> Floats:
    """Give the slope of the mean log loss of some rows, for each number in the keys: shape (n, D)."""
    near = cache.nearness(rows)
    logits = rows @ text.T + cache.alpha * (near @ cache.values)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1
    # A key moves the logit of its own class only.
    by_key = chances[:, cache.labels] * near
    return np.asarray(by_key.T @ rows * (cache.alpha * cache.beta / len(rows)))


class _AdamW:
    """Adam with decoupled weight decay, with the usual numbers but for the authors' large ε."""

    first_decay, second_decay, epsilon, weight_decay = 0.9, 0.999, 1e-4, 0.01

    def __init__(self, values: Floats, step: float, steps: int) -> None:
        self.values = values.copy()
        self._step, self._steps, self._taken = step, steps, 0
        self._mean = np.zeros_like(values)
        self._square = np.zeros_like(values)

    def move(self, slope: Floats) -> None:
        step = self._step * (1 + np.cos(np.pi * self._taken / self._steps)) / 2
        self._taken += 1
        self._mean += (1 - self.first_decay) * (slope - self._mean)
        self._square += (1 - self.second_decay) * (slope**2 - self._square)
        mean = self._mean / (1 - self.first_decay**self._taken)
        square = self._square / (1 - self.second_decay**self._taken)
        self.values = self.values * np.float32(1 - step * self.weight_decay)
        self.values -= np.float32(step) * mean / (np.sqrt(square) + np.float32(self.epsilon))
