"""A fit whose sentences a language model writes: asked per class, then per confused pair."""

import base64
import io
import re
import sys

import numpy as np
import pytest
from PIL import Image

import promptboost
from promptboost.data.shots import load_task
from promptboost.llm.client import ModelSettings
from promptboost.llm.description import Describer
from promptboost.llm.generation import ask_all
from promptboost.pool import build_pool, save_pool
from promptboost.pool.io import load_pool
from promptboost.run.fit import thumbnail
from promptboost.run.run_folder import RunFolder
from tests.cli.cli_tools import call
from tests.llm.conftest import _no_keys_and_no_proxy  # noqa: F401
from tests.llm.llm_server import Act, Server
from tests.pool.reader_tools import read_sentences
from tests.run.run_tools import COLOURS, ENCODER, SENTENCES, start_promptboost

pytest.importorskip("openai", reason="needs promptboost[llm]")
pytest.importorskip("anthropic", reason="needs promptboost[llm]")

FIT = ["--encoder", ENCODER, "--shots", "4", "--views", "0"]


def script(question, _):
    name = re.search(r'(?:[Hh]ow does|show) "(\w+)"', question)[1]
    kind = "apart" if question.startswith(("In photos", "The first")) else "alone"
    hue = {"ember": "red", "leaf": "green", "sea": "blue", "night": "dark"}[name]
    return Act(f"1. A {name} is {hue}, seen {kind}.\n2. Unlike ember and leaf, {name} is {hue}.")


def arguments(task, server, *options):
    address = ["--describe", "--model", "m", "--base-url", server.url]
    return ["fit", task / "images", "-o", task / "run", *FIT, *address, *options]


def about_pairs(server):
    return [question for question in server.questions if "how does" in question]


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_classes_and_confused_pairs_are_described_and_the_composer_selects(capsys, task, provider):
    with Server(script) as server:
        answer = call(
            capsys, *arguments(task, server, "--provider", provider, "--send-images", "--json")
        )
    assert answer.code == 0, answer.err
    assert "requests  8 about the classes (0 questions have a reply already)" in answer.err
    assert "confused on training images, by cross-validation: " in answer.err
    assert "one training image of each confused class is sent" in answer.err
    pairs = about_pairs(server)
    assert len(server.questions) == 8 + len(pairs) > 8
    run = RunFolder(task / "run")
    assert run.settings.prompts == str(task / "run" / "descriptions.json")
    written = read_sentences(run.settings.prompts)
    assert list(written) == sorted(COLOURS)
    assert all("alone" in lines[0] for lines in written.values())
    assert any("seen apart" in line for lines in written.values() for line in lines)
    assert not any("Unlike" in line for lines in written.values() for line in lines)
    chosen = {text for name in COLOURS for text in run.ensemble.prompts(name)}
    assert chosen & {line for lines in written.values() for line in lines}
    # Training images only, small and without metadata.
    learn = load_task(run.source, run.settings).learn
    allowed = {thumbnail(image, 512): image.label for image in learn.images}
    for _, body in server.requests:
        content = body["messages"][0]["content"]
        if isinstance(content, str):
            continue
        *images, text = content
        names = re.findall(r'"(\w+)"', text["text"])[:2]
        if provider == "openai":
            urls = [image["image_url"]["url"] for image in images]
        else:
            assert {image["source"]["media_type"] for image in images} == {"image/jpeg"}
            urls = ["data:image/jpeg;base64," + image["source"]["data"] for image in images]
        assert [allowed[url] for url in urls] == names
        opened = Image.open(io.BytesIO(base64.b64decode(urls[0].partition(",")[2])))
        assert (opened.format, dict(opened.getexif())) == ("JPEG", {})
    assert sum(isinstance(b["messages"][0]["content"], list) for _, b in server.requests) == len(
        pairs
    )


def test_test_images_decide_nothing(capsys, task):
    with Server(script) as server:
        assert call(capsys, *arguments(task, server)).code == 0
        first = sorted(server.questions)
    run = RunFolder(task / "run")
    rng = np.random.default_rng(0)
    for image in load_task(run.source, run.settings).held_out.ids:
        noise = rng.integers(0, 255, (16, 20, 3), dtype=np.uint8)
        Image.fromarray(noise).save(task / "images" / image)
    run.replies_path.unlink()
    (run.path / "descriptions.json").unlink()
    with Server(script) as server:
        assert call(capsys, *arguments(task, server, "--overwrite")).code == 0
    assert sorted(server.questions) == first


@pytest.mark.parametrize("limit", [("--max-requests", 3), ("--max-tokens", 40)])
def test_a_budget_stops_before_the_fit_and_no_reply_is_asked_for_again(
    capsys, monkeypatch, task, limit
):
    # Tokens are counted when a reply arrives: with eight workers all questions would be sent by then.
    monkeypatch.setitem(ask_all.__kwdefaults__, "workers", 1)
    with Server(script) as server:
        short = call(capsys, *arguments(task, server, *limit))
        assert short.code == 2
        assert "nothing was fitted: the budget of" in short.err
        assert [file.name for file in (task / "run").iterdir()] == ["replies.jsonl"]
        sent = len(server.questions)
        assert sent == 3
        answer = call(capsys, *arguments(task, server, "--resume"))
    assert answer.code == 0, answer.err
    assert len(set(server.questions)) == len(server.questions) > 8


