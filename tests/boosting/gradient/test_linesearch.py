import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.boosting.gradient.linesearch import best_copies, loss_change, move_copies


class Line:
    """Random logits of all classes, and one class that may change along ``delta``."""

    def __init__(self, seed, *, scale=5.0, K=4, limit=16, penalty=0.0):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 25))
        self.k, self.copies, self.limit = int(rng.integers(K)), limit + int(rng.integers(3)), limit
        self.logits = (scale * rng.standard_normal((K, n))).astype(np.float32)
        self.delta = (scale * rng.standard_normal(n)).astype(np.float32)
        labels = rng.integers(K, size=n)
        self.own = labels == self.k
        weights = rng.random(n) * (rng.random(n) < 0.7)
        self.weights = weights / (weights.sum() or 1.0)
        self.penalty = (penalty * float(rng.uniform(-1, 1)), penalty)

    def others(self):
        rest = np.delete(self.logits, self.k, axis=0).astype(np.float64)
        return np.logaddexp.reduce(rest, axis=0)

    def totals(self):
        return np.logaddexp.reduce(self.logits.astype(np.float64), axis=0)

    def values(self):
        """The objective for every number of copies, up to a constant."""
        values = []
        for d in range(self.limit + 1):
            share = d / self.copies
            z = self.logits[self.k].astype(np.float64) + share * self.delta.astype(np.float64)
            # Rows of other classes lose log(Σ exp), those of this class lose that minus z.
            loss = np.logaddexp(z, self.others()) - np.where(self.own, z, 0.0)
            cost = share * self.penalty[0] + share**2 * self.penalty[1]
            values.append(self.weights @ loss + cost)
        return np.array(values)

    def best(self):
        return best_copies(
            self.logits[self.k],
            self.delta,
            self.others(),
            self.weights,
            self.own,
            self.penalty,
            self.copies,
            self.limit,
        )

    def move(self):
        total = self.totals()
        d = move_copies(
            self.logits,
            self.k,
            self.delta,
            total,
            np.full(len(total), -np.inf),
            self.weights,
            self.own,
            self.penalty,
            self.copies,
            self.limit,
        )
        return d, total


def lines(**others):
    return st.builds(
        Line,
        st.integers(0, 2**32 - 1),
        scale=st.sampled_from([0.01, 1.0, 20.0, 1000.0]),
        K=st.integers(2, 6),
        limit=st.sampled_from([1, 2, 3, 16, 100]),
        penalty=st.sampled_from([0.0, 0.1, 5.0]),
        **others,
    )


def rounding(values):
    return 1e-12 * (1 + np.abs(values).max())


@given(lines())
def test_no_other_number_of_copies_is_better(line):
    values, found = line.values(), line.best()
    assert 0 <= found <= line.limit
    assert values[found] <= values.min() + rounding(values)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limit", [1000, 2**15])
