"""A small part of the kills and races; `make attack` runs many more."""

import os

import pytest

from tests.attack import kills, races

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")


def test_nothing_is_lost_mixed_or_stuck_after_a_kill():
    faults = []
    assert kills.run(len(kills.KINDS), 1, faults=faults) == {"ok": len(kills.KINDS)}, faults


def test_nothing_is_mixed_where_two_meet():
    faults = []
    assert races.run(len(races.KINDS) - 2, 1, faults=faults) == {"ok": len(races.KINDS) - 2}, faults
