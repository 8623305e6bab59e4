"""How often a file is opened on its way through the package."""

import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from promptboost.config import FitConfig
from promptboost.data import load_data
from promptboost.data.decode import ImageError
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.fake import FakeEncoder
from promptboost.encoders.store import EmbeddingStore
from promptboost.run.fit import fit_run
from tests.data.image_tools import plain, write_classes

_counters = []


def _hear(event, arguments):
    if event == "open" and _counters and isinstance(arguments[0], str | Path):
        for counter in _counters:
            counter[str(arguments[0])] += 1


sys.addaudithook(_hear)


@contextmanager
def opened():
    counter = Counter()
    _counters.append(counter)
    try:
        yield counter
    finally:
        _counters.remove(counter)


def images_of(folder):
    return [str(path) for path in sorted(folder.rglob("*.png"))]


def counts(counter, folder):
    return {counter[path] for path in images_of(folder)}


def test_a_file_is_read_once_for_its_check_and_digest_and_once_to_be_decoded(tmp_path):
    folder = write_classes(tmp_path / "images", {"a": 3, "b": 3})
    store = EmbeddingStore(tmp_path / "store")
    with opened() as counter:
        data = load_data(folder)
        assert counts(counter, folder) == {1}
        fingerprint = data.fingerprint
        assert len({image.digest() for image in data.images}) > 1
        assert counts(counter, folder) == {1}
        Embedder(FakeEncoder(), store).originals(data)
        assert counts(counter, folder) == {2}
    with opened() as counter:
        again = load_data(folder)
        Embedder(FakeEncoder(), store).originals(again)
        assert again.fingerprint == fingerprint
        assert counts(counter, folder) == {1}


def test_a_file_that_changed_is_read_again(tmp_path):
    folder = write_classes(tmp_path / "images", {"a": 2, "b": 2})
    data = load_data(folder)
    before = [image.digest() for image in data.images]
    plain("teal").save(data.images[0].source)
    after = [image.digest() for image in data.images]
    assert (before[0] != after[0], before[1:] == after[1:]) == (True, True)
    Embedder(FakeEncoder()).originals(data)
    Path(data.images[1].source).unlink()
    with pytest.raises(ImageError, match="no such file"):
        data.images[1].digest()


def test_a_file_that_changes_between_its_digest_and_decoding_is_found_out(tmp_path, monkeypatch):
    folder = write_classes(tmp_path / "images", {"a": 2, "b": 2})
    data = load_data(folder)
    image = data.images[0]
    kept = image.digest()
    plain("teal").save(image.source)
    monkeypatch.setattr(type(image), "digest", lambda self: kept if self is image else b"")
    with pytest.raises(ImageError, match="changed while it was read"):
        Embedder(FakeEncoder()).originals(data.subset([0]))


def test_a_fit_opens_each_image_and_its_sentences_as_often_as_it_must(tmp_path):
    folder = write_classes(tmp_path / "images", {"red": 4, "blue": 4})
    prompts = tmp_path / "mine.json"
    prompts.write_text('{"red": ["It is warm.", " "], "blue": ["It is cold."]}')
    settings = FitConfig(encoder="fake:32-0", shots=2, prompts=str(prompts), views=0)
    for run, reads in (("cold", 2), ("warm", 1)):
        with opened() as counter:
            fit_run(str(folder), tmp_path / run, settings)
        assert counter[str(prompts)] <= 1
        # Some images are opened once more, to be shown in the report.
        assert counts(counter, folder) <= {reads, reads + 1}
