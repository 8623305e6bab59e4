import logging
import os
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptboost.encoders.store import EmbeddingStore
from tests.encoders.store.store_tools import rows_of, segments, text_keys, use

DIM = 64
KEYS = text_keys(700)  # three blocks of rows


def damage(path, position, flip=0x40):
    data = bytearray(path.read_bytes())
    data[position] ^= flip
    path.write_bytes(data)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    root = tmp_path_factory.mktemp("pristine")
    use(root, KEYS, dim=DIM)
    assert len(segments(root)) == 1
    return root


@pytest.fixture
def root(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "store")


def check_recovery(root):
    """All rows are right, and after that everything is stored again."""
    rows, computed = use(root, KEYS, dim=DIM)
    assert np.array_equal(rows, rows_of(KEYS, DIM))
    assert use(root, KEYS, dim=DIM)[1] == []
    assert EmbeddingStore(root).verify().ok
    return computed


@settings(max_examples=50, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_changed_byte_anywhere_never_gives_a_wrong_row(pristine, tmp_path_factory, where, flip):
    root = shutil.copytree(pristine, tmp_path_factory.mktemp("flip") / "store")
    (segment,) = segments(root)
    damage(segment, int(where * segment.stat().st_size), flip)
    check_recovery(root)


@settings(max_examples=20, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_off_anywhere_never_gives_a_wrong_row(pristine, tmp_path_factory, where):
    root = shutil.copytree(pristine, tmp_path_factory.mktemp("cut") / "store")
    (segment,) = segments(root)
    os.truncate(segment, int(where * segment.stat().st_size))
    assert check_recovery(root) == list(range(700))


def test_only_the_damaged_block_is_computed_again(root, caplog):
    (segment,) = segments(root)
    damage(segment, 64 + 300 * DIM * 4)
    with caplog.at_level(logging.WARNING):
        computed = check_recovery(root)
    assert computed == list(range(256, 512))
    assert "computed again" in caplog.text
    assert EmbeddingStore(root).report().corrupt == 1
    assert EmbeddingStore(root).report().rows == 700


def test_verify_finds_damage_that_no_read_has_met_and_sets_it_aside(root):
    (segment,) = segments(root)
    damage(segment, 64 + 10 * DIM * 4)
    store = EmbeddingStore(root)
    assert use(store, KEYS[600:], dim=DIM)[1] == []  # other blocks are not held up by it
    found = store.verify()
    assert not found.ok
    assert found.damaged == (str(segment),)
    assert found.rows_lost == 256
    assert found.to_dict()["ok"] is False
    assert "1 files checked, 1 damaged" in str(found)
    assert store.verify().ok
    assert store.report().rows == 700 - 256
    assert check_recovery(root) == list(range(256))


def test_garbage_in_the_folder_is_ignored_or_set_aside(root):
    folder = segments(root)[0].parent
    (folder / "0.seg").write_bytes(b"")
    (folder / "1.seg").write_bytes(b"\xff" * 5000)
    (folder / "2.seg").write_bytes(segments(root)[-1].read_bytes()[:64])
    (folder / "notes.txt").write_text("hello")
    (folder / "3.seg.tmp").write_bytes(b"half")
    (folder.parent / "about.json").write_text("{not json")
    (folder.parent / "float32xmany").mkdir()
    (root / "v1" / "file").write_text("hello")
    assert EmbeddingStore(root).report().corrupt == 3
    found = EmbeddingStore(root).verify()
    assert len(found.damaged) == 3
    assert check_recovery(root) == []
    assert EmbeddingStore(root).report().corrupt == 3
    use(root, [*KEYS, *text_keys(1, "new")], dim=DIM)
    assert not (folder / "3.seg.tmp").exists()
    assert (folder / "notes.txt").exists()


def test_a_segment_from_another_shelf_is_not_believed(root):
    folder = segments(root)[0].parent
    other = folder.with_name(f"float32x{2 * DIM}")
    shutil.copytree(folder, other)
    rows, computed = use(root, KEYS[:5], dim=2 * DIM)
    assert computed == [0, 1, 2, 3, 4]
    assert np.array_equal(rows, rows_of(KEYS[:5], 2 * DIM))


def test_damage_is_noticed_when_segments_merge(tmp_path):
    store = EmbeddingStore(tmp_path)
    for i in range(7):
        use(store, KEYS[i * 10 : i * 10 + 10], dim=DIM)
    damage(segments(tmp_path)[3], 64 + 5)
    use(EmbeddingStore(tmp_path), KEYS[70:80], dim=DIM)  # the eighth: all are merged
    assert len(segments(tmp_path)) == 1
    rows, computed = use(tmp_path, KEYS[:80], dim=DIM)
    assert computed == list(range(30, 40))
    assert np.array_equal(rows, rows_of(KEYS[:80], DIM))
    assert EmbeddingStore(tmp_path).report().corrupt == 1


def test_rows_stored_twice_by_an_interrupted_merge_are_merged_into_one(tmp_path):
    for i in range(4):
        use(tmp_path, KEYS[i * 10 : i * 10 + 10], dim=DIM)
    for path in segments(tmp_path):
        shutil.copy(path, path.with_name(f"f{path.name}"))
    use(tmp_path, KEYS[40:50], dim=DIM)
    assert len(segments(tmp_path)) == 1
    assert EmbeddingStore(tmp_path).report().rows == 50
    rows, computed = use(tmp_path, KEYS[:50], dim=DIM)
    assert computed == []
    assert np.array_equal(rows, rows_of(KEYS[:50], DIM))
