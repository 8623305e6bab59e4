from itertools import pairwise

import numpy as np
import pytest

from promptboost.boosting.composition import pick_template, template_hits
from promptboost.boosting.greedy.insertion import compose_greedily
from promptboost.boosting.grid import GridPool, Shots, to_grid, weights_to_grid
from promptboost.errors import EmbeddingError, LabelError, PoolError
from tests.boosting.oracle import PlainBanks, compose_plain, template_plain
from tests.synthetic import clip_like


@pytest.fixture(scope="module")
def task():
    return clip_like(6, 6, views=3, prompts=40, templates=7, dim=32, confusion=2.5, seed=5)


@pytest.fixture(scope="module")
def rows(task):
    n = len(task.labels) * 3
    return to_grid(task.views).reshape(n, -1), np.repeat(task.labels, 3)


@pytest.fixture(scope="module")
def pool(task):
    return GridPool.from_rows(task.templates, task.prompts)


@pytest.mark.parametrize("options", [{}, {"max_copies": 1}, {"penalty": False}, {"max_copies": 3}])
@pytest.mark.parametrize("seed", range(4))
def test_same_classifier_as_the_plain_composition(rows, pool, options, seed):
    X, y = rows
    weights = np.random.default_rng(seed).random(len(y))
    weak = compose_greedily(X, y, weights, pool, rng=np.random.default_rng(seed), **options)
    grid = weights_to_grid(weights, len(y))
    errors = template_plain(X, y, grid, pool.templates)
    assert errors[weak.template] == min(errors)
    assert weak.template_error == min(errors) / grid.sum()
    banks = PlainBanks(X, y, grid, pool.prompts, pool.templates[:, weak.template])
    expected = compose_plain(banks, **options)
    found = [(s.class_index, s.prompt, s.copies, round(s.error * grid.sum())) for s in weak.trace]
    assert found == expected
    if options.get("max_copies") == 1:
        assert {step.copies for step in weak.trace} == {1}


def test_every_step_lowers_the_error(rows, pool):
    weak = compose_greedily(*rows, np.ones(len(rows[1])), pool, rng=np.random.default_rng(0))
    errors = [weak.template_error, *(step.error for step in weak.trace)]
    assert len(errors) > 5
    assert all(after < before for before, after in pairwise(errors))
    assert weak.error == errors[-1]


def test_copies_add_up_in_order_of_entry(rows, pool):
    weak = compose_greedily(*rows, np.ones(len(rows[1])), pool, rng=np.random.default_rng(0))
    for k in range(6):
        steps = [step for step in weak.trace if step.class_index == k]
        assert sum(weak.banks[k].values()) == sum(step.copies for step in steps)
        assert list(weak.banks[k]) == list(dict.fromkeys(step.prompt for step in steps))


def test_ties_between_templates_are_broken_at_random_but_seeded():
    hits = np.ones((4, 50), dtype=bool)
    weights = np.ones(4, dtype=np.int64)
    picks = [pick_template(hits, weights, np.random.default_rng(seed)) for seed in range(30)]
    assert len(set(picks)) > 10
    assert picks == [pick_template(hits, weights, np.random.default_rng(s)) for s in range(30)]


def test_template_hits_are_those_of_argmax(rows, pool):
    X, y = rows
    hits = template_hits(X, y, pool.templates)
    for j in range(pool.templates.shape[1]):
        scores = X.astype(float) @ pool.templates[:, j].astype(float).T
        assert (hits[:, j] == (scores.argmax(axis=1) == y)).all()


