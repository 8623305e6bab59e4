"""Gaussian classifiers of images, added to the text: GDA (Wang et al., 2024) and TIMO (Li et al., 2025)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder, unit_rows
from promptboost.methods.base import FewShotSet, Method, Transfer, check_numbers, check_two_classes
from promptboost.methods.fitted import LinearClassifier, embed_distinct
from promptboost.methods.folds import choose_by_folds
from promptboost.methods.sentence_means import PoolMean, TextAdapter
from promptboost.pool import PromptPool

Floats = NDArray[Any]

#: The authors' candidates for GDA's weight of the images, relative to CLIP's logit scale of 100.
GDA_ALPHAS = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
#: Used if classes have one image: where the authors' search starts.
FIXED_GDA_ALPHA = 0.1

#: The authors' candidates for TIMO's weight of the text, and candidates for the sharpness of the weights of
#: sentences.
TIMO_ALPHAS = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
GAMMAS = (1.0, 5.0, 20.0, 50.0, 100.0)
#: Used if classes have one image: text and images as in GDA, and the authors' sharpness.
FIXED_TIMO_ALPHA, FIXED_GAMMA = 100 / FIXED_GDA_ALPHA, 50.0


def gaussian_classifier(
    rows: Floats, labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return class rows (K, D) and intercepts (K,) of Gaussian discriminant analysis.

    Classes have the same prior and the same precision matrix, P = D (S + tr(S) / (n − 1) I)⁻¹: S is the
    scatter of the n rows about the means μ of their classes, shrunk as Kubokawa and Srivastava do. Class
    rows are P μ and intercepts −μᵀ P μ / 2. Where all rows of a class are the same, as those of one image
    without crops, P is D times the identity. Every class has a row at least.
    """
    X = rows.astype(np.float64)
    n, dim = X.shape
    means = np.stack([X[labels == k].mean(axis=0) for k in range(labels.max() + 1)])
    apart = X - means[labels]
    scatter = apart.T @ apart
    spread = float(np.trace(scatter)) / (n - 1)
    if spread < 1e-12:
        scatter, spread = np.zeros_like(scatter), 1.0
    class_rows = np.linalg.solve(scatter + spread * np.eye(dim), means.T).T * dim
    return class_rows, -(class_rows * means).sum(axis=1) / 2


@dataclass(frozen=True)
class GDA(TextAdapter):
    """Zero-shot logits, plus α times those of a Gaussian classifier of the images.

    Re-implemented. The Gaussian classifier (:func:`gaussian_classifier`) has nothing to choose. Images and
    their cached crops are its rows; the authors use random crops. With one image per class the covariance
    is that of the crops, and without crops the identity. The text is the mean of the pool's templates.
    """

    name: ClassVar[str] = "gda"
    reason: ClassVar[str] = "needs the mean image of each class"

    alpha: float | None = None  # weight of the Gaussian classifier. None chooses it.

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, positive=("alpha",))

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> LinearClassifier:
        """Compute the Gaussian classifier, and choose α."""
        views, labels = shots.images.views(encoder), shots.labels
        text = self.text_rows(shots, pool, encoder)
        alphas = GDA_ALPHAS if self.alpha is None else (self.alpha,)

        def held_out(kept: NDArray[np.bool_], out: NDArray[np.bool_]) -> Iterator[Floats]:
            rows, intercepts = gaussian_classifier(*_flat(views[kept], labels[kept]))
            seen = views[out, 0]
            for alpha in alphas:
                yield seen @ text.T + alpha / 100 * (seen @ rows.T + intercepts)

        alpha = choose_by_folds(labels, alphas, FIXED_GDA_ALPHA, held_out, shots.groups)
        rows, intercepts = gaussian_classifier(*_flat(views, labels))
        scale, weight = encoder.logit_scale, alpha / 100 * encoder.logit_scale
        return LinearClassifier(
            self.origin(shots, encoder),
            (scale * text + weight * rows).astype(np.float32),
            (weight * intercepts).astype(np.float32),
            details={"alpha": alpha},
        )


