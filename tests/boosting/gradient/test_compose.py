from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from promptboost.boosting.gradient.banks import Banks
from promptboost.boosting.gradient.compose import ClassBlock, GradientSettings
from promptboost.boosting.grid import ROW_UNIT, GridPool, from_grid
from promptboost.errors import SettingError, WeightError
from tests.boosting.gradient.gradient_oracle import Plain, Task, make_task, unit_grid

tasks = st.builds(
    make_task,
    st.integers(0, 2**32 - 1),
    K=st.integers(2, 5),
    n=st.integers(5, 25),
    P=st.integers(1, 9),
    D=st.integers(2, 6),
    noise=st.sampled_from([0.1, 0.7, 2.0]),
    weights=st.sampled_from(["uniform", "uneven", "zeros"]),
    logit_scale=st.sampled_from([0.5, 8.0, 60.0]),
    copies=st.sampled_from([1, 2, 16, 300]),
    spread=st.sampled_from([0.0, 0.5, 5.0]),
    caution=st.sampled_from([0.0, 0.3, 1.0]),
)
cautious = pytest.mark.parametrize("caution", [0.0, 0.3])
seeded = pytest.mark.parametrize("seed", range(8))


def close(task):
    """What single precision may do to sums of logits."""
    return 2e-6 * (1 + task.settings.logit_scale)