def test_a_budget_that_ends_among_the_pairs_still_fits(capsys, task):
    with Server(script) as server:
        answer = call(capsys, *arguments(task, server, "--max-requests", 9))
        assert (answer.code, len(server.questions)) == (0, 9)
        again = call(capsys, *arguments(task, server))
        assert again.code == 2
        assert "--overwrite" in again.err
        assert len(server.questions) == 9
        assert call(capsys, *arguments(task, server, "--resume")).code == 0
        assert len(server.questions) == 9
        assert call(capsys, *arguments(task, server, "--overwrite")).code == 0
    assert len(set(server.questions)) == len(server.questions) > 9


def test_a_killed_fit_has_all_replies(task):
    def slow(question, number):
        return Act(script(question, number).text, delay=0.0 if "How does" in question else 30.0)

    with Server(slow) as server:
        words = map(str, arguments(task, server))
        process = start_promptboost(*words, cwd=task, cache=task / "cache")
        replies = task / "run" / "replies.jsonl"
        while process.poll() is None and not (
            replies.exists() and replies.read_text().count("\n") == 4
        ):
            pass
        process.kill()
        process.communicate()
    assert replies.read_text().count("\n") == 4
    with Server(script) as server:
        words = map(str, arguments(task, server))
        process = start_promptboost(*words, cwd=task, cache=task / "cache")
        _, notes = process.communicate()
    assert process.returncode == 0, notes
    assert "4 about the classes (4 questions have a reply already)" in notes
    assert not any("How does" in question for question in server.questions)


@pytest.mark.parametrize(("reply", "sent"), [("n\n", False), ("y\n", True)])
def test_a_terminal_is_asked_first(capsys, task, monkeypatch, reply, sent):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(reply))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    with Server(script) as server:
        answer = call(capsys, *arguments(task, server))
    assert (answer.code == 0) is bool(server.requests) is sent
    assert ("nothing was sent" in answer.err) is not sent
    assert (task / "run").exists() is sent


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (Act(status=401), "401"),
        (Act(status=400), "400"),
        (Act(raw=b"<html>"), "cannot be read"),
        (Act("word " * 5000), "no reply contains a usable sentence"),
    ],
)
def test_a_server_that_gives_no_sentences_leaves_no_run(capsys, task, act, message):
    with Server(lambda *_: act) as server:
        answer = call(capsys, *arguments(task, server))
    assert answer.code == 2
    assert f"nothing was fitted: {message}" in answer.err or message in answer.err
    assert RunFolder(task / "run").state == "missing"


def test_options_that_need_each_other(capsys, task):
    fit = ["fit", task / "images", "-o", task / "run", *FIT]
    assert "add --model NAME" in call(capsys, *fit, "--describe").err
    assert "for --describe" in call(capsys, *fit, "--model", "m").err
    # Without sentences there is one line on how to get some.
    notes = call(capsys, *fit).err.splitlines()
    assert [line for line in notes if "--describe --model NAME" in line and "--prompts" in line]


def test_given_sentences_come_first_and_a_pool_stays_a_pool(capsys, task):
    pool = build_pool(list(SENTENCES), templates=["a {}."], descriptions={"mine": SENTENCES})
    save_pool(pool, task / "pool.jsonl")
    with Server(script) as server:
        one = call(capsys, *arguments(task, server, "--prompts", task / "sentences.json"))
        written = read_sentences(task / "run" / "descriptions.json")
        options = ["--prompts", task / "pool.jsonl", "--overwrite"]
        other = call(capsys, *arguments(task, server, *options))
    assert (one.code, other.code) == (0, 0), one.err + other.err
    assert all(written[name][:3] == texts for name, texts in SENTENCES.items())
    grown = load_pool(task / "run" / "descriptions.jsonl")
    assert grown.templates == ("a {}.",)
    assert {prompt.source for prompt in grown.prompts("sea")} == {"template", "mine", "grown"}


def test_a_file_of_the_same_name_is_not_replaced(capsys, task):
    assert call(capsys, "fit", task / "images", "-o", task / "run", *FIT).code == 0
    (task / "run" / "descriptions.json").write_text("{}")
    with Server(script) as server:
        answer = call(capsys, *arguments(task, server, "--overwrite"))
    assert (answer.code, server.requests) == (2, [])
    assert "move it away" in answer.err
    assert (task / "run" / "descriptions.json").read_text() == "{}"


def test_one_image_per_class_is_not_cross_validated(task):
    notes = []
    with Server(script) as server:
        model = ModelSettings("m", base_url=server.url)
        options = {"encoder": ENCODER, "shots": 1, "views": 0}
        run = promptboost.fit(
            task / "images", task / "run", describe=Describer(model), say=notes.append, **options
        )
    assert any(line.startswith("confused on the training images: ") for line in notes)
    assert run.settings.prompts == str(task / "run" / "descriptions.json")


def test_one_command_describes_fits_and_transfers(capsys, task):
    with Server(script) as server:
        answer = call(capsys, *arguments(task, server, "--transfer", "fake:32-1"))
    assert answer.code == 0, answer.err
    assert "transferred to" in answer.out
    (moved,) = RunFolder(task / "run").results.transfers
    assert moved.encoder == "fake:32-1"
    assert "fake:32-1" in (task / "run" / "report.html").read_text(encoding="utf-8")
    # An encoder that cannot be loaded is an error before anything is fitted.
    with Server(script) as server:
        wrong = call(capsys, *arguments(task, server, "--transfer", "fake:x", "--overwrite"))
    assert wrong.code == 2
    assert moved == RunFolder(task / "run").results.transfers[0]
