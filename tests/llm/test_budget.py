import pytest

from promptboost.errors import SettingError
from promptboost.llm.client import BudgetError
from promptboost.llm.requests import Budget


def test_requests_stop_at_the_number():
    budget = Budget(max_requests=2)
    budget.count_request()
    assert budget.allows()
    budget.count_request()
    with pytest.raises(BudgetError, match="2 requests"):
        budget.count_request()
    assert not budget.allows()
    assert budget.requests == 2
    assert budget.exhausted == "the budget of 2 requests is used up"


def test_reserved_tokens_may_become_free():
    budget = Budget(max_tokens=100)
    assert budget.allows(100)
    assert not budget.allows(80, reserved=80)
    assert budget.exhausted is None
    budget.tokens = 30
    assert not budget.allows(80)
    assert budget.exhausted.startswith("the budget of 100 tokens is used up: 30 used")


def test_a_closed_budget_allows_no_retries():
    budget = Budget()
    budget.close()
    with pytest.raises(BudgetError):
        budget.count_request()


@pytest.mark.parametrize("limits", [{"max_requests": -1}, {"max_tokens": -1}])
def test_invalid_limits(limits):
    with pytest.raises(SettingError, match="must be 0 or more"):
        Budget(**limits)
