"""The residual against plain solvers, and what must hold of it whatever the data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad, minimize
from scipy.special import logsumexp

from promptboost.baselines.baselines import fit_probe
from promptboost.boosting import GridPool, Shots, boost
from promptboost.boosting import residual as module
from promptboost.boosting.composition import class_rows
from promptboost.boosting.penalized_loss import PenalizedLoss
from promptboost.boosting.residual import (
    Residual,
    fit_residual,
    fit_text_residual,
    spread_metric,
    texts_of_folds,
)
from promptboost.config import FitConfig
from promptboost.errors import EmbeddingError, LabelError, SettingError
from promptboost.testing import clip_like
from promptboost.training.learner import settle_scale
from promptboost.training.trainer import boost_settings


def made_up(seed=0, classes=4, shots=3, views=3, dim=6, folds=2, noise=0.7):
    """Unit rows around class means, texts near those means, and the fold of each image."""
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((classes, dim))
    labels = np.arange(classes).repeat(shots)
    images = means[labels] + noise * rng.standard_normal((len(labels), dim))
    crops = images[:, None] + 0.3 * rng.standard_normal((len(labels), views, dim))
    crops[:, 0] = images
    texts = means + rng.standard_normal((folds, classes, dim))
    return unit(crops), labels, unit(texts), np.arange(len(labels)) % folds


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def plain_objective(V, X, y, text, metric, penalty):
    """Write the objective down as it is defined, one image and one crop at a time."""
    V = V.reshape(text.shape)
    total = penalty * np.sum((V @ metric) * V) / 2
    for views, label in zip(X, y, strict=True):
        for row in views:
            logits = (text + V) @ row
            total += (logsumexp(logits) - logits[label]) / len(views)
    return float(total)


def a_problem():
    X, y, texts, _ = made_up()
    return PenalizedLoss(X, y, np.ones(len(y)), 5 * texts[0], spread_metric(X, y))


def parts(problem):
    return problem.X, problem.y, problem.text, problem.metric


def fit(X, y, texts, fold, **options):
    """Fit with folds, where all texts are about as good."""
    return fit_residual(X, y, texts[0], texts[-1], folds=fold, fold_rows=texts, **options)


def test_objective_is_the_definition_and_its_gradient_is_right(monkeypatch):
    monkeypatch.setattr("promptboost.boosting.penalized_loss.ROWS", 7)  # several blocks
    problem = a_problem()
    shape = problem.text.shape
    V = np.random.default_rng(1).standard_normal(shape)
    assert problem.objective(V, 0.1)[0] == pytest.approx(
        plain_objective(V.ravel(), *parts(problem), 0.1)
    )
    wrong = check_grad(
        lambda v: plain_objective(v, *parts(problem), 0.1),
        lambda v: problem.objective(v.reshape(shape), 0.1)[1].ravel(),
        V.ravel(),
    )
    assert wrong < 1e-5


@pytest.mark.parametrize("penalty", [0.001, 0.1, 10.0])
@pytest.mark.parametrize("start", [False, True])
def test_solver_finds_what_scipy_finds(penalty, start):
    problem = a_problem()
    shape = problem.text.shape
    best = minimize(
        lambda v: problem.objective(v.reshape(shape), penalty)[0],
        np.zeros(problem.text.size),
        jac=lambda v: problem.objective(v.reshape(shape), penalty)[1].ravel(),
        method="BFGS",
        options={"gtol": 1e-8, "maxiter": 5000},
    ).x.reshape(shape)
    first = np.random.default_rng(2).standard_normal(shape) if start else None
    found = problem.solve(penalty, start=first, tolerance=1e-7)
    np.testing.assert_allclose(found, best, rtol=1e-3, atol=1e-4 * np.abs(best).max())


def test_without_text_it_is_scikit_learns_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    X, y, texts, _ = made_up(folds=1)
    problem = PenalizedLoss(X, y, np.ones(len(y)), 0 * texts[0], np.eye(6))
    peer = LogisticRegression(C=10.0, fit_intercept=False, tol=1e-9, max_iter=5000)
    views = X.shape[1]
    peer.fit(X.reshape(-1, 6), y.repeat(views), np.full(X.size // 6, 1 / views))
    np.testing.assert_allclose(problem.solve(0.1, tolerance=1e-7), peer.coef_, atol=1e-3)


def test_single_precision_gives_the_same_answers():
    X, y, texts, fold = made_up(shots=6)
    exact = fit(X, y, texts, fold)
    quick = fit(X.astype(np.float32), y, texts.astype(np.float32), fold)
    assert quick.weights.dtype == np.float32
    size = np.abs(exact.weights).max()
    np.testing.assert_allclose(quick.weights, exact.weights, atol=0.02 * size)


def test_a_huge_penalty_leaves_the_text_alone():
    X, y, texts, fold = made_up()
    assert np.abs(fit(X, y, texts, fold, penalty=1e9).weights).max() < 1e-4


def test_a_small_penalty_explains_every_image_whatever_the_text_says():
    X, y, texts, _ = made_up(dim=30)
    wrong = texts[0, [1, 2, 3, 0]]
    fitted = fit_residual(X, y, wrong, wrong, penalty=1e-3)
    assert (X[:, 0] @ fitted.class_rows(wrong).T).argmax(axis=1).tolist() == y.tolist()
    assert fitted.losses is None


def test_the_penalty_is_the_strongest_that_explains_the_images():
    X, y, texts, _ = made_up(dim=30, shots=3)
    easy = fit_residual(X, y, texts[0], texts[1])
    assert easy.penalty == pytest.approx(module.PENALTY / 3)
    wrong = texts[0, [1, 2, 3, 0]]
    hard = fit_residual(X, y, 5 * wrong, texts[1])
    assert module.PENALTY / 3 / 2**module.HALVINGS <= hard.penalty < easy.penalty
    right = X[:, 0] @ hard.class_rows(5 * wrong).T
    assert (right.argmax(axis=1) != y).sum() <= 1
    impossible = fit_residual(X[:, :, :1] * 0 + 1, y, texts[0, :, :1], texts[1, :, :1])
    assert impossible.penalty == pytest.approx(module.PENALTY / 3 / 2**module.HALVINGS)


def test_words_that_say_nothing_are_not_listened_to():
    # Whatever a text that was composed on the images seems to say of them.
    X, y, _, _ = made_up(shots=2, noise=0.3)
    fitted = unit(np.stack([X[y == k].mean((0, 1)) for k in range(4)]))
    right = fit_residual(X, y, fitted, fitted)
    wrong = fit_residual(X, y, fitted, fitted[[1, 2, 3, 0]])
    assert wrong.text_scale < right.text_scale / 10


@pytest.mark.parametrize("seed", range(5))
def test_it_is_zero_where_images_set_aside_say_that_it_does_harm(seed):
    # The text sees all there is to see; a quarter of the labels are wrong, and what is left over is noise.
    rng = np.random.default_rng(seed)
    labels, folds = np.arange(200) % 2, np.arange(200) // 2 % 4
    images = 0.3 * rng.standard_normal((200, 150))
    images[:, 0] = 2.0 * labels - 1
    images = unit(images)[:, None]
    texts = np.zeros((4, 2, 150))
    texts[:, :, 0] = [-1, 1]
    noisy = np.where(rng.random(200) < 0.25, 1 - labels, labels)
    loose = fit(images, noisy, texts, folds, penalty=1e-3)
    assert loose.losses is not None
    assert loose.losses[0] < loose.losses[1]
    assert loose.penalty == np.inf
    assert not loose.weights.any()
    clean = fit(images, labels, 0 * texts, folds)
    assert clean.losses is not None
    assert clean.losses[0] > clean.losses[1]
    assert clean.penalty <= module.PENALTY / 100
    assert clean.weights.any()


def test_logits_are_as_loud_as_suits_images_set_aside():
    X, y, texts, fold = made_up(shots=8, noise=1.5, views=1, folds=4)
    checked = fit(X, y, texts, fold, penalty=1e-5)
    alone = fit_residual(X, y, texts[0], texts[-1], penalty=1e-5)
    share = np.abs(checked.weights).max() / np.abs(alone.weights).max()
    assert share < 0.7
    assert checked.text_scale < 0.7 * alone.text_scale
    np.testing.assert_allclose(checked.weights, alone.weights * share)


def test_it_is_used_in_part_where_text_and_residual_know_different_things():
    # Half of what tells the classes apart lies where the text looks, half where it does not, in much noise.
    rng = np.random.default_rng(0)
    labels, folds = np.arange(240) % 2, np.arange(240) // 2 % 4
    images = rng.standard_normal((240, 120))
    images[:, :2] += (2.0 * labels - 1)[:, None]
    texts = np.zeros((4, 2, 120))
    texts[:, :, 0] = [-1, 1]
    images = unit(images)[:, None]
    part = fit(images, labels, texts, folds, penalty=0.05)
    whole = fit_residual(images, labels, texts[0], texts[0], penalty=0.05)
    assert part.losses is not None
    assert part.losses[1] < part.losses[0]
    # More of the text than beside the whole residual.
    used, all_of_it = (item.text_scale / np.abs(item.weights).max() for item in (part, whole))
    assert used > 1.2 * all_of_it


def test_of_several_unseen_texts_the_one_counts_that_suits_the_images():
    X, y, texts, _ = made_up(shots=4, noise=0.3)
    good, poor = texts[0], texts[0, [1, 2, 3, 0]]
    alone = fit_residual(X, y, texts[1], good)
    both = fit_residual(X, y, texts[1], np.stack([poor, good]))
    assert both.text_scale == alone.text_scale
    assert (both.weights == alone.weights).all()


def test_many_images_are_set_aside_in_one_fold_only(monkeypatch):
    X, y, texts, fold = made_up(shots=4)
    every = fit(X, y, texts, fold)
    monkeypatch.setattr(module, "_MANY", 1)
    one = fit(X, y, texts, fold)
    assert one.losses != every.losses
    np.testing.assert_allclose(
        one.weights / np.abs(one.weights).max(), every.weights / np.abs(every.weights).max()
    )


def test_images_in_no_fold_are_learned_from_and_not_judged_by(monkeypatch):
    X, y, texts, fold = made_up(shots=4)
    mixed, judged = module._mixed, []
    monkeypatch.setattr(module, "_mixed", lambda *seen: judged.append(seen) or mixed(*seen))
    fit(X, y, texts, fold)
    some = np.where(fold == 0, 0, -1)
    fit_residual(X, y, texts[0], texts[-1], folds=some, fold_rows=texts[:1])
    every, one = judged
    for of_every, of_one in zip(every, one, strict=True):
        assert np.array_equal(of_every[fold == 0], of_one)
    with pytest.raises(SettingError, match="−1 for images in none"):
        fit_residual(X, y, texts[0], texts[-1], folds=0 * fold - 1, fold_rows=texts)


def test_folds_know_nothing_of_the_images_set_aside(monkeypatch):
    """What is fitted without some images is the same whatever they look like."""
    X, y, texts, fold = made_up(shots=6, dim=20)
    metric = spread_metric(X, y)
    monkeypatch.setattr(module, "spread_metric", lambda *_: metric)
    monkeypatch.setattr(module, "_explained", lambda problem, rate: (problem.text * 0, rate))
    real, fitted = PenalizedLoss.solve, []

    def solve(*problem, **options):
        fitted.append(real(*problem, **options))
        return fitted[-1]

    monkeypatch.setattr(PenalizedLoss, "solve", solve)
    monkeypatch.setattr(module, "_worth", lambda *_: (0.0, 5.0))
    fit(X, y, texts, fold)
    other = np.where((fold == 0)[:, None, None], X[::-1], X)
    fit(other, y, texts, fold)
    assert len(fitted) == 4
    assert np.array_equal(fitted[0], fitted[2])
    assert not np.array_equal(fitted[1], fitted[3])


def test_where_rows_are_many_the_mean_of_its_crops_stands_for_an_image(monkeypatch):
    X, y, texts, fold = made_up(shots=8)
    crops = fit(X, y, texts, fold)
    monkeypatch.setattr(module, "_MOST_ROWS", X.shape[0] * X.shape[1] - 1)
    means = fit(X, y, texts, fold)
    assert means.losses[0] == crops.losses[0], "the text alone is judged as before"
    assert means.losses[1] != crops.losses[1]
    assert means.losses[1] == pytest.approx(crops.losses[1], rel=0.05)


def test_crops_decide_what_is_cheap():
    X, y, _, _ = made_up(dim=3)
    X = np.zeros_like(X) + np.eye(3)[2]
    X[:, :, 0] += np.array([-1.0, 0.0, 1.0])  # crops differ in the first direction only
    X[:, :, 1] += (y % 2)[:, None]
    metric = spread_metric(X, y)
    assert metric[0, 0] > 10 * metric[1, 1] > 0
    assert np.trace(metric) / 3 == pytest.approx(X.reshape(-1, 3).var(axis=0).sum())


def test_few_crops_are_not_trusted_about_directions():
    # They differ in all directions alike: by chance alone, a few seem to differ most in some.
    rng = np.random.default_rng(0)
    images = rng.standard_normal((200, 1, 40)) + 0.1 * rng.standard_normal((200, 5, 40))
    labels = np.arange(200) % 4
    few, many = (np.linalg.eigvalsh(spread_metric(images[:n], labels[:n])) for n in (8, 200))
    assert few.max() < 2 * few.min()
    assert many.max() < 2 * many.min()
    images[:, :, 0] += 3 * rng.standard_normal((200, 5))  # they differ in one: even a few show it
    clear = np.linalg.eigvalsh(spread_metric(images[:8], labels[:8]))
    assert clear.max() > 20 * clear[-2]


@pytest.mark.parametrize(("views", "shots"), [(1, 3), (1, 1), (3, 1)])
def test_there_is_a_metric_without_crops_or_second_images(views, shots):
    X, y, _, _ = made_up(views=views, shots=shots)
    metric = spread_metric(X, y)
    assert np.linalg.eigvalsh(metric).min() > 0
    same = spread_metric(np.ones_like(X), y)
    np.testing.assert_allclose(same, np.eye(6))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**16), st.integers(1, 4), st.integers(1, 3))
def test_the_order_of_images_and_classes_decides_nothing(seed, shots, views):
    X, y, texts, _ = made_up(seed, shots=shots, views=views)
    rng = np.random.default_rng(seed)
    images, classes = rng.permutation(len(y)), rng.permutation(4)
    once = fit_residual(X, y, texts[0], texts[1])
    text, unseen = texts[:, classes]
    again = fit_residual(X[images], np.argsort(classes)[y[images]], text, unseen)
    # Sums in another order may round to the next step of the grid.
    assert once.text_scale == pytest.approx(again.text_scale, rel=0.13)
    if once.text_scale == again.text_scale:
        size = np.abs(once.weights).max()
        np.testing.assert_allclose(again.weights, once.weights[classes], atol=1e-2 * size)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**16))
def test_the_same_input_gives_the_same_residual(seed):
    once, again = (fit(*made_up(seed)) for _ in range(2))
    assert once.text_scale == again.text_scale
    assert (once.weights == again.weights).all()


#: Classes, length of the rows, how much images of a class differ, and what the pool is like.
FAMILY = [
    (6, 64, 2.5, "good"),
    (6, 64, 4.0, "good"),
    (12, 96, 1.5, "templates"),
    (6, 64, 1.0, "misleading"),
]


def accuracies(classes, dim, confusion, words, shots, seed):
    """Learn from a few images of a made-up task; held out by text, logistic regression, and both terms."""
    task = clip_like(
        classes,
        shots + 24,
        views=4,
        prompts=30,
        templates=4,
        dim=dim,
        confusion=confusion,
        seed=seed,
    )
    templates, prompts = (
        task.templates,
        [np.concatenate(both) for both in zip(task.templates, task.prompts, strict=True)],
    )
    if words == "templates":
        prompts = list(templates)
    if words == "misleading":  # they are those of another class
        templates, prompts = np.roll(templates, 1, axis=0), prompts[-1:] + prompts[:-1]
    learned = np.tile(np.arange(shots + 24) < shots, classes)
    y = task.labels[learned]
    images = Shots.from_rows(task.images[learned], y, task.views[learned])
    pool = GridPool.from_rows(templates, prompts)
    settled, _, _, _ = settle_scale(images, pool, boost_settings(FitConfig(), 4), None)
    (done,) = boost(images, pool, settled)
    text = class_rows(done.composition, pool)
    folds = texts_of_folds(images, pool, settled)
    both = fit_text_residual(images, pool, text, folds=folds).class_rows(text)
    rows = np.concatenate([task.images[:, None], task.views], axis=1)[learned]
    peer, intercepts, _ = fit_probe(rows, y)
    held_out = task.images[~learned]
    return [
        np.mean(logits.argmax(axis=1) == task.labels[~learned])
        for logits in (held_out @ text.T, held_out @ peer.T + intercepts, held_out @ both.T)
    ]


def test_it_is_never_far_below_the_better_of_text_and_logistic_regression():
    # Whether words or images know more, and though images and crops differ in any direction alike.
    behind = []
    for kind in FAMILY:
        for shots in (1, 2):
            draws = [accuracies(*kind, shots, seed) for seed in range(4)]
            text, images, both = np.mean(draws, axis=0)
            behind.append(max(text, images) - both)
    assert max(behind) < 0.03
    assert np.maximum(behind, 0).mean() < 0.01


def test_what_is_wrong_is_said():
    X, y, texts, fold = made_up()
    with pytest.raises(EmbeddingError, match=r"\(n, 1 \+ V, D\)"):
        fit(X[:, 0], y, texts, fold)
    with pytest.raises(EmbeddingError, match=r"\(K, 6\)"):
        fit_residual(X, y, texts, texts[0])
    with pytest.raises(EmbeddingError, match=r"\(F, K, 6\)"):
        fit_residual(X, y, texts[0], texts[0], folds=fold, fold_rows=texts[0])
    with pytest.raises(EmbeddingError, match="embeddings that are not finite"):
        fit(X * np.nan, y, texts, fold)
    with pytest.raises(EmbeddingError, match="rows that are not finite"):
        fit(X, y, texts * np.inf, fold)
    with pytest.raises(LabelError, match="label 4, and 4 class rows"):
        fit(X, y + 1, texts, fold)
    with pytest.raises(LabelError, match="from 0"):
        fit(X, y - 1, texts, fold)
    with pytest.raises(SettingError, match="0 to 1"):
        fit(X, y, texts, fold + 1)
    with pytest.raises(SettingError, match="penalty"):
        fit(X, y, texts, fold, penalty=0)


def test_rows_of_text_and_residual_add_up():
    residual = Residual(np.ones((2, 3)), text_scale=2.0, penalty=1.0)
    assert residual.class_rows(np.ones((2, 3))).tolist() == [[3.0] * 3] * 2
