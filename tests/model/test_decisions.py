"""Decisions on top of probabilities, against their definitions written out plainly."""

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize

from promptboost.boosting.residual import Residual
from promptboost.errors import ClassPriorsWarning, EmbeddingError, SettingError
from promptboost.model import Head
from promptboost.model.decisions import (
    adjust_to_priors,
    choose_images,
    decided,
    estimated_priors,
    sets_of_classes,
)

NAMES = ("a", "b", "c")


def probabilities(n=40, K=3, seed=0, scale=2.0):
    logits = scale * np.random.default_rng(seed).normal(size=(n, K))
    powers = np.exp(logits)
    return powers / powers.sum(axis=1, keepdims=True)


def rows(n=30, dim=4, seed=1):
    values = np.random.default_rng(seed).normal(size=(n, dim))
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def calibrated_head(m=40, seed=2):
    rng = np.random.default_rng(seed)
    known = np.sort([rng.normal(size=m), rng.random(m)], axis=1)
    return Head(NAMES, rng.normal(size=(3, 4)), calibration=known)


def head_with(values):
    """A head with these values as largest logits and as probabilities of the true classes."""
    return Head(NAMES, np.eye(3, 4), calibration=np.stack([values, values]))


# --- thresholds ----------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [0.0, 0.5, 0.8, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("m", [1, 2, 7, 20, 100])
def test_the_acceptance_threshold_is_the_largest_that_enough_images_reach(accept, m):
    values = np.sort(np.random.default_rng(m).normal(size=m))
    enough = [v for v in values if np.mean(values >= v) >= accept - 1e-9]
    assert head_with(values).least_logit(accept) == max(enough)


