import shutil

import pytest

from promptboost.run.fit import fit_run
from tests.run.run_tools import request, write_images, write_sentences
from tests.serve.server_tools import running, write_run


@pytest.fixture(scope="package")
def world(tmp_path_factory):
    """A fitted run and one without measurements, which see with the same encoder."""
    root = tmp_path_factory.mktemp("served")
    write_images(root / "images")
    write_sentences(root / "sentences.json")
    fit_run(request(root, "colours", cache=False, rounds=1, views=0, views_per_round=0))
    (root / "saved").mkdir()
    write_run(root / "saved")
    return root


@pytest.fixture(scope="package")
def server(world):
    """A server of both that nobody stops."""
    with running({"colours": world / "colours", "saved": world / "saved"}) as client:
        yield client


@pytest.fixture(scope="package")
def bench_world(tmp_path_factory):
    """A fitted run whose sentences decide, for the workbench."""
    root = tmp_path_factory.mktemp("benched")
    write_images(root / "images", count=16, noise=150.0)
    write_sentences(root / "sentences.json")
    fit_run(request(root, "run", cache=False, views=1, views_per_round=1, residual=False))
    return root


@pytest.fixture
def bench_run(bench_world, tmp_path, monkeypatch):
    """A copy of that run, and a folder of its own for drafts."""
    monkeypatch.setenv("PROMPTBOOST_STATE", str(tmp_path / "state"))
    shutil.copytree(bench_world / "run", tmp_path / "runs" / "run")
    return tmp_path / "runs" / "run"
