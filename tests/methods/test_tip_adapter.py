import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.boosting.composition import log_losses
from promptboost.encoders.base import unit_rows
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import EncoderError, LabelError, SettingError
from promptboost.methods import FewShotSet, make_method
from promptboost.methods.base import RowImages
from promptboost.methods.sentence_means import ZeroShot
from promptboost.methods.tip_adapter import (
    ALPHAS,
    BETAS,
    EPOCHS,
    Cache,
    TipAdapter,
    choose_epoch,
    choose_weights,
    gradient,
    tune,
)
from promptboost.pool import build_pool
from tests.synthetic import clip_like

ENCODER = FakeEncoder(dim=32)
COLOURS = ("red", "green", "blue")
POOL = build_pool(list(COLOURS))


def shots_of(n_shots, views=2, seed=0, misnamed=False):
    """Images of colors; where misnamed, the names of the classes are of no help."""
    rng = np.random.default_rng(seed)
    names = ("alpha", "beta", "gamma") if misnamed else COLOURS
    clean = ENCODER.encode_texts([f"a {c} thing" for c in COLOURS]).repeat(n_shots, axis=0)
    noise = rng.standard_normal((len(clean), 1 + views, ENCODER.dim)) * 0.08
    rows = unit_rows((clean[:, None] + noise).reshape(-1, ENCODER.dim))
    labels = np.arange(3).repeat(n_shots)
    images = RowImages({ENCODER.id: rows.reshape(noise.shape)})
    return FewShotSet(images, labels, names)


def fitted_on(shots, **settings):
    return TipAdapter(**settings).fit(shots, build_pool(list(shots.class_names)), ENCODER)


# The formula


def test_a_worked_example():
    # Three keys at 0, 60 and 90 degrees; the first two are of class 0. The image is at 0 degrees.
    keys = np.array([[1, 0], [0.5, math.sqrt(0.75)], [0, 1]], dtype=np.float32)
    cache = Cache(keys, np.array([0, 0, 1]), 2, alpha=2.0, beta=3.0)
    image = np.array([[1.0, 0.0]], dtype=np.float32)
    expected = [2 * (math.exp(0) + math.exp(-1.5)), 2 * math.exp(-3)]
    np.testing.assert_allclose(cache.scores(image), [expected], rtol=1e-6)


def test_logits_are_text_plus_cache_one_image_at_a_time():
    shots = shots_of(2)
    fitted = fitted_on(shots, alpha=1.5, beta=4.0)
    W = ZeroShot("all").fit(shots, POOL, ENCODER).rows
    views = shots.images.views(ENCODER)
    for i, x in enumerate(views[:, 0]):
        logits = [ENCODER.logit_scale * float(x @ W[k]) for k in range(3)]
        for j, own in enumerate(views):
            mean = own.mean(axis=0)
            key = mean / np.linalg.norm(mean)
            logits[shots.labels[j]] += 1.5 * math.exp(-4.0 * (1 - float(x @ key)))
        np.testing.assert_allclose(fitted.logits(shots.images)[i], logits, rtol=1e-4)


def test_a_single_template_can_be_the_text():
    shots = shots_of(1)
    fitted = fitted_on(shots, template="a {} thing")
    np.testing.assert_allclose(fitted.rows, ENCODER.encode_texts([f"a {c} thing" for c in COLOURS]))


def test_images_help_where_names_do_not():
    shots, others = shots_of(4, misnamed=True), shots_of(8, seed=9, misnamed=True)
    text = ZeroShot("all").fit(shots, build_pool(list(shots.class_names)), ENCODER)
    right = {
        name: np.mean(one.predict(others.images) == others.labels)
        for name, one in {"text": text, "cache": fitted_on(shots)}.items()
    }
    assert right["cache"] > 0.95 > right["text"]


def test_a_class_without_a_image_has_its_text():
    rows = ENCODER.encode_texts(["a red thing", "a green thing"])
    shots = FewShotSet(RowImages({ENCODER.id: rows[:, None]}), np.array([0, 1]), COLOURS)
    blue = RowImages({ENCODER.id: ENCODER.encode_texts(["a blue thing"])[:, None]})
    for tuned in (False, True):
        assert fitted_on(shots, tuned=tuned).predict(blue).tolist() == [2]


