"""Copies among the images of a task: held-out images in the training set, and images with two labels.

:mod:`promptboost.data.copies` defines what a copy is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.measures import Count
from promptboost.data import Dataset
from promptboost.data.copies import (
    UNKNOWN,
    Indices,
    Pairs,
    find_copies,
    near_images,
)
from promptboost.errors import count
from promptboost.progress import Progress, no_progress

# Copies that are recorded, and copies named in a line.
_KEPT, _NAMED = 50, 2


class Copy(msgspec.Struct, frozen=True):
    """An image and another one that it is a copy of."""

    image: str
    label: str
    held_out: bool
    of: str  # empty if only the digest of the training image is known
    of_label: str
    of_held_out: bool
    exact: bool  # byte for byte, not only visually

    def named(self, labels: bool) -> str:
        """Name both images, with their labels if `labels`."""
        if not self.of:
            return self.image
        own, other = (f" ({name})" if labels else "" for name in (self.label, self.of_label))
        return f"{self.image}{own} = {self.of}{other}"


class CopyCount(msgspec.Struct, frozen=True):
    """How many images are copies of one kind, and the first of them."""

    images: Count = 0
    exact: Count = 0  # of these are byte for byte the same as another
    learned: Count = 0  # of these are training images; the others are held out
    first: tuple[Copy, ...] = ()

    def names(self, labels: bool = False) -> list[str]:
        """Name the recorded pairs."""
        return [copy.named(labels) for copy in self.first]


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """Copies among the images of a task."""

    leaks: CopyCount = CopyCount()  # held-out images that are copies of training images
    contradictions: CopyCount = CopyCount()  # images with a copy under another label
    repeats: CopyCount = CopyCount()  # images with a copy in their class

    def lines(self, *, run: bool = False) -> list[str]:
        """Return a remark on each kind of copy; with `run`, on images evaluated by a run."""
        leaks, mixed, repeats = self.leaks, self.contradictions, self.repeats
        lines = []
        if leaks.images and run:
            lines.append(
                f"the run learned from {leaks.images:,} of these images "
                f"({leaks.exact:,} byte for byte), so the figures are too good: {_few(leaks.names())}"
            )
        elif leaks.images:
            lines.append(
                f"{count(leaks.images, 'held-out image was', 'held-out images were')} learned from "
                f"({leaks.exact:,} byte for byte), so the accuracy is too good: {_few(leaks.names())}"
            )
        if mixed.images:
            held_out = mixed.images - mixed.learned
            lines.append(
                f"{count(mixed.images, 'image has', 'images have')} a copy under another label "
                f"({mixed.learned:,} learned from, {held_out:,} held out): {_few(mixed.names(True))}"
            )
        if repeats.images:
            lines.append(
                f"{count(repeats.images, 'image has', 'images have')} a copy in the same class "
                f"({repeats.learned:,} learned from, {repeats.images - repeats.learned:,} held out): "
                f"{_few(repeats.names())}"
            )
        return lines

    @property
    def without(self) -> str:
        """Label of the accuracy without leaked images."""
        images = count(self.leaks.images, "held-out image that was", "held-out images that were")
        return f"without the {images} learned from"


@dataclass(frozen=True)
class Inspection:
    """The copies of a task, and a mask of the held-out images that are in the training set."""

    overlap: Overlap
    leaked: NDArray[np.bool_]  # (m,)


def inspect(
    learn: Dataset,
    held_out: Dataset,
    near: Iterable[Pairs] | None = None,
    *,
    most: int | None = _KEPT,
    progress: Progress = no_progress,
) -> Inspection:
    """Find copies among the images of a task.

    `near` are pairs of similar images, as positions in the training images followed by the held-out
    ones; by default thumbnails are compared. At most `most` of each kind are named.

    Examples
    --------
    >>> from PIL import Image
    >>> from promptboost.data import LabeledImage
    >>> red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    >>> learn = Dataset.of([LabeledImage("0", "fire", red), LabeledImage("1", "ice", blue)])
    >>> held_out = Dataset((LabeledImage("2", "ice", red),), learn.class_names)
    >>> for line in inspect(learn, held_out).overlap.lines():
    ...     print(line)
    1 held-out image was learned from (1 byte for byte), so the accuracy is too good: 2 = 0
    2 images have a copy under another label (1 learned from, 1 held out): 2 (ice) = 0 (fire)
    """
    images = (*learn.images, *held_out.images)
    return _inspect(
        [image.digest() for image in images],
        np.concatenate([learn.labels, held_out.labels]),
        [*learn.ids, *held_out.ids],
        learn.class_names,
        len(learn),
        near_images(images, progress=progress) if near is None else near,
        most,
    )


def inspect_known(
    digests: Sequence[bytes], held_out: Dataset, *, progress: Progress = no_progress
) -> Inspection:
    """Find copies if only the digests of the training images are known."""
    learned = len(digests)
    near = near_images(held_out.images, progress=progress)
    return _inspect(
        [*digests, *(image.digest() for image in held_out.images)],
        np.concatenate([np.full(learned, UNKNOWN), held_out.labels]),
        [*[""] * learned, *held_out.ids],
        held_out.class_names,
        learned,
        ((i + learned, j + learned) for i, j in near),
    )


def _inspect(
    digests: Sequence[bytes],
    labels: Indices,
    names: Sequence[str],
    class_names: Sequence[str],
    learned: int,
    near: Iterable[Pairs],
    most: int | None = _KEPT,
) -> Inspection:
    copies = find_copies(digests, labels, learned, near)

    def copy(i: int, j: int) -> Copy:
        one, other = (class_names[labels[k]] if labels[k] != UNKNOWN else "" for k in (i, j))
        exact = digests[i] == digests[j]
        return Copy(names[i], one, i >= learned, names[j], other, j >= learned, exact)

    def counted(partners: Indices) -> CopyCount:
        copied = np.flatnonzero(partners >= 0)
        pairs = [(i, int(partners[i])) for i in copied.tolist()]
        # Two copies of each other are named once, a held-out one first.
        shown = [(i, j) for i, j in pairs if i > j or partners[j] != i]
        return CopyCount(
            len(pairs),
            sum(digests[i] == digests[j] for i, j in pairs),
            sum(i < learned for i, _ in pairs),
            tuple(copy(i, j) for i, j in shown[:most]),
        )

    overlap = Overlap(
        leaks=counted(copies.learned),
        contradictions=counted(copies.other_class),
        repeats=counted(copies.same_class),
    )
    return Inspection(overlap, copies.learned[learned:] >= 0)


def among(pairs: Iterable[Pairs], positions: Indices, whole: int) -> Iterable[Pairs]:
    """Return the pairs within a subset of the images, as positions in the subset.

    A comparison of a whole dataset serves every subset of it.

    Examples
    --------
    >>> import numpy as np
    >>> pairs = [(np.array([0, 1]), np.array([3, 2]))]
    >>> [(i.tolist(), j.tolist()) for i, j in among(pairs, np.array([3, 0, 1]), 4)]
    [([1], [0])]
    """
    place = np.full(whole, -1, dtype=np.int64)
    place[positions] = np.arange(len(positions))
    for i, j in pairs:
        there = (place[i] >= 0) & (place[j] >= 0)
        yield place[i[there]], place[j[there]]


def _few(names: Sequence[str]) -> str:
    return ", ".join(chain(names[:_NAMED], ["…"] if len(names) > _NAMED else []))
