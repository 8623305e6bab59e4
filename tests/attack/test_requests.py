"""A small part of ``python -m tests.attack requests``, the same every time."""

from tests.attack.requests import attack, target


def test_hostile_requests_do_no_harm():
    with target() as server:
        counts, harm = attack(server, 400, 0)
    assert not harm
    assert min(counts["refused"], counts["sound"]) >= 20
