"""Embeddings in shards: the same files and store for every placement."""

from dataclasses import replace

import pytest
from PIL import Image

from promptboost.distributed.embed import embed_data
from promptboost.distributed.engine import Placement, Share
from promptboost.errors import RunError
from promptboost.pool import build_pool, save_pool
from tests.cli.cli_tools import call
from tests.distributed.shard_tools import FATAL, FatalEncoder, files_below, own_cache, stored
from tests.run.run_tools import ENCODER


def embed(source, out, placement=None, *, per_shard=6, encoder=ENCODER, **options):
    placement = replace(placement or Placement(), storage=str(out), per_shard=per_shard)
    return embed_data(source, encoder, placement=placement, **options)


@pytest.fixture
def lines(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"text number {n % 50}\n" for n in range(60)), encoding="utf-8")
    return str(file)


def test_one_process_parts_and_ray_write_the_same_files_and_store(task, lines, cluster):
    images = str(task / "images")
    stores = []
    with own_cache(task / "plain"):
        embed_data(images, ENCODER, texts=lines, views=1)
        stores.append(stored(ENCODER))
    with own_cache(task / "one"):
        here = embed(images, task / "a", texts=lines, views=1)
        stores.append(stored(ENCODER))
    with own_cache(task / "parts"):
        for number in range(3):
            part = Placement(share=Share(number, 3))
            embed(images, task / "b", part, texts=lines, views=1)
            if number < 2:
                with pytest.raises(RunError, match="are not in"):
                    embed(images, task / "b", Placement(merge=True), texts=lines, views=1)
            assert stored(ENCODER) == {}
        merged = embed(images, task / "b", Placement(merge=True), texts=lines, views=1)
        stores.append(stored(ENCODER))
    with own_cache(task / "ray"):
        there = embed(images, task / "c", Placement("ray", workers=2), texts=lines, views=1)
        stores.append(stored(ENCODER))
    assert files_below(task / "a") == files_below(task / "b") == files_below(task / "c")
    # The texts repeat, and so does a shard of them: it is one file.
    assert len(files_below(task / "a" / "units")) == here["shards"] - 1 == here["new_shards"]
    assert len(stores[0]) == 32 * 2 + 50
    assert stores[0] == stores[1] == stores[2] == stores[3]
    for record in (here, merged, there):
        assert (record["images"], record["new_rows"], record["new_texts"]) == (32, 64, 50)


def test_only_what_is_missing_is_done_again(task):
    images = task / "images"
    embed(str(images), task / "out")
    before = files_below(task / "out" / "units")
    times = {p: p.stat().st_mtime_ns for p in (task / "out" / "units").iterdir()}
    lost = sorted(times)[0]
    lost.unlink()
    (
        images / "sea" / "0.png"
    ).unlink()  # a file less changes the shard that it was in, and no other
    again = embed(str(images), task / "out")
    assert again["new_shards"] in (1, 2)
    assert {
        p: p.stat().st_mtime_ns for p in times if p != lost and p.exists()
    }.items() <= times.items()
    assert set(before) - {lost.name} <= set(files_below(task / "out" / "units"))


def test_an_image_that_cannot_be_read_is_a_line(task, capsys):
    (task / "images" / "sea" / "0.png").write_bytes(b"poison")
    answer = call(
        *(capsys, "embed", task / "images", "--encoder", ENCODER),
        *("--storage", task / "out", "--per-shard", 6),
    )
    assert answer.code == 0
    assert "31 images" in answer.out
    assert f"left out {task}/images/sea/0.png: not an image of a known kind" in answer.err
    assert len(stored(ENCODER)) == 31


