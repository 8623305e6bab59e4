import numpy as np
import pytest

import promptboost.boosting.scale as scale_module
from promptboost.boosting import GridPool, Shots, compiled
from promptboost.boosting.composition import scores_of, template_hits
from promptboost.boosting.gradient.compose import GradientSettings, compose_by_gradient
from promptboost.boosting.scale import FACTORS, ScaleChoice, choose_scale, fold_texts
from promptboost.testing import clip_like

ASKED = GradientSettings(logit_scale=1.0, sweeps=5, copies=16)


def task_of(shots=4, *, seed=0, n_classes=3, confusion=2.0, views=3, prompts=20):
    task = clip_like(
        n_classes, shots, views=views, prompts=prompts, dim=16, confusion=confusion, seed=seed
    )
    pool = GridPool.from_rows(task.templates, task.prompts)
    return Shots.from_rows(task.images, task.labels, task.views), pool


def plain_losses(shots, pool, scale, folds, views):
    """Every image's log loss by a classifier that has not seen it, at one loudness for all."""
    fold, seen = [], {}
    for label in shots.labels.tolist():
        fold.append(seen.get(label, 0) % folds)
        seen[label] = seen.get(label, 0) + 1
    logits = np.empty((len(fold), len(pool.prompts)))
    for i in range(len(fold)):
        others = [j for j in range(len(fold)) if fold[j] != fold[i]]
        if views:
            rows = np.array([shots.views[j, a] for j in others for a in range(views)])
        else:
            rows = shots.originals[others]
        y = shots.labels[others].repeat(max(views, 1))
        asked = GradientSettings(**{**vars(ASKED), "logit_scale": scale})
        weak = compose_by_gradient(
            rows, y, np.ones(len(y)), pool, asked, rng=np.random.default_rng(0)
        )
        for k, bank in enumerate(weak.banks):
            mean = weak.template_copies[k] * pool.templates[k, weak.template].astype(float)
            for j, copies in bank.items():
                mean = mean + copies * pool.prompts[k][j].astype(float)
            logits[i, k] = scale * (shots.originals[i] @ mean) / 16 / 32767**2
    best = None
    for loud in np.geomspace(0.1, 10, 41):
        loss = np.logaddexp.reduce(loud * logits, axis=1)
        loss -= loud * logits[range(len(fold)), shots.labels]
        if best is None or loss.mean() < best.mean():
            best = loss
    return best


@pytest.mark.parametrize("views", [0, 2])
@pytest.mark.parametrize("shots", [2, 3, 6])
def test_losses_and_choice_are_those_of_plain_cross_validation(shots, views):
    images, pool = task_of(shots, seed=shots + views)
    factors = (3.0, 1.0, 12.0)
    choice = choose_scale(images, pool, ASKED, 10.0, views=views, factors=factors)
    assert choice.folds == min(shots, 4)
    losses = [plain_losses(images, pool, 10 * f, choice.folds, views) for f in factors]
    assert list(choice.losses) == [30.0, 10.0, 120.0]
    assert np.allclose(list(choice.losses.values()), [loss.mean() for loss in losses], rtol=1e-9)
    best = min(losses, key=np.mean)
    for factor, loss in zip(factors, losses, strict=True):
        behind = loss - best
        if behind.mean() <= behind.std(ddof=1) / np.sqrt(len(behind)):
            assert choice.logit_scale == 10 * factor
            break


@pytest.mark.parametrize("views", [0, 3])
def test_no_image_stands_on_both_sides(monkeypatch, views):
    shots, pool = task_of(5, seed=1)
    assert shots.views is not None
    # A row, a view or the image itself, tells of which image it is.
    owner = {row.tobytes(): i for i, row in enumerate(shots.originals)}
    owner |= {row.tobytes(): i for i, some in enumerate(shots.views) for row in some}
    assert len(owner) == 15 * 4
    composed, scored = [], []
    real_compose, real_scores = compose_by_gradient, scores_of

    def compose(X, y, weights, *rest, hits, **others):
        composed.append([owner[row.tobytes()] for row in X])
        assert (y == shots.labels[composed[-1]]).all()
        expected = template_hits(X, y, pool.templates)
        assert (hits == expected).all(), "hits are those of the rows that are composed on"
        return real_compose(X, y, weights, *rest, hits=hits, **others)

    def scores(weak, X, pool):
        scored.append([owner[row.tobytes()] for row in X])
        return real_scores(weak, X, pool)

    monkeypatch.setattr(scale_module, "compose_by_gradient", compose)
    monkeypatch.setattr(scale_module, "scores_of", scores)
    choose_scale(shots, pool, ASKED, 10.0, views=views, factors=(3.0, 1.0))
    assert len(composed) == len(scored) == 2 * 4
    for kept, aside in zip(composed, scored, strict=True):
        assert not set(kept) & set(aside)
        assert set(kept) | set(aside) == set(range(15))
        assert len(kept) == len(set(kept)) * max(views, 1)
        assert set(shots.labels[kept]) == {0, 1, 2}
    for scale in (scored[:4], scored[4:]):
        assert sorted(i for aside in scale for i in aside) == list(range(15)), (
            "each image is set aside once"
        )


