"""Labeled images, their class names, and the files that were left out."""

import hashlib
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptboost.data.decode import (
    BadImage,
    ImageError,
    ImageSource,
    read_file,
    read_image,
    read_thumbnail,
)
from promptboost.errors import DataError
from promptboost.io import Stamp, file_stamp

if TYPE_CHECKING:
    from PIL.Image import Image

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def display_name(label: str) -> str:
    """Turn the name of a folder into words for a prompt.

    Examples
    --------
    >>> display_name("American_Bulldog")
    'American Bulldog'
    """
    return " ".join(label.replace("_", " ").split())


def split_name(text: str) -> str | None:
    """Return the usual name of a split, or None if it is not the name of one."""
    return _SPLITS.get(text.strip().lower())


def _check_distinct(names: Sequence[str]) -> None:
    """Raise if two class names read the same in a prompt."""
    seen: dict[str, str] = {}
    for name in names:
        key = unicodedata.normalize("NFC", display_name(name)).casefold()
        if not key:
            raise DataError(f"the class name {name!r} is blank; give every class a name")
        if key in seen:
            raise DataError(
                f"the classes {seen[key]!r} and {name!r} read the same in a prompt; "
                "rename one, or move their images together"
            )
        seen[key] = name


@dataclass(frozen=True, slots=True)
class LabeledImage:
    """One labeled image, not yet opened."""

    # Stable and unique in its dataset: a path relative to the folder or manifest, or a number.
    id: str
    label: str  # the class, spelled as in the source; empty where there is none
    source: ImageSource  # where the pixels are
    split: str | None = None  # "train", "val", "test", or None where the source does not say
    margin: float = 0.0  # white border on each side when opened, as a share of the longer side
    # The digest and the stamp of its file, which is read again only if the stamp changes; no stamp if
    # another process has read it.
    _known: tuple[Stamp | None, bytes] | None = field(
        default=None, init=False, compare=False, repr=False
    )
    # Of the last check.
    _thumbnail: bytes | None = field(default=None, init=False, compare=False, repr=False)

    def open(self) -> "Image":
        """Open it as RGB, the right way up, on white (:class:`ImageError` if that fails)."""
        return self.framed(read_image(self.source, self.name))

    @property
    def name(self) -> str:
        """What to call the image in a message, its full path where it has one."""
        return str(self.source) if isinstance(self.source, Path) else self.id

    def framed(self, image: "Image") -> "Image":
        """Add the margin."""
        if self.margin == 0:
            return image
        from PIL import ImageOps

        return ImageOps.expand(image, border=round(self.margin * max(image.size)), fill="white")

    def digest(self) -> bytes:
        """Hash the content: the same pixels in a renamed file have the same digest.

        A file is read once, and again only when it has changed since.
        """
        if self._known is not None and self._known[0] is None:
            return self._known[1]
        if not isinstance(self.source, Path):
            return self._digest_of(self.source)
        if self._known is not None and self._known[0] == file_stamp(self.source):
            return self._known[1]
        return self._digest_file(*read_file(self.source, self.name))

    def with_known(self, digest: bytes, thumbnail: bytes | None) -> "LabeledImage":
        """Return the image with its digest and thumbnail, read in another process."""
        image = replace(self)
        object.__setattr__(image, "_known", (None, digest))
        object.__setattr__(image, "_thumbnail", thumbnail)
        return image

    def check(self) -> BadImage | None:
        """Return the problem of the image, or None; also compute its digest."""
        try:
            self._read()
        except ImageError as error:
            return error.bad
        return None

    @property
    def has_thumbnail(self) -> bool:
        """Whether the image was checked, so that its thumbnail costs nothing."""
        return self._thumbnail is not None

    def thumbnail(self) -> bytes | None:
        """Return the image as 12 × 12 RGB pixels; None where that cannot be done.

        The margin is left out: it says nothing about the image.
        """
        if self._thumbnail is None:
            self._read()
        return self._thumbnail

    def _read(self) -> None:
        """Read and decode; raise ImageError if that fails, else keep the digest and a thumbnail."""
        content = self.source
        if isinstance(content, Path):
            content, stamp = read_file(content, self.name)
            self._digest_file(content, stamp)
        object.__setattr__(self, "_thumbnail", read_thumbnail(content, self.name))

    def _digest_file(self, content: bytes, stamp: Stamp) -> bytes:
        digest = self._digest_of(content)
        object.__setattr__(self, "_known", (stamp, digest))
        return digest

    def _digest_of(self, content: "bytes | Image") -> bytes:
        hasher = hashlib.blake2b(digest_size=16)
        if self.margin:
            hasher.update(f"margin {self.margin!r}/".encode())
        if isinstance(content, bytes):
            hasher.update(content)
        else:
            # As it is opened: the bytes of other modes do not tell colors, transparency or the way up.
            image = read_image(content, self.name)
            hasher.update(f"{image.mode} {image.size}/".encode())
            hasher.update(image.tobytes())
        return hasher.digest()


