"""Units on Ray: one actor for each worker, a bounded number of units ahead, lost ones done again."""

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from promptboost.errors import MissingExtraError, RunError, SettingError
from promptboost.scale.engine import TRIES
from promptboost.scale.unit import (
    Job,
    Receipt,
    Worker,
    WorkUnit,
    make_worker,
    part_of_promptboost,
    try_unit,
)

# One in hand and one waiting, so that no worker waits for the driver.
_AHEAD = 2
# The least that Ray takes: nothing of ours goes through it.
_OBJECT_STORE_BYTES = 80 * 2**20
# How often the cluster is asked for nodes that came or went, in seconds.
_LOOK_AGAIN = 5.0


class UnitWorker:
    """What lives in an actor: a worker, made when the first unit comes."""

    def __init__(self, job: Job, threads: int) -> None:
        from promptboost.threads import set_threads

        set_threads(threads)
        self._job = job
        self._worker: Worker | None = None

    def do(self, unit: WorkUnit) -> Receipt:
        """Do one unit."""
        if self._worker is None:
            try:
                self._worker = make_worker(self._job)
            except Exception as error:  # on this node only, perhaps: a part is not installed there
                return Receipt(name=unit.name, problem=f"no worker: {error}")
        return try_unit(self._job, self._worker, unit)


@dataclass
class _Member:
    """An actor, and what it has been given."""

    actor: Any
    node: str
    waiting: dict[Any, WorkUnit] = field(default_factory=dict)  # by the reference of the answer


@dataclass
class _Attempt:
    unit: WorkUnit
    tries: int = 0
    avoid: set[int] = field(default_factory=set)  # actors it has failed on
    problem: str = ""


