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

from promptboost.baselines import Count
from promptboost.data import Dataset, LabeledImage
from promptboost.data.decode import THUMBNAIL_SIDE, ImageError
from promptboost.errors import count
from promptboost.progress import Progress, no_progress, stage
from promptboost.threads import thread_count

#: Least cosine of the thumbnails of copies. In the measurements above, re-encoded photographs have 0.9926
#: or more, and different photographs 0.985 or less.
LEAST_COSINE = 0.99

#: The class of an image with an unknown label; it contradicts no other.
UNKNOWN = -1

# Weight of the mean color relative to the pixels: enough to separate a red car from a blue one.
_COLOR = 0.25
# Images with a smaller deviation, in levels of 0 to 255, are of one color and have no thumbnail.
_FLAT = 2.0
# Images that were not decoded yet are decoded for this check only up to this number.
_MOST_DECODED = 5_000
_BLOCK = 1024
_DIRECTIONS = 24

Indices = NDArray[np.int64]
Rows = NDArray[np.float32]
#: Positions of images that are alike, (i, j) with i ≠ j; each pair in one order is enough.
Pairs = tuple[Indices, Indices]

# Copies of a kind that are recorded, and copies named in a line.
_RECORDED, _NAMED = 50, 2


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
        first, second = (f" ({name})" if labels else "" for name in (self.label, self.of_label))
        return f"{self.image}{first} = {self.of}{second}"


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
        leaks, lines = self.leaks, []
        if leaks.images:
            what = f"{count(leaks.images, 'held-out image is', 'held-out images are')} in the training set"
            if run:
                what = f"the run was trained on {leaks.images:,} of these images"
            lines.append(
                f"{what} ({leaks.exact:,} byte for byte), so the accuracy is too high: "
                f"{_few(leaks.names())}"
            )
        for copies, where, labels in (
            (self.contradictions, "under another label", True),
            (self.repeats, "in the same class", False),
        ):
            if copies.images:
                lines.append(
                    f"{count(copies.images, 'image has', 'images have')} a copy {where} "
                    f"({copies.learned:,} training, {copies.images - copies.learned:,} held out): "
                    f"{_few(copies.names(labels))}"
                )
        return lines

    @property
    def without(self) -> str:
        """Label of the accuracy without leaked images."""
        return f"without the {count(self.leaks.images, 'held-out image')} in the training set"


@dataclass(frozen=True)
class Inspection:
    """The copies of a task, and a mask of the held-out images that are in the training set."""

    overlap: Overlap
    leaked: NDArray[np.bool_]  # (m,)


def inspect(
    learn: Dataset | Sequence[bytes],
    held_out: Dataset,
    near: Iterable[Pairs] | None = None,
    *,
    most: int | None = _RECORDED,
    progress: Progress = no_progress,
) -> Inspection:
    """Find copies among the images of a task; of the training images, digests are enough.

    `near` are pairs of similar images, as positions in the training images followed by the held-out
    ones; by default thumbnails are compared, but not of images known by their digests. At most `most`
    of each kind are named.
    """
    learned, class_names = len(learn), held_out.class_names
    if isinstance(learn, Dataset):
        digests, learn_labels = [image.digest() for image in learn.images], learn.labels
        names, compared, start = list(learn.ids), (*learn.images, *held_out.images), 0
    else:
        digests, learn_labels = list(learn), np.full(learned, UNKNOWN)
        names, compared, start = [""] * learned, held_out.images, learned
    if near is None:
        near = ((i + start, j + start) for i, j in near_images(compared, progress=progress))
    digests += [image.digest() for image in held_out.images]
    labels = np.concatenate([learn_labels, held_out.labels])
    names += held_out.ids

    def copy(i: int, j: int) -> Copy:
        label, of_label = (class_names[labels[k]] if labels[k] != UNKNOWN else "" for k in (i, j))
        exact = digests[i] == digests[j]
        return Copy(names[i], label, i >= learned, names[j], of_label, j >= learned, exact)

    def counted(partners: Indices) -> CopyCount:
        pairs = [(i, j) for i, j in enumerate(partners.tolist()) if j >= 0]
        # Two copies of each other are named once, a held-out one first.
        shown = [(i, j) for i, j in pairs if i > j or partners[j] != i]
        return CopyCount(
            len(pairs),
            sum(digests[i] == digests[j] for i, j in pairs),
            sum(i < learned for i, _ in pairs),
            tuple(copy(i, j) for i, j in shown[:most]),
        )

    kinds = find_copies(digests, labels, learned, near)
    leaks, contradictions, repeats = map(counted, kinds)
    overlap = Overlap(leaks=leaks, contradictions=contradictions, repeats=repeats)
    return Inspection(overlap, kinds[0, learned:] >= 0)


