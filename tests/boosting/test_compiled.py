import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.boosting import compiled
from promptboost.boosting.compiled import in_threads, multiply, products
from promptboost.boosting.grid import to_grid
from promptboost.threads import set_threads


@pytest.fixture
def threads(monkeypatch, own_threads):
    """Make every piece of work worth a thread."""
    monkeypatch.setattr(compiled, "WORTH_A_THREAD", 0)
    return set_threads


@given(st.integers(1, 9), st.integers(1, 140), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_product_is_that_of_numpy(m, n, dim, seed):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((m, dim)).astype(np.float32)
    X = rng.standard_normal((n, dim)).astype(np.float32)
    expected = A.astype(np.float64) @ X.T.astype(np.float64)
    assert np.allclose(multiply(A, X), expected, atol=1e-5 * dim)


@pytest.mark.parametrize("tiles", [True, False])
@pytest.mark.parametrize("dim", [5, 16, 48, 512])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 64, 65, 71, 72, 130])
def test_products_of_the_grid_are_exact(monkeypatch, tiles, dim, n):
    if not tiles:
        monkeypatch.setattr(compiled, "_has_tiles", lambda: False)
    rng = np.random.default_rng(n)

    def rows(count):
        values = rng.standard_normal((count, dim))
        values[::3] = 0
        values[::3, rng.integers(dim)] = -1  # all of its length in one number
        return to_grid(values / np.linalg.norm(values, axis=1, keepdims=True))

    X = rows(n)
    for P in (1, 3, 4, 13):
        T = np.concatenate([rows(P), rows(P)], axis=1)  # two encoders, side by side
        T.setflags(write=False)
        table = np.full((P, n + 9), 7, dtype=np.int32)
        for first in (0, dim):
            products(X, T, table[:, 4 : n + 4], first)
            expected = T[:, first : first + dim].astype(np.int64) @ X.T.astype(np.int64)
            assert (table[:, 4 : n + 4] == expected).all()
        assert (table[:, :4] == 7).all()
        assert (table[:, n + 4 :] == 7).all()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_no_result_depends_on_the_number_of_threads(threads, count):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((5, 16)).astype(np.float32)
    X = rng.standard_normal((3000, 16)).astype(np.float32)
    threads(1)
    alone = multiply(A, X)
    threads(count)
    assert (multiply(A, X) == alone).all()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_all_work_is_done_once(threads, count, chunk):
    threads(count)
    seen, busy = np.zeros(10, dtype=int), set()

    def work(part):
        busy.add(threading.get_ident())
        seen[part] += 1

    in_threads(work, 10, 1, chunk)
    assert (seen == 1).all()
    assert len(busy) <= count


def test_work_within_work_does_not_wait_for_a_thread(threads):
    threads(2)
    seen = np.zeros((4, 6), dtype=int)

    def outer(parts):
        for part in range(parts.start, parts.stop):

            def inner(some, part=part):
                seen[part, some] += 1

            in_threads(inner, 6, 1, chunk=1)

    in_threads(outer, 4, 1, chunk=1)
    assert (seen == 1).all()


def test_an_error_in_a_thread_is_raised(threads):
    threads(2)

    def work(part):
        if part.start == 2:
            raise ValueError("part 2")

    with pytest.raises(ValueError, match="part 2"):
        in_threads(work, 4, 1, chunk=1)
    in_threads(lambda part: None, 4, 1, chunk=1)  # and the threads are there again


def test_a_thread_that_has_not_begun_is_not_waited_for(threads):
    threads(2)
    held, entered = threading.Event(), threading.Event()

    def hold():
        entered.set()
        held.wait(60)

    in_threads(lambda part: None, 2, 1, chunk=1)  # the helper is there
    blocked = compiled._executor(1).submit(hold)
    entered.wait(60)
    seen = []
    in_threads(lambda part: seen.append(part.start), 4, 1, chunk=1)
    assert not blocked.done()
    held.set()
    assert seen == [0, 1, 2, 3]
