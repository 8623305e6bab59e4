import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.boosting import BoostSettings, GridPool, Shots, boost
from promptboost.boosting.composition import GradientTrace, class_rows, scores_of
from promptboost.boosting.gradient.compose import GradientSettings
from promptboost.boosting.grid import COSINE_UNIT, from_grid
from promptboost.boosting.samme import BoostState, updated_weights
from promptboost.errors import SettingError, WeightError
from tests.synthetic import clip_like


@pytest.fixture(scope="module")
def problem():
    task = clip_like(5, 4, views=8, prompts=30, templates=6, dim=32, confusion=2.5, seed=2)
    shots = Shots.from_rows(task.images, task.labels, task.views)
    return shots, GridPool.from_rows(task.templates, task.prompts)


def described(rounds):
    return [(r.composition.template, r.composition.trace, r.state.weights.tolist()) for r in rounds]


def samme_r_weights(weights, scores, labels, tau):
    """The update exactly as the paper writes it, with probabilities clipped to [ε, 1]."""
    n, K = scores.shape
    p = np.exp(scores / tau) / np.exp(scores / tau).sum(axis=1, keepdims=True)
    p = np.clip(p, np.finfo(float).eps, 1)
    new = np.empty(n)
    for i in range(n):
        y = np.full(K, -1 / (K - 1))
        y[labels[i]] = 1
        new[i] = weights[i] * np.exp(-(K - 1) / K * (y @ np.log(p[i])))
    return new / new.sum()


@given(st.integers(0, 10**6), st.integers(2, 40), st.sampled_from([0.1, 0.5, 1.0, 10.0]))
def test_weight_update_is_samme_r(seed, K, tau):
    rng = np.random.default_rng(seed)
    scores = rng.uniform(-1, 1, (12, K))
    weights, labels = rng.random(12) + 0.01, rng.integers(K, size=12)
    ours = updated_weights(weights / weights.sum(), scores, labels, tau)
    assert np.allclose(ours, samme_r_weights(weights, scores, labels, tau), rtol=1e-9)


def test_an_image_of_weight_zero_does_not_drown_the_others():
    scores = np.array([[1.0, 0.0], [1.0, 0.0], [0.9, 0.0]])
    ours = updated_weights(np.array([0.0, 0.5, 0.5]), scores, np.array([1, 0, 0]), 1e-4)
    assert ours.round(9).tolist() == [0, 0, 1], "the one that is least sure of its class"


def test_scores_are_means_of_cosines(problem):
    shots, pool = problem
    weak = next(boost(shots, pool, BoostSettings(rounds=1))).composition
    assert weak.trace
    scores = scores_of(weak, shots.originals, pool)
    X = shots.originals.astype(float)
    for k in range(5):
        bank = [pool.templates[k, weak.template]]
        for step in weak.trace:
            if step.class_index == k:
                bank += [pool.prompts[k][step.prompt]] * step.copies
        expected = (X @ np.mean(np.array(bank, dtype=float), axis=0)) / COSINE_UNIT
        assert np.allclose(scores[:, k], expected, atol=1e-12)
    rows = class_rows(weak, pool)
    assert np.allclose(from_grid(shots.originals) @ rows.T, scores, atol=1e-6)


@pytest.mark.parametrize("a", [0, 3])
def test_a_fit_continued_after_any_round_is_the_same(problem, a):
    settings = BoostSettings(rounds=6, views_per_round=a, seed=7)
    whole = list(boost(*problem, settings))
    for stop in range(1, len(whole)):
        first = list(boost(*problem, BoostSettings(**{**vars(settings), "rounds": stop})))
        rest = list(boost(*problem, settings, state=first[-1].state))
        assert described(first + rest) == described(whole)


def test_same_seed_same_rounds_and_other_seed_others(problem):
    run = [described(boost(*problem, BoostSettings(rounds=3, seed=s))) for s in (1, 1, 2)]
    assert run[0] == run[1]
    assert run[0] != run[2]


def test_weights_rise_where_the_weak_classifier_is_wrong(problem):
    shots, pool = problem
    settings = BoostSettings(rounds=1, views_per_round=0, max_copies=1, temperature=0.1)
    done = next(boost(shots, pool, settings))
    scores = scores_of(done.composition, shots.originals, pool)
    margin = scores[np.arange(20), shots.labels] - (scores.sum(axis=1)) / 5
    order = np.argsort(margin)
    assert done.state.weights[order[0]] == done.state.weights.max()
    assert np.isclose(done.state.weights.sum(), 1)


