import numpy as np
import pytest

from promptboost.baselines import (
    FIXED_C,
    STRENGTHS,
    _fits,
    fit_probe,
)
from promptboost.boosting.scale import held_out_folds, stratified_folds
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import EncoderError, LabelError
from promptboost.methods import FewShotSet, make_method
from promptboost.methods.archive import load_fitted, save_fitted
from promptboost.methods.base import RowImages
from promptboost.methods.linear_probes import Logistic
from promptboost.pool import build_pool
from tests.progress_tools import Recorder
from tests.synthetic import clip_like

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
    assert len(progress.calls) == 2 + len(STRENGTHS) * min(shots, 4)


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


def log_loss(logits, labels):
    """Return the mean log loss at the best of many scales."""
    losses = []
    for scale in np.geomspace(0.1, 10, 41):
        powers = np.exp(scale * (logits - logits.max(axis=1, keepdims=True)))
        losses.append(-np.log(powers[np.arange(len(labels)), labels] / powers.sum(axis=1)))
    return min(np.mean(loss) for loss in losses)


@pytest.mark.parametrize("seed", [1, 3, 7])
def test_the_strength_has_the_least_loss_on_images_held_out_with_their_crops(seed):
    linear_model = pytest.importorskip("sklearn.linear_model")
    task = clip_like(n_classes=4, shots=4, seed=seed)
    rows = np.concatenate([task.images[:, None], task.views], axis=1)
    fold = held_out_folds(task.labels, rng=np.random.default_rng(7))
    logits = np.zeros((len(STRENGTHS), 16, 4))
    for number in range(4):
        X, y = np.concatenate(rows[fold != number]), np.repeat(task.labels[fold != number], 5)
        for scores, C in zip(logits, STRENGTHS, strict=True):
            model = linear_model.LogisticRegression(C=C, max_iter=5000, tol=1e-5)
            model.fit(X, y, sample_weight=np.full(len(X), 0.2))
            scores[fold == number] = model.decision_function(task.images[fold == number])
    losses = [log_loss(scores, task.labels) for scores in logits]
    chosen = STRENGTHS.index(fit_probe(rows, task.labels, seed=7)[2])
    assert losses[chosen] == pytest.approx(min(losses), rel=0.005)
    assert max(losses) > 1.05 * min(losses)


def test_classes_with_few_images_weigh_as_much_as_others():
    task = clip_like(n_classes=3, shots=8)
    kept = np.flatnonzero((task.labels > 0) | (np.arange(24) < 2))
    few = task.images[kept, None], task.labels[kept]
    # Two images four times each stand for eight.
    repeated = np.concatenate([np.tile(kept[:2], 4), kept[2:]])
    many = task.images[repeated, None], task.labels[repeated]
    # C counts against the sum of all weights, which is the number of images.
    ((by_few, _),), ((by_many, _),) = _fits(*few, None, (24 / 18,)), _fits(*many, None, (1.0,))
    np.testing.assert_allclose(by_few, by_many, atol=0.02)


def test_a_class_with_one_image_does_not_prevent_the_choice():
    kept = np.concatenate([[0], np.arange(4, 16)])
    choices = [
        fit_probe(clip.images[kept, None], clip.labels[kept])[2]
        for clip in (clip_like(n_classes=4, shots=4, seed=seed) for seed in range(6))
    ]
    assert set(choices) - {FIXED_C}


def test_many_images_are_compared_on_a_part_of_them():
    task, progress = clip_like(n_classes=5, shots=60, dim=16, views=0), Recorder()
    fit_probe(task.images[:, None], task.labels, progress=progress)
    progress.check("fitting logistic regression")
    # Three and a half folds of 75 images would do.
    assert len(progress.calls) == 2 + len(STRENGTHS) * 4
    task, progress = clip_like(n_classes=5, shots=120, dim=16, views=0), Recorder()
    fit_probe(task.images[:, None], task.labels, progress=progress)
    assert len(progress.calls) == 2 + len(STRENGTHS) * 2


def test_every_fold_leaves_and_takes_some_of_each_class():
    labels = np.array([0] * 4 + [1] * 3 + [2] * 7)
    fold = stratified_folds(labels, 3, np.random.default_rng(1))
    for label in range(3):
        assert set(fold[labels == label]) == {0, 1, 2}


def test_many_classes_with_two_images_each_give_no_warning():
    task = clip_like(n_classes=30, shots=2, dim=16)
    weights, _, _ = fit_probe(task.images[:, None], task.labels)  # warnings are errors here
    assert weights.shape == (30, 16)


def test_the_method_is_the_probe():
    task = clip_like(n_classes=4, shots=3, seed=1)  # seeds of the folds choose differently here
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
