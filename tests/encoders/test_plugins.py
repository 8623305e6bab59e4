"""Encoders of other packages: registered, installed, or named by where they live."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import promptboost
from promptboost.encoders import load_encoder, register_encoder
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import EncoderError, SettingError
from promptboost.plugins import PluginWarning, import_object, load_plugins
from promptboost.testing import check_encoder
from tests.run.run_tools import write_images

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin_encoder"


@pytest.fixture
def installed(tmp_path):
    """Install the example as pip would, without network and build."""
    folder = tmp_path / "site"
    shutil.copytree(EXAMPLE, folder)
    declare(folder, "promptboost-colors", "colors = promptboost_colors:load")
    return folder


def declare(folder, name, entry_point):
    about = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text(f"[promptboost.encoders]\n{entry_point}\n")


@pytest.fixture
def plugins(monkeypatch):
    """Look for entry points anew, before and after."""
    load_plugins.cache_clear()
    yield monkeypatch
    load_plugins.cache_clear()


def run(folder, *arguments):
    source = Path(promptboost.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{folder}"}
    script = "from promptboost.cli import main; main()"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


def test_the_example_declares_what_the_tests_install():
    declared = (EXAMPLE / "pyproject.toml").read_text()
    assert '[project.entry-points."promptboost.encoders"]' in declared
    assert 'colors = "promptboost_colors:load"' in declared


def test_fit_with_the_encoder_of_an_installed_package(installed, tmp_path):
    images = write_images(tmp_path / "images", count=3)
    fitted = run(installed, "fit", images, "-o", tmp_path / "run", "--encoder", "colors:8")
    assert fitted.returncode == 0, fitted.stderr
    image = next(images.rglob("*.png"))
    told = run(installed, "predict", tmp_path / "run", image, "--json")
    assert told.returncode == 0, told.stderr
    json.loads(told.stdout)


def test_the_example_is_a_sound_encoder(installed, plugins):
    plugins.syspath_prepend(str(installed))
    encoder = load_encoder("colors:8")
    assert check_encoder(encoder) == []
    assert encoder.id == "colors:8"
    assert load_encoder("promptboost_colors:Colors").id == "colors:16"
    assert load_encoder("promptboost_colors:Colors?size=4").id == "colors:4"
    assert load_encoder("promptboost_colors:Colors", size=5).id == "colors:5"


@pytest.mark.parametrize("module", ["no_such_module_at_all", "leaving_module"])
def test_a_broken_plugin_is_named_once_and_left_out(tmp_path, plugins, module):
    declare(tmp_path, "broken-thing", f"broken = {module}:load")
    (tmp_path / "leaving_module.py").write_text("raise SystemExit('goodbye')")
    declare(tmp_path, "good-thing", "good = promptboost.encoders.fake:FakeEncoder")
    plugins.syspath_prepend(str(tmp_path))
    with pytest.warns(PluginWarning, match=rf"broken = {module}:load.*broken-thing"):
        assert load_plugins("promptboost.encoders")["good"] is FakeEncoder
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "broken" not in load_plugins("promptboost.encoders")


def test_registered_encoders_are_loaded_by_their_prefix(monkeypatch):
    monkeypatch.setattr("promptboost.encoders.registry._registered", {})
    register_encoder("mine", lambda rest, device=None, seed=0: FakeEncoder(int(rest), seed))
    assert load_encoder("mine:8", seed=3).id == "fake:8-3"
    for prefix in ("conse", "hf-hub", "a:b", ""):
        with pytest.raises(SettingError, match="cannot be registered"):
            register_encoder(prefix, FakeEncoder)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_package:Thing", "no module named 'no_such_package'"),
        ("json:NoSuchThing", "the module json has no NoSuchThing"),
        ("json:JSONDecoder", "it lacks id, fingerprint, dim"),
    ],
)
def test_what_cannot_be_loaded_is_explained(name, why):
    with pytest.raises(EncoderError, match=why):
        load_encoder(name)


def test_an_object_is_imported_by_its_name():
    assert import_object("promptboost.encoders.fake:FakeEncoder") is FakeEncoder
    assert import_object("json:JSONDecoder.decode").__name__ == "decode"
    for name in ("json", "json:", ":x"):
        with pytest.raises(SettingError, match=r"package\.module:Name"):
            import_object(name)


def scaled(rows):
    return rows * np.float32(2)


FLAWS = {
    "float32": {"encode_texts": lambda e, t: FakeEncoder.encode_texts(e, t).astype(float)},
    "length is not one": {"encode_images": lambda e, i: scaled(FakeEncoder.encode_images(e, i))},
    "encode_texts returned (4, 31)": {
        "encode_texts": lambda e, t: FakeEncoder.encode_texts(e, t)[:, :-1]
    },
    "depends on what else": {
        "encode_texts": lambda e, t: FakeEncoder.encode_texts(e, [f"{x} {len(t)}" for x in t])
    },
    "same row": {"encode_texts": lambda e, t: FakeEncoder.encode_texts(e, ["a" for _ in t])},
    "not finite": {"encode_texts": lambda e, t: FakeEncoder.encode_texts(e, t) * np.float32("nan")},
    "empty list": {"encode_texts": lambda e, t: FakeEncoder.encode_texts(e, t or ["a"])},
    "iterator": {"encode_images": lambda e, i: FakeEncoder.encode_images(e, i[:])},
    "4 integers": {"count_tokens": lambda e, t: [1.5] * len(t)},
    "cut off": {"count_tokens": lambda e, t: np.ones(len(t), dtype=int)},
    "fails": {"encode_images": lambda e, i: 1 / 0},
    "encode_preprocessed and encode_images": {
        "preprocess": lambda e, i: i.rotate(90).convert("L"),
        "encode_preprocessed": lambda e, i: FakeEncoder.encode_images(e, i),
    },
}


@pytest.mark.parametrize("told", FLAWS)
def test_an_author_is_told_what_is_wrong(told):
    flawed = type("Flawed", (FakeEncoder,), FLAWS[told])
    problems = check_encoder(flawed())
    assert any(told in problem for problem in problems), problems


def test_an_author_is_told_what_is_missing():
    class Started:
        id = ""
        dim = "8"

    problems = check_encoder(Started())
    assert any(problem.startswith("there is no attribute fingerprint: ") for problem in problems)
    assert any(problem.startswith("dim is '8': it must be of type int") for problem in problems)
    assert any(problem.startswith("id is ''") for problem in problems)


def test_other_numbers_the_second_time_are_noticed():
    class Dropout(FakeEncoder):
        def encode_images(self, images):
            rows = super().encode_images(images)
            self.seed += 1
            return rows

    assert any("second time" in problem for problem in check_encoder(Dropout()))
