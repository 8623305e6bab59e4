from dataclasses import replace

import numpy as np
import pytest

import promptboost.boosting.scale as scale_module
from promptboost.boosting import BoostSettings, GridPool, Shots, compiled
from promptboost.boosting.composition import scores_of, template_hits
from promptboost.boosting.gradient.compose import GradientSettings, compose_by_gradient
from promptboost.boosting.scale import FACTORS, ScaleChoice, choose_scale, fold_class_rows
from tests.synthetic import clip_like

SETTINGS = GradientSettings(logit_scale=1.0, sweeps=5, copies=16)


def task_of(shots=4, *, seed=0, n_classes=3, confusion=2.0, views=3, prompts=20):
    task = clip_like(
        n_classes, shots, views=views, prompts=prompts, dim=16, confusion=confusion, seed=seed
    )
    pool = GridPool.from_rows(task.templates, task.prompts)
    return Shots.from_rows(task.images, task.labels, task.views), pool


def plain_losses(shots, pool, scale, folds, views):
    """Return the held-out log loss of every image, all logits rescaled by the best factor."""
    fold, counts = [], {}
    for label in shots.labels.tolist():
        fold.append(counts.get(label, 0) % folds)
        counts[label] = counts.get(label, 0) + 1
    logits = np.empty((len(fold), len(pool.prompts)))
    for i in range(len(fold)):
        others = [j for j in range(len(fold)) if fold[j] != fold[i]]
        if views:
            rows = np.array([shots.views[j, a] for j in others for a in range(views)])
        else:
            rows = shots.originals[others]
        y = shots.labels[others].repeat(max(views, 1))
        settings = GradientSettings(**{**vars(SETTINGS), "logit_scale": scale})
        weak = compose_by_gradient(
            rows, y, np.ones(len(y)), pool, settings, rng=np.random.default_rng(0)
        )
        for k, bank in enumerate(weak.banks):
            mean = weak.template_copies[k] * pool.templates[k, weak.template].astype(float)
            for j, copies in bank.items():
                mean = mean + copies * pool.prompts[k][j].astype(float)
            logits[i, k] = scale * (shots.originals[i] @ mean) / 16 / 32767**2
    best = None
    for factor in np.geomspace(0.1, 10, 41):
        loss = np.logaddexp.reduce(factor * logits, axis=1)
        loss -= factor * logits[range(len(fold)), shots.labels]
        if best is None or loss.mean() < best.mean():
            best = loss
    return best


@pytest.mark.parametrize("views", [0, 2])
@pytest.mark.parametrize("shots", [2, 3, 6])
def test_choice_equals_plain_cross_validation(shots, views):
    images, pool = task_of(shots, seed=shots + views)
    factors = (3.0, 1.0, 12.0)
    choice = choose_scale(images, pool, SETTINGS, 10.0, views=views, factors=factors)
    assert choice.folds == min(shots, 4)
    losses = [plain_losses(images, pool, 10 * f, choice.folds, views) for f in factors]
    assert list(choice.losses) == [30.0, 10.0, 120.0]
    assert np.allclose(list(choice.losses.values()), [loss.mean() for loss in losses], rtol=1e-9)
    best = min(losses, key=np.mean)
    for factor, loss in zip(factors, losses, strict=True):
        excess = loss - best
        if excess.mean() <= excess.std(ddof=1) / np.sqrt(len(excess)):
            assert choice.logit_scale == 10 * factor
            break


@pytest.mark.parametrize("views", [0, 3])
def test_all_views_of_an_image_are_in_one_fold(monkeypatch, views):
    shots, pool = task_of(5, seed=1)
    assert shots.views is not None
    # Every row, view or original, identifies its image.
    owner = {row.tobytes(): i for i, row in enumerate(shots.originals)}
    owner |= {row.tobytes(): i for i, rows in enumerate(shots.views) for row in rows}
    assert len(owner) == 15 * 4
    composed, scored = [], []
    real_compose, real_scores = compose_by_gradient, scores_of

    def compose(X, y, weights, *args, hits, **kwargs):
        composed.append([owner[row.tobytes()] for row in X])
        assert (y == shots.labels[composed[-1]]).all()
        expected = template_hits(X, y, pool.templates)
        assert (hits == expected).all(), "hits of the training rows"
        return real_compose(X, y, weights, *args, hits=hits, **kwargs)

    def scores(weak, X, pool):
        scored.append([owner[row.tobytes()] for row in X])
        return real_scores(weak, X, pool)

    monkeypatch.setattr(scale_module, "compose_by_gradient", compose)
    monkeypatch.setattr(scale_module, "scores_of", scores)
    choose_scale(shots, pool, SETTINGS, 10.0, views=views, factors=(3.0, 1.0))
    assert len(composed) == len(scored) == 2 * 4
    for train, test in zip(composed, scored, strict=True):
        assert not set(train) & set(test)
        assert set(train) | set(test) == set(range(15))
        assert len(train) == len(set(train)) * max(views, 1)
        assert set(shots.labels[train]) == {0, 1, 2}
    for folds in (scored[:4], scored[4:]):
        assert sorted(i for test in folds for i in test) == list(range(15)), (
            "each image is held out once"
        )


