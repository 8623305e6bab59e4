"""Streaming listings, and shards that do not change with others."""

import tracemalloc
from pathlib import Path

import pytest

from promptboost.data import load_data
from promptboost.data.source import find_images
from promptboost.distributed.engine import Job, Placement, plan_shards
from promptboost.distributed.images import ImageItem, cut, list_items
from promptboost.distributed.storage import Storage, open_url
from promptboost.errors import DataError, MissingExtraError


def test_a_folder_is_listed_as_one_process_lists_it(task):
    images = task / "images"
    (images / "sea" / "notes.txt").write_text("")
    (images / "stray.png").write_bytes(b"")
    (images / "sea" / "loop").symlink_to(images / "sea", target_is_directory=True)
    data = load_data(str(images), check=False)
    listed = list(list_items(str(images), labeled=True))
    sound = [item for item in listed if not item.problem]
    assert [(item.name, item.label) for item in sound] == [(i.id, i.label) for i in data.images]
    assert {Path(item.path).name for item in listed if item.problem} == {"stray.png", "loop"}
    names = [item.name for item in list_items(str(images)) if not item.problem]
    assert names == [image.id for image in find_images([images]).images]


def test_splits_are_folders_above_the_classes(task):
    images = task / "images"
    moved = task / "splits"
    for split, name in (("train", "sea"), ("test", "leaf")):
        (moved / split).mkdir(parents=True)
        (images / name).rename(moved / split / name)
    items = list(list_items(str(moved), labeled=True))
    assert {(item.split, item.label) for item in items} == {("train", "sea"), ("test", "leaf")}
    expected = [(i.id, i.label, i.split) for i in load_data(str(moved), check=False).images]
    assert [(item.name, item.label, item.split) for item in items] == expected


def test_a_long_manifest_is_never_held_as_a_whole(tmp_path):
    file = tmp_path / "list.jsonl"
    with file.open("w") as stream:
        for number in range(20_000):
            stream.write(f'{{"path": "https://example.org/{number:09d}.jpg", "label": "x"}}\n')
    peaks = []
    for _ in range(3):  # threads of other tests may take memory too, but hardly each time
        tracemalloc.start()
        count = sum(len(shard) for shard in cut(list_items(str(file), labeled=True), 64))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert count == 20_000
    assert min(peaks) < 400_000  # twenty bytes for each


def test_one_image_more_changes_one_shard_or_two():
    items = [ImageItem(f"cat/{number:05d}.jpg", "") for number in range(5000)]
    before = {tuple(shard) for shard in cut(items, 100)}
    after = {
        tuple(shard)
        for shard in cut([*items[:2500], ImageItem("cat/new.jpg", ""), *items[2500:]], 100)
    }
    assert len(before) > 40
    assert len(after - before) <= 3
    assert all(25 <= len(shard) <= 200 for shard in list(cut(items, 100))[:-1])


def test_another_content_or_encoder_is_another_shard(tmp_path):
    job = Job("promptboost.distributed.shard_embeddings:ImageShardWorker", {}, str(tmp_path))

    def name(state, fact):
        shards = [[ImageItem("a", "a", state)]]
        plan = plan_shards(job, shards, [fact], Placement(), of="images", ending=".x")
        return plan.units[0].name

    assert len({name("1", "one"), name("2", "one"), name("1", "two"), name("1", "one")}) == 3


def test_memory_is_a_storage_too(task):
    storage = Storage("memory://shards")
    for file in sorted((task / "images").rglob("*.png")):
        storage.write(f"images/{file.parent.name}/{file.name}", file.read_bytes())
    items = list(list_items("memory://shards/images", labeled=True))
    assert [(item.name, item.label) for item in items] == [
        (i.id, i.label) for i in load_data(str(task / "images"), check=False).images
    ]
    with open_url(items[0].path)[0].open(items[0].path) as file:
        assert file.read(4) == b"\x89PNG"


def test_what_opens_a_url_is_named_where_it_is_missing(monkeypatch):
    import fsspec

    def missing(url, **options):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(MissingExtraError, match="pip install s3fs"):
        list(list_items("s3://bucket/images"))


def test_a_place_that_is_not_there_is_said(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        list(list_items(str(tmp_path / "nothing"), labeled=True))
