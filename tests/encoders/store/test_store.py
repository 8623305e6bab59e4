import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptboost.encoders.store import EmbeddingStore, image_key, text_key
from promptboost.errors import EmbeddingError, SettingError
from tests.encoders.store.store_tools import (
    FINGERPRINT,
    databases,
    rows_of,
    run_python,
    text_keys,
    use,
)

# Few distinct values in each half, so that keys often share one half and not the other.
half = st.sampled_from(
    [bytes(8), b"\xff" * 8, b"\x00" * 7 + b"\x01", b"\x80" + bytes(7), b"abcdefgh"]
)
key = st.builds(lambda a, b: a + b, half, half)


@settings(max_examples=40, deadline=None)
@given(
    calls=st.lists(st.lists(key, max_size=12), min_size=1, max_size=12),
    dim=st.integers(1, 9),
    batch=st.integers(1, 5),
)
def test_every_key_is_computed_once_and_always_gives_the_same_row(
    tmp_path_factory, calls, dim, batch
):
    root = tmp_path_factory.mktemp("store")
    known = {}
    kept_open = EmbeddingStore(root)
    for number, keys in enumerate(calls):
        store = kept_open if number % 2 else EmbeddingStore(root)
        rows, computed = use(store, keys, dim=dim, batch=batch)
        assert computed == [i for i, k in enumerate(keys) if k not in known and k not in keys[:i]]
        assert rows.shape == (len(keys), dim)
        assert rows.dtype == np.float32
        for k, row in zip(keys, rows, strict=True):
            assert known.setdefault(k, row.tobytes()) == row.tobytes()
        assert np.array_equal(rows, rows_of(keys, dim))
    assert EmbeddingStore(root).report().rows == len(known)


def test_each_batch_is_on_disk_before_the_next_begins(tmp_path):
    keys = text_keys(10)

    def fail_in_third_batch(positions):
        if 8 in positions:
            raise KeyboardInterrupt
        return rows_of([keys[i] for i in positions], 8)

    with pytest.raises(KeyboardInterrupt):
        EmbeddingStore(tmp_path).get_or_compute(
            FINGERPRINT, keys, fail_in_third_batch, dim=8, batch=4
        )
    rows, computed = use(tmp_path, keys)
    assert computed == [8, 9]
    assert np.array_equal(rows, rows_of(keys, 8))


def test_many_small_additions_stay_in_one_file(tmp_path):
    keys = text_keys(300)
    store = EmbeddingStore(tmp_path)
    for i in range(0, 300, 2):
        use(store, keys[i : i + 2])
    assert len(databases(tmp_path)) == 1
    rows, computed = use(tmp_path, keys)
    assert computed == []
    assert np.array_equal(rows, rows_of(keys, 8))
    assert store.report().rows == 300


def test_fingerprints_and_dimensions_are_kept_apart(tmp_path):
    keys = text_keys(3)
    store = EmbeddingStore(tmp_path / "deep" / "store")
    for fingerprint in ["a", "A", "../../a", "a/b", "", "é" * 300, "con "]:
        calls = []

        def compute(positions, calls=calls):
            calls.append(positions)
            return rows_of(keys, 8)

        for _ in range(2):
            store.get_or_compute(fingerprint, keys, compute, dim=8, name="some encoder")
        assert calls == [[0, 1, 2]]
    names = {share.fingerprint for share in store.report().encoders}
    assert names == {"a", "A", "../../a", "a/b", "", "é" * 300, "con "}
    assert list(tmp_path.iterdir()) == [tmp_path / "deep"]
    assert list((tmp_path / "deep").iterdir()) == [tmp_path / "deep" / "store"]
    use(store, keys, dim=8)
    assert use(store, keys, dim=4)[1] == [0, 1, 2]
    assert use(store, keys, dim=8)[1] == []


def test_progress_adds_up_to_all_keys(tmp_path):
    keys = text_keys(10)
    use(tmp_path, keys[:3])
    seen = []
    use(tmp_path, [*keys, keys[0]], batch=4, advance=seen.append)
    assert seen == [4, 4, 3]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_refused_and_not_stored(tmp_path, bad):
    store = EmbeddingStore(tmp_path)
    with pytest.raises(EmbeddingError, match="1 of 3 computed vectors are not finite"):
        store.get_or_compute(
            FINGERPRINT, text_keys(3), lambda p: np.array([[1, 0], [bad, 0], [0, 1]]), dim=2
        )
    assert store.report().rows == 0


