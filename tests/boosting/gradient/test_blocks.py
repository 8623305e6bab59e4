"""Class blocks: the problem of all classes whatever the cut, and the same bits whoever keeps them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptboost.boosting.gradient import banks as banks_module
from promptboost.boosting.gradient import blocks as blocks_module
from promptboost.boosting.gradient.blocks import BlocksLostError, ClassBlock, KeeperHere
from promptboost.boosting.gradient.compose import GradientSettings, compose_by_gradient
from promptboost.boosting.grid import GridPool, stacked, to_grid
from promptboost.encoders.group import join
from promptboost.testing import clip_like
from tests.boosting.gradient.gradient_oracle import Plain, make_task


class PostedKeeper(KeeperHere):
    """Asks blocks as late as it may and prepares many ahead, and notes what it was asked."""

    def __init__(self, pool, ahead=3, lose=()):
        super().__init__(pool)
        self.ahead, self.waiting, self.calls, self.lose = ahead, [], [], set(lose)

    def every(self, call, *given):
        self.answer_all()
        self.note(call)
        return super().every(call, *given)

    def one(self, number, call, *given):
        box = []
        self.waiting.append((box, number, call, given))

        def answer():
            self.answer_all()
            self.note(call)
            return box[0]

        return answer

    def answer_all(self):
        for box, number, call, told in self.waiting:
            box.append(super().one(number, call, *told)())
        self.waiting.clear()

    def note(self, call):
        self.calls.append(call.__name__)
        if len(self.calls) in self.lose:
            self._blocks, self.waiting = [], []
            raise BlocksLostError("a machine is gone")


def task_of(seed, encoders=1, K=7, prompts=30):
    parts = [clip_like(K, 3, prompts=prompts, templates=3, dim=d, seed=seed) for d in (12, 8)]
    parts = parts[:encoders]
    X = stacked(to_grid(join([part.images for part in parts]), encoders=encoders), encoders)
    templates = join([part.templates for part in parts])
    texts = [join(blocks) for blocks in zip(*(part.prompts for part in parts), strict=True)]
    pool = GridPool.from_rows(templates, texts, (1.0,) * encoders)
    return X, np.tile(parts[0].labels, encoders), pool


def compose(task, keeper=None, **asked):
    X, y, pool = task
    pool = GridPool(pool.templates, pool.prompts, pool.scales, keeper)
    others = {name: asked.pop(name) for name in ("fresh", "earlier") if name in asked}
    wanted = GradientSettings(**{"logit_scale": 30.0, "sweeps": 8, **asked})
    weights = 1.0 + np.arange(len(y)) % 3
    rng = np.random.default_rng(0)
    return compose_by_gradient(X, y, weights, pool, wanted, rng=rng, **others)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks of three classes, and candidates enough for some prompts only."""
    monkeypatch.setattr(blocks_module, "CLASSES", 3)
    monkeypatch.setattr(banks_module, "CANDIDATES", 5)


@settings(max_examples=25)
@given(
    st.integers(0, 10**6),
    st.integers(1, 2),
    st.integers(2, 8),
    st.sampled_from([4, 30]),
    st.integers(1, 5),
    st.sampled_from(["", "earlier", "fresh"]),
)
def test_the_same_bits_whoever_keeps_the_blocks(seed, encoders, K, prompts, ahead, extra):
    task = task_of(seed, encoders, K, prompts)
    X, _, pool = task
    others = {}
    rng = np.random.default_rng(seed)
    if extra == "earlier":
        shape = K, pool.templates.shape[2]
        others["earlier"] = rng.normal(0, 0.1, shape).astype(np.float32)
    if extra == "fresh":
        noise = rng.standard_normal((9, *X.shape)) * 0.3
        rows = [np.where(X == 0, 0.0, X / 32767 + one) for one in noise]
        views = [to_grid(one / np.linalg.norm(one, axis=1, keepdims=True)) for one in rows]
        others["fresh"] = views.__getitem__
    here = compose(task, **others)
    keeper = PostedKeeper(pool, ahead)
    assert compose(task, keeper, **others) == here
    assert ("search" in keeper.calls) == (here.trace.sweeps > 0)


@pytest.mark.parametrize("classes", [1, 2, 4, 6, 100])
@pytest.mark.parametrize("encoders", [1, 2])
def test_the_cut_changes_no_more_than_rounding(monkeypatch, classes, encoders):
    """Another cut adds up in another order: the same problem, to single precision."""
    found = []
    for size in (100, classes):
        monkeypatch.setattr(blocks_module, "CLASSES", size)
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
        patch.setattr(blocks_module, "CLASSES", classes)
        task = make_task(seed, K=5, noise=1.0, logit_scale=scale, caution=0.0, sweeps=6)
        weak = task.compose()
    plain = Plain(task, weak.template)
    close = 2e-6 * (1 + scale)
    objectives = np.array(weak.trace.objectives)
    assert np.isclose(objectives[-1], plain.objective(plain.shares(weak)), atol=close)
    assert (np.diff(objectives) <= close).all()


@pytest.mark.parametrize("lose", [(1,), (2,), (4,), (6, 9), (3, 5, 12)])
def test_a_composition_whose_blocks_are_lost_is_begun_anew_and_ends_the_same(lose):
    task = task_of(5)
    here = compose(task)
    keeper = PostedKeeper(task[2], lose=lose)
    assert compose(task, keeper) == here
    assert len(keeper.calls) > max(lose), "it went on after the last loss"


def test_a_block_that_was_not_prepared_prepares_itself():
    """What was asked of it may have failed unseen: it must not be searched with nothing."""

    class Forgetful(PostedKeeper):
        def one(self, number, call, *given):
            if call is ClassBlock.prepare:
                return lambda: None
            return super().one(number, call, *given)

    task = task_of(2)
    assert compose(task, Forgetful(task[2])) == compose(task)


def test_one_process_holds_the_products_of_one_block_at_a_time(monkeypatch):
    held = []
    plain = ClassBlock.prepare

    def prepare(self):
        plain(self)
        alive = [b for b in blocks if b._changes is not None]
        held.append(len(alive))

    blocks = []
    begin = KeeperHere.begin

    def noted(self, *given):
        begin(self, *given)
        blocks.extend(self._blocks)

    monkeypatch.setattr(ClassBlock, "prepare", prepare)
    monkeypatch.setattr(KeeperHere, "begin", noted)
    compose(task_of(1))
    assert len(blocks) == 3
    assert set(held) == {1}
