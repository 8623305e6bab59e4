"""Where work is done: typed, or in the table [scale] of a TOML file."""

import click
import pytest

from promptboost.cli import promptboost
from promptboost.config import SCALE
from tests.cli.cli_tools import call


@pytest.fixture
def file(fitted):
    """Settings for work on Ray in small shards, kept in a folder of their own."""
    path = fitted / "scale.toml"
    path.write_text(
        f'[scale]\non = "ray"\nworkers = 2\nstorage = "{fitted / "kept"}"\nper_shard = 6\n'
    )
    return path


def commands(group, context):
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", one) for inner, one in commands(command, context))
        else:
            yield name, command


def test_every_command_that_says_where_takes_a_file():
    options = {
        name: {parameter.name for parameter in command.params}
        for name, command in commands(promptboost, click.Context(promptboost))
    }
    takes = {name for name, own in options.items() if "on" in own}
    assert takes >= {
        "fit", "embed", "pool embed", "predict", "evaluate", "compare", "paper run"
    }  # fmt: skip
    assert {name for name in takes if "config" not in options[name]} == set()
    assert set(SCALE) <= set().union(*(options[name] for name in takes))


def test_a_file_says_where_and_in_what_shards(fitted, file, cluster, capsys):
    predict = ["predict", fitted / "run", fitted / "images", "-o"]
    assert call(capsys, *predict, fitted / "here.jsonl").code == 0
    answer = call(capsys, *predict, fitted / "there.jsonl", "--config", file, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["shards"] > 3
    assert any((fitted / "kept").rglob("*.*"))
    assert (fitted / "there.jsonl").read_bytes() == (fitted / "here.jsonl").read_bytes()


@pytest.mark.parametrize("typed", [["--on", "local"], ["--shard", "0/1"]])
def test_what_is_typed_wins(fitted, file, typed, capsys, monkeypatch):
    monkeypatch.setattr("promptboost.distributed.cluster.RayEngine", None)  # nobody may ask for it
    embed = ["embed", fitted / "images", "--encoder", "fake:32-0", "--config", file]
    answer = call(capsys, *embed, *typed)
    assert answer.code == 0, answer.err
    assert any((fitted / "kept").rglob("*.*"))


def test_workers_that_are_typed_still_need_ray(fitted, capsys):
    answer = call(capsys, "embed", fitted / "images", "--encoder", "fake:32-0", "--workers", 2)
    assert (answer.code, "are for --on ray" in answer.err) == (2, True)


def test_a_comparison_in_parts_takes_one(fitted, file, capsys):
    compare = ["compare", fitted / "images", "-o", fitted / "cells", "--methods", "zero-shot"]
    compare += ["--encoder", "fake:32-0", "--shots", 1, "--seeds", 1, "--config", file]
    assert call(capsys, *compare, "--shard", "0/1").code == 0
    assert call(capsys, *compare, "--merge").code == 0
    assert (fitted / "cells" / "results.csv").is_file()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot read the settings"),
        ("on = 3 =", "is not TOML"),
        ('on = "ray"', "has no table [scale]"),
        ("scale = 3", "must be a table"),
        ("[scale]\nnodes = 2", "no setting 'nodes'; it has on, workers, cores, storage, per_shard"),
        ("[scale]\nworkers = true", "must be a whole number"),
        ("[scale]\nworkers = 0\non = 'ray'", "'--workers'"),
        ("[scale]\non = 'moon'", "give local, ray, or ray://HOST:PORT"),
    ],
)
def test_a_file_that_is_wrong_is_told(fitted, text, said, capsys):
    file = fitted / "wrong.toml"
    if text is not None:
        file.write_text(text)
    embed = ["embed", fitted / "images", "--encoder", "fake:32-0", "--config", file]
    answer = call(capsys, *embed)
    assert (answer.code, said in answer.err) == (2, True), answer.err
