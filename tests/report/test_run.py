import copy
import json

import pytest

from promptboost.errors import FileFormatError, RunError
from promptboost.report import write_card, write_report
from promptboost.report.page import read_run
from tests.report.run_tools import thumbnail, write_run

BOTH = pytest.mark.parametrize("write", [write_report, write_card])


@pytest.fixture
def run(fit, tmp_path):
    return write_run(tmp_path / "run", *fit, {})


@BOTH
def test_no_folder(write, tmp_path):
    with pytest.raises(RunError, match="promptboost fit DATA -o"):
        write(tmp_path / "nothing")


@BOTH
@pytest.mark.parametrize("name", ["ensemble.json", "metrics.json"])
def test_missing_file_is_named(write, name, run):
    (run / name).unlink()
    with pytest.raises(RunError, match=f"has no {name}.*--resume"):
        write(run)


@BOTH
@pytest.mark.parametrize("name", ["ensemble.json", "metrics.json", "run.toml", "thumbnails.json"])
@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\x00", b'["list"]', b"[" * 100_000])
def test_garbled_file_is_named(write, name, content, run):
    if name == "run.toml" and content.startswith(b'["list'):
        content = b"= 1"
    (run / name).write_bytes(content)
    with pytest.raises(FileFormatError, match=name):
        write(run)


@BOTH
def test_no_page_says_where_files_lay(write, run):
    (run / "run.toml").write_text(
        '[fit]\nprompts = "/home/me/words/pets.json"\nencoder = ["RN50@/home/me/model.pt"]\n'
        '[data]\nsource = "/home/me/photos"\n'
    )
    assert "/home/me" not in write(run).read_text(encoding="utf-8")
    shown = read_run(run).settings
    assert shown["fit"] == {"prompts": "pets.json", "encoder": ["RN50@model.pt"]}
    assert shown["data"] == {"source": "photos"}


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("schema_version",), 3, "upgrade"),
        (("schema_version",), "1", "schema_version"),
        (("task",), None, r"Expected `object`.* at `\$\.task`"),
        (("task", "classes"), -1, r"Expected `int` >= 0 - at `\$\.task\.classes`"),
        (("task", "shots"), True, r"task\.shots"),
        (
            ("methods", 0, "accuracy"),
            "high",
            r"Expected `float.*got `str` - at `\$\.methods\[0\]\.accuracy`",
        ),
        (("methods", 0, "accuracy"), float("nan"), r"methods\[0\]\.accuracy"),
        (("methods",), {}, r"Expected `array`.* at `\$\.methods`"),
        (("staged", 3, "learn_accuracy"), None, r"staged\[3\]\.learn_accuracy"),
        (
            ("confusions", 0, "images"),
            [1],
            r"Expected `str`.* at `\$\.confusions\[0\]\.images\[0\]`",
        ),
        (("hardest", 0, "weight"), [], r"hardest\[0\]\.weight"),
    ],
)
def test_wrong_figure_is_named_with_its_place(place, value, message, fit, tmp_path):
    ensemble, metrics = fit
    metrics = copy.deepcopy(metrics)
    inner = metrics
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    run = write_run(tmp_path / "run", ensemble, metrics)
    with pytest.raises(FileFormatError, match=rf"metrics\.json: .*{message}"):
        write_report(run)


@pytest.mark.parametrize("name", ["task", "encoder", "methods"])
def test_required_figures(name, fit, tmp_path):
    metrics = {key: value for key, value in fit[1].items() if key != name}
    run = write_run(tmp_path / "run", fit[0], metrics)
    with pytest.raises(FileFormatError, match=f"missing required field `{name}`"):
        write_report(run)


def test_unknown_figures_of_a_later_version_are_skipped(fit, tmp_path):
    ensemble, metrics = fit
    later = metrics | {"new": 1, "task": metrics["task"] | {"new": 2}}
    assert write_report(write_run(tmp_path / "run", ensemble, later)).is_file()


def test_only_pixels_are_shown(run):
    good = thumbnail("red")
    given = {
        "good": good,
        "svg": "data:image/svg+xml;base64,AAAA",
        "web": "https://example.org/a.png",
        "script": "javascript:alert(1)",
        "quote": good + '" onerror="x',
        "newline": good + "\n",
        "number": 1,
    }
    (run / "thumbnails.json").write_text(json.dumps(given), encoding="utf-8")
    assert read_run(run).thumbnails == {"good": good}


def test_settings_fall_back_to_what_the_ensemble_remembers(run):
    (run / "run.toml").unlink()
    assert read_run(run).settings["settings"] == {"rounds": 12}


def test_names(run, tmp_path, monkeypatch):
    monkeypatch.chdir(run)
    assert read_run(".").name == "run"
    run.rename(tmp_path / "my run")
    assert read_run(tmp_path / "my run").shell_name == "'my run'"
