import pytest

from promptboost.boosting.greedy import search


@pytest.fixture(
    params=[(24, 512), (2, 3), (0, 1)], ids=["default", "few kept, guesses", "none kept, guesses"]
)
def kept_rows(request, monkeypatch):
    """The heuristics must never matter: small instances would never leave the kept rows otherwise.

    Nor would they ever be large enough for guesses.
    """
    if request.param[0] < 24:
        monkeypatch.setattr(search, "CACHED_BYTES", 0)
        monkeypatch.setattr(search, "GUESSES", 2)
    monkeypatch.setattr(search, "KEPT_RISKY_ROWS", request.param[0])
    monkeypatch.setattr(search, "RISKY_ROWS", request.param[1])
