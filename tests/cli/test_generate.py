import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from promptboost.cli.generate import generate, grow
from promptboost.cli.output import guarded
from promptboost.run.run_folder import RunFolder
from tests.cli.cli_tools import Answer
from tests.cli.cli_tools import call as call_main
from tests.llm.conftest import _no_keys_and_no_proxy  # noqa: F401
from tests.llm.llm_server import Act, Server
from tests.pool.reader_tools import read_sentences
from tests.run.run_tools import heed_ctrl_c

pytest.importorskip("openai", reason="needs promptboost[llm]")


@pytest.fixture
def call(capsys):
    def run(command, *arguments):
        given = [str(argument) for argument in arguments]
        capsys.readouterr()
        code = guarded(lambda: command.main(given, standalone_mode=False) or 0, given)
        caught = capsys.readouterr()
        return Answer(code, caught.out, caught.err)

    return run


def about(question, _):
    name = re.search(r' (?:a |does )"?(\w+)"? look', question)[1]
    return Act(f"Sure! Here you are:\n1. A {name} is bright.\n2. A {name} is round.")


def model(server, *more):
    return ["--model", "a-model", "--base-url", server.url, *more]


def test_a_file_that_fit_takes(call, tmp_path):
    file = tmp_path / "birds.json"
    with Server(about) as server:
        answer = call(generate, "kite", "wren", "-o", file, "--per-class", 2, *model(server))
    assert answer.code == 0
    assert read_sentences(file) == {
        "kite": ["A kite is bright.", "A kite is round."],
        "wren": ["A wren is bright.", "A wren is round."],
    }
    assert f"{file}: 4 sentences of 2 classes" in answer.out
    assert "2 requests, 36 tokens" in answer.out
    assert "lines of replies left out: 2 chat" in answer.err
    assert len((tmp_path / "birds.replies.jsonl").read_text().splitlines()) == 2


def test_the_file_is_made_again_offline_from_the_replies(call, tmp_path):
    file = tmp_path / "birds.json"
    asked = ["kite", "wren", "-o", file, "--per-class", 2, "--json"]
    with Server(about) as server:
        call(generate, *asked, *model(server))
    before = file.read_bytes()
    file.unlink()
    answer = call(generate, *asked, "--model", "a-model")  # no server, no key
    assert answer.code == 0
    assert file.read_bytes() == before
    assert (answer.json["requests"], answer.json["answered_before"]) == (0, 2)


def test_anthropic_is_asked_in_its_own_protocol(call, tmp_path):
    pytest.importorskip("anthropic", reason="needs promptboost[llm]")
    with Server(about) as server:
        options = ["--provider", "anthropic", "--base-url", server.root, "--temperature", 0.5]
        answer = call(generate, "kite", "-o", tmp_path / "k.json", "--model", "m", *options)
    assert answer.code == 0
    assert {path for path, _ in server.requests} == {"/v1/messages"}
    assert server.requests[0][1]["temperature"] == 0.5


@pytest.mark.parametrize("kind", ["cupl", "dclip", "context"])
def test_a_dry_run_shows_questions_and_costs_and_sends_nothing(call, tmp_path, kind):
    file = tmp_path / "birds.json"
    asked = ["kite", "wren", "-o", file, "--questions", kind, "--dry-run"]
    with Server(about) as server:
        text = call(generate, *asked, *model(server))
        found = call(generate, *asked, *model(server), "--json").json
    assert server.requests == []
    assert list(tmp_path.iterdir()) == []
    assert text.code == 0
    assert "kite" in text.out
    assert "nothing was sent" in text.out
    assert found["requests"] == len(found["questions"]) > 0
    assert found["input_tokens"] > 0 < found["output_tokens"]


def test_a_dry_run_needs_no_key(call, tmp_path):
    answer = call(generate, "kite", "-o", tmp_path / "k.json", "--model", "m", "--dry-run")
    assert answer.code == 0


@pytest.mark.parametrize(
    ("provider", "variable"), [("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY")]
)
def test_a_missing_key_is_named(call, tmp_path, provider, variable):
    pytest.importorskip(provider, reason="needs promptboost[llm]")
    answer = call(
        generate, "kite", "-o", tmp_path / "k.json", "--model", "m", "--provider", provider
    )
    assert answer.code == 2
    assert f"{variable} is not set" in answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("unit", "number"), [("requests", 1), ("tokens", 10)])
