"""GDA and TIMO: the Gaussian classifier, the weights of sentences, and the choice of constants."""

import itertools
import math

import numpy as np
import pytest

from promptboost.encoders.base import unit_rows
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import LabelError, SettingError
from promptboost.methods import FewShotSet, make_method
from promptboost.methods.base import RowImages
from promptboost.methods.gaussian import (
    GAMMAS,
    GDA,
    GDA_ALPHAS,
    TIMO,
    TIMO_ALPHAS,
    gaussian_classifier,
    guided_gaussian,
    guided_text,
)
from promptboost.methods.sentence_means import ZeroShot
from promptboost.pool import build_pool
from tests.methods.small_task import ENCODER, IMAGES, POOL, SHOTS
from tests.synthetic import clip_like

FAKE = FakeEncoder(dim=64)


def few_shots(task, n_classes):
    rows = np.concatenate([task.images[:, None], task.views], axis=1)
    names = tuple(f"class {k}" for k in range(n_classes))
    return FewShotSet(RowImages({FAKE.id: rows}), task.labels, names)


def test_the_gaussian_classifier_is_the_bayes_rule_of_normal_densities():
    rng = np.random.default_rng(0)
    rows, labels = rng.standard_normal((9, 4)), np.array([0, 0, 0, 1, 1, 1, 1, 2, 2])
    means = [np.mean(rows[labels == k], axis=0) for k in range(3)]
    scatter = sum(np.outer(x - means[y], x - means[y]) for x, y in zip(rows, labels, strict=True))
    covariance = (scatter + np.trace(scatter) / 8 * np.eye(4)) / 4
    class_rows, intercepts = gaussian_classifier(rows, labels)
    for x in rng.standard_normal((5, 4)):
        densities = [
            math.exp(-(x - mean) @ np.linalg.inv(covariance) @ (x - mean) / 2) for mean in means
        ]
        logits = class_rows @ x + intercepts
        chances = np.exp(logits - logits.max())
        np.testing.assert_allclose(chances / chances.sum(), densities / np.sum(densities))


def test_without_any_spread_the_nearest_mean_wins():
    rows = np.array([[1.0, 0.0], [0.0, 2.0]])
    class_rows, intercepts = gaussian_classifier(
        rows.repeat(3, axis=0), np.array([0] * 3 + [1] * 3)
    )
    np.testing.assert_allclose(class_rows, 2 * rows)
    np.testing.assert_allclose(intercepts, [-1.0, -4.0])


def test_weights_of_sentences_by_hand():
    # The cosines 0.6 and 0.8 have length one as a vector; those of the second class are halved by it.
    sentences = [np.eye(2), np.eye(2), np.array([[0.0, 3.0]])]
    cosines = [np.array([0.6, 0.8]), np.array([1.2, 1.6]), np.array([0.0])]
    rows = guided_text(sentences, cosines, gamma=5.0)
    shares = np.array([math.exp(3.0), math.exp(4.0)])
    np.testing.assert_allclose(rows[0], shares / np.linalg.norm(shares))
    np.testing.assert_allclose(rows[1], rows[0])
    np.testing.assert_allclose(rows[2], [0.0, 1.0])


def test_sentences_are_rows_of_the_gaussian_classifier_times_their_cosine():
    rng = np.random.default_rng(1)
    views = unit_rows(rng.standard_normal((12, 5))).reshape(4, 3, 5)
    labels = np.array([0, 1, 0, 1])
    sentences = [unit_rows(rng.standard_normal((n, 5))) for n in (2, 4)]
    rows, of_class = [], []
    for k in range(2):
        mean = np.mean([x for i in range(4) if labels[i] == k for x in views[i]], axis=0)
        for row in sentences[k]:
            rows.append(row * (row @ mean) / np.linalg.norm(mean))
            of_class.append(k)
    for i, j in np.ndindex(4, 3):
        rows.append(views[i, j])
        of_class.append(labels[i])
    expected = gaussian_classifier(np.array(rows), np.array(of_class))
    cosines, *found = guided_gaussian(views, labels, sentences)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(rows[0]), abs(cosines[0][0]), rtol=1e-6)


