"""Unusable images on a real cluster: one line each."""

import json
from dataclasses import replace

from PIL import Image

from promptboost.distributed.answer_shards import predict_in_shards
from promptboost.distributed.embed import embed_data
from promptboost.distributed.engine import Placement
from tests.distributed.shard_tools import (
    files_below,
    own_cache,
    poison,
    stored,
)
from tests.run.run_tools import ENCODER


def test_poisoned_images_are_lines_of_the_same_bytes_here_and_on_three_nodes(fitted, cluster):
    folder = fitted / "images" / "sea"
    wrong = poison(folder)
    images = str(fitted / "images")
    places = {"here": Placement(), "there": Placement("ray", workers=3)}
    stores, records = {}, {}
    for name, placement in places.items():
        at = replace(placement, storage=str(fitted / name), per_shard=6)
        with own_cache(fitted / f"cache-{name}"):
            records[name] = embed_data(images, ENCODER, placement=at)
            stores[name] = stored(ENCODER)
        output = str(fitted / f"{name}.jsonl")
        beside = replace(placement, per_shard=6)
        predict_in_shards(fitted / "run", [images], output, beside)

    assert files_below(fitted / "there") == files_below(fitted / "here")
    assert stores["there"] == stores["here"]
    answered = (fitted / "there.jsonl").read_bytes()
    assert answered == (fitted / "here.jsonl").read_bytes()
    assert (records["there"]["images"], len(stores["there"])) == (32, 32)
    lines = [json.loads(line) for line in answered.splitlines()]
    assert len(lines) == 32 + len(wrong)
    problems = {one["image"]: one["error"] for one in lines if one["error"] is not None}
    listed = {bad["path"]: bad["reason"] for bad in records["there"]["bad_images"]}
    for found in (problems, listed):
        assert found.keys() == {f"{folder}/{name}" for name in wrong}
        for name, word in wrong.items():
            assert word in found[f"{folder}/{name}"]
    assert all(one["predicted"] for one in lines if one["error"] is None)


def test_a_shard_of_nothing_but_poison_is_lines_too(fitted):
    """A shard of unreadable images does not fail."""
    folder = fitted / "bad"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.png").write_bytes(b"poison")
    Image.new("RGB", (8, 8), "red").save(folder / "5.png")
    placement = Placement(per_shard=1)
    output = str(fitted / "out.jsonl")
    record = predict_in_shards(fitted / "run", [str(folder)], output, placement)
    assert (record["images"], record["errors"]) == (6, 5)