# Alpha and beta


def left_out(cache, rows, text, alpha, beta):
    """Logits of each image by a cache without the images of its fold, written plainly."""
    number = [int((cache.labels[:i] == label).sum()) for i, label in enumerate(cache.labels)]
    folds = min(np.bincount(cache.labels))
    logits = np.array(rows @ text.T, dtype=np.float64)
    for i, x in enumerate(rows):
        for j, key in enumerate(cache.keys):
            if number[i] % folds != number[j] % folds:
                near = math.exp(-beta * (1 - float(x @ key)))
                logits[i, cache.labels[j]] += alpha * near * folds / (folds - 1)
    return logits


@pytest.mark.parametrize("by_loss", [False, True])
@given(seed=st.integers(0, 10**6), shots=st.integers(2, 4))
def test_the_choice_is_the_best_on_images_left_out(by_loss, seed, shots):
    task = clip_like(n_classes=3, shots=shots, dim=16, seed=seed)
    text = task.templates[:, 0] * np.float32(20)
    cache = Cache(unit_rows(task.views.mean(axis=1)), task.labels, 3)
    alphas, betas = (0.5, 8.0, 64.0), (1.0, 5.5)
    chosen = choose_weights(cache, task.images, text, alphas, betas, by_loss=by_loss)

    def cost(alpha, beta):
        logits = left_out(cache, task.images, text, alpha, beta)
        wrong = 0 if by_loss else np.sum(logits.argmax(axis=1) != task.labels)
        louder = np.geomspace(0.1, 10, 9)
        return wrong, min(log_losses(loud * logits, task.labels).mean() for loud in louder)

    costs = {(a, b): cost(a, b) for a in alphas for b in betas}
    best, found = min(costs.values()), costs[chosen.alpha, chosen.beta]
    assert found[0] == best[0]
    assert found[1] == pytest.approx(best[1], rel=1e-4, abs=1e-6)


def test_tuning_begins_where_the_loss_is_low():
    encoder = FakeEncoder(dim=64)
    task = clip_like(n_classes=4, shots=4, seed=2)
    names = tuple(f"class {k}" for k in range(4))
    pool = build_pool(list(names))
    rows = np.concatenate([task.images[:, None], task.views], axis=1)
    shots = FewShotSet(RowImages({encoder.id: rows}), task.labels, names)
    text = ZeroShot("all").fit(shots, pool, encoder).rows * np.float32(encoder.logit_scale)
    cache = Cache(unit_rows(rows.mean(axis=1)), task.labels, 4)
    expected = [
        choose_weights(cache, rows[:, 0], text, ALPHAS, BETAS, by_loss=by_loss)
        for by_loss in (False, True)
    ]
    found = [TipAdapter(tuned=tuned).fit(shots, pool, encoder).cache for tuned in (False, True)]
    chosen, wanted = ([(c.alpha, c.beta) for c in caches] for caches in (found, expected))
    assert chosen == wanted
    assert chosen[0] != chosen[1]


def test_one_shot_has_nothing_to_choose_by():
    cache = fitted_on(shots_of(1)).cache
    assert (cache.alpha, cache.beta) == (1.0, 5.5)


def test_what_is_given_is_not_chosen():
    shots = shots_of(4, misnamed=True)
    assert fitted_on(shots, alpha=0.3, beta=7.0).cache.alpha == 0.3
    half = fitted_on(shots, beta=7.0).cache
    assert half.beta == 7.0
    assert half.alpha in ALPHAS
    assert fitted_on(shots_of(1), alpha=0.3).cache.alpha == 0.3
    assert fitted_on(shots_of(1), alpha=0.3).cache.beta == 5.5


