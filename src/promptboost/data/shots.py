"""Few-shot splits: training images and held-out images.

Of a user's images, k of every class are drawn so that more shots only add images. Benchmarks use the draw
of the CoOp protocol.
"""

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.config import FitConfig, OnBad
from promptboost.data.dataset import Dataset
from promptboost.data.source import NO_CLASS, DataSource
from promptboost.errors import DataError, SettingError, count
from promptboost.progress import Progress, no_progress


def draw_shots(labels: ArrayLike, shots: int, seed: int = 0) -> NDArray[np.int64]:
    """Draw `shots` images of every class, or all of a class that has fewer; return ascending positions.

    Draws of one seed are nested: the images of 4 shots are among those of 8. A class is drawn
    independently of the others.
    """
    _check_numbers(shots, seed)
    labels = np.asarray(labels, dtype=np.int64)
    drawn = []
    for label in np.unique(labels).tolist():
        members = np.flatnonzero(labels == label)
        order = np.random.Generator(np.random.Philox(key=[seed, label])).permutation(members)
        drawn.append(order[:shots])
    return np.sort(np.concatenate(drawn)) if drawn else np.zeros(0, dtype=np.int64)


def rest(count: int, drawn: ArrayLike) -> NDArray[np.int64]:
    """Return the positions that were not drawn, ascending."""
    return np.setdiff1d(np.arange(count, dtype=np.int64), np.asarray(drawn, dtype=np.int64))


def few_shot(dataset: Dataset, shots: int | None, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Divide a dataset into training and held-out images.

    With splits, shots are drawn from ``train`` and all of ``test`` (else ``val``, else what is left
    of ``train``) is held out. Without splits, whatever was not drawn is held out, except images of
    drawn groups. The draw is that of :func:`draw_shots`; ``None`` as `shots` takes all there are.

    Examples
    --------
    >>> from PIL import Image
    >>> from promptboost.data import LabeledImage
    >>> red = Image.new("RGB", (4, 4), "red")
    >>> data = Dataset.of(LabeledImage(str(i), "ab"[i % 2], red) for i in range(6))
    >>> learn, held_out = few_shot(data, 2)
    >>> len(learn), len(held_out)
    (4, 2)
    """
    splits = dataset.splits
    pool = dataset.of_split("train") if splits else dataset
    size = len(pool) if shots is None else shots
    drawn = draw_shots(pool.labels, size, seed)
    for split in ("test", "val"):
        if split in splits:
            return pool.subset(drawn), dataset.of_split(split)
    others = rest(len(pool), drawn)
    if pool.groups is not None:
        others = others[~np.isin(pool.groups[others], pool.groups[drawn])]
    return pool.subset(drawn), pool.subset(others)


def uneven_classes(dataset: Dataset, most: int, seed: int = 0) -> Dataset:
    """Keep some images of each class: of one class a single one, of another `most`.

    The numbers of images are in geometric progression, and assigned to classes at random.
    """
    _check_numbers(most, seed)
    K = len(dataset.class_names)
    rng = np.random.Generator(np.random.Philox(key=[seed, K]))
    sizes = rng.permutation(np.rint(np.geomspace(1, most, K)).astype(np.int64))
    drawn = [rng.permutation(np.flatnonzero(dataset.labels == k))[: sizes[k]] for k in range(K)]
    return dataset.subset(np.sort(np.concatenate(drawn)))


def _check_numbers(shots: int, seed: int) -> None:
    if shots < 1 or seed < 0:
        raise SettingError(f"shots is {shots} and seed {seed}; try shots 1 or more, seed 0 or more")


def coop_draw(labels: Sequence[Hashable], shots: int, seed: int) -> list[int]:
    """Draw training images as the CoOp protocol does; return their positions.

    Python's generator, seeded once, draws ``shots`` images of each class without replacement. Classes come
    in the order in which the split file first names them; a class that has fewer gives all it has. So the
    result depends on the order of the file, and draws of more shots do not contain those of fewer.

    With the protocol's split files this gives the released lists of seeds 1 to 3 and 1, 2, 4, 8 and
    16 shots. ImageNet has no split file: the draw depends on the order in which a file system lists a
    folder, so read a list of shots instead. Released lists for Food101 and FGVCAircraft by others were
    drawn from other splits.
    """
    _check_numbers(shots, seed)
    chance = random.Random(seed)
    members: dict[Hashable, list[int]] = {}
    for index, label in enumerate(labels):
        members.setdefault(label, []).append(index)
    return [
        index
        for indices in members.values()
        for index in (chance.sample(indices, shots) if len(indices) >= shots else indices)
    ]


def coop_few_shot(dataset: Dataset, shots: int | None, seed: int) -> tuple[Dataset, Dataset]:
    """Divide a benchmark as the protocol does: shots drawn from ``train``, all of ``test`` held out."""
    train = dataset.of_split("train")
    if shots is not None:
        train = train.subset(coop_draw([image.label for image in train.images], shots, seed))
    return train, dataset.of_split("test")


HeldOut = Literal["test", "val", "rest"]


@dataclass(frozen=True)
class Task:
    """A dataset divided into training and held-out images."""

    source: str  # as it was typed
    learn: Dataset
    held_out: Dataset  # may be empty
    kind: HeldOut | None  # a split of the source, or the images not drawn

    @property
    def class_names(self) -> tuple[str, ...]:
        """All classes, in the order of the labels."""
        return self.learn.class_names

    @property
    def measured(self) -> Dataset:
        """The images that metrics are about: the held-out ones, else the training images."""
        return self.learn if self.kind is None else self.held_out

    def classes_short_of(self, shots: int | None) -> dict[str, int]:
        """Return the number of training images of each class with some, but fewer than `shots`."""
        counts = Counter(image.label for image in self.learn.images)
        least = 0 if shots is None else shots
        return {name: counts[name] for name in self.class_names if 0 < counts[name] < least}


def load_task(
    source: str | DataSource, settings: FitConfig, *, progress: Progress = no_progress
) -> Task:
    """Read images and split them by the settings; a benchmark by its protocol."""
    parsed = source if isinstance(source, DataSource) else DataSource.parse(source)
    data = load_classes(parsed, settings.on_bad, progress=progress)
    return divide(parsed, data, settings.shots, settings.seed)


def load_classes(
    source: DataSource, on_bad: OnBad = "skip", *, progress: Progress = no_progress
) -> Dataset:
    """Read images of two classes or more."""
    data = source.load(on_bad=on_bad, progress=progress)
    if len({image.label for image in data.images}) < 2:
        stray = [bad for bad in data.bad if bad.reason == NO_CLASS]
        above = (
            f"; {count(len(stray), 'file is', 'files are')} next to its folder: if they are images of a "
            "class, give the folder above"
        )
        raise DataError(
            f"{source} has images of one class only, {data.images[0].label!r}; a classifier needs two or "
            f"more{above if stray else ''}"
        )
    return data


def divide(source: DataSource, data: Dataset, shots: int | None, seed: int) -> Task:
    """Split a dataset; a benchmark by its protocol."""
    split = few_shot if source.benchmark is None else coop_few_shot
    learn, held_out = split(data, shots, seed)
    kind: HeldOut | None = None
    if len(held_out):
        kind = "test" if "test" in data.splits else "val" if "val" in data.splits else "rest"
    return Task(str(source), learn, held_out, kind)
