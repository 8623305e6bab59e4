"""AveragedClassifier: one text on several encoders, whose probabilities are averaged."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.data.memory import as_images, holds_images
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import TextSource
from promptboost.errors import DataError, SettingError
from promptboost.model.classifier import (
    PromptClassifier,
    all_of,
    check_share,
    sure_ones,
)
from promptboost.model.ensemble import PromptEnsemble
from promptboost.model.head import Head, LinearHead

if TYPE_CHECKING:
    from promptboost.model.explanation import Explanation

# The smallest probability that is told from zero.
_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class AveragedHead:
    """The heads of one text on several encoders; it is given the embeddings of each, in their order."""

    heads: tuple[Head, ...]

    def predict_proba(self, rows: Sequence[ArrayLike]) -> NDArray[np.float64]:
        """Return the mean of the probabilities, (n, K)."""
        each = [head.predict_proba(seen) for head, seen in zip(self.heads, rows, strict=True)]
        return np.asarray(np.mean(each, axis=0))

    def predict_index(self, rows: Sequence[ArrayLike]) -> NDArray[np.intp]:
        """Return the number of the most probable class."""
        if len(self.heads) == 1:  # probabilities that are rounded to one are alike
            return self.heads[0].predict_index(rows[0])
        return np.asarray(self.predict_proba(rows).argmax(axis=1))

    def decision_function(self, rows: Sequence[ArrayLike]) -> NDArray[np.float64]:
        """Return the logarithm of the mean probability, centred over the classes; of one, its vote."""
        if len(self.heads) == 1:
            return np.asarray(self.heads[0].decision_function(rows[0]))
        return log_odds(self.predict_proba(rows))


def log_odds(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithms of probabilities, centred over the classes."""
    logits = np.log(np.maximum(probabilities, _TINY))
    return np.asarray(logits - logits.mean(axis=1, keepdims=True))


class AveragedClassifier(PromptClassifier):
    """A classifier made of sentences that sees and reads with several encoders.

    Each encoder answers with probabilities, and their mean is the answer. Those that the text was learnt on
    have a logit scale each. It answers for images only: embeddings are of one encoder.

    Parameters
    ----------
    ensemble : PromptEnsemble
        The text.
    encoders : sequence of str or Encoder, optional
        Two or more; by default those of the fit.
    heads : sequence of LinearHead, optional
        The text, embedded by each of them, where it is known already.
    **options
        As for :class:`~promptboost.model.PromptClassifier`.

    Examples
    --------
    >>> from PIL import Image
    >>> from promptboost.model import PromptEnsemble, Round
    >>> banks = {"fire": {"something red": 1}, "ice": {"something blue": 1}}
    >>> ensemble = PromptEnsemble(("fire", "ice"), (Round("{}", banks, 0.0, 0.1),))
    >>> both = AveragedClassifier(ensemble, ["fake:32-0", "fake:16-1"], cache=False)
    >>> both
    AveragedClassifier(2 classes, 1 round, 2 sentences, encoder=['fake:32-0', 'fake:16-1'])
    >>> both.predict(Image.new("RGB", (8, 8), "red")).tolist()
    ['fire']
    """

    def __init__(
        self,
        ensemble: PromptEnsemble,
        encoders: Sequence[str | Encoder | TextSource] | None = None,
        heads: Sequence[LinearHead] | None = None,
        **options: Any,
    ) -> None:
        every = [item.id for item in ensemble.encoders] if encoders is None else encoders
        if len(every) < 2:
            raise SettingError("an average is of two encoders or more")
        known: Sequence[LinearHead | None] = heads or [None] * len(every)
        super().__init__(ensemble, every[0], known[0], **options)
        self.members = tuple(
            PromptClassifier(ensemble, one, head, **options)
            for one, head in zip(every, known, strict=True)
        )
        for member in (self, *self.members):
            member._named_by_file = encoders is None

    def beside(self, folder: Path) -> "AveragedClassifier":
        """Take the vectors beside the text where they are of it."""
        for member in (self, *self.members):
            member._folder = folder
        return self

    @overload
    def predict(self, images: Any, abstain: None = None) -> NDArray[np.str_]: ...
    @overload
    def predict(self, images: Any, abstain: float) -> NDArray[np.object_]: ...
    def predict(
        self, images: Any, abstain: float | None = None
    ) -> NDArray[np.str_] | NDArray[np.object_]:
        """Return the most probable class name of each image, or None if it is below `abstain`."""
        if abstain is not None:
            check_share("abstain", abstain)
        probabilities = self.predict_proba(images)
        names = np.asarray(self.class_names, dtype=np.str_)[probabilities.argmax(axis=1)]
        return names if abstain is None else sure_ones(names, probabilities, abstain)

    def predict_proba(self, images: Any) -> NDArray[np.float64]:
        """Return the mean over encoders of the probability of each class for each image, (n, K)."""
        images = all_of(images)
        if not holds_images(images):
            raise DataError("embeddings are of one encoder, and these are several: give images")
        images = as_images(images)
        return np.asarray(np.mean([one.predict_proba(images) for one in self.members], axis=0))

    def decision_function(self, images: Any) -> NDArray[np.float64]:
        """Return the logarithm of the mean probability, centred over the classes: (n, K)."""
        return log_odds(self.predict_proba(images))

    def explain(
        self, images: Any, *, answer: str | None = None, against: str | None = None
    ) -> "list[Explanation]":
        """Raise: the mean of probabilities has no parts that add up; each of `members` explains itself."""
        raise SettingError(
            "the mean of several encoders' probabilities has no parts that add up: explain one encoder at "
            "a time, with members[0].explain or load(run, encoder=NAME)"
        )

    def refit(self, images: Any, labels: Sequence[str], **options: Any) -> "AveragedClassifier":
        """Learn the residual again on every encoder; see :meth:`PromptClassifier.refit`."""
        fitted = [one.refit(images, labels, **options) for one in self.members]
        embedders, heads = [one.embedder for one in fitted], [one.head for one in fitted]
        return AveragedClassifier(self.ensemble, embedders, heads)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the text, and its vectors on every encoder, into a folder."""
        for member in self.members:
            member.save(folder)

    def _encoder_name(self) -> object:
        return [PromptClassifier._encoder_name(one) for one in self.members]
