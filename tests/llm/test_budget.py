import pytest

from promptboost.llm.client import BudgetError, Reply
from promptboost.llm.generation import Budget


def test_requests_stop_at_the_number():
    budget = Budget(max_requests=2)
    budget.count_request()
    assert budget.exhausted is None
    budget.count_request()
    with pytest.raises(BudgetError, match="2 requests"):
        budget.count_request()
    assert budget.requests == 2
    assert budget.exhausted == "the budget of 2 requests is used up"


def test_no_request_is_allowed_after_the_number_of_tokens():
    budget = Budget(max_tokens=20)
    budget.count_tokens(Reply("", 11, 8))
    assert budget.exhausted is None
    budget.count_tokens(Reply("", 0, 1))
    with pytest.raises(BudgetError, match="20 tokens"):
        budget.count_request()
    assert (budget.requests, budget.tokens) == (0, 20)


def test_a_closed_budget_allows_no_retries():
    budget = Budget()
    budget.close()
    with pytest.raises(BudgetError):
        budget.count_request()
