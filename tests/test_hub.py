"""A run goes to a hub and comes back, through the real client and a server on the loopback."""

import ast
import gzip
import hashlib
import io
import json
import re
import sys

import pytest
from PIL import Image

pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")

import yaml

import promptboost
from promptboost import PromptBoostClassifier
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import FileFormatError, PromptBoostError, RunError, SettingError
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


def test_sizes_are_limited_while_downloading(fitted, hub, monkeypatch):
    push_run(fitted / "run", "ann/colors", endpoint=hub.address)
    _, files = hub.revision("ann/colors")
    files["promptboost.json"] += b" " * 2**21
    with pytest.raises(PromptBoostError, match=r"ann/colors: promptboost.json is too large"):
        pull_run("ann/colors", fitted / "back", endpoint=hub.address)
    files["promptboost.json"] = files["promptboost.json"].strip()
    monkeypatch.setattr("promptboost.hub._LARGEST", 10_000)
    with pytest.raises(PromptBoostError, match="is too large"):
        pull_run("ann/colors", fitted / "back", endpoint=hub.address)


@pytest.mark.parametrize(
    "name", ["\0", "x" * 300, "\n", "..\\..\\x", "\ud800", "\u202e", "?a#b", "%2e%2e%2fx", "a/b"]
)
def test_no_head_has_a_name_that_leads_elsewhere(fitted, hub, name):
    push_run(fitted / "run", "ann/colors", endpoint=hub.address)
    _, files = hub.revision("ann/colors")
    manifest = json.loads(files["promptboost.json"])
    manifest["files"][f"head-{name}.safetensors"] = hashlib.sha256(b"x").hexdigest()
    files["promptboost.json"] = json.dumps(manifest).encode()
    with pytest.raises(
        FileFormatError, match="is no file of a run; nothing is downloaded"
    ) as raised:
        pull_run("ann/colors", fitted / "back", endpoint=hub.address)
    assert len(str(raised.value)) < 500
    assert not (fitted / "back").exists()


def test_compressed_answers_are_not_unpacked(fitted, hub):
    push_run(fitted / "run", "ann/colors", endpoint=hub.address)
    bomb, get = gzip.compress(bytes(200 * 2**20)), hub.get

    def answer(handler, path):
        if not path.endswith("promptboost.json"):
            get(handler, path)
            return
        assert handler.headers["Accept-Encoding"] == "identity"
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(bomb)))
        handler.end_headers()
        handler.wfile.write(bomb)

    hub.get = answer
    with pytest.raises(FileFormatError, match=r"promptboost.json is cut off or not JSON"):
        pull_run("ann/colors", fitted / "back", endpoint=hub.address)


@pytest.mark.parametrize("revision", ["../x", "a b", "", "/tmp", "x\0", "-x", "é", "a" * 300])
def test_revisions_are_names(fitted, hub, revision):
    if not revision:
        hub.revision = lambda *_: ("../../..", {})
        hub.repositories["ann/colors"] = [{}]
        with pytest.raises(PromptBoostError, match="names no commit of main"):
            pull_run("ann/colors", fitted / "back", endpoint=hub.address)
    else:
        with pytest.raises(SettingError, match="is no revision"):
            pull_run("ann/colors", fitted / "back", revision=revision, endpoint=hub.address)
    assert not [path for _, path in hub.requests if "resolve" in path]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.toml", b"\xff"),
        ("run.toml", b"a"),
        ("run.toml", b"a = 1"),
        ("run.toml", b"[fit]\nrounds = -1"),
        ("ensemble.json", b"{}"),
    ],
)
def test_messages_name_the_file_as_the_hub_does(fitted, hub, name, content):
    push_run(fitted / "run", "ann/colors", endpoint=hub.address)
    _, files = hub.revision("ann/colors")
    manifest = json.loads(files["promptboost.json"])
    manifest["files"][name] = hashlib.sha256(content).hexdigest()
    files |= {name: content, "promptboost.json": json.dumps(manifest).encode()}
    with pytest.raises(PromptBoostError, match=rf"^ann/colors: {name}"):
        pull_run("ann/colors", fitted / "back", endpoint=hub.address)
    assert not (fitted / "back").exists()


