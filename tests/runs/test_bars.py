"""Whoever waits at a terminal is told for what, and a file stays clean."""

import io
import sys

import pytest

from promptboost.evaluation.cells import CompareRequest
from promptboost.evaluation.compare import compare
from promptboost.runs.fit import fit_run
from promptboost.runs.issues import find_issues
from promptboost.runs.refit import RefitRequest, refit_run
from tests.runs.run_tools import ENCODER, request


@pytest.fixture
def run(task):
    """A run with a residual."""
    fit_run(request(task, composer="gradient", rounds=1, views=4, views_per_round=None))
    return task / "run"


def issues(run, progress):
    find_issues(run, progress=progress)


def refit(run, progress):
    refit_run(RefitRequest(run, progress=progress))


def comparison(run, progress):
    methods = ("zero-shot", "promptboost")
    asked = {"methods": methods, "shots": (1,), "seeds": (1,), "encoder": ENCODER}
    compare(
        CompareRequest(str(run.parent / "images"), run.parent / "out", progress=progress, **asked)
    )


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (issues, ["encoding:", "judging each image by the others …", "looking for copies …"]),
        (refit, ["looking for copies …", "learning the residual …", "measuring …"]),
        (comparison, ["looking for copies …", "comparing:", "cells/s"]),
    ],
)
def test_a_wait_says_what_for(run, monkeypatch, job, said):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    job(run, True)
    text = terminal.getvalue()
    assert [part for part in said if part not in text] == []
    seen = len(text)
    job(run, False)
    assert terminal.getvalue()[seen:] == ""
