"""Which images to learn from, and which to measure on.

Of one's own images, k of every class are drawn so that more shots only add images; of a benchmark,
those that papers which follow its protocol learned from.
"""

import random
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.config import FitConfig, OnBad
from promptboost.data.dataset import Dataset
from promptboost.data.source import NO_CLASS, DataSource
from promptboost.errors import DataError, SettingError, count
from promptboost.progress import Progress, no_progress

Fewer = Literal["stop", "allow"]


def draw_shots(
    labels: ArrayLike,
    shots: int,
    seed: int = 0,
    *,
    fewer: Fewer = "stop",
    class_names: Sequence[str] | None = None,
) -> NDArray[np.int64]:
    """Draw the same number of images of every class.

    Draws of one seed are nested: the images of 4 shots are among those of 8. A class is drawn
    independently of the others.

    Parameters
    ----------
    labels : array of int
    shots, seed : int
        How many of each class; another seed draws other images.
    fewer : {"stop", "allow"}, default="stop"
        What to do about a class with fewer images than ``shots``: raise, or take all it has.
    class_names : sequence of str, optional
        All classes, for messages; one without any image is then an error too.

    Returns
    -------
    array of int64
        Positions in ``labels``, ascending.

    Examples
    --------
    >>> labels = [0, 0, 0, 1, 1, 1]
    >>> draw_shots(labels, 1, seed=5)
    array([2, 5])
    >>> draw_shots(labels, 2, seed=5)
    array([0, 2, 3, 5])
    """
    _check_numbers(shots, seed)
    if fewer not in ("stop", "allow"):
        raise SettingError(f"fewer is {fewer!r}, but must be 'stop' or 'allow'")
    labels = np.asarray(labels, dtype=np.int64)
    classes = np.unique(labels) if class_names is None else np.arange(len(class_names))
    drawn = []
    for label in map(int, classes):
        members = np.flatnonzero(labels == label)
        name = str(label) if class_names is None else class_names[label]
        _check_enough(name, members.size, shots, fewer)
        order = np.random.Generator(np.random.Philox(key=[seed, label])).permutation(members)
        drawn.append(order[:shots])
    return np.sort(np.concatenate(drawn)) if drawn else np.zeros(0, dtype=np.int64)


def rest(count: int, drawn: ArrayLike) -> NDArray[np.int64]:
    """Return the positions that were not drawn, ascending.

    Examples
    --------
    >>> rest(5, [0, 3])
    array([1, 2, 4])
    """
    return np.setdiff1d(np.arange(count, dtype=np.int64), np.asarray(drawn, dtype=np.int64))


