"""The embedding store beside plain SQLite (WAL, one row a vector) and LMDB.

Run ``python -m benchmarks.store [ROWS] [DIM]``. Every step runs in processes of its own: write all
rows in batches of 256, read all, read 1,000 at random, two writers at once, and a writer killed by
SIGKILL after which everything it had reported as stored must be there.
"""

import hashlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.store import EmbeddingStore

Rows = NDArray[np.float32]
BATCH = 256


class Ours:
    """The store of this package."""

    name = "promptboost"

    def __init__(self, root: Path, dim: int) -> None:
        self.store, self.dim = EmbeddingStore(root, max_bytes=1 << 40), dim

    def write(self, keys: list[bytes], rows: Rows, done: Callable[[int], None]) -> None:
        self.store.get_or_compute(
            "benchmark", keys, lambda p: rows[p], dim=self.dim, batch=BATCH, advance=done
        )

    def read(self, keys: list[bytes]) -> Rows:
        def refuse(positions: list[int]) -> Rows:
            raise AssertionError(f"{len(positions)} rows were not found again")

        return self.store.get_or_compute("benchmark", keys, refuse, dim=self.dim)

    def check(self) -> bool:
        with closing(sqlite3.connect(next(self.store.root.glob("*.sqlite")))) as connection:
            answer: tuple[str] = connection.execute("PRAGMA integrity_check").fetchone()
        return answer[0] == "ok"


class PlainSqlite:
    """One row for each vector, nothing checked."""

    name = "SQLite, WAL"

    def __init__(self, root: Path, dim: int) -> None:
        self.database, self.dim = sqlite3.connect(root / "rows.sqlite", timeout=60), dim
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.execute("CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, data BLOB)")

    def write(self, keys: list[bytes], rows: Rows, done: Callable[[int], None]) -> None:
        for start in range(0, len(keys), BATCH):
            part = slice(start, start + BATCH)
            pairs = zip(keys[part], (row.tobytes() for row in rows[part]), strict=True)
            with self.database:
                self.database.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?)", pairs)
            done(len(keys[part]))

    def read(self, keys: list[bytes]) -> Rows:
        query = "SELECT data FROM rows WHERE key = ?"
        found = [self.database.execute(query, (key,)).fetchone()[0] for key in keys]
        return np.frombuffer(b"".join(found), dtype=np.float32).reshape(-1, self.dim)

    def check(self) -> bool:
        answer: tuple[str] = self.database.execute("PRAGMA integrity_check").fetchone()
        return answer[0] == "ok"


class Lmdb:
    """One pair for each vector, nothing checked."""

    name = "LMDB"

    def __init__(self, root: Path, dim: int) -> None:
        import lmdb

        self.database, self.dim = lmdb.open(str(root), map_size=1 << 34), dim

    def write(self, keys: list[bytes], rows: Rows, done: Callable[[int], None]) -> None:
        for start in range(0, len(keys), BATCH):
            with self.database.begin(write=True) as transaction:
                for key, row in zip(
                    keys[start : start + BATCH], rows[start : start + BATCH], strict=True
                ):
                    transaction.put(key, row.tobytes(), overwrite=False)
            done(len(keys[start : start + BATCH]))

    def read(self, keys: list[bytes]) -> Rows:
        with self.database.begin() as transaction:
            found = b"".join(bytes(transaction.get(key) or b"") for key in keys)
        return np.frombuffer(found, dtype=np.float32).reshape(-1, self.dim)

    def check(self) -> bool:
        return True


STORES: tuple[type[Ours | PlainSqlite | Lmdb], ...] = (Ours, PlainSqlite, Lmdb)


def contents(rows: int, dim: int) -> tuple[list[bytes], Rows]:
    keys = [hashlib.blake2b(b"%d" % i, digest_size=16).digest() for i in range(rows)]
    # A row that tells which it is, so that reading can check it.
    return keys, np.repeat(np.arange(rows, dtype=np.float32)[:, None], dim, axis=1)


def run_step(step: str, number: int, root: Path, rows: int, dim: int) -> None:
    keys, vectors = contents(rows, dim)
    wanted = list(range(rows))
    if step == "random":
        wanted = random.Random(0).sample(wanted, min(1000, rows))
    start = time.perf_counter()
    store = STORES[number](root, dim)
    if step in ("write", "report"):
        tell = (
            (lambda count: print(count, flush=True)) if step == "report" else (lambda count: None)
        )
        store.write(keys, vectors, tell)
    else:
        found = store.read([keys[i] for i in wanted])
        assert (found == vectors[wanted]).all(), "other rows than those written"
    seconds = time.perf_counter() - start
    if step == "random":
        assert store.check()
    print(f"{seconds:.3f}")


def start_step(step: str, number: int, root: Path, rows: int, dim: int) -> subprocess.Popen[str]:
    arguments = [step, number, root, rows, dim]
    command = [sys.executable, "-m", "benchmarks.store", "--step", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def seconds_of(step: str, number: int, root: Path, rows: int, dim: int) -> float:
    process = start_step(step, number, root, rows, dim)
    output = process.communicate()[0]
    assert process.returncode == 0, (step, number)
    return float(output)


def two_writers(number: int, root: Path, rows: int, dim: int) -> float:
    start = time.perf_counter()
    writers = [start_step("write", number, root, rows, dim) for _ in range(2)]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    seconds = time.perf_counter() - start
    seconds_of("read", number, root, rows, dim)
    return seconds


def killed_writer(number: int, root: Path, rows: int, dim: int) -> str:
    process = start_step("report", number, root, rows, dim)
    assert process.stdout is not None
    told = 0
    while told < rows // 3:
        told += int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    told += sum(map(int, process.stdout.read().split()))
    process.wait()
    keys, vectors = contents(rows, dim)
    store = STORES[number](root, dim)
    assert told < rows, "the writer was done before it could be killed"
    assert (store.read(keys[:told]) == vectors[:told]).all(), "stored rows were lost"
    assert store.check()
    return f"{told:,} kept"


def measure(number: int, rows: int, dim: int) -> list[str]:
    def folder(name: str) -> Path:
        path = Path(parent) / name
        path.mkdir()
        return path

    with tempfile.TemporaryDirectory() as parent:
        root = folder("one")
        seconds = [
            f"{seconds_of(step, number, root, rows, dim):.2f} s"
            for step in ("write", "read", "random")
        ]
        size = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
        both = two_writers(number, folder("two"), rows, dim)
        kept = killed_writer(number, folder("killed"), rows, dim)
    return [*seconds, f"{size / 1e6:.1f} MB", f"{both:.2f} s", kept]


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    dim = int(sys.argv[2]) if len(sys.argv) > 2 else 512
    raw = rows * (16 + 4 * dim) / 1e6
    print(f"{rows:,} vectors of {dim} float32 numbers ({raw:.1f} MB), written {BATCH} at a time")
    columns = ["write all", "read all", "read 1,000", "on disk", "two writers", "killed writer"]
    print(" " * 14 + "".join(f"{column:>15}" for column in columns))
    for number, kind in enumerate(STORES):
        cells = measure(number, rows, dim)
        print(f"{kind.name:<14}" + "".join(f"{cell:>15}" for cell in cells), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        run_step(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), *map(int, sys.argv[5:7]))
    else:
        main()
