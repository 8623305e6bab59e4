import pytest

from tests.report.run_tools import fitted, thumbnails_for, write_run


@pytest.fixture(scope="session")
def fit():
    """An ensemble and its metrics; copy before changing."""
    return fitted()


@pytest.fixture(scope="session")
def emoji_run(fit, tmp_path_factory):
    """A complete run folder; read only."""
    ensemble, metrics = fit
    folder = tmp_path_factory.mktemp("runs") / "emoji-4"
    return write_run(folder, ensemble, metrics, thumbnails_for(metrics))
