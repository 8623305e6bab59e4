"""ProKeR: the linear system, the choice of its constants, and its files."""

import math

import numpy as np
import pytest

from promptboost.encoders.base import unit_rows
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import LabelError, SettingError
from promptboost.methods import FewShotSet, make_method
from promptboost.methods.base import RowImages
from promptboost.methods.proker import (
    BETAS,
    LAMBDAS,
    ProKeR,
    coefficients,
    kernel,
)
from promptboost.methods.sentence_means import ZeroShot
from promptboost.pool import build_pool
from tests.methods.small_task import ENCODER, IMAGES, POOL, SHOTS
from tests.synthetic import clip_like

FAKE = FakeEncoder(dim=64)


def few_shots(task, n_classes, views=True):
    rows = task.images[:, None]
    if views:
        rows = np.concatenate([rows, task.views], axis=1)
    names = tuple(f"class {k}" for k in range(n_classes))
    return FewShotSet(RowImages({FAKE.id: rows}), task.labels, names)


def test_the_linear_system_by_hand():
    # Two keys at right angles: their kernel is exp(−2), and 1 with themselves. The text is at 60 degrees
    # to the first key and at 30 degrees to the second.
    near, keys = math.exp(-2.0), np.eye(2)
    text = np.array([[0.5, math.sqrt(0.75)], [1.0, 0.0]])
    found = coefficients(keys, np.array([0, 1]), text, beta=2.0, lam=0.1)
    missing = np.array([[1 - 0.5, -1.0], [-math.sqrt(0.75), 1.0]])
    system = np.array([[11.0, 10 * near], [10 * near, 11.0]])
    np.testing.assert_allclose(system @ found, missing)


def test_is_a_kernel_ridge_regression_times_lambda():
    ridge = pytest.importorskip("sklearn.kernel_ridge").KernelRidge
    rng = np.random.default_rng(0)
    keys, text = unit_rows(rng.standard_normal((8, 5))), unit_rows(rng.standard_normal((3, 5)))
    labels = np.arange(8) % 3
    # Of unit rows, exp(−β (1 − cosine)) is a radial basis function with γ = β / 2.
    peer = ridge(alpha=0.2, kernel="rbf", gamma=1.5).fit(keys, np.eye(3)[labels] - keys @ text.T)
    seen = unit_rows(rng.standard_normal((4, 5)))
    found = kernel(seen, keys, 3.0) @ coefficients(keys, labels, text, 3.0, 0.2)
    np.testing.assert_allclose(found, 0.2 * peer.predict(seen), atol=1e-5)


def test_logits_are_text_plus_kernels_one_image_at_a_time():
    shots = few_shots(clip_like(n_classes=3, shots=2), 3)
    pool = build_pool(list(shots.class_names))
    fitted = ProKeR(beta=4.0, lam=0.5).fit(shots, pool, FAKE)
    text, views = ZeroShot("all").fit(shots, pool, FAKE).rows, shots.images.views(FAKE)
    means = views.mean(axis=1)
    keys = means / np.linalg.norm(means, axis=1, keepdims=True)
    factors = coefficients(keys, shots.labels, text, 4.0, 0.5)
    for i, x in enumerate(views[:, 0]):
        logits = [float(x @ row) for row in text]
        for key, factor in zip(keys, factors, strict=True):
            logits += math.exp(-4.0 * (1 - float(x @ key))) * factor
        expected = FAKE.logit_scale * np.array(logits)
        np.testing.assert_allclose(fitted.logits(shots.images)[i], expected, rtol=1e-3, atol=1e-4)


def errors_of(method, shots, pool):
    """Count wrong answers in cross-validation, each fold with a classifier of its own."""
    wrong, n = 0, len(shots.labels)
    number = np.array([int((shots.labels[:i] == y).sum()) for i, y in enumerate(shots.labels)])
    views = shots.images.views(FAKE)
    for fold in range(4):
        kept = np.flatnonzero(number % 4 != fold)
        images = RowImages({FAKE.id: views[kept]})
        fitted = method.fit(FewShotSet(images, shots.labels[kept], shots.class_names), pool, FAKE)
        for i in set(range(n)) - set(kept.tolist()):
            wrong += int(fitted.predict(RowImages({FAKE.id: views[[i]]}))[0] != shots.labels[i])
    return wrong


@pytest.mark.parametrize("seed", [0, 1])
def test_constants_have_the_fewest_errors_on_held_out_images(seed):
    shots = few_shots(clip_like(n_classes=4, shots=4, seed=seed), 4)
    pool = build_pool(list(shots.class_names))
    fitted = ProKeR().fit(shots, pool, FAKE)
    assert fitted.beta in BETAS
    assert fitted.lam in LAMBDAS
    wrong = [
        errors_of(ProKeR(beta=beta, lam=lam), shots, pool)
        for beta in BETAS[::2]
        for lam in LAMBDAS[::2]
    ]
    chosen = errors_of(ProKeR(beta=fitted.beta, lam=fitted.lam), shots, pool)
    assert chosen <= min(wrong) < max(wrong)


def test_one_image_per_class_uses_the_authors_constants():
    shots = few_shots(clip_like(n_classes=3, shots=1), 3)
    pool = build_pool(list(shots.class_names))
    fitted = ProKeR().fit(shots, pool, FAKE)
    assert (fitted.beta, fitted.lam) == (3.0, 0.05)
    fitted = ProKeR(lam=2.0).fit(shots, pool, FAKE)
    assert (fitted.beta, fitted.lam) == (3.0, 2.0)


def test_a_class_without_images_is_refused_before_any_work():
    shots = FewShotSet(IMAGES, np.zeros(4, dtype=np.int64), SHOTS.class_names)
    with pytest.raises(LabelError, match="'ice' has no image"):
        ProKeR().check(shots, POOL, ENCODER)


@pytest.mark.parametrize("setting", ["beta=0", "lam=-1", "template=a photo"])
def test_settings_that_cannot_be_are_refused(setting):
    with pytest.raises(SettingError, match=setting.split("=")[0]):
        make_method(f"proker?{setting}")
