"""Images, shards and predictions at s3:// URLs on a local server."""

import json
import sys
from dataclasses import replace

import pytest
import s3fs
from fsspec.registry import _registry
from moto import settings
from moto.core.responses import ActionAuthenticatorMixin

from promptboost.distributed.answer_shards import predict_in_shards
from promptboost.distributed.embed import embed_data
from promptboost.distributed.engine import Placement, Share
from promptboost.distributed.storage import Storage
from tests.cli.cli_tools import call
from tests.distributed.cluster_tools import ray_cluster
from tests.distributed.shard_tools import own_cache, s3_server, stored
from tests.run.run_tools import ENCODER


@pytest.fixture
def bucket(fitted):
    with s3_server("photos") as url:
        storage = Storage(url)
        for file in sorted((fitted / "images").rglob("*.png")):
            name = file.relative_to(fitted).as_posix()
            storage.write(name, b"poison" if name.endswith("sea/0.png") else file.read_bytes())
        yield url


def predict(fitted, images, output, placement=None, storage=None):
    placement = replace(placement or Placement(), storage=storage, per_shard=6)
    return predict_in_shards(fitted / "run", [images], output, placement, top_k=2)


def test_images_are_read_and_results_written_at_urls(fitted, bucket):
    images = f"{bucket}/images"
    (fitted / "images" / "sea" / "0.png").write_bytes(b"poison")
    with own_cache(fitted / "plain"):
        embed_data(str(fitted / "images"), ENCODER)
        expected = stored(ENCODER)
    placement = Placement(storage=f"{bucket}/work", per_shard=6)
    record = embed_data(images, ENCODER, placement=placement)
    assert (record["images"], len(record["bad_images"])) == (31, 1)
    assert expected.items() <= stored(ENCODER).items()
    again = embed_data(images, ENCODER, placement=placement)
    assert (again["new_shards"], again["new_rows"]) == (0, 0)

    output = f"{bucket}/answers.jsonl"
    for part in (Placement(share=Share(0, 2)), Placement(share=Share(1, 2)), Placement(merge=True)):
        predict(fitted, images, output, part)
    here = fitted / "here.jsonl"
    predict(fitted, str(fitted / "images"), str(here))
    lines = [json.loads(line) for line in Storage(bucket).read("answers.jsonl").splitlines()]
    assert [line["predicted"] for line in lines] == [
        json.loads(line)["predicted"] for line in here.read_text().splitlines()
    ]
    assert lines[0]["image"] == f"{bucket}/images/ember/0.png"
    assert not list(Storage(bucket).names("answers.jsonl.shards/units"))


def test_workers_on_ray_read_and_write_at_urls(fitted, bucket):
    """The nodes inherit the credentials."""
    images = f"{bucket}/images"
    predict(fitted, images, f"{bucket}/here.jsonl", storage=f"{bucket}/here")
    with ray_cluster():
        there = f"{bucket}/there.jsonl"
        record = predict(fitted, images, there, Placement("ray", workers=2), f"{bucket}/there")
    assert (record["images"], record["errors"]) == (32, 1)
    storage = Storage(bucket)
    assert storage.read("there.jsonl") == storage.read("here.jsonl")
    units = sorted(storage.names("here/units"))
    assert units == sorted(storage.names("there/units"))
    assert len(units) == record["new_shards"] == 4
    for unit in units:
        assert storage.read(f"here/units/{unit}") == storage.read(f"there/units/{unit}")


def test_an_image_that_is_not_there_any_more_is_a_line(fitted, bucket):
    listed = [f"{bucket}/images/sea/{number}.png" for number in range(1, 4)]
    listed.insert(1, "s3://nowhere/1.png")
    listed.insert(2, f"{bucket}/images/sea/gone.png")
    manifest = fitted / "list.csv"
    manifest.write_text("path\n" + "".join(f"{place}\n" for place in listed))
    predict(fitted, str(manifest), str(fitted / "out.jsonl"))
    answers = [json.loads(line) for line in (fitted / "out.jsonl").read_text().splitlines()]
    assert [answer["image"] for answer in answers] == listed
    assert [answer["error"] is None for answer in answers] == [True, False, False, True, True]
    assert answers[1]["error"] == "there is no bucket 'nowhere'"


def ask(capsys, fitted, images, storage=None):
    s3fs.S3FileSystem.clear_instance_cache()
    more = () if storage is None else ("--storage", storage)
    answer = call(
        capsys, "predict", fitted / "run", images, "-o", fitted / "out.jsonl", "--quiet", *more
    )
    assert answer.code == 2, answer.err
    assert "a bug in promptboost" not in answer.err
    assert not (fitted / "out.jsonl").exists()
    return answer.err


def test_storage_that_cannot_be_reached_says_what_to_set(fitted, bucket, capsys, monkeypatch):
    images, folder = f"{bucket}/images", str(fitted / "images")
    for place in (("s3://absent/images", None), (folder, "s3://absent/work")):
        said = ask(capsys, fitted, *place)
        assert "there is no bucket 'absent': make it, or correct s3://absent" in said
    with monkeypatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.delenv(name)
        patch.setenv("HOME", str(fitted))
        for place in ((images, None), (folder, f"{bucket}/work")):
            said = ask(capsys, fitted, *place)
            assert f"has no credentials for {bucket}" in said
            assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in said
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        said = ask(capsys, fitted, images)
        assert f"{images} cannot be reached from" in said
        assert "AWS_ENDPOINT_URL" in said
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "s3fs", None)
        patch.delitem(_registry, "s3")
        assert "pip install s3fs" in ask(capsys, fitted, images)


def test_a_refusal_names_the_credentials(fitted, bucket, capsys, monkeypatch):
    # From now on the server looks at who asks, and knows nobody.
    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
    monkeypatch.setattr(ActionAuthenticatorMixin, "request_count", 0)
    for place in ((f"{bucket}/images", None), (str(fitted / "images"), f"{bucket}/work")):
        said = ask(capsys, fitted, *place)
        assert "is refused: " in said
        assert "check the permissions of the credentials" in said
