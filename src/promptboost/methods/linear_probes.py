"""Linear probes: logistic regression, and three that use the text.

These are the cross-modal probe (Lin et al., 2023), LP++ (Huang et al., 2024) and CLAP (Silva-Rodriguez et
al., 2024).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines import fit_probe
from promptboost.boosting.composition import log_losses
from promptboost.encoders.base import Encoder
from promptboost.errors import SettingError
from promptboost.methods.base import FewShotSet, Method, Transfer, check_numbers, check_two_classes
from promptboost.methods.fitted import (
    MOMENTUM,
    LinearClassifier,
    cosine_rate,
    epoch_batches,
    logit_slopes,
)
from promptboost.methods.sentence_means import TextAdapter
from promptboost.pool import PromptPool

Floats = NDArray[Any]


@dataclass(frozen=True)
class Logistic(Method):
    """Logistic regression on the embeddings of images and their crops, without text.

    Classes have the same total weight. The inverse penalty C is chosen among 1, 10, … 10,000 by the log
    loss, at the best scale of the logits, in cross-validation over the training images, an image with its
    crops in one fold; it is 10 if classes have one image. The classifier's details have it as ``C``.
    """

    name: ClassVar[str] = "logistic"
    carries_over: ClassVar[Transfer] = Transfer.REFIT

    seed: int = 0  # seed for the folds

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that every class has images."""
        check_two_classes(shots, "logistic regression", "reads no text")

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> LinearClassifier:
        """Fit the classifier; the pool is not used."""
        self.check(shots, pool, encoder)
        return _probe(self, shots, encoder)


def _probe(
    method: "Logistic | CrossModal", shots: FewShotSet, encoder: Encoder, text: Floats | None = None
) -> LinearClassifier:
    views = shots.images.views(encoder)
    weights, intercepts, C = fit_probe(
        views, shots.labels, text=text, groups=shots.groups, seed=method.seed
    )
    arrays = weights.astype(np.float32), intercepts.astype(np.float32)
    return LinearClassifier(method.origin(shots, encoder), *arrays, details={"C": C})


@dataclass(frozen=True)
class CrossModal(TextAdapter):
    """Logistic regression on the embeddings of images, their crops, and the texts of the classes.

    Re-implemented. The text of a class is one more row of the class, with an intercept and a penalty as in
    ``logistic``; text and images have the same total weight, as the authors' batches have half of each.
    """

    name: ClassVar[str] = "cross-modal"
    reason: ClassVar[str] = "weights classes by their images"

    seed: int = 0  # seed for the folds

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> LinearClassifier:
        """Fit the classifier on images and text."""
        text = self.text_rows(shots, pool, encoder)
        return _probe(self, shots, encoder, text)


#: The initial α is this times the logit scale times the mean cosine of images with the text of their
#: class: the authors' 250, at CLIP's scale of 100.
FIRST_ALPHA = 2.5


@dataclass(frozen=True)
class BlendedProbe:
    """The loss L(w, α): mean log loss of the logits ``x · (w_k + α_k t_k)``.

    The Hessian of a log loss in its logits is at most 1/2, so L is bounded by a parabola of curvature
    :attr:`w_curvature` in w and of :attr:`alpha_curvature` in α. A gradient step divided by the
    curvature reaches the minimum of the parabola and cannot increase L.
    """

    rows: Floats  # (n, D): embeddings of images and their crops
    labels: NDArray[np.int64]  # (n,): their classes
    text: Floats  # (K, D): text embedding of each class

    @cached_property
    def cosines(self) -> Floats:
        """Cosines of rows and text, shape (n, K)."""
        return np.asarray(self.rows @ self.text.T)

    @cached_property
    def w_curvature(self) -> float:
        """The largest eigenvalue of the rows' XᵀX, over 2 n."""
        rows = self.rows if self.rows.shape[0] > self.rows.shape[1] else self.rows.T
        return float(np.linalg.eigvalsh(rows.T @ rows)[-1]) / (2 * len(self.labels))

    @cached_property
    def alpha_curvature(self) -> float:
        """The largest sum of squared cosines of a class, over 2 n."""
        return float((self.cosines**2).sum(axis=0).max()) / (2 * len(self.labels))

    def logits(self, w: Floats, alpha: Floats) -> Floats:
        """Return the logits of the rows."""
        return np.asarray(self.rows @ w.T + alpha * self.cosines)

    def loss(self, w: Floats, alpha: Floats) -> float:
        """Return the mean log loss."""
        return float(log_losses(self.logits(w, alpha), self.labels).mean())

    def slope_w(self, w: Floats, alpha: Floats) -> Floats:
        """Return the gradient with respect to w, shape (K, D)."""
        return np.asarray(self._slopes(w, alpha).T @ self.rows)

    def slope_alpha(self, w: Floats, alpha: Floats) -> Floats:
        """Return the gradient with respect to α, shape (K,)."""
        return np.asarray((self._slopes(w, alpha) * self.cosines).sum(axis=0))

    def _slopes(self, w: Floats, alpha: Floats) -> Floats:
        return logit_slopes(self.logits(w, alpha), self.labels) / np.float32(len(self.labels))