@dataclass(frozen=True)
class Dataset:
    """Labeled images in a fixed order.

    Examples
    --------
    >>> from PIL import Image
    >>> red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    >>> data = Dataset.of([LabeledImage("0", "warm", red), LabeledImage("1", "cold", blue)])
    >>> len(data), data.class_names, data.labels.tolist()
    (2, ('cold', 'warm'), [1, 0])
    >>> data.subset([1]).class_names
    ('cold', 'warm')
    """

    images: tuple[LabeledImage, ...]  # in the order of the source; folders in sorted order
    class_names: tuple[str, ...]  # sorted; labels are positions in it; a subset keeps all of them
    bad: tuple[BadImage, ...] = ()  # the files that were left out, each with its reason

    @classmethod
    def unchecked(
        cls,
        images: Iterable[LabeledImage],
        bad: Iterable[BadImage],
        class_names: Iterable[str] | None = None,
    ) -> "Dataset":
        """Make the list of a source, unchecked: a class whose images are all bad must not vanish."""
        images = tuple(images)
        named = (image.label for image in images) if class_names is None else class_names
        return cls(images, tuple(dict.fromkeys(named)), tuple(bad))

    @classmethod
    def of(cls, images: Iterable[LabeledImage], bad: Iterable[BadImage] = ()) -> "Dataset":
        """Make a dataset whose classes are those of its images; raise DataError if names repeat."""
        images = tuple(images)
        names = tuple(sorted({image.label for image in images}))
        _check_distinct(names)
        times = Counter(image.id for image in images)
        if repeated := [name for name in times if times[name] > 1]:
            raise DataError(f"two images are called {repeated[0]!r}; give each its own name")
        return cls(images, names, tuple(bad))

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The class of each image, as its position in ``class_names``."""
        position = {name: index for index, name in enumerate(self.class_names)}
        labels = np.array([position[image.label] for image in self.images], dtype=np.int64)
        labels.setflags(write=False)
        return labels

    @property
    def ids(self) -> tuple[str, ...]:
        """The images' ids as valid UTF-8; other bytes of file names become escapes."""
        ids = (image.id.encode("utf-8", "backslashreplace") for image in self.images)
        return tuple(name.decode("utf-8") for name in ids)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with an image's content, label, split or place; a renamed file changes nothing."""
        hasher = hashlib.blake2b(repr(self.class_names).encode(), digest_size=16)
        for image in self.images:
            hasher.update(image.digest())
            hasher.update(repr((image.label, image.split)).encode())
        return hasher.hexdigest()

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that some image is in, in order of appearance."""
        named = (image.split for image in self.images if image.split is not None)
        return tuple(dict.fromkeys(named))

    def subset(self, indices: "Sequence[int] | NDArray[np.integer]") -> "Dataset":
        """Keep the images at these positions, in this order, and all class names."""
        return Dataset(tuple(self.images[int(i)] for i in indices), self.class_names, self.bad)

    def of_split(self, split: str) -> "Dataset":
        """Keep the images of one split."""
        indices = [i for i, image in enumerate(self.images) if image.split == split]
        if not indices:
            splits = ", ".join(self.splits) or "no splits at all"
            raise DataError(f"no image is in the split {split!r}; there are: {splits}")
        return self.subset(indices)


class RepeatedImageWarning(UserWarning):
    """The same image was given under two labels."""


def warn_of_conflicting_labels(images: Sequence[LabeledImage], labels: Sequence[object]) -> None:
    """Warn if two images with the same content have two labels.

    Examples
    --------
    >>> import warnings
    >>> images = [LabeledImage(str(i), "", b"the same bytes") for i in range(2)]
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_of_conflicting_labels(images, ["cat", "dog"])
    >>> print(caught[0].message)
    2 images are given under more than one label, the first two: 0 (cat) = 1 (dog)
    """
    digests = [image.digest() for image in images]
    first: dict[bytes, dict[object, int]] = {}  # the first image of each content and label
    for i, (digest, label) in enumerate(zip(digests, labels, strict=True)):
        first.setdefault(digest, {}).setdefault(label, i)
    mixed = [i for i, digest in enumerate(digests) if len(first[digest]) > 1]
    if mixed:
        i, j, *_ = first[digests[mixed[0]]].values()
        warnings.warn(
            f"{len(mixed):,} images are given under more than one label, the first two: "
            f"{images[i].name} ({labels[i]}) = {images[j].name} ({labels[j]})",
            RepeatedImageWarning,
            stacklevel=4,
        )
