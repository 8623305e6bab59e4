"""How far a fit has come, counted in rows, for whoever waits for it."""

import threading
from collections.abc import Callable

#: Called with how many rows were gone over since it was called last.
OnRows = Callable[[int], object]


def unwatched(rows: int) -> None:
    """Count for nobody."""


class Quota:
    """The rows that a piece of work goes over at most; all of them are counted when it has ended.

    Parameters
    ----------
    rows : int
        How many. What is counted beyond them is left out.
    on_rows : callable
        Told of them as they go by, by one thread at a time.

    Examples
    --------
    >>> told = []
    >>> quota = Quota(10, told.append)
    >>> quota.use(4), quota.end(), quota.use(3)
    (None, None, None)
    >>> told
    [4, 6]
    """

    def __init__(self, rows: int, on_rows: OnRows = unwatched) -> None:
        self.rows = self._left = rows
        self._on_rows, self._lock = on_rows, threading.Lock()

    def use(self, rows: int) -> None:
        """Count rows."""
        with self._lock:
            counted = min(rows, self._left)
            if counted > 0:
                self._left -= counted
                self._on_rows(counted)

    def end(self) -> None:
        """Count all rows that are left: the work has ended sooner."""
        self.use(self._left)