def among(pairs: Iterable[Pairs], positions: Indices, whole: int) -> Iterable[Pairs]:
    """Return the pairs within a subset of the images, as positions in the subset.

    So a dataset is compared once for all its subsets.
    """
    index = np.full(whole, -1, dtype=np.int64)
    index[positions] = np.arange(len(positions))
    for i, j in pairs:
        inside = (index[i] >= 0) & (index[j] >= 0)
        yield index[i[inside]], index[j[inside]]


def _few(names: Sequence[str]) -> str:
    return ", ".join(chain(names[:_NAMED], ["…"] if len(names) > _NAMED else []))


def find_copies(
    digests: Sequence[bytes], labels: Indices, learned: int, near: Iterable[Pairs] = ()
) -> Indices:
    """Return the first copy of each image, shape (3, n), training images first; −1 without one.

    The rows are: of a held-out image, its copy among the training images; the copy under another label;
    the copy under the same label and in the same split. `learned` is the number of training images, which
    come first; `near` are pairs of similar images. Identical files take precedence over those.
    """
    n = len(digests)
    held_out = np.arange(n) >= learned
    together: defaultdict[bytes, list[int]] = defaultdict(list)
    for position, digest in enumerate(digests):
        together[digest].append(position)
    pairs: list[tuple[int, int]] = []
    for members in together.values():
        # The first of every kind is enough.
        first: dict[tuple[int, bool], int] = {}
        for i in members:
            first.setdefault((int(labels[i]), bool(held_out[i])), i)
        pairs += [(i, j) for i in members for j in first.values() if i != j]
    same = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    exact = _partners([(same[:, 0], same[:, 1])], labels, held_out)
    best = np.where(exact < n, exact, _partners(near, labels, held_out))
    best[best == n] = -1
    return best


def _partners(blocks: Iterable[Pairs], labels: Indices, held_out: NDArray[np.bool_]) -> Indices:
    """Return the first partner of each image, by kind; n without one."""
    n = len(labels)
    best = np.full((3, n), n, dtype=np.int64)
    for first, second in blocks:
        i, j = np.concatenate([first, second]), np.concatenate([second, first])
        labeled = (labels[i] != UNKNOWN) & (labels[j] != UNKNOWN)
        kinds = (
            held_out[i] & ~held_out[j],
            labeled & (labels[i] != labels[j]),
            labeled & (labels[i] == labels[j]) & (held_out[i] == held_out[j]),
        )
        for row, kind in zip(best, kinds, strict=True):
            np.minimum.at(row, i[kind], j[kind])
    return best


def near_images(
    images: Sequence[LabeledImage], *, progress: Progress = no_progress
) -> Iterator[Pairs]:
    """Find the pairs of images that look alike, block by block."""
    yield from near_pairs(thumbnail_rows(images, progress=progress))


def thumbnail_rows(images: Sequence[LabeledImage], *, progress: Progress = no_progress) -> Rows:
    """Return a row of length one for each image, from its thumbnail.

    The mean is subtracted from the pixels, so that a white background does not make all images similar,
    and is appended with its own weight. The row is zero for images of one color, unreadable images, and
    images of large benchmarks that were not decoded yet.
    """
    many = sum(not image.has_thumbnail for image in images) > _MOST_DECODED
    wanted = [i for i, image in enumerate(images) if image.has_thumbnail or not many]
    pixels = THUMBNAIL_SIDE**2
    rows = np.zeros((len(images), 3 * pixels + 3), dtype=np.float32)
    with (
        ThreadPoolExecutor(thread_count()) as threads,
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
    except ImageError:  # reported where the image itself is needed
        return None


def near_pairs(rows: Rows, least: float = LEAST_COSINE) -> Iterator[Pairs]:
    """Find the pairs of rows with a cosine of `least` or more, block by block.

    Rows are of length one, or zero: thumbnails or embeddings. Similar rows are close along every
    direction, so rows are sorted along the direction of the largest variance, compared along a few such
    directions, and in full only if they are close there.
    """
    some = np.flatnonzero(np.any(rows, axis=1))
    if len(some) < 2:
        return
    along = rows[some] @ _widest(rows[some[:: 1 + len(some) // 4096]])
    ranks = np.argsort(along[:, 0], kind="stable")
    order, along = some[ranks], along[ranks]
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
            for begin in range(0, len(i), _BLOCK):
                a, b = i[begin : begin + _BLOCK], j[begin : begin + _BLOCK]
                alike = np.einsum("nd,nd->n", rows[a], rows[b]) >= least
                if alike.any():
                    yield a[alike].astype(np.int64), b[alike].astype(np.int64)


def _widest(rows: Rows) -> Rows:
    """Return the directions of the largest variance, the largest first, as columns of length one."""
    centered = rows - rows.mean(axis=0)
    vectors = np.linalg.eigh(centered.T @ centered)[1][:, ::-1]
    return np.ascontiguousarray(vectors[:, :_DIRECTIONS], dtype=np.float32)
