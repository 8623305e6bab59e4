"""Displays draw what was measured, as it is measured elsewhere."""

import subprocess
import sys

import pytest
from PIL import Image

import promptboost
from promptboost import PromptBoostClassifier
from promptboost.errors import InputError, LabelError, MissingExtraError, SettingError
from promptboost.plot import (
    ReliabilityDisplay,
)

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
COLOURS = ("red", "tomato", "blue", "navy", "magenta", "violet")
LABELS = ["fire", "fire", "ice", "ice", "ice", "fire"]
SENTENCES = {"fire": ["it is red", "it costs $5 or $6"], "ice": ["it is blue", "a glacier"]}


@pytest.fixture(scope="module")
def images():
    return [Image.new("RGB", (8, 8), color) for color in COLOURS]


@pytest.fixture(scope="module")
def estimator(images):
    model = PromptBoostClassifier(
        "fake:32-0",
        SENTENCES,
        composer="greedy",
        n_rounds=3,
        n_views=4,
        cache=False,
        random_state=0,
    )
    return model.fit(images, LABELS)


@pytest.fixture(autouse=True)
def _closed():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def drawn(display):
    """Draw for real, so that a text which matplotlib cannot set is an error here."""
    display.figure_.canvas.draw()
    return display


def test_the_last_round_has_the_residual(images):
    """A class whose only sentence is of the other color: the residual alone can set it right."""
    crossed = {"fire": ["it is blue"], "ice": ["it is red"]}
    model = PromptBoostClassifier(
        "fake:32-0", crossed, templates=["{}"], cache=False, random_state=0
    )
    model.fit(images * 4, LABELS * 4)
    assert list(model.staged_score(images, LABELS))[-1] == model.score(images, LABELS)


def test_reliability_is_of_the_probabilities(estimator, images):
    display = drawn(ReliabilityDisplay.from_estimator(estimator, images, LABELS, bins=5))
    assert sum(one.count for one in display.bins) == len(images)
    assert list(display.line_.get_xdata()) == [one.probability for one in display.bins]
    again = ReliabilityDisplay.from_estimator(estimator.classifier_, images, LABELS, bins=5)
    assert [one.accuracy for one in again.bins] == [one.accuracy for one in display.bins]
    with pytest.raises(InputError, match="a label for each"):
        ReliabilityDisplay([[0.5, 0.5]], [0, 1])


def test_it_is_drawn_where_it_is_told(estimator, images):
    from matplotlib import pyplot

    figure, ax = pyplot.subplots()
    display = ReliabilityDisplay.from_estimator(
        estimator.classifier_, images, LABELS, ax=ax, name="from $5 to $6"
    )
    assert (display.ax_, display.figure_) == (ax, figure)
    assert drawn(display).plot(ax=ax) is display
    assert len(pyplot.get_fignums()) == 1


def test_what_cannot_be_drawn_is_told():
    with pytest.raises(LabelError, match="no class 'water'"):
        ReliabilityDisplay.from_estimator(
            promptboost.PromptClassifier(_text(), "fake:8-0", cache=False),
            [Image.new("RGB", (8, 8))],
            ["water"],
        )
    with pytest.raises(SettingError, match="from 1 up"):
        ReliabilityDisplay([[0.5, 0.5]], [0], bins=0)


def _text():
    from promptboost.model import Round

    return promptboost.PromptEnsemble(
        ("fire", "ice"), (Round("{}", {"fire": {"red": 1}, "ice": {"blue": 1}}, 0.0, 0.1),)
    )


def test_without_matplotlib_the_command_to_type_is_told(monkeypatch):
    monkeypatch.setattr("promptboost.encoders.runtime.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[plot\]'"):
        ReliabilityDisplay([[0.5, 0.5]], [0]).plot()


def test_the_package_does_not_load_matplotlib():
    code = "import sys, promptboost.plot; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
