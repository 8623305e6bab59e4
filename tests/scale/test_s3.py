"""Images, shards and answers at s3:// URLs, on a server of this machine."""

import json

import pytest

from promptboost.runs.answer_shards import Answering, predict_in_shards
from promptboost.runs.embed import embed_data
from promptboost.scale.engine import Placement, Share
from promptboost.scale.shards import ShardPlace
from promptboost.scale.storage import Storage
from tests.runs.run_tools import ENCODER
from tests.scale.shard_tools import own_cache, s3_server, stored


@pytest.fixture
def bucket(fitted):
    with s3_server("photos") as url:
        storage = Storage(url)
        for file in sorted((fitted / "images").rglob("*.png")):
            name = file.relative_to(fitted).as_posix()
            storage.write(name, b"poison" if name.endswith("sea/0.png") else file.read_bytes())
        yield url


def test_images_are_read_and_results_written_at_urls(fitted, bucket):
    images = f"{bucket}/images"
    (fitted / "images" / "sea" / "0.png").write_bytes(b"poison")
    with own_cache(fitted / "plain"):
        embed_data(str(fitted / "images"), ENCODER, progress=False)
        expected = stored(ENCODER)
    place = ShardPlace(Placement(), f"{bucket}/work", 6)
    record = embed_data(images, ENCODER, progress=False, place=place)
    assert (record["images"], len(record["bad_images"])) == (31, 1)
    assert expected.items() <= stored(ENCODER).items()
    again = embed_data(images, ENCODER, progress=False, place=place)
    assert (again["new_shards"], again["new_rows"]) == (0, 0)

    output = f"{bucket}/answers.jsonl"
    for placement in (
        Placement(share=Share(0, 2)),
        Placement(share=Share(1, 2)),
        Placement(merge=True),
    ):
        at = ShardPlace(placement, None, 6)
        predict_in_shards(fitted / "run", [images], output, Answering(), at, progress=False)
    here = fitted / "here.jsonl"
    folder = [str(fitted / "images")]
    predict_in_shards(
        fitted / "run", folder, str(here), Answering(), ShardPlace(per_shard=6), progress=False
    )
    lines = [json.loads(line) for line in Storage(bucket).read("answers.jsonl").splitlines()]
    assert [line["predicted"] for line in lines] == [
        json.loads(line)["predicted"] for line in here.read_text().splitlines()
    ]
    assert lines[0]["picture"] == f"{bucket}/images/ember/0.png"
    assert not list(Storage(bucket).names("answers.jsonl.shards/units"))