def test_a_budget_stops_with_what_is_there_and_the_rest_can_follow(call, tmp_path, unit, number):
    file = tmp_path / "birds.json"
    asked = ["kite", "wren", "-o", file, "--per-class", 2, "--json", "--workers", 1]
    with Server(about) as server:
        first = call(generate, *asked, *model(server), f"--max-{unit}", number)
        kept = read_sentences(file)
        second = call(generate, *asked, *model(server))
    assert (first.code, list(kept)) == (0, ["kite"])
    assert first.json["without_new_sentences"] == ["wren"]
    assert first.json["stopped"] == f"the budget of {number} {unit} is used up"
    assert "replies so far are reused" in first.err
    assert (second.code, list(read_sentences(file))) == (0, ["kite", "wren"])
    assert len(server.requests) == 2


def test_an_error_that_ends_it_is_an_error_but_what_came_is_kept(call, tmp_path):
    file = tmp_path / "birds.json"

    def script(question, number):
        return about(question, number) if "kite" in question else Act(status=401)

    with Server(script) as server:
        asked = ["kite", "wren", "-o", file, "--per-class", 2, "--workers", 1]
        answer = call(generate, *asked, *model(server))
        assert answer.code == 2
        assert "401" in answer.err
        assert list(read_sentences(file)) == ["kite"]
        none = call(generate, "wren", "-o", tmp_path / "none.json", *model(server))
    assert none.code == 2
    assert "nothing was written" in none.err
    assert not (tmp_path / "none.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the classes once"),
        (["kite", "--classes", "names.txt"], "give the classes once"),
        (["kite", "Kite"], "same name"),
        (["kite", "--per-class", "0"], "0 is not in the range"),
    ],
)
def test_what_cannot_be_asked(call, tmp_path, arguments, message):
    answer = call(generate, *arguments, "-o", tmp_path / "k.json", "--model", "m")
    assert answer.code == 2
    assert message in answer.err


def test_a_place_that_cannot_be_written_is_found_before_anything_is_asked(call, tmp_path):
    with Server(about) as server:
        for place in (tmp_path / "no" / "k.json", tmp_path):
            answer = call(
                generate, "kite", "-o", place, "--replies", tmp_path / "r.jsonl", *model(server)
            )
            assert answer.code == 2
    assert server.requests == []


def test_names_under_which_something_would_be_lost(call, tmp_path):
    names = tmp_path / "names.json"
    names.write_text('["kite", "wren"]')
    with Server(about) as server:
        for arguments, message in (
            (["kite", "-o", tmp_path / "k.jsonl"], "must end in .json"),
            (["kite", "-o", tmp_path / "k"], "must end in .json"),
            (
                ["kite", "-o", tmp_path / "k.json", "--replies", tmp_path / "k.json"],
                "already contains the replies",
            ),
            (["--classes", names, "-o", names], "already contains the names of the classes"),
        ):
            answer = call(generate, *arguments, *model(server))
            assert (answer.code, message in answer.err) == (2, True), answer.err
    assert server.requests == []
    assert names.read_text() == '["kite", "wren"]'
    assert list(tmp_path.iterdir()) == [names]


def test_a_file_of_sentences_is_not_taken_for_replies(call, tmp_path):
    mine = tmp_path / "mine.json"
    mine.write_text('{"owl": ["Round eyes."]}')
    with Server(about) as server:
        answer = call(
            generate, "kite", "-o", tmp_path / "k.json", "--replies", mine, *model(server)
        )
    assert answer.code == 2
    assert "not a file of replies" in answer.err
    assert mine.read_text() == '{"owl": ["Round eyes."]}'


def test_a_model_that_only_thinks_gets_advice(call, tmp_path):
    with Server(lambda *_: Act("<think>Kites are", finish="length")) as server:
        answer = call(generate, "kite", "-o", tmp_path / "k.json", *model(server))
    assert answer.code == 2
    assert "try a larger --reply-tokens" in answer.err


def test_classes_from_a_file_or_from_images(call, tmp_path, task):
    (tmp_path / "names.txt").write_text("kite\nred_wren\n")
    with Server(about) as server:
        for source, names in (
            (tmp_path / "names.txt", ["kite", "red_wren"]),
            (task / "images", ["ember", "leaf", "night", "sea"]),
        ):
            asked = ["--classes", source, "-o", tmp_path / "x.json", "--questions", "dclip"]
            answer = call(generate, *asked, "--dry-run", "--json", *model(server))
            found = dict.fromkeys(question["class"] for question in answer.json["questions"])
            assert list(found) == names


