import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptboost.boosting import compiled
from promptboost.boosting.gradient import banks as banks_module
from promptboost.boosting.gradient import compose as compose_module
from promptboost.boosting.gradient.banks import Banks, all_are_candidates, least
from promptboost.boosting.grid import ROW_UNIT, GridPool
from tests.boosting.gradient.gradient_oracle import Move, Plain, make_task, moves_of


def started(seed, *, P=6, copies=10, rate=0.2):
    """Banks after some moves, and the slopes that the next gradient gives every prompt."""
    task = make_task(seed, P=P)
    rng = np.random.default_rng(seed)
    banks = Banks(task.pool, 0, copies, rate, all_are_candidates(task.pool))
    for _ in range(4):
        gradient = rng.standard_normal((3, 5)).astype(np.float32)
        banks.read(gradient)
        for k, move in enumerate(moves_of(banks)):
            if move is not None:
                number = int(rng.integers(1, banks.members[k][move.source] + 1))
                move_copies(banks, k, number)
    return task, banks, rng.standard_normal((3, 5)).astype(np.float32)


def move_copies(banks, k, number):
    banks_module.move(banks.held, k, number, banks.copies)


def penalty_of(banks):
    return banks.rate / 2 * banks.squares() / banks.copies**2


def rows_of(task, k):
    return np.concatenate([task.pool.templates[k], task.pool.prompts[k]]) / ROW_UNIT


def shares_of(banks, k, P=6):
    shares = np.zeros(P + 1)
    for j, copies in banks.members[k].items():
        shares[j + 1] = copies / banks.copies
    return shares


@pytest.mark.parametrize("seed", range(10))
def test_moves_go_from_the_highest_slope_held_to_the_lowest_of_all(seed):
    task, banks, gradient = started(seed)
    gap = banks.read(gradient).sum()
    expected = 0.0
    for k, move in enumerate(moves_of(banks)):
        shares = shares_of(banks, k)
        slopes = rows_of(task, k) @ gradient[k] + 0.2 * shares
        source = int(np.where(shares > 0, slopes, -np.inf).argmax()) - 1
        target = int(slopes[1:].argmin())
        assert move == (None if source == target else Move(source, target))
        direction = rows_of(task, k)[target + 1] - rows_of(task, k)[source + 1]
        assert np.allclose(banks.held.directions[k], direction, atol=1e-6)
        expected += max(shares @ slopes - slopes[1:].min(), 0.0)
    assert np.isclose(gap, expected, atol=1e-3)


@pytest.mark.parametrize("seed", range(10))
def test_copies_are_moved_and_none_is_lost(seed):
    task, banks, gradient = started(seed)
    banks.read(gradient)
    for k, move in enumerate(moves_of(banks)):
        if move is None:
            continue
        before, penalty = shares_of(banks, k), penalty_of(banks)
        d = 1 + seed % banks.members[k][move.source]
        by_share, by_square = banks_module.penalty_of(banks.held, k, banks.rate, banks.copies)
        move_copies(banks, k, d)
        after = shares_of(banks, k)
        assert sum(banks.members[k].values()) == 10
        assert min(banks.members[k].values()) > 0
        assert np.isclose(after[move.target + 1] - before[move.target + 1], d / 10)
        assert np.isclose(before[move.source + 1] - after[move.source + 1], d / 10)
        assert np.allclose(banks.held.means[k], after @ rows_of(task, k), atol=1e-6)
        change = d / 10 * by_share + (d / 10) ** 2 * by_square
        assert np.isclose(penalty_of(banks) - penalty, change)
    squares = sum((shares_of(banks, k) ** 2).sum() for k in range(3))
    assert np.isclose(penalty_of(banks), 0.1 * squares)


def test_a_bank_begins_with_the_template_alone():
    task = make_task(1)
    assert Banks(task.pool, 0, 7, 0.0, few=True).members == [{-1: 7}] * 3
    weak = task.compose(sweeps=1)
    for copies, bank in zip(weak.template_copies, weak.banks, strict=True):
        assert -1 not in bank
        assert copies + sum(bank.values()) == task.settings.copies


# --- large pools: only some prompts are looked at between two reads of all ------------------------


large = st.builds(
    make_task,
    st.integers(0, 2**32 - 1),
    K=st.integers(2, 4),
    P=st.integers(6, 30),
    noise=st.sampled_from([0.7, 2.0]),
    logit_scale=st.sampled_from([3.0, 10.0, 40.0]),
    copies=st.sampled_from([4, 32, 300]),
    spread=st.sampled_from([0.0, 0.5, 5.0]),
)


def check_certificate(task, weak):
    """The last gap is that of the whole pool, and there is no better sweep than those made."""
    plain = Plain(task, weak.template)
    shares = plain.shares(weak)
    slack = 1e-4 * task.settings.logit_scale * len(shares)
    assert np.isclose(weak.trace.gaps[-1], plain.gap(shares), atol=slack)
    assert np.isfinite(weak.trace.gaps[0])
    assert weak.trace.pool_reads == np.isfinite(weak.trace.gaps).sum()
    objectives = np.array(weak.trace.objectives)
    assert (np.diff(objectives) <= 2e-6 * (1 + task.settings.logit_scale)).all()
    assert all(
        template + sum(bank.values()) == task.settings.copies
        for template, bank in zip(weak.template_copies, weak.banks, strict=True)
    )
    if weak.trace.sweeps < task.settings.sweeps:
        # A read of the pool rounds the gradient to the grid: what it can't tell apart may be left.
        assert plain.objective(plain.sweep(shares)) > plain.objective(shares) - slack / 10
    return plain, shares


