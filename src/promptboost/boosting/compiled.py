"""Compiled products of rows, and the threads that compute them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit, types
from numba.core.cgutils import ir  # type: ignore[attr-defined]
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.typing import NDArray

from promptboost.boosting.grid import GridRows
from promptboost.threads import thread_count

Integers = NDArray[np.int64]
Cosines = NDArray[np.int32]
Floats = NDArray[np.float32]

Float = TypeVar("Float", bound=np.floating[Any])
Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile on first call, with an on-disk cache; release the GIL."""
    return _cached(function)


def compiled_any_order(function: Function) -> Function:
    """Compile a function whose floating-point sums may be reordered, for SIMD."""
    return _cached(function, fastmath={"reassoc", "nsz", "nnan", "contract"})


def _cached(function: Function, *, fastmath: bool | set[str] = False) -> Function:
    try:
        return cast(Function, njit(cache=True, nogil=True, fastmath=fastmath)(function))
    except RuntimeError:  # no cache folder is writable
        return cast(Function, njit(nogil=True, fastmath=fastmath)(function))


@compiled
def dot(a: GridRows, b: GridRows) -> int:
    """Return the product of two rows; int32 compiles to multiply-adds of 16-bit lanes."""
    total = np.int32(0)
    for j in range(a.shape[0]):
        total = np.int32(total + np.int32(a[j]) * np.int32(b[j]))
    return int(total)


# Size of a tile of products: prompts, rows and dimensions.
_PROMPTS, _ROWS, _LANES = 4, 2, 16
# With fewer rows a product is bound by memory, which is faster to read in order.
_WORTH_TILES = 8
# Rows per block that stays in cache.
_BLOCK = 64


