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


def test_show_counts_what_is_needed_and_what_is_there(capsys, task):
    asked = options(task, "--methods", "zero-shot,tpb?rounds=2")
    before = call(capsys, "paper", "show", "pez-failure", *asked, "--json").json
    assert (before["fits"], before["cells"], before["kept"]) == (2, 6, 0)
    # 24 images to measure on, and 4 classes, 2 shots, 2 draws, each image and its 2 crops.
    by_name = {one["name"]: one for one in before["encoders"]}
    assert by_name[SOURCE]["images"] == 24 + 4 * 2 * 2 * 3
    assert by_name[TARGET]["images"] == 24
    assert by_name[SOURCE]["seconds"] > 0
    assert before["data"][0]["prompts"] == 4 * (2 + 3)
    call(capsys, "paper", "run", "pez-failure", *asked)
    after = call(capsys, "paper", "show", "pez-failure", *asked, "--json").json
    assert after["kept"] == 6
    assert after["fit_seconds"] == 0
    assert {one["name"]: one for one in after["encoders"]}[SOURCE]["stored"] > 0
    text = call(capsys, "paper", "show", "pez-failure", *asked).out
    assert "2, in 6 cells, of which 6 are there" in text
    # What an earlier image left behind is not there twice, and other crops are to be measured.
    Image.new("RGB", (20, 16), "white").save(next((task / "data" / "colors" / "sea").iterdir()))
    call(capsys, "paper", "run", "pez-failure", *asked)
    assert call(capsys, "paper", "show", "pez-failure", *asked, "--json").json["kept"] == 6
    fewer = call(capsys, "paper", "show", "pez-failure", *asked, "--views", "1", "--json").json
    assert (fewer["cells"], fewer["kept"]) == (6, 2)


def test_show_tells_what_is_missing(capsys, tmp_path):
    answer = call(capsys, "paper", "show", "main", "--data", tmp_path, "-o", tmp_path / "out")
    assert answer.code == 0
    assert "weights are not here" in answer.out
    assert "promptboost data check NAME" in answer.out
    assert "promptboost data check food101" in answer.out  # it has a folder of another name
    assert answer.out.count("with --pools DIR") == 1  # the same of all
    gone = call(capsys, "paper", "show", "main", "--data", tmp_path / "gone").out
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
        (["run", "main", "--data", "gone"], "--data is gone, and there is no such folder"),
        (["run", "main", "--pools", "gone"], "--pools is gone, and there is no such folder"),
    ],
)
def test_bad_input_is_told(capsys, tmp_path, arguments, message):
    answer = call(capsys, "paper", *arguments, "-o", tmp_path / "out", "--encoder", SOURCE)
    assert answer.code == 2
    assert message in answer.err
