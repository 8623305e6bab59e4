import threading

import numpy as np
import pytest

from promptboost.data import LabeledImage, load_data
from promptboost.data.views import draw_view
from promptboost.encoders import Encoder
from promptboost.encoders.embedder import (
    ENCODED_AT_ONCE,
    STORED_AT_ONCE,
    WORKING_SIDE,
    Embedder,
    StoreWarning,
)
from promptboost.encoders.fake import FakeEncoder
from promptboost.encoders.store import EmbeddingStore
from promptboost.errors import DataError, SettingError, StoreError
from promptboost.progress import ProgressBars, no_progress
from tests.data.image_tools import encoded, noisy, write_classes
from tests.run.run_tools import ENCODER, write_images


class Watched(FakeEncoder):
    """Counts the images it encodes."""

    count = 0

    def encode_images(self, images):
        images = list(images)
        self.count += len(images)
        return super().encode_images(images)


@pytest.fixture
def data(tmp_path):
    return load_data(write_classes(tmp_path / "images", {"cat": 40, "dog": 45}))


def embed(images, encoder=None, store=None, progress=no_progress, **settings):
    return Embedder(encoder or FakeEncoder(), store, progress).images(images, **settings)


def test_rows_are_those_of_each_view_alone(data):
    encoder = FakeEncoder()
    rows = embed(data, encoder, views=5)
    assert rows.shape == (85, 6, 32)
    assert rows.dtype == np.float32
    for index in (0, 41, 84):
        image = data.images[index]
        images = [draw_view(image.open(), 0, image.digest(), number) for number in range(6)]
        np.testing.assert_array_equal(rows[index], encoder.encode_images(images))


def test_workers_and_order_do_not_matter(data):
    rows = Embedder(FakeEncoder(), workers=1).images(data, views=2)
    np.testing.assert_array_equal(rows, Embedder(FakeEncoder(), workers=7).images(data, views=2))
    backwards = data.subset(range(len(data))[::-1])
    np.testing.assert_array_equal(rows[::-1], embed(backwards, views=2))


def test_many_views_of_few_images(data):
    rows = embed(data.subset([0, 1]), views=199)
    np.testing.assert_array_equal(rows[1, :151], embed(data.subset([1]), views=150)[0])


def test_the_store_keeps_everything(data, tmp_path):
    store = EmbeddingStore(tmp_path / "store")
    encoder = Watched()
    rows = embed(data, encoder, store, views=2)
    assert encoder.count == 85 * 3
    np.testing.assert_array_equal(rows, embed(data, views=2))
    np.testing.assert_array_equal(rows, embed(data, encoder, store, views=2))
    assert encoder.count == 85 * 3
    embed(data, encoder, store, views=3)
    assert encoder.count == 85 * 4
    embed(data, encoder, store, views=1, view_scale=0.2)
    assert encoder.count == 85 * 5
    np.testing.assert_array_equal(rows[:, 0], Embedder(encoder, store).originals(data))
    assert encoder.count == 85 * 5


def test_renamed_and_repeated_images_are_not_computed_again(data, tmp_path):
    store = EmbeddingStore(tmp_path / "store")
    encoder = Watched()
    rows = embed(data, encoder, store)
    path = data.images[0].source
    moved = LabeledImage("elsewhere", "bird", path.rename(path.with_name("moved.png")))
    again = embed([moved, moved], encoder, store)
    assert encoder.count == 85
    np.testing.assert_array_equal(again[:, 0], rows[[0, 0], 0])
    framed = LabeledImage("framed", "bird", moved.source, margin=0.2)
    assert (embed([framed], encoder, store)[0] != rows[0]).any()


def test_a_bad_image_is_named(tmp_path):
    data = load_data(write_classes(tmp_path, {"cat": 9}))
    data.images[4].source.write_bytes(b"broken")
    with pytest.raises(DataError, match=r"cat/4\.png: not an image of a known kind"):
        embed(data)
    data.images[4].source.unlink()
    with pytest.raises(DataError, match=r"cat/4\.png: no such file"):
        embed(data)