@pytest.mark.parametrize("coverage", [0.0, 0.5, 0.8, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("m", [1, 4, 9, 19, 50])
def test_the_coverage_threshold_is_the_conformal_quantile(coverage, m):
    """Of m + 1 exchangeable values, one in random position: as many orders as wanted have it covered."""
    values = np.sort(np.random.default_rng(m).random(m))
    threshold = head_with(values).least_probability(coverage)
    # The new value falls with equal probability into each of the m + 1 gaps between the others.
    edges = np.concatenate([[0.0], values])
    covered = np.mean([edge >= threshold for edge in edges])
    assert covered >= coverage - 1e-9
    higher = [v for v in values if v > threshold]
    if higher:
        assert np.mean([edge >= higher[0] for edge in edges]) < coverage


def test_conformal_coverage_holds_on_exchangeable_images():
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(2000):
        values = rng.random(20)
        hits.append(values[0] >= head_with(np.sort(values[1:])).least_probability(0.8))
    assert np.mean(hits) == pytest.approx(0.8, abs=0.03)


def test_the_calibration_of_a_residual_is_that_of_its_head():
    """What the head says of the held-out rows, had it been learned without them."""
    rng = np.random.default_rng(3)
    logits, labels = rng.normal(size=(9, 3)), rng.integers(0, 3, 9)
    held_out = logits, labels, np.arange(9)
    largest, true = Residual(np.zeros((3, 4)), 1.0, held_out=held_out).calibration(2.0)
    powers = np.exp(2 * logits)
    chances = powers / powers.sum(axis=1, keepdims=True)
    assert np.allclose(largest, sorted((2 * logits).max(axis=1)))
    assert np.allclose(true, sorted(chances[range(9), labels]))
    assert Residual(np.zeros((3, 4)), 1.0).calibration() is None


def test_a_head_rejects_below_its_threshold_and_lists_classes_above():
    head, X = calibrated_head(), rows()
    logits, chances = head.logits(X), head.predict_proba(X)
    answers = decided([head], [X], np.array(NAMES), reject=True, accept=0.3)
    for answer, row in zip(answers, logits, strict=True):
        assert answer == (NAMES[row.argmax()] if row.max() >= head.least_logit(0.3) else None)
    assert None in answers
    assert any(answers)
    for names, row in zip(sets_of_classes([head], [X], NAMES, 0.6), chances, strict=True):
        order = [NAMES[k] for k in np.argsort(-row)]
        reached = [name for name in order if row[NAMES.index(name)] >= head.least_probability(0.6)]
        assert names == (reached or order[:1])


def test_a_head_keeps_its_calibration_in_its_file_only_with_its_residual(tmp_path):
    head = calibrated_head()
    head.save(tmp_path / "head.safetensors")
    assert np.array_equal(
        Head.load(tmp_path / "head.safetensors").calibration, np.float32(head.calibration)
    )
    assert head.without_residual().calibration is None


@pytest.mark.parametrize("known", [np.zeros((2, 0)), np.zeros((3, 2)), [[np.nan], [0.1]], [1.0]])
def test_a_damaged_calibration_is_an_error(known):
    with pytest.raises(EmbeddingError, match="calibration"):
        Head(NAMES, np.eye(3), calibration=known)


def test_without_calibration_or_with_several_encoders_there_is_no_threshold():
    bare = Head(NAMES, np.eye(3, 4))
    with pytest.raises(SettingError, match="no cross-validated training images"):
        decided([bare], [rows()], np.array(NAMES), reject=True)
    head = calibrated_head()
    with pytest.raises(SettingError, match="probabilities of 2 are averaged"):
        sets_of_classes([head, head], [rows(), rows()], NAMES, 0.9)
    with pytest.raises(SettingError, match="accept is 2"):
        decided([head], [rows()], np.array(NAMES), reject=True, accept=2)


# --- class priors --------------------------------------------------------------------------


def test_estimated_priors_maximize_the_likelihood():
    """Of frequencies pi, the likelihood of images with posteriors p for equal frequencies."""
    values = probabilities()

    def loss(weights):
        shares = np.exp(weights) / np.exp(weights).sum()
        return -np.log(values @ shares).mean()

    best = min(
        (minimize(loss, start, tol=1e-12) for start in np.eye(3)), key=lambda result: result.fun
    )
    shares = np.exp(best.x) / np.exp(best.x).sum()
    assert estimated_priors(values) == pytest.approx(shares, abs=2e-3)


def test_adjusting_to_estimated_priors_is_bayes_rule():
    values = probabilities()
    shares = estimated_priors(values)
    expected = values * shares
    adjusted, _ = adjust_to_priors(values, "estimate", NAMES)
    assert np.allclose(adjusted, expected / expected.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("priors", "target"),
    [
        ("equal", [1 / 3, 1 / 3, 1 / 3]),
        ({"b": 3, "a": 1}, [0.25, 0.75, 0]),
        ({"c": 0.1}, [0, 0, 1]),
    ],
)
def test_given_frequencies_are_the_mean_of_the_adjusted_probabilities(priors, target):
    values = probabilities()
    adjusted, _ = adjust_to_priors(values, priors, NAMES)
    assert adjusted.mean(axis=0) == pytest.approx(target, abs=1e-4)
    # Each class is weighted by one number: odds change alike in all images.
    ratios = np.divide(adjusted, values)
    used = np.array(target) > 0
    scaled = ratios[:, used] / ratios[:, used][:, :1]
    assert np.allclose(scaled, scaled[0])


@pytest.mark.parametrize(
    ("priors", "problem"),
    [
        ("some", "give 'equal', 'estimate' or a mapping"),
        ({"a": 1, "cow": 1}, "do not exist: cow"),
        ({"a": 0.0}, "not all zero"),
        ({"a": -1.0, "b": 2.0}, "numbers from 0 up"),
        ({"a": float("nan")}, "numbers from 0 up"),
        ({"a": "many"}, "numbers from 0 up"),
    ],
)
def test_bad_priors_are_one_error(priors, problem):
    with pytest.raises(SettingError, match=problem):
        adjust_to_priors(probabilities(), priors, NAMES)


def test_unreliable_priors_are_warned_of():
    assert "are too few" in adjust_to_priors(probabilities(n=20), "equal", NAMES)[1]
    assert adjust_to_priors(probabilities(n=40), "equal", NAMES)[1] is None
    few = probabilities(n=6, K=8)
    assert "two halves" in adjust_to_priors(few, "estimate", list("abcdefgh"))[1]
    sure = np.full((60, 8), 0.01) + 0.92 * np.eye(8)[np.arange(60) // 2 % 8]
    assert "most of the classes" in adjust_to_priors(sure, "estimate", list("abcdefgh"))[1]
    some = np.full((60, 8), 0.01) + 0.92 * np.eye(8)[np.arange(60) // 2 % 2]
    assert adjust_to_priors(some, "estimate", list("abcdefgh"))[1] is None
    with pytest.warns(ClassPriorsWarning, match="too few"):
        decided([calibrated_head()], [rows(9)], np.array(NAMES), class_priors="equal")


# --- images to label next ------------------------------------------------------------------


def plain_choice(chances, X, known, counts, n):
    """The definition: every step looks at every image of the class with the fewest images."""
    predicted, chosen, counts = chances.argmax(axis=1), [], list(counts)
    ordered = np.sort(chances, axis=1)
    doubt = 1 - (ordered[:, -1] - ordered[:, -2])
    while len(chosen) < n:
        left = [i for i in range(len(X)) if i not in chosen]
        if not left:
            break
        k = min({int(predicted[i]) for i in left}, key=lambda k: (counts[k], k))
        members = [i for i in range(len(X)) if predicted[i] == k]
        labeled = [*known, *(X[i] for i in chosen if predicted[i] == k)]

        def gain(i, members=members, labeled=labeled):
            total = 0.0
            for j in members:
                now = max([float(X[j] @ row) for row in labeled], default=-1.0)
                total += doubt[j] * max(float(X[j] @ X[i]) - now, 0.0)
            return total

        best = max((i for i in left if i in members), key=lambda i: (round(gain(i), 9), -i))
        chosen.append(best)
        counts[k] += 1
    return chosen


@pytest.mark.parametrize("seed", range(6))
def test_images_are_chosen_by_the_definition(seed):
    chances, X, known = probabilities(25, seed=seed), rows(25, seed=seed), rows(4, seed=seed + 99)
    counts = np.random.default_rng(seed).integers(0, 4, 3)
    known = known if seed % 2 else known[:0]
    assert choose_images(chances, X, known, counts, 12) == plain_choice(
        chances, X, known, counts, 12
    )


def test_the_choice_is_balanced_and_each_image_comes_once():
    chances, X = probabilities(60), rows(60)
    chosen = choose_images(chances, X, rows(3), [2, 2, 2], 9)
    assert np.bincount(chances[chosen].argmax(axis=1)).tolist() == [3, 3, 3]
    everything = choose_images(chances, X, rows(3), [0, 0, 0], 100)
    assert sorted(everything) == list(range(60))
    assert all(i != j for i, j in itertools.pairwise(sorted(chosen)))