def descend(
    probe: BlendedProbe,
    w: Floats,
    alpha: Floats,
    *,
    steps: int,
    alpha_every: int = 10,
    momentum: float = 0.0,
) -> tuple[Floats, Floats]:
    """Return w and α after gradient descent; α is updated after every `alpha_every` steps on w."""
    velocity = np.zeros_like(w)
    for step in range(1, steps + 1):
        velocity = momentum * velocity + probe.slope_w(w, alpha)
        w = w - (velocity / probe.w_curvature).astype(w.dtype)
        if step % alpha_every == 0:
            slope = probe.slope_alpha(w, alpha)
            alpha = alpha - (slope / probe.alpha_curvature).astype(w.dtype)
    return w, alpha


@dataclass(frozen=True)
class LPPlusPlus(TextAdapter):
    """A linear probe with rows ``w_k + α_k t_k``: w and α are learned, the text t_k is fixed.

    Re-implemented. Step sizes follow from the data (:class:`BlendedProbe`), w starts as the sum of a
    class's images and α as one number for all classes, 2.5 times the logit scale times the mean
    cosine of images with the text of their class. There is no search.
    """

    name: ClassVar[str] = "lp++"
    reason: ClassVar[str] = "begins with the images of each class"

    # Number of steps on w, and steps on w per step on α
    steps: int = 300
    alpha_every: int = 10
    momentum: float = 0.0  # momentum of the steps on w, below 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, counts=("steps", "alpha_every"), from_zero=("momentum",))
        if self.momentum >= 1:
            raise SettingError(f"momentum is {self.momentum}, but must be below 1")

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> LinearClassifier:
        """Fit the probe, starting from the sums of the images."""
        text = self.text_rows(shots, pool, encoder)
        views = shots.images.views(encoder)
        rows = np.ascontiguousarray(views.reshape(-1, views.shape[2]))
        probe = BlendedProbe(rows, shots.labels.repeat(views.shape[1]), text)
        w = np.stack([views[shots.labels == k].mean(axis=1).sum(axis=0) for k in range(len(text))])
        first = first_alpha(views, shots.labels, text, encoder.logit_scale)
        alpha = np.full(len(text), first, dtype=np.float32)
        every, momentum = self.alpha_every, self.momentum
        w, alpha = descend(probe, w, alpha, steps=self.steps, alpha_every=every, momentum=momentum)
        return LinearClassifier(
            self.origin(shots, encoder),
            (w + alpha[:, None] * text).astype(np.float32),
            np.zeros(len(text), dtype=np.float32),
            details={"first_alpha": first, "alpha": alpha.tolist(), "loss": probe.loss(w, alpha)},
        )


def first_alpha(views: Floats, labels: NDArray[np.int64], text: Floats, scale: float) -> float:
    """Return the initial α: the mean over classes of the cosine of images and text, times 2.5 scales."""
    cosines = (views.mean(axis=1) * text[labels]).sum(axis=1)
    by_class = [cosines[labels == k].mean() for k in range(len(text))]
    return FIRST_ALPHA * scale * float(np.mean(by_class))


def multipliers(
    views: Floats, labels: NDArray[np.int64], text: Floats, scale: float
) -> NDArray[np.float64]:
    """Return CLAP's penalty weight of each class: the mean zero-shot probability of its own images.

    `views` are images and their crops, (n, 1 + V, D); `text` are unit class rows. A class that zero-shot
    classifies well should stay near its text.
    """
    n_views = views.shape[1]
    logits = scale * (views.reshape(-1, views.shape[2]) @ text.T)
    right = np.exp(-log_losses(logits, labels.repeat(n_views))).reshape(-1, n_views).mean(axis=1)
    return np.array([right[labels == k].mean() for k in range(len(text))])