def test_ctrl_c_keeps_what_was_answered(tmp_path):
    file = tmp_path / "birds.json"
    code = (
        "import sys; from promptboost.cli.output import guarded; "
        "from promptboost.cli.generate import generate; "
        "sys.exit(guarded(lambda: generate.main(sys.argv[1:], standalone_mode=False) or 0, []))"
    )

    def script(question, _):
        return Act(about(question, _).text, delay=0.0 if "kite" in question else 0.3)

    with Server(script) as server:
        asked = ["kite", "wren", "robin", "crow", "-o", str(file), "--workers", "1"]
        asked += [*model(server), "--per-class", "2"]
        process = subprocess.Popen(
            [sys.executable, "-c", code, *asked],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
            preexec_fn=heed_ctrl_c,
        )
        while len(server.requests) < 2 and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        before = len(server.requests)
    assert process.returncode == 130
    assert "the same command again" in said
    assert 2 <= before < 4
    assert not file.exists()
    assert len((tmp_path / "birds.replies.jsonl").read_text().splitlines()) == before


def contrast(question, _):
    name = re.search(r'how does "(\w+)" look', question)[1]
    color = {"ember": "red", "leaf": "green", "sea": "blue", "night": "dark"}[name]
    return Act(f"- The {name} is {color} all over.\n- {color} and nothing else")


def test_a_pool_grown_from_confusions(call, fitted):
    grown, run = fitted / "grown.json", fitted / "run"
    before = read_sentences(fitted / "sentences.json")
    confusions = RunFolder(run).results.confusions
    assert confusions, "the task must be hard enough for some"
    with Server(contrast) as server:
        asked = [run, "-o", grown, "--pairs", 2, "--per-pair", 2, *model(server)]
        text = call(grow, *asked)
        answer = call(grow, *asked, "--json")
    assert text.code == answer.code == 0
    assert f"-o NEW_RUN --config {run}/run.toml --prompts {grown}" in text.out
    assert "slightly optimistic" in text.err
    pairs = [pair["classes"] for pair in answer.json["pairs"]]
    assert 1 <= len(pairs) <= 2
    assert len(server.requests) == 2 * len(pairs)  # both classes of each pair, and once only
    assert set(pairs[0]) == {confusions[0].true, confusions[0].predicted}
    after = read_sentences(grown)
    for name, sentences in before.items():
        assert after[name][: len(sentences)] == sentences
        added = after[name][len(sentences) :]
        assert bool(added) == any(name in pair for pair in pairs)
        assert all(name in line or "nothing else" in line for line in added)


def test_the_command_it_names_fits_again(call, capsys, fitted):
    with Server(contrast) as server:
        asked = [fitted / "run", "-o", fitted / "grown.json", "--json", *model(server)]
        command = call(grow, *asked).json["next"]
    program, *arguments = shlex.split(command.replace("NEW_RUN", str(fitted / "third")))
    assert program == "promptboost"
    assert call_main(capsys, *arguments).code == 0
    kept = RunFolder(fitted / "third").settings
    assert kept == RunFolder(fitted / "run").settings.merged(
        {"prompts": str(fitted / "grown.json")}
    )


def test_growing_asks_nothing_if_something_is_wrong(call, fitted):
    run = fitted / "run"
    with Server(contrast) as server:
        same = call(grow, run, "-o", fitted / "sentences.json", *model(server))
        none = call(grow, fitted / "nothing", "-o", fitted / "g.json", *model(server))
        (fitted / "sentences.json").unlink()
        gone = call(grow, run, "-o", fitted / "g.json", *model(server))
        metrics = json.loads((run / "metrics.json").read_text())
        (run / "metrics.json").write_text(json.dumps({**metrics, "confusions": []}))
        sure = call(grow, run, "-o", fitted / "g.json", *model(server))
    assert [answer.code for answer in (same, none, gone, sure)] == [2] * 4
    assert "choose another name" in same.err
    assert "does not exist" in none.err
    assert "sentences.json" in gone.err
    assert "confuses no classes" in sure.err
    assert server.requests == []
    assert not (fitted / "g.json").exists()


def test_a_dry_run_of_growing(call, fitted):
    with Server(contrast) as server:
        answer = call(grow, fitted / "run", "-o", fitted / "g.json", "--dry-run", *model(server))
    assert answer.code == 0
    assert "look different from" in answer.out
    assert server.requests == []
    assert not (fitted / "g.json").exists()
