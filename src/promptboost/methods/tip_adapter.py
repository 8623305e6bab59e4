"""Tip-Adapter and Tip-Adapter-F (Zhang et al., 2022): zero-shot plus a cache of training images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.composition import log_losses
from promptboost.boosting.scale import stratified_folds
from promptboost.encoders.base import Encoder, unit_rows
from promptboost.errors import LabelError
from promptboost.methods.base import FewShotSet, FittedMethod, Images, Logits, Origin, check_numbers
from promptboost.methods.fitted import logit_slopes
from promptboost.methods.folds import LOSS_SCALES
from promptboost.methods.sentence_means import TextAdapter, ZeroShot
from promptboost.pool import PromptPool

Floats = NDArray[np.float32]

#: Candidates for the weight of the cache; the authors start at about one.
ALPHAS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
#: Candidates for the sharpness; the paper uses 5.5, its released settings start at 1.
BETAS = (0.5, 1.0, 2.0, 4.0, 5.5, 8.0, 12.0, 16.0, 24.0, 32.0)

#: Used if a class has only one image, so that none can be held out: the paper's, for CLIP.
FIXED_ALPHA, FIXED_BETA = 1.0, 5.5

#: Epochs of tuning, among which the best is chosen if images can be held out.
EPOCHS = 20

_FOLDS = 3


@dataclass(frozen=True)
class Cache:
    """Keys (embeddings of training images), their labels, and the two parameters of the formula.

    α is the weight of the cache relative to the text, β how fast the influence of a key decreases with
    its distance.
    """

    keys: Floats
    labels: NDArray[np.int64]
    n_classes: int
    alpha: float = FIXED_ALPHA
    beta: float = FIXED_BETA

    def scores(self, rows: Floats) -> Floats:
        """Return the addition of the cache to the logits of each row, shape (n, K)."""
        return np.asarray(self.alpha * (self.nearness(rows) @ self.values))

    def nearness(self, rows: Floats) -> Floats:
        """Return the weight of each key for each row, exp(−β (1 − cosine))."""
        return _nearness(rows @ self.keys.T, self.beta)

    @property
    def values(self) -> Floats:
        """The labels of the keys, one-hot."""
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
    """Choose α and β by cross-validation over the cached images; keep them if a class has only one.

    Each fold removes images of all classes from the cache, so that the classes stay balanced. `rows` are
    the images in the order of the keys, `text` the class rows times the logit scale. Without `by_loss`
    the accuracy decides, and the log loss at its best scale breaks ties.
    """
    counts = np.bincount(cache.labels, minlength=cache.n_classes)
    folds = int(counts[counts > 0].min())
    if folds < 2:
        return cache
    fold = stratified_folds(cache.labels, folds)
    by_text, cosines = rows @ text.T, rows @ cache.keys.T
    best, chosen = (np.inf, np.inf), cache
    for beta in betas:
        sums = _held_out_sums(cosines, beta, cache.values, fold)
        for alpha in alphas:
            logits = by_text + alpha * sums
            if (cost := _cost(logits, cache.labels, by_loss, best[0])) < best:
                best, chosen = cost, replace(cache, alpha=alpha, beta=beta)
    return chosen


def _cost(
    logits: Floats, labels: NDArray[np.int64], by_loss: bool, most: float = np.inf
) -> tuple[float, float]:
    """Return the error rate, 0 if `by_loss`, and the log loss at the best scale."""
    wrong = 0.0 if by_loss else float(np.mean(logits.argmax(axis=1) != labels))
    if wrong > most:
        return wrong, np.inf  # its loss does not matter
    return wrong, min(float(log_losses(scale * logits, labels).mean()) for scale in LOSS_SCALES)


def _nearness(cosines: Floats, beta: float) -> Floats:
    return np.asarray(np.exp(beta * (cosines - 1)))


def _held_out_sums(cosines: Floats, beta: float, values: Floats, fold: NDArray[np.int64]) -> Floats:
    """Return the sums over the cache for each image, without the images of its fold."""
    scores = np.empty_like(values)
    folds = int(fold.max()) + 1
    for k in range(folds):
        out = fold == k
        near = _nearness(cosines[np.ix_(out, ~out)], beta)
        scores[out] = near @ values[~out] * (folds / (folds - 1))
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
    """Train the keys with AdamW on the log loss of the images; α and β are fixed.

    `views` are the images and their crops, (n, 1 + V, D), in the order of the keys; an epoch draws one
    of each. `text` are the class rows times the logit scale. Returns the cache after the epoch `last`,
    which does not affect the learning rates.
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
    """Choose the last epoch of tuning by held-out images; all epochs if a class has only one image.

    The remaining images are tuned as a cache of their own, with α scaled up. The log loss at its best
    scale decides: accuracy differs little between epochs.
    """
    counts = np.bincount(cache.labels, minlength=cache.n_classes)
    folds = min(int(counts[counts > 0].min()), _FOLDS)
    if folds < 2:
        return EPOCHS
    fold = stratified_folds(cache.labels, folds)
    logits = np.repeat((views[:, 0] @ text.T)[None], EPOCHS, axis=0)
    alpha = cache.alpha * folds / (folds - 1)
    for k in range(folds):
        out = fold == k
        smaller = replace(cache, keys=cache.keys[~out], labels=cache.labels[~out], alpha=alpha)
        for epoch, tuned in enumerate(
            _tuned(smaller, views[~out], text, EPOCHS, batch, step, seed)
        ):
            logits[epoch, out] += tuned.scores(views[out, 0])
    costs = [_cost(epoch_logits, cache.labels, by_loss=True) for epoch_logits in logits]
    return costs.index(min(costs)) + 1


