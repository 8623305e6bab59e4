"""A run goes to a hub and comes back, through the real client and a server on the loopback."""

import io
import json
import sys

import pytest

pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")

import promptboost
from promptboost.errors import PromptBoostError, RunError, SettingError
from promptboost.hub import pull_run, push_run
from promptboost.progress import ProgressBars
from promptboost.run.run_folder import RunFolder
from tests.run.hub_server import Hub
from tests.run.test_export import images


@pytest.fixture
def hub():
    with Hub() as server:
        yield server


def test_files_that_come_are_counted(fitted, hub, bars):
    push_run(fitted / "run", "ann/colors", endpoint=hub.address)
    with ProgressBars() as progress:
        pull_run("ann/colors", fitted / "back", endpoint=hub.address, progress=progress)
    counted = [(bar.stage, bar.done, bar.total) for bar in bars if bar.total]
    assert counted == [("getting ann/colors", 6, 6)]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_stage_is_one_line_that_disappears(fitted, hub, monkeypatch, wanted):
    from huggingface_hub.utils import are_progress_bars_disabled

    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = ProgressBars(shown=wanted)
    push_run(fitted / "run", "ann/colors", endpoint=hub.address, progress=progress)
    pull_run("ann/colors", fitted / "back", endpoint=hub.address, progress=progress)
    shown = [part.strip() for part in terminal.getvalue().split("\r") if part.strip()]
    drawn = {part.partition(" …")[0].partition(":")[0] for part in shown}
    stages = {"sending 7 files to ann/colors", "asking for ann/colors", "getting ann/colors"}
    assert drawn == (stages if wanted else set())
    assert "\n" not in terminal.getvalue()
    assert not are_progress_bars_disabled()


def test_a_run_comes_back_as_it_went_and_answers_the_same(fitted, hub):
    run = fitted / "run"
    pushed = push_run(run, "ann/colors", endpoint=hub.address)
    pulled = pull_run("ann/colors", fitted / "back", endpoint=hub.address)
    assert pulled.revision == pushed.revision == hub.revision("ann/colors")[0]
    assert set(pulled.files) == set(pushed.files) - {"promptboost.json"}
    for name in ("ensemble.json", "metrics.json", "residual.json"):
        assert (fitted / "back" / name).read_bytes() == (run / name).read_bytes()
    back = RunFolder(fitted / "back")
    assert back.state == "finished"
    assert back.tables["hub"] == {"repository": "ann/colors", "revision": pushed.revision}
    pictures = images()
    before, after = (promptboost.load(place).predict_proba(pictures) for place in (run, back.path))
    assert after == pytest.approx(before)


def test_no_image_and_no_place_of_this_machine_goes_up(fitted, hub):
    push_run(fitted / "run", "ann/colors", endpoint=hub.address)
    _, files = hub.revision("ann/colors")
    assert {"thumbnails.json", "report.html", "predictions.csv", "explanations.json"} & set(
        files
    ) == set()
    assert {"ensemble.json", "README.md", "promptboost.json"} < set(files)
    for name, content in files.items():
        assert str(fitted).encode() not in content, name
        assert b"data:image" not in content, name
    push_run(fitted / "run", "ann/colors", images=True, endpoint=hub.address)
    assert "thumbnails.json" in hub.revision("ann/colors")[1]


def test_a_revision_is_what_it_was(fitted, hub):
    run = fitted / "run"
    first = push_run(run, "ann/colors", endpoint=hub.address)
    text = (run / "ensemble.json").read_text()
    ensemble = promptboost.load(run).ensemble.add("sea", "waves")
    (run / "ensemble.json").write_text(ensemble.to_json())
    push_run(run, "ann/colors", endpoint=hub.address)
    pull_run("ann/colors", fitted / "old", revision=first.revision, endpoint=hub.address)
    pull_run("ann/colors", fitted / "new", endpoint=hub.address)
    assert (fitted / "old/ensemble.json").read_text() == text
    assert "waves" in (fitted / "new/ensemble.json").read_text()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("ensemble.json", b"{}"),
        ("promptboost.json", b"{}"),
        ("promptboost.json", b"not JSON"),
        ("promptboost.json", b'{"files": {"ensemble.json": "00", "../x": "00"}}'),
        ("promptboost.json", b'{"files": {"ensemble.json": "00", "run.py": "00"}}'),
        ("promptboost.json", None),
        ("ensemble.json", None),
        ("metrics.json", b'{"forged": true}'),
    ],
)
def test_what_is_not_whole_and_sound_is_not_taken(fitted, hub, file, content):
    push_run(fitted / "run", "ann/colors", endpoint=hub.address)
    _, files = hub.revision("ann/colors")
    if content is None:
        del files[file]
    else:
        files[file] = content
    with pytest.raises(PromptBoostError):
        pull_run("ann/colors", fitted / "back", endpoint=hub.address)
    assert not (fitted / "back").exists()


def test_other_files_of_a_repository_stay_there(fitted, hub):
    push_run(fitted / "run", "ann/colors", endpoint=hub.address)
    hub.revision("ann/colors")[1]["setup.py"] = b"raise SystemExit"
    pull_run("ann/colors", fitted / "back", endpoint=hub.address)
    assert not (fitted / "back/setup.py").exists()
    assert ("GET", "/ann/colors/resolve/main/setup.py") not in hub.requests


def test_only_what_the_manifest_lists_is_asked_for(fitted, hub):
    """A stranger's repository may have any number of files that are called as those of a run."""
    push_run(fitted / "run", "ann/colors", endpoint=hub.address)
    _, files = hub.revision("ann/colors")
    listed = set(files)
    more = ("head-more.safetensors", "head-..\\x.safetensors", "report.html")
    files |= dict.fromkeys(more, b"")
    pull_run("ann/colors", fitted / "back", endpoint=hub.address)
    asked = {path.rpartition("/")[2] for _, path in hub.requests if "/resolve/" in path}
    assert asked == listed


def test_what_is_wrong_is_said(fitted, hub):
    with pytest.raises(RunError, match="cannot pull from ann/nothing"):
        pull_run("ann/nothing", fitted / "back", endpoint=hub.address)
    with pytest.raises(RunError, match="cannot push to"):
        push_run(fitted / "run", "ann/colors", endpoint="http://127.0.0.1:9")
    for name in ("colors", "../x", "a/b/c", "a/..", "a b/c"):
        with pytest.raises(SettingError, match="OWNER/NAME"):
            pull_run(name, fitted / "back", endpoint=hub.address)
    push_run(fitted / "run", "ann/colors", endpoint=hub.address)
    before = (fitted / "run/ensemble.json").read_bytes()
    with pytest.raises(RunError, match="--overwrite"):
        pull_run("ann/colors", fitted / "run", endpoint=hub.address)
    pull_run("ann/colors", fitted / "run", overwrite=True, endpoint=hub.address)
    assert (fitted / "run/ensemble.json").read_bytes() == before
    assert json.loads(hub.revision("ann/colors")[1]["promptboost.json"])["version"] == 1