@intrinsic
def _fill_tile(
    context: Any, t: Any, t_step: Any, x: Any, x_step: Any, out: Any, step: Any, dim: Any
) -> Any:
    """Fill a tile of products, given addresses and strides of prompts t, rows x and ``out``.

    Each loaded number is used for several sums. LLVM IR is needed because the instruction that multiplies
    16 numbers and adds pairs is not generated from loops.
    """
    signature = types.void(t, t_step, x, x_step, out, step, dim)

    def generate(context: Any, build: Any, signature: Any, values: Any) -> Any:
        short, long, size = ir.IntType(16), ir.IntType(32), ir.IntType(64)
        lanes, sums = ir.VectorType(short, _LANES), ir.VectorType(long, _LANES // 2)
        t, t_step, x, x_step, out, step, dim = values
        pairs, across = (
            build.module.declare_intrinsic(name, (), ir.FunctionType(result, args))
            for name, result, args in (
                ("llvm.x86.avx2.pmadd.wd", sums, [lanes, lanes]),
                ("llvm.vector.reduce.add.v8i32", long, [sums]),
            )
        )
        entry, loop = build.block, build.append_basic_block()
        build.branch(loop)
        build.position_at_end(loop)
        offset = build.phi(size)
        totals = [[build.phi(sums) for _ in range(_ROWS)] for _ in range(_PROMPTS)]

        def load(start: Any, step: Any, number: int) -> Any:
            index = build.add(build.mul(size(number), step), offset)
            address = build.add(start, build.mul(index, size(2)))
            return build.load(build.inttoptr(address, lanes.as_pointer()), align=2)

        loaded = [load(x, x_step, i) for i in range(_ROWS)]
        following = build.add(offset, size(_LANES))
        new = []
        for p in range(_PROMPTS):
            prompt = load(t, t_step, p)
            new.append([build.call(pairs, [prompt, row]) for row in loaded])
            new[p] = [build.add(*both) for both in zip(totals[p], new[p], strict=True)]
        for variable, start, value in (
            (offset, size(0), following),
            *(
                (totals[p][i], ir.Constant(sums, None), new[p][i])
                for p in range(_PROMPTS)
                for i in range(_ROWS)
            ),
        ):
            variable.add_incoming(start, entry)
            variable.add_incoming(value, loop)
        end = build.append_basic_block()
        build.cbranch(build.icmp_signed("<", following, dim), loop, end)
        build.position_at_end(end)
        for p in range(_PROMPTS):
            for i in range(_ROWS):
                index = build.add(build.mul(size(p), step), size(i))
                address = build.add(out, build.mul(index, size(4)))
                build.store(
                    build.call(across, [new[p][i]]), build.inttoptr(address, long.as_pointer())
                )
        return context.get_dummy_value()

    return signature, generate


@compiled
def _fill_row(X: GridRows, T: GridRows, out: Cosines, first: int, p: int, rows: slice) -> None:
    """Fill ``out[p, i] = X[i] · T[p]`` for a range of rows i."""
    t = T[p, first : first + X.shape[1]]
    for i in range(rows.start, rows.stop):
        out[p, i] = dot(X[i], t)


@compiled
def _fill_plainly(X: GridRows, T: GridRows, out: Cosines, first: int) -> None:
    """Fill ``out[p, i] = X[i] · T[p]`` without tiles."""
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
        # The first one or two rows are done alone, to load prompts into cache in memory order.
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
    """Return whether the target processor supports tiles (AVX2)."""
    return "+avx2" in cpu_target.target_context.codegen().magic_tuple()[2]


def products(X: GridRows, T: GridRows, out: Cosines, first: int = 0) -> None:
    """Fill ``out[p, i] = X[i] · T[p]``, using the columns of T from ``first`` on."""
    packed = X.strides[1] == T.strides[1] == 2 and out.strides[1] == 4
    if packed and X.shape[1] % _LANES == 0 and _has_tiles():
        _fill_tiles(X, T, out, first)
    else:
        _fill_plainly(X, T, out, first)


@compiled
def own_block(t: GridRows, X: GridRows, i: int) -> GridRows:
    """Return the columns of a prompt that belong to the encoder of row i of stacked rows."""
    dim = X.shape[1]
    if t.shape[0] == dim:
        return t
    number = i // (X.shape[0] // (t.shape[0] // dim))
    return t[number * dim : (number + 1) * dim]


@compiled
def some_cosines(X: GridRows, t: GridRows, start: int, stop: int, out: Cosines) -> None:
    """Fill ``out[i] = X[i] · t`` for a range of rows."""
    for i in range(start, stop):
        out[i] = dot(X[i], own_block(t, X, i))


@compiled
def column(X: GridRows, t: GridRows, out: Cosines) -> None:
    """Fill ``out[i] = X[i] · t``."""
    some_cosines(X, t, 0, X.shape[0], out)


# With fewer multiplications, threads do not pay off.
WORTH_A_THREAD = 20_000_000


_executor = lru_cache(maxsize=1)(ThreadPoolExecutor)
# Whether the current thread is one of its workers.
_local = threading.local()


def in_threads(
    work: Callable[[slice], None], count: int, multiplications: int, chunk: int | None = None
) -> None:
    """Run ``work(slice)`` over ``range(count)``, in several threads if there is enough work.

    The calling thread takes part. Threads that have not started when all chunks are taken are cancelled,
    so busy cores cause no wait. Nested calls run in the current thread.
    """
    alone = multiplications < WORTH_A_THREAD or getattr(_local, "busy", False)
    number = 1 if alone else thread_count()
    step = max(1, chunk or -(-count // number))
    slices = [slice(start, min(start + step, count)) for start in range(0, count, step)]
    if number == 1 or len(slices) == 1:
        for chunk_slice in slices:
            work(chunk_slice)
        return
    remaining = iter(slices)

    def run() -> None:
        _local.busy = True
        try:
            for chunk_slice in remaining:
                work(chunk_slice)
        finally:
            _local.busy = False

    executor = _executor(number - 1)
    futures = [executor.submit(run) for _ in range(min(number, len(slices)) - 1)]
    try:
        run()
    finally:
        for _ in remaining:  # after an error, stop all threads
            pass
        started = [future for future in futures if not future.cancel()]
        wait(started)
    for future in started:
        future.result()


@compiled_any_order
def _fill_block(
    A: NDArray[Float], X: NDArray[Float], start: int, stop: int, out: NDArray[Float]
) -> None:
    """Fill ``out[k, i] = A[k] · X[i]`` for a range of rows i, eight sums at a time to share loads."""
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
    """Return ``A @ X.T``.

    One thread is as fast as BLAS. Several BLAS threads wait for each other by spinning, which makes small
    products ten times slower when other processes use the cores.
    """
    out = np.empty((len(A), len(X)), dtype=A.dtype)

    def fill(rows: slice) -> None:
        _fill(A, X, rows.start, rows.stop, out)

    # About eight chunks of whole blocks, so that results do not depend on the number of threads.
    blocks = -(-len(X) // (8 * _BLOCK))
    in_threads(fill, len(X), A.size * len(X), chunk=blocks * _BLOCK)
    return out
