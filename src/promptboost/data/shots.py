"""Which pictures to learn from: k of every class, drawn so that more shots only add pictures."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.data.dataset import Dataset
from promptboost.errors import DataError, SettingError

__all__ = ["draw_shots", "few_shot", "rest"]

Fewer = Literal["stop", "allow"]


def draw_shots(
    labels: ArrayLike,
    shots: int,
    seed: int = 0,
    *,
    fewer: Fewer = "stop",
    class_names: Sequence[str] | None = None,
) -> NDArray[np.int64]:
    """Draw the same number of pictures of every class.

    Draws of one seed are nested: the pictures of 4 shots are among those of 8. A class is drawn
    independently of the others.

    Parameters
    ----------
    labels : array of int
        The class of each picture.
    shots : int
        How many of each class.
    seed : int, default=0
        Another seed draws other pictures.
    fewer : {"stop", "allow"}, default="stop"
        What to do about a class with fewer pictures than ``shots``: raise, or take all it has.
    class_names : sequence of str, optional
        All classes, for messages; one without any picture is then an error too.

    Returns
    -------
    array of int64
        Positions in ``labels``, ascending.

    Raises
    ------
    DataError
        If a class has too few pictures.

    Examples
    --------
    >>> labels = [0, 0, 0, 1, 1, 1]
    >>> draw_shots(labels, 1, seed=5)
    array([2, 5])
    >>> draw_shots(labels, 2, seed=5)
    array([0, 2, 3, 5])
    """
    if shots < 1 or seed < 0:
        raise SettingError(f"shots is {shots} and seed {seed}; try shots 1 or more, seed 0 or more")
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
    """Give the positions that were not drawn, ascending.

    Examples
    --------
    >>> rest(5, [0, 3])
    array([1, 2, 4])
    """
    return np.setdiff1d(np.arange(count, dtype=np.int64), np.asarray(drawn, dtype=np.int64))


def few_shot(
    dataset: Dataset, shots: int | None, seed: int = 0, *, fewer: Fewer = "stop"
) -> tuple[Dataset, Dataset]:
    """Divide a dataset into the pictures to learn from and those held out.

    With splits, shots are drawn from ``train`` and all of ``test`` (else ``val``, else what is left
    of ``train``) is held out. Without splits, whatever was not drawn is held out.

    Parameters
    ----------
    dataset : Dataset
        All pictures.
    shots : int or None
        How many of each class to learn from; None for all there are.
    seed : int, default=0
        See :func:`draw_shots`.
    fewer : {"stop", "allow"}, default="stop"
        See :func:`draw_shots`.

    Returns
    -------
    tuple of Dataset
        What to learn from, and what is held out (which may be empty).

    Examples
    --------
    >>> from PIL import Image
    >>> from promptboost.data import Picture
    >>> red = Image.new("RGB", (4, 4), "red")
    >>> data = Dataset.of(Picture(str(i), "ab"[i % 2], red) for i in range(6))
    >>> learn, held_out = few_shot(data, 2)
    >>> len(learn), len(held_out)
    (4, 2)
    """
    splits = dataset.splits
    pool = dataset.of_split("train") if splits else dataset
    size = len(pool) if shots is None else shots
    drawn = draw_shots(
        pool.labels,
        size,
        seed,
        fewer="allow" if shots is None else fewer,
        class_names=dataset.class_names,
    )
    for split in ("test", "val"):
        if split in splits:
            return pool.subset(drawn), dataset.of_split(split)
    return pool.subset(drawn), pool.subset(rest(len(pool), drawn))


def _check_enough(name: str, there: int, shots: int, fewer: Fewer) -> None:
    if there == 0:
        raise DataError(f"the class {name!r} has no pictures to learn from; add some or remove it")
    if there < shots and fewer == "stop":
        raise DataError(
            f"the class {name!r} has {there} pictures to learn from, but {shots} are asked for; "
            f"ask for {there} at most, or allow fewer (fewer='allow')"
        )
