"""The contract of all methods: what they learn from, what they return, and how that moves.

A :class:`Method` learns from a :class:`FewShotSet` and returns a :class:`FittedMethod`. Other packages
bring their own through :func:`~promptboost.methods.register_method`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder, UnitRows
from promptboost.errors import DataError, EncoderError, LabelError, SettingError
from promptboost.pool import PromptPool
from promptboost.progress import Progress, no_progress

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.data import Dataset
    from promptboost.encoders.store import EmbeddingStore


class Images(Protocol):
    """Images that any encoder can be asked about; most methods need their rows only."""

    def __len__(self) -> int:
        """How many images."""

    def rows(self, encoder: Encoder) -> UnitRows:
        """Embed each image: shape (n, D)."""

    def views(self, encoder: Encoder) -> UnitRows:
        """Embed each image and its crops: shape (n, 1 + V, D), the image itself first."""

    def images(self) -> Iterator["Image"]:
        """Return the images themselves, in order, as RGB."""


@dataclass(frozen=True)
class RowImages:
    """Images of which only the embeddings are known: (n, 1 + V, D), by the id of the encoder.

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
        """Raise a DataError: there are no images."""
        raise DataError("only embeddings of these images are known; give the images themselves")


@dataclass
class FileImages:
    """Images in files, embedded when first asked for.

    A crop shows at least the share `view_scale` of its image. Rows of earlier runs are found in the
    `store`, and new ones kept there.
    """

    data: "Dataset"
    n_views: int = 0
    view_scale: float = 0.5
    store: "EmbeddingStore | None" = None
    progress: Progress = no_progress
    _known: dict[tuple[str, int], UnitRows] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.data)

    def rows(self, encoder: Encoder) -> UnitRows:
        """Embed each image; one that was embedded with its crops is there already."""
        crops = self.n_views if (encoder.fingerprint, self.n_views) in self._known else 0
        return self._embed(encoder, crops)[:, 0]

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
    """What every method learns from: a few images of each class.

    The `template` is the dataset's own hand-written one, where it has one.

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
    """How what a method has learned gets to another encoder."""

    TEXT = "its text is embedded again"
    EMULATED = "emulated: both encoders look at each image (EFT)"
    REFIT = "not at all: it learns again from the images"


class Group(Enum):
    """What a method learns with."""

    TEXT = "text only"
    GRADIENT = "gradients through the model"
    IMAGES = "the images' embeddings"
    BOOSTING = "boosting"


@dataclass(frozen=True)
class Origin:
    """What a fitted classifier comes from.

    The `method` has the settings that are not the default, as a user types them; the class names
    are in the order of the logits' columns.
    """

    method: str
    class_names: tuple[str, ...]
    encoder: Encoder


class FittedMethod(ABC):
    """A classifier that a method has learned."""

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
        """Return what was learned in words, {text: weight} for each class; None if it is no text."""
        return None

    def text_alone(self) -> "FittedMethod | None":
        """Return what answers by its words alone, which may be the same; None if it is no text."""
        return None if self.words() is None else self

    def transfer(self, encoder: Encoder) -> "FittedMethod":
        """Return the same classifier on another encoder; raise an EncoderError if it cannot be."""
        raise EncoderError(
            f"{self.origin.method} does not carry over to {encoder.id}: what it learned is vectors of "
            f"{self.origin.encoder.id}. Fit it again on images embedded with {encoder.id}, or have "
            "both encoders look at each image: promptboost.methods.eft.emulate(fitted, encoder)"
        )

    @property
    def encoders_asked(self) -> tuple[str, ...]:
        """The image towers that look at each image to classify it, which is what predicting costs."""
        return (self.origin.encoder.id,)

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Return what has to be kept: fields for JSON, and arrays."""

    @classmethod
    @abstractmethod
    def from_state(cls, origin: Origin, fields: Mapping[str, Any], arrays: Arrays) -> Self:
        """Make the classifier again from what :meth:`state` returned."""


class Method(ABC):
    """A way to learn a classifier: a frozen dataclass whose fields are the settings.

    Attributes
    ----------
    name : str
        What a user types.
    group : Group
        What it learns with.
    carries_over : Transfer
        How what it has learned gets to another encoder.
    learns : bool
        Whether the images matter: what does not learn is the same for every draw.

    See Also
    --------
    promptboost.testing.check_method : tells what a method lacks.
    """

    name: ClassVar[str]
    group: ClassVar[Group]
    carries_over: ClassVar[Transfer]
    learns: ClassVar[bool] = True

    # Not abstract: most methods can do with whatever they are given.
    def check(  # noqa: B027
        self, shots: FewShotSet, pool: PromptPool, encoder: Encoder
    ) -> None:
        """Raise a PromptBoostError if :meth:`fit` could not work with this.

        Called before any work: it embeds and reads no image, and learns nothing. The message says
        what is missing and what to do instead.
        """

    @abstractmethod
    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> FittedMethod:
        """Learn from a few images, with the words of a pool, as an encoder sees them.

        The pool has the same classes, in the same order. Where texts are kept in a store the
        encoder is an ``Embedder``.
        """

    def origin(self, shots: FewShotSet, encoder: Encoder) -> Origin:
        """Return where a classifier of this method comes from."""
        from promptboost.methods.registry import spelled

        return Origin(spelled(self), shots.class_names, encoder)


def check_two_classes(shots: FewShotSet, method: str, why: str) -> None:
    """Raise a LabelError if there is one class only, or a class without images; `why` it needs them."""
    if shots.n_classes < 2:
        raise LabelError(f"{method} needs two classes or more")
    missing = sorted(set(range(shots.n_classes)) - set(shots.labels.tolist()))
    if missing:
        raise LabelError(
            f"the class {shots.class_names[missing[0]]!r} has no image, and {method} {why}; add one, "
            "or leave the class out"
        )


def check_numbers(
    settings: object,
    *,
    counts: Sequence[str] = (),
    positive: Sequence[str] = (),
    from_zero: Sequence[str] = (),
) -> None:
    """Check settings by their names; one that is None is left out.

    Raises a SettingError if one of `counts` is below 1, of `positive` not above 0, or of `from_zero`
    below 0.
    """
    rules: tuple[tuple[Sequence[str], Callable[[float], bool], str], ...] = (
        (counts, lambda number: number >= 1, "1 or more"),
        (positive, lambda number: 0 < number < np.inf, "above 0"),
        (from_zero, lambda number: 0 <= number < np.inf, "0 or more"),
    )
    for names, allows, wanted in rules:
        for name in names:
            value = getattr(settings, name)
            if value is not None and not allows(value):
                raise SettingError(f"{name} is {value}, but must be {wanted}")