def test_rows_of_the_wrong_shape_are_refused(tmp_path):
    with pytest.raises(EmbeddingError, match=r"3 vectors gave shape \(2, 2\)"):
        EmbeddingStore(tmp_path).get_or_compute(
            FINGERPRINT, text_keys(3), lambda p: np.ones((2, 2)), dim=2
        )


def test_the_limit_must_be_positive(tmp_path):
    with pytest.raises(SettingError, match="max_bytes"):
        EmbeddingStore(tmp_path, max_bytes=0)


def test_looking_into_a_store_that_does_not_exist_makes_nothing(tmp_path):
    store = EmbeddingStore(tmp_path / "none")
    assert store.report().rows == 0
    assert store.clear() == 0
    assert use(store, [])[0].shape == (0, 8)
    assert not (tmp_path / "none").exists()


def test_report_has_names_and_totals(tmp_path):
    store = EmbeddingStore(tmp_path, max_bytes=10**9)
    use(store, text_keys(5), name="some encoder")
    use(store, text_keys(7))  # without a name: the one known is kept
    report = store.report()
    (share,) = report.encoders
    assert (share.name, share.fingerprint, share.rows) == ("some encoder", FINGERPRINT, 7)
    assert share.bytes == 7 * 8 * 4
    assert report.bytes == sum(path.stat().st_size for path in databases(tmp_path))
    assert "some encoder (encoder-a)" in str(report)
    assert "of at most 1.0 GB" in str(report)
    assert report.to_dict()["encoders"][0]["rows"] == report.to_dict()["rows"] == 7


def test_clear_deletes_all_but_nobody_elses_files(tmp_path):
    store = EmbeddingStore(tmp_path)
    use(store, text_keys(2000))
    store.get_or_compute("other", text_keys(5), lambda p: rows_of(text_keys(5), 8), dim=8)
    mine = databases(tmp_path)[0].with_name("mine.txt")
    mine.write_text("keep")
    (tmp_path / "photos").mkdir()
    assert store.clear() > 0
    assert store.report().rows == store.report().bytes == 0
    assert mine.read_text() == "keep"
    assert (tmp_path / "photos").exists()
    assert len(use(store, text_keys(5))[1]) == 5


def test_keys_tell_contents_apart():
    assert text_key("a") != text_key("A")
    assert text_key("\ud800") != text_key("?")
    assert image_key(b"ab", "c") != image_key(b"a", "bc")
    assert image_key(b"", "a") != text_key("a")
    assert len(image_key(b"a", "b")) == len(text_key("")) == 16


def test_keys_do_not_change_between_versions():
    assert text_key("a photo of a cat").hex() == "1f541a37bbc66ff06822a0a34833b207"
    assert image_key(b"0123", "crop 1").hex() == "fae484ac9223e2865d4bad3c2d88e4e2"


def test_root_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path))
    assert EmbeddingStore().root == tmp_path / "store"
    use(EmbeddingStore(), text_keys(1))
    assert len(databases(tmp_path / "store")) == 1
    monkeypatch.delenv("PROMPTBOOST_CACHE")
    assert EmbeddingStore().root.name == "store"
    assert "promptboost" in str(EmbeddingStore().root)


def test_threads_share_a_store(tmp_path):
    store = EmbeddingStore(tmp_path)
    keys = text_keys(200)
    results = {}

    def work(start):
        mine = keys[start:] + keys[:start]
        results[start] = np.array_equal(use(store, mine, batch=8)[0], rows_of(mine, 8))

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 50, 100, 150)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys((0, 50, 100, 150), True)
    assert store.report().rows == 200


def test_importing_the_store_loads_nothing_heavy():
    script = (
        "import sys, promptboost.encoders.store\n"
        "print([m for m in ('torch', 'PIL', 'sklearn', 'platformdirs') if m in sys.modules])"
    )
    assert run_python(script).strip() == "[]"