def test_a_image_that_changes_meanwhile_is_not_stored_under_the_old_key(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(noisy(1)))

    class Changing(LabeledImage):
        def digest(self):
            digest = super().digest()
            noisy(2).save(tmp_path / "a.png")
            return digest

    with pytest.raises(DataError, match=r"a\.png: changed while it was read"):
        embed([Changing("a", "x", tmp_path / "a.png")])


def test_decoding_goes_on_while_the_encoder_computes(data):
    begun, decoded_meanwhile = threading.Event(), threading.Event()

    class Waiting(FakeEncoder):
        def encode_images(self, images):
            begun.set()
            assert decoded_meanwhile.wait(10), "nothing was decoded during the first batch"
            return super().encode_images(images)

    class Late(LabeledImage):
        def framed(self, image):
            # Not of the first batch: it can be finished only once the encoder is at work.
            assert begun.wait(10)
            decoded_meanwhile.set()
            return super().framed(image)

    late = [Late(p.id, p.label, p.source) for p in data.images[ENCODED_AT_ONCE:]]
    assert late
    embed([*data.images[:ENCODED_AT_ONCE], *late], Waiting())


def test_camera_photographs_are_read_smaller():
    sizes = []

    class Sizing(FakeEncoder):
        def encode_images(self, images):
            images = list(images)
            sizes.extend(image.size for image in images)
            return super().encode_images(images)

    photo = LabeledImage("0", "a", encoded(noisy(0, (3600, 2400)), "JPEG"))
    embed([photo], Sizing())
    assert WORKING_SIDE <= min(sizes[0]) < 2 * WORKING_SIDE


def test_nothing_is_printed_when_piped(data, capfd):
    embed(data, progress=ProgressBars())
    assert capfd.readouterr() == ("", "")


def test_progress_counts_stored_and_encoded_views(data, tmp_path):
    store, calls = EmbeddingStore(tmp_path / "store"), []
    embed(data.subset(range(40)), store=store)
    embed(data, store=store, progress=lambda *call: calls.append(call))
    stages, done, totals = zip(*calls, strict=True)
    assert set(stages) == {"encoding images"}
    assert set(totals) == {85}
    assert done[:2] == (0, 40)  # found in the store
    assert list(done) == sorted(done)
    assert done[-1] == 85


def test_no_images():
    assert embed([], views=2).shape == (0, 3, 32)


def test_wrong_settings(data):
    with pytest.raises(SettingError, match="views"):
        embed(data, views=-1)
    for scale in (0, 1.1, float("nan")):
        with pytest.raises(SettingError, match="view_scale must be above 0 and at most 1"):
            Embedder.open("fake:16-0", cache=False).images(data, views=1, view_scale=scale)


def test_images_may_be_paths_or_pil_images_or_arrays(data):
    expected = embed(data.subset([0, 1]))
    paths = [str(image.source) for image in data.images[:2]]
    np.testing.assert_array_equal(embed(paths), expected)
    opened = [image.open() for image in data.images[:2]]
    np.testing.assert_array_equal(embed(opened), expected)
    np.testing.assert_array_equal(embed([np.asarray(image) for image in opened]), expected)


def test_the_image_itself_comes_first_then_its_crops(tmp_path):
    data = load_data(write_images(tmp_path, count=2))
    embedder = Embedder.open(ENCODER, cache=False)
    rows = embedder.images(data, views=3)
    assert rows.shape == (8, 4, 32)
    expected = embedder.encoder.encode_images([image.open() for image in data.images])
    np.testing.assert_array_equal(rows[:, 0], expected)
    np.testing.assert_array_equal(embedder.originals(data), expected)
    assert not np.allclose(rows[:, 1], rows[:, 2])


def test_a_store_changes_nothing_but_what_is_computed(tmp_path):
    data = load_data(write_images(tmp_path, count=2))
    texts = ["a red cat", "a blue dog", "a red cat"]
    plain, stored = (Embedder.open(ENCODER, cache=c) for c in (False, True))
    for _ in range(2):
        np.testing.assert_array_equal(plain.images(data, views=2), stored.images(data, views=2))
        np.testing.assert_array_equal(plain.texts(texts)(texts), stored.texts(texts)(texts))
    assert EmbeddingStore().report().rows == 8 * 3 + 2


