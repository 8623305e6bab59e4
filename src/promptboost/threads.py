"""Number of threads of this process: one number for BLAS, compiled code, networks and decoding.

No result depends on it, so it is not a setting of a fit.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from promptboost.errors import SettingError

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_GROUP = Path("/sys/fs/cgroup")
_chosen: int | None = None

# The number of BLAS threads belongs to the process: its users are counted.
_lock = Lock()
_users = 0
_limits: list[Any] = []


def set_threads(count: int) -> None:
    """Set the number of threads, also for libraries that are loaded later."""
    if count < 1:
        raise SettingError(f"threads must be at least 1, got {count}")
    global _chosen
    _chosen = count
    os.environ.update(dict.fromkeys(_VARIABLES, str(count)))
    if "numpy" in sys.modules:
        from threadpoolctl import threadpool_limits

        with _lock:
            _limits.clear()  # single_blas_thread must not restore an older number
            threadpool_limits(count)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread, for products too small to share; nests across Python threads."""
    from threadpoolctl import ThreadpoolController

    global _users
    with _lock:
        blas = ThreadpoolController().select(user_api="blas")
        # Another library may have been loaded since the first user came.
        if any(library.num_threads != 1 for library in blas.lib_controllers):
            _limits.append(blas.limit(limits=1))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            while not _users and _limits:
                _limits.pop().restore_original_limits()


def thread_count() -> int:
    """Return the number of threads: as set, else OMP_NUM_THREADS, else the available cores."""
    variable = os.environ.get("OMP_NUM_THREADS", "")
    return _chosen or (int(variable) if variable.isdecimal() else 0) or available_cores()


def keep_to_limit() -> None:
    """Set the number of threads where a container has fewer cores than libraries would use."""
    if _chosen is None and thread_count() < _cores():
        set_threads(thread_count())


@cache
def available_cores() -> int:
    """Return the number of cores this process may use, by its affinity and its container's limit."""
    # joblib.cpu_count() does the same, but loads numpy, whose threads are to be limited before.
    cores = _cores()
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError, ZeroDivisionError):  # no file, or no limit ("max")
            quota, period = map(int, " ".join((_GROUP / f).read_text() for f in files).split())
            cores = min(cores, max(1, round(quota / period))) if quota > 0 else cores
    return cores


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