def test_views_are_dealt_without_repetition_until_all_are_seen(problem):
    from promptboost.boosting.samme import _ViewSampler

    shots, pool = problem
    draws = _ViewSampler(shots, pool, BoostSettings(views_per_round=4, seed=3))
    first, second, third = (draws._views_of(m) for m in range(3))
    assert all(sorted(np.r_[a, b]) == list(range(8)) for a, b in zip(first, second, strict=True)), (
        "eight views last for two rounds of four"
    )
    assert (third != first).any()
    X, y, owners, hits = draws.draw(1)
    assert (shots.views[owners, second.ravel()] == X).all()
    assert (y == shots.labels[owners]).all()
    assert hits.shape == (80, 6)


def test_without_views_the_originals_are_seen(problem):
    shots, pool = problem
    plain = Shots(shots.originals, shots.labels)
    settings = BoostSettings(rounds=2, views_per_round=0)
    assert described(boost(plain, pool, settings)) == described(boost(shots, pool, settings))


def test_patience_stops_when_no_error_is_left():
    easy = clip_like(3, 3, views=4, prompts=30, dim=64, confusion=0.2)
    shots = Shots.from_rows(easy.images, easy.labels, easy.views)
    pool = GridPool.from_rows(easy.templates, easy.prompts)
    rounds = list(boost(shots, pool, BoostSettings(rounds=20, patience=3)))
    assert [r.composition.error for r in rounds] == [0, 0, 0]
    assert rounds[-1].state.finished
    assert list(boost(shots, pool, BoostSettings(rounds=20), state=rounds[-1].state)) == []
    assert len(list(boost(shots, pool, BoostSettings(rounds=5)))) == 5


