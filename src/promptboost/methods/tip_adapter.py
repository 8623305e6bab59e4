"""Tip-Adapter and Tip-Adapter-F (Zhang et al., 2022): zero-shot, corrected by a cache of images."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.base import (
    Arrays,
    FewShotSet,
    FittedMethod,
    Group,
    Images,
    Logits,
    Method,
    Origin,
    Transfer,
    check_numbers,
)
from promptboost.baselines.fitted import logit_slopes
from promptboost.baselines.sentence_means import ZeroShot
from promptboost.boosting.composition import log_losses
from promptboost.boosting.scale import dealt
from promptboost.encoders.base import Encoder, unit_rows
from promptboost.errors import FileFormatError, LabelError
from promptboost.pool import PromptPool

Floats = NDArray[np.float32]

#: What is tried for the weight of the cache; the authors start at about one.
ALPHAS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
#: What is tried for how near a key has to be to count; the paper has 5.5, its released settings begin at 1.
BETAS = (0.5, 1.0, 2.0, 4.0, 5.5, 8.0, 12.0, 16.0, 24.0, 32.0)

#: Where a class has one image only, no image can be held out. The paper's, for CLIP.
FIXED_ALPHA, FIXED_BETA = 1.0, 5.5

#: Of the tuning, and from which the best is chosen where images can be held out.
EPOCHS = 20

_FOLDS = 3

_LOUDNESS = np.geomspace(0.1, 10.0, 9, dtype=np.float32)


@dataclass(frozen=True)
class Cache:
    """Keys (rows of images), the classes they speak for, and the two numbers of the formula.

    α is the weight of the cache relative to the text, β how fast the influence of a key falls with its
    distance.
    """

    keys: Floats
    labels: NDArray[np.int64]
    n_classes: int
    alpha: float = FIXED_ALPHA
    beta: float = FIXED_BETA

    def scores(self, rows: Floats) -> Floats:
        """Return what the cache adds to the logits of each row: shape (n, K)."""
        return np.asarray(self.alpha * (self.nearness(rows) @ self.values))

    def nearness(self, rows: Floats) -> Floats:
        """Return how much each key counts for each row: exp(−β (1 − cosine))."""
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
    """Choose α and β by cross-validation over the images of the cache; its own where a class has one.

    Each fold takes images of all classes out of the cache, so that no class speaks louder because an
    image of another is missing. `rows` are the images in the order of the keys, `text` the class rows
    with the logit scale in them. Without `by_loss` the number of right answers decides, and the log
    loss between equals, at the loudness that suits each.
    """
    counts = np.bincount(cache.labels, minlength=cache.n_classes)
    folds = int(counts[counts > 0].min())
    if folds < 2:
        return cache
    fold = dealt(cache.labels, folds)
    by_text, cosines = rows @ text.T, rows @ cache.keys.T
    best, chosen = (np.inf, np.inf), cache
    for beta in betas:
        sums = _set_aside(cosines, beta, cache.values, fold)
        for alpha in alphas:
            logits = by_text + alpha * sums
            if (cost := _cost(logits, cache.labels, by_loss, best[0])) < best:
                best, chosen = cost, replace(cache, alpha=alpha, beta=beta)
    return chosen


def _cost(
    logits: Floats, labels: NDArray[np.int64], by_loss: bool, most: float = np.inf
) -> tuple[float, float]:
    """Return the share that is wrong, and the log loss at the loudness that suits best."""
    wrong = 0.0 if by_loss else float(np.mean(logits.argmax(axis=1) != labels))
    if wrong > most:
        return wrong, np.inf  # what its loss is does not matter
    return wrong, min(float(log_losses(loud * logits, labels).mean()) for loud in _LOUDNESS)


def _nearness(cosines: Floats, beta: float) -> Floats:
    return np.asarray(np.exp(beta * (cosines - 1)))


def _set_aside(cosines: Floats, beta: float, values: Floats, fold: NDArray[np.int64]) -> Floats:
    """Return what a cache says about each image while the images of its fold are not in it."""
    scores = np.empty_like(values)
    folds = int(fold.max()) + 1
    for part in range(folds):
        aside = fold == part
        near = _nearness(cosines[np.ix_(aside, ~aside)], beta)
        scores[aside] = near @ values[~aside] * (folds / (folds - 1))
    return scores


def tune(
    cache: Cache,
    views: Floats,
    text: Floats,
    *,
    epochs: int = EPOCHS,
    last: int | None = None,
    batch: int = 256,
    step: float = 0.001,
    seed: int = 0,
) -> Cache:
    """Move the keys by AdamW so that the log loss of the images falls; α and β stay.

    `views` are the images and their crops, (n, 1 + V, D), in the order of the keys; an epoch sees one
    of each. `text` are the class rows with the logit scale in them. Of so many epochs the `last` is
    returned; the length of the steps does not depend on it.
    """
    path = _tuned(cache, views, text, epochs, batch, step, seed)
    return next(islice(path, (last or epochs) - 1, None))


def _tuned(
    cache: Cache, views: Floats, text: Floats, epochs: int, batch: int, step: float, seed: int
) -> Iterator[Cache]:
    """Yield the cache after each epoch of tuning."""
    rng = np.random.default_rng(seed)
    count, n_views = views.shape[:2]
    batches = range(0, count, batch)
    optimizer = _AdamW(cache.keys, step, steps=epochs * len(batches))
    for _ in range(epochs):
        order = rng.permutation(count)
        seen = views[np.arange(count), rng.integers(n_views, size=count)]
        for start in batches:
            at = order[start : start + batch]
            now = replace(cache, keys=optimizer.values)
            optimizer.move(gradient(now, seen[at], text, cache.labels[at]))
        yield replace(cache, keys=optimizer.values)


def choose_epoch(
    cache: Cache,
    views: Floats,
    text: Floats,
    *,
    batch: int = 256,
    step: float = 0.001,
    seed: int = 0,
) -> int:
    """Choose after which epoch tuning should end, by held-out images; the last where a class has one.

    The rest of the images are tuned as a cache of their own, as loud as the whole one. The log loss
    decides, at the loudness that suits each epoch: how many are right differs little from one to the next.
    """
    counts = np.bincount(cache.labels, minlength=cache.n_classes)
    folds = min(int(counts[counts > 0].min()), _FOLDS)
    if folds < 2:
        return EPOCHS
    fold = dealt(cache.labels, folds)
    logits = np.repeat((views[:, 0] @ text.T)[None], EPOCHS, axis=0)
    for part in range(folds):
        aside, rest = fold == part, fold != part
        louder = cache.alpha * folds / (folds - 1)
        smaller = replace(cache, keys=cache.keys[rest], labels=cache.labels[rest], alpha=louder)
        path = _tuned(smaller, views[rest], text, EPOCHS, batch, step, seed)
        for epoch, now in enumerate(path):
            logits[epoch, aside] += now.scores(views[aside, 0])
    costs = [_cost(epoch_logits, cache.labels, by_loss=True) for epoch_logits in logits]
    return costs.index(min(costs)) + 1


def gradient(cache: Cache, rows: Floats, text: Floats, labels: NDArray[np.int64]) -> Floats:
    """Return the slope of the mean log loss of some rows for each number in the keys: (n, D)."""
    near = cache.nearness(rows)
    logits = rows @ text.T + cache.alpha * (near @ cache.values)
    # A key moves the logit of its own class only.
    by_key = logit_slopes(logits, labels)[:, cache.labels] * near
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


@dataclass(frozen=True)
class CacheClassifier(FittedMethod):
    """Class rows made of text, of length one, and a cache of images that corrects them."""

    kind: ClassVar[str] = "tip-adapter"
    origin: Origin
    rows: NDArray[np.float32]
    cache: Cache

    def logits(self, images: Images) -> Logits:
        """Return what the text says plus what the cache says."""
        seen = images.rows(self.origin.encoder)
        text = seen @ self.rows.T * self.origin.encoder.logit_scale
        return np.asarray(text + self.cache.scores(seen), dtype=np.float32)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Return everything."""
        arrays: Arrays = {
            "rows": np.ascontiguousarray(self.rows, dtype=np.float32),
            "keys": np.ascontiguousarray(self.cache.keys, dtype=np.float32),
            "key_labels": np.ascontiguousarray(self.cache.labels, dtype=np.int64),
        }
        return {"alpha": self.cache.alpha, "beta": self.cache.beta}, arrays

    @classmethod
    def from_state(cls, origin: Origin, fields: Mapping[str, Any], arrays: Arrays) -> Self:
        """Make it again."""
        K, D = len(origin.class_names), origin.encoder.dim
        try:
            rows, keys, labels = arrays["rows"], arrays["keys"], arrays["key_labels"]
            alpha, beta = float(fields["alpha"]), float(fields["beta"])
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"the file's cache cannot be read: {error!r}") from error
        if rows.shape != (K, D) or keys.shape != (len(labels), D) or labels.ndim != 1:
            raise FileFormatError(
                f"the file's arrays have the shapes {rows.shape}, {keys.shape} and {labels.shape}"
            )
        if len(labels) == 0 or not 0 <= labels.min() <= labels.max() < K:
            raise FileFormatError(f"the file's labels are not all from 0 to {K - 1}")
        if not (np.isfinite(rows).all() and np.isfinite(keys).all()):
            raise FileFormatError("the file's rows or keys are not finite")
        return cls(origin, rows, Cache(keys, labels.astype(np.int64), K, alpha, beta))


