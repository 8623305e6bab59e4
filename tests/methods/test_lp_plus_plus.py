"""LP++: the loss, its bounds and its steps."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptboost.boosting.composition import log_losses
from promptboost.encoders.base import unit_rows
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import LabelError, SettingError
from promptboost.methods import FewShotSet, make_method
from promptboost.methods.base import RowImages
from promptboost.methods.linear_probes import BlendedProbe, LPPlusPlus, descend, first_alpha
from promptboost.pool import build_pool
from tests.methods.small_task import ENCODER, IMAGES, POOL, SHOTS
from tests.synthetic import clip_like

FAKE = FakeEncoder(dim=64)


def random_probe(seed, n=7, n_classes=4, dim=5, scale=1.0):
    rng = np.random.default_rng(seed)
    rows = unit_rows(rng.standard_normal((n, dim))).astype(np.float64)
    text = unit_rows(rng.standard_normal((n_classes, dim))).astype(np.float64)
    probe = BlendedProbe(rows, rng.integers(n_classes, size=n), text)
    w, alpha = rng.standard_normal((n_classes, dim)), rng.standard_normal(n_classes)
    return probe, w * scale, alpha * scale


def test_the_loss_is_that_of_the_formula_one_row_at_a_time():
    probe, w, alpha = random_probe(0)
    losses = []
    for x, label in zip(probe.rows, probe.labels, strict=True):
        logits = [x @ (w[k] + alpha[k] * probe.text[k]) for k in range(4)]
        losses.append(np.log(np.sum(np.exp(logits))) - logits[label])
    assert probe.loss(w, alpha) == pytest.approx(np.mean(losses))


def test_slopes_are_those_of_finite_differences():
    probe, w, alpha = random_probe(1)
    h = 1e-6
    for place in np.ndindex(w.shape):
        move = np.zeros_like(w)
        move[place] = h
        rise = (probe.loss(w + move, alpha) - probe.loss(w - move, alpha)) / (2 * h)
        assert probe.slope_w(w, alpha)[place] == pytest.approx(rise, abs=1e-8)
    for k in range(len(alpha)):
        move = h * np.eye(len(alpha))[k]
        rise = (probe.loss(w, alpha + move) - probe.loss(w, alpha - move)) / (2 * h)
        assert probe.slope_alpha(w, alpha)[k] == pytest.approx(rise, abs=1e-8)


@given(st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 10.0]), st.integers(2, 12))
def test_the_curvatures_bound_how_fast_slopes_change(seed, scale, n):
    probe, w, alpha = random_probe(seed, n=n, scale=scale)
    rng = np.random.default_rng(seed + 1)
    v, beta = w + rng.standard_normal(w.shape), alpha + rng.standard_normal(alpha.shape)
    by_w = np.linalg.norm(probe.slope_w(w, alpha) - probe.slope_w(v, alpha))
    assert by_w <= probe.w_curvature * np.linalg.norm(w - v) * (1 + 1e-9)
    by_alpha = np.linalg.norm(probe.slope_alpha(w, alpha) - probe.slope_alpha(w, beta))
    assert by_alpha <= probe.alpha_curvature * np.linalg.norm(alpha - beta) * (1 + 1e-9)


def test_the_curvatures_are_not_loose():
    # Two classes of equal probability: the Hessian of a log loss is then exactly at its bound.
    rows, text = np.array([[1.0, 0.0]] * 3), np.array([[1.0, 0.0], [1.0, 0.0]])
    probe = BlendedProbe(rows, np.array([0, 1, 0]), text)
    zero, h = np.zeros((2, 2)), 1e-4
    apart = np.array([[h, 0.0], [-h, 0.0]])
    change = probe.slope_w(apart, np.zeros(2)) - probe.slope_w(zero, np.zeros(2))
    assert np.linalg.norm(change) == pytest.approx(0.5 * np.linalg.norm(apart), rel=1e-6)
    assert probe.w_curvature == pytest.approx(0.5)
    assert probe.alpha_curvature == pytest.approx(0.5)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 30.0]), st.integers(1, 3))
def test_no_step_raises_the_loss(seed, scale, alpha_every):
    probe, w, alpha = random_probe(seed, scale=scale)
    losses = [probe.loss(w, alpha)] + [
        probe.loss(*descend(probe, w, alpha, steps=steps, alpha_every=alpha_every))
        for steps in range(1, 9)
    ]
    assert all(after <= before + 1e-12 for before, after in itertools.pairwise(losses))
    assert losses[-1] < losses[0]


def test_alpha_moves_only_when_it_is_its_turn():
    probe, w, alpha = random_probe(2)
    np.testing.assert_array_equal(descend(probe, w, alpha, steps=9)[1], alpha)
    assert (descend(probe, w, alpha, steps=10)[1] != alpha).any()


def test_a_step_with_momentum_by_hand():
    probe, w, alpha = random_probe(3)
    first = probe.slope_w(w, alpha)
    then = w - first / probe.w_curvature
    second = 0.5 * first + probe.slope_w(then, alpha)
    expected = then - second / probe.w_curvature
    found, _ = descend(probe, w, alpha, steps=2, momentum=0.5)
    np.testing.assert_allclose(found, expected)


def test_the_first_alpha_by_hand():
    # Two images of class 0 with cosines 1 and 0.6 (views averaged), one of class 1 with 0.5.
    views = np.array([[[1.0, 0.0], [1.0, 0.0]], [[0.2, 0.0], [1.0, 0.0]], [[0.0, 0.5], [0.0, 0.5]]])
    found = first_alpha(views, np.array([0, 0, 1]), np.eye(2), scale=100.0)
    assert found == pytest.approx(250 * ((1 + 0.6) / 2 + 0.5) / 2)


def few_shots(task, n_classes):
    rows = np.concatenate([task.images[:, None], task.views], axis=1)
    names = tuple(f"class {k}" for k in range(n_classes))
    return FewShotSet(RowImages({FAKE.id: rows}), task.labels, names)


def test_it_begins_with_sums_of_images_and_a_common_alpha():
    shots = few_shots(clip_like(n_classes=3, shots=2), 3)
    pool = build_pool(list(shots.class_names))
    fitted = LPPlusPlus(steps=1, alpha_every=2).fit(shots, pool, FAKE)
    views = shots.images.views(FAKE)
    text = make_method("template-mean").fit(shots, pool, FAKE).rows
    w = np.stack([views[2 * k].mean(0) + views[2 * k + 1].mean(0) for k in range(3)])
    alpha = np.full(3, first_alpha(views, shots.labels, text, FAKE.logit_scale))
    probe = BlendedProbe(views.reshape(-1, 64), shots.labels.repeat(views.shape[1]), text)
    w, _ = descend(probe, w, alpha, steps=1)
    np.testing.assert_allclose(fitted.rows, w + alpha[:, None] * text, atol=1e-4)
    assert fitted.details["alpha"] == pytest.approx([fitted.details["first_alpha"]] * 3)


def test_learns_what_can_be_learned_and_is_never_above_where_it_began():
    shots = few_shots(clip_like(n_classes=5, shots=8, confusion=0.5), 5)
    pool = build_pool(list(shots.class_names))
    fitted = LPPlusPlus().fit(shots, pool, FAKE)
    assert np.mean(fitted.predict(shots.images) == shots.labels) > 0.95
    assert fitted.details["loss"] < LPPlusPlus(steps=1).fit(shots, pool, FAKE).details["loss"]
    # Views are weighed alike, so that the loss is the mean over all of them.
    rows = shots.images.views(FAKE).reshape(-1, 64)
    losses = log_losses(rows @ fitted.rows.T, shots.labels.repeat(5))
    assert fitted.details["loss"] == pytest.approx(losses.mean(), rel=1e-3)


def test_the_same_images_give_the_same_classifier():
    one, same = (LPPlusPlus().fit(SHOTS, POOL, ENCODER).rows for _ in range(2))
    np.testing.assert_array_equal(one, same)


def test_a_class_without_images_is_refused_before_any_work():
    with pytest.raises(LabelError, match="'ice' has no image, and lp"):
        LPPlusPlus().check(
            FewShotSet(IMAGES, np.zeros(4, dtype=np.int64), SHOTS.class_names), POOL, ENCODER
        )


@pytest.mark.parametrize(
    "setting", ["steps=0", "alpha_every=0", "momentum=1", "momentum=-0.1", "template=a photo"]
)
def test_settings_that_cannot_be_are_refused(setting):
    with pytest.raises(SettingError, match=setting.split("=")[0]):
        make_method(f"lp++?{setting}")