@dataclass(frozen=True)
class PenalizedProbe:
    """The loss of prototypes w: log loss of ``scale · cos(x, w_k)``, plus the mean of λ_k ‖w_k − t_k‖².

    The multipliers λ are the initial ones of an augmented Lagrangian method. The authors do not update
    them: the few images are soon fitted, and the multipliers would vanish.
    """

    start: Floats
    multipliers: Floats
    scale: float

    def loss(self, w: Floats, rows: Floats, labels: NDArray[np.int64]) -> float:
        """Return the mean log loss of rows, plus the penalty."""
        return float(log_losses(self._logits(w, rows), labels).mean()) + self.penalty(w)

    def penalty(self, w: Floats) -> float:
        """Return the mean over classes of λ_k ‖w_k − t_k‖²."""
        return float((self.multipliers * ((w - self.start) ** 2).sum(axis=1)).mean())

    def slope(self, w: Floats, rows: Floats, labels: NDArray[np.int64]) -> Floats:
        """Return the gradient with respect to w, shape (K, D)."""
        lengths = np.linalg.norm(w, axis=1, keepdims=True)
        units = w / lengths
        slopes = logit_slopes(self._logits(w, rows), labels)
        of_loss = slopes.T @ rows * (self.scale / len(rows))
        # Logits do not depend on the length of a prototype.
        of_loss -= (of_loss * units).sum(axis=1, keepdims=True) * units
        of_penalty = 2 / len(w) * self.multipliers[:, None] * (w - self.start)
        return np.asarray(of_loss / lengths + of_penalty)

    def _logits(self, w: Floats, rows: Floats) -> Floats:
        return np.asarray(self.scale * (rows @ (w / np.linalg.norm(w, axis=1, keepdims=True)).T))


@dataclass(frozen=True)
class CLAP(TextAdapter):
    """A linear probe that starts at the text embeddings and is penalized for leaving them, per class.

    Re-implemented, with the authors' one setting for all datasets: gradient descent with momentum, one
    epoch at a rate of 0.00001, then a cosine schedule, the last step used, no search. They cut 20 crops
    of each image beforehand, and an epoch of theirs samples as many crops as there are images, or one
    batch; here an epoch has each image once, as one of its cached views. Incomplete last batches are
    dropped, as theirs are.

    Their text rows have the length that CLIP's text tower gives them, and the penalty grows with its
    square. Unit rows are scaled to `length` here. The text is the mean of the pool's templates.
    """

    name: ClassVar[str] = "clap"
    reason: ClassVar[str] = "weights the penalty of a class by its images"

    # Number of epochs, and images per step
    epochs: int = 300
    batch: int = 256
    learning_rate: float = 0.1  # rate of the second epoch
    # Length of the text rows during training. None for the root of the encoder's logit scale (10
    # for CLIP's 100), with which log loss and penalty scale alike.
    length: float | None = None
    seed: int = 0  # seed for the order of the images and their views

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, counts=("epochs", "batch"), positive=("learning_rate", "length"))

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> LinearClassifier:
        """Fit the probe, starting from the text."""
        text = self.text_rows(shots, pool, encoder)
        views, scale = shots.images.views(encoder), float(encoder.logit_scale)
        weights = multipliers(views, shots.labels, text, scale)
        length = np.float32(scale**0.5 if self.length is None else self.length)
        probe = PenalizedProbe(length * text, weights.astype(np.float32), scale)
        rng, count = np.random.default_rng(self.seed), len(shots.labels)
        w, velocity = probe.start, np.zeros_like(probe.start)
        for epoch in range(self.epochs):
            rate = np.float32(cosine_rate(epoch, self.epochs, self.learning_rate))
            order = rng.permutation(count)
            seen = views[np.arange(count), rng.integers(views.shape[1], size=count)]
            for batch in epoch_batches(count, self.batch):
                images = order[batch]
                slope = probe.slope(w, seen[images], shots.labels[images])
                velocity = np.float32(MOMENTUM) * velocity + slope
                w = w - rate * velocity
        rows = scale * w / np.linalg.norm(w, axis=1, keepdims=True)
        return LinearClassifier(
            self.origin(shots, encoder),
            rows.astype(np.float32),
            np.zeros(len(rows), dtype=np.float32),
            details={"multipliers": weights.tolist(), "penalty": probe.penalty(w)},
        )