def test_long_banks(seed, limit):
    line = Line(seed, limit=limit, scale=[1.0, 30.0][seed % 2], penalty=[0.0, 0.3][seed // 2])
    values, found = line.values(), line.best()
    assert values[found] <= values.min() + rounding(values)


def test_what_the_search_finds_varies():
    found = [Line(seed, penalty=0.1).best() for seed in range(40)]
    assert {0, 16} < set(found), "none, all, and something between"


@pytest.mark.parametrize("sign", [-1, 1])
def test_extreme_logits_decide_by_the_rows_that_can_change(sign):
    """Rows that are lost or won by a thousand say nothing but their slope; one row is open."""
    z = np.array([1000.0, -1000.0, 0.0], dtype=np.float32)
    other = np.array([-1000.0, 1000.0, 0.0])
    own = np.array([True, False, True])
    delta = np.array([0.0, 0.0, sign], dtype=np.float32)
    weights = np.full(3, 1 / 3)
    assert best_copies(z, delta, other, weights, own, (0.0, 0.0), 8, 8) == (8 if sign > 0 else 0)


def test_rows_of_no_weight_and_rows_that_do_not_change_move_nothing():
    z, other, own = np.zeros(2, np.float32), np.zeros(2), np.array([True, True])
    delta = np.array([1.0, 0.0], dtype=np.float32)
    assert best_copies(z, delta, other, np.array([0.0, 1.0]), own, (0.0, 0.0), 4, 4) == 0
    assert best_copies(z, delta, other, np.array([1.0, 0.0]), own, (0.0, 0.0), 4, 4) == 4


def test_the_penalty_alone_is_minimized():
    """γ² − γ/2 is lowest at a quarter, whatever the images of no weight say."""
    none = np.zeros(1)
    flat = (none.astype(np.float32), none.astype(np.float32), none, none, np.array([True]))
    assert best_copies(*flat, (-0.5, 1.0), 32, 32) == 8
    assert best_copies(*flat, (-0.5, 1.0), 32, 5) == 5
    assert best_copies(*flat, (0.5, 1.0), 32, 32) == 0


@given(lines(), st.integers(0, 16), st.integers(0, 16))
def test_the_change_of_the_loss_is_a_difference_of_losses(line, a, b):
    line.limit, line.copies, line.penalty = 16, 16, (0.0, 0.0)
    values, z = line.values(), line.logits[line.k]
    change = loss_change(z, line.delta, line.others(), line.weights, line.own, a / 16, b / 16)
    assert np.isclose(change, values[b] - values[a], rtol=1e-9, atol=10 * rounding(values))


@given(lines())
def test_moving_brings_logits_and_totals_up_to_date(line):
    before, values = line.logits.copy(), line.values()
    d, total = line.move()
    expected = before.astype(np.float64)
    expected[line.k] += d / line.copies * line.delta.astype(np.float64)
    size = 1 + np.abs(expected).max()
    assert np.allclose(line.logits, expected, atol=1e-6 * size)
    assert (np.delete(line.logits, line.k, axis=0) == np.delete(before, line.k, axis=0)).all()
    assert np.allclose(total, line.totals(), atol=1e-9 * size), "a fresh sum, of the new logits"
    # Where the totals leave few digits for the rest, the search may be off by as much.
    assert values[d] <= values.min() + 1e-9 * (1 + np.abs(values).max())
    assert values[d] <= values[0] + rounding(values), "the objective never rises"


@given(lines(), st.integers(1, 5))
def test_classes_that_are_not_here_count_as_if_they_were(line, here):
    """The logits of some classes, and what the others have together: the same copies, the same totals."""
    whole = Line.__new__(Line)
    whole.__dict__ = {**line.__dict__, "logits": line.logits.copy()}
    expected, totals = whole.move()
    away = [j for j in range(len(line.logits)) if j != line.k][here - 1 :]
    kept = [j for j in range(len(line.logits)) if j not in away]
    outside = np.logaddexp.reduce(line.logits[away].astype(np.float64), axis=0, initial=-np.inf)
    logits, total = line.logits[kept], line.totals()
    state = total, outside, line.weights, line.own, line.penalty, line.copies, line.limit
    d = move_copies(logits, kept.index(line.k), line.delta, *state)
    values = line.values()
    assert values[d] <= values[expected] + 1e-9 * (1 + np.abs(values).max())
    if d == expected:
        assert np.allclose(total, totals, rtol=1e-12, atol=1e-9 * (1 + np.abs(totals).max()))


def test_a_class_that_has_all_of_a_row_can_give_some_of_it_up():
    """The row is won by a thousand and stays won by nine hundred; the other row wants the move."""
    logits = np.array([[1000.0, 0.0], [0.0, 50.0]], dtype=np.float32)
    delta = np.array([-100.0, 100.0], dtype=np.float32)
    total = np.array([1000.0, 50.0])
    own, weights = np.array([True, True]), np.array([0.5, 0.5])
    none = np.full(2, -np.inf)
    assert move_copies(logits, 0, delta, total, none, weights, own, (0.0, 0.0), 4, 4) == 4
    assert total.tolist() == [900.0, 100.0]
    assert logits[0].tolist() == [900.0, 100.0]


def test_nothing_changes_where_no_copy_helps():
    line = next(line for line in map(Line, range(100)) if line.best() == 0)
    before = line.logits.copy()
    d, total = line.move()
    assert d == 0
    assert (line.logits == before).all()
    assert (total == line.totals()).all()
