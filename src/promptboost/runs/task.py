"""The pictures of a run: which to learn from, which are held out."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from promptboost.data import Dataset, few_shot, load_data
from promptboost.data.benchmarks import benchmark_source, coop_few_shot
from promptboost.errors import DataError
from promptboost.runs.settings import FitSettings, OnBad

__all__ = ["HeldOut", "Task", "divide", "load_classes", "load_task", "picture_ids"]

HeldOut = Literal["test", "val", "rest"]


@dataclass(frozen=True)
class Task:
    """A dataset, divided.

    Attributes
    ----------
    source : str
        Where the pictures are, as it was typed.
    learn : Dataset
        What to learn from.
    held_out : Dataset
        What to measure on; may be empty.
    kind : {"test", "val", "rest"} or None
        What is held out: a split of the source, or what was not drawn; None if it is empty.
    """

    source: str
    learn: Dataset
    held_out: Dataset
    kind: HeldOut | None

    @property
    def class_names(self) -> tuple[str, ...]:
        """All classes, in the order of the labels."""
        return self.learn.class_names

    @property
    def measured(self) -> Dataset:
        """What figures are about: the held-out pictures, else those that were learnt from."""
        return self.learn if self.kind is None else self.held_out

    def classes_short_of(self, shots: int | None) -> dict[str, int]:
        """Name the classes with fewer pictures to learn from than asked, and how many they have."""
        counts = np.bincount(self.learn.labels, minlength=len(self.class_names))
        return {
            name: int(count)
            for name, count in zip(self.class_names, counts, strict=True)
            if shots is not None and count < shots
        }


def load_task(source: str, settings: FitSettings, *, progress: bool = True) -> Task:
    """Read pictures and divide them as settings ask; a benchmark as its protocol does.

    Raises
    ------
    DataError
        If the pictures cannot be used, or there are fewer than two classes.
    """
    data = load_classes(source, settings.on_bad, progress=progress)
    return divide(source, data, settings.shots, settings.seed)


def load_classes(source: str, on_bad: OnBad = "skip", *, progress: bool = True) -> Dataset:
    """Read pictures of two classes or more."""
    data = load_data(source, on_bad=on_bad, progress=progress)
    if len(data.class_names) < 2:
        raise DataError(
            f"{source} has one class only, {data.class_names[0]!r}; a classifier needs two or more"
        )
    return data


def divide(source: str, data: Dataset, shots: int | None, seed: int) -> Task:
    """Draw what to learn from; a benchmark has its own way to."""
    if benchmark_source(source) is not None:
        learn, held_out = coop_few_shot(data, shots, seed)
    else:
        learn, held_out = few_shot(data, shots, seed, fewer="allow")
    kind: HeldOut | None = None
    if len(held_out):
        kind = "test" if "test" in data.splits else "val" if "val" in data.splits else "rest"
    return Task(source, learn, held_out, kind)


def picture_ids(data: Dataset) -> list[str]:
    """Give the pictures' names as text that any file can hold.

    The names of files are bytes; those that are not UTF-8 are written with escapes.
    """
    return [
        picture.id.encode("utf-8", "backslashreplace").decode("utf-8") for picture in data.pictures
    ]
