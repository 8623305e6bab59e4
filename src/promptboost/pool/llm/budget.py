"""How much may be asked: requests and tokens, never more than was agreed."""

import threading
from dataclasses import dataclass

from promptboost.errors import SettingError

__all__ = ["Budget", "Purse"]


@dataclass(frozen=True)
class Budget:
    """The most that may be spent; None is no limit.

    Attributes
    ----------
    requests : int or None
        Requests sent, those that fail and are sent again included.
    tokens : int or None
        Tokens in and out, as the server counts them.

    Examples
    --------
    >>> Budget(requests=-1)
    Traceback (most recent call last):
    promptboost.errors.SettingError: the budget of requests is -1, but must be 0 or more
    """

    requests: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "tokens"):
            most = getattr(self, name)
            if most is not None and most < 0:
                raise SettingError(f"the budget of {name} is {most}, but must be 0 or more")


class Purse:
    """What is left of a budget, shared by threads.

    Before a request, the most it can cost is set aside; after it, what it did cost is taken. So the
    tokens never go over the budget, as long as the server keeps to the limit of a reply.

    Examples
    --------
    >>> purse = Purse(Budget(requests=5, tokens=100))
    >>> purse.take(80)
    True
    >>> purse.settle(80, 30)
    >>> purse.take(80), purse.empty
    (False, 'the budget of 100 tokens is used up: 30 used, and a reply may need 80')
    """

    def __init__(self, budget: Budget) -> None:
        self.requests = 0
        self.tokens = 0
        self.empty: str | None = None
        self._budget = budget
        self._aside = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self, cost: int) -> bool:
        """Set aside what a request may cost; False if the budget does not allow it.

        Waits while requests under way may leave enough over.
        """
        most = self._budget
        with self._changed:
            while self.empty is None and not self._closed:
                if most.requests is not None and self.requests >= most.requests:
                    self._end(f"the budget of {most.requests:,} requests is used up")
                elif most.tokens is None or self.tokens + self._aside + cost <= most.tokens:
                    self.requests += 1
                    self._aside += cost
                    return True
                elif self._aside == 0:
                    self._end(
                        f"the budget of {most.tokens:,} tokens is used up: {self.tokens:,} used, "
                        f"and a reply may need {cost:,}"
                    )
                else:
                    self._changed.wait()
            return False

    def settle(self, cost: int, used: int) -> None:
        """Take what a request did cost instead of what was set aside."""
        with self._changed:
            self._aside -= cost
            self.tokens += used
            self._changed.notify_all()

    def close(self) -> None:
        """Give nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _end(self, reason: str) -> None:
        self.empty = reason
        self._changed.notify_all()