def test_a_cache_that_misleads_gets_little_weight():
    shots = shots_of(4)
    # Half of the images of a class are filed under the next one; the names are right.
    moved = np.where(np.arange(12) % 2 == 0, shots.labels, (shots.labels + 1) % 3)
    twice = RowImages({ENCODER.id: shots.images.views(ENCODER).repeat(2, axis=0)})
    both = np.stack([shots.labels, moved], axis=1).ravel()
    misled = fitted_on(FewShotSet(twice, both, COLOURS), beta=5.5).cache.alpha
    assert misled < fitted_on(shots_of(4, misnamed=True), beta=5.5).cache.alpha


# Tuning


def loss_of(cache, rows, text, labels):
    return log_losses(rows @ text.T + cache.scores(rows), labels).mean()


def test_the_gradient_is_that_of_finite_differences():
    rng = np.random.default_rng(3)
    rows = unit_rows(rng.standard_normal((5, 6))).astype(np.float64)
    text = rng.standard_normal((4, 6)) * 3
    labels = np.array([0, 1, 2, 2, 1])
    keys = rng.standard_normal((7, 6)) * 0.4  # tuned keys are of any length
    cache = Cache(keys, np.array([0, 1, 2, 3, 0, 1, 1]), 4, alpha=1.7, beta=2.3)
    slope = gradient(cache, rows, text, labels)
    h = 1e-6
    for place in np.ndindex(keys.shape):
        ends = []
        for sign in (1, -1):
            moved = keys.copy()
            moved[place] += sign * h
            ends.append(loss_of(replace(cache, keys=moved), rows, text, labels))
        assert slope[place] == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=1e-8, rel=1e-5)


