"""Images on their way to embeddings: in order, decoded once, a few at a time."""

import threading

import numpy as np
import pytest
from PIL import Image

import promptboost.encoders.embedder as stream_module
from promptboost.data import load_data
from promptboost.encoders.embedder import Embedder, ImageStream
from promptboost.encoders.fake import FakeEncoder
from promptboost.encoders.store import EmbeddingStore
from tests.data.image_tools import write_classes


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Twenty images, which come in blocks of eight and are encoded four at a time."""
    monkeypatch.setattr(stream_module, "STORED_AT_ONCE", 8)
    monkeypatch.setattr(stream_module, "ENCODED_AT_ONCE", 4)
    return load_data(write_classes(tmp_path / "images", {"cat": 20}))


@pytest.fixture
def reads(monkeypatch):
    """The names of the images that are decoded."""
    names, read = [], stream_module.read_image

    def counted(source, name, **options):
        names.append(name)
        return read(source, name, **options)

    monkeypatch.setattr(stream_module, "read_image", counted)
    return names


def embedder(encoder=None, store=None):
    return Embedder(encoder or FakeEncoder(), store)


def test_blocks_come_in_order_and_a_bad_image_stops_none(data):
    data.images[3].source.write_bytes(b"broken")
    data.images[9].source.unlink()
    expected = FakeEncoder().encode_images(
        [image.open() for number, image in enumerate(data.images) if number not in (3, 9)]
    )
    seen, rows, bad = [], [], {}
    for block in ImageStream(data.images, [embedder()]):
        seen += block.images
        sound = [i for i in range(len(block.images)) if i not in block.bad]
        rows.append(block.rows[0][sound, 0])
        bad |= {item.path: item.reason for item in block.bad.values()}
    assert seen == list(data.images)
    np.testing.assert_array_equal(np.concatenate(rows), expected)
    assert bad == {
        data.images[3].name: "not an image of a known kind",
        data.images[9].name: "no such file",
    }


def test_each_image_is_decoded_once_for_all_encoders_and_views(data, reads, tmp_path):
    store = EmbeddingStore(tmp_path / "store")
    both = [embedder(FakeEncoder(32), store), embedder(FakeEncoder(16), store)]
    blocks = list(ImageStream(data.images, both, views=3))
    assert sorted(reads) == sorted(image.name for image in data.images)
    for one, number in zip(both, (0, 1), strict=True):
        rows = np.concatenate([block.rows[number] for block in blocks])
        np.testing.assert_array_equal(rows, embedder(one.encoder).images(data, views=2))
        assert one.computed["images"] == 60
    reads.clear()
    # One encoder has all in the store, the other nothing.
    third = embedder(FakeEncoder(8), store)
    list(ImageStream(data.images, [both[0], third], views=3))
    assert len(reads) == 20
    assert (both[0].computed["images"], third.computed["images"]) == (60, 60)
    reads.clear()
    list(ImageStream(data.images, both, views=3))
    assert reads == []


def test_a_repeated_image_is_computed_once_and_is_as_bad_as_the_first(data, reads):
    images = [data.images[0]] * 3
    one = embedder()
    (block,) = ImageStream(images, [one])
    assert one.computed["images"] == 1
    assert (block.rows[0] == block.rows[0][0]).all()
    data.images[0].source.write_bytes(b"broken")
    (block,) = ImageStream(images, [embedder()])
    assert set(block.bad) == {0, 1, 2}


def test_the_next_block_is_decoded_while_this_one_is_encoded(data, monkeypatch):
    read, late = stream_module.read_image, threading.Event()
    first_of_next = data.images[8].name

    def told(source, name, **options):
        if name == first_of_next:
            late.set()
        return read(source, name, **options)

    class Waiting(FakeEncoder):
        calls = 0

        def encode_images(self, images):
            self.calls += 1
            if self.calls == 2:  # the last of the first block
                assert late.wait(20), "nothing of the next block was decoded meanwhile"
            return super().encode_images(images)

    monkeypatch.setattr(stream_module, "read_image", told)
    list(ImageStream(data.images, [embedder(Waiting())]))


def test_no_more_images_wait_than_keep_the_threads_busy(data, reads):
    most = 0

    class Slow(FakeEncoder):
        done = 0

        def encode_images(self, images):
            nonlocal most
            threading.Event().wait(0.05)
            most = max(most, len(reads) - self.done)
            self.done += len(images)
            return super().encode_images(images)

    list(ImageStream(data.images, [embedder(Slow())], workers=4))
    # One batch is computed, one is ready, one is being formed, and one is being decoded.
    assert most <= 4 * 4


def test_who_stops_listening_stops_the_threads(data, reads):
    blocks = iter(ImageStream(data.images, [embedder()], workers=1))
    next(blocks)
    blocks.close()
    assert len(reads) < 20


def test_all_views_are_counted_where_images_repeat_or_are_stored(data, tmp_path):
    store = EmbeddingStore(tmp_path / "store")
    list(ImageStream(data.images[:2], [embedder(store=store)]))
    counts = []
    images = [*data.images[:5], data.images[4], data.images[0]]
    list(ImageStream(images, [embedder(store=store)], advance=counts.append))
    assert counts == [4, 3]  # two stored and two repeated, then the others


class Staged(FakeEncoder):
    """Preprocesses in other threads than those of its network."""

    batch_size = 3

    def __init__(self):
        super().__init__()
        self.batches, self.threads = [], {"preprocess": set(), "network": set()}

    def preprocess(self, image):
        self.threads["preprocess"].add(threading.get_ident())
        return np.asarray(image)

    def encode_preprocessed(self, inputs):
        self.threads["network"].add(threading.get_ident())
        self.batches.append(len(inputs))
        return super().encode_images([Image.fromarray(pixels) for pixels in inputs])

    def encode_images(self, images):
        raise AssertionError("images are preprocessed where they are decoded")


def test_preprocessing_runs_where_images_are_decoded(data):
    encoder = Staged()
    rows = embedder(encoder).images(data, views=1)
    assert encoder.threads["preprocess"].isdisjoint(encoder.threads["network"])
    assert len(encoder.threads["network"]) == 1
    # Blocks of four images and their crops, three views at a time.
    assert encoder.batches == [3, 3, 2] * 5
    np.testing.assert_array_equal(rows, embedder().images(data, views=1))


def test_embeddings_are_stored_while_the_next_are_computed(data, tmp_path):
    added = threading.Event()

    class Store(EmbeddingStore):
        def add(self, *args, **options):
            added.set()
            return super().add(*args, **options)

    class Waiting(FakeEncoder):
        calls = 0

        def encode_images(self, images):
            self.calls += 1
            if self.calls == 5:  # the second block has the third and the fourth batch
                assert added.wait(20), "the first block waits until all are computed"
            return super().encode_images(images)

    list(ImageStream(data.images, [embedder(Waiting(), Store(tmp_path / "store"))]))


def test_batches_that_do_not_fit_into_memory_are_halved(data):
    class Small(Staged):
        batch_size = 8

        def encode_preprocessed(self, inputs):
            if len(inputs) > 2:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return super().encode_preprocessed(inputs)

    encoder = Small()
    np.testing.assert_array_equal(embedder(encoder).images(data), embedder().images(data))
    assert encoder.batch_size == 2
    assert set(encoder.batches) == {2}

    class Full(Staged):
        def encode_preprocessed(self, inputs):
            raise RuntimeError("CUDA out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        embedder(Full()).images(data)