@dataclass(frozen=True)
class TipAdapter(Method):
    """Zero-shot logits, plus α times the classes of the images that look alike.

    Re-implemented. A key of the cache is the mean row of an image and its cached views (the authors
    average ten random crops). With `tuned` the keys are then trained for a few epochs on the views,
    which is Tip-Adapter-F. The text is the mean of the pool's templates, not the authors' own.

    The authors search α and β, and the best epoch of the tuning, on images that are not among the
    few shots. Here they are chosen by cross-validation over the few images: by how many are right,
    or for a tuning by the log loss. Where a class has one image only they are 1 and 5.5, and the last
    epoch is taken. The tuning keeps α and β.

    Parameters
    ----------
    tuned : bool
        Train the keys.
    template : str
        What the text says: as for ``zero-shot``. The mean of the pool's templates by default.
    alpha, beta : float or None
        Weight of the cache, and how near an image has to be to count. None chooses them.
    epochs : int or None
        Of the tuning; the last is taken. None chooses which of 20 to end with.
    learning_rate : float
        Of the tuning.
    seed : int
        Order of the images, and which views are seen, while tuning.
    """

    name: ClassVar[str] = "tip-adapter"
    group: ClassVar[Group] = Group.IMAGES
    carries_over: ClassVar[Transfer] = Transfer.REFIT

    tuned: bool = False
    template: str = "all"
    alpha: float | None = None
    beta: float | None = None
    epochs: int | None = None
    learning_rate: float = 0.001
    seed: int = 0

    def __post_init__(self) -> None:
        ZeroShot(self.template)  # says what is wrong with a template
        check_numbers(self, counts=("epochs",), positive=("alpha", "beta", "learning_rate"))

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that there are images, and that the text can be made."""
        if len(shots.labels) == 0:
            raise LabelError("tip-adapter keeps images, and there is none; give one at least")
        ZeroShot(self.template).check(shots, pool, encoder)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> CacheClassifier:
        """Fill the cache, choose its two numbers, and perhaps tune its keys."""
        self.check(shots, pool, encoder)
        rows = ZeroShot(self.template).fit(shots, pool, encoder).rows
        views = shots.images.views(encoder)
        text = rows * np.float32(encoder.logit_scale)
        keys = unit_rows(views.mean(axis=1))
        start = self.alpha or FIXED_ALPHA, self.beta or FIXED_BETA
        alphas = ALPHAS if self.alpha is None else (self.alpha,)
        betas = BETAS if self.beta is None else (self.beta,)
        cache = Cache(keys, shots.labels, shots.n_classes, *start)
        # The loss is what the tuning lowers: it should begin where that is low.
        cache = choose_weights(cache, views[:, 0], text, alphas, betas, by_loss=self.tuned)
        if self.tuned:
            step, seed, epochs = self.learning_rate, self.seed, self.epochs or EPOCHS
            last = self.epochs or choose_epoch(cache, views, text, step=step, seed=seed)
            cache = tune(cache, views, text, epochs=epochs, last=last, step=step, seed=seed)
        return CacheClassifier(self.origin(shots, encoder), rows, cache)
