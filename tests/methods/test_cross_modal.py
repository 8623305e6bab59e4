"""The cross-modal probe: logistic regression on images and the text of each class."""

import numpy as np
import pytest

from promptboost.baselines import fit_probe
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import LabelError, SettingError
from promptboost.methods import FewShotSet, make_method
from promptboost.methods.base import RowImages
from promptboost.methods.linear_probes import CrossModal
from promptboost.methods.sentence_means import ZeroShot
from promptboost.pool import build_pool
from tests.methods.small_task import ENCODER, IMAGES, POOL, SHOTS
from tests.synthetic import clip_like

FAKE = FakeEncoder(dim=64)


def few_shots(task, n_classes):
    rows = np.concatenate([task.images[:, None], task.views], axis=1)
    names = tuple(f"class {k}" for k in range(n_classes))
    return FewShotSet(RowImages({FAKE.id: rows}), task.labels, names)


def test_texts_are_rows_with_half_of_the_weight():
    linear_model = pytest.importorskip("sklearn.linear_model")
    task = clip_like(n_classes=3, shots=1)
    views = np.concatenate([task.images[:, None], task.views], axis=1)
    text = task.templates.mean(axis=1)
    weights, intercepts, C = fit_probe(views, task.labels, text=text)
    # Five rows of each image, a fifth of a weight each, and a text of weight one.
    X, y = np.concatenate([*views, text]), np.concatenate([np.repeat(task.labels, 5), np.arange(3)])
    model = linear_model.LogisticRegression(C=C, max_iter=5000, tol=1e-6)
    model.fit(X, y, sample_weight=[0.2] * 15 + [1.0] * 3)
    np.testing.assert_allclose(weights, model.coef_, atol=0.02)
    np.testing.assert_allclose(intercepts, model.intercept_, atol=0.02)


def test_the_method_is_the_probe_with_the_mean_of_the_templates():
    shots = few_shots(clip_like(n_classes=4, shots=3), 4)
    pool = build_pool(list(shots.class_names))
    text, views = ZeroShot("all").fit(shots, pool, FAKE).rows, shots.images.views(FAKE)
    weights, intercepts, C = fit_probe(views, shots.labels, text=text, seed=5)
    fitted = CrossModal(seed=5).fit(shots, pool, FAKE)
    expected = views[:, 0] @ weights.T + intercepts
    np.testing.assert_allclose(fitted.logits(shots.images), expected, atol=1e-4)
    assert fitted.details == {"C": C}


def test_text_helps_where_images_are_few():
    names, colors = ("red", "green", "blue"), ("dark red", "green", "sky blue")
    rows = ENCODER.encode_texts([f"a {color} thing" for color in colors])
    rng = np.random.default_rng(0)
    noisy = rows + 0.35 * rng.standard_normal((60, *rows.shape)).astype(np.float32)
    noisy /= np.linalg.norm(noisy, axis=2, keepdims=True)
    right = {"logistic": 0, "cross-modal": 0}
    for draw in range(20):
        images = RowImages({ENCODER.id: noisy[draw][:, None]})
        shots = FewShotSet(images, np.arange(3), names)
        for name in right:
            fitted = make_method(name).fit(shots, build_pool(list(names)), ENCODER)
            others = RowImages({ENCODER.id: noisy[20:].reshape(-1, 1, ENCODER.dim)})
            right[name] += np.sum(fitted.predict(others) == np.tile(np.arange(3), 40))
    assert right["cross-modal"] > right["logistic"]


def test_a_class_without_images_is_refused_before_any_work():
    shots = FewShotSet(IMAGES, np.zeros(4, dtype=np.int64), SHOTS.class_names)
    with pytest.raises(LabelError, match="'ice' has no image, and cross-modal"):
        CrossModal().check(shots, POOL, ENCODER)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(SettingError, match="template"):
        make_method("cross-modal?template=a photo")
