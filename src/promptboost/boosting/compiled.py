"""Products of rows, compiled, and the threads they run in: what both composers use."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit, types
from numba.core.cgutils import ir  # type: ignore[attr-defined]
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.typing import NDArray

from promptboost.boosting.grid import COSINE_UNIT, GridRows
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


# A tile of products is computed at a time: so many prompts, so many rows, so many dimensions.
_PROMPTS, _ROWS, _LANES = 4, 2, 16
# With fewer rows a product waits for memory, which is read faster in order.
_WORTH_TILES = 8
# Rows that are multiplied while they are in cache.
_BLOCK = 64


@intrinsic
def _fill_tile(
    context: Any, t: Any, t_step: Any, x: Any, x_step: Any, out: Any, step: Any, dim: Any
) -> Any:
    """Fill a tile of products of rows at addresses t and x, so many numbers apart, at address ``out``.

    Each number that is loaded serves several sums. Compiled from loops, int16 would lose the
    instruction that multiplies 16 numbers and adds up pairs, so it is named here.
    """
    signature = types.void(t, t_step, x, x_step, out, step, dim)

    def generate(context: Any, build: Any, signature: Any, values: Any) -> Any:
        short, long, size = ir.IntType(16), ir.IntType(32), ir.IntType(64)
        lanes, sums = ir.VectorType(short, _LANES), ir.VectorType(long, _LANES // 2)
        t, t_step, x, x_step, out, step, dim = values
        pairs, across = (
            build.module.declare_intrinsic(name, (), ir.FunctionType(result, given))
            for name, result, given in (
                ("llvm.x86.avx2.pmadd.wd", sums, [lanes, lanes]),
                ("llvm.vector.reduce.add.v8i32", long, [sums]),
            )
        )
        before, loop = build.block, build.append_basic_block()
        build.branch(loop)
        build.position_at_end(loop)
        at = build.phi(size)
        totals = [[build.phi(sums) for _ in range(_ROWS)] for _ in range(_PROMPTS)]

        def load(start: Any, step: Any, number: int) -> Any:
            place = build.add(build.mul(size(number), step), at)
            address = build.add(start, build.mul(place, size(2)))
            return build.load(build.inttoptr(address, lanes.as_pointer()), align=2)

        loaded = [load(x, x_step, i) for i in range(_ROWS)]
        later = build.add(at, size(_LANES))
        new = []
        for p in range(_PROMPTS):
            prompt = load(t, t_step, p)
            new.append([build.call(pairs, [prompt, row]) for row in loaded])
            new[p] = [build.add(*both) for both in zip(totals[p], new[p], strict=True)]
        for variable, start, value in (
            (at, size(0), later),
            *(
                (totals[p][i], ir.Constant(sums, None), new[p][i])
                for p in range(_PROMPTS)
                for i in range(_ROWS)
            ),
        ):
            variable.add_incoming(start, before)
            variable.add_incoming(value, loop)
        after = build.append_basic_block()
        build.cbranch(build.icmp_signed("<", later, dim), loop, after)
        build.position_at_end(after)
        for p in range(_PROMPTS):
            for i in range(_ROWS):
                place = build.add(build.mul(size(p), step), size(i))
                address = build.add(out, build.mul(place, size(4)))
                build.store(
                    build.call(across, [new[p][i]]), build.inttoptr(address, long.as_pointer())
                )
        return context.get_dummy_value()

    return signature, generate


@compiled
def _fill_row(X: GridRows, T: GridRows, out: Cosines, first: int, p: int, part: slice) -> None:
    """Fill ``out[p, i] = X[i] · T[p]`` for some rows i."""
    t = T[p, first : first + X.shape[1]]
    for i in range(part.start, part.stop):
        out[p, i] = dot(X[i], t)


@compiled
def _fill_plainly(X: GridRows, T: GridRows, out: Cosines, first: int) -> None:
    """Fill ``out[p, i] = X[i] · T[p]``, one after the other."""
    for start in range(0, X.shape[0], _BLOCK):
        block = slice(start, min(start + _BLOCK, X.shape[0]))
        for p in range(T.shape[0]):
            _fill_row(X, T, out, first, p, block)


@compiled
def _fill_tiles(X: GridRows, T: GridRows, out: Cosines, first: int) -> None:
    """Fill ``out[p, i] = X[i] · T[p]``, in tiles."""
    t_step, x_step, step = T.strides[0] // 2, X.strides[0] // 2, out.strides[0] // 4
    t, x, o = T.ctypes.data + 2 * first, X.ctypes.data, out.ctypes.data
    for start in range(0, X.shape[0], _BLOCK):
        stop = min(start + _BLOCK, X.shape[0])
        # A row or two come first alone: they bring prompts into cache in the order of memory.
        head = start + _ROWS - (stop - start) % _ROWS if stop - start >= _WORTH_TILES else stop
        for p in range(0, T.shape[0], _PROMPTS):
            whole = p + _PROMPTS <= T.shape[0]
            for q in range(p, min(p + _PROMPTS, T.shape[0])):
                _fill_row(X, T, out, first, q, slice(start, head if whole else stop))
            for i in range(head, stop if whole else head, _ROWS):
                _fill_tile(  # type: ignore[call-arg]
                    t + 2 * p * t_step, t_step, x + 2 * i * x_step, x_step,
                    o + 4 * (p * step + i), step, X.shape[1],
                )  # fmt: skip


@cache
def _has_tiles() -> bool:
    """Return whether the processor that is compiled for has the instruction of tiles."""
    return "+avx2" in cpu_target.target_context.codegen().magic_tuple()[2]


def products(X: GridRows, T: GridRows, out: Cosines, first: int = 0) -> None:
    """Fill ``out[p, i] = X[i] · T[p]``, a block of rows at a time so that it stays in cache.

    Where the rows of T are those of several encoders, it is their columns from ``first`` on.
    """
    packed = X.strides[1] == T.strides[1] == 2 and out.strides[1] == 4
    if packed and X.shape[1] % _LANES == 0 and _has_tiles():
        _fill_tiles(X, T, out, first)
    else:
        _fill_plainly(X, T, out, first)


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


class _Threads:
    """The threads of this process that wait for work, beside the one that has it."""

    def __init__(self) -> None:
        self.count = 0
        self.workers: ThreadPoolExecutor | None = None
        self.lock = threading.Lock()
        self.here = threading.local()

    def helpers(self, number: int) -> ThreadPoolExecutor:
        """Return so many threads."""
        with self.lock:
            if self.workers is None or self.count != number:
                self.workers = ThreadPoolExecutor(number)
                self.count = number
            return self.workers


_threads = _Threads()


def in_threads(
    work: Callable[[slice], None], count: int, multiplications: int, chunk: int | None = None
) -> None:
    """Run ``work(slice)`` over ``range(count)``, in several threads if that is worth it.

    Each thread takes the next part when it is done with one; the caller's is one of them. One that has not
    begun when nothing is left is not waited for, as where other processes hold the cores. Work that is
    already in one of the threads is done there.
    """
    alone = multiplications < WORTH_A_THREAD or getattr(_threads.here, "busy", False)
    number = 1 if alone else thread_count()
    step = max(1, chunk or -(-count // number))
    slices = [slice(start, min(start + step, count)) for start in range(0, count, step)]
    if number == 1 or len(slices) == 1:
        for part in slices:
            work(part)
        return
    left = iter(slices)

    def take() -> None:
        _threads.here.busy = True
        try:
            for part in left:
                work(part)
        finally:
            _threads.here.busy = False

    helpers = _threads.helpers(number - 1)
    asked = [helpers.submit(take) for _ in range(min(number, len(slices)) - 1)]
    try:
        take()
    finally:
        for _ in left:  # after an error nobody should go on
            pass
        begun = [helper for helper in asked if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()


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
