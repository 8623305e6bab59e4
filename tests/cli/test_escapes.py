"""Names and sentences of a stranger, through every command and format: no terminal obeys them."""

import json
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from PIL import Image

from promptboost import PromptEnsemble
from promptboost.model import Round
from tests.cli.cli_tools import call

EVIL = "\x1b]0;x\x07 \x9b31m \u202eowl\u2066 \x7f\x00\x08"
RUNS = Path(__file__).parent.parent / "old_runs"


@pytest.fixture
def strange(tmp_path, monkeypatch):
    """A finished run in which every word that can be a stranger's is one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path / "cache"))
    shutil.copytree(RUNS / "paper", "run")
    text = Path("run/ensemble.json").read_text()
    names = json.loads(text)["class_names"]
    for file in ("ensemble.json", "metrics.json"):
        changed = Path("run", file).read_text()
        for name in names:
            changed = changed.replace(json.dumps(name), json.dumps(f"{name} {EVIL}"))
        Path("run", file).write_text(changed.replace('"{}', '"\\u001b[31m{}'))
    for name in names:
        Path("images", name).mkdir(parents=True)
        Image.new("RGB", (8, 8), "red").save(Path("images", name, "x\x1b[1m.png"))
    Path("images", names[0], "bad\x9b\u202e.png").write_bytes(b"no")
    return names


def strange_ensemble(path, number):
    banks = {f"{name}{EVIL}": {f"{EVIL}{number}": 1} for name in ("fire", "ice")}
    rounds = (Round("{}", banks, 0.0, 0.1),)
    PromptEnsemble(tuple(banks), rounds, encoder_id="fake:16-0").save(path)


def obeyed(text):
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return [c for c in text if unicodedata.category(c) in hidden and c not in "\n"]


COMMANDS = [
    ["show", "run", "--all"],
    ["report", "run"],
    ["issues", "run"],
    ["issues", "one", "--format", "csv"],
    ["issues", f"no{EVIL}"],
    ["show", "one"],
    ["show", "one", "--class", EVIL],
    ["diff", "one", "two"],
    ["diff", "one/ensemble.json", "two", "--class", EVIL],
    ["predict", "one", "images", "--top-k", "2"],
    ["predict", "one", "images", "--top-k", "2", "--format", "csv"],
    ["predict", "one", "images", "--format", "jsonl"],
    ["predict", "one", f"no{EVIL}"],
    ["predict", "one", "images", "--encoder", EVIL],
    ["evaluate", "one", "images"],
    ["evaluate", f"no{EVIL}", "images"],
    ["transfer", "one", "--encoder", "fake:8-0"],
    ["report", "one"],
    ["fit", f"no{EVIL}", "-o", "new"],
    ["fit", "images", "-o", f"new{EVIL}", "--encoder", "fake:8-0"],
    ["compare", f"no{EVIL}", "-o", "cells"],
    ["pool", "check", "strange.json", "--classes", "images"],
    ["pool", "build", "strange.json", "--classes", "images", "-o", "new.json"],
    ["pool", "show", "strange.json"],
    ["pool", "show", f"no{EVIL}"],
    ["pool", "generate", EVIL, "-o", "g.json", "--model", EVIL, "--dry-run"],
    ["doctor", "--encoder", EVIL],
    ["embed", "images", "--encoder", EVIL],
    ["data", "check", EVIL, "images"],
    [EVIL],
]


@pytest.mark.parametrize(
    "arguments", COMMANDS, ids=lambda a: "-".join(a)[:30].encode("ascii", "replace").decode()
)
@pytest.mark.parametrize("as_json", [False, True])
def test_no_command_lets_a_control_character_through(capsys, strange, arguments, as_json):
    for number, name in enumerate(("one", "two")):
        Path(name).mkdir()
        strange_ensemble(Path(name, "ensemble.json"), number)
    sentences = {f"{name}{EVIL}": [f"a {EVIL}"] for name in (*strange, "fire")}
    Path("strange.json").write_text(json.dumps(sentences))
    arguments = [argument.replace("\x00", "") for argument in arguments]
    answer = call(capsys, *arguments, *(["--json"] if as_json else []))
    assert answer.code in (0, 2), answer.err
    assert not obeyed(answer.out)
    assert not obeyed(answer.err)
    assert answer.out or answer.err


def test_a_traceback_shows_no_control_character():
    done = subprocess.run(
        [sys.executable, "-m", "promptboost", "show", "no\x1b]0;x\x07", "--debug"],
        capture_output=True,
        text=True,
    )
    assert "Traceback" in done.stderr
    assert not obeyed(done.stderr)


def test_output_leaves_in_one_place():
    source = Path(sys.modules["promptboost.cli"].__file__).parent
    for file in source.glob("*.py"):
        if file.name != "output.py":
            assert not re.search(r"click\.echo|\bprint\(|sys\.stdout", file.read_text()), file


SHOW = f"{sys.executable} -m promptboost show"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (f"{SHOW} run --all >&-", 0),
        (f"{SHOW} run --all 2>&-", 0),
        (f"{SHOW} run --all >&- 2>&- <&-", 0),
        (f"{SHOW} nowhere 2>&-", 2),
        (f"{SHOW} run --all > /dev/full", 2),
        (f"{SHOW} nowhere 2> /dev/full", 2),
        (f"{SHOW} run --all | true; exit ${{PIPESTATUS[0]}}", 0),
        (f"{SHOW} nowhere 2>&1 >&- | true; exit ${{PIPESTATUS[0]}}", 2),
        (f"{SHOW} ''", 2),
        (f"{SHOW} run --class=", 2),
    ],
)
def test_streams_that_nobody_reads_and_arguments_that_are_empty(tmp_path, script, code):
    if "/dev/full" in script and not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    shutil.copytree(RUNS / "paper", tmp_path / "run")
    # Without it, Python keeps output that could not be written, and writes it again at the end.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, env=buffered
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