def _flat(views: Floats, labels: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
    """Return images and crops as rows, with their labels."""
    return views.reshape(-1, views.shape[2]), labels.repeat(views.shape[1])


def guided_text(sentences: Sequence[Floats], cosines: Sequence[Floats], gamma: float) -> Floats:
    """Return unit class rows (K, D): means of sentences, weighted by their cosines with the images.

    `sentences` has the rows of each class, `cosines` those with the mean image of the class. Weights are
    the softmax of γ times the cosines, which are scaled to length one as a vector.
    """
    means = []
    for rows, cosine in zip(sentences, cosines, strict=True):
        weights = np.exp(
            gamma * (cosine - cosine.max()) / max(float(np.linalg.norm(cosine)), 1e-12)
        )
        means.append(weights @ rows / weights.sum())
    return unit_rows(np.stack(means))


def guided_gaussian(
    views: Floats, labels: NDArray[np.int64], sentences: Sequence[Floats]
) -> tuple[list[Floats], NDArray[np.float64], NDArray[np.float64]]:
    """Return the cosines of sentences with the mean image of their class, and a Gaussian classifier.

    The sentences are rows of the Gaussian classifier, too, each times its cosine.
    """
    means = unit_rows(
        np.stack([views[labels == k].mean(axis=(0, 1)) for k in range(len(sentences))])
    )
    cosines = [rows @ mean for rows, mean in zip(sentences, means, strict=True)]
    images, of_images = _flat(views, labels)
    texts = [cosine[:, None] * rows for cosine, rows in zip(cosines, sentences, strict=True)]
    of_texts = np.arange(len(sentences)).repeat([len(rows) for rows in sentences])
    rows = np.concatenate([images, *texts])
    return cosines, *gaussian_classifier(rows, np.concatenate([of_images, of_texts]))


@dataclass(frozen=True)
class TIMO(Method):
    """GDA with sentences that images weight, and with the sentences as further images.

    Re-implemented. The text of a class is the mean of its sentences, weighted by :func:`guided_text`. The
    sentences, each times its cosine with the mean image of the class, are also rows of the Gaussian
    classifier. Sentences are those of the pool, with its templates; the authors have those of CuPL.
    """

    name: ClassVar[str] = "timo"
    carries_over: ClassVar[Transfer] = Transfer.REFIT

    alpha: float | None = None  # weight of the text. None chooses it.
    gamma: float | None = None  # sharpness of the weights of sentences. None chooses it.

    def __post_init__(self) -> None:
        check_numbers(self, positive=("alpha", "gamma"))

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that every class has images."""
        check_two_classes(shots, "timo", "compares sentences with the images of each class")

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> LinearClassifier:
        """Weight the sentences, compute the Gaussian classifier, and choose α and γ."""
        self.check(shots, pool, encoder)
        views, labels = shots.images.views(encoder), shots.labels
        sentences = [embed_distinct(list(b), encoder) for b in PoolMean().banks(shots, pool)]
        alphas = TIMO_ALPHAS if self.alpha is None else (self.alpha,)
        gammas = GAMMAS if self.gamma is None else (self.gamma,)
        default = self.alpha or FIXED_TIMO_ALPHA, self.gamma or FIXED_GAMMA

        def held_out(kept: NDArray[np.bool_], out: NDArray[np.bool_]) -> Iterator[Floats]:
            cosines, rows, intercepts = guided_gaussian(views[kept], labels[kept], sentences)
            seen = views[out, 0]
            by_images = seen @ rows.T + intercepts
            by_text = {g: seen @ guided_text(sentences, cosines, g).T for g in gammas}
            for alpha, gamma in product(alphas, gammas):
                yield alpha * by_text[gamma] + by_images

        alpha, gamma = choose_by_folds(
            labels, [*product(alphas, gammas)], default, held_out, shots.groups
        )
        cosines, rows, intercepts = guided_gaussian(views, labels, sentences)
        return LinearClassifier(
            self.origin(shots, encoder),
            (alpha * guided_text(sentences, cosines, gamma) + rows).astype(np.float32),
            intercepts.astype(np.float32),
            details={"alpha": alpha, "gamma": gamma},
        )