def gradient(cache: Cache, rows: Floats, text: Floats, labels: NDArray[np.int64]) -> Floats:
    """Return the gradient of the mean log loss of some rows with respect to the keys, (n, D)."""
    near = cache.nearness(rows)
    logits = rows @ text.T + cache.alpha * (near @ cache.values)
    # A key moves the logit of its own class only.
    by_key = logit_slopes(logits, labels)[:, cache.labels] * near
    return np.asarray(by_key.T @ rows * (cache.alpha * cache.beta / len(rows)))


class _AdamW:
    """Adam with decoupled weight decay, a cosine schedule, and the authors' large ε."""

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
    """Unit class rows of text, and a cache of images."""

    kind: ClassVar[str] = "tip-adapter"
    origin: Origin
    rows: NDArray[np.float32]
    keys: NDArray[np.float32]
    labels: NDArray[np.int64]
    alpha: float
    beta: float

    @property
    def cache(self) -> Cache:
        """The images."""
        return Cache(self.keys, self.labels, len(self.rows), self.alpha, self.beta)

    def logits(self, images: Images) -> Logits:
        """Return the logits of the text plus those of the cache."""
        seen = images.rows(self.origin.encoder)
        text = seen @ self.rows.T * self.origin.encoder.logit_scale
        return np.asarray(text + self.cache.scores(seen), dtype=np.float32)


@dataclass(frozen=True)
class TipAdapter(TextAdapter):
    """Zero-shot logits, plus α times the labels of similar training images.

    Re-implemented. A key of the cache is the mean embedding of an image and its cached views (the
    authors average ten random crops). With `tuned` the keys are then trained for a few epochs on the
    views, which is Tip-Adapter-F. The text is the mean of the pool's templates, not the authors' own.
    """

    name: ClassVar[str] = "tip-adapter"
    tuned: bool = False  # train the keys
    # Weight of the cache, and its sharpness. None chooses them.
    alpha: float | None = None
    beta: float | None = None
    epochs: int | None = None  # epochs of tuning. None chooses among 20.
    learning_rate: float = 0.001  # initial learning rate of tuning
    seed: int = 0  # seed for the order of the images and their views during tuning

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, counts=("epochs",), positive=("alpha", "beta", "learning_rate"))

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that there are images and that the text is available."""
        if len(shots.labels) == 0:
            raise LabelError("tip-adapter caches images, and there is none; give at least one")
        ZeroShot(self.template).check(shots, pool, encoder)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> CacheClassifier:
        """Fill the cache, choose α and β, and tune the keys if `tuned`."""
        rows = self.text_rows(shots, pool, encoder)
        views = shots.images.views(encoder)
        text = rows * np.float32(encoder.logit_scale)
        keys = unit_rows(views.mean(axis=1))
        start = self.alpha or FIXED_ALPHA, self.beta or FIXED_BETA
        alphas = ALPHAS if self.alpha is None else (self.alpha,)
        betas = BETAS if self.beta is None else (self.beta,)
        cache = Cache(keys, shots.labels, shots.n_classes, *start)
        # Tuning minimizes the loss, so it starts where the loss is small.
        cache = choose_weights(cache, views[:, 0], text, alphas, betas, by_loss=self.tuned)
        if self.tuned:
            step, seed, epochs = self.learning_rate, self.seed, self.epochs or EPOCHS
            last = self.epochs or choose_epoch(cache, views, text, step=step, seed=seed)
            cache = tune(cache, views, text, epochs=epochs, last=last, step=step, seed=seed)
        origin, parameters = self.origin(shots, encoder), (cache.alpha, cache.beta)
        return CacheClassifier(origin, rows, cache.keys, cache.labels, *parameters)
