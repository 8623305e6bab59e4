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


def check_rows(root):
    """All rows are right; return the positions that had to be computed."""
    rows, computed = use(root, KEYS, dim=DIM)
    assert np.array_equal(rows, rows_of(KEYS, DIM))
    return computed


def check_recovery(root):
    """All rows are right, and after that everything is stored again."""
    computed = check_rows(root)
    assert check_rows(root) == []
    return computed


def check_any_damage(root):
    """All rows are right, and after damage to the index too everything is stored in the end."""
    for _ in range(5):
        if not check_rows(root):
            return
    raise AssertionError("rows are computed again and again")


def embedding_at(path, number):
    """Return where the file has an embedding."""
    return path.read_bytes().index(rows_of([KEYS[number]], DIM).tobytes()[:200])


@settings(max_examples=50, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_changed_byte_anywhere_never_gives_a_wrong_row(pristine, tmp_path_factory, where, flip):
    root = shutil.copytree(pristine, tmp_path_factory.mktemp("flip") / "store")
    (file,) = databases(root)
    damage(file, int(where * file.stat().st_size), flip)
    check_any_damage(root)


@settings(max_examples=20, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_off_anywhere_never_gives_a_wrong_row(pristine, tmp_path_factory, where):
    root = shutil.copytree(pristine, tmp_path_factory.mktemp("cut") / "store")
    (file,) = databases(root)
    os.truncate(file, int(where * file.stat().st_size))
    check_any_damage(root)


def test_only_the_damaged_row_is_computed_again(root):
    (file,) = databases(root)
    damage(file, embedding_at(file, 300))
    assert check_recovery(root) == [300]
    assert EmbeddingStore(root).report().rows == 700


def test_a_file_that_sqlite_cannot_read_is_replaced(root, caplog):
    (file,) = databases(root)
    damage(file, file.read_bytes().index(b"CREATE TABLE rows") + 2)
    with caplog.at_level(logging.WARNING):
        assert check_recovery(root) == list(range(700))
    assert "computed again" in caplog.text
    assert EmbeddingStore(root).clear() > 0
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 5000])
def test_garbage_in_place_of_the_file_is_begun_anew(root, garbage):
    (file,) = databases(root)
    file.write_bytes(garbage)
    assert check_recovery(root) == list(range(700))


def test_a_row_under_another_key_is_not_believed(root):
    with closing(sqlite3.connect(databases(root)[0])) as connection, connection:
        connection.execute("UPDATE rows SET key = x'00' WHERE id = 1")
        connection.execute(
            "UPDATE rows SET key = (SELECT substr(key, 1, 4) FROM rows WHERE id = 2) || ? "
            "WHERE id = 1",
            (KEYS[0][:15] + b"x",),
        )
    assert use(root, [KEYS[0][:15] + b"x"], dim=DIM)[1] == [0]