def varied(seed, **others):
    """Tasks that differ in all that matters, without hypothesis."""
    asked = {
        "noise": [0.3, 0.7, 1.5][seed % 3],
        "spread": [0.0, 0.5, 2.0, 10.0][seed % 4],
        "logit_scale": [3.0, 10.0, 50.0][(seed // 2) % 3],
        "weights": ["uniform", "uneven", "zeros"][(seed // 3) % 3],
    }
    return make_task(seed, **{**asked, **others})


# --- what is minimized --------------------------------------------------------------------------


@given(tasks)
def test_objective_gap_and_error_are_those_of_the_formulas(task):
    weak = task.compose()
    plain = Plain(task, weak.template)
    shares = plain.shares(weak)
    assert np.isclose(weak.trace.objectives[0], plain.objective(plain.start()), atol=close(task))
    assert np.isclose(weak.trace.objectives[-1], plain.objective(shares), atol=close(task))
    slack = 1e-4 * task.settings.logit_scale * len(shares)  # the pool is read on the grid
    assert np.isclose(weak.trace.gaps[0], plain.gap(plain.start()), atol=slack)
    assert np.isclose(weak.trace.gaps[-1], plain.gap(shares), atol=slack)
    sure = plain.logits(shares)
    ordered = np.sort(sure, axis=1)
    clear = (ordered[:, -1] - ordered[:, -2] > 10 * close(task)) | (plain.v == 0)
    if clear.all():
        assert np.isclose(weak.error, plain.v[sure.argmax(axis=1) != task.y].sum(), atol=1e-9)


@given(tasks)
def test_every_bank_keeps_its_number_of_copies(task):
    weak = task.compose()
    for template, bank in zip(weak.template_copies, weak.banks, strict=True):
        assert template >= 0
        assert all(copies > 0 for copies in bank.values())
        assert template + sum(bank.values()) == task.settings.copies


@given(tasks)
def test_the_objective_never_rises(task):
    objectives = np.array(task.compose(caution=0.0).trace.objectives)
    assert (np.diff(objectives) <= close(task)).all()


@settings(max_examples=40)
@given(tasks)
def test_with_caution_the_robust_loss_falls(task):
    """Images weighed by p**q are the tangent of (1 − p**q)/q, which a sweep therefore lowers.

    The weights are made to add up to one, so the penalty counts as much more as they fell short.
    """
    q = 0.5
    plain = Plain(task, caution=q)
    before = plain.start()
    for sweeps in range(1, 5):
        after = plain.shares(task.compose(caution=q, sweeps=sweeps))
        short = plain.v @ np.exp(q * plain.own(before))

        def robust(shares, short=short):
            loss = plain.v @ (1 - np.exp(q * plain.own(shares))) / q
            return loss + short * plain.penalty(shares)

        assert robust(after) <= robust(before) + close(task)
        before = after


@seeded
def test_the_gradient_is_the_slope_of_the_loss(seed):
    caution = [0.0, 0.5][seed % 2]
    task = varied(seed, weights="uneven", caution=caution, logit_scale=5.0)
    plain = Plain(task)
    means = (task.pool.templates[:, 0] / ROW_UNIT).astype(np.float32)
    counted = plain.counted(plain.start())
    banks = Banks(task.pool, 0, task.settings.copies, 0.0, few=True)
    block = ClassBlock(banks, 0, task.y, np.float32([5.0]))
    block.set_rows(from_grid(task.X))
    totals = block.total
    assert np.allclose(totals, np.logaddexp.reduce(plain.logits(plain.start()), axis=1), atol=1e-5)
    block.weigh(totals, counted, whole_pool=True)
    compose = block.gradient

    def loss(means):
        logits = plain.beta * plain.X @ means.T
        return counted @ (
            np.logaddexp.reduce(logits, axis=1) - logits[range(len(plain.y)), plain.y]
        )

    for k, j in np.ndindex(*means.shape):
        step = np.zeros(means.shape)
        step[k, j] = 1e-5
        slope = (loss(means + step) - loss(means - step)) / 2e-5
        assert np.isclose(compose[k, j], slope, atol=1e-5)


def test_rows_and_classes_are_worked_on_in_blocks(monkeypatch):
    from promptboost.boosting.gradient import compose as compose_module

    task = make_task(3, K=5, n=40, logit_scale=20.0, caution=0.3)
    whole = task.compose()
    monkeypatch.setattr(compose_module, "_ROWS", 7)
    monkeypatch.setattr(compose_module, "CLASSES", 2)
    in_blocks = task.compose()
    assert in_blocks.banks == whole.banks
    assert np.allclose(in_blocks.trace.objectives, whole.trace.objectives, rtol=1e-5)


# --- what a sweep does --------------------------------------------------------------------------


def test_sweeps_are_those_of_the_plain_composer():
    """Prompts by the slope of the objective, copies by trying all numbers, classes one by one."""
    compared = 0
    for seed in range(36):
        task = varied(seed, caution=[0.0, 0.3][seed % 2])
        plain = Plain(task)
        shares = plain.start()
        for sweeps in range(1, 5):
            shares = plain.sweep(shares)
            if plain.doubt < 1e-5 * task.settings.logit_scale:
                break  # two choices are level in single precision
            found = plain.shares(task.compose(sweeps=sweeps))
            assert [s.tolist() for s in found] == [s.tolist() for s in shares], (seed, sweeps)
            compared += 1
    assert compared > 60


@given(tasks)
@example(make_task(0, K=2, n=5, P=5, D=2, noise=0.1, logit_scale=0.5, copies=300, spread=5.0))
def test_there_are_sweeps_as_long_as_one_helps(task):
    """Also where one class has nothing to gain because its template beats all of its prompts."""
    weak = task.compose(caution=0.0, sweeps=12)
    if weak.trace.sweeps < 12:
        plain = Plain(task, weak.template, caution=0.0)
        last = plain.shares(weak)
        # A read of the pool rounds the gradient to the grid: what it can't tell apart may be left.
        slack = 1e-5 * task.settings.logit_scale * len(last)
        assert plain.objective(plain.sweep(last)) > plain.objective(last) - slack


def test_the_first_prompts_have_the_least_product_with_the_gradient():
    for seed in range(10):
        task = make_task(seed, P=20, D=6, spread=1.0, logit_scale=5.0, caution=0.3)
        weak = task.compose(sweeps=1)
        plain = Plain(task)
        slopes = plain.slopes(plain.start())
        for bank, slope in zip(weak.banks, slopes, strict=True):
            assert set(bank) <= {int(slope[1:].argmin())}, "one prompt, or none if none helps"
        assert any(weak.banks)


def test_spread_draws_banks_to_more_prompts():
    def distinct(spread):
        return sum(
            len(bank)
            for s in range(5)
            for bank in make_task(s, P=12, spread=spread).compose().banks
        )

    assert distinct(0.0) < distinct(0.5) < distinct(20.0)


# --- the certificate ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_the_gap_bounds_the_distance_to_the_optimum(seed):
    """No weighting of the prompts is lower by more than the gap, at any sweep.

    The bank may hold the template too, so only the optimum with it is a floor.
    """
    task = varied(seed, logit_scale=[3.0, 10.0][seed % 2], copies=64)
    weak = task.compose()
    plain = Plain(task, weak.template)
    without, left = plain.optimum()
    floor, left_of_floor = plain.optimum(template=True)
    assert max(left, left_of_floor) < 0.01 * without
    for objective, gap in zip(weak.trace.objectives, weak.trace.gaps, strict=True):
        assert np.isfinite(gap)
        assert gap >= 0
        assert objective - without <= gap + 1e-4
        assert objective >= floor - left_of_floor - 1e-4


@pytest.mark.parametrize("seed", range(6))
def test_many_copies_and_sweeps_come_close_to_the_optimum(seed):
    task = make_task(seed, noise=1.0, spread=0.0, copies=2000, sweeps=200)
    weak = task.compose()
    optimum, _ = Plain(task, weak.template).optimum()
    start = weak.trace.objectives[0]
    assert weak.trace.objectives[-1] - optimum <= 0.01 * (start - optimum)


def test_a_class_with_nothing_to_gain_takes_nothing_off_the_others_gap():
    """The template of one class beats its prompts by more than the others can gain together."""
    task = make_task(48, noise=0.3, spread=0.0, logit_scale=3.0)
    weak = task.compose()
    plain = Plain(task)
    slopes = plain.slopes(plain.shares(task.compose(sweeps=1)))
    assert sum(s[0] - s[1:].min() for s in slopes if s[0] < s[1:].min()) < -0.01
    assert weak.trace.sweeps > 1, "no reason to stop"
    assert weak.trace.objectives[-1] < weak.trace.objectives[1]
    assert min(weak.trace.gaps) >= 0


def test_the_tolerance_stops_the_sweeps():
    task = make_task(4, noise=1.0, copies=300, sweeps=50)
    exact, soon = task.compose(), task.compose(tolerance=0.3)
    assert 0 < soon.trace.sweeps < exact.trace.sweeps
    *before, last = np.array(soon.trace.gaps) / np.array(soon.trace.objectives)
    assert last <= 0.3 < min(before)
    assert task.compose(sweeps=2).trace.sweeps == 2
    assert len(task.compose(sweeps=2).trace.gaps) == 3


# --- sample weights -----------------------------------------------------------------------------


@cautious
@seeded
def test_a_weight_of_two_is_a_row_twice(seed, caution):
    task = make_task(seed, n=15, noise=1.0, sweeps=6, caution=caution)
    twice = np.r_[np.arange(15), 7]
    repeated = task.compose(X=task.X[twice], y=task.y[twice], weights=np.ones(16))
    doubled = task.compose(weights=1.0 + (np.arange(15) == 7))
    assert doubled.banks == repeated.banks
    assert doubled.template_copies == repeated.template_copies
    assert np.allclose(doubled.trace.objectives, repeated.trace.objectives, rtol=1e-5)
    assert doubled.error == repeated.error
    assert doubled.banks != task.compose(weights=np.ones(15)).banks


@cautious
@seeded
def test_a_weight_of_zero_is_a_row_left_out(seed, caution):
    task = make_task(seed, n=18, noise=1.0, sweeps=6, caution=caution)
    kept = np.arange(18) % 9 != 4  # 16 rows: their shares are the same to the last bit
    fewer = task.compose(X=task.X[kept], y=task.y[kept], weights=np.ones(16))
    zeroed = task.compose(weights=kept.astype(float))
    assert zeroed.banks == fewer.banks
    assert zeroed.template_error == fewer.template_error
    assert zeroed.error == fewer.error
    assert np.allclose(zeroed.trace.objectives, fewer.trace.objectives, rtol=1e-5)


@cautious
@given(seed=st.integers(0, 10**6), factor=st.sampled_from([2.0**-40, 0.125, 4.0, 2.0**50]))
@settings(max_examples=20)
def test_only_ratios_of_weights_matter(caution, seed, factor):
    task = make_task(seed, weights="zeros", caution=caution)
    assert task.compose(weights=factor * task.weights) == task.compose()


def test_weights_are_checked():
    task = make_task(0)
    for bad in (np.zeros(18), -np.ones(18), np.full(18, np.nan), np.ones(3)):
        with pytest.raises(WeightError):
            task.compose(weights=bad)


# --- order --------------------------------------------------------------------------------------


@cautious
@seeded
def test_same_input_same_composition(seed, caution):
    task = varied(seed, caution=caution, templates=3)
    assert task.compose() == task.compose()


@seeded
def test_the_order_of_prompts_does_not_matter(seed):
    task = make_task(seed, P=10, noise=1.0)
    order = np.random.default_rng(seed).permutation(10)
    pool = GridPool(task.pool.templates, tuple(P[order] for P in task.pool.prompts))
    there, here = task.compose(pool=pool), task.compose()
    assert [{int(order[j]): c for j, c in bank.items()} for bank in there.banks] == list(here.banks)
    assert there.trace == here.trace


@seeded
def test_the_order_of_rows_does_not_matter(seed):
    task = make_task(seed, noise=1.0, weights="uneven", sweeps=6)
    order = np.random.default_rng(seed).permutation(len(task.y))
    there = task.compose(X=task.X[order], y=task.y[order], weights=task.weights[order])
    assert there.banks == task.compose().banks


@seeded
def test_classes_in_another_order_are_the_same_problem(seed):
    """Classes move one after the other, so banks may differ; the problem and its certificate may not."""
    task = make_task(seed, K=4, noise=1.0, copies=1000, sweeps=100, spread=0.3, tolerance=0.003)
    order = np.random.default_rng(seed).permutation(4)
    pool = GridPool(task.pool.templates[order], tuple(task.pool.prompts[k] for k in order))
    there, here = task.compose(pool=pool, y=np.argsort(order)[task.y]), task.compose()
    assert np.isclose(there.trace.objectives[0], here.trace.objectives[0], rtol=1e-5)
    assert np.isclose(there.trace.gaps[0], here.trace.gaps[0], rtol=1e-3)
    assert there.template_error == here.template_error
    plain = Plain(task)
    shares = plain.shares(here)
    # Any banks, those of the other order too, are at most this much lower.
    most = plain.gap(shares, template=True)
    assert here.trace.objectives[-1] - there.trace.objectives[-1] <= most + 1e-5


# --- rows of other views ------------------------------------------------------------------------


def test_each_sweep_after_the_first_has_the_rows_it_is_given():
    first, second, third = (make_task(seed, noise=1.0) for seed in (1, 1, 1))
    rng = np.random.default_rng(5)
    for other in (second, third):
        other.X = unit_grid(other.X + 0.5 * ROW_UNIT * rng.standard_normal(other.X.shape))
    asked = []

    def fresh(sweep):
        asked.append(sweep)
        return [second.X, third.X][sweep - 1]

    weak = first.compose(fresh=fresh, sweeps=2)
    assert asked == [1, 2]
    shares = Plain(first).start()
    objectives = [Plain(first).objective(shares)]
    for seen, then in ((first, second), (second, third)):
        shares = Plain(seen).sweep(shares)
        objectives.append(Plain(then).objective(shares))
    found = Plain(first).shares(weak)
    assert [s.tolist() for s in found] == [s.tolist() for s in shares]
    assert np.allclose(weak.trace.objectives, objectives, atol=1e-4)
    wrong = Plain(third).logits(shares).argmax(axis=1) != third.y
    assert np.isclose(weak.error, wrong.mean()), "the error is that on the last rows"
    hits = Plain(first).logits(Plain(first).start()).argmax(axis=1) == first.y
    assert np.isclose(weak.template_error, 1 - hits.mean()), "the template was chosen on the first"


# --- ends of the range --------------------------------------------------------------------------


@cautious
def test_a_separable_task_is_learned(caution):
    corners = unit_grid(np.eye(3))
    pool = GridPool(
        unit_grid(np.ones((3, 1, 3))), tuple(np.roll(corners, -k, axis=0) for k in range(3))
    )
    task = make_task(0, caution=caution, logit_scale=100.0, spread=0.0)
    task = Task(corners.repeat(4, axis=0), np.arange(3).repeat(4), np.ones(12), pool, task.settings)
    weak = task.compose()
    assert weak.error == 0
    assert [max(bank, key=bank.get) for bank in weak.banks] == [0, 0, 0]
    assert weak.trace.objectives[-1] < 1e-3


@cautious
def test_a_task_that_no_prompt_helps_stays_with_the_template(caution):
    """All images are one point and all prompts are another: nothing tells classes apart."""
    point, other = np.array([1.0, 0.0]), np.array([0.6, 0.8])
    pool = GridPool(unit_grid(np.tile(other, (2, 1, 1))), (unit_grid(other[None]),) * 2)
    asked = GradientSettings(logit_scale=50.0, copies=4, spread=0.0, caution=caution)
    task = Task(unit_grid(np.tile(point, (4, 1))), np.arange(4) % 2, np.ones(4), pool, asked)
    weak = task.compose()
    assert weak.error == weak.template_error == 0.5
    assert np.allclose(weak.trace.objectives, np.log(2))
    assert weak.template_copies == (4, 4)


@cautious
@pytest.mark.parametrize("scale", [8.0, 500.0, 1e5, 1e6])
def test_a_task_that_is_all_wrong_gets_finite_banks(caution, scale):
    """Every prompt and template is that of the other class."""
    task = make_task(2, K=2, noise=0.1, logit_scale=scale, caution=caution)
    weak = task.compose(y=1 - task.y)
    assert weak.error == weak.template_error == 1
    assert np.isfinite(weak.trace.objectives).all()
    assert np.isfinite(weak.trace.gaps).all()
    assert weak.trace.objectives[-1] > 1


def test_a_pool_that_holds_the_template_only_has_nothing_to_move():
    task = make_task(1)
    only = GridPool(task.pool.templates, tuple(task.pool.templates.copy()))
    weak = task.compose(pool=only, spread=0.0)
    assert weak.template_copies == (16, 16, 16)
    assert weak.trace.sweeps == 0 or not any(weak.banks)
    assert weak.trace.gaps[-1] == pytest.approx(0, abs=1e-3)
    # With a price on unequal shares the same sentence twice is cheaper: half of the copies each.
    assert task.compose(pool=only, spread=5.0).template_copies == (8, 8, 8)


@pytest.mark.parametrize("P", [9, 90])  # all are candidates, and only some
@seeded
def test_skipped_prompts_are_as_if_they_were_not_there(seed, P):
    task = varied(seed, K=4, n=20, P=P)
    counts = (0, 3, P - 1, 1)
    pool = replace(task.pool, skipped=counts)
    fewer = tuple(P[count:] for P, count in zip(task.pool.prompts, counts, strict=True))
    weak, expected = (
        task.compose(pool=pool),
        task.compose(pool=replace(pool, prompts=fewer, skipped=())),
    )
    assert weak.template_copies == expected.template_copies
    assert weak.trace == expected.trace
    for bank, expected_bank, count in zip(weak.banks, expected.banks, counts, strict=True):
        assert bank == {j + count: copies for j, copies in expected_bank.items()}


def test_one_copy_is_one_prompt():
    weak = make_task(6, P=12, noise=1.0, copies=1, spread=0.0).compose()
    assert all(
        sum(bank.values()) + t == 1
        for bank, t in zip(weak.banks, weak.template_copies, strict=True)
    )
    assert any(weak.banks)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"sweeps": 0}, "sweeps must be at least 1"),
        ({"copies": 0}, "copies must be at least 1"),
        ({"copies": 2**15 + 1}, "copies must be at most 32768"),
        ({"logit_scale": 0.0}, "logit_scale must be positive"),
        ({"logit_scale": float("inf")}, "logit_scale must be positive"),
        ({"logit_scale": float("nan")}, "logit_scale must be positive"),
        ({"logit_scale": 1e7}, "at most 1,000,000"),
        ({"spread": -0.1}, "spread must be 0 or more"),
        ({"caution": float("nan")}, "caution must be 0 or more"),
        ({"tolerance": -1.0}, "tolerance must be 0 or more"),
    ],
)
def test_bad_settings(other, message):
    with pytest.raises(SettingError, match=message):
        GradientSettings(**{"logit_scale": 1.0, **other})