@pytest.mark.parametrize("seed", range(20))
def test_template_hits_are_exact_where_products_are_next_to_equal(seed):
    """Prompts of classes that differ by a unit of the grid, or not at all: their order decides."""
    rng = np.random.default_rng(seed)
    dim = int(rng.choice([3, 64, 512]))
    one = rng.standard_normal((1, 5, dim))
    one *= 2**15 / np.linalg.norm(one, axis=2, keepdims=True) / 1.01
    templates = np.rint(
        one + rng.integers(-1, 2, (6, 5, dim)) * (rng.random((6, 5, dim)) < 4 / dim)
    )
    X = np.rint(one[0, rng.integers(5, size=150)] + rng.integers(-40, 41, (150, dim)))
    X, templates = X.astype(np.int16), templates.astype(np.int16)
    y = rng.integers(6, size=150)
    scores = np.einsum("id,kjd->ijk", X.astype(np.int64), templates.astype(np.int64))
    assert (np.ptp(scores, axis=2) < 2**16).any(), "single precision could not tell"
    assert (template_hits(X, y, templates) == (scores.argmax(axis=2) == y[:, None])).all()


def test_scaling_the_weights_changes_nothing(rows, pool):
    weights = np.random.default_rng(1).random(len(rows[1]))
    once = compose_greedily(*rows, weights, pool, rng=np.random.default_rng(0))
    again = compose_greedily(*rows, 1000 * weights, pool, rng=np.random.default_rng(0))
    assert once.trace == again.trace


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: {"templates": t.templates[:, :0]}, PoolError, "at least one"),
        (lambda t: {"templates": t.templates[0]}, PoolError, "shape"),
        (lambda t: {"prompts": t.prompts[:-1]}, PoolError, "6 classes, prompts for 5"),
        (lambda t: {"prompts": [*t.prompts[:-1], t.prompts[0][:0]]}, PoolError, "class 5 has no"),
        (
            lambda t: {"prompts": [*t.prompts[:-1], 2 * t.prompts[0]]},
            EmbeddingError,
            "class 5: row",
        ),
        (
            lambda t: {"prompts": [*t.prompts[:-1], np.eye(31, dtype=np.float32)]},
            EmbeddingError,
            r"expected shape \(P, 32\)",
        ),
        (lambda t: {"prompts": []}, PoolError, "prompts for 0"),
    ],
)
def test_bad_pools(task, change, error, message):
    given = {"templates": task.templates, "prompts": task.prompts} | change(task)
    with pytest.raises(error, match=message):
        GridPool.from_rows(given["templates"], given["prompts"])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (lambda y: y[:-1], "expected 36 labels"),
        (lambda y: y.astype(float), "class indices"),
        (lambda y: y - 1, "negative"),
        (lambda y: y * 0, "only one class"),
        (lambda y: np.where(y == 2, 1, y), "class 2 has no images"),
        (lambda y: y.astype(str), "class indices"),
    ],
)
def test_bad_labels(task, labels, message):
    with pytest.raises(LabelError, match=message):
        Shots.from_rows(task.images, labels(task.labels))


def test_bad_images_and_views(task):
    with pytest.raises(EmbeddingError, match="expected shape"):
        Shots.from_rows(task.views, task.labels)
    with pytest.raises(EmbeddingError, match=r"views: expected shape \(36, V, 32\)"):
        Shots.from_rows(task.images, task.labels, task.views[:-1])
    with pytest.raises(EmbeddingError, match="views"):
        Shots.from_rows(task.images, task.labels, task.views[:, :0])
    with pytest.raises(LabelError, match="no images"):
        Shots.from_rows(task.images[:0], task.labels[:0])


def test_images_and_pool_must_fit(task, pool):
    with pytest.raises(LabelError, match="label 6 has no prompts"):
        pool.check_against(Shots.from_rows(task.images, np.arange(36) % 7))
    with pytest.raises(LabelError, match="class 5 has prompts but no images"):
        pool.check_against(Shots.from_rows(task.images, np.arange(36) % 5))
    other = clip_like(6, 6, dim=16)
    with pytest.raises(EmbeddingError, match="16 dimensions, prompts 32"):
        pool.check_against(Shots.from_rows(other.images, other.labels))
