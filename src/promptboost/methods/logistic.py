"""Logistic regression as a method of comparisons."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from promptboost.baselines.baselines import fit_probe
from promptboost.encoders.base import Encoder
from promptboost.methods.base import FewShotSet, Group, Method, Transfer, check_two_classes
from promptboost.methods.fitted import LinearClassifier
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