def test_what_cannot_be_learned_is_not_learned():
    """Images, labels and prompts have nothing to do with each other.

    So many prompts fit any labels seen, and an honest loss is no better than that of guessing.
    """
    rng = np.random.default_rng(0)

    def rows(*shape):
        values = rng.standard_normal((*shape, 20))
        return values / np.linalg.norm(values, axis=-1, keepdims=True)

    labels = np.arange(24) % 2
    shots = Shots.from_rows(rows(24), labels)
    pool = GridPool.from_rows(rows(2, 1), [rows(300), rows(300)])
    asked = GradientSettings(logit_scale=60.0, spread=0.0)
    seen = (shots.originals, labels, np.ones(24), pool, asked)
    weak = compose_by_gradient(*seen, rng=np.random.default_rng(0))
    assert weak.trace.objectives[-1] < 0.1, "a leak would show"
    choice = choose_scale(shots, pool, asked, 30.0)
    assert min(choice.losses.values()) > 0.65, "log 2 is guessing"


def test_one_image_of_a_class_leaves_nothing_to_choose_by():
    shots, pool = task_of(1)
    choice = choose_scale(shots, pool, ASKED, 10.0)
    assert choice.logit_scale == FACTORS[0] * 10
    assert choice.folds == 0
    assert choice.losses == {}
    assert "one image" in str(choice)
    assert f"logit scale {FACTORS[0] * 10:g}" in str(choice)

    shots, pool = task_of(3)
    alone = Shots(shots.originals[:7], shots.labels[:7])
    assert choose_scale(alone, pool, ASKED, 10.0).folds == 0
    two = Shots(shots.originals[:8], shots.labels[:8])
    assert choose_scale(two, pool, ASKED, 10.0).folds == 2


@pytest.mark.parametrize("factors", [(3.0, 3.01), (3.01, 3.0), (2.99, 3.0, 3.01)])
def test_of_scales_that_are_as_good_the_first_is_taken(factors):
    shots, pool = task_of(4, confusion=3.0)
    choice = choose_scale(shots, pool, ASKED, 10.0, factors=factors)
    assert choice.logit_scale == factors[0] * 10


@pytest.mark.parametrize("factors", [(0.001, 3.0), (0.001, 0.002, 3.0)])
def test_a_scale_that_is_clearly_better_is_taken(factors):
    """At a scale of almost nothing all classes are equally likely, however loud."""
    shots, pool = task_of(6, confusion=1.0)
    choice = choose_scale(shots, pool, ASKED, 10.0, factors=factors)
    assert choice.logit_scale == 30
    assert choice.losses[30.0] < 0.5 * choice.losses[factors[0] * 10]


def test_same_input_same_choice_and_the_open_scale_plays_no_part():
    shots, pool = task_of(4)
    first = choose_scale(shots, pool, ASKED, 10.0, views=2)
    assert choose_scale(shots, pool, ASKED, 10.0, views=2) == first
    other = GradientSettings(**{**vars(ASKED), "logit_scale": 77.0})
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
def test_factors_far_from_the_best_are_left_out(means, tried):
    known: dict[float, np.ndarray] = {}
    while due := scale_module._due(known, FACTORS):
        known |= {factor: np.array([means[factor]]) for factor in due}
    assert list(known) == tried


def test_the_choice_is_explained():
    shots, pool = task_of(4)
    choice = choose_scale(shots, pool, ASKED, 10.0)
    text = str(choice)
    assert text.startswith(f"logit scale {choice.logit_scale:g}, ")
    assert "4 folds" in text
    for scale, loss in choice.losses.items():
        assert f"{scale:g}: {loss:.3f}" in text


def test_views_that_were_not_made_are_not_missed():
    shots, pool = task_of(3)
    plain = Shots(shots.originals, shots.labels)
    on_originals = choose_scale(shots, pool, ASKED, 10.0)
    assert choose_scale(plain, pool, ASKED, 10.0) == on_originals
    assert choose_scale(plain, pool, ASKED, 10.0, views=2) == on_originals
    assert choose_scale(shots, pool, ASKED, 10.0, views=2) != on_originals