@pytest.mark.parametrize("candidates", [1, 2, 5])
@settings(max_examples=40)
@given(task=large)
def test_few_candidates_end_within_the_gap_of_all(candidates, task):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(banks_module, "CANDIDATES", candidates)
        some = task.compose()
        patch.setattr(compose_module, "REREAD", np.inf)  # the pool is read for every sweep
        every = task.compose()
    assert np.isfinite(every.trace.gaps).all()
    plain, shares = check_certificate(task, some)
    most = plain.gap(shares, template=True)
    difference = some.trace.objectives[-1] - every.trace.objectives[-1]
    assert difference <= most + 1e-5 * (1 + task.settings.logit_scale)


def test_candidates_save_reads():
    task = make_task(3, K=4, n=60, P=500, D=12, noise=1.0, logit_scale=20.0, copies=32)
    weak = task.compose()
    check_certificate(task, weak)
    assert np.isinf(weak.trace.gaps).any()
    assert weak.trace.pool_reads < (weak.trace.sweeps + 1) / 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(banks_module, "CANDIDATES", 10**6)
        every = task.compose()
    assert every.trace.pool_reads == every.trace.sweeps + 1
    assert abs(weak.trace.objectives[-1] - every.trace.objectives[-1]) < 0.05
    assert weak.trace.objectives[-1] - every.trace.objectives[-1] <= weak.trace.gaps[-1]


def test_a_pool_of_just_as_many_prompts_as_candidates_is_read_every_time(monkeypatch):
    task = make_task(3, P=7, noise=1.0)
    whole = task.compose()
    monkeypatch.setattr(banks_module, "CANDIDATES", 7)
    assert task.compose() == whole
    assert np.isfinite(whole.trace.gaps).all()


def test_classes_with_few_and_with_many_prompts(monkeypatch):
    monkeypatch.setattr(banks_module, "CANDIDATES", 3)
    task = make_task(5, P=20, noise=1.0, logit_scale=20.0)
    ragged = tuple(P[:size] for P, size in zip(task.pool.prompts, (1, 20, 3), strict=True))
    task.pool = GridPool(task.pool.templates, ragged)
    weak = task.compose()
    check_certificate(task, weak)
    for bank, size in zip(weak.banks, (1, 20, 3), strict=True):
        assert max(bank, default=0) < size


def test_the_last_read_is_of_the_whole_pool_when_sweeps_run_out():
    task = make_task(3, K=4, n=60, P=200, D=12, noise=1.0, logit_scale=20.0, sweeps=3)
    weak = task.compose()
    assert weak.trace.sweeps == 3
    assert np.isinf(weak.trace.gaps[1:3]).any()
    check_certificate(task, weak)


@pytest.mark.parametrize("P", [6, 100])
def test_threads_change_nothing(monkeypatch, P):
    task = make_task(3, K=5, P=P, noise=1.0, logit_scale=20.0)
    alone = task.compose()
    monkeypatch.setattr(compiled, "WORTH_A_THREAD", 0)
    assert task.compose() == alone


# --- repeated prompts -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_of_equal_prompts_the_first_is_taken(seed):
    task = make_task(seed, noise=1.0, spread=0.0, sweeps=1)
    twice = GridPool(task.pool.templates, tuple(np.tile(P, (2, 1)) for P in task.pool.prompts))
    assert task.compose(pool=twice) == task.compose()


@pytest.mark.parametrize("seed", range(6))
def test_without_spread_equal_prompts_are_worth_no_more_than_one(seed):
    task = make_task(seed, noise=1.0, spread=0.0, copies=500)
    twice = GridPool(task.pool.templates, tuple(np.tile(P, (2, 1)) for P in task.pool.prompts))
    once, more = task.compose(), task.compose(pool=twice)
    plain = Plain(task)
    most = plain.gap(plain.shares(once), template=True)
    assert once.trace.objectives[-1] - more.trace.objectives[-1] <= most + 1e-5
    assert np.allclose(once.trace.objectives[:2], more.trace.objectives[:2])
    assert np.isclose(once.trace.gaps[0], more.trace.gaps[0])


def test_with_spread_copies_are_shared_among_equal_prompts():
    """A sentence that stands in the pool twice has two shares, each of them cheaper."""
    task = make_task(2, P=1, noise=0.3, spread=20.0, logit_scale=2.0, copies=30)
    twice = GridPool(task.pool.templates, tuple(np.tile(P, (2, 1)) for P in task.pool.prompts))
    for bank in task.compose(pool=twice).banks:
        assert set(bank) == {0, 1}
        assert abs(bank[0] - bank[1]) <= 1


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=60), st.data())
def test_the_least_values_are_kept(values, data):
    values = np.array(values, dtype=float)
    most = data.draw(st.integers(1, len(values)))
    found = least(values, most)
    assert (np.diff(found) > 0).all()
    assert sorted(values[found]) == sorted(values)[:most]
