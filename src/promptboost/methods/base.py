"""The contract of methods: a :class:`Method` fits a :class:`FewShotSet` to a :class:`FittedMethod`.

Other packages add methods with :func:`~promptboost.methods.register_method`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

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
    """Images that any encoder can embed; most methods need only the embeddings."""

    def __len__(self) -> int:
        """Return the number of images."""

    def rows(self, encoder: Encoder) -> UnitRows:
        """Embed each image: shape (n, D)."""

    def views(self, encoder: Encoder) -> UnitRows:
        """Embed each image and its crops: shape (n, 1 + V, D), the image itself first."""

    def images(self) -> Iterator["Image"]:
        """Return the images in order, as RGB."""


@dataclass(frozen=True)
class RowImages:
    """Images given by their embeddings only: (n, 1 + V, D), by the id of the encoder.

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
            raise DataError(f"the encoders have different numbers of images: {shapes}")

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
    """Images in files, embedded when first needed, each once for all subsets.

    Crops have at least the share `view_scale` of the image. Embeddings are cached in the `store`.
    """

    data: "Dataset"
    n_views: int = 0
    view_scale: float = 0.5
    store: "EmbeddingStore | None" = None
    progress: Progress = no_progress
    positions: NDArray[np.intp] | None = None  # of a subset of the images
    _embedded: dict[tuple[str, int], UnitRows] = field(default_factory=dict, repr=False)

    def subset(self, positions: NDArray[np.intp]) -> "FileImages":
        """Return some of the images, which are embedded together with the others."""
        return replace(self, positions=positions)

    def __len__(self) -> int:
        return len(self.data if self.positions is None else self.positions)

    def rows(self, encoder: Encoder) -> UnitRows:
        """Embed each image, or reuse the embeddings with crops."""
        crops = self.n_views if (encoder.fingerprint, self.n_views) in self._embedded else 0
        return self._chosen(self._embed(encoder, crops)[:, 0])

    def views(self, encoder: Encoder) -> UnitRows:
        """Embed each image and its crops."""
        return self._chosen(self._embed(encoder, self.n_views))

    def images(self) -> Iterator["Image"]:
        """Read the images, one at a time: a test set does not fit into memory."""
        return (
            self.data.images[i].open() for i in self._chosen(np.arange(len(self.data))).tolist()
        )

    def _chosen(self, rows: NDArray[Any]) -> NDArray[Any]:
        return rows if self.positions is None else rows[self.positions]

    def _embed(self, encoder: Encoder, views: int) -> UnitRows:
        from promptboost.encoders.embedder import Embedder

        key = encoder.fingerprint, views
        if key not in self._embedded:
            embedder = Embedder(encoder, self.store, self.progress)
            rows = embedder.images(self.data, views=views, view_scale=self.view_scale)
            self._embedded[key] = rows
        return self._embedded[key]


