"""Whoever waits at a terminal is told for what, and a file stays clean."""

import io
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest

from promptboost.evaluation.cells import CompareRequest
from promptboost.evaluation.compare import compare
from promptboost.progress import learning
from promptboost.runs.fit import fit_run
from promptboost.runs.issues import find_issues
from promptboost.runs.refit import RefitRequest, refit_run
from tests.runs.run_tools import ENCODER, request


@pytest.fixture
def run(task):
    """A run with a residual."""
    fit_run(request(task, composer="gradient", rounds=1, views=4, views_per_round=None))
    return task / "run"


def fit(run, progress, **asked):
    asked = {"composer": "gradient", "rounds": 1, "views": 4, "views_per_round": None, **asked}
    wanted = request(run.parent, run="again", overwrite=True, **asked)
    fit_run(replace(wanted, progress=progress))


def rounds(run, progress):
    fit(run, progress, composer="greedy", rounds=2)


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
        (
            issues,
            ["encoding:", "judging each image by the others:", "folds/s", "looking for copies …"],
        ),
        (fit, ["looking for copies …", "composing:", "views/s", "measuring …"]),
        (rounds, ["composing:", "composing round 2 of 2:", "views/s"]),
        (refit, ["looking for copies …", "learning the residual:", "views/s", "measuring …"]),
        (comparison, ["looking for copies …", "comparing:", "cells/s"]),
    ],
)
def test_a_wait_says_what_for(run, monkeypatch, job, said):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    job(run, True)
    text = terminal.getvalue()
    assert job is comparison or "\n" not in text, "one bar at a time"
    assert [part for part in said if part not in text] == []
    seen = len(text)
    job(run, False)
    assert terminal.getvalue()[seen:] == ""


@pytest.mark.parametrize("job", [fit, rounds, refit])
def test_the_bar_of_a_fit_gets_to_its_end(run, monkeypatch, job):
    bars = []

    @contextmanager
    def watched(*given, **named):
        with learning(*given, **named) as bar:
            bars.append(bar)
            monkeypatch.setattr(bar, "update", lambda rows: setattr(bar, "n", bar.n + rows))
            yield bar

    monkeypatch.setattr("promptboost.runs.learned.learning", watched)
    job(run, False)
    (bar,) = bars
    assert bar.n == bar.total > 0
