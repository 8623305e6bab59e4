"""``promptboost paper``: list, show, run and claims."""

import pytest
from PIL import Image

from promptboost.paper.published import entries
from tests.cli.cli_tools import call
from tests.paper.paper_tools import SOURCE, TARGET, write_task


@pytest.fixture
def task(tmp_path):
    write_task(tmp_path)
    return tmp_path


def options(task, *more):
    return [
        *("--data", task / "data", "--pools", task / "pools", "--datasets", "colors"),
        *("--encoder", SOURCE, "--transfer", TARGET, "--shots", "1,2", "--seeds", "1,2"),
        *("-o", task / "out", "--views", "2", *more),
    ]


def test_list_names_every_table_and_figure(capsys):
    answer = call(capsys, "paper", "list", "--json")
    assert answer.code == 0
    listed = answer.json["entries"]
    assert [one["name"] for one in listed] == [entry.name for entry in entries()]
    assert {"name", "title", "kind"} <= set(listed[0])
    assert "pez-failure" in call(capsys, "paper", "list").out


def test_run_prints_the_table_and_goes_on(capsys, task):
    asked = ["paper", "run", "pez-failure", *options(task, "--methods", "zero-shot,tpb?rounds=2")]
    answer = call(capsys, *asked)
    assert answer.code == 0
    assert f"With {SOURCE} → {TARGET} instead of the paper's encoders." in answer.out
    assert "Not compared with the paper's numbers" in answer.out
    assert (task / "out" / "pez-failure" / "table.md").is_file()
    again = call(capsys, *asked, "--json").json["entries"][0]
    assert again["measured_now"] == 0
    assert again["missing"] == []
    assert {one["paper"] for one in again["numbers"]} == {None}


def test_all_stands_for_every_one(capsys, task):
    answer = call(
        capsys, "paper", "run", "all", *options(task, "--methods", "tpb?rounds=2"), "--json"
    )
    assert answer.code == 0
    assert [one["name"] for one in answer.json["entries"]] == [entry.name for entry in entries()]


def test_doctor_counts_what_is_needed_and_what_is_there(capsys, task):
    asked = options(task, "--methods", "zero-shot,tpb?rounds=2")
    before = call(capsys, "paper", "doctor", "pez-failure", *asked, "--json").json
    assert (before["fits"], before["cells"], before["done"]) == (2, 6, 0)
    # 24 images to measure on, and 4 classes, 2 shots, 2 draws, each image and its 2 crops.
    by_name = {encoder["name"]: encoder for encoder in before["encoders"]}
    assert by_name[SOURCE]["images"] == 24 + 4 * 2 * 2 * 3
    assert by_name[TARGET]["images"] == 24
    assert by_name[SOURCE]["seconds"] is None  # not an encoder of the paper
    # Both templates say "the sea".
    assert before["data"][0]["prompts"] == 4 * (2 + 3) - 1
    call(capsys, "paper", "run", "pez-failure", *asked)
    after = call(capsys, "paper", "doctor", "pez-failure", *asked, "--json").json
    assert after["done"] == 6
    text = call(capsys, "paper", "doctor", "pez-failure", *asked).out
    assert "2, in 6 cells, 6 of them done" in text
    # What an earlier image left behind is not there twice, and other crops are to be measured.
    Image.new("RGB", (20, 16), "white").save(next((task / "data" / "colors" / "sea").iterdir()))
    call(capsys, "paper", "run", "pez-failure", *asked)
    assert call(capsys, "paper", "doctor", "pez-failure", *asked, "--json").json["done"] == 6
    fewer = call(capsys, "paper", "doctor", "pez-failure", *asked, "--views", "1", "--json").json
    assert (fewer["cells"], fewer["done"]) == (6, 2)


def test_doctor_lists_what_is_missing(capsys, tmp_path):
    answer = call(capsys, "paper", "doctor", "main", "--data", tmp_path, "-o", tmp_path / "out")
    assert answer.code == 2
    assert "RN50/openai" in answer.out
    assert "promptboost data check NAME" in answer.out
    assert "promptboost data check food101" in answer.out  # it has a folder of another name
    assert answer.out.count("with --pools DIR") == 1  # the same of all
    gone = call(capsys, "paper", "doctor", "main", "--data", tmp_path / "gone").out
    assert gone.count("there is no folder") == 1


