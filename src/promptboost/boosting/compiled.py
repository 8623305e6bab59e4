"""Products of rows, compiled, and the threads they run in: what both composers use."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from promptboost.boosting.grid import COSINE_UNIT, GridRows
from promptboost.threads import set_threads as set_threads  # it was here first
from promptboost.threads import thread_count

Integers = NDArray[np.int64]
Cosines = NDArray[np.int32]
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]

Float = TypeVar("Float", bound=np.floating[Any])
Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile on first call and keep the result on disk; run without the interpreter lock."""
    return _kept(function)


def compiled_any_order(function: Function) -> Function:
    """Compile a function whose floating-point sums may be taken in any order, in SIMD lanes."""
    return _kept(function, fastmath={"reassoc", "nsz", "nnan", "contract"})


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


# Below this many multiplications a second thread costs more than it brings.
WORTH_A_THREAD = 20_000_000
# Rows that are multiplied while they are in cache.
_BLOCK = 64


class _Threads:
    """The threads of this process that wait for work."""

    def __init__(self) -> None:
        self.count = 0
        self.workers: ThreadPoolExecutor | None = None
        self.lock = threading.Lock()
        self.here = threading.local()


_threads = _Threads()


def in_threads(
    work: Callable[[slice], None], count: int, multiplications: int, chunk: int | None = None
) -> None:
    """Run ``work(slice)`` over ``range(count)``, in several threads if that is worth it.

    Work that is already in one of the threads is done there.
    """
    alone = multiplications < WORTH_A_THREAD or getattr(_threads.here, "busy", False)
    number = 1 if alone else thread_count()
    step = max(1, chunk or -(-count // number))
    slices = [slice(start, min(start + step, count)) for start in range(0, count, step)]
    if number == 1 or len(slices) == 1:
        for part in slices:
            work(part)
        return
    with _threads.lock:
        if _threads.workers is None or _threads.count != number:
            _threads.workers = ThreadPoolExecutor(number, initializer=_mark_busy)
            _threads.count = number
        workers = _threads.workers
    for _ in workers.map(work, slices):
        pass


def _mark_busy() -> None:
    _threads.here.busy = True


@compiled_any_order
def _fill_block(
    A: NDArray[Float], X: NDArray[Float], start: int, stop: int, out: NDArray[Float]
) -> None:
    """Fill ``out[k, i] = A[k] · X[i]`` for some rows i: eight sums at a time, so that loads are shared."""
    m, dim = A.shape
    zero = A.dtype.type(0.0)
    for k in range(0, m - m % 4, 4):
        a, b, c, d = A[k], A[k + 1], A[k + 2], A[k + 3]
        for i in range(start, stop - (stop - start) % 2, 2):
            x, z = X[i], X[i + 1]
            ax = az = bx = bz = cx = cz = dx = dz = zero
            for j in range(dim):
                ax += a[j] * x[j]
                az += a[j] * z[j]
                bx += b[j] * x[j]
                bz += b[j] * z[j]
                cx += c[j] * x[j]
                cz += c[j] * z[j]
                dx += d[j] * x[j]
                dz += d[j] * z[j]
            out[k, i], out[k + 1, i], out[k + 2, i], out[k + 3, i] = ax, bx, cx, dx
            out[k, i + 1], out[k + 1, i + 1], out[k + 2, i + 1], out[k + 3, i + 1] = az, bz, cz, dz
    for k in range(m):
        first = start if k >= m - m % 4 else stop - (stop - start) % 2
        for i in range(first, stop):
            total = zero
            for j in range(dim):
                total += A[k, j] * X[i, j]
            out[k, i] = total


@compiled
def _fill(A: NDArray[Float], X: NDArray[Float], start: int, stop: int, out: NDArray[Float]) -> None:
    for first in range(start, stop, _BLOCK):
        _fill_block(A, X, first, min(first + _BLOCK, stop), out)


def multiply(A: NDArray[Float], X: NDArray[Float]) -> NDArray[Float]:
    """Return ``A @ X.T``, in our own threads.

    As fast as one thread of BLAS. More threads of BLAS wait for each other by spinning: where other
    processes hold the cores, small products took ten times as long.
    """
    out = np.empty((len(A), len(X)), dtype=A.dtype)

    def fill(rows: slice) -> None:
        _fill(A, X, rows.start, rows.stop, out)

    # Eight parts or so of whole blocks, whatever the number of threads: no sum depends on it.
    blocks = -(-len(X) // (8 * _BLOCK))
    in_threads(fill, len(X), A.size * len(X), chunk=blocks * _BLOCK)
    return out


@compiled
def is_nearest(X: GridRows, T: GridRows, i: int, k: int) -> bool:
    """Return whether of all prompts ``T`` it is number k that is nearest to row i (ties: the lowest)."""
    mine = dot(X[i], T[k])
    for other in range(T.shape[0]):
        c = dot(X[i], T[other])
        if c > mine or (c == mine and other < k):
            return False
    return True


@compiled
def fill_hits(X: GridRows, T: GridRows, y: Integers, out: Flags) -> None:
    """Fill ``out[t, i]`` with whether of the prompts ``T[t]`` that of its class is the nearest to row i.

    Most rows are decided by products in single precision, which are faster. Those that differ by no more
    than their rounding are made again as whole numbers.
    """
    number, K, dim = T.shape
    prompts = T.astype(np.float32).reshape(number * K, dim)
    rows, best = np.empty((_BLOCK, dim), np.float32), np.empty(_BLOCK, np.float32)
    cosines = np.empty((number * K, _BLOCK), np.float32)
    # A sum of D products is off by D roundings at most, each of 2**-24 of all; two sums are compared.
    doubt = np.float32(2 * (dim + 2) * 2.0**-24 * COSINE_UNIT)
    for start in range(0, X.shape[0], _BLOCK):
        count = min(_BLOCK, X.shape[0] - start)
        for j in range(count):
            for d in range(dim):
                rows[j, d] = np.float32(X[start + j, d])
        _fill_block(prompts, rows, 0, count, cosines)
        for t in range(number):
            some = cosines[t * K : (t + 1) * K]
            best[:] = -np.inf
            for k in range(K):
                for j in range(count):
                    others = some[k, j] if y[start + j] != k else -np.inf
                    best[j] = max(best[j], others)
            for j in range(count):
                ahead = some[y[start + j], j] - best[j]
                if abs(ahead) > doubt:
                    out[t, start + j] = ahead > 0
                else:
                    out[t, start + j] = is_nearest(X, T[t], start + j, y[start + j])
