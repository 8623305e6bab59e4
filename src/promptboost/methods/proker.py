"""ProKeR (Bendou et al., 2025): kernel ridge regression of what the text misses."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder, unit_rows
from promptboost.methods.base import FewShotSet, FittedMethod, Images, Logits, Origin, check_numbers
from promptboost.methods.folds import choose_by_folds
from promptboost.methods.sentence_means import TextAdapter
from promptboost.pool import PromptPool

Floats = NDArray[Any]

#: Candidates for the sharpness β of the kernel, and for λ. The authors search from 0.5 to 3 and from 0.001
#: to 1, for CLIP.
BETAS = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 16.0)
LAMBDAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

#: The authors' for one image per class, chosen on ImageNet.
FIXED_BETA, FIXED_LAMBDA = 3.0, 0.05


def kernel(rows: Floats, keys: Floats, beta: float) -> Floats:
    """Return exp(−β (1 − cosine)) of unit rows and keys, shape (n, number of keys)."""
    return np.asarray(np.exp(beta * (rows @ keys.T - 1)))


def coefficients(
    keys: Floats, labels: NDArray[np.int64], text: Floats, beta: float, lam: float
) -> NDArray[np.float64]:
    """Return A, (n, K): the solution of (K / λ + I) A = Y − cosines of the keys with the text."""
    keys, text = keys.astype(np.float64), text.astype(np.float64)
    system = kernel(keys, keys, beta) / lam + np.eye(len(keys))
    return np.linalg.solve(system, np.eye(len(text))[labels] - keys @ text.T)


@dataclass(frozen=True)
class KernelClassifier(FittedMethod):
    """Unit class rows of text, and a kernel expansion over training images.

    Logits are the encoder's scale times ``x · t_k + Σ_i exp(−β (1 − x · key_i)) A_ik``.
    """

    kind: ClassVar[str] = "proker"
    origin: Origin
    rows: NDArray[np.float32]
    keys: NDArray[np.float32]
    coefficients: NDArray[np.float32]
    beta: float
    lam: float

    def logits(self, images: Images) -> Logits:
        """Return the logits."""
        seen = images.rows(self.origin.encoder)
        cosines = seen @ self.rows.T + kernel(seen, self.keys, self.beta) @ self.coefficients
        return np.asarray(cosines * self.origin.encoder.logit_scale, dtype=np.float32)


@dataclass(frozen=True)
class ProKeR(TextAdapter):
    """Zero-shot, plus a kernel regression of the difference between labels and zero-shot cosines.

    Re-implemented, as in the released code: the regression is solved with K / λ + I and not divided by λ,
    so that a small λ also makes it count less. A key is the mean embedding of an image and its cached
    views. The text is the mean of the pool's templates.
    """

    name: ClassVar[str] = "proker"
    reason: ClassVar[str] = "takes logits from classes by the images of others"

    # Sharpness of the kernel, and λ. None chooses them.
    beta: float | None = None
    lam: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, positive=("beta", "lam"))

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> KernelClassifier:
        """Choose β and λ, and solve the regression."""
        text = self.text_rows(shots, pool, encoder)
        views, labels = shots.images.views(encoder), shots.labels
        keys = unit_rows(views.mean(axis=1))
        betas = BETAS if self.beta is None else (self.beta,)
        lams = LAMBDAS if self.lam is None else (self.lam,)
        default = self.beta or FIXED_BETA, self.lam or FIXED_LAMBDA

        def held_out(kept: NDArray[np.bool_], out: NDArray[np.bool_]) -> Iterator[Floats]:
            seen, near = views[out, 0].astype(np.float64), keys[kept].astype(np.float64)
            missing = np.eye(len(text))[labels[kept]] - near @ text.T
            for beta in betas:
                # With the eigenvectors of the kernel, every λ is a division.
                values, vectors = np.linalg.eigh(kernel(near, near, beta))
                turned, left = kernel(seen, near, beta) @ vectors, vectors.T @ missing
                for lam in lams:
                    yield seen @ text.T + turned @ (left / (values / lam + 1)[:, None])

        beta, lam = choose_by_folds(
            labels, [*product(betas, lams)], default, held_out, shots.groups
        )
        factors = coefficients(keys, labels, text, beta, lam).astype(np.float32)
        return KernelClassifier(self.origin(shots, encoder), text, keys, factors, beta, lam)