class RayEngine:
    """A Ray cluster: the one that runs here or at an address, else one of this machine's cores.

    Parameters
    ----------
    address : str, optional
        Such as ``ray://HOST:10001``.
    workers : int, optional
        How many actors; by default as many as the cluster has room for, counted again as nodes come
        and go.
    cores : int, default=1
        Cores for each.
    """

    def __init__(
        self, address: str | None = None, *, workers: int | None = None, cores: int = 1
    ) -> None:
        self._asked = workers
        self._cores = cores
        self._ray, self._ours = _start(address)

    def close(self) -> None:
        """Leave the cluster, unless this process was in it before; one that was started here ends."""
        if self._ours and self._ray.is_initialized():
            self._ray.shutdown()

    def call(self, function: str, orders: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a function on all nodes; a call whose process or node is lost is made again."""
        remote = self._ray.remote(_call).options(num_cpus=self._cores, max_retries=TRIES)
        answers: list[Any] = self._ray.get([remote.remote(function, order) for order in orders])
        return answers

    def carry_out(self, job: Job, units: Iterable[WorkUnit]) -> Iterator[Receipt]:
        """Do units on all nodes; receipts come in the order in which units are done."""
        crew = _Crew(self._ray, job, self._asked, self._cores)
        try:
            yield from crew.receipts(iter(units))
        finally:
            crew.dismiss()


class _Crew:
    """The actors of one job."""

    def __init__(self, ray: Any, job: Job, asked: int | None, cores: int) -> None:
        self._ray, self._job, self._asked, self._cores = ray, job, asked, cores
        self._made = ray.remote(UnitWorker)
        self._members: dict[int, _Member] = {}
        self._numbers = iter(range(2**31))
        self._looked = -_LOOK_AGAIN
        self._again: deque[_Attempt] = deque()
        self._attempts: dict[str, _Attempt] = {}  # units that are out, by name

    def receipts(self, units: Iterator[WorkUnit]) -> Iterator[Receipt]:
        """Keep all members busy until nothing is left."""
        while True:
            self._look()
            self._hand_out(units)
            owners = {ref: n for n, member in self._members.items() for ref in member.waiting}
            if not owners:
                if not self._again:
                    return
                time.sleep(0.2)  # no node has room: wait for one
                continue
            ready, _ = self._ray.wait(list(owners), num_returns=1, timeout=_LOOK_AGAIN)
            for ref in ready:
                if (receipt := self._received(ref, owners[ref])) is not None:
                    yield receipt

    def dismiss(self) -> None:
        """End the actors."""
        for member in self._members.values():
            with contextlib.suppress(Exception):
                self._ray.kill(member.actor)
        self._members.clear()

    def _received(self, ref: Any, number: int) -> Receipt | None:
        """Return the receipt of a unit that is done, or given up; None if it is to be done again."""
        member = self._members.get(number)
        if member is None or ref not in member.waiting:
            return None  # its actor is gone, and the unit in other hands
        unit = member.waiting.pop(ref)
        attempt = self._attempts.pop(unit.name)
        try:
            receipt: Receipt = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            attempt.problem = f"its worker ended: {type(error).__name__}"
            self._lost(number, attempt)
        else:
            if receipt.problem is None:
                return receipt
            attempt.problem = receipt.problem
            attempt.avoid.add(number)
        attempt.tries += 1
        if attempt.tries < TRIES:
            self._again.append(attempt)
            return None
        return Receipt(name=unit.name, problem=attempt.problem)

    def _lost(self, number: int, attempt: _Attempt) -> None:
        """Take back what a dead actor had not begun: only the unit in its hands has lost a try."""
        member = self._members.pop(number)
        self._looked = -_LOOK_AGAIN  # at once: another may take its place
        for unit in member.waiting.values():
            self._again.append(self._attempts.pop(unit.name))
        with contextlib.suppress(Exception):
            self._ray.kill(member.actor)

    def _hand_out(self, units: Iterator[WorkUnit]) -> None:
        for number, member in sorted(self._members.items(), key=lambda item: len(item[1].waiting)):
            while len(member.waiting) < _AHEAD:
                attempt = self._next(number, units)
                if attempt is None:
                    break
                ref = member.actor.do.remote(attempt.unit)
                member.waiting[ref] = attempt.unit
                self._attempts[attempt.unit.name] = attempt

    def _next(self, number: int, units: Iterator[WorkUnit]) -> _Attempt | None:
        """Return what a member is to do next: what failed elsewhere first, then what is new."""
        others = set(self._members) - {number}
        for attempt in list(self._again):
            if number not in attempt.avoid or not others - attempt.avoid:
                self._again.remove(attempt)
                return attempt
        unit = next(units, None)
        return None if unit is None else _Attempt(unit)

    def _look(self) -> None:
        """Have as many members as there is room for."""
        if time.monotonic() - self._looked < _LOOK_AGAIN:
            return
        self._looked = time.monotonic()
        wanted = self._asked or self._room()
        while len(self._members) < wanted:
            actor = self._made.options(
                num_cpus=self._cores, num_gpus=1 if self._gpus() else 0, max_restarts=0
            ).remote(self._job, self._cores)
            self._members[next(self._numbers)] = _Member(actor, "")

    def _gpus(self) -> int:
        return int(self._ray.cluster_resources().get("GPU", 0))

    def _room(self) -> int:
        cores = int(self._ray.cluster_resources().get("CPU", 0))
        if cores < self._cores and not self._members:
            raise SettingError(
                f"the cluster has {cores} cores, and a worker is to have {self._cores}: ask for fewer"
            )
        return min(cores // self._cores, self._gpus() or cores)


def _call(function: str, order: tuple[Any, ...]) -> Any:
    return part_of_promptboost(function)(*order)


def _start(address: str | None) -> tuple[Any, bool]:
    """Return Ray, and whether this process had no connection with a cluster before."""
    # Nobody asked for figures of use to be sent, or for a warning about it.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            "Ray is not installed; type: pip install 'promptboost[ray]'"
        ) from error
    if ray.is_initialized():
        return ray, False
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address is not None:
            ray.init(address, **quiet)
            return ray, True
        with contextlib.suppress(ConnectionError):
            ray.init("auto", **quiet)
            return ray, True
        ray.init(include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = address or "on this machine"
        raise RunError(f"no Ray cluster can be reached {where}: {error}") from error
    return ray, True
