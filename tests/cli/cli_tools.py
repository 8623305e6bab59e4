"""Calling the command line in this process."""

import json
from dataclasses import dataclass

import pytest

from promptboost.cli import main

FIT = ["--encoder", "fake:32-0", "--shots", "4", "--rounds", "3", "--views", "2"]
FIT += ["--views-per-round", "1"]


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self):
        """The one JSON object on stdout."""
        return json.loads(self.out)


def call(capsys: pytest.CaptureFixture, *arguments: object) -> Answer:
    capsys.readouterr()
    with pytest.raises(SystemExit) as leaving:
        main([str(argument) for argument in arguments])
    caught = capsys.readouterr()
    return Answer(int(leaving.value.code or 0), caught.out, caught.err)
