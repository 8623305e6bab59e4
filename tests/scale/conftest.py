import pytest

from tests.runs.conftest import fitted, task  # noqa: F401
from tests.scale.cluster_tools import ray_cluster


@pytest.fixture(scope="session")
def cluster():
    """Ray on three nodes of one core, for all tests of a process: starting it takes ten seconds."""
    with ray_cluster() as started:
        yield started
