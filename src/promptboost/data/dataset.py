"""Labeled images and datasets."""

import hashlib
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.data.decode import (
    BadImage,
    ImageError,
    ImageSource,
    read_file,
    read_image,
    read_thumbnail,
)
from promptboost.errors import DataError, LabelError
from promptboost.io import Stamp, file_stamp
from promptboost.progress import Progress, no_progress, stage
from promptboost.threads import thread_count

if TYPE_CHECKING:
    from PIL.Image import Image

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def display_name(label: str) -> str:
    """Return the name of a folder as words for a prompt."""
    return " ".join(label.replace("_", " ").split())


def valid_text(text: str) -> str:
    """Escape surrogates, which stand for bytes of file names that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


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


# Missing labels as numpy and pandas write them: an array of [nan, "cat"] holds the text "nan".
_MISSING = ("", "nan", "NaN", "<NA>", "NaT")


def is_missing(label: object) -> bool:
    """Return whether a label is missing: None, NaN, NA or NaT, also as text, or blank.

    Examples
    --------
    >>> [is_missing(label) for label in (None, float("nan"), "nan", " ", "None", 0)]
    [True, True, True, True, False, False]
    """
    return label is None or str(label).strip() in _MISSING


def check_labels(labels: ArrayLike) -> None:
    """Raise a :class:`LabelError` if labels are missing."""
    # As objects: numpy would make a text of NaN.
    missing = [is_missing(label) for label in np.asarray(labels, dtype=object).ravel().tolist()]
    if any(missing):
        raise LabelError(
            f"{sum(missing):,} of {len(missing):,} labels are missing, the first at position "
            f"{missing.index(True)}: remove these examples"
        )


@dataclass(frozen=True, slots=True)
class LabeledImage:
    """One labeled image, not yet opened."""

    # Unique in its dataset: a path relative to the folder or manifest, or a number.
    id: str
    label: str  # the class, spelled as in the source; empty where there is none
    source: ImageSource  # where the pixels are
    split: str | None = None  # "train", "val", "test", or None if the source has none
    margin: float = 0.0  # white border on each side when opened, as a share of the longer side
    group: str = ""  # what is shown, if several images show it: a car from two sides, a burst
    # The stamp and the digest of its file; no stamp if another process has read it.
    _cached: tuple[Stamp | None, bytes] | None = field(
        default=None, init=False, compare=False, repr=False
    )
    # Of the last check.
    _thumbnail: bytes | None = field(default=None, init=False, compare=False, repr=False)

    def open(self) -> "Image":
        """Open it as RGB, the right way up, on white (:class:`ImageError` if that fails)."""
        return self.framed(read_image(self.source, self.name))

    @property
    def name(self) -> str:
        """The name of the image in messages, its full path if it has one."""
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
        if self._cached is not None and self._cached[0] is None:
            return self._cached[1]
        if not isinstance(self.source, Path):
            return self._digest_of(self.source)
        if self._cached is not None and self._cached[0] == file_stamp(self.source):
            return self._cached[1]
        return self._digest_file(*read_file(self.source, self.name))

    def with_known(self, digest: bytes, thumbnail: bytes | None) -> "LabeledImage":
        """Return the image with its digest and thumbnail, read in another process."""
        image = replace(self)
        object.__setattr__(image, "_cached", (None, digest))
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
        """Whether the thumbnail is in memory."""
        return self._thumbnail is not None

    def thumbnail(self) -> bytes | None:
        """Return the image as 12 × 12 RGB pixels; None where that cannot be done.

        The margin is left out.
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
        object.__setattr__(self, "_cached", (stamp, digest))
        return digest

    def _digest_of(self, content: "bytes | Image") -> bytes:
        hasher = hashlib.blake2b(digest_size=16)
        if self.margin:
            hasher.update(f"margin {self.margin!r}/".encode())
        if isinstance(content, bytes):
            hasher.update(content)
        else:
            # As RGB: the bytes of other modes lack the palette, transparency or orientation.
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
    def of(
        cls,
        images: Iterable[LabeledImage],
        bad: Iterable[BadImage] = (),
        class_names: Iterable[str] = (),
    ) -> "Dataset":
        """Make a dataset whose classes are those named and those of its images.

        Raise a DataError if names repeat.
        """
        images = tuple(images)
        names = tuple(sorted({*class_names, *(image.label for image in images)}))
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

    @cached_property
    def groups(self) -> NDArray[np.int64] | None:
        """The number of each image's group; None if no image has one."""
        if not any(image.group for image in self.images):
            return None
        numbers: dict[tuple[str, bool], int] = {}
        names = [(image.group or image.id, bool(image.group)) for image in self.images]
        return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)

    @property
    def ids(self) -> tuple[str, ...]:
        """The images' ids as valid UTF-8; other bytes of file names become escapes."""
        return tuple(valid_text(image.id) for image in self.images)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with an image's content, label, split, group or place, not with a file's name."""
        hasher = hashlib.blake2b(repr(self.class_names).encode(), digest_size=16)
        for image in self.images:
            hasher.update(image.digest())
            group = (image.group,) if image.group else ()
            hasher.update(repr((image.label, image.split, *group)).encode())
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


def check_images(
    images: Dataset | Sequence[LabeledImage], *, progress: Progress = no_progress
) -> list[BadImage]:
    """Decode every image and list those that cannot be used, in order.

    Examples
    --------
    >>> for bad in check_images([LabeledImage("7", "cat", b"not an image")]):
    ...     print(bad)
    7: not an image of a known kind
    """
    items = images.images if isinstance(images, Dataset) else images
    bad: list[BadImage] = []
    with (
        ThreadPoolExecutor(thread_count()) as threads,
        stage(progress, "checking images", len(items)) as advance,
    ):
        for problem in threads.map(LabeledImage.check, items):
            advance()
            if problem is not None:
                bad.append(problem)
    return bad


class RepeatedImageWarning(UserWarning):
    """The same image was given under two labels."""


def warn_of_conflicting_labels(images: Sequence[LabeledImage], labels: Sequence[object]) -> None:
    """Warn if two images with the same content have two labels."""
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