def test_a_shard_that_keeps_failing_is_reported_with_its_items_and_the_others_are_done(
    task, monkeypatch
):
    from promptboost.encoders.fake import FakeEncoder

    odd, embed_one, lines = task / "images" / "sea" / "odd.png", FakeEncoder._image, []
    Image.new("RGB", (33, 5), "red").save(odd)

    def fragile(self, image):
        if image.size == (33, 5):
            raise RuntimeError("cannot be embedded")
        return embed_one(self, image)

    with monkeypatch.context() as patch:
        patch.setattr(FakeEncoder, "_image", fragile)
        with pytest.raises(RunError, match=r"1 of \d+ shards of images .*cannot be embedded"):
            embed(str(task / "images"), task / "out", say=lines.append)
    assert len(lines) == 1
    assert str(odd) in lines[0]
    assert embed(str(task / "images"), task / "out")["new_shards"] == 1


def test_an_image_that_kills_its_worker_fails_its_shard_and_the_others_are_done(task, cluster):
    fatal = task / "images" / "sea" / "fatal.png"
    Image.new("RGB", FatalEncoder.kills, "red").save(fatal)
    images, placement, lines = str(task / "images"), Placement("ray", workers=2), []
    with pytest.raises(RunError, match=r"1 of .* its worker ended in the last of 4 tries"):
        embed(images, task / "out", placement, encoder=FATAL, say=lines.append)
    assert any(str(fatal) in line for line in lines)
    fatal.unlink()
    record = embed(images, task / "out", placement, encoder=FATAL)
    assert record["images"] == 32
    assert record["new_shards"] <= 2


def test_a_broken_encoder_fails_the_shards_and_what_is_done_is_kept(task, monkeypatch):
    from promptboost.encoders.fake import FakeEncoder

    embed(str(task / "images" / "sea"), task / "out")
    done = files_below(task / "out" / "units")

    def broken(self, image):
        raise RuntimeError("no memory on the card")

    monkeypatch.setattr(FakeEncoder, "_image", broken)
    with pytest.raises(
        RunError, match=r"shards of images could not be processed.*no memory on the card"
    ):
        embed(str(task / "images"), task / "out")
    assert files_below(task / "out" / "units") == done


def test_a_pool_is_embedded_for_a_fit_by_shard(task, capsys):
    """The store holds everything that a fit reads, bit for bit."""
    sentences = task / "sentences.json"
    with own_cache(task / "plain"):
        record = call(capsys, "embed", "--texts", sentences, "--encoder", ENCODER, "--json").json
        plain = stored(ENCODER)
    answer = call(
        *(
            capsys,
            "embed",
            "--texts",
            sentences,
            "--encoder",
            ENCODER,
            "--classes",
            task / "images",
        ),
        *("--storage", task / "out", "--per-shard", 10, "--json"),
    )
    assert answer.code == 0, answer.err
    assert answer.json["shards"] == 8  # of each class, 10 texts and the rest
    assert stored(ENCODER) == plain
    assert record["new_texts"] == answer.json["new_texts"] == 4 * (16 + 3)


def test_a_saved_pool_without_templates_is_embedded_by_shard(task, capsys):
    sentences = {"cat": ["a tabby"], "dog": ["a hound", "a pug"]}
    save_pool(build_pool(sentences, templates=(), descriptions=sentences), task / "pool.jsonl")
    asked = ["embed", "--texts", task / "pool.jsonl", "--encoder", ENCODER, "--json"]
    with own_cache(task / "plain"):
        assert call(capsys, *asked).json["new_texts"] == 5  # and the names of the classes
        plain = stored(ENCODER)
    assert call(capsys, *asked, "--storage", task / "out").code == 0
    assert stored(ENCODER) == plain


def test_a_real_encoder_writes_the_same_bytes_here_and_on_ray(task, cluster):
    """The last bit depends on which images are encoded together, which is fixed by the shards."""
    texts = task / "texts.txt"
    texts.write_text("a red thing\nsomething blue and cold\n" * 3, encoding="utf-8")
    for out, placement in (("a", None), ("b", Placement("ray", workers=1))):
        with own_cache(task / f"cache-{out}"):
            embed(
                *(str(task / "images" / "sea"), task / out, placement),
                encoder="conse:lite0",
                texts=str(texts),
            )
    assert files_below(task / "a") == files_below(task / "b")
