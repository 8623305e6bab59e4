"""Batches: images as they come, texts by length, so that little of a batch is padding."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows

__all__ = ["batches", "length_batches", "encode_by_length"]

Item = TypeVar("Item")

# Narrow enough to compute little padding, wide enough to fill batches.
_BUCKET = 8


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Take items `size` at a time, reading no further than needed.

    Examples
    --------
    >>> list(batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def length_batches(lengths: Sequence[int] | NDArray[np.int64], size: int) -> list[NDArray[np.intp]]:
    """Cut texts into batches of at most `size` texts of similar length, shortest first.

    Examples
    --------
    >>> [batch.tolist() for batch in length_batches([4, 70, 3, 5, 4], 3)]
    [[2, 0, 4], [3], [1]]
    """
    order = np.argsort(np.asarray(lengths), kind="stable")
    buckets = (np.asarray(lengths)[order] - 1) // _BUCKET
    edges = np.flatnonzero(np.diff(buckets)) + 1
    return [
        bucket[start : start + size]
        for bucket in np.split(order, edges)
        for start in range(0, len(bucket), size)
    ]


def encode_by_length(
    lengths: Sequence[int] | NDArray[np.int64],
    dim: int,
    size: int,
    encode: Callable[[NDArray[np.intp], int], NDArray[np.float32]],
) -> UnitRows:
    """Encode batches of similar length and put the rows back in the order of the texts.

    Examples
    --------
    >>> def encode(batch, length):
    ...     return np.stack([batch, np.full(len(batch), length)], axis=1)
    >>> encode_by_length([7, 2, 3], 2, 2, encode).tolist()
    [[0.0, 7.0], [1.0, 3.0], [2.0, 3.0]]
    """
    lengths = np.asarray(lengths)
    rows = np.zeros((len(lengths), dim), dtype=np.float32)
    for batch in length_batches(lengths, size):
        rows[batch] = encode(batch, int(lengths[batch].max()))
    return rows