def test_claims_say_what_is_not_enough(capsys, task):
    nothing = call(capsys, "paper", "claims", "-o", task / "out")
    assert nothing.code == 2
    assert "paper run main" in nothing.err
    call(capsys, "paper", "run", "pez-failure", *options(task, "--methods", "zero-shot"))
    judged = call(capsys, "paper", "claims", "-o", task / "out", "--json").json["claims"]
    assert len(judged) == 9
    assert {one["verdict"] for one in judged} == {"not enough data"}
    # As after an interruption: cells are there, and the file of all of them is not.
    (task / "out" / "cells.jsonl").unlink()
    assert call(capsys, "paper", "claims", "-o", task / "out", "--json").json["claims"] == judged


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "mian"], "did you mean main"),
        (["run", "main", "--methods", "prompt-magic"], "the paper has no method 'prompt-magic'"),
        (["run", "pez-failure", "--methods", "coop"], "nothing is left of pez-failure"),
        (["run", "main", "--datasets", "gone", "--data", "."], "there is no data set gone"),
        (["run", "main", "--data", "gone"], "--data: there is no folder gone"),
        (["run", "main", "--pools", "gone"], "--pools: there is no folder gone"),
    ],
)
def test_bad_input_is_told(capsys, tmp_path, arguments, message):
    answer = call(capsys, "paper", *arguments, "-o", tmp_path / "out", "--encoder", SOURCE)
    assert answer.code == 2
    assert message in answer.err


def test_times_are_predicted_from_published_rates(capsys):
    needs = call(capsys, "paper", "doctor", "main", "--json").json
    (encoder,) = needs["encoders"]
    images, texts = encoder["images"], encoder["texts"]
    assert encoder["seconds"] == pytest.approx((12.22 * images + 5.96 * texts) / 25_000)
    assert set(needs["training"]) == {"coop", "pez"}


def test_doctor_measures_encoders(capsys, task, monkeypatch):
    from promptboost.paper import needs

    monkeypatch.setattr(needs, "_CALIBRATION", 0.2)
    arguments = ["paper", "doctor", "pez-failure", *options(task, "--methods", "zero-shot")]
    measured = call(capsys, *arguments, "--calibrate", "--json").json
    assert all(each["measured"] and each["seconds"] > 0 for each in measured["encoders"])
    assert "encoders measured here" in measured["checks"]["time"]["state"]
    predicted = call(capsys, *arguments, "--json").json
    assert not any(each["measured"] for each in predicted["encoders"])


def test_doctor_lists_what_is_missing_on_one_screen(capsys, task):
    asked = options(task, "--methods", "zero-shot,tpb?rounds=2")
    ready = call(capsys, "paper", "doctor", "pez-failure", *asked, "--json").json["checks"]
    assert set(ready) == {"fits", "data", "pools", "weights", "device", "disk", "time"}
    assert {ready[name]["to_do"] for name in ("data", "pools", "weights")} == {""}
    answer = call(capsys, "paper", "doctor", "main", "--data", task, "--pools", task / "pools")
    assert answer.code == 2
    assert "0 of 11; missing: imagenet, caltech101, oxford_pets and 8 more" in answer.out
    assert "data prepare NAME" in answer.out
    assert "paper pools" in answer.out
    assert len(answer.out.splitlines()) < 20


def test_pools_of_released_files_are_the_papers(capsys, tmp_path, monkeypatch):
    from promptboost.data.benchmarks import BENCHMARKS
    from promptboost.pool.io import load_pool
    from tests.data.benchmarks.benchmark_tools import tiny, write_tree

    pytest.importorskip("open_clip", reason="needs the extra clip")
    monkeypatch.setitem(BENCHMARKS, "dtd", tiny("dtd"))
    write_tree(tmp_path / "data", "dtd")
    release = tmp_path / "release"
    (release / "full").mkdir(parents=True)
    (release / "full" / "texture_prompts_full.json").write_text(
        '{"banded": ["Many stripes."], "dotted": ["Many dots."]}'
    )
    (release / "full" / "pets_prompts_full.json").write_text('{"pug": ["A dog."]}')
    (release / "descriptors_dtd.json").write_text('{"banded": ["parallel lines"], "dotted": []}')
    asked = ["paper", "pools", release, "--data", tmp_path / "data", "-o", tmp_path / "pools"]
    answer = call(capsys, *asked, "--json")
    assert answer.code == 0
    by_name = {record["dataset"]: record for record in answer.json["pools"]}
    assert [name for name, record in by_name.items() if record["file"]] == ["dtd"]
    assert "classnames.txt is missing" in by_name["imagenet"]["reason"]
    pool = load_pool(tmp_path / "pools" / "dtd.jsonl")
    assert len(pool.templates) == 80
    assert set(pool.texts("banded")) >= {
        "a photo of a banded. Many stripes.",
        "a photo of a banded. banded, which has parallel lines.",
    }
    assert len(pool.texts("banded")) == 80 + 2 + 2
    # A released file given as it is makes the same pool.
    (tmp_path / "raw").mkdir()
    (release / "full" / "texture_prompts_full.json").rename(tmp_path / "raw" / "dtd.json")
    asked = ["--data", tmp_path / "data", "--pools", tmp_path / "raw", "--datasets", "dtd"]
    asked += ["--encoder", SOURCE, "--shots", "1", "--seeds", "1", "--methods", "zero-shot"]
    ran = call(capsys, "paper", "run", "main", *asked, "-o", tmp_path / "out")
    assert ran.code == 0
    said = "Pool of dtd: 164 prompts of 2 classes: 80 templates, 80 of them CLIP's as published; "
    assert said + "sentences: dtd.json 2; 2 concatenations." in ran.out
