import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from promptboost.evaluation.measures import (
    accuracy,
    class_accuracy,
    confusions,
    expected_calibration_error,
    log_loss,
    per_class,
)

pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)
NAMES = ["a", "b", "c", "d"]


def test_without_images_there_is_no_accuracy():
    nothing = np.zeros(0, dtype=np.int64)
    assert accuracy(nothing, nothing) is None
    assert class_accuracy(nothing, nothing) is None
    assert per_class(["a"], nothing, {"boosted": nothing})[0]["boosted"] is None


@given(pairs)
def test_figures_agree_with_each_other(drawn):
    labels, predicted = (np.array(column, dtype=np.int64) for column in zip(*drawn, strict=True))
    classes = per_class(NAMES, labels, {"boosted": predicted})
    there = [row for row in classes if row["count"]]
    right = sum(row["boosted"] * row["count"] for row in there)
    assert np.isclose(right / len(labels), accuracy(predicted, labels))
    mean = np.mean([row["boosted"] for row in there])
    assert np.isclose(mean, class_accuracy(predicted, labels))
    wrong = confusions(NAMES, labels, predicted, [str(i) for i in range(len(labels))])
    assert sum(row["count"] for row in wrong) == int((labels != predicted).sum())
    assert [row["count"] for row in wrong] == sorted((row["count"] for row in wrong), reverse=True)
    assert all(len(row["pictures"]) == min(row["count"], 6) for row in wrong)


def chances_of(drawn):
    scores = np.array([[row[0] * 7 % 5, row[1], 1.0, 2.0] for row in drawn], dtype=float)
    weights = np.exp(scores)
    return weights / weights.sum(axis=1, keepdims=True)


@given(pairs)
def test_log_loss_is_the_mean_of_its_parts(drawn):
    chances = chances_of(drawn)
    labels = np.array([row[1] for row in drawn], dtype=np.int64)
    parts = [-math.log(chances[i, label]) for i, label in enumerate(labels)]
    assert math.isclose(log_loss(chances, labels), sum(parts) / len(parts))


@given(pairs, st.integers(1, 20))
def test_calibration_error_is_that_of_plain_loops(drawn, bins):
    chances = chances_of(drawn)
    labels = np.array([row[0] for row in drawn], dtype=np.int64)
    total = 0.0
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        inside = [i for i in range(len(labels)) if low < max(chances[i]) <= high]
        if inside:
            sure = sum(max(chances[i]) for i in inside) / len(inside)
            right = sum(int(np.argmax(chances[i])) == labels[i] for i in inside) / len(inside)
            total += len(inside) / len(labels) * abs(sure - right)
    assert math.isclose(
        expected_calibration_error(chances, labels, bins), total, rel_tol=1e-9, abs_tol=1e-9
    )


def test_probabilities_without_images_or_of_zero():
    nothing = np.zeros(0, dtype=np.int64)
    assert log_loss(np.zeros((0, 2)), nothing) is None
    assert expected_calibration_error(np.zeros((0, 2)), nothing) is None
    sure = np.array([[1.0, 0.0]])
    assert log_loss(sure, np.array([0])) == 0
    assert 700 < log_loss(sure, np.array([1])) < math.inf
    assert expected_calibration_error(sure, np.array([1])) == 1
