"""No room, no permission, and the store's own limit."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from promptboost.encoders import store as module
from promptboost.encoders.store import EmbeddingStore
from promptboost.errors import StoreError
from tests.encoders.store.store_tools import (
    databases,
    is_intact,
    leftovers,
    rows_of,
    run_python,
    text_keys,
    use,
)

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")


@pytest.mark.parametrize("pages", [0, 1, 3])
def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path, monkeypatch, pages):
    keys = text_keys(6000)
    use(tmp_path, keys[:20])
    there = databases(tmp_path)[0].stat().st_size // 16384
    with monkeypatch.context() as patch:
        patch.setattr(module, "_PRAGMAS", (*module._PRAGMAS, f"max_page_count = {there + pages}"))
        with pytest.raises(StoreError, match=r"everything stored is intact.*PROMPTBOOST_CACHE"):
            use(tmp_path, keys, batch=200)
    assert leftovers(tmp_path) == []
    assert is_intact(tmp_path)
    rows, computed = use(tmp_path, keys)
    assert computed == list(range(6000 - len(computed), 6000))
    assert computed[0] % 200 == 20  # whole batches
    assert np.array_equal(rows, rows_of(keys, 8))


FILL = """
import sys
from promptboost.encoders.store import EmbeddingStore
from promptboost.errors import StoreError
from tests.encoders.store.store_tools import is_intact, leftovers, rows_of, text_keys, use
import numpy as np
{setup}
root, keys = sys.argv[1], text_keys(4000)
use(root, keys[:50], dim=64)
try:
    use(root, keys, dim=64, batch={batch})
except StoreError as error:
    assert "cannot be used" in str(error), error
else:
    raise AssertionError("there was room")
assert leftovers(root) == []
store = EmbeddingStore(root)
assert is_intact(root)
stored = store.report().rows
assert stored >= 50
rows, computed = use(root, keys[:50], dim=64)
assert computed == [] and np.array_equal(rows, rows_of(keys[:50], 64))
print(stored)
"""


@posix_only
def test_a_file_size_limit_met_in_earnest(tmp_path):
    setup = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))"
    assert run_python(FILL.format(setup=setup, batch=2000), tmp_path) == "50\n"
    assert len(use(tmp_path, text_keys(4000), dim=64)[1]) == 3950


def can_mount(folder):
    command = ["unshare", "-mr", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    return shutil.which("unshare") and subprocess.run(command, capture_output=True).returncode == 0


@posix_only
def test_a_disk_that_fills_up_in_earnest(tmp_path):
    if not can_mount(tmp_path):
        pytest.skip("cannot mount a small disk here")
    mount = 'mount -t tmpfs -o size=700k tmpfs "$0" && exec "$@"'
    prefix = ["unshare", "-mr", "sh", "-c", mount, str(tmp_path)]
    stored = int(run_python(FILL.format(setup="", batch=100), tmp_path, prefix=prefix))
    assert 1000 < stored < 2600  # 276 bytes a row: most of the disk was put to use


READ_ONLY = """
import os, sys
import numpy as np
import numpy.random  # now: another user may not be able to read where Python is
from promptboost.errors import StoreError
from tests.encoders.store.store_tools import rows_of, text_keys, use
if os.getuid() == 0:
    os.setuid(65534)  # permissions do not bind root
for file in sys.argv[2:]:
    assert not os.access(file, os.W_OK)
keys = text_keys(20)
rows, computed = use(sys.argv[1], keys[:10])
assert computed == {expected}, computed
assert np.array_equal(rows, rows_of(keys[:10], 8))
asked = []
try:
    use(sys.argv[1], keys, advance=asked.append)
except StoreError as error:
    print(error)
assert asked == [10]  # nothing was computed in vain
"""


@pytest.fixture
def read_only_root():
    root = Path(tempfile.mkdtemp())  # not tmp_path, which other users cannot enter
    root.chmod(0o755)
    use(root, text_keys(10))
    everything = [root, *root.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield root
    for path in everything:
        path.chmod(0o755)
    shutil.rmtree(root)


@posix_only
def test_a_read_only_store_can_be_read_and_says_that_it_cannot_be_written(read_only_root):
    script = READ_ONLY.format(expected=[])
    output = run_python(script, read_only_root, *databases(read_only_root))
    assert "cannot be used" in output
    assert "PROMPTBOOST_CACHE" in output


def test_a_root_that_is_a_file_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("hello")
    with pytest.raises(StoreError, match="PROMPTBOOST_CACHE"):
        use(tmp_path / "file", text_keys(1))
    assert EmbeddingStore(tmp_path / "file").report().rows == 0


def test_the_limit_is_kept_and_the_most_recent_stays(tmp_path):
    limit = 600_000
    store = EmbeddingStore(tmp_path, max_bytes=limit)
    keys = text_keys(9000)
    for start in range(0, 9000, 300):
        rows, _ = use(store, keys[start : start + 300], dim=64)
        assert np.array_equal(rows, rows_of(keys[start : start + 300], 64))
        assert store.report().bytes <= limit
    assert store.report().bytes > limit / 2
    assert use(store, keys[-100:], dim=64)[1] == []
    assert len(use(store, keys[:100], dim=64)[1]) == 100
    assert is_intact(tmp_path)


def test_a_limit_below_a_single_batch_still_gives_right_rows(tmp_path):
    store = EmbeddingStore(tmp_path, max_bytes=1000)
    keys = text_keys(100)
    rows, _ = use(store, [*keys, *keys], dim=64, batch=30)
    assert np.array_equal(rows, rows_of([*keys, *keys], 64))
    assert store.report().bytes <= 1000


OPEN_LARGE = """
import resource, sys, time
import numpy as np
from promptboost.encoders.store import EmbeddingStore
store = EmbeddingStore(sys.argv[1])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before, start = peak(), time.perf_counter()
row = store.get_or_compute("big", [(123_456).to_bytes(16, "little")], None, dim=64)
assert row[0, 0] == 123_456
print(time.perf_counter() - start, (peak() - before) / (1e6 if sys.platform == "darwin" else 1e3))
"""


@posix_only
def test_a_million_rows_open_in_a_moment_without_being_loaded(tmp_path):
    count = 1_000_000
    keys = [i.to_bytes(16, "little") for i in range(count)]
    EmbeddingStore(tmp_path).get_or_compute(
        "big",
        keys,
        lambda positions: np.repeat(np.array(positions, dtype="f4")[:, None], 64, axis=1),
        dim=64,
        batch=250_000,
    )
    seconds, megabytes = map(float, run_python(OPEN_LARGE, tmp_path).split())
    assert seconds < 1.0
    assert megabytes < 60  # the index is 20 MB, the rows 256 MB
