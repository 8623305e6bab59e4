"""Progress bars of commands: one per stage, each complete in the end."""

import io
import logging
import sys
import warnings

import pytest

from promptboost.cli import main
from promptboost.cli.output import Output, guarded, prepare_streams
from promptboost.progress import ProgressBars

ENCODER = ("--encoder", "fake:32-0")
PAPER = ("--preset", "paper", "--rounds", 3, "--views-per-round", 1)


def run(*arguments):
    with pytest.raises(SystemExit) as leaving:
        main([str(argument) for argument in arguments])
    assert not leaving.value.code


def check(bars, *expected):
    """Check that bars came in this order, one at a time, and were complete in the end."""
    stages = [bar.stage for bar in bars]
    assert [stage for stage in stages if stage in expected] == list(expected)
    assert [bar for bar in bars if bar.others] == []
    assert [bar for bar in bars if bar.done != bar.total] == []


def fit(task, *options):
    run("fit", task / "images", "-o", task / "new", *ENCODER, "--shots", 2, "--views", 2, *options)


@pytest.mark.parametrize("algorithm", [(), PAPER])
def test_a_fit(task, bars, algorithm):
    fit(task, *algorithm)
    check(
        bars,
        *(
            "checking images",
            "looking for copies",
            "encoding images",
            "encoding images",
            "encoding texts",
        ),
        *("composing", "fitting logistic regression", "evaluating rounds", "writing the run"),
    )


def test_quiet_and_json_show_none(task, bars):
    fit(task, "--quiet")
    run("refit", task / "new", "--quiet")
    run("issues", task / "new", "--json")
    assert bars == []


def test_a_fit_without_a_store(task, bars):
    fit(task, "--no-cache")
    check(bars, "composing", "fitting the residual", "evaluating rounds", "writing the run")


def test_a_fit_with_one_image_a_class(task, bars):
    run("fit", task / "images", "-o", task / "new", *ENCODER, "--shots", 1)
    check(bars, "composing", "fitting the residual", "evaluating rounds", "writing the run")


def test_what_is_done_with_a_run(fitted, bars):
    run("refit", fitted / "run")
    check(
        bars, "looking for copies", "fitting the residual", "evaluating rounds", "writing the run"
    )
    bars.clear()
    run("evaluate", fitted / "run", fitted / "images")
    check(bars, "checking images", "looking for copies")
    bars.clear()
    run("issues", fitted / "run")
    check(bars, "checking images", *2 * ["classifying held-out images"], "looking for copies")


def test_a_class_without_images(fitted, bars):
    run("edit", fitted / "run", "-o", fitted / "more", "--add-class", "fog=grey light")
    bars.clear()
    run("refit", fitted / "more")
    check(bars, "fitting the residual", "evaluating rounds", "writing the run")


def test_a_comparison_embeds_first(task, bars):
    run(
        *("compare", task / "images", "-o", task / "out", *ENCODER, "--shots", "1,2"),
        *("--seeds", 1, "--transfer", "fake:32-1", "--methods", "zero-shot,logistic,promptboost"),
    )
    check(
        bars,
        *("checking images", "looking for copies"),
        *("encoding images", "encoding images", "comparing"),
        *("encoding images", "encoding images", "comparing"),
    )


def log(text):
    logging.lastResort.handle(logging.makeLogRecord({"msg": text, "levelno": logging.WARNING}))


@pytest.mark.parametrize("say", [Output().note, log])
def test_a_line_is_written_above_the_bar(monkeypatch, say):
    for place, name in ((logging, "lastResort"), (warnings, "showwarning"), (sys, "excepthook")):
        monkeypatch.setattr(place, name, getattr(place, name))  # as they were, in the end
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    prepare_streams()
    with ProgressBars() as progress:
        progress("painting", 0, 3)
        before = terminal.getvalue()
        say("the red is gone")
        written = terminal.getvalue().removeprefix(before)
    blank, _, rest = written.partition("the red is gone\n")
    assert blank.strip() == ""
    assert blank.endswith("\r")
    assert "painting:" in rest


def test_nothing_is_left_of_a_bar_that_had_just_come(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)

    def interrupted():
        with ProgressBars() as progress:
            progress("painting", 0, 3)
            raise KeyboardInterrupt

    assert guarded(interrupted, []) == 130
    drawn, _, after = terminal.getvalue().partition("error: interrupted\n")
    assert "painting:" in drawn
    assert drawn.endswith(" \r")
    assert after == ""
