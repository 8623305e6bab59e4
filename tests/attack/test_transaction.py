"""A small part of the kills and races; `make attack` runs many more."""

import os
import sys

import pytest

from tests.attack import __main__ as attacks
from tests.attack import kills, races

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")


def test_nothing_is_lost_mixed_or_stuck_after_a_kill():
    faults = []
    assert kills.run(len(kills.KINDS), 1, faults=faults) == {"ok": len(kills.KINDS)}, faults


def test_nothing_is_mixed_where_two_meet():
    faults = []
    assert races.run(len(races.KINDS) - 2, 1, faults=faults) == {"ok": len(races.KINDS) - 2}, faults


@pytest.mark.parametrize("module", [kills, races])
@pytest.mark.parametrize(("outcomes", "code"), [({"ok": 3}, 0), ({"ok": 2, "mixed": 1}, 1)])
def test_the_command_fails_only_where_harm_was_done(module, outcomes, code, monkeypatch):
    monkeypatch.setattr(module, "run", lambda count, seed: outcomes)
    monkeypatch.setattr(sys, "argv", ["tests.attack", module.__name__.rpartition(".")[2]])
    assert attacks.main() == code
