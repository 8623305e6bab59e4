"""Pictures as methods get them: rows for whichever encoder is asked for, and the pictures themselves."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder, UnitRows
from promptboost.errors import DataError, LabelError

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.data import Dataset
    from promptboost.encoders.store import EmbeddingStore

__all__ = ["FewShotSet", "FilePictures", "Pictures", "RowPictures"]

# Crops of a picture are the same for all methods and seeds, so that each is embedded once.
_VIEW_SEED = 0


class Pictures(Protocol):
    """Pictures that any encoder can be asked about.

    Most methods need rows only. A method with an image tower of its own asks for the pictures.
    """

    def __len__(self) -> int:
        """How many pictures."""
        ...

    def rows(self, encoder: Encoder) -> UnitRows:
        """Embed each picture: shape (n, D)."""
        ...

    def views(self, encoder: Encoder) -> UnitRows:
        """Embed each picture and its crops: shape (n, 1 + V, D), the picture itself first."""
        ...

    def images(self) -> Iterator["Image"]:
        """Give the pictures themselves, in order, as RGB."""
        ...


@dataclass(frozen=True)
class RowPictures:
    """Pictures of which only the embeddings are known.

    Parameters
    ----------
    embedded : mapping of str to array of shape (n, 1 + V, D)
        By the id of the encoder.

    Examples
    --------
    >>> from promptboost.testing import FakeEncoder
    >>> encoder = FakeEncoder(dim=8)
    >>> rows = encoder.encode_texts(["red", "blue"])
    >>> pictures = RowPictures({encoder.id: rows[:, None]})
    >>> len(pictures), pictures.rows(encoder).shape
    (2, (2, 8))
    """

    embedded: Mapping[str, UnitRows]

    def __post_init__(self) -> None:
        shapes = {name: rows.shape for name, rows in self.embedded.items()}
        if not shapes or any(len(shape) != 3 or not shape[1] for shape in shapes.values()):
            raise DataError(f"rows of pictures must have the shape (n, 1 + V, D), not {shapes}")
        if len({shape[0] for shape in shapes.values()}) > 1:
            raise DataError(f"the encoders have seen different numbers of pictures: {shapes}")

    def __len__(self) -> int:
        return len(next(iter(self.embedded.values())))

    def views(self, encoder: Encoder) -> UnitRows:
        """Give the rows of one encoder."""
        if encoder.id not in self.embedded:
            raise DataError(
                f"the pictures were not embedded with {encoder.id}, only with "
                f"{', '.join(self.embedded)}; give the pictures themselves"
            )
        return self.embedded[encoder.id]

    def rows(self, encoder: Encoder) -> UnitRows:
        """Give the rows of the pictures without their crops."""
        return self.views(encoder)[:, 0]

    def images(self) -> Iterator["Image"]:
        """Refuse: there are no pictures."""
        raise DataError("only embeddings of these pictures are known; give the pictures themselves")


@dataclass
class FilePictures:
    """Pictures in files, embedded when first asked for.

    Parameters
    ----------
    data : Dataset
        The files.
    n_views : int, default=0
        Crops of each picture.
    view_scale : float, default=0.5
        Least share of the picture that a crop shows.
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
        """Embed each picture."""
        return self._embed(encoder, 0)[:, 0]

    def views(self, encoder: Encoder) -> UnitRows:
        """Embed each picture and its crops."""
        return self._embed(encoder, self.n_views)

    def images(self) -> Iterator["Image"]:
        """Read the pictures."""
        return (picture.open() for picture in self.data.pictures)

    def _embed(self, encoder: Encoder, views: int) -> UnitRows:
        from promptboost.data import embed_pictures

        key = encoder.fingerprint, views
        if key not in self._known:
            self._known[key] = embed_pictures(
                self.data,
                encoder,
                views=range(1 + views),
                seed=_VIEW_SEED,
                scale=(self.view_scale, 1.0),
                store=self.store,
                progress=self.progress,
            )
        return self._known[key]


@dataclass(frozen=True)
class FewShotSet:
    """What every method learns from.

    Parameters
    ----------
    pictures : Pictures
        A few of each class, and their crops.
    labels : array of int, shape (n,)
        Class of each picture.
    class_names : tuple of str
        In the order of the labels.
    template : str, optional
        The dataset's own hand-written template, where it has one.

    Examples
    --------
    >>> from promptboost.testing import FakeEncoder
    >>> encoder = FakeEncoder(dim=8)
    >>> rows = encoder.encode_texts(["red", "blue"])[:, None]
    >>> shots = FewShotSet(RowPictures({encoder.id: rows}), np.array([0, 1]), ("fire", "ice"))
    >>> shots.pictures.views(encoder).shape
    (2, 1, 8)
    """

    pictures: Pictures
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    template: str | None = None

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.pictures):
            raise LabelError(f"{len(self.labels)} labels for {len(self.pictures)} pictures")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < self.n_classes:
            raise LabelError(f"labels must be from 0 to {self.n_classes - 1}")

    @property
    def n_classes(self) -> int:
        """How many classes."""
        return len(self.class_names)
