"""A small part of ``python -m tests.attack parsers``, the same every time."""

import pytest

from tests.attack import surroundings
from tests.attack.mutations import World
from tests.attack.parsers import NAMES, attack


def test_altered_files_are_read_or_refused_in_a_few_words():
    counts, harm = attack(None, 100, 0)
    assert not harm
    assert set(counts) == set(NAMES)
    for outcomes in counts.values():
        assert min(outcomes["read"], outcomes["refused"]) >= 5


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("surroundings"))


# The last one, thousands of classes, takes minutes.
@pytest.mark.parametrize("kind", surroundings.KINDS[:-1], ids=lambda kind: kind.__name__)
def test_faults_around_a_command_do_no_harm(world, kind):
    if kind is surroundings.archives_of_strangers:
        pytest.importorskip("pyarrow", reason="needs promptboost[ray]")
    kind(world)
