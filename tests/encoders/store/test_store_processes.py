"""Several processes at once, and processes killed at any moment."""

import random
import signal
import sys
import time

import numpy as np
import pytest

from promptboost.encoders.store import EmbeddingStore
from promptboost.encoders.store.disk import exclusive
from promptboost.errors import StoreError
from tests.encoders.store.store_tools import (
    count_known,
    leftovers,
    rows_of,
    run_python,
    segments,
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
    report = EmbeddingStore(tmp_path).report()
    assert (report.rows, report.corrupt) == (400, 0)
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
        assert EmbeddingStore(tmp_path).verify().ok
        known = count_known(tmp_path, keys)
        assert known >= stored, "what was stored has been lost"
        stored = known
    assert stored > 0
    assert kills >= 3, "the writer was done before it could be killed"
    rows, computed = use(tmp_path, keys)
    assert np.array_equal(rows, rows_of(keys, 8))
    assert computed == list(range(stored, 20_000))
    assert leftovers(tmp_path) == []


# Dies by SIGKILL at the n-th thing done to the file system, for every n until nothing is left to
# interrupt. Each child starts from the same store of seven segments, so that one more is a merge.
EVERY_STEP = """
import os, shutil, signal, sys
from tests.encoders.store.store_tools import leftovers, rows_of, text_keys, use
from promptboost.encoders.store import EmbeddingStore, disk
import numpy as np

keys = text_keys(100)
base, root = sys.argv[1] + "/base", sys.argv[1] + "/copy"
for i in range(7):
    use(base, keys[i * 10 : i * 10 + 10])
left = -1
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.utime", "os.listdir"}

def step():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def write_half_then_all(file, data):
    file.write(data[: len(data) // 2]); file.flush(); step()
    file.write(data[len(data) // 2 :]); file.flush(); step()

def on_event(event, arguments):
    if left > 0 and event in EVENTS:
        step()

disk.write_bytes = write_half_then_all
sys.addaudithook(on_event)
for n in range(1, 1000):
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(base, root)
    child = os.fork()
    if child == 0:
        left = n
        use(root, keys[60:], batch=20, name="new name")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert EmbeddingStore(root).verify().ok, n
    known, computed = use(root, keys[:70])
    assert computed == [], (n, computed)  # what was stored before the kill is still there
    assert np.array_equal(known, rows_of(keys[:70], 8)), n
    assert np.array_equal(use(root, keys)[0], rows_of(keys, 8)), n
    use(root, [*keys, *text_keys(1, "one more")])
    assert leftovers(root) == [], n
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
print(n)
"""


@posix_only
def test_a_writer_killed_at_every_step_of_a_write_and_a_merge_loses_nothing(tmp_path):
    steps = int(run_python(EVERY_STEP, tmp_path))
    assert steps > 40  # two writes, one merge: the hook did see what happens


def test_a_reader_goes_on_while_its_files_are_merged_and_deleted(tmp_path):
    keys = text_keys(80)
    reader, writer = EmbeddingStore(tmp_path), EmbeddingStore(tmp_path)
    for i in range(0, 80, 10):
        use(writer, keys[i : i + 10])
        rows, computed = use(reader, keys[: i + 10])
        assert computed == []
        assert np.array_equal(rows, rows_of(keys[: i + 10], 8))
    assert len(segments(tmp_path)) == 1
    writer.clear()
    assert len(use(reader, keys)[1]) == 80


def test_the_lock_excludes_and_says_so(tmp_path):
    held = pytest.raises(StoreError, match="Another process has held")
    with exclusive(tmp_path), held, exclusive(tmp_path, 0.05):
        pass
    with exclusive(tmp_path, 0.05):
        pass
