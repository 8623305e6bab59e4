import importlib.util
import json

from promptboost.cli.compare import _failures
from tests.cli.cli_tools import call

COMPARE = ("--encoder", "fake:32-0", "--shots", "1,2", "--seeds", "1,2", "--views", "2")


def compare(capsys, task, *options, methods="zero-shot,promptboost"):
    return call(
        capsys,
        "compare",
        task / "images",
        "-o",
        task / "out",
        "--methods",
        methods,
        *COMPARE,
        *options,
    )


def test_what_a_newcomer_sees(capsys, task):
    answer = compare(capsys, task, "--transfer", "fake:32-1")
    assert answer.code == 0
    assert "accuracy in percent, on fake:32-0" in answer.out
    assert "fitted on fake:32-0, measured on fake:32-1" in answer.out
    assert "its text is embedded again" in answer.out
    assert "*" in answer.out
    assert str(task / "out" / "accuracy.svg") in answer.out
    again = compare(capsys, task, "--transfer", "fake:32-1")
    assert again.out == answer.out
    assert "resuming with the results" in again.err


def test_json_has_every_result(capsys, task):
    found = json.loads(compare(capsys, task, "--json").out)
    assert len(found["results"]) == 2 * 2 * 2
    assert found["failed"] == []
    assert {"method", "shots", "seed", "accuracy", "fit_s", "predict_ms"} <= set(
        found["results"][0]
    )


def test_all_leaves_out_what_cannot_be_used_and_says_why(capsys, task):
    one = ("--shots", "1", "--seeds", "1")
    answer = compare(capsys, task, "--json", *one, methods="tpb?rounds=2,all")
    methods = {line["method"] for line in json.loads(answer.out)["results"]}
    assert "tpb?rounds=2" in methods
    assert {"zero-shot", "waffle", "logistic", "tip-adapter", "lp++", "clap"} <= methods
    assert {"cross-modal", "gda", "timo", "proker", "promptboost", "tpb"} <= methods
    assert "promptsrc" not in methods
    noisy = compare(capsys, task, "--shots", "1", "--seeds", "1", methods="all")
    assert "without promptsrc:" in noisy.err


def test_all_without_torch_leaves_out_what_needs_it(capsys, task, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "promptboost.encoders.runtime.find_spec",
        lambda name: None if name == "torch" else there(name),
    )
    answer = compare(capsys, task, "--shots", "1", "--seeds", "1", methods="all")
    assert answer.code == 0
    assert "without coop: gradients of fake:32-0 need torch, which is not installed" in answer.err
    assert "without pez: " in answer.err


def test_mistakes_end_with_a_line(capsys, task):
    for options, says in (
        (("--shots", "one"), "not a list of whole numbers"),
        (("--transfer", "fake:32-0"), "another one"),
    ):
        answer = compare(capsys, task, *options)
        assert answer.code == 2
        assert says in answer.err
    unknown = compare(capsys, task, methods="boosting")
    assert unknown.code == 2
    assert "there is no method 'boosting'" in unknown.err
    assert "methods is empty" in compare(capsys, task, methods=",").err
    nothing = call(capsys, "compare")
    assert nothing.code == 2
    assert "compare my-images -o comparison" in nothing.err


def test_the_list_of_methods(capsys):
    answer = call(capsys, "compare", "--list")
    assert answer.code == 0
    assert "tip-adapter-f" in answer.out
    assert json.loads(call(capsys, "compare", "--list", "--json").out)["coop"].startswith("CoOp")


def test_settings_may_hold_commas(capsys, task):
    spelling = "zero-shot?template=a photo of a {}, a type of light."
    answer = compare(capsys, task, "--json", methods=f"{spelling},tpb?rounds=2,logistic")
    methods = {line["method"] for line in json.loads(answer.out)["results"]}
    assert methods == {spelling, "tpb?rounds=2", "logistic"}
    wrong = compare(capsys, task, methods="logistic,coopp")
    assert "there is no method 'coopp'; did you mean coop?" in wrong.err


def test_a_folder_that_cannot_be_written_to_is_shown_all_the_same(capsys, task):
    assert compare(capsys, task).code == 0
    (task / "out" / "results.csv").unlink()
    (task / "out" / "results.csv").mkdir()  # as good as a read-only one, and root cannot write it
    answer = compare(capsys, task)
    assert answer.code == 1
    assert "accuracy in percent, on fake:32-0" in answer.out
    assert f"failed   no tables in {task / 'out'}: " in answer.out


def test_what_fails_for_one_reason_is_one_line():
    failed = [f"coop, {k} shots, seed 1: no room: 2 GB" for k in (1, 2, 4)]
    assert _failures([*failed, "clap, 1 shots, seed 1: no file"]) == [
        "failed   coop, 1 shots, seed 1 and 2 more: no room: 2 GB",
        "failed   clap, 1 shots, seed 1: no file",
    ]


def test_one_draw_has_no_deviation(capsys, task):
    assert "±" not in compare(capsys, task, "--seeds", "1").out
    assert "±" in compare(capsys, task).out