def test_gda_adds_the_gaussian_classifier_to_the_text():
    shots = few_shots(clip_like(n_classes=3, shots=2), 3)
    pool = build_pool(list(shots.class_names))
    views, text = shots.images.views(FAKE), ZeroShot("all").fit(shots, pool, FAKE)
    rows, intercepts = gaussian_classifier(views.reshape(-1, 64), shots.labels.repeat(5))
    logits = views[:, 0] @ rows.T + intercepts
    expected = text.logits(shots.images) + 0.2 * FAKE.logit_scale / 100 * logits
    found = GDA(alpha=0.2).fit(shots, pool, FAKE).logits(shots.images)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_timo_adds_the_weighted_text_to_the_gaussian_classifier():
    fitted = TIMO(alpha=30.0, gamma=5.0).fit(SHOTS, POOL, ENCODER)
    sentences = [ENCODER.encode_texts(list(POOL.texts(name))) for name in SHOTS.class_names]
    views = IMAGES.views(ENCODER)
    cosines, rows, intercepts = guided_gaussian(views, SHOTS.labels, sentences)
    text = views[:, 0] @ guided_text(sentences, cosines, 5.0).T
    expected = 30.0 * text + views[:, 0] @ rows.T + intercepts
    np.testing.assert_allclose(fitted.logits(IMAGES), expected, rtol=1e-4)


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
    shots = few_shots(clip_like(n_classes=4, shots=4, views=1, seed=seed), 4)
    pool = build_pool(list(shots.class_names))
    alpha = GDA().fit(shots, pool, FAKE).details["alpha"]
    wrong = {a: errors_of(GDA(alpha=a), shots, pool) for a in GDA_ALPHAS}
    assert wrong[alpha] == min(wrong.values()) < max(wrong.values())
    pool = build_pool(shots.class_names, templates=["a {}.", "a photo of a {}.", "{}"])
    timo = TIMO().fit(shots, pool, FAKE).details
    wrong = {
        (a, g): errors_of(TIMO(alpha=a, gamma=g), shots, pool)
        for a, g in itertools.product(TIMO_ALPHAS[::2], GAMMAS[::2])
    }
    assert errors_of(TIMO(**timo), shots, pool) <= min(wrong.values()) < max(wrong.values())


def test_one_image_per_class_uses_the_fixed_constants():
    shots = few_shots(clip_like(n_classes=3, shots=1), 3)
    pool = build_pool(list(shots.class_names))
    assert GDA().fit(shots, pool, FAKE).details == {"alpha": 0.1}
    assert TIMO().fit(shots, pool, FAKE).details == {"alpha": 1000.0, "gamma": 50.0}
    assert TIMO(alpha=2.0).fit(shots, pool, FAKE).details == {"alpha": 2.0, "gamma": 50.0}


@pytest.mark.parametrize("method", [GDA(), TIMO()])
def test_images_help_where_names_do_not(method):
    task = clip_like(n_classes=5, shots=16, confusion=0.5)
    every = few_shots(task, 5)
    train, views = np.arange(80) % 2 == 0, every.images.views(FAKE)
    images, others = (RowImages({FAKE.id: views[mask]}) for mask in (train, ~train))
    shots = FewShotSet(images, every.labels[train], every.class_names)
    fitted = method.fit(shots, build_pool(list(shots.class_names)), FAKE)
    assert np.mean(fitted.predict(others) == every.labels[~train]) > 0.9


@pytest.mark.parametrize("method", [GDA(), TIMO()])
def test_a_class_without_images_is_refused_before_any_work(method):
    shots = FewShotSet(IMAGES, np.zeros(4, dtype=np.int64), SHOTS.class_names)
    with pytest.raises(LabelError, match="'ice' has no image"):
        method.check(shots, POOL, ENCODER)


@pytest.mark.parametrize(
    "spelling", ["gda?alpha=0", "gda?template=a photo", "timo?alpha=-1", "timo?gamma=0"]
)
def test_settings_that_cannot_be_are_refused(spelling):
    with pytest.raises(SettingError, match=spelling.split("?")[1].split("=")[0]):
        make_method(spelling)
