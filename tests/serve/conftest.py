import pytest

from promptboost.run.fit import fit_run
from tests.run.run_tools import request, write_images, write_sentences
from tests.serve.server_tools import running, write_run


@pytest.fixture(scope="package")
def world(tmp_path_factory):
    """A fitted run and one without metrics, with the same encoder."""
    root = tmp_path_factory.mktemp("served")
    write_images(root / "images")
    write_sentences(root / "sentences.json")
    fit_run(**request(root, "colors", cache=False, rounds=1, views=0, views_per_round=0))
    (root / "saved").mkdir()
    write_run(root / "saved")
    return root


@pytest.fixture(scope="package")
def server(world):
    """A server of both runs."""
    with running({"colors": world / "colors", "saved": world / "saved"}) as client:
        yield client
