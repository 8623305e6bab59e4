"""A small part of ``make attack``, the same every time."""

import json
from collections import Counter

import pytest

from tests.attack.mutations import HARMLESS, Case, World, case, outcome

COUNT, PARTS = 300, 4


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("part", range(PARTS))
def test_altered_files_do_no_harm(world, part):
    counts, harm = Counter(), []
    for number in range(part, COUNT, PARTS):
        attack = case(world, 0, number)
        came_to, answer = outcome(world, attack)
        counts[came_to] += 1
        if came_to not in HARMLESS:
            harm.append(f"{came_to}: {attack}: {answer.err[-300:]}")
    assert not harm
    assert (
        min(counts["exit 0"], counts["exit 2"]) >= 20
    )  # it attacks neither too much nor too little


def _altered(world, file, change, folder="greedy"):
    record = json.loads((world.kept / folder / file).read_text())
    change(record)
    return json.dumps(record).encode()


def _vote(record):
    for item in record["rounds"]:
        item["vote"] = 1.7e308


def _encoder(name):
    return lambda record: record.update(encoder_id=name)


@pytest.mark.parametrize(
    ("file", "change", "command", "said"),
    [
        ("ensemble.json", _vote, ("predict", "greedy", "images", "--json"), "rounds[0].vote"),
        ("ensemble.json", _vote, ("show", "greedy"), "rounds[0].vote"),
        (
            "ensemble.json",
            _encoder("fake:" + "9" * 5000 + "-0"),
            ("predict", "greedy", "images"),
            "is not a fake encoder",
        ),
        (
            "ensemble.json",
            _encoder("os:system?command=touch ATTACKED"),
            ("predict", "greedy", "images"),
            "code that would be imported and run",
        ),
        (
            "metrics.json",
            lambda record: record["task"].update(seed=10**400),
            ("report", "greedy"),
            "metrics.json: task.seed: is too large",
        ),
        (
            "metrics.json",
            lambda record: record["methods"][0].update(accuracy=float("nan")),
            ("report", "greedy"),
            "metrics.json: methods[0].accuracy: must be a number, not nan",
        ),
    ],
)
def test_what_is_wrong_is_named(world, file, change, command, said):
    attack = Case("greedy", file, "", _altered(world, file, change), command)
    came_to, answer = outcome(world, attack)
    assert came_to == "exit 2"
    assert said in answer.err


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("rounds = 1" + "0" * 400, "run.toml: fit.rounds: is too large"),
        ("rounds = " + "9" * 5000, "run.toml is not TOML"),
        ("rounds = nan", "run.toml: fit.rounds: must be a number, not nan"),
        (f"seed = {2**80}", "run.toml: fit.seed: is too large"),
        ("seed = 'x'", "run.toml: seed is 'x', but must be a whole number"),
    ],
)
def test_a_setting_that_cannot_be_is_named(world, setting, said):
    name = setting.partition(" ")[0]
    lines = (world.kept / "greedy/run.toml").read_text().split("\n")
    lines = [setting if line.startswith(f"{name} = ") else line for line in lines]
    command = ("transfer", "greedy", "--encoder", "fake:16-1")
    attack = Case("greedy", "run.toml", "", "\n".join(lines).encode(), command)
    came_to, answer = outcome(world, attack)
    assert came_to == "exit 2"
    assert said in answer.err


@pytest.mark.parametrize("option", ["--seed", "--rounds", "--shots"])
@pytest.mark.parametrize("number", [2**80, 10**400])
def test_numbers_that_are_typed_have_limits_too(world, option, number):
    answer = world.call("fit", "images", "-o", "new", option, str(number))
    assert answer.code == 2
    assert f"{option[2:]} is too large, but must be at most {2**63 - 1}" in answer.err
