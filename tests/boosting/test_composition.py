import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.boosting import GridPool
from promptboost.boosting import composition as composition_module
from promptboost.boosting.composition import Composition, GradientTrace, scores_of
from tests.boosting.gradient.gradient_oracle import unit_grid


def banks_of(seed, most, *, K=5, n=30, P=8, dim=7):
    """Rows, a pool, and a composition of up to so many copies of each prompt."""
    rng = np.random.default_rng(seed)
    pool = GridPool(
        unit_grid(rng.standard_normal((K, 2, dim))),
        tuple(unit_grid(rng.standard_normal((P, dim))) for _ in range(K)),
    )
    banks = tuple(
        {int(j): int(rng.integers(1, most + 1)) for j in rng.permutation(P)[: rng.integers(P)]}
        for _ in range(K)
    )
    template_copies = tuple(int(c) for c in rng.integers(1, most + 1, size=K))
    weak = Composition(1, 0.0, 0.0, template_copies, banks, GradientTrace((0.0,), (0.0,), 1))
    return unit_grid(rng.standard_normal((n, dim))), pool, weak


def plain_scores(weak, X, pool):
    """Mean cosines by Python's whole numbers, divided once."""
    scores = np.empty((len(X), len(pool.prompts)))
    for i, x in enumerate(X.tolist()):
        for k, bank in enumerate(weak.banks):
            rows = [(weak.template_copies[k], pool.templates[k, weak.template])]
            rows += [(copies, pool.prompts[k][j]) for j, copies in bank.items()]
            total = sum(
                c * sum(a * b for a, b in zip(x, row.tolist(), strict=True)) for c, row in rows
            )
            scores[i, k] = total / (sum(c for c, _ in rows) * 32767**2)
    return scores


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 4, 4000]))
def test_scores_are_those_of_whole_numbers_to_the_last_bit(seed, most):
    X, pool, weak = banks_of(seed, most)
    assert (scores_of(weak, X, pool) == plain_scores(weak, X, pool)).all()


@pytest.mark.parametrize("rows", [1, 7, 30])
def test_blocks_of_rows_change_nothing(monkeypatch, rows):
    X, pool, weak = banks_of(3, 4)
    whole = scores_of(weak, X, pool)
    monkeypatch.setattr(composition_module, "_ROWS", rows)
    assert (scores_of(weak, X, pool) == whole).all()
    assert scores_of(weak, X[:0], pool).shape == (0, 5)
