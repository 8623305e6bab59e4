"""What every reader returns: labelled pictures, their class names, and what was left out."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptboost.data.names import check_class_names
from promptboost.data.reading import BadPicture, PictureSource, file_bytes, read_picture
from promptboost.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Dataset", "Picture"]


@dataclass(frozen=True, slots=True)
class Picture:
    """One labelled picture, not yet opened.

    Attributes
    ----------
    id : str
        Stable and unique in its dataset: a path relative to the folder or manifest, or a number.
    label : str
        The class, spelled as in the source; empty where there is none.
    source : Path, bytes or PIL image
        Where the pixels are.
    split : str or None
        ``"train"``, ``"val"``, ``"test"``, or None where the source does not say.
    margin : float
        White border added on each side when opened, as a share of the longer side.
    """

    id: str
    label: str
    source: PictureSource
    split: str | None = None
    margin: float = 0.0

    def open(self) -> "Image":
        """Open it as RGB, the right way up, on white (:class:`PictureError` if that fails)."""
        return self.framed(read_picture(self.source, self.name))

    @property
    def name(self) -> str:
        """What to call the picture in a message: its full path where it has one."""
        return str(self.source) if isinstance(self.source, Path) else self.id

    def framed(self, image: "Image") -> "Image":
        """Add the margin."""
        if self.margin == 0:
            return image
        from PIL import ImageOps

        return ImageOps.expand(image, border=round(self.margin * max(image.size)), fill="white")

    def digest(self) -> bytes:
        """Hash the content: the same pixels in a renamed file have the same digest."""
        hasher = hashlib.blake2b(digest_size=16)
        if self.margin:
            hasher.update(f"margin {self.margin!r}/".encode())
        if isinstance(self.source, bytes):
            hasher.update(self.source)
        elif isinstance(self.source, Path):
            hasher.update(file_bytes(self.source, self.name))
        else:
            hasher.update(f"{self.source.mode} {self.source.size}/".encode())
            hasher.update(self.source.tobytes())
        return hasher.digest()


@dataclass(frozen=True)
class Dataset:
    """Labelled pictures in a fixed order.

    Attributes
    ----------
    pictures : tuple of Picture
        In the order of the source; folders are read in sorted order.
    class_names : tuple of str
        Sorted; ``labels`` are positions in it. A subset keeps all of them.
    bad : tuple of BadPicture
        The files that were left out, each with its reason.

    Examples
    --------
    >>> from PIL import Image
    >>> red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    >>> data = Dataset.of([Picture("0", "warm", red), Picture("1", "cold", blue)])
    >>> len(data), data.class_names, data.labels.tolist()
    (2, ('cold', 'warm'), [1, 0])
    >>> data.subset([1]).class_names
    ('cold', 'warm')
    """

    pictures: tuple[Picture, ...]
    class_names: tuple[str, ...]
    bad: tuple[BadPicture, ...] = ()

    @classmethod
    def of(cls, pictures: Iterable[Picture], bad: Iterable[BadPicture] = ()) -> "Dataset":
        """Make a dataset whose classes are those of its pictures, and check that it is sound."""
        pictures = tuple(pictures)
        names = tuple(sorted({picture.label for picture in pictures}))
        check_class_names(names)
        _check_ids(pictures)
        return cls(pictures, names, tuple(bad))

    def __len__(self) -> int:
        return len(self.pictures)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The class of each picture, as its position in ``class_names``."""
        position = {name: index for index, name in enumerate(self.class_names)}
        labels = np.array([position[picture.label] for picture in self.pictures], dtype=np.int64)
        labels.setflags(write=False)
        return labels

    @cached_property
    def fingerprint(self) -> str:
        """Changes with a picture's content, label, split or place; a renamed file changes nothing.

        Reads every file once.
        """
        hasher = hashlib.blake2b(repr(self.class_names).encode(), digest_size=16)
        for picture in self.pictures:
            hasher.update(picture.digest())
            hasher.update(repr((picture.label, picture.split)).encode())
        return hasher.hexdigest()

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that some picture is in, in order of appearance."""
        named = (picture.split for picture in self.pictures if picture.split is not None)
        return tuple(dict.fromkeys(named))

    def subset(self, indices: "Sequence[int] | NDArray[np.integer]") -> "Dataset":
        """Keep the pictures at these positions, in this order, and all class names."""
        return Dataset(tuple(self.pictures[int(i)] for i in indices), self.class_names, self.bad)

    def of_split(self, split: str) -> "Dataset":
        """Keep the pictures of one split.

        Raises
        ------
        DataError
            If no picture is in it.
        """
        indices = [i for i, picture in enumerate(self.pictures) if picture.split == split]
        if not indices:
            there = ", ".join(self.splits) or "no splits at all"
            raise DataError(f"no picture is in the split {split!r}; there are: {there}")
        return self.subset(indices)


def _check_ids(pictures: tuple[Picture, ...]) -> None:
    seen: set[str] = set()
    for picture in pictures:
        if picture.id in seen:
            raise DataError(f"two pictures are called {picture.id!r}; give each its own name")
        seen.add(picture.id)
