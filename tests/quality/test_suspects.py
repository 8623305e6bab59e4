import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptboost.boosting.residual import held_out_prediction
from promptboost.errors import EmbeddingError, LabelError, SettingError
from promptboost.quality.suspects import (
    confident_errors,
    find_outliers,
    held_out_probabilities,
    label_errors,
)


def plainly(chances, labels):
    """The share of wrong labels of greatest likelihood, and the posterior, image by image."""
    n, K = len(chances), len(chances[0])

    def likelihood(share):
        total = np.log(1 - share)
        for i in range(n):
            own = chances[i][labels[i]]
            total += np.log(max((1 - share) * own + share * (1 - own) / (K - 1), 1e-300))
        return total

    share = max(np.linspace(0, 0.5, 2001), key=likelihood)
    posterior = np.zeros((n, K))
    for i in range(n):
        for k in range(K):
            right = k == labels[i]
            posterior[i, k] = chances[i][k] * ((1 - share) if right else share / (K - 1))
        posterior[i] /= posterior[i].sum()
    return share, posterior


@st.composite
def judged(draw):
    n, K = draw(st.integers(1, 25)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    chances = rng.dirichlet(np.full(K, 0.5), n)
    labels = rng.integers(0, draw(st.integers(1, K)), n)
    agree = rng.random(n) < draw(st.floats(0, 1))
    return chances, np.where(agree, chances.argmax(axis=1), labels)


@settings(max_examples=40, deadline=None)
@given(judged())
def test_share_and_scores_are_those_of_the_likelihood(case):
    chances, labels = case
    found = label_errors(chances, labels)
    share, posterior = plainly(chances.tolist(), labels.tolist())
    each = np.arange(len(labels))
    assert found.share == pytest.approx(share, abs=3e-4)
    assert found.scores == pytest.approx(1 - posterior[each, labels], abs=5e-3)
    assert found.count == round(found.scores.sum())
    assert sorted(found.order.tolist()) == each.tolist()
    assert (np.diff(chances[each, labels][found.order]) >= 0).all()
    others = chances.copy()
    others[each, labels] = -1
    assert (found.suggested == others.argmax(axis=1)).all()


def test_confident_learning_by_hand():
    # The classes are 0.6 and 0.8 probable on average for their own images.
    chances = [[0.9, 0.1], [0.9, 0.1], [0.0, 1.0], [0.2, 0.8], [0.2, 0.8], [0.25, 0.75]]
    labels = [0, 0, 0, 1, 1, 1]
    assert confident_errors(chances, labels).tolist() == [2]
    # 0.55 is more than the label's, but less than class 1 has on average.
    chances[2] = [0.45, 0.55]
    assert confident_errors(chances, labels).tolist() == []


def test_nothing_known_is_nothing_wrong():
    found = label_errors(np.full((6, 2), 0.5), [0, 0, 0, 1, 1, 1])
    assert (found.count, found.share) == (0, 0.0)
    assert found.order.tolist() == [0, 1, 2, 3, 4, 5]
    assert confident_errors(np.full((6, 2), 0.5), [0, 0, 0, 1, 1, 1]).size == 0


def test_labels_that_are_impossible_have_finite_scores():
    found = label_errors([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], [0, 1, 1])
    assert found.scores == pytest.approx([0, 1, 1])
    assert found.suggested.tolist() == [1, 0, 0]
    assert confident_errors([[0.3, 0.1, 0.6], [0.4, 0.0, 0.6]], [0, 0]).size == 0


@pytest.mark.parametrize(
    ("chances", "labels", "error"),
    [
        (np.zeros((0, 2)), [], EmbeddingError),
        ([0.5, 0.5], [0, 1], EmbeddingError),
        ([[np.nan, 1.0]], [0], EmbeddingError),
        ([[0.5, 0.5]], [2], LabelError),
        ([[0.5, 0.5]], [-1], LabelError),
        ([[0.5, 0.5]], [0, 1], LabelError),
    ],
)
def test_what_does_not_fit_together_is_an_error(chances, labels, error):
    for judge in (label_errors, confident_errors):
        with pytest.raises(error):
            judge(chances, labels)


def clusters(rng, per_class=12, K=4, D=12, noise=0.35):
    means = np.linalg.qr(rng.normal(size=(D, D)))[0][:K]
    labels = np.arange(K).repeat(per_class)
    X = means[labels] + rng.normal(size=(len(labels), D)) * noise / np.sqrt(D)
    words = means + rng.normal(size=means.shape) * 0.3 / np.sqrt(D)
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (X, words)]
    return unit[0].astype(np.float32), labels, unit[1].astype(np.float32)


