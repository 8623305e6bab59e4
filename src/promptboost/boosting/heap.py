"""A heap of candidates, compiled: the one with the largest bound on top, the rest hardly sorted."""

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import Integers, compiled


@compiled
def comes_before(bounds: NDArray[np.float64], a: int, b: int) -> bool:
    """Order by the largest bound, then by the lowest index."""
    return bool(bounds[a] > bounds[b] or (bounds[a] == bounds[b] and a < b))


@compiled
def sift_down(heap: Integers, size: int, bounds: NDArray[np.float64], start: int) -> None:
    """Restore the order of the heap below ``start``."""
    if start >= size:
        return
    item = heap[start]
    position = start
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        if child + 1 < size and comes_before(bounds, heap[child + 1], heap[child]):
            child += 1
        if not comes_before(bounds, heap[child], item):
            break
        heap[position] = heap[child]
        position = child
    heap[position] = item


@compiled
def make_heap(bounds: NDArray[np.float64], heap: Integers) -> int:
    """Put all candidates with a positive bound on the heap; return its size."""
    size = 0
    for p in range(bounds.shape[0]):
        if bounds[p] > 0.0:
            heap[size] = p
            size += 1
    for start in range(size // 2 - 1, -1, -1):
        sift_down(heap, size, bounds, start)
    return size


@compiled
def second_bound(heap: Integers, size: int, bounds: NDArray[np.float64]) -> float:
    """Return the bound of the candidate that comes after the first."""
    found = 0.0
    for place in range(1, min(size, 3)):
        found = max(found, bounds[heap[place]])
    return found
