"""Several processes at once, and processes killed at any moment."""

import random
import signal
import sqlite3
import sys
import time
from contextlib import closing

import numpy as np
import pytest

from promptboost.encoders import store as module
from promptboost.encoders.store import EmbeddingStore
from promptboost.errors import StoreError
from tests.encoders.store.store_tools import (
    count_known,
    databases,
    is_intact,
    leftovers,
    rows_of,
    run_python,
    start_python,
    text_keys,
    use,
)

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")

WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from tests.encoders.store.store_tools import text_keys, use
root, number, start, end = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
keys = text_keys(end)[start:]
print("ready", flush=True)
while not (Path(root) / "go").exists():
    time.sleep(0.001)
# Each process computes rows that differ a little, as batches of other sizes do on real hardware.
rows, computed = use(root, keys, tag=number / 1000, batch=5)
np.save(Path(root) / f"{number}.npy", rows)
print(len(computed))
"""


def test_processes_writing_the_same_keys_agree_on_one_row_for_each(tmp_path):
    ranges = [(0, 300), (100, 400), (0, 400)]
    processes = [start_python(WRITER, tmp_path, n, *r) for n, r in enumerate(ranges)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    (tmp_path / "go").touch()
    computed = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert 400 <= sum(computed) <= 1000
    later, missing = use(tmp_path, text_keys(400))
    assert missing == []
    for number, (start, end) in enumerate(ranges):
        assert np.array_equal(np.load(tmp_path / f"{number}.npy"), later[start:end])
    assert EmbeddingStore(tmp_path).report().rows == 400
    assert leftovers(tmp_path) == []


KILLED = """
import sys
from tests.encoders.store.store_tools import text_keys, use
print("ready", flush=True)
use(sys.argv[1], text_keys(20_000), batch=7)
"""


@posix_only
def test_a_writer_killed_at_random_moments_leaves_only_right_rows(tmp_path):
    keys = text_keys(20_000)
    moments = random.Random(0)
    stored = kills = 0
    for _ in range(8):
        process = start_python(KILLED, tmp_path)
        assert process.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0.02, 0.25))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        assert is_intact(tmp_path)
        known = count_known(tmp_path, keys)
        assert known >= stored, "what was stored has been lost"
        stored = known
    assert stored > 0
    assert kills >= 3, "the writer was done before it could be killed"
    rows, computed = use(tmp_path, keys)
    assert np.array_equal(rows, rows_of(keys, 8))
    assert computed == list(range(stored, 20_000))
    assert leftovers(tmp_path) == []


# Dies when a file grows beyond a size: at another step of a write for every size.
EVERY_SIZE = """
import os, resource, shutil, signal, sys
from tests.encoders.store.store_tools import is_intact, rows_of, text_keys, use
from promptboost.encoders.store import EmbeddingStore
import numpy as np

keys = text_keys(700)
base, root = sys.argv[1] + "/base", sys.argv[1] + "/copy"
use(base, keys[:400], dim=64)
killed = 0
for size in range(1024, 1 << 20, 5 * 1024):
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(base, root)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        use(root, keys[300:], batch=100, dim=64, name="new name")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert is_intact(root), size
    known, computed = use(root, keys[:400], dim=64)
    assert computed == [], (size, computed)  # what was stored before the kill is still there
    assert np.array_equal(known, rows_of(keys[:400], 64)), size
    assert np.array_equal(use(root, keys, dim=64)[0], rows_of(keys, 64)), size
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGXFSZ
    killed += 1
print(killed)
"""


@posix_only
def test_a_writer_killed_at_every_step_of_a_write_loses_nothing(tmp_path):
    assert int(run_python(EVERY_SIZE, tmp_path)) > 20


def test_a_reader_goes_on_while_others_write_and_clear(tmp_path):
    keys = text_keys(80)
    reader, writer = EmbeddingStore(tmp_path), EmbeddingStore(tmp_path)
    for i in range(0, 80, 10):
        use(writer, keys[i : i + 10])
        rows, computed = use(reader, keys[: i + 10])
        assert computed == []
        assert np.array_equal(rows, rows_of(keys[: i + 10], 8))
    writer.clear()
    assert len(use(reader, keys)[1]) == 80


def test_a_store_cleared_while_vectors_are_computed_is_no_error(tmp_path):
    keys = text_keys(3)

    def clear_and_compute(positions):
        EmbeddingStore(tmp_path).clear()
        return rows_of(keys, 8)

    store = EmbeddingStore(tmp_path)
    rows = store.get_or_compute("encoder-a", keys, clear_and_compute, dim=8)
    assert np.array_equal(rows, rows_of(keys, 8))
    assert use(store, keys)[1] == []


def test_a_lock_held_too_long_is_a_clear_error(tmp_path, monkeypatch):
    use(tmp_path, text_keys(1))
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.05)
    with closing(sqlite3.connect(databases(tmp_path)[0])) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(
            StoreError, match=r"cannot be used \(database is locked.*process that holds it"
        ):
            use(tmp_path, text_keys(2))
    assert use(tmp_path, text_keys(2))[1] == [1]
