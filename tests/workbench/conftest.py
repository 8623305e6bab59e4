import shutil
from contextlib import contextmanager

import pytest

from promptboost.run.fit import fit_run
from tests.run.run_tools import request, write_sentences
from tests.workbench.workbench_tools import fit_without_residual, on_workbench


@pytest.fixture(scope="package")
def bench_world(tmp_path_factory):
    """A fitted run without residual for the workbench."""
    root = tmp_path_factory.mktemp("benched")
    fit_without_residual(root)
    return root


@pytest.fixture
def bench_run(bench_world, tmp_path, monkeypatch):
    """A copy of that run and a folder for drafts."""
    monkeypatch.setenv("PROMPTBOOST_STATE", str(tmp_path / "state"))
    shutil.copytree(bench_world / "run", tmp_path / "runs" / "run")
    return tmp_path / "runs" / "run"


@pytest.fixture
def labels(bench_world, tmp_path, monkeypatch):
    """Images with labels, two of them wrong, and images without labels."""
    monkeypatch.setenv("PROMPTBOOST_STATE", str(tmp_path / "state"))
    shutil.copytree(bench_world / "images", tmp_path / "images")
    (tmp_path / "new").mkdir()
    for name in ("ember", "leaf", "sea", "night"):
        for number in range(4):
            image = tmp_path / f"images/{name}/{number}.png"
            shutil.move(image, tmp_path / f"new/{name}-{number}.png")
    for number in (4, 5):
        shutil.move(tmp_path / f"images/sea/{number}.png", tmp_path / f"images/ember/{number}0.png")
    write_sentences(tmp_path / "sentences.json")
    return tmp_path


@contextmanager
def labeling(folder, **options):
    """Fit on the images in a folder, and open the run on a workbench with the images without labels."""
    fit_run(**request(folder, "run", cache=False, views=1, views_per_round=1, **options))
    with on_workbench(folder / "run", unlabeled=[str(folder / "new")]) as client:
        client.folder = folder
        yield client


@pytest.fixture
def labeled(labels):
    """A run of eight shots with a wrong label or two."""
    with labeling(labels, shots=8) as client:
        yield client


@pytest.fixture
def unmeasured(labels):
    """A run of two images per class, without held-out images."""
    for folder in (labels / "images").iterdir():
        for image in sorted(folder.iterdir())[:-2]:
            image.unlink()
    with labeling(labels) as client:
        yield client
