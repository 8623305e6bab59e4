import pytest

from promptboost.runs.fit import fit_run
from tests.runs.run_tools import request, write_pictures, write_sentences


@pytest.fixture(autouse=True)
def _own_store(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def task(tmp_path):
    """A folder with pictures and sentences."""
    write_pictures(tmp_path / "pictures")
    write_sentences(tmp_path / "sentences.json")
    return tmp_path


@pytest.fixture
def fitted(task):
    """The same with a finished run."""
    fit_run(request(task))
    return task
