"""Class blocks: the problem of all classes, whatever the cut."""

import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptboost.boosting.gradient import banks as banks_module
from promptboost.boosting.gradient import compose as compose_module
from promptboost.boosting.gradient.compose import (
    ClassBlock,
    GradientSettings,
    compose_by_gradient,
)
from promptboost.boosting.grid import GridPool, stacked, to_grid
from promptboost.encoders.group import join
from tests.boosting.gradient.gradient_oracle import Plain, make_task
from tests.synthetic import clip_like


def task_of(seed, encoders=1, K=7, prompts=30):
    parts = [clip_like(K, 3, prompts=prompts, templates=3, dim=d, seed=seed) for d in (12, 8)]
    parts = parts[:encoders]
    X = stacked(to_grid(join([part.images for part in parts]), encoders=encoders), encoders)
    templates = join([part.templates for part in parts])
    texts = [join(blocks) for blocks in zip(*(part.prompts for part in parts), strict=True)]
    pool = GridPool.from_rows(templates, texts, (1.0,) * encoders)
    return X, np.tile(parts[0].labels, encoders), pool


def compose(task, sweeps=8):
    X, y, pool = task
    settings = GradientSettings(logit_scale=30.0, sweeps=sweeps)
    weights = 1.0 + np.arange(len(y)) % 3
    return compose_by_gradient(X, y, weights, pool, settings, rng=np.random.default_rng(0))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks of three classes, and candidates enough for some prompts only."""
    monkeypatch.setattr(compose_module, "CLASSES", 3)
    monkeypatch.setattr(banks_module, "CANDIDATES", 5)


@pytest.mark.parametrize("classes", [1, 2, 4, 6, 100])
@pytest.mark.parametrize("encoders", [1, 2])
def test_the_cut_changes_no_more_than_rounding(monkeypatch, classes, encoders):
    """Another cut adds up in another order: the same problem, to single precision."""
    found = []
    for size in (100, classes):
        monkeypatch.setattr(compose_module, "CLASSES", size)
        found.append([compose(task_of(seed, encoders), sweeps=4) for seed in range(4)])
    for whole, cut in zip(*found, strict=True):
        assert cut.banks == whole.banks
        assert cut.template_copies == whole.template_copies
        assert np.isclose(cut.error, whole.error)
        assert np.allclose(cut.trace.objectives, whole.trace.objectives, rtol=1e-5)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([8.0, 60.0, 500.0]))
def test_blocks_minimize_what_the_formulas_say(seed, classes, scale):
    """Also where one class has all of a row, so that the others' share is lost in the total's rounding."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose_module, "CLASSES", classes)
        task = make_task(seed, K=5, noise=1.0, logit_scale=scale, caution=0.0, sweeps=6)
        weak = task.compose()
    plain = Plain(task, weak.template)
    close = 2e-6 * (1 + scale)
    objectives = np.array(weak.trace.objectives)
    assert np.isclose(objectives[-1], plain.objective(plain.shares(weak)), atol=close)
    assert (np.diff(objectives) <= close).all()


def test_the_products_of_one_block_are_held_at_a_time(monkeypatch):
    changes, held = [], []
    products = ClassBlock._products

    def noted(self, class_rows):
        result = products(self, class_rows)
        if class_rows is self.banks.held.directions:
            changes.append(weakref.ref(result))
            held.append(sum(reference() is not None for reference in changes))
        return result

    monkeypatch.setattr(ClassBlock, "_products", noted)
    compose(task_of(1))
    assert len(held) >= 3
    assert set(held) == {1}
