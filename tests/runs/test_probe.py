import numpy as np

from promptboost.runs.probe import FIXED_C, STRENGTHS, _folds, fit_probe
from promptboost.testing import clip_like


def accuracy(task, rows, labels):
    weights, intercepts, _ = fit_probe(rows, labels)
    scores = task.pictures @ weights.T + intercepts
    return np.mean(scores.argmax(axis=1) == task.labels)


def test_learns_what_can_be_learnt():
    task = clip_like(n_classes=5, shots=8, confusion=0.5)
    rows = np.concatenate([task.pictures[:, None], task.views], axis=1)
    assert accuracy(task, rows, task.labels) > 0.95


def test_one_shot_uses_the_fixed_strength_and_more_choose():
    one = clip_like(n_classes=3, shots=1)
    assert fit_probe(one.pictures[:, None], one.labels)[2] == FIXED_C
    more = clip_like(n_classes=3, shots=4)
    assert fit_probe(more.pictures[:, None], more.labels)[2] in STRENGTHS


def test_two_classes_have_a_row_each_that_are_log_odds():
    task = clip_like(n_classes=2, shots=6, confusion=0.5)
    weights, _, _ = fit_probe(task.pictures[:, None], task.labels)
    assert weights.shape == (2, 64)
    np.testing.assert_allclose(weights[0], -weights[1])
    assert accuracy(task, task.pictures[:, None], task.labels) > 0.9


def test_crops_share_the_weight_of_their_picture():
    task = clip_like(n_classes=3, shots=1)
    alone = fit_probe(task.pictures[:, None], task.labels)
    repeated = fit_probe(task.pictures[:, None].repeat(4, axis=1), task.labels)
    np.testing.assert_allclose(alone[0], repeated[0], atol=0.05)


def test_every_fold_leaves_and_takes_some_of_each_class():
    labels = np.array([0] * 4 + [1] * 3 + [2] * 7)
    fold = _folds(labels, 3, seed=1)
    for label in range(3):
        assert set(fold[labels == label]) == {0, 1, 2}