def test_held_out_loss_of_random_data_is_that_of_guessing():
    """Images, labels and prompts are independent, but with so many prompts the training loss is low."""
    rng = np.random.default_rng(0)

    def rows(*shape):
        values = rng.standard_normal((*shape, 20))
        return values / np.linalg.norm(values, axis=-1, keepdims=True)

    labels = np.arange(24) % 2
    shots = Shots.from_rows(rows(24), labels)
    pool = GridPool.from_rows(rows(2, 1), [rows(300), rows(300)])
    settings = GradientSettings(logit_scale=60.0, spread=0.0, copies=32)
    weak = compose_by_gradient(
        shots.originals, labels, np.ones(24), pool, settings, rng=np.random.default_rng(0)
    )
    assert weak.trace.objectives[-1] < 0.1, "a leak would show"
    choice = choose_scale(shots, pool, settings, 30.0)
    assert min(choice.losses.values()) > 0.65, "log 2 is guessing"


def test_no_cross_validation_if_most_classes_have_one_image():
    shots, pool = task_of(1)
    choice = choose_scale(shots, pool, SETTINGS, 10.0)
    assert choice.logit_scale == FACTORS[0] * 10
    assert choice.folds == 0
    assert choice.losses == {}
    assert "one image" in str(choice)
    assert f"logit scale {FACTORS[0] * 10:g}" in str(choice)

    shots, pool = task_of(3)
    last_alone = Shots(shots.originals[:7], shots.labels[:7])
    assert choose_scale(last_alone, pool, SETTINGS, 10.0).folds == 3
    most_alone = np.array([0, 3, 6, 7])
    few = Shots(shots.originals[most_alone], shots.labels[most_alone])
    assert choose_scale(few, pool, SETTINGS, 10.0).folds == 0


@pytest.mark.parametrize("factors", [(3.0, 3.01), (3.01, 3.0), (2.99, 3.0, 3.01)])
def test_first_of_equally_good_scales_is_chosen(factors):
    shots, pool = task_of(4, confusion=3.0)
    choice = choose_scale(shots, pool, SETTINGS, 10.0, factors=factors)
    assert choice.logit_scale == factors[0] * 10


@pytest.mark.parametrize("factors", [(0.001, 3.0), (0.001, 0.002, 3.0)])
def test_clearly_better_scale_is_chosen(factors):
    """At a scale near zero all classes are equally likely, even after rescaling."""
    shots, pool = task_of(6, confusion=1.0)
    choice = choose_scale(shots, pool, SETTINGS, 10.0, factors=factors)
    assert choice.logit_scale == 30
    assert choice.losses[30.0] < 0.5 * choice.losses[factors[0] * 10]


def test_choice_is_deterministic_and_ignores_the_scale_of_the_settings():
    shots, pool = task_of(4)
    first = choose_scale(shots, pool, SETTINGS, 10.0, views=2)
    assert choose_scale(shots, pool, SETTINGS, 10.0, views=2) == first
    other = GradientSettings(**{**vars(SETTINGS), "logit_scale": 77.0})
    assert choose_scale(shots, pool, other, 10.0, views=2) == first
    assert set(first.losses) <= {10 * factor for factor in FACTORS}


@pytest.mark.parametrize(
    ("means", "tried"),
    [
        ({3.0: 0.5, 2.0: 0.6, 4.0: 0.7}, [3.0, 2.0, 4.0]),
        ({3.0: 0.5, 2.0: 0.6, 4.0: 0.4, 6.0: 0.45}, [3.0, 2.0, 4.0, 6.0]),
        ({3.0: 0.5, 2.0: 0.3, 4.0: 0.4, 1.0: 0.35}, [3.0, 2.0, 4.0, 1.0]),
    ],
)
def test_factors_far_from_the_best_are_not_tried(means, tried):
    losses: dict[float, np.ndarray] = {}
    while factors := scale_module._next_factors(losses, FACTORS):
        losses |= {factor: np.array([means[factor]]) for factor in factors}
    assert list(losses) == tried


def test_choice_prints_scale_folds_and_losses():
    shots, pool = task_of(4)
    choice = choose_scale(shots, pool, SETTINGS, 10.0)
    text = str(choice)
    assert text.startswith(f"logit scale {choice.logit_scale:g}, ")
    assert "4 folds" in text
    for scale, loss in choice.losses.items():
        assert f"{scale:g}: {loss:.3f}" in text


def test_originals_are_used_if_there_are_no_views():
    shots, pool = task_of(3)
    plain = Shots(shots.originals, shots.labels)
    on_originals = choose_scale(shots, pool, SETTINGS, 10.0)
    assert choose_scale(plain, pool, SETTINGS, 10.0) == on_originals
    assert choose_scale(plain, pool, SETTINGS, 10.0, views=2) == on_originals
    assert choose_scale(shots, pool, SETTINGS, 10.0, views=2) != on_originals


