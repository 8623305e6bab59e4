"""Copies among the images of a task: held-out images in the training set, and images with two labels.

Two images are copies if their files are identical, or if the cosine of their thumbnails
(:func:`thumbnail_rows`) is at least :data:`LEAST_COSINE`. Embeddings do not separate copies from
similar images: among 2,220 photographs of pets, 7,717 pairs have a cosine of 0.98 or more with
``conse:lite0``, while a copy of one of them, saved again as JPEG, may have 0.78.

``python -m benchmarks.copies DATA`` measures both errors. Of 60 emoji, 60 pets (Oxford) and 60 scenes
(Intel), it finds every copy that was saved again as JPEG (quality 40 or 75), scaled by a half or two,
or squeezed to a square; of 60 textures (DTD) 95 to 98 %, as fine ones have no thumbnail. Most cropped,
mirrored or brighter copies are not found. In the data as they are, it finds 5 pairs among 2,220 pets
and 4 among 600 textures (3 and all 4 are copies), none among 360 scenes, and 46 among 1,635 emoji, of
which 42 are the same file and 4 are pairs of cat faces. None of these pairs has two labels.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.measures import Count
from promptboost.data import Dataset, LabeledImage
from promptboost.data.decode import THUMBNAIL_SIDE, ImageError
from promptboost.errors import DataError, count
from promptboost.progress import Progress, no_progress, stage
from promptboost.threads import thread_count

#: Thumbnails with this cosine are of one image. In what is measured above, copies of photographs that
#: were saved anew have 0.9926 or more, and photographs that are no copies 0.985 or less.
LEAST_COSINE = 0.99

#: The class of an image of which only the digest is known; it contradicts no other.
UNKNOWN = -1

# How much the mean color counts beside the pixels: enough to tell a red car from a blue one.
_COLOR = 0.25
# Below this deviation, in levels of 0 to 255, an image is of one color and cannot be known again.
_FLAT = 2.0
# Images that were not decoded yet are, for this alone, as long as they are no more than these.
_MOST_DECODED = 5_000
_BLOCK = 1024
_DIRECTIONS = 24

Indices = NDArray[np.int64]
Rows = NDArray[np.float32]
#: Positions of images that are alike, (i, j) with i ≠ j; each pair in one order is enough.
Pairs = tuple[Indices, Indices]

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


@dataclass(frozen=True)
class Copies:
    """For each image, learned ones first, the first other one that it is a copy of; −1 without one."""

    learned: Indices  # of a held-out image: among those that were learned from
    other_class: Indices  # under another label
    same_class: Indices  # under the same label, and learned or held out as it is itself


def find_copies(
    digests: Sequence[bytes],
    labels: NDArray[np.integer],
    learned: int,
    near: Iterable[Pairs] = (),
) -> Copies:
    """Find which images are copies of others.

    Parameters
    ----------
    digests : sequence of bytes
        Of each image, see :meth:`LabeledImage.digest`.
    labels : array of int
        The class of each, or :data:`UNKNOWN`.
    learned : int
        How many of the images, from the first on, are learned from; the others are held out.
    near : iterable of Pairs, optional
        Which images are nearly the same, from :func:`near_pairs`.

    Examples
    --------
    >>> import numpy as np
    >>> copies = find_copies([b"a", b"b", b"a", b"a"], np.array([0, 1, 0, 1]), learned=2)
    >>> copies.learned.tolist(), copies.other_class.tolist(), copies.same_class.tolist()
    ([-1, -1, 0, 0], [3, -1, 3, 0], [-1, -1, -1, -1])
    """
    classes = np.asarray(labels, dtype=np.int64)
    if len(classes) != len(digests):
        raise DataError(f"{len(digests)} images have {len(classes)} labels; give one for each")
    held_out = np.arange(len(digests)) >= learned
    exact = _partners([_same_digest(digests, classes, held_out)], classes, held_out)
    alike = _partners(near, classes, held_out)
    # The same bytes are named before what only looks alike.
    best = np.where(exact < len(digests), exact, alike)
    best[best == len(digests)] = -1
    return Copies(*best)


def _same_digest(digests: Sequence[bytes], labels: Indices, held_out: NDArray[np.bool_]) -> Pairs:
    """Pair each image with the first of every kind among those of the same digest."""
    together: defaultdict[bytes, list[int]] = defaultdict(list)
    for position, digest in enumerate(digests):
        together[digest].append(position)
    pairs: list[tuple[int, int]] = []
    for members in together.values():
        if len(members) > 1:
            first: dict[tuple[int, bool], int] = {}
            for i in members:
                first.setdefault((int(labels[i]), bool(held_out[i])), i)
            pairs += [(i, j) for i in members for j in first.values() if i != j]
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _partners(
    blocks: Iterable[Pairs], labels: Indices, held_out: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the first partner of each image, for each of the fields of Copies; n without one."""
    n = len(labels)
    best = np.full((3, n), n, dtype=np.int64)
    for one, other in blocks:
        i, j = np.concatenate([one, other]), np.concatenate([other, one])
        known = (labels[i] != UNKNOWN) & (labels[j] != UNKNOWN)
        kinds = (
            held_out[i] & ~held_out[j],
            known & (labels[i] != labels[j]),
            known & (labels[i] == labels[j]) & (held_out[i] == held_out[j]),
        )
        for row, kind in zip(best, kinds, strict=True):
            np.minimum.at(row, i[kind], j[kind])
    return best