# --- large tasks: a dozen compositions work on less ----------------------------------------------


def test_many_views_are_stood_for_by_their_images(monkeypatch):
    shots, pool = task_of(3)
    on_views = choose_scale(shots, pool, ASKED, 10.0, views=2)
    monkeypatch.setattr(scale_module, "_MOST_ROWS", 9 * 2)
    assert choose_scale(shots, pool, ASKED, 10.0, views=2) == on_views
    monkeypatch.setattr(scale_module, "_MOST_ROWS", 9 * 2 - 1)
    on_images = choose_scale(shots, pool, ASKED, 10.0, views=2)
    assert on_images == choose_scale(shots, pool, ASKED, 10.0)
    assert on_images != on_views


@pytest.mark.parametrize(
    ("enough", "compared", "aside"),
    [(1, 1, 1), (8, 1, 2), (15, 1, 2), (16, 2, 3), (44, 3, 4), (46, 4, 4), (999, 4, 4)],
)
def test_of_many_images_no_more_are_set_aside_than_are_enough(monkeypatch, enough, compared, aside):
    shots, pool = task_of(20)  # 15 images in each of four folds
    every = choose_scale(shots, pool, ASKED, 10.0, factors=(3.0,))
    monkeypatch.setattr(scale_module, "_TO_COMPARE", enough)
    monkeypatch.setattr(scale_module, "_TO_JUDGE", 2 * enough)
    some = choose_scale(shots, pool, ASKED, 10.0, factors=(3.0,))
    assert (some.folds, some.compared) == (4, compared)
    assert "4 folds" in str(some)
    assert (f"{compared} of 4 folds" in str(some)) == (compared < 4)
    judged = np.isfinite(some.held_out).all(axis=1)
    assert judged.sum() == 15 * aside
    assert np.array_equal(judged, some.texts.fold >= 0)
    assert np.array_equal(judged, every.texts.fold < aside)
    assert np.array_equal(some.held_out[judged], every.held_out[judged]), "composed as before"
    assert np.array_equal(some.texts.rows, every.texts.rows[:aside])
    by = every.texts.fold < compared
    loss = scale_module._losses(30.0 * every.held_out[by], shots.labels[by]).mean()
    assert some.losses == {30.0: pytest.approx(loss, rel=1e-5)}
    later = fold_texts(shots, pool, GradientSettings(**{**vars(ASKED), "logit_scale": 30.0}))
    assert np.array_equal(later.fold, some.texts.fold)
    assert np.array_equal(later.rows, some.texts.rows)


def test_of_a_large_pool_some_prompts_are_drawn_whatever_the_labels(monkeypatch):
    shots, pool = task_of(4, prompts=50)
    monkeypatch.setattr(scale_module, "_MOST_PROMPTS", 10)
    seen = []
    real = compose_by_gradient

    def compose(X, y, weights, pool, *rest, **others):
        seen.append([{row.tobytes() for row in rows} for rows in pool.prompts])
        return real(X, y, weights, pool, *rest, **others)

    monkeypatch.setattr(scale_module, "compose_by_gradient", compose)
    first = choose_scale(shots, pool, ASKED, 10.0)
    assert choose_scale(shots, pool, ASKED, 10.0) == first, "the same ones every time"
    other = Shots(shots.originals, np.roll(shots.labels, 1))
    choose_scale(other, pool, ASKED, 10.0)
    assert all(drawn == seen[0] for drawn in seen)
    for drawn, rows in zip(seen[0], pool.prompts, strict=True):
        assert len(drawn) == 10
        assert drawn < {row.tobytes() for row in rows}


def test_folds_in_threads_give_the_same_choice(monkeypatch):
    shots, pool = task_of(5)
    alone = choose_scale(shots, pool, ASKED, 10.0)
    monkeypatch.setattr(compiled, "WORTH_A_THREAD", 0)
    together = choose_scale(shots, pool, ASKED, 10.0)
    assert together == alone
    assert (together.held_out == alone.held_out).all()


@pytest.mark.parametrize("least", [0, 1, 7, 40])
def test_the_lowest_of_convex_values_is_found_in_few_steps(least):
    asked = []

    def value(scale):
        asked.append(scale)
        return (scale - least) ** 2

    assert scale_module.lowest(value, np.arange(41.0)) == least
    assert len(asked) <= 12


def test_a_choice_that_is_not_of_least_loss_says_why():
    losses = {20.0: 0.376, 30.0: 0.380, 60.0: 0.337}
    assert "60: 0.337; none is surely better)" in str(ScaleChoice(30.0, 4, losses, compared=4))
    assert "60: 0.337)" in str(ScaleChoice(60.0, 4, losses, compared=4))