def test_other_crops_are_other_rows(tmp_path):
    data = load_data(write_images(tmp_path, count=1))
    embedder = Embedder.open(ENCODER)
    wide, narrow = (embedder.images(data, views=1, view_scale=s) for s in (0.5, 0.1))
    np.testing.assert_array_equal(wide[:, 0], narrow[:, 0])
    assert not np.allclose(wide[:, 1], narrow[:, 1])


def test_time_is_kept(tmp_path):
    embedder = Embedder.open(ENCODER, cache=False)
    embedder.texts(["a cat"])
    assert embedder.seconds["texts"] > 0
    assert embedder.seconds["images"] == 0


class CountingEncoder(FakeEncoder):
    def __init__(self, dim=32, allowed=10**9):
        super().__init__(dim)
        self.encoded = []
        self.allowed = allowed

    def encode_texts(self, texts):
        if len(self.encoded) + len(texts) > self.allowed:
            raise KeyboardInterrupt
        self.encoded.extend(texts)
        return super().encode_texts(texts)


def test_it_is_an_encoder_that_encodes_each_text_once_across_runs(tmp_path):
    texts = ["a cat", "a dog", "a cat", "a bird"]
    first, second = CountingEncoder(), CountingEncoder()
    stored = Embedder(first, EmbeddingStore(tmp_path))
    assert isinstance(stored, Encoder)
    assert np.array_equal(stored.encode_texts(texts), FakeEncoder().encode_texts(texts))
    assert first.encoded == ["a cat", "a dog", "a bird"]
    again = Embedder(second, EmbeddingStore(tmp_path)).encode_texts([*texts, "a fox"])
    assert second.encoded == ["a fox"]
    assert np.array_equal(again, FakeEncoder().encode_texts([*texts, "a fox"]))
    assert stored.store.report().encoders[0].name == first.id


def test_it_forwards_the_rest_of_an_encoder():
    from PIL import Image

    plain = FakeEncoder()
    stored = Embedder(plain, EmbeddingStore("unused"))
    for attribute in ["id", "fingerprint", "dim", "context_length", "causal_text", "logit_scale"]:
        assert getattr(stored, attribute) == getattr(plain, attribute)
    image = Image.new("RGB", (8, 8), "red")
    assert np.array_equal(stored.encode_images([image]), plain.encode_images([image]))
    assert stored.count_tokens(["a b"]).tolist() == plain.count_tokens(["a b"]).tolist()


def test_texts_go_on_where_an_interrupted_run_was(tmp_path):
    texts = [f"text {i}" for i in range(600)]
    interrupted = CountingEncoder(allowed=300)
    with pytest.raises(KeyboardInterrupt):
        Embedder(interrupted, EmbeddingStore(tmp_path)).encode_texts(texts)
    encoder = CountingEncoder()
    rows = Embedder(encoder, EmbeddingStore(tmp_path)).encode_texts(texts)
    assert encoder.encoded == texts[256:]
    assert np.array_equal(rows, FakeEncoder().encode_texts(texts))


def test_a_folder_may_be_the_store(tmp_path):
    embedder = Embedder.open(ENCODER, cache=tmp_path / "own")
    embedder.texts(["a cat"])
    assert EmbeddingStore(tmp_path / "own").report().rows == 1


def test_a_store_that_fails_half_way_leaves_the_count_right(tmp_path, monkeypatch):
    calls = []
    store = EmbeddingStore(tmp_path)
    embedder = Embedder(FakeEncoder(dim=8), store, lambda *call: calls.append(call))
    add = EmbeddingStore.add

    def once(self, *rest, **name):
        monkeypatch.setattr(EmbeddingStore, "add", full)
        return add(self, *rest, **name)

    def full(self, *rest, **name):
        raise StoreError("no room.")

    monkeypatch.setattr(EmbeddingStore, "add", once)
    texts = [str(number) for number in range(3 * STORED_AT_ONCE)]
    with pytest.warns(StoreWarning, match=r"no room\. Going on without"):
        rows = embedder.texts(texts).matrix
    assert rows == pytest.approx(FakeEncoder(dim=8).encode_texts(texts))
    done = [number for _, number, _ in calls]
    assert 0 in done[done.index(STORED_AT_ONCE) :]  # what was stored is embedded again
    assert max(done) == done[-1] == len(texts)
