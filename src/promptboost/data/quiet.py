"""Keeping Pillow's warnings about odd files out of the user's terminal, in threads too."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_pillow"]

_lock = threading.Lock()
_depth = 0
_guard: "warnings.catch_warnings[None] | None" = None


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Ignore what Pillow warns about; whatever matters is an error with the file's name instead.

    Python's warning filters belong to the process: threads that each set and restore them would
    restore each other's. So the first to enter sets the filter and the last to leave removes it.

    Examples
    --------
    >>> with quiet_pillow(), quiet_pillow():
    ...     pass
    """
    global _depth, _guard
    with _lock:
        if _depth == 0:
            _guard = warnings.catch_warnings()
            _guard.__enter__()
            warnings.filterwarnings("ignore", module=r"PIL\.")
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0 and _guard is not None:
                _guard.__exit__(None, None, None)
                _guard = None
