import numpy as np

from promptboost.data import load_data
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.store import EmbeddingStore
from tests.runs.run_tools import ENCODER, write_images


def test_the_image_itself_comes_first_then_its_crops(tmp_path):
    data = load_data(write_images(tmp_path, count=2), progress=False)
    embedder = Embedder.open(ENCODER, cache=False, progress=False)
    rows = embedder.images(data, views=3)
    assert rows.shape == (8, 4, 32)
    expected = embedder.encoder.encode_images([image.open() for image in data.images])
    np.testing.assert_array_equal(rows[:, 0], expected)
    np.testing.assert_array_equal(embedder.originals(data), expected)
    assert not np.allclose(rows[:, 1], rows[:, 2])


def test_a_store_changes_nothing_but_what_is_computed(tmp_path):
    data = load_data(write_images(tmp_path, count=2), progress=False)
    texts = ["a red cat", "a blue dog", "a red cat"]
    plain, stored = (Embedder.open(ENCODER, cache=c, progress=False) for c in (False, True))
    for _ in range(2):
        np.testing.assert_array_equal(plain.images(data, views=2), stored.images(data, views=2))
        np.testing.assert_array_equal(plain.texts(texts)(texts), stored.texts(texts)(texts))
    assert EmbeddingStore().report().rows == 8 * 3 + 2


def test_other_crops_are_other_rows(tmp_path):
    data = load_data(write_images(tmp_path, count=1), progress=False)
    embedder = Embedder.open(ENCODER, progress=False)
    wide, narrow = (embedder.images(data, views=1, view_scale=s) for s in (0.5, 0.1))
    np.testing.assert_array_equal(wide[:, 0], narrow[:, 0])
    assert not np.allclose(wide[:, 1], narrow[:, 1])


def test_time_is_kept(tmp_path):
    embedder = Embedder.open(ENCODER, cache=False, progress=False)
    embedder.texts(["a cat"])
    assert embedder.seconds["texts"] > 0
    assert embedder.seconds["pictures"] == 0