def near_images(
    images: Sequence[LabeledImage], *, progress: Progress = no_progress
) -> Iterator[Pairs]:
    """Find the pairs of images that look alike, block by block.

    Examples
    --------
    >>> from PIL import Image
    >>> image = Image.linear_gradient("L")
    >>> whole, half = LabeledImage("0", "", image), LabeledImage("1", "", image.resize((128, 128)))
    >>> [(i.tolist(), j.tolist()) for i, j in near_images([whole, half])]
    [([0], [1])]
    """
    yield from near_pairs(thumbnail_rows(images, progress=progress))


def thumbnail_rows(
    images: Sequence[LabeledImage],
    workers: int | None = None,
    progress: Progress = no_progress,
) -> Rows:
    """Return a row of length one for each image, from its pixels made very small.

    The pixels lose their mean, so that a white background does not make all images alike, and the mean
    color is added with a weight of its own. A row of zeros, like no other, is that of an image of one
    color; of one that cannot be read any more; and of one that was not decoded before, as a benchmark's
    are not, where there are thousands of them.

    Examples
    --------
    >>> from PIL import Image
    >>> image = Image.linear_gradient("L")
    >>> whole, half = LabeledImage("0", "", image), LabeledImage("1", "", image.resize((128, 128)))
    >>> rows = thumbnail_rows([whole, half])
    >>> bool(rows[0] @ rows[1] >= LEAST_COSINE)
    True
    """
    many = sum(not image.has_thumbnail for image in images) > _MOST_DECODED
    wanted = [i for i, image in enumerate(images) if image.has_thumbnail or not many]
    pixels = THUMBNAIL_SIDE**2
    rows = np.zeros((len(images), 3 * pixels + 3), dtype=np.float32)
    with (
        ThreadPoolExecutor(workers or thread_count()) as threads,
        stage(progress, "looking for copies", len(wanted)) as advance,
    ):
        for i, thumbnail in zip(
            wanted, threads.map(_thumbnail, (images[i] for i in wanted)), strict=True
        ):
            advance()
            if thumbnail is None:
                continue
            levels = np.frombuffer(thumbnail, dtype=np.uint8).reshape(pixels, 3).astype(np.float32)
            mean = levels.mean(axis=0)
            if levels.std(axis=0).max() >= _FLAT:
                color = _COLOR * THUMBNAIL_SIDE * (mean - 127.5)
                row = np.concatenate([(levels - mean).ravel(), color])
                rows[i] = row / np.linalg.norm(row)
    return rows


def _thumbnail(image: LabeledImage) -> bytes | None:
    try:
        return image.thumbnail()
    except ImageError:  # what needs the image itself will say so
        return None


def near_pairs(rows: Rows, least: float = LEAST_COSINE) -> Iterator[Pairs]:
    """Find the pairs of rows with a cosine of `least` or more, block by block.

    Rows are of length one, or zero: thumbnails, or the embeddings of any model. Memory is bounded by a
    block. Two rows that are near are near along every direction, so rows are sorted along the one in
    which they differ most, compared along a few of those, and in full only if they are near there.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([[1, 0], [0, 1], [0.999, 0.0447]], dtype=np.float32)
    >>> [(i.tolist(), j.tolist()) for i, j in near_pairs(rows)]
    [([0], [2])]
    """
    some = np.flatnonzero(np.any(rows, axis=1))
    if len(some) < 2:
        return
    along = rows[some] @ _widest(rows[some[:: 1 + len(some) // 4096]])
    by_place = np.argsort(along[:, 0], kind="stable")
    order, along = some[by_place], along[by_place]
    # |a − b|² = 2 − 2 cos; a little more, for what floats of 32 bits lose.
    reach = np.sqrt(2 - 2 * least) + 1e-3
    # One product of these gives |a − b|² along the directions, halved and negative.
    halves = (along**2).sum(axis=1, keepdims=True) / 2
    ones = np.ones_like(halves)
    left, right = np.hstack([along, -halves, -ones]), np.hstack([along, ones, halves]).T
    for start in range(0, len(order), _BLOCK):
        stop = min(start + _BLOCK, len(order))
        end = int(np.searchsorted(along[:, 0], along[stop - 1, 0] + reach, side="right"))
        for other in range(start, end, _BLOCK):
            near = left[start:stop] @ right[:, other : min(other + _BLOCK, end)] >= -(reach**2) / 2
            i, j = np.nonzero(near)
            # Within one block each pair is met twice, and each row with itself.
            keep = i < j if other == start else np.full(len(i), True)
            i, j = order[start + i[keep]], order[other + j[keep]]
            for part in range(0, len(i), _BLOCK):
                one, two = i[part : part + _BLOCK], j[part : part + _BLOCK]
                alike = np.einsum("nd,nd->n", rows[one], rows[two]) >= least
                if alike.any():
                    yield one[alike].astype(np.int64), two[alike].astype(np.int64)


def _widest(rows: Rows) -> Rows:
    """Return the directions of the largest variance, the largest first, as columns of length one."""
    centered = rows - rows.mean(axis=0)
    vectors = np.linalg.eigh(centered.T @ centered)[1][:, ::-1]
    return np.ascontiguousarray(vectors[:, :_DIRECTIONS], dtype=np.float32)