def few_shot(
    dataset: Dataset, shots: int | None, seed: int = 0, *, fewer: Fewer = "stop"
) -> tuple[Dataset, Dataset]:
    """Divide a dataset into the images to learn from and those held out.

    With splits, shots are drawn from ``train`` and all of ``test`` (else ``val``, else what is left
    of ``train``) is held out. Without splits, whatever was not drawn is held out. The draw is that
    of :func:`draw_shots`; ``None`` as `shots` takes all there are.

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
    size, fewer = (len(pool), "allow") if shots is None else (shots, fewer)
    drawn = draw_shots(pool.labels, size, seed, fewer=fewer, class_names=dataset.class_names)
    for split in ("test", "val"):
        if split in splits:
            return pool.subset(drawn), dataset.of_split(split)
    return pool.subset(drawn), pool.subset(rest(len(pool), drawn))


def _check_numbers(shots: int, seed: int) -> None:
    if shots < 1 or seed < 0:
        raise SettingError(f"shots is {shots} and seed {seed}; try shots 1 or more, seed 0 or more")


def _check_enough(name: str, count: int, shots: int, fewer: Fewer) -> None:
    if count == 0:
        raise DataError(f"the class {name!r} has no images to learn from; add some or remove it")
    if count < shots and fewer == "stop":
        raise DataError(
            f"the class {name!r} has {count} images to learn from, but {shots} are asked for; "
            f"ask for {count} at most, or allow fewer (fewer='allow')"
        )


# The protocol draws no more than this of the validation images of a class.
_MAX_VAL_SHOTS = 4


def coop_draw(
    labels: Mapping[str, Sequence[Hashable]], shots: int, seed: int
) -> dict[str, list[int]]:
    """Draw the shots that papers which follow the CoOp protocol learned from, as positions by split.

    One generator, Python's own, is seeded once. It draws ``shots`` images of each class of
    ``train`` without replacement, then up to four of each class of ``val``. Classes come in the
    order in which the split file first names them; a class that has fewer gives all it has. So the
    result depends on the order of the file, and draws of more shots do not contain those of fewer.

    With the protocol's split files this gives the released lists of seeds 1 to 3 and 1, 2, 4, 8 and
    16 shots. There are three exceptions. ImageNet has no split file: the draw depends on the order
    in which a file system lists a folder, so read a list of shots instead. Released lists for
    Food101 and FGVCAircraft by others were drawn from other splits.
    """
    _check_numbers(shots, seed)
    if not labels.get("train"):
        raise DataError("there are no images in the split train to draw from")
    chance = random.Random(seed)
    drawn = {"train": _of_each_class(labels["train"], shots, chance)}
    # The generator goes on where train left it, so val cannot be drawn alone or first.
    if "val" in labels:
        drawn["val"] = _of_each_class(labels["val"], min(shots, _MAX_VAL_SHOTS), chance)
    return drawn


def coop_few_shot(dataset: Dataset, shots: int | None, seed: int) -> tuple[Dataset, Dataset]:
    """Divide a benchmark as the protocol does: shots drawn from ``train``, all of ``test`` held out."""
    train = dataset.of_split("train")
    held_out = dataset.of_split("test")
    if shots is None:
        return train, held_out
    labels = [image.label for image in train.images]
    return train.subset(coop_draw({"train": labels}, shots, seed)["train"]), held_out


def _of_each_class(labels: Sequence[Hashable], shots: int, chance: random.Random) -> list[int]:
    members: dict[Hashable, list[int]] = {}
    for index, label in enumerate(labels):
        members.setdefault(label, []).append(index)
    return [
        index
        for indices in members.values()
        for index in (chance.sample(indices, shots) if len(indices) >= shots else indices)
    ]


HeldOut = Literal["test", "val", "rest"]


@dataclass(frozen=True)
class Task:
    """A dataset, divided into what to learn from and what to measure on."""

    source: str  # as it was typed
    learn: Dataset
    held_out: Dataset  # may be empty
    kind: HeldOut | None  # a split of the source, or what was not drawn

    @property
    def class_names(self) -> tuple[str, ...]:
        """All classes, in the order of the labels."""
        return self.learn.class_names

    @property
    def measured(self) -> Dataset:
        """What figures are about: the held-out images, else those that were learned from."""
        return self.learn if self.kind is None else self.held_out

    def classes_short_of(self, shots: int | None) -> dict[str, int]:
        """Name the classes with fewer images to learn from than asked, and how many they have."""
        counts = np.bincount(self.learn.labels, minlength=len(self.class_names))
        return {
            name: int(count)
            for name, count in zip(self.class_names, counts, strict=True)
            if shots is not None and count < shots
        }


def load_task(
    source: str | DataSource, settings: FitConfig, *, progress: Progress = no_progress
) -> Task:
    """Read images and divide them as settings ask; a benchmark as its protocol does."""
    parsed = source if isinstance(source, DataSource) else DataSource.parse(source)
    data = load_classes(parsed, settings.on_bad, progress=progress)
    return divide(parsed, data, settings.shots, settings.seed)


def load_classes(
    source: DataSource, on_bad: OnBad = "skip", *, progress: Progress = no_progress
) -> Dataset:
    """Read images of two classes or more."""
    data = source.load(on_bad=on_bad, progress=progress)
    if len(data.class_names) < 2:
        beside = [bad for bad in data.bad if bad.reason == NO_CLASS]
        above = (
            f"; {count(len(beside), 'file lies', 'files lie')} beside its folder: if they are images of a "
            "class, name the folder above"
        )
        raise DataError(
            f"{source} has one class only, {data.class_names[0]!r}; a classifier needs two or more"
            f"{above if beside else ''}"
        )
    return data


def divide(source: DataSource, data: Dataset, shots: int | None, seed: int) -> Task:
    """Draw what to learn from; a benchmark has its own way to."""
    if source.benchmark is not None:
        learn, held_out = coop_few_shot(data, shots, seed)
    else:
        learn, held_out = few_shot(data, shots, seed, fewer="allow")
    kind: HeldOut | None = None
    if len(held_out):
        kind = "test" if "test" in data.splits else "val" if "val" in data.splits else "rest"
    return Task(str(source), learn, held_out, kind)
