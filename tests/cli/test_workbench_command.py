"""``promptboost workbench``, as it is typed: what cannot be put on it, and what it says."""

import json
import shutil
import threading
import urllib.request

import pytest

from promptboost.run.fit import fit_run
from promptboost.run.holdout import open_held_out
from promptboost.workbench.state import draft_folder, only_editor
from tests.cli.cli_tools import call
from tests.run.run_tools import request, start_promptboost, write_images, write_sentences

pytest.importorskip("fastapi", reason="the extra serve is not installed")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("command")
    write_images(root / "images")
    write_sentences(root / "sentences.json")
    fit_run(**request(root, cache=False))
    return root


@pytest.fixture
def run(root, tmp_path, monkeypatch):
    monkeypatch.setenv("PROMPTBOOST_STATE", str(tmp_path / "state"))
    shutil.copytree(root / "run", tmp_path / "run")
    return tmp_path / "run"


def test_what_is_no_run_is_refused(run, tmp_path, capsys):
    answer = call(capsys, "workbench", tmp_path / "nothing")
    assert answer.code == 2
    assert "nothing" in answer.err
    (run / "metrics.json").unlink()
    assert call(capsys, "workbench", run).code == 2


def test_images_that_are_gone_are_asked_for(run, root, tmp_path, capsys):
    settings = run / "run.toml"
    settings.write_text(settings.read_text().replace(str(root / "images"), str(tmp_path / "gone")))
    answer = call(capsys, "workbench", run, "--no-cache")
    assert answer.code == 2
    assert "--data DATA" in answer.err


def test_a_server_without_a_model_is_no_model(run, capsys):
    answer = call(capsys, "workbench", run, "--base-url", "http://localhost:1/v1")
    assert answer.code == 2
    assert "--model NAME" in answer.err


def test_a_run_is_on_one_workbench_only(run, capsys):
    bench = open_held_out(run, cache=False)
    inside, done = threading.Event(), threading.Event()

    def hold():
        with only_editor(draft_folder(run, bench.ensemble.fingerprint)):
            inside.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(60)
    answer = call(capsys, "workbench", run, "--no-cache")
    done.set()
    holder.join()
    assert answer.code == 2
    assert "another workbench" in answer.err


def test_it_says_where_it_is_and_stops_when_it_is_told(run, tmp_path):
    process = start_promptboost(
        "workbench", str(run), "--json", "--no-cache", cwd=tmp_path, cache=tmp_path / "cache"
    )
    try:
        told = json.loads(process.stdout.readline())
        address, _, token = told["address"].partition("#token=")
        assert address.startswith("http://127.0.0.1:")
        assert len(token) > 30
        asked = urllib.request.Request(
            f"{address}api/state", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(asked, timeout=30) as reply:
            assert json.load(reply)["run"] == "run"
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
