"""A task so small that it can be read: what the examples of all methods learn."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder, UnitRows
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import DataError, EncoderError, LabelError
from promptboost.pool import PromptPool

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.data import Dataset
    from promptboost.encoders.store import EmbeddingStore

__all__ = [
    "FewShotSet",
    "FileImages",
    "Images",
    "RowImages",
    "Arrays",
    "Bank",
    "Fitted",
    "Group",
    "Logits",
    "Method",
    "Origin",
    "Transfer",
    "colour_shots",
]


class Images(Protocol):
    """Images that any encoder can be asked about.

    Most methods need rows only. A method with an image tower of its own asks for the images.
    """

    def __len__(self) -> int:
        """How many images."""
        ...

    def rows(self, encoder: Encoder) -> UnitRows:
        """Embed each image: shape (n, D)."""
        ...

    def views(self, encoder: Encoder) -> UnitRows:
        """Embed each image and its crops: shape (n, 1 + V, D), the image itself first."""
        ...

    def images(self) -> Iterator["Image"]:
        """Return the images themselves, in order, as RGB."""
        ...


@dataclass(frozen=True)
class RowImages:
    """Images of which only the embeddings are known.

    Parameters
    ----------
    embedded : mapping of str to array of shape (n, 1 + V, D)
        By the id of the encoder.

    Examples
    --------
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> encoder = FakeEncoder(dim=8)
    >>> rows = encoder.encode_texts(["red", "blue"])
    >>> images = RowImages({encoder.id: rows[:, None]})
    >>> len(images), images.rows(encoder).shape
    (2, (2, 8))
    """

    embedded: Mapping[str, UnitRows]

    def __post_init__(self) -> None:
        shapes = {name: rows.shape for name, rows in self.embedded.items()}
        if not shapes or any(len(shape) != 3 or not shape[1] for shape in shapes.values()):
            raise DataError(f"rows of images must have the shape (n, 1 + V, D), not {shapes}")
        if len({shape[0] for shape in shapes.values()}) > 1:
            raise DataError(f"the encoders have seen different numbers of images: {shapes}")

    def __len__(self) -> int:
        return len(next(iter(self.embedded.values())))

    def views(self, encoder: Encoder) -> UnitRows:
        """Return the rows of one encoder."""
        if encoder.id not in self.embedded:
            raise DataError(
                f"the images were not embedded with {encoder.id}, only with "
                f"{', '.join(self.embedded)}; give the images themselves"
            )
        return self.embedded[encoder.id]

    def rows(self, encoder: Encoder) -> UnitRows:
        """Return the rows of the images without their crops."""
        return self.views(encoder)[:, 0]

    def images(self) -> Iterator["Image"]:
        """Refuse: there are no images."""
        raise DataError("only embeddings of these images are known; give the images themselves")


@dataclass
class FileImages:
    """Images in files, embedded when first asked for.

    Parameters
    ----------
    data : Dataset
        The files.
    n_views : int, default=0
        Crops of each image.
    view_scale : float, default=0.5
        Least share of the image that a crop shows.
    store : EmbeddingStore, optional
        Where rows of earlier runs are found and new ones kept.
    progress : bool, default=False
        Show progress bars on a terminal.
    """

    data: "Dataset"
    n_views: int = 0
    view_scale: float = 0.5
    store: "EmbeddingStore | None" = None
    progress: bool = False
    _known: dict[tuple[str, int], UnitRows] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.data)

    def rows(self, encoder: Encoder) -> UnitRows:
        """Embed each image."""
        return self._embed(encoder, 0)[:, 0]

    def views(self, encoder: Encoder) -> UnitRows:
        """Embed each image and its crops."""
        return self._embed(encoder, self.n_views)

    def images(self) -> Iterator["Image"]:
        """Read the images."""
        return (image.open() for image in self.data.images)

    def _embed(self, encoder: Encoder, views: int) -> UnitRows:
        from promptboost.encoders.embedder import Embedder

        key = encoder.fingerprint, views
        if key not in self._known:
            embedder = Embedder(encoder, self.store, self.progress)
            self._known[key] = embedder.images(self.data, views=views, view_scale=self.view_scale)
        return self._known[key]


@dataclass(frozen=True)
class FewShotSet:
    """What every method learns from.

    Parameters
    ----------
    images : Images
        A few of each class, and their crops.
    labels : array of int, shape (n,)
        Class of each image.
    class_names : tuple of str
        In the order of the labels.
    template : str, optional
        The dataset's own hand-written template, where it has one.

    Examples
    --------
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> encoder = FakeEncoder(dim=8)
    >>> rows = encoder.encode_texts(["red", "blue"])[:, None]
    >>> shots = FewShotSet(RowImages({encoder.id: rows}), np.array([0, 1]), ("fire", "ice"))
    >>> shots.images.views(encoder).shape
    (2, 1, 8)
    """

    images: Images
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    template: str | None = None

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.images):
            raise LabelError(f"{len(self.labels)} labels for {len(self.images)} images")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < self.n_classes:
            raise LabelError(f"labels must be from 0 to {self.n_classes - 1}")

    @property
    def n_classes(self) -> int:
        """How many classes."""
        return len(self.class_names)


Logits = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]
#: The words of one class: text → weight.
Bank = Mapping[str, float]


class Transfer(Enum):
    """How what a method has learnt gets to another encoder."""

    TEXT = "its text is embedded again"
    EMULATED = "emulated: both encoders look at each image (EFT)"
    REFIT = "not at all: it learns again from the images"


class Group(Enum):
    """What a method learns with."""

    TEXT = "text only"
    GRADIENT = "gradients through the model"
    PICTURES = "the images' embeddings"
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
        What sees the images.
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
    def logits(self, images: Images) -> Logits:
        """Score each image for each class, shape (n, K), on the scale of a softmax."""

    def predict(self, images: Images) -> NDArray[np.intp]:
        """Return the index of the best class of each image."""
        return np.asarray(self.logits(images).argmax(axis=1))

    def words(self) -> Sequence[Bank] | None:
        """Say what was learnt in words, {text: weight} for each class; None if it is no text."""
        return None

    def transfer(self, encoder: Encoder) -> "Fitted":
        """Return the same classifier on another encoder.

        Raises
        ------
        EncoderError
            If what was learnt cannot be carried there; the message says what can be done.
        """
        raise EncoderError(
            f"{self.origin.method} does not carry over to {encoder.id}: what it learnt is vectors of "
            f"{self.origin.encoder.id}. Fit it again on images embedded with {encoder.id}, or have "
            "both encoders look at each image: promptboost.methods.eft.emulate(fitted, encoder)"
        )

    @property
    def encoders_asked(self) -> tuple[str, ...]:
        """The image towers that look at each image to classify it: what predicting costs."""
        return (self.origin.encoder.id,)

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Return what has to be kept: fields for JSON, and arrays."""

    @classmethod
    @abstractmethod
    def from_state(cls, origin: Origin, fields: Mapping[str, Any], arrays: Arrays) -> Self:
        """Make the classifier again from what :meth:`state` gave."""


