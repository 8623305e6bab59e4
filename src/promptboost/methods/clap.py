"""CLAP (Silva-Rodriguez et al., 2024): a linear probe held near the text, class by class."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.base import (
    FewShotSet,
    Group,
    Method,
    Transfer,
    check_numbers,
    check_two_classes,
)
from promptboost.baselines.fitted import LinearClassifier, logit_slopes
from promptboost.baselines.sentence_means import ZeroShot
from promptboost.boosting.composition import log_losses
from promptboost.encoders.base import Encoder
from promptboost.methods.learned_tokens import cosine_rate
from promptboost.pool import PromptPool

Floats = NDArray[Any]

_MOMENTUM = 0.9
_FIRST_RATE = 1e-5


def multipliers(
    views: Floats, labels: NDArray[np.int64], text: Floats, scale: float
) -> NDArray[np.float64]:
    """Return how strongly each class is held: the mean zero-shot probability of its own images.

    `views` are images and their crops, (n, 1 + V, D); `text` are class rows of length one. A class that
    the text knows well is not to move far.
    """
    n_views = views.shape[1]
    logits = scale * (views.reshape(-1, views.shape[2]) @ text.T)
    right = np.exp(-log_losses(logits, labels.repeat(n_views))).reshape(-1, n_views).mean(axis=1)
    return np.array([right[labels == k].mean() for k in range(len(text))])


@dataclass(frozen=True)
class HeldProbe:
    """The loss of prototypes w: log loss of ``scale · cos(x, w_k)``, plus the mean of λ_k ‖w_k − t_k‖².

    The multipliers λ are those with which an augmented Lagrangian method begins. The authors leave
    them as they are, because the few images would soon be fitted and no longer hold anything.
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
        """Return the slope of the loss for w: shape (K, D)."""
        lengths = np.linalg.norm(w, axis=1, keepdims=True)
        units = w / lengths
        slopes = logit_slopes(self._logits(w, rows), labels)
        pull = slopes.T @ rows * (self.scale / len(rows))
        # Logits do not depend on the length of a prototype.
        pull -= (pull * units).sum(axis=1, keepdims=True) * units
        held = 2 / len(w) * self.multipliers[:, None] * (w - self.start)
        return np.asarray(pull / lengths + held)

    def _logits(self, w: Floats, rows: Floats) -> Floats:
        return np.asarray(self.scale * (rows @ (w / np.linalg.norm(w, axis=1, keepdims=True)).T))


@dataclass(frozen=True)
class CLAP(Method):
    """A linear probe that starts at the text rows and is held near them, each class by its own weight.

    Re-implemented, with the authors' one setting for all datasets: gradient descent with momentum, a
    rate that falls to zero along a cosine after one epoch at 0.00001, the last step taken, nothing
    searched. They cut 20 crops of each image beforehand, and an epoch of theirs sees as many of all the
    crops as there are images, or one batch of them; here it sees each image once, as one of its cached
    views. An incomplete last batch is left out, as theirs is.

    Their text rows have the length that CLIP's text tower gives them, and the penalty grows with its
    square. Rows here have length one, and are stretched to `length`. The text is the mean of the pool's
    templates.

    Parameters
    ----------
    template : str
        What the text says: as for ``zero-shot``. The mean of the pool's templates by default.
    epochs, batch : int
        Passes through the images, and images in a step.
    learning_rate : float
        Of the second epoch.
    length : float or None
        Length of the text rows while training. None for the root of the encoder's logit scale (10 for
        CLIP's 100): log loss and penalty then grow alike with the scale.
    seed : int
        Order of the images, and which views are seen.
    """

    name: ClassVar[str] = "clap"
    group: ClassVar[Group] = Group.IMAGES
    carries_over: ClassVar[Transfer] = Transfer.REFIT

    template: str = "all"
    epochs: int = 300
    batch: int = 256
    learning_rate: float = 0.1
    length: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        ZeroShot(self.template)  # says what is wrong with a template
        check_numbers(self, counts=("epochs", "batch"), positive=("learning_rate", "length"))

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that every class has images, and that the text can be made."""
        check_two_classes(shots, "clap", "holds a class by how well the text knows its images")
        ZeroShot(self.template).check(shots, pool, encoder)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> LinearClassifier:
        """Descend from the text."""
        self.check(shots, pool, encoder)
        text = ZeroShot(self.template).fit(shots, pool, encoder).rows
        views, scale = shots.images.views(encoder), float(encoder.logit_scale)
        held = multipliers(views, shots.labels, text, scale)
        length = np.float32(scale**0.5 if self.length is None else self.length)
        probe = HeldProbe(length * text, held.astype(np.float32), scale)
        w = self._descend(probe, views, shots.labels)
        rows = scale * w / np.linalg.norm(w, axis=1, keepdims=True)
        return LinearClassifier(
            self.origin(shots, encoder),
            rows.astype(np.float32),
            np.zeros(len(rows), dtype=np.float32),
            details={"multipliers": held.tolist(), "penalty": probe.penalty(w)},
        )

    def _descend(self, probe: HeldProbe, views: Floats, labels: NDArray[np.int64]) -> Floats:
        rng = np.random.default_rng(self.seed)
        w, pull, count = probe.start, np.zeros_like(probe.start), len(labels)
        for epoch in range(self.epochs):
            rate = np.float32(cosine_rate(epoch, self.epochs, self.learning_rate, _FIRST_RATE))
            order = rng.permutation(count)
            seen = views[np.arange(count), rng.integers(views.shape[1], size=count)]
            for begin in range(0, max(count - self.batch, 0) + 1, self.batch):
                at = order[begin : begin + self.batch]
                pull = np.float32(_MOMENTUM) * pull + probe.slope(w, seen[at], labels[at])
                w = w - rate * pull
        return w
