"""Products of rows on the grid, compiled, and the threads they run in: what both composers use."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from promptboost.boosting.grid import GridRows

Integers = NDArray[np.int64]
Cosines = NDArray[np.int32]

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile on first call and keep the result on disk; run without the interpreter lock."""
    return _kept(function)


def compiled_any_order(function: Function) -> Function:
    """Compile a function whose floating-point sums may be taken in any order, in SIMD lanes."""
    return _kept(function, fastmath={"reassoc", "nsz", "nnan"})


def _kept(function: Function, *, fastmath: bool | set[str] = False) -> Function:
    try:
        return cast(Function, njit(cache=True, nogil=True, fastmath=fastmath)(function))
    except RuntimeError:  # neither this folder nor the user's own can be written to
        return cast(Function, njit(nogil=True, fastmath=fastmath)(function))


@compiled
def dot(a: GridRows, b: GridRows) -> int:
    """Return the product of two rows; int32 throughout, which compiles to multiply-adds of 16-bit lanes."""
    total = np.int32(0)
    for j in range(a.shape[0]):
        total = np.int32(total + np.int32(a[j]) * np.int32(b[j]))
    return int(total)


@compiled
def products(X: GridRows, T: GridRows, out: Cosines) -> None:
    """Fill ``out[p, i] = X[i] · T[p]``, a block of rows at a time so that it stays in cache."""
    for start in range(0, X.shape[0], 64):
        stop = min(start + 64, X.shape[0])
        for p in range(T.shape[0]):
            for i in range(start, stop):
                out[p, i] = dot(X[i], T[p])


@compiled
def column(X: GridRows, t: GridRows, out: Cosines) -> None:
    """Fill ``out[i] = X[i] · t``."""
    for i in range(X.shape[0]):
        out[i] = dot(X[i], t)


@compiled
def nearest(X: GridRows, T: GridRows, out: Cosines) -> None:
    """Fill ``out[i]`` with the class whose single prompt ``T[k]`` is nearest to row i (ties: lowest k)."""
    best = np.empty(64, np.int64)
    for start in range(0, X.shape[0], 64):
        stop = min(start + 64, X.shape[0])
        best[:] = -(2**40)
        for k in range(T.shape[0]):
            for i in range(start, stop):
                c = dot(X[i], T[k])
                if c > best[i - start]:
                    best[i - start] = c
                    out[i] = k


# Below this many multiplications a second thread costs more than it brings.
WORTH_A_THREAD = 20_000_000

_threads: list[ThreadPoolExecutor] = []


def in_threads(
    work: Callable[[slice], None], count: int, multiplications: int, chunk: int | None = None
) -> None:
    """Run ``work(slice)`` over ``range(count)``, in two threads if that is worth it."""
    parallel = multiplications >= WORTH_A_THREAD
    step = chunk or (-(-count // 2) if parallel else count)
    slices = [slice(start, min(start + step, count)) for start in range(0, count, step)]
    if not parallel:
        for part in slices:
            work(part)
        return
    if not _threads:
        _threads.append(ThreadPoolExecutor(2))
    for _ in _threads[0].map(work, slices):
        pass
