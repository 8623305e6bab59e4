"""An embedded ensemble that can be asked after any of its rounds."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.encoders.base import Encoder
from promptboost.ensemble import PromptEnsemble
from promptboost.fitting.inputs import TextSource, embed_texts
from promptboost.head import LinearHead, VotingHead
from promptboost.head.base import Head

__all__ = ["DoubleHead", "EmbeddedRounds"]


class DoubleHead(Head):
    """Rounds added up, and multiplied, in double precision.

    A product in single precision may change in its last digits with the number of rows it is
    computed with. Here a row gets the same answer alone or among others, up to 1e-13 or so, which
    scikit-learn expects of a classifier.
    """

    def __init__(
        self,
        class_names: tuple[str, ...],
        weights: NDArray[np.float64],
        rounds: int,
        temperature: float,
    ) -> None:
        self.class_names = class_names
        self.weights = weights
        self.rounds = rounds
        self.temperature = temperature

    def _totals(self, X: ArrayLike) -> NDArray[np.floating]:
        return np.asarray(X, dtype=np.float64) @ self.weights.T

    @property
    def _largest_total(self) -> float:
        return float(self.rounds)

    @property
    def _log_odds(self) -> float:
        return 1.0 / self.temperature


@dataclass(frozen=True)
class EmbeddedRounds:
    """All rounds of an ensemble in the space of one encoder.

    Attributes
    ----------
    head : LinearHead or VotingHead
        The whole ensemble, as it is saved.
    weak : tuple of LinearHead
        Each round by itself.
    votes : tuple of float
        The weight of each round's vote in SAMME; None in SAMME.R.

    Examples
    --------
    >>> from promptboost.ensemble import Round
    >>> from promptboost.testing import FakeEncoder
    >>> one = {"cat": {"a cat": 1}, "dog": {"a dog": 1}}
    >>> two = {"cat": {"a red cat": 1}, "dog": {"a blue dog": 1}}
    >>> rounds = (Round("a {}", one, 0.2, 0.2), Round("a {}", two, 0.1, 0.2))
    >>> encoder = FakeEncoder()
    >>> embedded = EmbeddedRounds.of(PromptEnsemble(("cat", "dog"), rounds), encoder)
    >>> [head.rounds for head in embedded.stages()]
    [1, 2]
    """

    head: LinearHead | VotingHead
    weak: tuple[LinearHead, ...]
    votes: tuple[float, ...] | None

    @classmethod
    def of(cls, ensemble: PromptEnsemble, source: TextSource) -> "EmbeddedRounds":
        """Embed each distinct text once."""
        texts = ensemble.texts()
        vectors = dict(zip(texts, embed_texts(source, texts), strict=True))
        head = ensemble.embed_texts(vectors)
        if isinstance(source, Encoder):
            head = replace(head, encoder_id=source.id, encoder_fingerprint=source.fingerprint)
        samme = ensemble.algorithm == "samme"
        votes = tuple(item.vote for item in ensemble.rounds) if samme else None
        return cls(head, tuple(ensemble.weak_heads(vectors)), votes)

    def final(self) -> Head:
        """Give the last stage, without the others."""
        if isinstance(self.head, VotingHead):
            return self.head
        weights = np.zeros(self.head.weights.shape)
        for weak in self.weak:  # in the order of the stages, to the same last digit
            weights += weak.weights
        return self._added(weights, len(self.weak))

    def stages(self) -> Iterator[Head]:
        """Give the classifier after each round."""
        if self.votes is not None:
            yield from self._voting_stages(np.array(self.votes))
            return
        weights = np.zeros(self.weak[0].weights.shape)
        for number, weak in enumerate(self.weak, start=1):
            weights = weights + weak.weights
            yield self._added(weights, number)

    def _added(self, weights: NDArray[np.float64], number: int) -> DoubleHead:
        return DoubleHead(self.head.class_names, weights, number, self.weak[0].temperature)

    def _voting_stages(self, votes: NDArray[np.float64]) -> Iterator[Head]:
        weights = np.stack([weak.weights for weak in self.weak])
        for number in range(1, len(votes) + 1):
            some = votes[:number]
            counted = some if some.any() else np.full(number, 1.0 / number)
            yield VotingHead(self.head.class_names, weights[:number], counted)