@dataclass(frozen=True)
class FewShotSet:
    """Training images, a few per class; `template` is the dataset's own, if it has one.

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
    groups: NDArray[np.int64] | None = None  # held out together in cross-validation

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.images):
            raise LabelError(f"{len(self.labels)} labels for {len(self.images)} images")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < self.n_classes:
            raise LabelError(f"labels must be from 0 to {self.n_classes - 1}")

    @property
    def n_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)


Logits = NDArray[np.float32]
#: The texts of one class, with weights.
Bank = Mapping[str, float]


class Transfer(Enum):
    """How a fitted method transfers to another encoder."""

    TEXT = "its text is embedded again"
    EMULATED = "emulated: both encoders embed each image (EFT)"
    REFIT = "not at all: it is fitted again on the images"


@dataclass(frozen=True)
class Origin:
    """Method (with its settings, as typed), class names and encoder of a fitted classifier."""

    method: str
    class_names: tuple[str, ...]
    encoder: Encoder


#: The classes of fitted methods that were imported, by kind.
CLASSIFIERS: "dict[str, type[FittedMethod]]" = {}


class FittedMethod(ABC):
    """A fitted classifier: a frozen dataclass, whose fields are saved in files.

    Fields are arrays, and what JSON can write.
    """

    #: Identifies the classifier in files.
    kind: ClassVar[str]
    origin: Origin

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if isinstance(kind := cls.__dict__.get("kind"), str):
            registered = CLASSIFIERS.setdefault(kind, cls)
            if (registered.__module__, registered.__qualname__) != (
                cls.__module__,
                cls.__qualname__,
            ):
                raise SettingError(
                    f"the kind {kind!r} of {cls.__name__} belongs to another classifier; choose another"
                )
            CLASSIFIERS[kind] = cls

    @abstractmethod
    def logits(self, images: Images) -> Logits:
        """Return the logits of images, shape (n, K)."""

    def predict(self, images: Images) -> NDArray[np.intp]:
        """Return the index of the best class of each image."""
        return np.asarray(self.logits(images).argmax(axis=1))

    def words(self) -> Sequence[Bank] | None:
        """Return the learned text, {text: weight} per class; None for vectors."""
        return None

    def text_alone(self) -> "FittedMethod | None":
        """Return the classifier of the text alone, perhaps itself; None for vectors."""
        return None if self.words() is None else self

    def transfer(self, encoder: Encoder) -> "FittedMethod":
        """Return the same classifier on another encoder; raise an EncoderError if it cannot be."""
        raise EncoderError(
            f"{self.origin.method} does not transfer to {encoder.id}: it learned vectors of "
            f"{self.origin.encoder.id}. Fit it again on images embedded with {encoder.id}, or use both "
            "encoders on each image: promptboost.methods.eft.emulate(fitted, encoder)"
        )

    @property
    def image_towers(self) -> tuple[str, ...]:
        """The image towers that embed each image to classify it, the cost of a prediction."""
        return (self.origin.encoder.id,)


class Method(ABC):
    """A way to fit a classifier: a frozen dataclass whose fields are the settings.

    See Also
    --------
    promptboost.testing.check_method : lists what a method lacks.
    """

    name: ClassVar[str]  # name on the command line
    carries_over: ClassVar[Transfer]  # how it transfers to another encoder
    # whether it uses the images; if not, it is the same for every draw
    learns: ClassVar[bool] = True

    # Not abstract: most methods accept any input.
    def check(  # noqa: B027
        self, shots: FewShotSet, pool: PromptPool, encoder: Encoder
    ) -> None:
        """Raise a PromptBoostError if :meth:`fit` would fail, without reading or embedding images."""

    @abstractmethod
    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> FittedMethod:
        """Fit a classifier on training images and a pool of the same classes in the same order.

        The encoder may be an ``Embedder`` with a store.
        """

    def origin(self, shots: FewShotSet, encoder: Encoder) -> Origin:
        """Return the origin of a classifier of this method."""
        return Origin(spelled(self), shots.class_names, encoder)


def spelled(method: Method) -> str:
    """Return the name of a method with its non-default settings, as ``make_method`` takes it.

    The name of a class of another package is its path.
    """
    settings = [
        f"{field.name}={_spelled_value(getattr(method, field.name))}"
        for field in fields(method)  # type: ignore[arg-type]
        if getattr(method, field.name) != field.default
    ]
    kind = type(method)
    is_ours = kind.__module__.startswith("promptboost.methods.")
    name = kind.name if is_ours else f"{kind.__module__}:{kind.__qualname__}"
    return "?".join([name, "&".join(settings)] if settings else [name])


def _spelled_value(value: Any) -> str:
    text = str(value).lower() if value is None or isinstance(value, bool) else str(value)
    return text.replace("%", "%25").replace("&", "%26")


def check_two_classes(shots: FewShotSet, method: str, why: str) -> None:
    """Raise a LabelError if there is only one class, or a class without images; `why` explains the need."""
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
    """Raise a SettingError for `counts` below 1, `positive` not above 0, or `from_zero` below 0.

    Settings that are None are ignored.
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
