"""A pool larger than the lists of candidates: the same prompts as if all had been compared."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from promptboost.boosting.gradient import banks as banks_module
from promptboost.boosting.gradient.banks import Banks, rank_class
from promptboost.boosting.grid import COSINE_UNIT, ROW_UNIT, GridPool, to_grid
from tests.boosting.gradient.gradient_oracle import moves_of


def plain_slopes(prompts, gradient):
    """What each prompt would change, as whole numbers: nothing but the definition."""
    length = np.sqrt(np.sum(gradient.astype(np.float64) ** 2))
    whole = np.rint(gradient * (ROW_UNIT / length)).astype(np.int64)
    return (prompts.astype(np.int64) @ whole) * (length / COSINE_UNIT)


@st.composite
def pools(draw):
    """Two classes of many prompts, of which most are copies of a few: ties everywhere."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    distinct = draw(st.integers(2, 6))

    def unit(*shape):
        rows = rng.standard_normal((*shape, 4))
        return rows / np.linalg.norm(rows, axis=-1, keepdims=True)

    prompts = [unit(distinct)[rng.integers(0, distinct, 150)] for _ in range(2)]
    return GridPool.from_rows(unit(2, 1), prompts), rng


@settings(max_examples=40)
@given(pools())
def test_of_equal_prompts_the_first_is_taken_as_if_all_had_been_compared(made):
    pool, rng = made
    banks = Banks(pool, 0, 12, 0.3, few=False)
    for _ in range(5):
        gradient = rng.standard_normal((2, 4)).astype(np.float32)
        banks.read(gradient)
        for k, rows in enumerate(pool.prompts):
            slopes = plain_slopes(rows, gradient[k])
            for prompt, copies in banks.members[k].items():
                if prompt >= 0:
                    exact = (rows[prompt].astype(np.float32) / ROW_UNIT) @ gradient[k]
                    slopes[prompt] = exact + 0.3 * copies / 12
            target = int(banks.held.targets[k])
            assert slopes[target] <= slopes.min() + 1e-5
            equal = np.flatnonzero(slopes == slopes[target])
            assert target == equal[0] or target in banks.members[k]
        for k, move in enumerate(moves_of(banks)):
            if move is not None:
                banks_module.move(banks.held, k, 1, banks.copies)


def test_ranked_prompts_are_the_least_and_the_first_of_equal_ones():
    rows = to_grid(np.eye(3)[[0, 1, 0, 2, 1, 0]])
    numbers, slopes = rank_class(rows, np.float32([0.0, -1.0, 1.0]), 1.0, 3)
    assert numbers.tolist() == [0, 1, 4]
    assert np.allclose(slopes, [0, -1, -1], atol=1e-3)


def test_a_bank_longer_than_the_list_of_candidates_hides_nothing(monkeypatch):
    monkeypatch.setattr(banks_module, "CANDIDATES", 2)
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((2, 40, 5))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    pool = GridPool.from_rows(rows[:, :1], list(rows))
    banks = Banks(pool, 0, 32, 4.0, few=False)
    for _ in range(30):
        gradient = rng.standard_normal((2, 5)).astype(np.float32)
        banks.read(gradient)
        for k in range(2):
            slopes = plain_slopes(pool.prompts[k], gradient[k])
            for prompt, copies in banks.members[k].items():
                if prompt >= 0:
                    slopes[prompt] += 4.0 * copies / 32
            assert slopes[banks.held.targets[k]] <= slopes.min() + 2e-4
        for k, move in enumerate(moves_of(banks)):
            if move is not None:
                banks_module.move(banks.held, k, 1, banks.copies)
    assert max(map(len, banks.members)) > 3
