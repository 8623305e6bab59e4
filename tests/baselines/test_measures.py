import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from promptboost.baselines import (
    MIN_PROBABILITIES,
    Guesses,
    accuracy,
    class_accuracy,
    confusions,
    coverage,
    coverage_curve,
    expected_calibration_error,
    log_loss,
    per_class,
    reliability,
    thinned,
)

pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)
NAMES = ["a", "b", "c", "d"]


def test_without_images_there_is_no_accuracy():
    nothing = np.zeros(0, dtype=np.int64)
    assert accuracy(nothing, nothing) is None
    assert class_accuracy(nothing, nothing) is None
    assert per_class(["a"], nothing, {"boosted": nothing})[0].accuracy["boosted"] is None


@given(pairs)
def test_figures_agree_with_each_other(drawn):
    labels, predicted = (np.array(column, dtype=np.int64) for column in zip(*drawn, strict=True))
    classes = per_class(NAMES, labels, {"boosted": predicted})
    there = [row for row in classes if row.count]
    right = sum(row.accuracy["boosted"] * row.count for row in there)
    assert np.isclose(right / len(labels), accuracy(predicted, labels))
    mean = np.mean([row.accuracy["boosted"] for row in there])
    assert np.isclose(mean, class_accuracy(predicted, labels))
    wrong = confusions(NAMES, labels, predicted, [str(i) for i in range(len(labels))])
    assert sum(row.count for row in wrong) == int((labels != predicted).sum())
    assert [row.count for row in wrong] == sorted((row.count for row in wrong), reverse=True)
    assert all(len(row.images) == min(row.count, 6) for row in wrong)


def test_probabilities_are_measured_as_scikit_learn_does_it():
    from sklearn.metrics import log_loss as reference

    rng = np.random.default_rng(0)
    chances, labels = rng.dirichlet(np.ones(4), 200), rng.integers(0, 4, 200)
    assert np.isclose(log_loss(chances, labels), reference(labels, chances, labels=range(4)))
    by_hand = 0.0
    best, right = chances.max(axis=1), chances.argmax(axis=1) == labels
    for low in np.arange(15) / 15:
        inside = (best > low) & (best <= low + 1 / 15 + 1e-12)
        if inside.any():
            by_hand += inside.mean() * abs(best[inside].mean() - right[inside].mean())
    assert np.isclose(expected_calibration_error(chances, labels), by_hand)


def test_certainty_has_no_loss_and_an_impossible_class_a_finite_one():
    sure = np.eye(2)
    assert log_loss(sure, np.array([0, 1])) == 0
    assert np.isfinite(log_loss(sure, np.array([1, 0])))
    assert expected_calibration_error(sure, np.array([0, 1])) == 0


def test_without_held_out_images_probabilities_say_nothing():
    nothing, learned = np.zeros(0, dtype=np.int64), np.array([0, 1])
    found = Guesses("a", "a", nothing, learned, np.zeros((0, 2))).result(nothing, learned)
    assert (found.accuracy, found.log_loss, found.learn_accuracy) == (None, None, 1.0)


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


# Few distinct probabilities, so that most of them are shared by several images.
answers = st.lists(st.tuples(st.integers(5, 10), st.booleans()), min_size=1, max_size=40)


def two_classes(drawn):
    """Return chances whose largest is a tenth of the first number, and labels that make them right."""
    chances = np.array([[sure / 10, 1 - sure / 10] for sure, _ in drawn])
    return chances, np.array([0 if right else 1 for _, right in drawn])


@given(answers, st.integers(0, 11))
def test_coverage_is_that_of_plain_loops(drawn, tenths):
    chances, labels = two_classes(drawn)
    least = min(1.0, tenths / 10)
    kept = [right for sure, right in drawn if sure / 10 >= least]
    found = coverage(chances, labels, least)
    assert (found.min_probability, found.answered) == (least, len(kept))
    assert found.coverage == len(kept) / len(drawn)
    assert found.accuracy == (sum(kept) / len(kept) if kept else None)


@given(answers, st.randoms())
def test_the_curve_is_coverage_at_every_probability_there_is(drawn, random):
    chances, labels = two_classes(drawn)
    curve = coverage_curve(chances, labels)
    levels = sorted({sure / 10 for sure, _ in drawn}, reverse=True)
    assert [one.min_probability for one in curve] == levels
    assert list(curve) == [coverage(chances, labels, level) for level in levels]
    assert curve[-1].coverage == 1
    assert curve[-1].accuracy == accuracy(chances.argmax(axis=1), labels)
    # Images of the same probability are answered together, so their order says nothing.
    order = list(range(len(drawn)))
    random.shuffle(order)
    assert coverage_curve(chances[order], labels[order]) == curve


@given(st.integers(1, 400), st.integers(2, 60))
def test_a_thinned_curve_has_few_points_of_the_whole_one_and_its_end(images, points):
    chances = np.linspace(0.6, 0.9, images)
    labels = np.arange(images) % 2
    curve = coverage_curve(np.stack([chances, 1 - chances], axis=1), labels)
    kept = thinned(curve, points)
    assert set(kept) <= set(curve)
    assert list(kept) == sorted(kept, key=lambda one: one.answered)
    assert kept[0] is curve[0]
    assert kept[-1] is curve[-1]
    assert len(kept) <= points + 2
    gaps = np.diff([one.coverage for one in kept])
    assert (gaps <= 1 / points + 1 / images + 1e-9).all()


@given(pairs)
def test_bins_hold_every_image_once(drawn):
    chances = chances_of(drawn)
    labels = np.array([row[0] for row in drawn], dtype=np.int64)
    bins = reliability(chances, labels)
    assert sum(one.count for one in bins) == len(drawn)
    assert all(one.low - 1e-9 <= one.probability <= one.high + 1e-9 for one in bins)
    right = sum(one.accuracy * one.count for one in bins)
    assert math.isclose(right, (chances.argmax(axis=1) == labels).sum(), abs_tol=1e-9)
    error = sum(one.count * abs(one.probability - one.accuracy) for one in bins) / len(drawn)
    assert math.isclose(error, expected_calibration_error(chances, labels), abs_tol=1e-12)


def test_a_result_has_coverage_only_where_there_are_probabilities_and_images():
    chances, labels = two_classes([(6, True), (9, True), (7, False), (9, False)])
    guesses = chances.argmax(axis=1)
    found = Guesses("a", "a", guesses, probabilities=chances).result(labels)
    assert tuple(one.min_probability for one in found.coverage) == MIN_PROBABILITIES
    assert found.coverage[0].accuracy == found.accuracy
    assert [(one.answered, one.accuracy) for one in found.coverage_curve] == [
        (2, 0.5),
        (3, 1 / 3),
        (4, 0.5),
    ]
    nothing = np.zeros(0, dtype=np.int64)
    for without in (
        Guesses("a", "a", guesses).result(labels),
        Guesses("a", "a", nothing, probabilities=np.zeros((0, 2))).result(nothing),
    ):
        assert (without.coverage, without.coverage_curve, without.reliability) == ((), (), ())
    assert coverage(np.zeros((0, 2)), nothing, 0.5).coverage == 0
