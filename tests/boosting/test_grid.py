import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from promptboost.boosting import compiled as compiled_file
from promptboost.boosting.compiled import products
from promptboost.boosting.grid import COSINE_UNIT, WEIGHT_UNIT, to_grid, weights_to_grid
from promptboost.errors import EmbeddingError, WeightError


def unit(rng, count, dim):
    rows = rng.standard_normal((count, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@given(st.integers(0, 1000), st.sampled_from([2, 3, 17, 64, 512, 1024, 1536]))
def test_products_are_exact_in_any_order(seed, dim):
    rng = np.random.default_rng(seed)
    X, T = to_grid(unit(rng, 5, dim)), to_grid(unit(rng, 7, dim))
    T[0] = X[0]
    out = np.empty((7, 5), dtype=np.int32)
    products(X, T, out)
    shuffled = rng.permutation(dim)
    assert (X.astype(np.int64) @ T.astype(np.int64).T == out.T).all()
    assert (X[:, shuffled].astype(np.float64) @ T[:, shuffled].T.astype(np.float64) == out.T).all()


@pytest.mark.parametrize("dim", [64, 512, 1024])
def test_rounding_moves_cosines_no_more_than_half_precision(dim):
    rng = np.random.default_rng(dim)
    X, T = unit(rng, 200, dim), unit(rng, 200, dim)
    ours = to_grid(X).astype(float) @ to_grid(T).astype(float).T / COSINE_UNIT
    half = X.astype(np.float16).astype(float) @ T.astype(np.float16).astype(float).T
    exact = X @ T.T
    assert np.abs(ours - exact).std() < 2e-5
    assert np.abs(ours - exact).std() < 2 * np.abs(half - exact).std() + 1e-5


def test_rows_on_the_grid_pass_through():
    rows = to_grid([[0.6, 0.8]])
    assert to_grid(rows) is rows or (to_grid(rows) == rows).all()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1, 0]], "floating-point"),
        ([1.0, 0.0], "array of rows"),
        (np.zeros((2, 0)), "array of rows"),
        ([[1.0, 0.0], [np.nan, 0.0]], "row 1 has a value that is not finite"),
        ([[np.inf, 0.0]], "not finite"),
        ([[1.0, 0.0], [3.0, 4.0]], "row 1 has length 5, not 1"),
        ([[0.0, 0.0]], "length 0, not 1; a row of zeros has no direction: remove it"),
    ],
)
def test_bad_rows(rows, message):
    with pytest.raises(EmbeddingError, match=message):
        to_grid(np.asarray(rows), name="images")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50).filter(lambda w: max(w) > 0))
def test_weights_keep_their_ratios(weights):
    grid = weights_to_grid(weights, len(weights))
    assert np.allclose(grid / WEIGHT_UNIT, np.array(weights) / np.sum(weights), atol=2**-36)
    assert (grid >= 0).all()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "expected 2"),
        ([1.0, -1.0], "weight 1 is negative"),
        ([0.0, 0.0], "all sample weights are zero"),
        ([np.nan, 1.0], "finite"),
        ([np.inf, 1.0], "finite"),
    ],
)
def test_bad_weights(weights, message):
    with pytest.raises(WeightError, match=message):
        weights_to_grid(weights, 2)


def test_code_is_compiled_where_it_cannot_be_kept(monkeypatch):
    # An installation that only its owner may write to, and a user without a home.
    def without_a_place(*, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(compiled_file, "njit", without_a_place)
    assert compiled_file.compiled(lambda number: number + 1)(2) == 3
    assert compiled_file.compiled_any_order(lambda number: number + 1.0)(2.0) == 3.0
