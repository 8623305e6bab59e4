import pytest

from tests.distributed.cluster_tools import ray_cluster
from tests.run.run_tools import write_images, write_sentences


@pytest.fixture
def noisy_task(tmp_path, monkeypatch):
    """Noisy images, sentences and a store."""
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path / "store"))
    write_images(tmp_path / "images", noise=60)
    write_sentences(tmp_path / "sentences.json")
    return tmp_path


@pytest.fixture(scope="session")
def cluster():
    """Three Ray nodes of one core, started once per process."""
    with ray_cluster() as started:
        yield started
