import logging
import os
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptboost.encoders.store import EmbeddingStore
from tests.encoders.store.store_tools import databases, rows_of, text_keys, use

DIM = 64
KEYS = text_keys(700)  # three blocks of embeddings


def damage(path, position, flip=0x40):
    data = bytearray(path.read_bytes())
    data[position] ^= flip
    path.write_bytes(data)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    root = tmp_path_factory.mktemp("pristine")
    use(root, KEYS, dim=DIM)
    assert len(databases(root)) == 1
    return root


@pytest.fixture
def root(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "store")


def check_recovery(root):
    """All rows are right, and after that everything is stored again."""
    rows, computed = use(root, KEYS, dim=DIM)
    assert np.array_equal(rows, rows_of(KEYS, DIM))
    assert use(root, KEYS, dim=DIM)[1] == []
    EmbeddingStore(root).verify()  # finds what no read has met
    rows, _ = use(root, KEYS, dim=DIM)
    assert np.array_equal(rows, rows_of(KEYS, DIM))
    assert EmbeddingStore(root).verify().ok
    return computed


def embedding_at(path, number):
    """Return where the file has an embedding."""
    return path.read_bytes().index(rows_of([KEYS[number]], DIM).tobytes()[:200])


@settings(max_examples=50, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_changed_byte_anywhere_never_gives_a_wrong_row(pristine, tmp_path_factory, where, flip):
    root = shutil.copytree(pristine, tmp_path_factory.mktemp("flip") / "store")
    (file,) = databases(root)
    damage(file, int(where * file.stat().st_size), flip)
    check_recovery(root)


@settings(max_examples=20, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_off_anywhere_never_gives_a_wrong_row(pristine, tmp_path_factory, where):
    root = shutil.copytree(pristine, tmp_path_factory.mktemp("cut") / "store")
    (file,) = databases(root)
    os.truncate(file, int(where * file.stat().st_size))
    check_recovery(root)


def test_only_the_damaged_block_is_computed_again(root, caplog):
    (file,) = databases(root)
    damage(file, embedding_at(file, 300))
    with caplog.at_level(logging.WARNING):
        computed = check_recovery(root)
    assert computed == list(range(256, 512))
    assert "computed again" in caplog.text
    assert EmbeddingStore(root).report().rows == 700


def test_verify_finds_damage_that_no_read_has_met_and_drops_it(root):
    (file,) = databases(root)
    damage(file, embedding_at(file, 10))
    store = EmbeddingStore(root)
    assert use(store, KEYS[600:], dim=DIM)[1] == []  # other blocks are not held up by it
    found = store.verify()
    assert not found.ok
    assert found.damaged == (str(file),)
    assert found.rows_lost == 256
    assert found.to_dict()["ok"] is False
    assert "1 files checked, 1 damaged" in str(found)
    assert store.verify().ok
    assert store.report().rows == 700 - 256
    assert check_recovery(root) == list(range(256))


def test_what_sqlite_cannot_read_is_set_aside_and_its_sound_blocks_are_kept(root):
    (file,) = databases(root)
    at = file.read_bytes().index(b"CREATE TABLE places")
    damage(file, at + 2)
    assert check_recovery(root) == list(range(700))  # this read met the damage
    assert EmbeddingStore(root).report().corrupt == 1
    assert EmbeddingStore(root).clear() > 0
    assert list(root.rglob("*.corrupt")) == []


def test_sound_blocks_survive_a_damaged_index(root):
    with closing(sqlite3.connect(databases(root)[0])) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'places'")
        start = (page.fetchone()[0] - 1) * 8192
    (file,) = databases(root)
    data = bytearray(file.read_bytes())
    data[start : start + 8192] = bytes(8192)
    file.write_bytes(data)
    assert not EmbeddingStore(root).verify().ok
    assert use(root, KEYS, dim=DIM)[1] == []


def test_garbage_in_the_folder_is_ignored_or_set_aside(root):
    (file,) = databases(root)
    folder = file.parent
    (folder / "float32x8-0.sqlite").write_bytes(b"")
    (folder / "float32x8-1.sqlite").write_bytes(b"\xff" * 5000)
    (folder / "float32x8-2.sqlite").write_bytes(file.read_bytes()[:8192])
    (folder / "notes.txt").write_text("hello")
    (folder / "mine.sqlite").write_bytes(b"not ours")
    assert EmbeddingStore(root).report().corrupt == 2
    found = EmbeddingStore(root).verify()
    assert len(found.damaged) == 2
    assert check_recovery(root) == []
    assert EmbeddingStore(root).report().corrupt == 2
    EmbeddingStore(root).clear()
    assert sorted(path.name for path in folder.iterdir()) == ["mine.sqlite", "notes.txt"]


def test_a_file_of_other_embeddings_is_not_believed(root):
    (file,) = databases(root)
    use(root, KEYS[:1], dim=2 * DIM)
    (other,) = set(databases(root)) - {file}
    shutil.copy(file, other)
    rows, computed = use(root, KEYS[:5], dim=2 * DIM)
    assert computed == [0, 1, 2, 3, 4]
    assert np.array_equal(rows, rows_of(KEYS[:5], 2 * DIM))
