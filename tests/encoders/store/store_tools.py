"""What the tests of the embedding store share."""

import hashlib
import os
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

import promptboost
from promptboost.encoders.store import EmbeddingStore, text_key

SOURCE = Path(promptboost.__file__).parents[1]
HERE = Path(__file__).parents[2]
FINGERPRINT = "encoder-a"


def row_of(key, dim):
    """Return the one true row of a key."""
    seed = hashlib.blake2b(key, digest_size=8).digest()
    row = np.random.default_rng(int.from_bytes(seed, "little")).standard_normal(dim)
    return (row / np.linalg.norm(row)).astype(np.float32)


def rows_of(keys, dim):
    return np.stack([row_of(key, dim) for key in keys]) if keys else np.zeros((0, dim), "f4")


def text_keys(count, prefix="text"):
    return [text_key(f"{prefix} {i}") for i in range(count)]


def use(root, keys, dim=8, tag=0.0, **settings):
    """Get rows from a store; return them with the positions that had to be computed."""
    store = root if isinstance(root, EmbeddingStore) else EmbeddingStore(root)
    computed = []

    def compute(positions):
        computed.extend(positions)
        return rows_of([keys[i] for i in positions], dim) + np.float32(tag)

    rows = store.get_or_compute(FINGERPRINT, keys, compute, dim=dim, **settings)
    return rows, computed


def count_known(root, keys, dim=8):
    """Count how many of the keys are stored."""
    seen = []

    def stop(positions):
        raise InterruptedError

    with suppress(InterruptedError):
        store = EmbeddingStore(root)
        store.get_or_compute(FINGERPRINT, keys, stop, dim=dim, advance=seen.append)
    return seen[0]


def databases(root):
    return sorted(Path(root).rglob("*.sqlite"))


def is_intact(root):
    """Return whether SQLite finds the file of a store intact."""
    (file,) = databases(root)
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def leftovers(root):
    return sorted(Path(root).rglob("*-journal"))


def start_python(script, *arguments, prefix=(), **options):
    """Start a script in another process, with the same package and this folder importable."""
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{HERE}"}
    command = [*prefix, sys.executable, "-W", "error", "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, **options)


def run_python(script, *arguments, **options):
    process = start_python(script, *arguments, **options)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output
