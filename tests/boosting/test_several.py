"""Several encoders at once, beside the plain composers on wide rows with zeros in all blocks but one."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.boosting import BoostSettings, GradientSettings, GridPool, Shots, boost
from promptboost.boosting.composition import scores_of, template_hits
from promptboost.boosting.greedy.insertion import compose_greedily
from promptboost.boosting.grid import ROW_UNIT, stacked, to_grid, weights_to_grid
from promptboost.boosting.samme import updated_weights
from promptboost.boosting.scale import choose_scale
from promptboost.encoders.group import join
from promptboost.errors import EmbeddingError
from tests.boosting.gradient.gradient_oracle import Plain, Task, unit_grid
from tests.boosting.instances import coarse_rows
from tests.boosting.oracle import PlainBanks, compose_plain, template_plain
from tests.synthetic import clip_like

SIZES = {2: (5, 3), 3: (4, 6, 4)}  # columns of each encoder's rows


def zero_blocks(rows, encoders):
    """All rows one by one, each with zeros in all blocks but its encoder's: (E·n, E·D)."""
    n, wide = rows.shape
    dim = wide // encoders
    dense = np.zeros((encoders * n, wide), dtype=rows.dtype)
    for e in range(encoders):
        block = slice(e * dim, (e + 1) * dim)
        dense[e * n : (e + 1) * n, block] = rows[:, block]
    return dense


def coarse(seed, encoders, *, n=21, K=4, P=9):
    """Rows with many ties: images side by side, labels, and a pool."""
    rng = np.random.default_rng(seed)

    def rows(count):
        return join([coarse_rows(rng, count, dim, 3) for dim in SIZES[encoders]])

    sizes = rng.integers(1, P, K)
    pool = GridPool(
        np.stack([rows(3) for _ in range(K)]), tuple(map(rows, sizes)), (1.0,) * encoders
    )
    y = np.concatenate([np.arange(K), rng.integers(0, K, n - K)])
    return rows(n), y, pool


@pytest.fixture(scope="module", params=[2, 3])
def problem(request):
    """What several encoders, of different width and scale, made of the same images and texts."""
    tasks = [
        clip_like(4, 4, views=6, prompts=20, templates=5, dim=dim, confusion=2.5, seed=seed)
        for seed, dim in enumerate((32, 16, 24)[: request.param])
    ]
    shots = Shots.from_rows(
        join([task.images for task in tasks]),
        tasks[0].labels,
        join([task.views for task in tasks]),
        encoders=len(tasks),
    )
    prompts = [join(blocks) for blocks in zip(*(task.prompts for task in tasks), strict=True)]
    templates = join([task.templates for task in tasks])
    scales = (1.0, 0.5, 2.0)[: request.param]
    return tasks, shots, GridPool.from_rows(templates, prompts, scales)


