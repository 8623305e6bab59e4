"""What every method is: made with its settings, fitted, asked, saved, carried to another encoder."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder
from promptboost.errors import EncoderError
from promptboost.methods.pictures import FewShotSet, Pictures
from promptboost.pool import PromptPool

__all__ = ["Arrays", "Bank", "Fitted", "Group", "Logits", "Method", "Origin", "Transfer"]

Logits = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]
#: The words of one class: text → weight.
Bank = Mapping[str, float]


class Transfer(Enum):
    """How what a method has learnt gets to another encoder."""

    TEXT = "its text is embedded again"
    EMULATED = "emulated: both encoders look at each picture (EFT)"
    REFIT = "not at all: it learns again from the pictures"


class Group(Enum):
    """What a method learns with."""

    TEXT = "text only"
    GRADIENT = "gradients through the model"
    PICTURES = "the pictures' embeddings"
    BOOSTING = "boosting"


@dataclass(frozen=True)
class Origin:
    """What a fitted classifier comes from.

    Attributes
    ----------
    method : str
        Name of the method and the settings that are not the default, as a user types them.
    class_names : tuple of str
        In the order of the logits' columns.
    encoder : Encoder
        What sees the pictures.
    """

    method: str
    class_names: tuple[str, ...]
    encoder: Encoder


class Fitted(ABC):
    """A classifier that a method has learnt.

    Attributes
    ----------
    origin : Origin
        Method, classes and encoder.
    """

    #: Tells the files of different classifiers apart.
    kind: ClassVar[str]
    origin: Origin

    @abstractmethod
    def logits(self, pictures: Pictures) -> Logits:
        """Score each picture for each class, shape (n, K), on the scale of a softmax."""

    def predict(self, pictures: Pictures) -> NDArray[np.intp]:
        """Give the index of the best class of each picture."""
        return np.asarray(self.logits(pictures).argmax(axis=1))

    def words(self) -> Sequence[Bank] | None:
        """Say what was learnt in words, {text: weight} for each class; None if it is no text."""
        return None

    def transfer(self, encoder: Encoder) -> "Fitted":
        """Give the same classifier on another encoder.

        Raises
        ------
        EncoderError
            If what was learnt cannot be carried there; the message says what can be done.
        """
        raise EncoderError(
            f"{self.origin.method} does not carry over to {encoder.id}: what it learnt is vectors of "
            f"{self.origin.encoder.id}. Fit it again on pictures embedded with {encoder.id}, or have "
            "both encoders look at each picture: promptboost.methods.eft.emulate(fitted, encoder)"
        )

    @property
    def encoders_asked(self) -> tuple[str, ...]:
        """The image towers that look at each picture to classify it: what predicting costs."""
        return (self.origin.encoder.id,)

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Give what has to be kept: fields for JSON, and arrays."""

    @classmethod
    @abstractmethod
    def from_state(cls, origin: Origin, fields: Mapping[str, Any], arrays: Arrays) -> Self:
        """Make the classifier again from what :meth:`state` gave."""


class Method(ABC):
    """A way to learn a classifier. Methods are frozen dataclasses: their fields are the settings."""

    name: ClassVar[str]
    group: ClassVar[Group]
    carries_over: ClassVar[Transfer]
    #: Whether the pictures matter: what does not learn is the same for every draw.
    learns: ClassVar[bool] = True

    # Not abstract: most methods can do with whatever they are given.
    def check(  # noqa: B027
        self, shots: FewShotSet, pool: PromptPool, encoder: Encoder
    ) -> None:
        """Refuse what cannot be done, before any work: no picture is read and nothing is learnt.

        Parameters
        ----------
        shots, pool, encoder
            What :meth:`fit` would get.

        Raises
        ------
        PromptBoostError
            Says what is missing and what to do instead.
        """

    @abstractmethod
    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> Fitted:
        """Learn from a few pictures, with the words of a pool, as an encoder sees them.

        Parameters
        ----------
        shots : FewShotSet
            Pictures, labels and class names.
        pool : PromptPool
            Words about the same classes, in the same order.
        encoder : Encoder
            The model. Where texts are kept in a store it is a ``StoredEncoder``.
        """