@pytest.mark.parametrize("seed", range(4))
def test_planted_wrong_labels_come_first_and_are_counted(seed):
    rng = np.random.default_rng(seed)
    X, true, words = clusters(rng, per_class=40)
    labels, which = true.copy(), rng.choice(len(true), 16, replace=False)
    labels[which] = (true[which] + rng.integers(1, 4, 16)) % 4
    found = label_errors(held_out_probabilities(X, labels, words), labels)
    assert set(found.order[:16].tolist()) == set(which.tolist())
    assert 8 <= found.count <= 18
    assert (found.suggested[which] == true[which]).all()


def test_words_that_say_nothing_do_not_hide_wrong_labels():
    rng = np.random.default_rng(5)
    X, true, words = clusters(rng)
    labels = true.copy()
    labels[[3, 20]] = [2, 0]
    silent = np.repeat(words.mean(axis=0, keepdims=True), 4, axis=0)
    found = label_errors(held_out_probabilities(X, labels, silent), labels)
    assert set(found.order[:2].tolist()) == {3, 20}


def test_an_image_that_weighs_nothing_teaches_nothing():
    rng = np.random.default_rng(1)
    X, labels, words = clusters(rng)
    weights = np.ones(len(labels))
    weights[7] = 0
    folds = np.arange(len(labels)) % 3
    logits = held_out_prediction(X[:, None], labels, words, folds, weights=weights)
    other = labels.copy()
    other[7] = 3
    again = held_out_prediction(X[:, None], other, words, folds, weights=weights)
    assert (logits == again).all()


def test_the_only_image_of_a_class_is_judged_by_words_alone():
    X, labels, words = clusters(np.random.default_rng(2), per_class=1)
    chances = held_out_probabilities(X, labels, words)
    logits = np.log(chances)
    by_words = X.astype(np.float64) @ words.T
    spread = logits - logits.mean(axis=1, keepdims=True)
    centered = by_words - by_words.mean(axis=1, keepdims=True)
    factor = (spread * centered).sum() / (centered**2).sum()
    assert spread == pytest.approx(factor * centered, rel=1e-3, abs=1e-3)
    with pytest.raises(SettingError, match="one for each image"):
        held_out_prediction(X[:, None], labels, words, [0])


def test_the_answer_does_not_depend_on_the_run():
    X, labels, words = clusters(np.random.default_rng(3))
    assert (
        held_out_probabilities(X, labels, words) == held_out_probabilities(X, labels, words)
    ).all()


@pytest.mark.parametrize("seed", range(3))
def test_planted_outliers_are_found(seed):
    rng = np.random.default_rng(seed)
    X, labels, _ = clusters(rng, per_class=30, D=24)
    strange = np.linalg.qr(np.concatenate([X[::30], rng.normal(size=(20, 24))]).T)[0].T[4:6]
    rows = np.concatenate([X, strange])
    found = find_outliers(rows, [*labels, 0, 1])
    assert set(found.order[:2].tolist()) == {120, 121}
    assert 2 <= found.count <= 4
    # A wrong label does not make an image an outlier.
    labels[5] = 3
    moved = find_outliers(rows, [*labels, 0, 1])
    assert 5 not in moved.order[: moved.count]
    assert moved.suggested[5] == 0


def test_a_lone_image_of_its_class_and_images_all_alike_are_no_outliers():
    X, labels, _ = clusters(np.random.default_rng(4), per_class=30, D=24)
    lone = find_outliers(np.concatenate([X, -X[:1]]), [*labels, 4])
    assert 120 not in lone.order[: lone.count]
    assert lone.scores[120] == 0
    assert find_outliers(np.ones((9, 3)), [0, 0, 0, 1, 1, 1, 2, 2, 2]).count == 0
    assert find_outliers(np.eye(3), [0, 1, 2]).count == 0
    assert find_outliers(np.ones((1, 3)), [0]).count == 0


def test_outliers_of_unusable_rows_are_an_error():
    with pytest.raises(EmbeddingError):
        find_outliers(np.full((2, 2), np.nan), [0, 1])
    with pytest.raises(LabelError):
        find_outliers(np.ones((2, 2)), [0])