def test_start_weights_matter_and_zero_weights_are_ignored(problem):
    shots, pool = problem
    only = (np.arange(20) % 4 == 0).astype(float)
    settings = BoostSettings(rounds=1, views_per_round=0)
    focused = next(boost(shots, pool, settings, weights=only))
    assert focused.composition.error in {0, 0.2, 0.4, 0.6, 0.8}, "five images count, equally"
    assert focused.composition.trace != next(boost(shots, pool, settings)).composition.trace
    assert (focused.state.weights[only == 0] == 0).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"views_per_round": -1}, "views_per_round"),
        ({"seed": -1}, "seed"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"temperature": float("nan")}, "temperature"),
        ({"patience": 0}, "patience"),
        ({"max_copies": 0}, "max_copies"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(SettingError, match=message):
        BoostSettings(**settings)


def test_bad_input_is_refused_before_any_work(problem):
    shots, pool = problem
    with pytest.raises(SettingError, match="there are no views"):
        boost(Shots(shots.originals, shots.labels), pool)
    with pytest.raises(SettingError, match="only 8 views"):
        boost(shots, pool, BoostSettings(views_per_round=9))
    with pytest.raises(WeightError, match="all sample weights are zero"):
        boost(shots, pool, weights=np.zeros(20))
    with pytest.raises(WeightError, match="not both"):
        boost(shots, pool, weights=np.ones(20), state=BoostState(0, np.ones(20)))
    with pytest.raises(WeightError, match="expected 20"):
        boost(shots, pool, state=BoostState(1, np.ones(3)))


# --- rounds composed by gradient ------------------------------------------------------------------

BY_GRADIENT = GradientSettings(logit_scale=20.0, sweeps=4, copies=8, tolerance=0.0)


def plain_scores(weak, shots, pool):
    """Mean cosine with every copy in a bank, one copy after the other."""
    scores = np.empty((len(shots.labels), len(pool.prompts)))
    for k, bank in enumerate(weak.banks):
        copies = [pool.templates[k, weak.template]] * weak.template_copies[k]
        for j, number in bank.items():
            copies += [pool.prompts[k][j]] * number
        scores[:, k] = shots.originals @ np.mean(np.array(copies, dtype=float), axis=0)
    return scores / COSINE_UNIT


def dealt_views(seed, n, V, a, draw):
    """The views of every image in one draw: a shuffled bank is cut into V // a hands of a views."""
    hands = V // a
    order = np.random.default_rng([seed, draw // hands, 1]).permuted(
        np.tile(np.arange(V), (n, 1)), axis=1
    )
    start = draw % hands * a
    return order[:, start : start + a]


@pytest.fixture
def composed(monkeypatch):
    """What the gradient composer is called with: the rows of every sweep, and its other arguments."""
    module = sys.modules[boost.__module__]  # the package's name for it is that of the function
    calls = []
    real = module.compose_by_gradient

    def compose(X, y, weights, pool, settings, *, fresh, **others):
        rows = [X]

        def noted(sweep):
            assert sweep == len(rows)
            rows.append(fresh(sweep))
            return rows[-1]

        calls.append({"rows": rows, "y": y, "weights": weights, "fresh": fresh, **others})
        again = None if fresh is None else noted
        return real(X, y, weights, pool, settings, fresh=again, **others)

    monkeypatch.setattr(module, "compose_by_gradient", compose)
    return calls


def without_state(rounds):
    return [(r.composition, r.original_error, r.state.weights.tolist()) for r in rounds]


@pytest.mark.parametrize("a", [0, 3, 8])
def test_a_fit_by_gradient_continued_after_any_round_is_the_same(problem, a):
    given = {"views_per_round": a, "seed": 7, "gradient": BY_GRADIENT}
    whole = list(boost(*problem, BoostSettings(rounds=5, **given)))
    for stop in range(1, len(whole)):
        first = list(boost(*problem, BoostSettings(rounds=stop, **given)))
        rest = list(boost(*problem, BoostSettings(rounds=5, **given), state=first[-1].state))
        assert without_state(first + rest) == without_state(whole)


def test_rounds_by_gradient_update_the_weights_as_the_paper_does(problem):
    shots, pool = problem
    weights = np.full(20, 1 / 20)
    settings = BoostSettings(
        rounds=4, views_per_round=4, temperature=0.05, seed=3, gradient=BY_GRADIENT
    )
    for done in boost(shots, pool, settings):
        assert isinstance(done.composition.trace, GradientTrace)
        assert done.composition.composer == settings.composer == "gradient"
        scores = plain_scores(done.composition, shots, pool)
        assert np.allclose(scores_of(done.composition, shots.originals, pool), scores, atol=1e-12)
        wrong = scores.argmax(axis=1) != shots.labels
        assert np.isclose(done.original_error, weights[wrong].sum())
        weights = samme_r_weights(weights, scores, shots.labels, 0.05)
        assert np.allclose(done.state.weights, weights, rtol=1e-9)
    assert weights.std() > 0.001


@pytest.mark.parametrize("a", [1, 2, 3, 4])
def test_every_sweep_has_views_of_its_own(problem, composed, a):
    shots, pool = problem
    settings = BoostSettings(rounds=3, views_per_round=a, seed=5, gradient=BY_GRADIENT)
    rounds = list(boost(shots, pool, settings))
    start = [np.full(20, 1 / 20), *(done.state.weights for done in rounds)]
    assert len(composed) == 3
    for number, call in enumerate(composed):
        owners = np.arange(20).repeat(a)
        assert (call["y"] == shots.labels[owners]).all()
        assert (call["weights"] == start[number][owners]).all()
        assert len(call["rows"]) > 2
        seen = [[] for _ in range(20)]
        for sweep, rows in enumerate(call["rows"]):
            views = dealt_views(5, 20, 8, a, number * 5 + sweep)
            assert (rows == shots.views[owners, views.ravel()]).all()
            for i in range(20):
                seen[i] += views[i].tolist()
        if number == 0:  # the first deal begins with the first sweep
            hand = 8 // a * a
            assert all(len(set(mine[:hand])) == len(mine[:hand]) for mine in seen)


@pytest.mark.parametrize("a", [0, 8])
def test_where_all_rows_are_seen_at_once_there_are_no_fresh_ones(problem, composed, a):
    shots, pool = problem
    settings = BoostSettings(rounds=2, views_per_round=a, gradient=BY_GRADIENT)
    rounds = list(boost(shots, pool, settings))
    expected = shots.views.reshape(160, -1) if a else shots.originals
    for call in composed:
        assert call["fresh"] is None
        assert (call["rows"][0] == expected).all()
    assert rounds[0].composition.trace.sweeps > 1


def test_the_composer_is_told_the_hits_of_its_rows(problem, composed):
    from promptboost.boosting.composition import template_hits

    shots, pool = problem
    list(boost(shots, pool, BoostSettings(rounds=3, views_per_round=4, gradient=BY_GRADIENT)))
    for call in composed:
        expected = template_hits(call["rows"][0], call["y"], pool.templates)
        assert (call["hits"] == expected).all()


def test_seeds_of_rounds_by_gradient(problem):
    run = [
        without_state(
            boost(
                *problem, BoostSettings(rounds=2, seed=s, views_per_round=a, gradient=BY_GRADIENT)
            )
        )
        for s, a in ((1, 3), (1, 3), (2, 3), (1, 8), (2, 8))
    ]
    assert run[0] == run[1]
    assert run[0] != run[2]
    assert run[3] == run[4], "with all views there is nothing to draw, and no template is level"


def test_start_weights_of_rounds_by_gradient(problem):
    shots, pool = problem
    settings = BoostSettings(rounds=1, views_per_round=0, gradient=BY_GRADIENT)
    kept = np.arange(20) % 4 != 0
    some = next(boost(shots, pool, settings, weights=kept.astype(float)))
    fewer = Shots(shots.originals[kept], shots.labels[kept])
    alone = next(boost(fewer, pool, settings))
    assert some.composition.banks == alone.composition.banks
    assert np.isclose(some.original_error, alone.original_error)
