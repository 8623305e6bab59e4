import pytest

from promptboost.run.fit import fit_run
from tests.run.run_tools import request, write_images, write_sentences


@pytest.fixture
def task(tmp_path):
    """A folder with images and sentences."""
    write_images(tmp_path / "images")
    write_sentences(tmp_path / "sentences.json")
    return tmp_path


@pytest.fixture
def fitted(task):
    """The same with a finished run."""
    fit_run(request(task))
    return task
