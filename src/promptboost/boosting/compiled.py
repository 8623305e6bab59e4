"""Products of rows, compiled or by BLAS, and the threads they run in: what both composers use."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from promptboost.boosting.grid import GridRows
from promptboost.errors import SettingError

Integers = NDArray[np.int64]
Cosines = NDArray[np.int32]
Floats = NDArray[np.float32]

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile on first call and keep the result on disk; run without the interpreter lock."""
    return cast(Function, njit(cache=True, nogil=True)(function))


def compiled_any_order(function: Function) -> Function:
    """Compile a function whose floating-point sums may be taken in any order, in SIMD lanes."""
    relaxed = {"reassoc", "nsz", "nnan"}
    return cast(Function, njit(cache=True, nogil=True, fastmath=relaxed)(function))


@compiled
def dot(a: GridRows, b: GridRows) -> int:
    """Return the product of two rows; int32 throughout, which compiles to multiply-adds of 16-bit lanes."""
    total = np.int32(0)
    for j in range(a.shape[0]):
        total = np.int32(total + np.int32(a[j]) * np.int32(b[j]))
    return int(total)


@compiled
def products(X: GridRows, T: GridRows, out: Cosines, first: int = 0) -> None:
    """Fill ``out[p, i] = X[i] · T[p]``, a block of rows at a time so that it stays in cache.

    Where the rows of T are those of several encoders, it is their columns from ``first`` on.
    """
    last = first + X.shape[1]
    for start in range(0, X.shape[0], 64):
        stop = min(start + 64, X.shape[0])
        for p in range(T.shape[0]):
            t = T[p, first:last]
            for i in range(start, stop):
                out[p, i] = dot(X[i], t)


@compiled
def own_block(t: GridRows, X: GridRows, i: int) -> GridRows:
    """Return the columns of a prompt that belong to row i: those of its encoder.

    Rows are stacked encoder by encoder: see :func:`~promptboost.boosting.grid.stacked`.
    """
    dim = X.shape[1]
    if t.shape[0] == dim:
        return t
    number = i // (X.shape[0] // (t.shape[0] // dim))
    return t[number * dim : (number + 1) * dim]


@compiled
def some_cosines(X: GridRows, t: GridRows, start: int, stop: int, out: Cosines) -> None:
    """Fill ``out[i] = X[i] · t`` for some rows."""
    for i in range(start, stop):
        out[i] = dot(X[i], own_block(t, X, i))


@compiled
def column(X: GridRows, t: GridRows, out: Cosines) -> None:
    """Fill ``out[i] = X[i] · t``."""
    some_cosines(X, t, 0, X.shape[0], out)


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
# Rows that one thread multiplies at a time: not a share of all, so that no sum depends on their number.
_ROWS_AT_ONCE = 4096


class _Threads:
    """The threads of this process: how many, those that wait for work, and who has BLAS to itself."""

    def __init__(self) -> None:
        self.count = max(1, min(2, len(os.sched_getaffinity(0)))) if _CAN_ASK else 2
        self.workers: ThreadPoolExecutor | None = None
        self.lock = threading.Lock()
        self.blas: Any = None  # a ThreadpoolController, of a library without types
        self.users = 0
        self.limit: Any = None


_CAN_ASK = hasattr(os, "sched_getaffinity")
_threads = _Threads()


def set_threads(count: int) -> None:
    """Set how many threads large products run in. No result depends on it.

    Examples
    --------
    >>> set_threads(2)
    """
    if count < 1:
        raise SettingError(f"threads must be at least 1, got {count}")
    with _threads.lock:
        _threads.count, _threads.workers = count, None


def in_threads(
    work: Callable[[slice], None], count: int, multiplications: int, chunk: int | None = None
) -> None:
    """Run ``work(slice)`` over ``range(count)``, in several threads if that is worth it."""
    number = _threads.count if multiplications >= WORTH_A_THREAD else 1
    step = max(1, chunk or -(-count // number))
    slices = [slice(start, min(start + step, count)) for start in range(0, count, step)]
    if number == 1 or len(slices) == 1:
        for part in slices:
            work(part)
        return
    with _threads.lock:
        if _threads.workers is None:
            _threads.workers = ThreadPoolExecutor(number)
        workers = _threads.workers
    for _ in workers.map(work, slices):
        pass


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread: small products are no faster in more, and its threads wait by spinning.

    Where other processes hold the cores, a thread that spins waits for one that does not run, and a
    product takes ten times as long. :func:`multiply` splits large ones among threads that sleep.
    """
    with _threads.lock:
        if _threads.blas is None:
            from threadpoolctl import ThreadpoolController

            _threads.blas = ThreadpoolController()
        if _threads.users == 0:
            _threads.limit = _threads.blas.limit(limits=1, user_api="blas")
        _threads.users += 1
    try:
        yield
    finally:
        with _threads.lock:
            _threads.users -= 1
            if _threads.users == 0:
                _threads.limit.restore_original_limits()


def multiply(A: Floats, X: Floats) -> Floats:
    """Return ``A @ X.T``, a block of rows of X at a time, in threads."""
    out = np.empty((len(A), len(X)), dtype=np.float32)

    def fill(rows: slice) -> None:
        np.matmul(A, X[rows].T, out=out[:, rows])

    in_threads(fill, len(X), A.size * len(X), chunk=_ROWS_AT_ONCE)
    return out
