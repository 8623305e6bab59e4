"""Images that cannot be used, among those that can, on a real cluster: a line each, and no more."""

import json
from dataclasses import replace

import pytest
from PIL import Image

from promptboost.distributed.answer_shards import Answering, predict_in_shards
from promptboost.distributed.embed import embed_data
from promptboost.distributed.engine import Placement
from promptboost.distributed.evaluate_shards import evaluate_in_shards
from promptboost.errors import DataError
from tests.distributed.shard_tools import (
    FRAGILE,
    FragileEncoder,
    files_below,
    own_cache,
    poison,
    stored,
)


def test_poisoned_images_are_lines_of_the_same_bytes_here_and_on_three_nodes(fitted, cluster):
    folder = fitted / "images" / "sea"
    wrong = poison(folder)
    images = str(fitted / "images")
    places = {"here": Placement(), "there": Placement("ray", workers=3)}
    stores, records = {}, {}
    for name, place in places.items():
        at = replace(place, storage=str(fitted / name), per_shard=6)
        with own_cache(fitted / f"cache-{name}"):
            records[name] = embed_data(images, FRAGILE, place=at)
            stores[name] = stored(FRAGILE)
        output = str(fitted / f"{name}.jsonl")
        how = Answering(encoders=[FRAGILE])
        beside = replace(place, per_shard=6)
        predict_in_shards(fitted / "run", [images], output, how, beside)

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
    """What no image of a shard can be read from is not the fault of the machine."""
    folder = fitted / "bad"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.png").write_bytes(b"poison")
    Image.new("RGB", (8, 8), "red").save(folder / "5.png")
    place = Placement(per_shard=1)
    output = str(fitted / "out.jsonl")
    record = predict_in_shards(fitted / "run", [str(folder)], output, Answering(), place)
    assert (record["images"], record["errors"]) == (6, 5)


def test_an_image_that_one_of_two_encoders_fails_on_is_not_measured(fitted):
    """Its label is known all the same: a class of nothing else must not vanish from the figures."""
    folder = fitted / "images" / "sea"
    Image.new("RGB", FragileEncoder.odd, "red").save(folder / "odd.png")

    def figures(at):
        place = Placement(storage=str(fitted / at), per_shard=6)
        images, both = str(fitted / "images"), ["fake:16-0", FRAGILE]
        return evaluate_in_shards(fitted / "run", images, place, encoder=both)

    found = figures("one")
    assert found["bad_images"] == [
        {"path": f"{folder}/odd.png", "reason": "this size cannot be embedded"}
    ]
    assert found["images"] == 32
    for file in folder.iterdir():
        Image.new("RGB", FragileEncoder.odd, "red").save(file)
    with pytest.raises(DataError, match="the class 'sea' has no images that can be used"):
        figures("all")
