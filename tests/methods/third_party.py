"""Methods as another package would write them: one in words of promptboost, one with its own file."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from promptboost.methods import FewShotSet, FittedMethod, Method
from promptboost.methods.base import Origin, Transfer
from promptboost.methods.fitted import LinearClassifier


@dataclass(frozen=True)
class NearestMean(Method):
    """The mean row of each class's images; a class without images is refused."""

    name: ClassVar[str] = "nearest-mean"
    carries_over: ClassVar[Transfer] = Transfer.REFIT

    scale: float = 20.0

    def check(self, shots: FewShotSet, pool: Any, encoder: Any) -> None:
        from promptboost.errors import LabelError

        if set(shots.labels.tolist()) != set(range(shots.n_classes)):
            raise LabelError("nearest-mean needs an image of each class; add one")

    def fit(self, shots: FewShotSet, pool: Any, encoder: Any) -> LinearClassifier:
        self.check(shots, pool, encoder)
        seen = shots.images.rows(encoder)
        rows = np.stack([seen[shots.labels == k].mean(axis=0) for k in range(shots.n_classes)])
        rows = (self.scale * rows).astype(np.float32)
        intercepts = np.zeros(len(rows), dtype=np.float32)
        return LinearClassifier(self.origin(shots, encoder), rows, intercepts)


@dataclass(frozen=True)
class Constant(FittedMethod):
    """Always the same class."""

    kind: ClassVar[str] = "third-party-constant"
    origin: Origin
    label: int

    def logits(self, images: Any) -> Any:
        logits = np.zeros((len(images), len(self.origin.class_names)), dtype=np.float32)
        logits[:, self.label] = 1.0
        return logits


@dataclass(frozen=True)
class Majority(Method):
    """The class with the most images, whatever is seen."""

    name: ClassVar[str] = "majority"
    carries_over: ClassVar[Transfer] = Transfer.REFIT

    def fit(self, shots: FewShotSet, pool: Any, encoder: Any) -> Constant:
        counts = np.bincount(shots.labels, minlength=shots.n_classes)
        return Constant(self.origin(shots, encoder), int(counts.argmax()))
