import numpy as np
import pytest

from promptboost.baselines.baselines import (
    FIXED_C,
    STRENGTHS,
    fit_probe,
)
from promptboost.boosting.scale import dealt
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import EncoderError, LabelError
from promptboost.methods import FewShotSet, make_method
from promptboost.methods.archive import load_fitted, save_fitted
from promptboost.methods.base import RowImages
from promptboost.methods.linear_probes import Logistic
from promptboost.pool import build_pool
from promptboost.testing import clip_like
from tests.progress_tools import Recorder

ENCODER = FakeEncoder(dim=64)


def few_shots(task, n_classes, views=True):
    rows = task.images[:, None]
    if views:
        rows = np.concatenate([rows, task.views], axis=1)
    names = tuple(f"class {k}" for k in range(n_classes))
    return FewShotSet(RowImages({ENCODER.id: rows}), task.labels, names)


def fitted_on(shots, **settings):
    return Logistic(**settings).fit(shots, build_pool(list(shots.class_names)), ENCODER)


def accuracy(task, rows, labels):
    weights, intercepts, _ = fit_probe(rows, labels)
    scores = task.images @ weights.T + intercepts
    return np.mean(scores.argmax(axis=1) == task.labels)


def test_learns_what_can_be_learned():
    task = clip_like(n_classes=5, shots=8, confusion=0.5)
    rows = np.concatenate([task.images[:, None], task.views], axis=1)
    assert accuracy(task, rows, task.labels) > 0.95


def test_one_shot_uses_the_fixed_strength_and_more_choose():
    one = clip_like(n_classes=3, shots=1)
    assert fit_probe(one.images[:, None], one.labels)[2] == FIXED_C
    more = clip_like(n_classes=3, shots=4)
    assert fit_probe(more.images[:, None], more.labels)[2] in STRENGTHS


@pytest.mark.parametrize("shots", [2, 5])
def test_progress_reaches_the_number_of_fits(shots):
    task, progress = clip_like(n_classes=3, shots=shots), Recorder()
    fit_probe(task.images[:, None], task.labels, progress=progress)
    progress.check("fitting logistic regression")
    assert len(progress.calls) == 1 + len(STRENGTHS) * min(shots, 3)


def test_two_classes_have_a_row_each_that_are_log_odds():
    task = clip_like(n_classes=2, shots=6, confusion=0.5)
    weights, _, _ = fit_probe(task.images[:, None], task.labels)
    assert weights.shape == (2, 64)
    np.testing.assert_allclose(weights[0], -weights[1])
    assert accuracy(task, task.images[:, None], task.labels) > 0.9


def test_crops_share_the_weight_of_their_image():
    task = clip_like(n_classes=3, shots=1)
    alone = fit_probe(task.images[:, None], task.labels)
    repeated = fit_probe(task.images[:, None].repeat(4, axis=1), task.labels)
    np.testing.assert_allclose(alone[0], repeated[0], atol=0.05)


def test_every_fold_leaves_and_takes_some_of_each_class():
    labels = np.array([0] * 4 + [1] * 3 + [2] * 7)
    fold = dealt(labels, 3, np.random.default_rng(1))
    for label in range(3):
        assert set(fold[labels == label]) == {0, 1, 2}


def test_many_classes_with_two_images_each_give_no_warning():
    task = clip_like(n_classes=30, shots=2, dim=16)
    weights, _, _ = fit_probe(task.images[:, None], task.labels)  # warnings are errors here
    assert weights.shape == (30, 16)


def test_the_method_is_the_probe():
    task = clip_like(n_classes=4, shots=3, seed=2)  # seeds of the folds choose differently here
    shots = few_shots(task, 4)
    assert fit_probe(shots.images.views(ENCODER), task.labels, seed=0)[2] != 100
    fitted = fitted_on(shots, seed=5)
    weights, intercepts, C = fit_probe(shots.images.views(ENCODER), task.labels, seed=5)
    np.testing.assert_allclose(
        fitted.logits(shots.images), task.images @ weights.T + intercepts, atol=1e-4
    )
    assert fitted.details == {"C": C} == {"C": 100}
    assert fitted.words() is None
    assert fitted.origin.method == "logistic?seed=5"
    assert make_method(fitted.origin.method) == Logistic(seed=5)


def test_the_same_seed_gives_the_same_classifier():
    shots = few_shots(clip_like(n_classes=3, shots=5), 3)
    np.testing.assert_array_equal(fitted_on(shots).rows, fitted_on(shots).rows)


def test_is_kept_and_found(tmp_path):
    shots = few_shots(clip_like(n_classes=3, shots=2), 3)
    fitted = fitted_on(shots)
    save_fitted(fitted, tmp_path)
    again = load_fitted(tmp_path, ENCODER)
    np.testing.assert_array_equal(again.logits(shots.images), fitted.logits(shots.images))
    assert again.details == fitted.details


def test_stays_with_its_encoder():
    shots = few_shots(clip_like(n_classes=3, shots=1), 3)
    with pytest.raises(EncoderError, match="Fit it again"):
        fitted_on(shots).transfer(FakeEncoder(dim=64, seed=1))


def test_a_class_without_a_image_is_refused():
    task = clip_like(n_classes=2, shots=2)
    shots = few_shots(task, 3)
    with pytest.raises(LabelError, match="'class 2' has no image"):
        Logistic().check(shots, build_pool(list(shots.class_names)), ENCODER)
    with pytest.raises(LabelError, match="'class 2' has no image"):
        fitted_on(shots)


def test_one_class_is_refused():
    task = clip_like(n_classes=2, shots=1)
    rows = RowImages({ENCODER.id: task.images[:1, None]})
    with pytest.raises(LabelError, match="two classes"):
        fitted_on(FewShotSet(rows, task.labels[:1], ("owl",)))
