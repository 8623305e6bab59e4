"""CLAP: how strongly each class is held, and the descent."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.encoders.base import unit_rows
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import LabelError, SettingError
from promptboost.methods import FewShotSet, make_method
from promptboost.methods.base import RowImages
from promptboost.methods.linear_probes import CLAP, PenalizedProbe, multipliers
from promptboost.pool import build_pool
from tests.methods.small_task import ENCODER, IMAGES, POOL, SHOTS
from tests.synthetic import clip_like

FAKE = FakeEncoder(dim=64)


def random_probe(seed, n=6, n_classes=3, dim=4):
    rng = np.random.default_rng(seed)
    rows = unit_rows(rng.standard_normal((n, dim))).astype(np.float64)
    start = rng.standard_normal((n_classes, dim))
    probe = PenalizedProbe(start, rng.random(n_classes), scale=7.0)
    return probe, start + rng.standard_normal(start.shape), rows, rng.integers(n_classes, size=n)


def few_shots(task, n_classes):
    rows = np.concatenate([task.images[:, None], task.views], axis=1)
    names = tuple(f"class {k}" for k in range(n_classes))
    return FewShotSet(RowImages({FAKE.id: rows}), task.labels, names)


def test_multipliers_by_hand():
    # Text at 0 and 90 degrees. Class 0: an image on its text, and one on the other text; class 1: one
    # with two views, half way and on its text.
    text, half = np.eye(2), [math.sqrt(0.5), math.sqrt(0.5)]
    views = np.array([[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2, [half, [0.0, 1.0]]])
    sure = 1 / (1 + math.exp(-3.0))
    expected = [(sure + (1 - sure)) / 2, (0.5 + sure) / 2]
    found = multipliers(views, np.array([0, 0, 1]), text, scale=3.0)
    np.testing.assert_allclose(found, expected)


def test_the_penalty_by_hand():
    probe = PenalizedProbe(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0.8, 0.2]), scale=1.0)
    # Moved by (1, 2) and by (0, 3): 0.8 · 5 and 0.2 · 9, and their mean.
    assert probe.penalty(np.array([[2.0, 2.0], [0.0, 4.0]])) == pytest.approx((4.0 + 1.8) / 2)
    assert probe.penalty(probe.start) == 0


def test_the_loss_is_that_of_the_formula_one_row_at_a_time():
    probe, w, rows, labels = random_probe(0)
    losses = []
    for x, label in zip(rows, labels, strict=True):
        logits = [7.0 * x @ w[k] / np.linalg.norm(w[k]) for k in range(3)]
        losses.append(np.log(np.sum(np.exp(logits))) - logits[label])
    expected = np.mean(losses) + probe.penalty(w)
    assert probe.loss(w, rows, labels) == pytest.approx(expected)


@given(st.integers(0, 10**6))
def test_the_slope_is_that_of_finite_differences(seed):
    probe, w, rows, labels = random_probe(seed)
    slope, h = probe.slope(w, rows, labels), 1e-6
    for place in np.ndindex(w.shape):
        move = np.zeros_like(w)
        move[place] = h
        rise = probe.loss(w + move, rows, labels) - probe.loss(w - move, rows, labels)
        assert slope[place] == pytest.approx(rise / (2 * h), rel=1e-4, abs=1e-5)


def test_the_steps_are_those_of_torch():
    torch = pytest.importorskip("torch")
    task = clip_like(n_classes=3, shots=4, dim=64, views=0)
    shots = few_shots(task, 3)
    pool = build_pool(list(shots.class_names))
    # One view and one batch: the order of the images does not matter.
    ours = CLAP(epochs=9, learning_rate=0.5).fit(shots, pool, FAKE).rows

    text = torch.tensor(make_method("template-mean").fit(shots, pool, FAKE).rows)
    x, y, scale = torch.tensor(task.images), torch.tensor(task.labels), FAKE.logit_scale
    right = torch.softmax(scale * x @ text.T, dim=1)[torch.arange(len(y)), y]
    held = torch.stack([right[y == k].mean() for k in range(3)])
    start = text * scale**0.5
    w = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([w], lr=0.5, momentum=0.9)
    for epoch in range(9):
        rate = 1e-5 if epoch == 0 else 0.5 * (1 + math.cos(math.pi * (epoch - 1) / 9)) / 2
        optimizer.param_groups[0]["lr"] = rate
        logits = scale * x @ torch.nn.functional.normalize(w, dim=1).T
        loss = torch.nn.functional.cross_entropy(logits, y)
        loss = loss + (held * ((w - start) ** 2).sum(dim=1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rows = scale * torch.nn.functional.normalize(w, dim=1).detach().numpy()
    assert np.abs(ours - scale * text.numpy()).max() > 0.01
    np.testing.assert_allclose(ours, rows, atol=1e-3)


def test_longer_rows_stay_nearer_to_the_text():
    shots = few_shots(clip_like(n_classes=4, shots=4), 4)
    pool = build_pool(list(shots.class_names))
    text = make_method("template-mean").fit(shots, pool, FAKE).rows
    cosines = [
        float((CLAP(length=length).fit(shots, pool, FAKE).rows * text).sum(axis=1).mean())
        for length in (1.0, 4.0, 100.0)
    ]
    assert cosines[0] < cosines[1] < cosines[2]
    assert cosines[2] == pytest.approx(FAKE.logit_scale, rel=1e-2)


def test_images_help_where_names_do_not():
    task = clip_like(n_classes=5, shots=8, confusion=0.5)
    shots = few_shots(task, 5)
    fitted = CLAP().fit(shots, build_pool(list(shots.class_names)), FAKE)
    assert np.mean(fitted.predict(shots.images) == shots.labels) > 0.9
    assert len(fitted.details["multipliers"]) == 5
    assert all(0 <= held <= 1 for held in fitted.details["multipliers"])


def test_the_seed_decides():
    shots = few_shots(clip_like(n_classes=3, shots=3), 3)
    pool = build_pool(list(shots.class_names))
    one, same, other = (CLAP(epochs=5, seed=s).fit(shots, pool, FAKE).rows for s in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0


def test_batches_are_whole_or_all_there_is():
    task = clip_like(n_classes=3, shots=4, views=0)
    shots = few_shots(task, 3)
    pool = build_pool(list(shots.class_names))
    whole, more, small = (
        CLAP(epochs=5, batch=batch).fit(shots, pool, FAKE).rows for batch in (12, 256, 5)
    )
    np.testing.assert_allclose(whole, more, atol=1e-4)
    assert np.abs(whole - small).max() > 1e-3


def test_a_class_without_images_is_refused_before_any_work():
    with pytest.raises(LabelError, match="'ice' has no image, and clap weights"):
        CLAP().check(
            FewShotSet(IMAGES, np.zeros(4, dtype=np.int64), SHOTS.class_names), POOL, ENCODER
        )


@pytest.mark.parametrize(
    "setting", ["epochs=0", "batch=0", "learning_rate=0", "length=0", "template=a photo"]
)
def test_settings_that_cannot_be_are_refused(setting):
    with pytest.raises(SettingError, match=setting.split("=")[0]):
        make_method(f"clap?{setting}")
