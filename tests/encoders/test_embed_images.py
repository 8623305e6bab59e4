import threading

import numpy as np
import pytest

from promptboost.data import LabelledImage, load_data
from promptboost.data.views import draw_view
from promptboost.encoders.embedder import _ENCODED_AT_ONCE, WORKING_SIDE, embed_images
from promptboost.encoders.fake import FakeEncoder
from promptboost.encoders.store import EmbeddingStore
from promptboost.errors import DataError, SettingError
from tests.data.image_tools import encoded, noisy, write_classes

VIEWS = (0, 1, 5)


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


def test_rows_are_those_of_each_view_alone(data):
    encoder = FakeEncoder()
    rows = embed_images(data, encoder, views=VIEWS, seed=3)
    assert rows.shape == (85, 3, 32)
    assert rows.dtype == np.float32
    for index in (0, 41, 84):
        image = data.images[index]
        images = [draw_view(image.open(), 3, image.digest(), number) for number in VIEWS]
        np.testing.assert_array_equal(rows[index], encoder.encode_images(images))


def test_workers_and_order_do_not_matter(data):
    rows = embed_images(data, FakeEncoder(), views=VIEWS, workers=1)
    np.testing.assert_array_equal(rows, embed_images(data, FakeEncoder(), views=VIEWS, workers=7))
    backwards = data.subset(range(len(data))[::-1])
    np.testing.assert_array_equal(
        rows[::-1, ::-1], embed_images(backwards, FakeEncoder(), views=VIEWS[::-1])
    )


def test_many_views_of_few_images(data):
    rows = embed_images(data.subset([0, 1]), FakeEncoder(), views=range(200))
    few = embed_images(data.subset([1]), FakeEncoder(), views=[150])
    np.testing.assert_array_equal(rows[1, 150], few[0, 0])


def test_the_store_keeps_everything(data, tmp_path):
    store = EmbeddingStore(tmp_path / "store")
    encoder = Watched()
    rows = embed_images(data, encoder, views=VIEWS, store=store)
    assert encoder.count == 85 * 3
    np.testing.assert_array_equal(rows, embed_images(data, FakeEncoder(), views=VIEWS))
    np.testing.assert_array_equal(rows, embed_images(data, encoder, views=VIEWS, store=store))
    assert encoder.count == 85 * 3
    embed_images(data, encoder, views=(1, 2), store=store)
    assert encoder.count == 85 * 4
    embed_images(data, encoder, views=(0, 1), seed=1, store=store)
    assert encoder.count == 85 * 5
    embed_images(data, encoder, views=(1,), scale=(0.2, 1.0), store=store)
    assert encoder.count == 85 * 6


def test_renamed_and_repeated_images_are_not_computed_again(data, tmp_path):
    store = EmbeddingStore(tmp_path / "store")
    encoder = Watched()
    rows = embed_images(data, encoder, store=store)
    path = data.images[0].source
    moved = LabelledImage("elsewhere", "bird", path.rename(path.with_name("moved.png")))
    again = embed_images([moved, moved], encoder, store=store)
    assert encoder.count == 85
    np.testing.assert_array_equal(again[:, 0], rows[[0, 0], 0])
    framed = LabelledImage("framed", "bird", moved.source, margin=0.2)
    assert (embed_images([framed], encoder, store=store)[0] != rows[0]).any()


def test_a_bad_image_is_named(tmp_path):
    data = load_data(write_classes(tmp_path, {"cat": 9}))
    data.images[4].source.write_bytes(b"broken")
    with pytest.raises(DataError, match=r"cat/4\.png: not an image of a known kind"):
        embed_images(data, FakeEncoder())
    data.images[4].source.unlink()
    with pytest.raises(DataError, match=r"cat/4\.png: no such file"):
        embed_images(data, FakeEncoder())


def test_a_image_that_changes_meanwhile_is_not_stored_under_the_old_key(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(noisy(1)))

    class Changing(LabelledImage):
        def digest(self):
            digest = super().digest()
            noisy(2).save(tmp_path / "a.png")
            return digest

    with pytest.raises(DataError, match=r"a\.png: changed while it was read"):
        embed_images([Changing("a", "x", tmp_path / "a.png")], FakeEncoder())


def test_decoding_goes_on_while_the_encoder_computes(data):
    begun, decoded_meanwhile = threading.Event(), threading.Event()

    class Waiting(FakeEncoder):
        def encode_images(self, images):
            begun.set()
            assert decoded_meanwhile.wait(10), "nothing was decoded during the first batch"
            return super().encode_images(images)

    class Late(LabelledImage):
        def framed(self, image):
            # Not of the first batch: it can be finished only once the encoder is at work.
            assert begun.wait(10)
            decoded_meanwhile.set()
            return super().framed(image)

    late = [Late(p.id, p.label, p.source) for p in data.images[_ENCODED_AT_ONCE:]]
    assert late
    embed_images([*data.images[:_ENCODED_AT_ONCE], *late], Waiting())


def test_camera_photographs_are_read_smaller():
    sizes = []

    class Sizing(FakeEncoder):
        def encode_images(self, images):
            images = list(images)
            sizes.extend(image.size for image in images)
            return super().encode_images(images)

    photo = LabelledImage("0", "a", encoded(noisy(0, (3600, 2400)), "JPEG"))
    embed_images([photo], Sizing())
    assert WORKING_SIDE <= min(sizes[0]) < 2 * WORKING_SIDE


def test_nothing_is_printed_when_piped(data, capfd):
    embed_images(data, FakeEncoder())
    assert capfd.readouterr() == ("", "")


def test_a_bar_with_rate_and_time_left_on_a_terminal(data, tmp_path, monkeypatch, capsys):
    store = EmbeddingStore(tmp_path / "store")
    embed_images(data.subset(range(40)), FakeEncoder(), store=store)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    embed_images(data, FakeEncoder(), store=store)
    shown = capsys.readouterr().err
    assert "encoding" in shown
    assert "85/85" in shown
    assert "views/s" in shown
    embed_images(data, FakeEncoder(), store=store, progress=False)
    assert capsys.readouterr().err == ""


def test_no_images():
    assert embed_images([], FakeEncoder(), views=VIEWS).shape == (0, 3, 32)


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"views": ()}])
def test_wrong_settings(data, wrong):
    with pytest.raises(SettingError):
        embed_images(data, FakeEncoder(), **wrong)
