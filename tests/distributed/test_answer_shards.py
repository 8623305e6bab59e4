"""Predictions in shards: the same file for every placement and source."""

import io
import json
import tarfile
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from promptboost.distributed.answer_shards import (
    evaluate_in_shards,
    predict_in_shards,
    write_predictions,
)
from promptboost.distributed.engine import Placement, Share
from promptboost.errors import RunError
from promptboost.model.prediction import FIELDS
from promptboost.run.evaluate import evaluate_run
from tests.cli.cli_tools import call


def predict(root, images, output, placement=None, **how):
    placement = replace(placement or Placement(), storage=None, per_shard=6)
    images = [str(image) for image in images]
    return predict_in_shards(root / "run", images, str(output), placement, **{"top_k": 2, **how})


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def pixels(task):
    """Name, label and bytes of every image."""
    files = sorted((task / "images").rglob("*.png"))
    return [
        (f"{file.parent.name}/{file.name}", file.parent.name, file.read_bytes()) for file in files
    ]


def write_table(task, file):
    names, labels, contents = zip(*pixels(task), strict=True)
    table = pa.table({"path": names, "label": labels, "image": contents})
    pq.write_table(table, file, row_group_size=10)


def write_tar(task, file):
    with tarfile.open(file, "w") as archive:
        for number, (_, label, content) in enumerate(pixels(task)):
            for ending, data in (("png", content), ("cls", label.encode())):
                member = tarfile.TarInfo(f"{number:04d}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def test_one_process_parts_and_ray_write_the_same_answers(fitted, cluster, capsys):
    (fitted / "images" / "sea" / "0.png").write_bytes(b"poison")
    images = [fitted / "images"]
    record = predict(fitted, images, fitted / "here.jsonl")
    assert (record["images"], record["errors"]) == (32, 1)
    for number in range(2):
        predict(fitted, images, fitted / "parts.jsonl", Placement(share=Share(number, 2)))
        assert not (fitted / "parts.jsonl").exists()
    predict(fitted, images, fitted / "parts.jsonl", Placement(merge=True))
    predict(fitted, images, fitted / "ray.jsonl", Placement("ray", workers=2))
    here = (fitted / "here.jsonl").read_bytes()
    assert here == (fitted / "parts.jsonl").read_bytes() == (fitted / "ray.jsonl").read_bytes()
    one_by_one = call(
        *(capsys, "predict", fitted / "run", fitted / "images", "--format", "jsonl"),
        *("--top-k", 2, "--no-cache"),
    )
    assert lines(fitted / "here.jsonl") == list(map(json.loads, one_by_one.out.splitlines()))
    [bad] = [line for line in lines(fitted / "here.jsonl") if line["error"]]
    assert bad["image"].endswith("sea/0.png")
    assert not list(fitted.glob("*.shards"))  # all of it is in the file


def test_tables_tars_manifests_and_folders_have_the_same_answers(fitted):
    write_table(fitted, fitted / "images.parquet")
    write_tar(fitted, fitted / "images.tar")
    names = [name for name, _, _ in pixels(fitted)]
    (fitted / "list.csv").write_text("path\n" + "".join(f"images/{name}\n" for name in names))
    answers = {}
    for source in ("images", "images.parquet", "images.tar", "list.csv"):
        output = fitted / "out.jsonl"
        predict(fitted, [fitted / source], output)
        answers[source] = [(line["predicted"], line["top"]) for line in lines(output)]
    assert len(answers["images"]) == 32
    assert answers["images.parquet"] == answers["images.tar"] == answers["images"]
    assert answers["list.csv"] == answers["images"]
    predict(fitted, [fitted / "images"], fitted / "out.parquet", rules={"min_probability": 0.9})
    table = pq.read_table(fitted / "out.parquet").to_pylist()
    assert [row["top"] for row in table] == [top for _, top in answers["images"]]
    assert {row["predicted"] is None for row in table if row["unsure"]} <= {True}
    assert tuple(table[0]) == FIELDS


def test_figures_are_the_same_from_a_folder_a_table_parts_and_ray(fitted, cluster):
    (fitted / "images" / "sea" / "0.png").write_bytes(b"poison")

    def figures(source, placement=None, out="here"):
        placement = replace(placement or Placement(), storage=str(fitted / out), per_shard=6)
        write = partial(write_predictions, str(fitted / f"{out}.jsonl"))
        return evaluate_in_shards(fitted / "run", str(source), placement, write=write)

    images = fitted / "images"
    write = partial(write_predictions, str(fitted / "plain.jsonl"))
    plain = evaluate_run(fitted / "run", str(images), write=write)
    assert plain["images"] == 31
    assert figures(images) == plain
    figures(images, Placement(share=Share(0, 2)), "parts")
    with pytest.raises(RunError, match="are not in"):
        figures(images, Placement(merge=True), "parts")
    assert "methods" not in figures(images, Placement(share=Share(1, 2)), "parts")
    assert figures(images, Placement(merge=True), "parts") == plain
    assert figures(images, Placement("ray", workers=2), "ray") == plain
    written = [(fitted / f"{n}.jsonl").read_bytes() for n in ("plain", "here", "parts", "ray")]
    assert len(set(written)) == 1
    write_table(fitted, fitted / "images.parquet")
    from_table = figures(fitted / "images.parquet", out="table")
    assert from_table["methods"] == plain["methods"]


def test_a_shard_that_fails_is_reported_and_the_rest_is_kept(fitted, monkeypatch, capsys):
    from promptboost.encoders.fake import FakeEncoder

    whole = FakeEncoder.encode_images

    def fails(self, images):
        images = list(images)
        if broken["now"] and len(images) < 3:
            raise RuntimeError("the card is gone")
        return whole(self, images)

    broken = {"now": True}
    monkeypatch.setattr(FakeEncoder, "encode_images", fails)
    command = ["predict", fitted / "run", fitted / "images", "-o", fitted / "out.jsonl"]
    command += ["--per-shard", 4]
    answer = call(capsys, *command)
    assert answer.code == 2
    assert "shards of images could not be processed" in answer.err
    assert "the card is gone" in answer.err
    assert not (fitted / "out.jsonl").exists()
    done = len(list((fitted / "out.jsonl.shards" / "units").iterdir()))
    assert done > 3
    broken["now"] = False
    again = call(capsys, *command, "--json")
    assert (again.code, again.json["images"]) == (0, 32)
    assert again.json["new_shards"] == again.json["shards"] - done


def test_what_cannot_be_meant_is_said(fitted, capsys):
    images = fitted / "images"
    for more, said in (
        (["--on", "ray"], "add -o FILE.jsonl"),
        (["-o", fitted / "out.txt"], "ends in .jsonl or .parquet"),
        (["-o", fitted / "o.jsonl", "--shard", "2/2"], "0/8"),
        (["-o", fitted / "o.jsonl", "--on", "spark"], "local, ray, or ray://HOST:PORT"),
    ):
        answer = call(capsys, "predict", fitted / "run", images, *more)
        assert (answer.code, said in answer.err) == (2, True), answer.err


def test_shards_reject_and_return_sets_like_one_process(fitted, capsys):
    rules = ["--accept", 0.5, "--coverage", 0.9]
    images = fitted / "images"
    call(capsys, "predict", fitted / "run", images, "-o", fitted / "out.parquet", *rules)
    call(capsys, "predict", fitted / "run", images, "-o", fitted / "out.jsonl", *rules)
    expected = call(capsys, "predict", fitted / "run", images, "--json", *rules).json["predictions"]
    fields = ("predicted", "rejected", "prediction_set")
    for found in (pq.read_table(fitted / "out.parquet").to_pylist(), lines(fitted / "out.jsonl")):
        assert len(found) == len(expected)
        for field in fields:
            assert [one[field] for one in found] == [one[field] for one in expected]
    bare = call(
        capsys,
        *("predict", fitted / "run", images, "-o", fitted / "text.jsonl"),
        *("--reject", "--text-only"),
    )
    assert "no cross-validated training images" in bare.err
