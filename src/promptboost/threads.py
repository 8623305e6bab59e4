"""How many threads this process computes in: one number for products, networks and decoders.

No result depends on it, so it is no setting of a fit.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from promptboost.errors import SettingError

# What the libraries read that are loaded later.
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_GROUPS = Path("/sys/fs/cgroup")


class _Chosen:
    count: int | None = None


class _Single:
    """Who computes with one thread of BLAS at present: the number is one for the whole process."""

    lock = Lock()
    users = 0
    before: ClassVar[list[Any]] = []  # what the last of them puts back


def set_threads(count: int) -> None:
    """Compute in so many threads from now on: BLAS, compiled products, networks, decoding.

    Without it, OMP_NUM_THREADS decides where it is set, else the cores that the process may use. A
    network that is loaded already keeps its number. No result depends on it.

    Examples
    --------
    >>> import promptboost
    >>> promptboost.set_threads(1)
    """
    if count < 1:
        raise SettingError(f"threads must be at least 1, got {count}")
    _Chosen.count = count
    os.environ.update(dict.fromkeys(_VARIABLES, str(count)))
    if "numpy" in sys.modules:
        from threadpoolctl import threadpool_limits

        with _Single.lock:
            _Single.before.clear()  # it does not come back
            threadpool_limits(count)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Compute with one thread of BLAS: for products that are over before a second one has begun.

    Several threads of Python may do so at once. The first one in and the last one out change the number.
    """
    from threadpoolctl import ThreadpoolController

    with _Single.lock:
        blas = ThreadpoolController().select(user_api="blas")
        # Another library may have been loaded since the first one came.
        if any(library.num_threads != 1 for library in blas.lib_controllers):
            _Single.before.append(blas.limit(limits=1))
        _Single.users += 1
    try:
        yield
    finally:
        with _Single.lock:
            _Single.users -= 1
            while not _Single.users and _Single.before:
                _Single.before.pop().restore_original_limits()


def thread_count() -> int:
    """Return how many threads to compute in."""
    if _Chosen.count is not None:
        return _Chosen.count
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else available_cores()


def keep_to_limit() -> None:
    """Set the number of threads where libraries would take more cores than the process may use.

    They know which cores there are, not that a container has a share of them only.
    """
    if _Chosen.count is None and thread_count() < _cores():
        set_threads(thread_count())


@cache
def available_cores() -> int:
    """Return how many cores the process may use, by its affinity and by the limit of its container."""
    limit = _group_limit(_own_group(), _GROUPS)
    return max(1, min(_cores(), _cores() if limit is None else round(limit)))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _own_group() -> str:
    """Return the control group of this process, of version 2; the root where there is none."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return "/"
    return next((line[3:] for line in lines if line.startswith("0::")), "/")


def _group_limit(group: str, root: Path) -> float | None:
    """Return the least number of cores that a control group, or one above it, allows; None for all."""
    place = root / group.strip("/")
    limits = [_limit(place / "cpu.max")]
    while place != root:
        place = place.parent
        limits.append(_limit(place / "cpu.max"))
    first = root / "cpu"  # version 1
    limits.append(_limit(first / "cpu.cfs_quota_us", first / "cpu.cfs_period_us"))
    return min((limit for limit in limits if limit is not None), default=None)


def _limit(*files: Path) -> float | None:
    try:
        quota, period = " ".join(file.read_text(encoding="ascii") for file in files).split()
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # none, or the word max
        return None