def snippet(card):
    """Return what a model card says to type."""
    return re.search(r"```python\n(.*?)```", card, flags=re.S)[1]


@pytest.fixture
def classifier():
    colors = ("red", "tomato", "blue", "navy")
    X = [Image.new("RGB", (8, 8), color) for color in colors]
    estimator = PromptBoostClassifier(FakeEncoder(64), random_state=0)
    return estimator.fit(X, ["fire", "fire", "ice", "ice"])


def test_a_classifier_goes_to_a_hub_and_its_card_runs(
    classifier, hub, tmp_path, monkeypatch, capsys
):
    commit = promptboost.push_to_hub(classifier, "ann/elements", endpoint=hub.address)
    revision, files = hub.revision("ann/elements")
    assert revision == commit
    assert {"ensemble.json", "README.md", "promptboost.json"} < set(files)
    card = files["README.md"].decode()
    head = yaml.safe_load(card.split("---")[1])
    assert head["library_name"] == "promptboost"
    assert head["pipeline_tag"] == "image-classification"
    back = promptboost.from_pretrained("ann/elements", endpoint=hub.address, cache=False)
    pictures = images()
    expected = classifier.predict_proba(pictures)
    assert back.predict_proba(pictures) == pytest.approx(expected, abs=1e-5)
    # As on the page of the model.
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8), "darkred").save("image.jpg")
    local = promptboost.from_pretrained
    monkeypatch.setattr(
        promptboost,
        "from_pretrained",
        lambda name: local(name, endpoint=hub.address),
        raising=False,
    )
    assert 'from_pretrained("ann/elements")' in snippet(card)
    exec(snippet(card), {})
    answers = ast.literal_eval(capsys.readouterr().out)
    assert [answer["label"] for answer in answers] == ["fire", "ice"]
    assert sum(answer["score"] for answer in answers) == pytest.approx(1)


def test_a_commit_in_the_cache_needs_no_hub(classifier, tmp_path):
    with Hub() as hub:
        commit = promptboost.push_to_hub(classifier, "ann/elements", endpoint=hub.address)
        promptboost.from_pretrained("ann/elements", revision=commit, endpoint=hub.address)
        asked = len(hub.requests)
        again = promptboost.from_pretrained("ann/elements", revision=commit, endpoint=hub.address)
        assert len(hub.requests) == asked
        hub.revision("ann/elements")[1]["ensemble.json"] = b"{}"
        with pytest.raises(FileFormatError, match="does not match its digest"):
            promptboost.from_pretrained("ann/elements", endpoint=hub.address)
    assert again.ensemble == classifier.ensemble_
    with pytest.raises(SettingError, match="is no name on a hub"):
        promptboost.from_pretrained("../elements")


def test_a_folder_is_as_good_as_a_repository(classifier, tmp_path):
    promptboost.save_pretrained(classifier.classifier_, tmp_path / "saved")
    manifest = json.loads((tmp_path / "saved/promptboost.json").read_text())
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((tmp_path / "saved" / name).read_bytes()).hexdigest() == digest
    loaded = promptboost.from_pretrained(tmp_path / "saved", cache=False)
    red = Image.new("RGB", (8, 8), "red")
    assert loaded(red)[0]["label"] == "fire"
    assert [len(answer) for answer in loaded([red, red], top_k=1)] == [1, 1]


def test_a_run_is_pushed_with_its_own_card(fitted, hub):
    commit = promptboost.push_to_hub(fitted / "run", "ann/colors", endpoint=hub.address)
    revision, files = hub.revision("ann/colors")
    assert revision == commit
    assert 'from_pretrained("ann/colors")' in snippet(files["README.md"].decode())
    loaded = promptboost.from_pretrained("ann/colors", endpoint=hub.address)
    assert loaded.ensemble == promptboost.load(fitted / "run").ensemble
    pull_run("ann/colors", fitted / "back", endpoint=hub.address)
