import shutil

import pytest

from promptboost.run.fit import fit_run
from tests.run.run_tools import request, write_images, write_sentences


@pytest.fixture(scope="package")
def bench_world(tmp_path_factory):
    """A fitted run whose sentences decide, for the workbench."""
    root = tmp_path_factory.mktemp("benched")
    write_images(root / "images", count=16, noise=150.0)
    write_sentences(root / "sentences.json")
    fit_run(**request(root, "run", cache=False, views=1, views_per_round=1, residual=False))
    return root


@pytest.fixture
def bench_run(bench_world, tmp_path, monkeypatch):
    """A copy of that run, and a folder of its own for drafts."""
    monkeypatch.setenv("PROMPTBOOST_STATE", str(tmp_path / "state"))
    shutil.copytree(bench_world / "run", tmp_path / "runs" / "run")
    return tmp_path / "runs" / "run"
