"""Tip-Adapter and Tip-Adapter-F (Zhang et al., 2022): zero-shot plus a cache of training images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

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
# AdamW's
_DECAYS, _EPSILON, _WEIGHT_DECAY = (0.9, 0.999), 1e-4, 0.01


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
        return np.asarray(np.exp(self.beta * (rows @ self.keys.T - 1)))

    @property
    def values(self) -> Floats:
        """The labels of the keys, one-hot."""
        return np.eye(self.n_classes, dtype=np.float32)[self.labels]

    def folds(self, most: int | None = None) -> NDArray[np.int64]:
        """Assign the images to folds, each with images of all classes; a single one is all of them."""
        counts = np.bincount(self.labels)
        fewest = int(counts[counts > 0].min())
        return stratified_folds(self.labels, fewest if most is None else min(fewest, most))


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
    fold = cache.folds()
    folds = int(fold.max()) + 1
    if folds < 2:
        return cache
    by_text, cosines, values = rows @ text.T, rows @ cache.keys.T, cache.values
    best, chosen = (np.inf, np.inf), cache
    for beta in betas:
        sums = np.empty_like(values)
        for out in (fold == k for k in range(folds)):
            near = np.exp(beta * (cosines[np.ix_(out, ~out)] - 1))
            sums[out] = near @ values[~out] * (folds / (folds - 1))
        for alpha in alphas:
            cost = _cost(by_text + alpha * sums, cache.labels, by_loss, best[0])
            if cost < best:
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


def tune(
    cache: Cache,
    views: Floats,
    text: Floats,
    *,
    last: int | None = None,
    epochs: int = EPOCHS,
    **options: Any,
) -> Cache:
    """Return the cache after the epoch `last` of :func:`tuned_caches`; rates depend on all `epochs`."""
    path = tuned_caches(cache, views, text, epochs=epochs, **options)
    return next(islice(path, (last or epochs) - 1, None))


def tuned_caches(
    cache: Cache,
    views: Floats,
    text: Floats,
    *,
    epochs: int = EPOCHS,
    batch: int = 256,
    step: float = 0.001,
    seed: int = 0,
) -> Iterator[Cache]:
    """Train the keys with AdamW on the log loss of the images; yield the cache after each epoch.

    `views` are the images and their crops, (n, 1 + V, D), in the order of the keys; an epoch draws one
    of each. `text` are the class rows times the logit scale. α and β are fixed. The schedule is a cosine,
    and ε the authors' large one.
    """
    rng = np.random.default_rng(seed)
    count, n_views = views.shape[:2]
    starts = range(0, count, batch)
    steps, taken = epochs * len(starts), 0
    keys, mean, square = cache.keys, np.zeros_like(cache.keys), np.zeros_like(cache.keys)
    for _ in range(epochs):
        order = rng.permutation(count)
        seen = views[np.arange(count), rng.integers(n_views, size=count)]
        for start in starts:
            at = order[start : start + batch]
            slope = gradient(replace(cache, keys=keys), seen[at], text, cache.labels[at])
            rate = step * (1 + np.cos(np.pi * taken / steps)) / 2
            taken += 1
            mean += (1 - _DECAYS[0]) * (slope - mean)
            square += (1 - _DECAYS[1]) * (slope**2 - square)
            mean_now, square_now = (
                mean / (1 - _DECAYS[0] ** taken),
                square / (1 - _DECAYS[1] ** taken),
            )
            keys = keys * np.float32(1 - rate * _WEIGHT_DECAY)
            keys -= np.float32(rate) * mean_now / (np.sqrt(square_now) + np.float32(_EPSILON))
        yield replace(cache, keys=keys)


def choose_epoch(
    cache: Cache, views: Floats, text: Floats, *, step: float = 0.001, seed: int = 0
) -> int:
    """Choose the last epoch of tuning by held-out images; all epochs if a class has only one image.

    The remaining images are tuned as a cache of their own, with α scaled up. The log loss at its best
    scale decides: accuracy differs little between epochs.
    """
    fold = cache.folds(_FOLDS)
    folds = int(fold.max()) + 1
    if folds < 2:
        return EPOCHS
    logits = np.repeat((views[:, 0] @ text.T)[None], EPOCHS, axis=0)
    alpha = cache.alpha * folds / (folds - 1)
    for out in (fold == k for k in range(folds)):
        smaller = replace(cache, keys=cache.keys[~out], labels=cache.labels[~out], alpha=alpha)
        path = tuned_caches(smaller, views[~out], text, step=step, seed=seed)
        for epoch, tuned in enumerate(path):
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