@pytest.mark.parametrize("encoders", [2, 3])
def test_a_cosine_is_that_of_the_rows_with_zeros(encoders):
    rows, _, pool = coarse(0, encoders)
    narrow, wide = stacked(rows, encoders), zero_blocks(rows, encoders)
    assert narrow.shape == (encoders * len(rows), rows.shape[1] // encoders)
    # The product of an image's row with a prompt's is that of the blocks of one encoder.
    expected = wide.astype(float) @ pool.prompts[0].astype(float).T
    dim = narrow.shape[1]
    for i, row in enumerate(narrow):
        block = pool.prompts[0][:, i // len(rows) * dim :][:, :dim]
        assert (row.astype(float) @ block.astype(float).T).tolist() == expected[i].tolist()


def test_one_encoder_is_left_as_it_is():
    rows = coarse_rows(np.random.default_rng(0), 5, 4, 3)
    assert to_grid(rows) is rows
    assert np.shares_memory(stacked(rows, 1), rows)


def test_columns_that_are_no_blocks_are_refused():
    _, _, pool = coarse(0, 2)
    message = "10 columns cannot be divided into blocks of 3 encoders"
    with pytest.raises(EmbeddingError, match=message):
        GridPool.from_rows(pool.templates, pool.prompts, (1.0, 1.0, 1.0))


@given(
    st.integers(0, 10_000), st.sampled_from([2, 3]), st.sampled_from([None, 1, 2]), st.booleans()
)
def test_the_search_chooses_what_the_plain_one_does(seed, encoders, max_copies, penalty):
    rows, labels, pool = coarse(seed, encoders)
    X, y = stacked(rows, encoders), np.tile(labels, encoders)
    dense = zero_blocks(rows, encoders)
    weights = np.random.default_rng(seed).integers(1, 4, len(y)).astype(float)
    options = {"max_copies": max_copies, "penalty": penalty}
    weak = compose_greedily(X, y, weights, pool, rng=np.random.default_rng(0), **options)
    grid = weights_to_grid(weights, len(y))
    errors = template_plain(dense, y, grid, pool.templates)
    assert errors[weak.template] == min(errors)
    banks = PlainBanks(dense, y, grid, pool.prompts, pool.templates[:, weak.template])
    found = [(s.class_index, s.prompt, s.copies, round(s.error * grid.sum())) for s in weak.trace]
    assert found == compose_plain(banks, **options)


@pytest.mark.parametrize("cached", [0, 2**25], ids=["guesses", "no guesses"])
def test_the_search_on_many_rows(monkeypatch, cached):
    """More rows than a tile, a block, or those whose products are kept."""
    from promptboost.boosting.greedy import search

    monkeypatch.setattr(search, "CACHED_BYTES", cached)
    monkeypatch.setattr(search, "RISKY_ROWS", 16)
    rng = np.random.default_rng(3)
    tasks = [
        clip_like(3, 70, views=3, prompts=40, templates=4, dim=dim, confusion=3.0, seed=seed)
        for seed, dim in enumerate((24, 16))
    ]
    labels = np.repeat(tasks[0].labels, 3)
    rows = to_grid(join([task.views.reshape(len(labels), -1) for task in tasks]), encoders=2)
    prompts = [join(blocks) for blocks in zip(*(task.prompts for task in tasks), strict=True)]
    pool = GridPool.from_rows(join([task.templates for task in tasks]), prompts, (1.0, 1.0))
    X, y, weights = stacked(rows, 2), np.tile(labels, 2), rng.random(2 * len(labels))
    weak = compose_greedily(X, y, weights, pool, rng=rng)
    grid = weights_to_grid(weights, len(y))
    first = pool.templates[:, weak.template]
    expected = compose_plain(PlainBanks(zero_blocks(rows, 2), y, grid, pool.prompts, first))
    assert len(expected) > 5
    assert [(s.class_index, s.prompt, s.copies) for s in weak.trace] == [
        step[:3] for step in expected
    ]


def gradient_task(seed, encoders, scales, **settings):
    """A problem as the composer gets it, and as the plain one with zeros and scaled rows does."""
    rng = np.random.default_rng(seed)
    K, n, P = 3, 15, 6
    centers = [rng.standard_normal((K, dim)) for dim in SIZES[encoders]]
    y = np.arange(n) % K

    def around(points, count, noise):
        return [
            unit_grid(p[:, None] + noise * rng.standard_normal((len(p), count, p.shape[1])))
            for p in points
        ]

    templates = join(around(centers, 1, 0.7))
    prompts = join(around(centers, P, 1.0))
    rows = join([block[:, 0] for block in around([c[y] for c in centers], 1, 0.7)])
    pool = GridPool(templates, tuple(prompts), scales)
    weights = np.tile(rng.random(n) + 0.1, encoders)
    asked = {"logit_scale": 8.0, "copies": 16, "spread": 0.5, "caution": 0.3, "tolerance": 0.0}
    asked = GradientSettings(**{**asked, **settings})
    labels = np.tile(y, encoders)
    dense = zero_blocks(rows.astype(float), encoders) * np.repeat(scales, n)[:, None]
    return (
        Task(stacked(rows, encoders), labels, weights, pool, asked),
        Task(dense, labels, weights, pool, asked),
    )


@pytest.mark.parametrize(
    ("encoders", "scales"), [(2, (1.0, 1.0)), (2, (1.0, 3.0)), (3, (1, 0.5, 2))]
)
def test_the_sweeps_are_those_of_the_plain_composer(encoders, scales):
    compared = 0
    for seed in range(12):
        task, dense = gradient_task(seed, encoders, scales)
        plain = Plain(dense)
        shares = plain.start()
        for sweeps in range(1, 4):
            shares = plain.sweep(shares)
            if plain.doubt < 1e-5 * task.settings.logit_scale:
                break  # two choices are level in single precision
            found = plain.shares(task.compose(sweeps=sweeps))
            assert [s.tolist() for s in found] == [s.tolist() for s in shares], (seed, sweeps)
            compared += 1
    assert compared > 15


def test_products_of_many_encoders_stay_in_32_bits(monkeypatch):
    """Side by side, six rows of length one are one of length 2.4."""
    monkeypatch.setattr("promptboost.boosting.gradient.banks.CANDIDATES", 2)
    rng = np.random.default_rng(0)
    block = np.zeros((1, 4), dtype=np.int16)
    block[0, 0] = ROW_UNIT
    same = np.tile(block, (1, 6))
    other = join([coarse_rows(rng, 5, 4, 3) for _ in range(6)])
    pool = GridPool(
        np.stack([other[:1], other[1:2]]),
        (np.concatenate([other[2:], same]), other[:3]),
        (1.0,) * 6,
    )
    rows = np.concatenate([same, -same])
    X, y = stacked(rows, 6), np.tile([0, 1], 6)
    settings = GradientSettings(logit_scale=5.0, spread=0.0, copies=4)
    task = Task(X, y, np.ones(12), pool, settings)
    assert task.compose().banks[0] == {3: 4}  # the one prompt that is right about all


@pytest.mark.parametrize("composer", ["greedy", "gradient"])
def test_rounds_see_the_same_views_by_every_encoder(problem, composer, monkeypatch):
    tasks, shots, pool = problem
    seen = []
    name = {"greedy": "compose_greedily", "gradient": "compose_by_gradient"}[composer]
    module = sys.modules["promptboost.boosting.samme"]
    real = getattr(module, name)

    def noted(X, y, weights, *others, **more):
        seen.append((X, y, np.asarray(weights), more["hits"]))
        return real(X, y, weights, *others, **more)

    monkeypatch.setattr(module, name, noted)
    gradient = GradientSettings(logit_scale=20.0, sweeps=4) if composer == "gradient" else None
    settings = BoostSettings(rounds=3, views_per_round=2, gradient=gradient)
    rounds = list(boost(shots, pool, settings))
    n, E = len(shots.labels), pool.encoders
    dim = max(task.images.shape[1] for task in tasks)
    before = np.full(n, 1 / n)
    for (X, y, weights, hits), done in zip(seen, rounds, strict=True):
        assert X.shape == (E * n * 2, dim)
        assert y.tolist() == np.tile(shots.labels.repeat(2), E).tolist()
        np.testing.assert_array_equal(weights, np.tile(before.repeat(2), E))
        np.testing.assert_array_equal(hits, template_hits(X, y, pool.templates))
        blocks = X.reshape(E, n, 2, dim)
        # Row j of image i is one and the same view for all encoders.
        banks = shots.views.reshape(n, 6, E, dim)
        for i in range(n):
            for j in range(2):
                which = {
                    tuple(np.flatnonzero((banks[i, :, e] == blocks[e, i, j]).all(axis=1)))
                    for e in range(E)
                }
                assert len(which) == 1
        before = done.state.weights


def test_the_weight_of_an_image_changes_by_the_mean_exponent(problem):
    _, shots, pool = problem
    n, E = len(shots.labels), pool.encoders
    (done,) = boost(shots, pool, BoostSettings(rounds=1, views_per_round=0, temperature=0.05))
    scores = scores_of(done.composition, stacked(shots.originals, E), pool).reshape(E, n, -1)
    start = np.full(n, 1 / n)
    alone = [updated_weights(start, one, shots.labels, 0.05) for one in scores]
    mean = np.exp(np.mean(np.log(alone), axis=0))
    np.testing.assert_allclose(done.state.weights, mean / mean.sum(), rtol=1e-9)
    wrong = (scores.argmax(axis=2) != shots.labels).mean()
    assert done.original_error == pytest.approx(wrong)


def test_scores_are_those_of_each_encoder_alone(problem):
    tasks, shots, pool = problem
    (done,) = boost(shots, pool, BoostSettings(rounds=1, views_per_round=0))
    weak, n = done.composition, len(shots.labels)
    scores = scores_of(weak, stacked(shots.originals, pool.encoders), pool)
    for e, task in enumerate(tasks):
        alone = GridPool.from_rows(task.templates, task.prompts)
        images = Shots.from_rows(task.images, task.labels).originals
        expected = scores_of(weak, images, alone)
        np.testing.assert_array_equal(scores[e * n : (e + 1) * n], expected)


def test_a_fit_on_several_continued_after_any_round_is_the_same(problem):
    _, shots, pool = problem
    settings = BoostSettings(rounds=3, views_per_round=2, temperature=0.1)
    whole = list(boost(shots, pool, settings))
    for stop in range(1, len(whole)):
        rest = list(boost(shots, pool, settings, state=whole[stop - 1].state))
        assert [r.composition.banks for r in rest] == [r.composition.banks for r in whole[stop:]]
        assert rest[-1].state.weights.tolist() == whole[-1].state.weights.tolist()


def test_one_factor_is_chosen_for_all(problem):
    _, shots, pool = problem
    asked = GradientSettings(sweeps=4)
    choice = choose_scale(shots, pool, asked, 20.0, views=2, factors=(3.0, 1.0))
    assert set(choice.losses) == {20.0, 60.0}
    assert choice.logit_scale in choice.losses
    n, K = len(shots.labels), len(pool.prompts)
    assert choice.held_out.shape == (pool.encoders * n, K)
    assert np.abs(choice.held_out).max() <= 1.0
    assert choose_scale(shots, pool, asked, 20.0, views=2, factors=(3.0, 1.0)) == choice
