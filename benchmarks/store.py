"""Time and memory to write, open and read back a large embedding store.

Run ``python benchmarks/store.py [ROWS] [DIM]``; each step runs in a process of its own, so that
its memory is its own.
"""

import hashlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.store import EmbeddingStore

STEPS = ["import only", "write all", "open, read 1 row", "read 10,000 rows", "read all"]
SIZES = {"open, read 1 row": 1, "read 10,000 rows": 10_000}


def make_keys(count: int) -> list[bytes]:
    return [hashlib.blake2b(b"%d" % i, digest_size=16).digest() for i in range(count)]


def peak_megabytes() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def refuse(positions: list[int]) -> NDArray[np.float32]:
    raise AssertionError(f"{len(positions)} rows were not found again")


def writer(dim: int) -> Callable[[list[int]], NDArray[np.float32]]:
    def compute(positions: list[int]) -> NDArray[np.float32]:
        # A row that says which it is, so that reading can check it.
        return np.repeat(np.array(positions, dtype=np.float32)[:, None], dim, axis=1)

    return compute


def run_step(step: str, root: str, rows: int, dim: int) -> None:
    store = EmbeddingStore(root, max_bytes=1 << 40)
    chosen = [] if step == STEPS[0] else list(range(rows))
    if step in SIZES:
        chosen = chosen[:: max(1, rows // SIZES[step])][: SIZES[step]]
    every_key = make_keys(rows) if chosen else []
    keys = [every_key[i] for i in chosen]
    del every_key
    before = peak_megabytes()
    start = time.perf_counter()
    if keys:
        compute = writer(dim) if step == "write all" else refuse
        got = store.get_or_compute("benchmark", keys, compute, dim=dim, batch=8192)
        assert (got[:, 0] == np.array(chosen, dtype=np.float32)).all()
    seconds = time.perf_counter() - start
    result = len(keys) * dim * 4 / 1e6
    print(f"{step:<18} {seconds:>9.3f} {before:>10.0f} {peak_megabytes():>8.0f} {result:>10.0f}")


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    dim = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    with tempfile.TemporaryDirectory() as root:
        print(f"{rows:,} rows of {dim} float32 numbers, written 8,192 at a time")
        print(f"{'step':<18} {'seconds':>9} {'MB before':>10} {'MB peak':>8} {'MB result':>10}")
        for step in STEPS:
            command = [sys.executable, __file__, "--step", step, root, str(rows), str(dim)]
            subprocess.run(command, check=True)
        print(EmbeddingStore(root).report())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        run_step(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