def test_the_steps_are_those_of_adamw():
    torch = pytest.importorskip("torch")
    task = clip_like(n_classes=3, shots=4, dim=16)
    text = task.templates[:, 0] * np.float32(20)
    start = Cache(task.images, task.labels, 3, alpha=2.0, beta=5.5)
    # One view and one batch: the order of the images does not matter.
    ours = tune(start, task.images[:, None], text, epochs=7, step=0.01).keys

    x, y = torch.tensor(task.images), torch.tensor(task.labels)
    keys = torch.nn.Parameter(torch.tensor(task.images))
    optimizer = torch.optim.AdamW([keys], lr=0.01, eps=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7)
    values = torch.nn.functional.one_hot(y, 3).float()
    for _ in range(7):
        near = torch.exp(-5.5 * (1 - x @ keys.T))
        loss = torch.nn.functional.cross_entropy(x @ torch.tensor(text).T + 2 * near @ values, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    assert np.abs(ours - task.images).max() > 0.01
    np.testing.assert_allclose(ours, keys.detach().numpy(), atol=2e-5)


def test_every_image_is_seen_once_an_epoch_in_batches():
    task = clip_like(n_classes=3, shots=4, dim=16, confusion=0.5)
    text = task.templates[:, 0] * np.float32(20)
    views = np.concatenate([task.images[:, None], task.views], axis=1)
    start = Cache(task.images, task.labels, 3)
    small = tune(start, views, text, batch=5)
    whole = tune(start, views, text, batch=12)
    more = tune(start, views, text, batch=256)
    assert np.abs(small.keys - whole.keys).max() > 0
    # A batch larger than the set is the whole set.
    np.testing.assert_array_equal(whole.keys, more.keys)


def test_tuning_lowers_the_loss_on_views_and_keeps_alpha_and_beta():
    shots = shots_of(4, views=4, misnamed=True)
    views = shots.images.views(ENCODER).reshape(-1, ENCODER.dim)
    free, tuned = (fitted_on(shots, tuned=t, alpha=1.0, beta=5.5) for t in (False, True))
    text = free.rows * np.float32(ENCODER.logit_scale)
    before, after = (
        loss_of(one.cache, views, text, shots.labels.repeat(5)) for one in (free, tuned)
    )
    assert after < before
    assert (tuned.cache.alpha, tuned.cache.beta) == (1.0, 5.5)


def test_the_seed_decides():
    shots = shots_of(3, views=3)
    one, same, other = (fitted_on(shots, tuned=True, seed=s).cache.keys for s in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0


# The epoch


def loss_aside(start, views, text, epoch, folds):
    """Log loss of images by a tuned cache of the others, at the best loudness, written plainly."""
    number = np.array(
        [int((start.labels[:i] == label).sum()) for i, label in enumerate(start.labels)]
    )
    logits = np.array(views[:, 0] @ text.T)
    for part in range(folds):
        rest = number % folds != part
        cache = Cache(
            start.keys[rest],
            start.labels[rest],
            start.n_classes,
            start.alpha * folds / (folds - 1),
            start.beta,
        )
        cache = tune(cache, views[rest], text, last=epoch, step=0.01)
        rows = views[~rest, 0]
        logits[~rest] += cache.scores(rows)
    return min(log_losses(loud * logits, start.labels).mean() for loud in np.geomspace(0.1, 10, 9))


@pytest.mark.parametrize(("shots", "ends_early"), [(2, True), (4, False)])
def test_the_epoch_is_the_best_on_images_set_aside(shots, ends_early):
    task = clip_like(n_classes=5, shots=shots, dim=16, seed=3)
    text = task.templates[:, 0] * np.float32(20)
    views = np.concatenate([task.images[:, None], task.views], axis=1)
    start = Cache(unit_rows(views.mean(axis=1)), task.labels, 5, alpha=4.0)
    chosen = choose_epoch(start, views, text, step=0.01)
    losses = [loss_aside(start, views, text, e, min(shots, 3)) for e in range(1, EPOCHS + 1)]
    assert losses[chosen - 1] == pytest.approx(min(losses), rel=1e-5)
    assert min(losses) < 0.999 * max(losses)  # else any would have been right
    assert (chosen < EPOCHS) == ends_early


def test_an_epoch_on_the_way_is_that_of_the_whole_path():
    task = clip_like(n_classes=3, shots=4, dim=16)
    text = task.templates[:, 0] * np.float32(20)
    start = Cache(task.images, task.labels, 3)
    ends = [tune(start, task.images[:, None], text, last=last).keys for last in (3, EPOCHS, None)]
    assert np.abs(ends[0] - ends[1]).max() > 0
    np.testing.assert_array_equal(ends[1], ends[2])


def test_one_image_a_class_is_tuned_to_the_end_and_what_is_given_is_not_chosen():
    one = fitted_on(shots_of(1), tuned=True).cache.keys
    np.testing.assert_array_equal(one, fitted_on(shots_of(1), tuned=True, epochs=20).cache.keys)
    shots = shots_of(4, misnamed=True)
    views, text = shots.images.views(ENCODER), fitted_on(shots).rows * ENCODER.logit_scale
    start = fitted_on(shots, tuned=True, epochs=1).cache
    start = replace(start, keys=unit_rows(views.mean(axis=1)))
    chosen = tune(start, views, text, last=choose_epoch(start, views, text))
    np.testing.assert_allclose(fitted_on(shots, tuned=True).cache.keys, chosen.keys, atol=1e-6)


# One method among others


def test_stays_with_its_encoder():
    with pytest.raises(EncoderError, match="Fit it again"):
        fitted_on(shots_of(1)).transfer(FakeEncoder(dim=32, seed=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"beta": -1.0}, "beta is -1.0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"epochs": 0}, "epochs is 0"),
        ({"template": "a photo"}, "template"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        TipAdapter(**settings)


def test_no_images_and_no_template_are_refused_before_any_work():
    empty = RowImages({ENCODER.id: np.zeros((0, 1, 32), dtype=np.float32)})
    with pytest.raises(LabelError, match="there is none"):
        TipAdapter().check(FewShotSet(empty, np.zeros(0, dtype=np.int64), COLOURS), POOL, ENCODER)
    with pytest.raises(SettingError, match="benchmark"):
        TipAdapter(template="dataset").check(shots_of(1), POOL, ENCODER)


def test_names_make_both():
    assert make_method("tip-adapter") == TipAdapter()
    assert make_method("tip-adapter-f?epochs=5") == TipAdapter(tuned=True, epochs=5)