# --- large tasks ---------------------------------------------------------------------------------


def test_originals_are_used_if_there_are_too_many_views(monkeypatch):
    shots, pool = task_of(3)
    on_views = choose_scale(shots, pool, SETTINGS, 10.0, views=2)
    monkeypatch.setattr(scale_module, "_MAX_ROWS", 9 * 2)
    assert choose_scale(shots, pool, SETTINGS, 10.0, views=2) == on_views
    monkeypatch.setattr(scale_module, "_MAX_ROWS", 9 * 2 - 1)
    on_images = choose_scale(shots, pool, SETTINGS, 10.0, views=2)
    assert on_images == choose_scale(shots, pool, SETTINGS, 10.0)
    assert on_images != on_views


@pytest.mark.parametrize(
    ("enough", "compared", "used"),
    [(1, 1, 1), (8, 1, 2), (15, 1, 2), (16, 2, 3), (44, 3, 4), (46, 4, 4), (999, 4, 4)],
)
def test_folds_beyond_enough_held_out_images_are_skipped(monkeypatch, enough, compared, used):
    shots, pool = task_of(20)  # 15 images in each of four folds
    full = choose_scale(shots, pool, SETTINGS, 10.0, factors=(3.0,))
    monkeypatch.setattr(scale_module, "_ENOUGH_TO_COMPARE", enough)
    monkeypatch.setattr(scale_module, "_ENOUGH_TO_CALIBRATE", 2 * enough)
    partial = choose_scale(shots, pool, SETTINGS, 10.0, factors=(3.0,))
    assert (partial.folds, partial.folds_compared) == (4, compared)
    assert "4 folds" in str(partial)
    assert (f"{compared} of 4 folds" in str(partial)) == (compared < 4)
    finite = np.isfinite(partial.held_out).all(axis=1)
    assert finite.sum() == 15 * used
    assert np.array_equal(finite, partial.fold_class_rows.fold >= 0)
    assert np.array_equal(finite, full.fold_class_rows.fold < used)
    assert np.array_equal(partial.held_out[finite], full.held_out[finite]), "same compositions"
    assert np.array_equal(partial.fold_class_rows.rows, full.fold_class_rows.rows[:used])
    mask = full.fold_class_rows.fold < compared
    loss = scale_module.calibrated_losses(30.0 * full.held_out[mask], shots.labels[mask]).mean()
    assert partial.losses == {30.0: pytest.approx(loss, rel=1e-5)}
    gradient = replace(SETTINGS, logit_scale=30.0)
    again = fold_class_rows(shots, pool, BoostSettings(views_per_round=0, gradient=gradient))
    assert np.array_equal(again.fold, partial.fold_class_rows.fold)
    assert np.array_equal(again.rows, partial.fold_class_rows.rows)


def test_prompts_of_a_large_pool_are_sampled_independently_of_labels(monkeypatch):
    shots, pool = task_of(4, prompts=50)
    monkeypatch.setattr(scale_module, "_MAX_PROMPTS", 10)
    samples = []
    real = compose_by_gradient

    def compose(X, y, weights, pool, *args, **kwargs):
        samples.append([{row.tobytes() for row in rows} for rows in pool.prompts])
        return real(X, y, weights, pool, *args, **kwargs)

    monkeypatch.setattr(scale_module, "compose_by_gradient", compose)
    first = choose_scale(shots, pool, SETTINGS, 10.0)
    assert choose_scale(shots, pool, SETTINGS, 10.0) == first
    other = Shots(shots.originals, np.roll(shots.labels, 1))
    choose_scale(other, pool, SETTINGS, 10.0)
    assert all(sample == samples[0] for sample in samples)
    for class_sample, rows in zip(samples[0], pool.prompts, strict=True):
        assert len(class_sample) == 10
        assert class_sample < {row.tobytes() for row in rows}


def test_folds_in_threads_give_the_same_choice(monkeypatch):
    shots, pool = task_of(5)
    serial = choose_scale(shots, pool, SETTINGS, 10.0)
    monkeypatch.setattr(compiled, "WORTH_A_THREAD", 0)
    threaded = choose_scale(shots, pool, SETTINGS, 10.0)
    assert threaded == serial
    assert (threaded.held_out == serial.held_out).all()


@pytest.mark.parametrize("least", [0, 1, 7, 40])
def test_convex_function_is_minimized_in_few_evaluations(least):
    evaluated = []

    def value(scale):
        evaluated.append(scale)
        return (scale - least) ** 2

    assert scale_module.minimize_convex(value, np.arange(41.0)) == least
    assert len(evaluated) <= 12


def test_choice_above_the_least_loss_prints_why():
    losses = {20.0: 0.376, 30.0: 0.380, 60.0: 0.337}
    assert "60: 0.337; within one standard error of the best)" in str(
        ScaleChoice(30.0, 4, losses, folds_compared=4)
    )
    assert "60: 0.337)" in str(ScaleChoice(60.0, 4, losses, folds_compared=4))
