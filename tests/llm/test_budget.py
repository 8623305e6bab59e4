import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.llm.client import BudgetError
from promptboost.llm.requests import Budget


@given(st.integers(0, 200), st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1)), max_size=20))
def test_tokens_never_go_over(most, costs):
    budget = Budget(max_tokens=most)
    for cost, share in costs:
        if budget.reserve(cost):
            budget.settle(cost, int(cost * share))
    assert budget.tokens <= most


def test_requests_stop_at_the_number():
    budget = Budget(max_requests=2)
    budget.count_request()
    assert budget.reserve(1)
    budget.count_request()
    with pytest.raises(BudgetError, match="2 requests"):
        budget.count_request()
    assert not budget.reserve(1)
    assert budget.requests == 2
    assert budget.exhausted == "the budget of 2 requests is used up"


def test_a_thread_waits_for_what_another_may_leave_over():
    budget = Budget(max_tokens=100)
    assert budget.reserve(80)
    got = []
    waiting = threading.Thread(target=lambda: got.append(budget.reserve(80)))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    budget.settle(80, 10)
    waiting.join(5)
    assert got == [True]


def test_closing_wakes_those_who_wait():
    budget = Budget(max_tokens=100)
    assert budget.reserve(80)
    got = []
    waiting = threading.Thread(target=lambda: got.append(budget.reserve(80)))
    waiting.start()
    budget.close()
    waiting.join(5)
    assert got == [False]
    assert budget.exhausted is None