class Method(ABC):
    """A way to learn a classifier. Methods are frozen dataclasses: their fields are the settings."""

    name: ClassVar[str]
    group: ClassVar[Group]
    carries_over: ClassVar[Transfer]
    #: Whether the images matter: what does not learn is the same for every draw.
    learns: ClassVar[bool] = True

    # Not abstract: most methods can do with whatever they are given.
    def check(  # noqa: B027
        self, shots: FewShotSet, pool: PromptPool, encoder: Encoder
    ) -> None:
        """Refuse what cannot be done, before any work: no image is read and nothing is learnt.

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
        """Learn from a few images, with the words of a pool, as an encoder sees them.

        Parameters
        ----------
        shots : FewShotSet
            Images, labels and class names.
        pool : PromptPool
            Words about the same classes, in the same order.
        encoder : Encoder
            The model. Where texts are kept in a store it is an ``Embedder``.
        """


def colour_shots(red: str, blue: str) -> tuple[FewShotSet, FakeEncoder]:
    """Make a few-shot set of four images, and the encoder that sees them.

    Parameters
    ----------
    red, blue : str
        Names of the two classes. Images of the first are red and dark red, those of the second
        blue and light blue.

    Examples
    --------
    >>> shots, encoder = colour_shots("fire", "ice")
    >>> shots.class_names, shots.labels.tolist(), shots.images.rows(encoder).shape
    (('fire', 'ice'), [0, 0, 1, 1], (4, 32))
    """
    encoder = FakeEncoder()
    rows = encoder.encode_texts(["red", "dark red", "blue", "light blue"])[:, None]
    images = RowImages({encoder.id: rows})
    return FewShotSet(images, np.array([0, 0, 1, 1]), (red, blue)), encoder
