import threading

from hypothesis import given
from hypothesis import strategies as st

from promptboost.llm.requests import Budget, Purse


@given(st.integers(0, 200), st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1)), max_size=20))
def test_tokens_never_go_over(most, costs):
    purse = Purse(Budget(tokens=most))
    for cost, share in costs:
        if purse.take(cost):
            purse.settle(cost, int(cost * share))
    assert purse.tokens <= most


def test_requests_stop_at_the_number():
    purse = Purse(Budget(requests=2))
    assert [purse.take(1) for _ in range(4)] == [True, True, False, False]
    assert purse.requests == 2
    assert purse.empty == "the budget of 2 requests is used up"


def test_a_thread_waits_for_what_another_may_leave_over():
    purse = Purse(Budget(tokens=100))
    assert purse.take(80)
    got = []
    waiting = threading.Thread(target=lambda: got.append(purse.take(80)))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    purse.settle(80, 10)
    waiting.join(5)
    assert got == [True]


def test_closing_wakes_those_who_wait():
    purse = Purse(Budget(tokens=100))
    assert purse.take(80)
    got = []
    waiting = threading.Thread(target=lambda: got.append(purse.take(80)))
    waiting.start()
    purse.close()
    waiting.join(5)
    assert got == [False]
    assert purse.empty is None
