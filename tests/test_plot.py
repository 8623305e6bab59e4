"""Displays draw what was measured, as it is measured elsewhere."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import confusion_matrix

import promptboost
from promptboost import PromptBoostClassifier
from promptboost.errors import InputError, LabelError, MissingExtraError, SettingError
from promptboost.plot import (
    BankDisplay,
    ConfusionDisplay,
    ReliabilityDisplay,
    StagedAccuracyDisplay,
)

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
COLOURS = ("red", "tomato", "blue", "navy", "magenta", "violet")
LABELS = ["fire", "fire", "ice", "ice", "ice", "fire"]
SENTENCES = {"fire": ["it is red", "it costs $5 or $6"], "ice": ["it is blue", "a glacier"]}
DISPLAYS = (BankDisplay, ConfusionDisplay, ReliabilityDisplay, StagedAccuracyDisplay)


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


def test_accuracy_after_each_round_is_staged_score(estimator, images):
    display = drawn(StagedAccuracyDisplay.from_estimator(estimator, images, LABELS, name="emoji"))
    expected = list(estimator.staged_score(images, LABELS))
    assert display.line_.get_ydata().tolist() == expected
    assert display.line_.get_xdata().tolist() == [1, 2, 3][: len(expected)]
    of_classifier = StagedAccuracyDisplay.from_classifier(estimator.classifier_, images, LABELS)
    assert of_classifier.accuracies.tolist() == expected


def test_the_last_round_has_the_residual(images):
    """A class whose only sentence is of the other color: the residual alone can set it right."""
    crossed = {"fire": ["it is blue"], "ice": ["it is red"]}
    model = PromptBoostClassifier(
        "fake:32-0", crossed, templates=["{}"], cache=False, random_state=0
    )
    model.fit(images * 4, LABELS * 4)
    display = StagedAccuracyDisplay.from_classifier(model.classifier_, images, LABELS)
    assert display.accuracies[-1] == model.score(images, LABELS)


def test_reliability_is_of_the_probabilities(estimator, images):
    display = drawn(ReliabilityDisplay.from_estimator(estimator, images, LABELS, bins=5))
    assert sum(one.count for one in display.bins) == len(images)
    assert list(display.line_.get_xdata()) == [one.probability for one in display.bins]
    again = ReliabilityDisplay.from_classifier(estimator.classifier_, images, LABELS, bins=5)
    assert [one.accuracy for one in again.bins] == [one.accuracy for one in display.bins]
    with pytest.raises(InputError, match="a label for each"):
        ReliabilityDisplay([[0.5, 0.5]], [0, 1])


def test_confusions_are_those_of_scikit_learn(estimator, images):
    display = drawn(ConfusionDisplay.from_estimator(estimator, images, LABELS))
    expected = confusion_matrix(LABELS, estimator.predict(images), labels=["fire", "ice"])
    assert display.counts.tolist() == expected.tolist()
    again = ConfusionDisplay.from_classifier(estimator.classifier_, images, LABELS)
    assert again.counts.tolist() == expected.tolist()
    shown = {(t.get_position(), t.get_text()) for t in display.texts_}
    wanted = {((k, i), str(n)) for (i, k), n in np.ndenumerate(expected) if n}
    assert shown == wanted


def test_of_many_classes_those_mixed_up_are_drawn():
    counts = np.diag(np.full(30, 9))
    counts[4, 20], counts[20, 4] = 3, 2
    display = drawn(ConfusionDisplay(counts, [f"class {i}" for i in range(30)]).plot(most=2))
    assert display.shown_ == ["class 4", "class 20"]
    assert "2 of 30 classes" in display.ax_.get_title()


def test_sentences_are_drawn_as_they_are_written(estimator):
    display = drawn(BankDisplay.from_estimator(estimator, ["fire"]))
    heaviest = list(estimator.ensemble_.prompts("fire").items())[:5]
    assert [bar.get_width() for bar in display.bars_][1:] == [part for _, part in heaviest]
    money = drawn(BankDisplay({"note": {"from $5 to $6": 1.0, r"\alpha ^ {": 0.5}}).plot())
    labels = [label.get_text() for label in money.ax_.get_yticklabels()]
    assert labels[1] == r"from \$5 to \$6"  # a plain dollar to matplotlib, no formula
    with pytest.raises(InputError, match="frog"):
        BankDisplay.from_classifier(estimator.classifier_, ["frog"])


def test_they_draw_where_they_are_told(estimator, images):
    from matplotlib import pyplot

    figure, places = pyplot.subplots(2, 2)
    given = dict(zip(DISPLAYS, places.flat, strict=True))
    for kind, ax in given.items():
        what = () if kind is BankDisplay else (images, LABELS)
        display = kind.from_classifier(estimator.classifier_, *what, ax=ax)
        assert (display.ax_, display.figure_) == (ax, figure)
        assert display.plot(ax=ax) is display
    assert len(pyplot.get_fignums()) == 1


def test_what_cannot_be_drawn_is_told():
    with pytest.raises(LabelError, match="no class 'water'"):
        ConfusionDisplay.from_classifier(
            promptboost.PromptClassifier(_text(), "fake:8-0", cache=False),
            [Image.new("RGB", (8, 8))],
            ["water"],
        )
    with pytest.raises(SettingError, match="one number for each round"):
        StagedAccuracyDisplay([])
    with pytest.raises(SettingError, match="from 1 up"):
        ConfusionDisplay([[1]], ["owl"]).plot(most=0)


def _text():
    from promptboost.model import Round

    return promptboost.PromptEnsemble(
        ("fire", "ice"), (Round("{}", {"fire": {"red": 1}, "ice": {"blue": 1}}, 0.0, 0.1),)
    )


def test_without_matplotlib_the_command_to_type_is_told(monkeypatch):
    monkeypatch.setattr("promptboost.encoders.runtime.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'promptboost\[plot\]'"):
        StagedAccuracyDisplay([0.5]).plot()


def test_the_package_does_not_load_matplotlib():
    code = "import sys, promptboost.plot; promptboost.plot.BankDisplay; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
