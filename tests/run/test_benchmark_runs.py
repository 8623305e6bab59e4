"""A benchmark, fitted: its own draw, its own word for where it is."""

import os
from pathlib import Path

import pytest

from promptboost.config import FitConfig
from promptboost.data import load_data
from promptboost.data.benchmarks import BENCHMARKS
from promptboost.data.shots import coop_few_shot
from promptboost.errors import DataError, RunError
from promptboost.run.fit import fit_run
from promptboost.run.run_folder import RunFolder
from tests.data.benchmarks.benchmark_tools import tiny, write_tree

SETTINGS = FitConfig(encoder="fake:16-0", shots=2, seed=1, views=1)


@pytest.fixture
def textures(tmp_path, monkeypatch):
    monkeypatch.setitem(BENCHMARKS, "dtd", tiny("dtd"))
    monkeypatch.chdir(tmp_path)
    return write_tree(tmp_path / "data", "dtd")


def fit(source, run, **flags):
    return fit_run(source, Path(run), SETTINGS, cache=False, **flags)


def test_the_shots_are_those_of_the_protocol(textures):
    metrics = fit("dtd:data", "run")
    learn, held_out = coop_few_shot(load_data("dtd:data"), 2, 1)
    assert metrics.task.held_out == "test"
    assert metrics.task.held_out_images == len(held_out) == 4
    weighed = RunFolder(Path("run")).weights_path.read_text()
    assert all(f'"{image.id}"' in weighed for image in learn.images)


def test_a_run_knows_its_benchmark_from_any_folder(textures, monkeypatch):
    fit("dtd:data", "run")
    run = RunFolder(Path("run").absolute())
    assert str(run.source) == f"dtd:{Path('data').absolute()}"
    monkeypatch.chdir(textures)
    (run.path / "metrics.json").unlink()
    assert f"fit dtd:{os.path.dirname(textures)} -o" in run.resume_hint
    fit(f"dtd:{textures.parent}", run.path, resume=True)
    with pytest.raises(RunError, match="the images are dtd:"):
        fit(f"dtd:{textures}", run.path, resume=True)


def test_what_is_missing_is_found_before_anything_is_written(textures):
    next(textures.rglob("*.jpg")).unlink()
    with pytest.raises(DataError, match="1 of 12 listed images are missing"):
        fit("dtd:data", "run")
    assert not Path("run").exists()


def test_a_run_is_not_written_among_the_images(textures):
    with pytest.raises(RunError, match="read as a class"):
        fit("dtd:data", "data/run")
