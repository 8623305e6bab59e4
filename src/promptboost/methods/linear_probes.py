"""Linear probes: logistic regression, and LP++ (Huang et al., 2024), which blends images and text."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.baselines import fit_probe
from promptboost.boosting.composition import log_losses
from promptboost.encoders.base import Encoder
from promptboost.errors import SettingError
from promptboost.methods.base import (
    FewShotSet,
    Group,
    Method,
    Transfer,
    check_numbers,
    check_two_classes,
)
from promptboost.methods.fitted import LinearClassifier, logit_slopes
from promptboost.methods.sentence_means import ZeroShot
from promptboost.pool import PromptPool


@dataclass(frozen=True)
class Logistic(Method):
    """Logistic regression on the embeddings of images and their crops; no text is read.

    The strength of regularization is chosen by cross-validation over the few images, and kept in
    the classifier's details as ``C``.

    Parameters
    ----------
    seed : int
        Divides the images into folds.
    """

    name: ClassVar[str] = "logistic"
    group: ClassVar[Group] = Group.IMAGES
    carries_over: ClassVar[Transfer] = Transfer.REFIT

    seed: int = 0

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that every class has images."""
        check_two_classes(shots, "logistic regression", "reads no text")

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> LinearClassifier:
        """Fit; the pool is not used."""
        self.check(shots, pool, encoder)
        views = shots.images.views(encoder)
        weights, intercepts, C = fit_probe(views, shots.labels, seed=self.seed)
        arrays = weights.astype(np.float32), intercepts.astype(np.float32)
        return LinearClassifier(self.origin(shots, encoder), *arrays, details={"C": C})


Floats = NDArray[Any]

#: The first α is this times the logit scale times the mean cosine of images with their own text:
#: the authors' 250, at CLIP's scale of 100.
FIRST_ALPHA = 2.5


@dataclass(frozen=True)
class BlendedProbe:
    """The loss L(w, α): mean log loss of the logits ``x · (w_k + α_k t_k)``.

    The Hessian of a log loss in its logits is at most 1/2, so that L is below a parabola of curvature
    :attr:`w_curvature` in all of w, and of :attr:`alpha_curvature` in all of α. A step of the slope over
    the curvature goes to the bottom of the parabola, and L cannot rise.

    Parameters
    ----------
    rows : array, shape (n, D)
        Images (and their crops).
    labels : array of int, shape (n,)
        Their classes.
    text : array, shape (K, D)
        A row of text for each class.
    """

    rows: Floats
    labels: NDArray[np.int64]
    text: Floats

    @cached_property
    def cosines(self) -> Floats:
        """What the text says of each row: shape (n, K)."""
        return np.asarray(self.rows @ self.text.T)

    @cached_property
    def w_curvature(self) -> float:
        """The highest eigenvalue of the rows' XᵀX, over 2 n."""
        rows = self.rows if self.rows.shape[0] > self.rows.shape[1] else self.rows.T
        return float(np.linalg.eigvalsh(rows.T @ rows)[-1]) / (2 * len(self.labels))

    @cached_property
    def alpha_curvature(self) -> float:
        """The highest sum of squared cosines of a class, over 2 n."""
        return float((self.cosines**2).sum(axis=0).max()) / (2 * len(self.labels))

    def logits(self, w: Floats, alpha: Floats) -> Floats:
        """Return the logits of the rows."""
        return np.asarray(self.rows @ w.T + alpha * self.cosines)

    def loss(self, w: Floats, alpha: Floats) -> float:
        """Return the mean log loss."""
        return float(log_losses(self.logits(w, alpha), self.labels).mean())

    def slope_w(self, w: Floats, alpha: Floats) -> Floats:
        """Return the slope of the loss for w: shape (K, D)."""
        return np.asarray(self._slopes(w, alpha).T @ self.rows)

    def slope_alpha(self, w: Floats, alpha: Floats) -> Floats:
        """Return the slope of the loss for α: shape (K,)."""
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
    """Return w and α after so many steps on w; α gets a step after each `alpha_every` of them."""
    pull = np.zeros_like(w)
    for step in range(1, steps + 1):
        pull = momentum * pull + probe.slope_w(w, alpha)
        w = w - (pull / probe.w_curvature).astype(w.dtype)
        if step % alpha_every == 0:
            slope = probe.slope_alpha(w, alpha)
            alpha = alpha - (slope / probe.alpha_curvature).astype(w.dtype)
    return w, alpha


@dataclass(frozen=True)
class LPPlusPlus(Method):
    """A linear probe with rows ``w_k + α_k t_k``: w and α are learned, the text t_k is not.

    Re-implemented. Steps are as long as the data allow (:class:`BlendedProbe`), w begins as the sum
    of a class's images and α as one number for all classes, 2.5 times the logit scale times the mean
    cosine of images with the text of their class. Nothing is searched.

    The authors take the best of 300 steps by validation images; here it is the last. Their released
    code takes steps on w twice and on α an eighth as long, has an intercept, and a momentum of 0.9,
    with which the loss may rise. The text is the mean of the pool's templates, and an image and its
    crops count as one.

    Parameters
    ----------
    template : str
        What the text says: as for ``zero-shot``. The mean of the pool's templates by default.
    steps, alpha_every : int
        Steps on w, and after how many of them α gets one.
    momentum : float
        How much of the last step on w is taken once more; below 1.
    """

    name: ClassVar[str] = "lp++"
    group: ClassVar[Group] = Group.IMAGES
    carries_over: ClassVar[Transfer] = Transfer.REFIT

    template: str = "all"
    steps: int = 300
    alpha_every: int = 10
    momentum: float = 0.0

    def __post_init__(self) -> None:
        ZeroShot(self.template)  # says what is wrong with a template
        check_numbers(self, counts=("steps", "alpha_every"), from_zero=("momentum",))
        if self.momentum >= 1:
            raise SettingError(f"momentum is {self.momentum}, but must be below 1")

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that every class has images, and that the text can be made."""
        check_two_classes(shots, "lp++", "begins with the images of each class")
        ZeroShot(self.template).check(shots, pool, encoder)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> LinearClassifier:
        """Descend from the images' sums."""
        self.check(shots, pool, encoder)
        text = ZeroShot(self.template).fit(shots, pool, encoder).rows
        views = shots.images.views(encoder)
        rows = np.ascontiguousarray(views.reshape(-1, views.shape[2]))
        probe = BlendedProbe(rows, shots.labels.repeat(views.shape[1]), text)
        w = np.stack([views[shots.labels == k].mean(axis=1).sum(axis=0) for k in range(len(text))])
        first = first_alpha(views, shots.labels, text, encoder.logit_scale)
        alpha = np.full(len(text), first, dtype=np.float32)
        w, alpha = descend(
            probe,
            w,
            alpha,
            steps=self.steps,
            alpha_every=self.alpha_every,
            momentum=self.momentum,
        )
        return LinearClassifier(
            self.origin(shots, encoder),
            (w + alpha[:, None] * text).astype(np.float32),
            np.zeros(len(text), dtype=np.float32),
            details={"first_alpha": first, "alpha": alpha.tolist(), "loss": probe.loss(w, alpha)},
        )


def first_alpha(views: Floats, labels: NDArray[np.int64], text: Floats, scale: float) -> float:
    """Return the first α: each class's mean cosine of images and text, averaged, times 2.5 scales."""
    cosines = (views.mean(axis=1) * text[labels]).sum(axis=1)
    by_class = [cosines[labels == k].mean() for k in range(len(text))]
    return FIRST_ALPHA * scale * float(np.mean(by_class))
