"""The residual against plain oracles, and what must hold of it for any data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax

from promptboost.baselines import fit_probe
from promptboost.boosting import GridPool, Shots, boost, composition, scale
from promptboost.boosting import residual as module
from promptboost.boosting.composition import class_rows
from promptboost.boosting.grid import from_grid, to_grid
from promptboost.boosting.residual import (
    Residual,
    fit_residual,
    held_out_logits,
    held_out_prediction,
    spread_metric,
    unseen_texts,
)
from promptboost.boosting.scale import (
    FoldClassRows,
    balanced_weights,
    fold_class_rows,
    held_out_folds,
)
from promptboost.config import FitConfig
from promptboost.errors import WeightError
from promptboost.training.trainer import boost_settings, settle_scale
from tests.synthetic import clip_like


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


def fit(X, y, texts, fold, **options):
    """Fit with folds, where all texts are about as good."""
    return fit_residual(X, y, texts[0], texts[-1], folds=FoldClassRows(fold, texts), **options)


def whitened(X, y, weights):
    """Return the rows that the classifiers are fitted to, in whitened coordinates."""
    center = np.average(X[:, 0], axis=0, weights=weights)
    rows = (X[:, 0] + X.mean(axis=1)) / 2 - center
    rows = rows @ np.linalg.inv(np.linalg.cholesky(spread_metric(X, y))).T
    return rows / np.sqrt(np.average((rows**2).sum(axis=1), weights=weights))


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("penalty", module.PENALTIES)
def test_logistic_regression_is_that_of_scikit_learn(views, penalty):
    from sklearn.linear_model import LogisticRegression

    X, y, _, _ = made_up(shots=4, views=views)
    X, y = X[:-2], y[:-2]  # classes of different sizes
    weights = balanced_weights(y)
    rows, number = whitened(X, y, weights), module.PENALTIES.index(penalty)
    # The intercept is penalized like the slopes.
    rows = np.column_stack([rows, np.ones(len(rows))])
    ours = rows @ module._logistic(rows, y, weights, np.zeros((2, 1, 1)))[number].T
    strength = 4 / (penalty * len(y))
    peer = LogisticRegression(C=strength, tol=1e-10, max_iter=10_000, fit_intercept=False)
    theirs = peer.fit(rows, y, weights).decision_function(rows)
    ours -= ours.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(ours, theirs - theirs.mean(axis=1, keepdims=True), atol=0.02)


@pytest.mark.parametrize("shots", [1, 3])
def test_rows_are_worked_on_in_blocks(monkeypatch, shots):
    X, y, texts, fold = made_up(shots=shots, classes=30, views=1)
    folds = FoldClassRows(np.full(len(y), -1) if shots == 1 else fold, texts)
    whole = fit_residual(X, y, texts[0], texts[-1], folds=folds)
    for patched in (module, composition):
        monkeypatch.setattr(patched, "rows_at_once", lambda *_: 4)
    in_blocks = fit_residual(X, y, texts[0], texts[-1], folds=folds)
    assert whole.is_used
    assert in_blocks.weights == pytest.approx(whole.weights, abs=1e-5)
    assert in_blocks.text_scale == pytest.approx(whole.text_scale, rel=1e-6)


def test_the_scale_found_by_bisection_is_that_of_all_scales():
    for seed in range(20):
        X, y, texts, _ = made_up(seed, classes=5, shots=4, noise=0.2 + seed / 10)
        shots = Shots(to_grid(X[:, 0]), y)
        pool = GridPool.from_rows(texts.swapaxes(0, 1), list(texts.swapaxes(0, 1)))
        hits = composition.template_hits(shots.originals, y, pool.templates)
        rows = from_grid(pool.templates[:, hits.sum(axis=0).argmax()]).astype(float)
        cosines = from_grid(shots.originals).astype(float) @ rows.T
        losses = [composition.log_losses(cosines, y, float(s)).mean() for s in scale._SCALES]
        lowest = scale._SCALES[np.argmax(losses <= np.min(losses) + scale._TOLERANCE)]
        assert scale.calibrated_scale(shots, pool) == pytest.approx(lowest)


def test_logistic_regression_beside_a_text_learns_what_the_text_misses():
    X, y, texts, _ = made_up(shots=2)
    rows, share = X[:, 0], np.full(len(y), 1 / len(y))
    offsets = 5 * rows @ texts[0].T
    slopes = module._logistic(rows, y, np.ones(len(y)), (offsets, np.zeros((1, 1))))[0]

    def loss(slopes):
        chances = log_softmax(rows @ slopes.T + offsets, axis=1)
        penalty = module.PENALTIES[0] / len(slopes) * np.square(slopes).sum() / 2
        return penalty - share @ chances[np.arange(len(y)), y]

    rng = np.random.default_rng(0)
    for _ in range(20):
        assert loss(slopes) < loss(slopes + 0.05 * rng.standard_normal(slopes.shape))


@pytest.mark.parametrize("views", [1, 3])
def test_the_gaussian_classifier_picks_the_nearest_class_mean(views):
    X, y, _, _ = made_up(shots=4, views=views)
    rows = whitened(X, y, np.ones(len(y)))
    fit = module._gaussian(rows, y, np.ones(len(y)))
    means = np.stack([rows[y == k].mean(axis=0) for k in range(4)])
    squares = ((rows[:, None] - means) ** 2).sum(axis=2)
    scores = rows @ fit[:, :-1].T + fit[:, -1]
    expected = -squares / 2 + (rows**2).sum(axis=1, keepdims=True) / 2
    np.testing.assert_allclose(scores, expected)


def test_without_crops_there_is_a_second_gaussian_classifier_as_in_gda():
    X, y, texts, _ = made_up(shots=4, views=1)
    X = X * np.array([6.0, 1, 1, 1, 1, 1])  # so clearly uneven that little shrinkage would do
    first, second = module._metrics(X, y)
    assert np.array_equal(first, spread_metric(X, y))
    assert np.linalg.cond(first) > 2 * np.linalg.cond(second)
    rows = X[:, 0] - np.stack([X[y == k, 0].mean(axis=0) for k in range(4)])[y]
    scatter, known = rows.T @ rows, len(y) - 4
    shrunk = known * scatter / np.trace(scatter) + np.eye(6)
    np.testing.assert_allclose(second, shrunk / np.trace(shrunk) * 6)
    assert len(module._metrics(*made_up(views=3)[:2])) == 1
    counts = [
        len(held_out_logits(images, labels, held_out_folds(labels), None, texts))
        for images, labels, *_ in (made_up(views=1), made_up(views=3))
    ]
    assert counts == [5, 4]


def softened_loss(factors, logits, labels, weights):
    """Write the loss of a mixture down as it is defined."""
    total, n = 0.0, len(labels)
    for i, label in enumerate(labels):
        log_chances = log_softmax(sum(f * z[i] for f, z in zip(factors, logits, strict=True)))
        targets = np.full(len(log_chances), 1 / len(log_chances) / (2 * n + 1))
        targets[label] += 1 - 1 / (2 * n + 1)
        total -= weights[i] * (targets @ log_chances)
    return total / weights.sum()


@pytest.mark.parametrize("seed", range(5))
def test_mixing_factors_minimize_the_loss(seed):
    rng = np.random.default_rng(seed)
    labels, weights = rng.integers(0, 3, 30), rng.random(30)
    logits = rng.standard_normal((3, 30, 3)) * np.array([1.0, 20.0, 0.1])[:, None, None]
    logits[0, np.arange(30), labels] += 0.7
    logits[1, np.arange(30), labels] -= 10 * (seed % 2)
    factors, _ = module._mixture(logits, labels, weights)
    assert (factors >= 0).all()
    best = minimize(
        softened_loss,
        np.ones(3) * [1, 0.05, 1],
        (logits, labels, weights),
        bounds=[(0, None)] * 3,
        method="Nelder-Mead",
        options={"xatol": 1e-8, "fatol": 1e-12, "maxiter": 20_000, "maxfev": 20_000},
    )
    assert softened_loss(factors, logits, labels, weights) <= best.fun + 1e-7


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**16), st.integers(1, 3), st.booleans(), st.booleans())
def test_labels_of_a_fold_do_not_change_what_is_computed_for_it(seed, views, uneven, composed):
    X, y, texts, _ = made_up(seed, shots=4, views=views, folds=2)
    given_ = texts if composed else None  # or the best of several unseen texts, of these images
    if uneven:
        X, y = X[1:-2], y[1:-2]
    fold, rng = held_out_folds(y) % 2, np.random.default_rng(seed)
    logits = held_out_logits(X, y, fold, given_, texts, metrics=module._metrics(X, y))
    for number in range(2):
        other, members = y.copy(), np.flatnonzero(fold == number)
        other[members] = y[rng.permutation(members)]
        # The metric of all images, which callers have, must not matter without crops.
        again = held_out_logits(X, other, fold, given_, texts, metrics=module._metrics(X, other))
        assert np.array_equal(again[:, members], logits[:, members])


def test_images_in_no_fold_have_no_held_out_logits_but_are_learned_from():
    X, y, texts, fold = made_up(shots=4)
    some = np.where(np.arange(len(y)) < 3, -1, fold)
    logits = held_out_logits(X, y, some, texts, texts)
    assert not logits[:, some < 0].any()
    assert logits[:, some >= 0].any(axis=2).all()
    other = X.copy()
    other[0] = X[-1]
    assert not np.array_equal(held_out_logits(other, y, some, texts, texts)[1:], logits[1:])


def test_a_text_that_says_nothing_gets_no_weight():
    X, y, texts, fold = made_up(shots=8, noise=0.3)
    right = fit(X, y, texts, fold)
    wrong = fit(X, y, texts[:, [1, 2, 3, 0]], fold)
    assert wrong.text_scale < right.text_scale / 10
    assert (X[:, 0] @ wrong.class_rows(texts[0, [1, 2, 3, 0]]).T).argmax(
        axis=1
    ).tolist() == y.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_there_is_no_residual_where_images_say_nothing_beyond_the_text(seed):
    # The text sees all there is to see, and many other directions are noise.
    rng = np.random.default_rng(seed)
    labels = np.arange(200) % 2
    images = 0.3 * rng.standard_normal((200, 150))
    images[:, 0] = 2.0 * labels - 1
    images = unit(images)[:, None]
    texts = np.zeros((4, 2, 150))
    texts[:, :, 0] = [-1, 1]
    noisy = np.where(rng.random(200) < 0.25, 1 - labels, labels)
    guided = fit(images, noisy, texts, np.arange(200) // 2 % 4)
    assert guided.losses is not None
    assert guided.losses[1] <= guided.losses[0] + 1e-3
    right = (images[:, 0] @ guided.class_rows(texts[0]).T).argmax(axis=1) == labels
    assert right.mean() > 0.97


def test_with_one_image_per_class_the_residual_counts_the_more_the_less_text_knows():
    X, y, _, _ = made_up(shots=1, classes=8, dim=20, noise=0.3)
    means = unit(np.stack([X[y == k].mean((0, 1)) for k in range(8)]))
    sure = fit_residual(X, y, means, means)
    unsure = fit_residual(X, y, means, np.roll(means, 1, axis=0))
    assert sure.losses is None
    # The text classifies every image correctly, and is only moved along the mean image.
    center = X[:, 0].mean(axis=0)
    along = sure.weights @ center / (center @ center)
    np.testing.assert_allclose(sure.weights, np.outer(along, center), atol=1e-9)
    assert unsure.text_scale < 0.01 * sure.text_scale
    logits = X[:, 0] @ unsure.class_rows(means).T
    assert logits.argmax(axis=1).tolist() == y.tolist()


def test_of_several_unseen_texts_the_one_counts_that_suits_the_images():
    X, y, texts, _ = made_up(shots=1, noise=0.3)
    good, poor = texts[0], texts[0, [1, 2, 3, 0]]
    alone = fit_residual(X, y, texts[1], good)
    both = fit_residual(X, y, texts[1], np.stack([poor, good]))
    assert both.text_scale == alone.text_scale
    assert (both.weights == alone.weights).all()


def test_without_texts_of_folds_the_unseen_text_stands_for_them():
    X, y, texts, _ = made_up(shots=4)
    folds = FoldClassRows(held_out_folds(y), np.repeat(texts[1][None], 4, axis=0))
    once, again = (fit_residual(X, y, texts[0], texts[1], folds=item) for item in (None, folds))
    assert once.text_scale == pytest.approx(again.text_scale)
    np.testing.assert_allclose(once.weights, again.weights, atol=1e-6)


def test_single_precision_gives_the_same_answers():
    X, y, texts, fold = made_up(shots=6)
    exact = fit(X, y, texts, fold)
    quick = fit(X.astype(np.float32), y, texts.astype(np.float32), fold)
    size = np.abs(exact.weights).max()
    np.testing.assert_allclose(quick.weights, exact.weights, atol=0.02 * size)


def test_the_weight_of_a_class_changes_nothing():
    X, y, texts, fold = made_up(shots=4)
    weights = np.where(y == 0, 0.25, 1.0)
    once, again = fit(X, y, texts, fold), fit(X, y, texts, fold, weights=weights)
    assert again.text_scale == pytest.approx(once.text_scale)
    np.testing.assert_allclose(again.weights, once.weights)


def test_balanced_weights():
    labels = np.array([0, 0, 0, 1, 2, 2])
    weights = balanced_weights(labels)
    assert np.bincount(labels, weights=weights) == pytest.approx(2.0)
    given_ = balanced_weights(labels, [3, 1, 0, 5, 1, 1])
    assert given_ == pytest.approx([1.5, 0.5, 0, 2, 1, 1])
    assert (balanced_weights(np.array([0, 1, 0, 1])) == 1).all()
    for wrong in ([1, 1], [0] * 6, [-1] * 6, [np.nan] * 6):
        with pytest.raises(WeightError):
            balanced_weights(labels, wrong)


def test_folds_of_uneven_classes():
    fold = held_out_folds(np.array([0, 1, 1, 2, 2, 2, 2, 2]))
    assert fold.tolist() == [-1, 0, 1, 0, 1, 0, 1, 0]
    assert (held_out_folds(np.array([0, 1, 2, 2])) == -1).all()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=40),
    st.permutations(range(40)),
)
def test_groups_are_held_out_together(images, order):
    labels, groups = np.array(images).T
    labels = np.unique(labels, return_inverse=True)[1]
    fold = held_out_folds(labels, groups)
    number = np.array([each for each in order if each < len(labels)])
    for label in np.unique(labels):
        members = labels == label
        units = {(g, f) for g, f in zip(groups[members], fold[members], strict=True)}
        assert len(units) == len(set(groups[members]))
        held_out = set(fold[members]) - {-1}
        # Some image of the class is left to learn from.
        assert len(held_out) != 1 or -1 in fold[members]
        if len(held_out):
            sizes = np.bincount(fold[members], minlength=fold.max() + 1)
            assert sizes.max() - sizes.min() <= np.bincount(groups[members]).max()
    assert (held_out_folds(labels[number], number) >= 0).sum() == (
        held_out_folds(labels) >= 0
    ).sum()


def test_groups_lower_the_trust_in_images_that_look_like_training_images():
    """Each group has a look of its own: only groups that are held out show how images generalize."""
    rng = np.random.default_rng(0)
    y, groups = np.repeat(np.arange(4), 16), np.repeat(np.arange(16), 4)
    centers = rng.normal(size=(4, 32))

    def draw(looks):
        rows = centers[y] + 3 * looks[groups] + 0.3 * rng.normal(size=(64, 32))
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    X = draw(rng.normal(size=(16, 32)))[:, None]
    text = centers / np.linalg.norm(centers, axis=1, keepdims=True)
    new = np.concatenate([draw(rng.normal(size=(16, 32))) for _ in range(4)])

    def loss(**options):
        rows = fit_residual(X, y, text, text, **options).class_rows(text)
        return composition.log_losses(new @ rows.T, np.tile(y, 4)).mean()

    assert loss(groups=groups) < 0.8 * loss()


def test_crops_decide_what_is_cheap():
    X, y, _, _ = made_up(dim=3)
    X = np.zeros_like(X) + np.eye(3)[2]
    X[:, :, 0] += np.array([-1.0, 0.0, 1.0])  # crops differ in the first direction only
    X[:, :, 1] += (y % 2)[:, None]
    metric = spread_metric(X, y)
    assert metric[0, 0] > 10 * metric[1, 1] > 0
    assert np.trace(metric) / 3 == pytest.approx(1)


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
    rows = np.repeat(texts[1][None], 4, axis=0)
    fold = held_out_folds(y)
    folds, other = (
        None if fold.max() < 0 else FoldClassRows(f, r)
        for f, r in ((fold, rows), (fold[images], rows[:, classes]))
    )
    once = fit_residual(X, y, texts[0], texts[1], folds=folds)
    text, unseen = texts[:, classes]
    again = fit_residual(X[images], np.argsort(classes)[y[images]], text, unseen, folds=other)
    # The solvers stop at a tolerance.
    assert once.text_scale == pytest.approx(again.text_scale, rel=0.13, abs=0.05)
    size = np.abs(once.weights).max()
    np.testing.assert_allclose(again.weights, once.weights[classes], atol=0.05 * size)


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
    folds = fold_class_rows(images, pool, settled)
    rows = np.concatenate([task.images[:, None], task.views], axis=1)[learned]
    both = fit_residual(rows, y, text, unseen_texts(pool), folds=folds).class_rows(text)
    peer, intercepts, _ = fit_probe(rows, y)
    held_out = task.images[~learned]
    return [
        np.mean(logits.argmax(axis=1) == task.labels[~learned])
        for logits in (held_out @ text.T, held_out @ peer.T + intercepts, held_out @ both.T)
    ]


def test_it_is_never_far_below_the_better_of_text_and_logistic_regression():
    # Whether words or images know more, and though images and crops differ in any direction alike. With
    # one image per class nothing can be held out, and how much images tell is a guess.
    for shots, most, mean in ((1, 0.13, 0.06), (2, 0.03, 0.01)):
        behind = []
        for kind in FAMILY:
            text, images, both = np.mean(
                [accuracies(*kind, shots, seed) for seed in range(4)], axis=0
            )
            behind.append(max(text, images) - both)
        assert max(behind) < most, shots
        assert np.maximum(behind, 0).mean() < mean, shots


def test_the_only_image_of_a_class_is_classified_by_text():
    X, y, texts, fold = made_up(shots=4)
    X, y, fold = X[:-3], y[:-3], fold[:-3]
    logits = held_out_prediction(X, y, texts[0], fold)
    scores = X[-1, 0] @ texts[0].T
    ratio = (logits[-1] - logits[-1].mean()) / (scores - scores.mean())
    assert ratio == pytest.approx(ratio[0])


def test_rows_of_text_and_residual_add_up():
    residual = Residual(np.ones((2, 3)), text_scale=2.0)
    assert residual.class_rows(np.ones((2, 3))).tolist() == [[3.0] * 3] * 2
