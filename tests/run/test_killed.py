"""Fits killed at random moments, and fits without room to write."""

import random
import shlex
import subprocess
import sys
import time

import pytest

from promptboost.run.fit import fit_run
from promptboost.run.run_folder import RunFolder
from tests.run.run_tools import request, start_promptboost

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")

SETTINGS = {"rounds": 40, "views": 6, "views_per_round": 2}
OPTIONS = ["--encoder", "fake:32-0", "--shots", "4", "--rounds", "40", "--views", "6"]
OPTIONS += ["--views-per-round", "2", "--prompts", "sentences.json"]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_fit_killed_again_and_again_ends_as_one_never_killed(task, tmp_path_factory, seed):
    chance = random.Random(seed)
    fit_run(**request(task, "whole", **SETTINGS))
    run, cache = RunFolder(task / "run"), tmp_path_factory.mktemp("other-cache")
    command = ["fit", "images", "-o", "run"]
    states = set()
    for _ in range(4):
        process = start_promptboost(*command, *OPTIONS, "--resume", cwd=task, cache=cache)
        # Importing takes most of the time; the moments that matter come after it.
        deadline = time.monotonic() + 30
        while not run.settings_path.exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.5) if not states else chance.uniform(0.5, 3.0))
        process.kill()
        process.communicate()
        states.add(run.state)
    last = start_promptboost(*command, *OPTIONS, "--resume", cwd=task, cache=cache)
    _, errors = last.communicate(timeout=60)
    assert last.returncode == 0, errors
    assert "unfinished" in states
    for name in ("ensemble.json", "predictions.csv"):
        assert (run.path / name).read_bytes() == (task / "whole" / name).read_bytes()
    assert not list(run.path.glob(".promptboost-*.tmp"))


@pytest.mark.parametrize(
    ("kilobytes", "options"), [(1, []), (8, ["--no-cache"]), (40, ["--no-cache"])]
)
def test_a_fit_without_room_says_so_and_goes_on_later(task, monkeypatch, kilobytes, options):
    monkeypatch.chdir(task)
    fit_run(**request(task, "whole", **SETTINGS))
    # A limit on the size of files stands for a full disk: the same failing write, in other words.
    words = [
        sys.executable,
        "-m",
        "promptboost",
        "fit",
        "images",
        "-o",
        "run",
        *OPTIONS,
        *options,
    ]
    script = f"ulimit -f {kilobytes}; exec {shlex.join(words)}"
    full = subprocess.run(["bash", "-c", script], cwd=task, capture_output=True, text=True)
    assert full.returncode == 2
    assert full.stderr.startswith("error: ")
    assert "File too large" in full.stderr
    assert "promptboost fit images -o run --resume" in full.stderr
    assert not list((task / "run").glob(".promptboost-*.tmp"))
    fit_run(**request(task, resume=True, source="images", prompts="sentences.json", **SETTINGS))
    assert (task / "run/ensemble.json").read_bytes() == (task / "whole/ensemble.json").read_bytes()
