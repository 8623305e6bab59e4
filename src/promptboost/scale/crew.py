"""The actors of one job on Ray: each has one unit in hand, and what is lost is done by another."""

import contextlib
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from promptboost import __version__
from promptboost.errors import RunError, SettingError, count
from promptboost.scale.unit import Job, Receipt, Worker, WorkUnit, failed, make_worker, try_unit

# A unit that fails is tried on other nodes, then reported.
_TRIES = 3
# Workers end through no fault of their unit, too: a machine is switched off.
_DEATHS = 5
# A worker that fails so many units in a row waits, as long as there are others.
_STRIKES = 3
# How often the cluster is asked for nodes that came or went, in seconds.
_LOOK_AGAIN = 2.0
# Seconds without any worker until people are told; one takes some to start.
_PATIENCE = 30.0
# Units that are looked at to find some for which a worker has loaded the rest already.
_LOOK_AHEAD = 256


class Home(msgspec.Struct, frozen=True):
    """What a worker takes over from the process that has started it."""

    folder: str  # relative names are relative to it
    environment: dict[str, str]  # where embeddings are kept, and the like
    version: str

    @classmethod
    def here(cls) -> "Home":
        """Describe this process."""
        ours = {name: text for name, text in os.environ.items() if name.startswith("PROMPTBOOST_")}
        return cls(os.getcwd(), ours, __version__)

    def enter(self) -> None:
        """Make this process like that one, as far as the machine has what it had."""
        os.environ.update(self.environment)
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        if self.version != __version__:
            raise RunError(
                f"promptboost is {__version__} on {platform.node()} and {self.version} where the "
                "command was typed; install the same version on all machines"
            )


class UnitWorker:
    """What lives in an actor: a worker, made when the first unit comes."""

    def __init__(self, job: Job, threads: int, home: Home) -> None:
        from promptboost.threads import set_threads

        home.enter()
        set_threads(threads)
        self._job = job
        self._worker: Worker | None = None

    def node(self) -> str:
        """Return the node it lives on."""
        import ray

        name: str = ray.get_runtime_context().get_node_id()
        return name

    def do(self, unit: WorkUnit) -> Receipt:
        """Do one unit."""
        if self._worker is None:
            try:
                self._worker = make_worker(self._job)
            except Exception as error:  # on this node only, perhaps: a part is not installed there
                return msgspec.structs.replace(failed(unit, error), hopeless=False)
        return try_unit(self._job, self._worker, unit)


@dataclass
class _Attempt:
    unit: WorkUnit
    tries: int = 0
    deaths: int = 0
    avoid: set[str] = field(default_factory=set)  # nodes it has failed on


@dataclass
class _Member:
    """An actor; what it is asked at present, first of all where it lives; and what it has in hand."""

    actor: Any
    asked: Any
    node: str | None = None  # None until it lives
    hand: _Attempt | None = None
    group: str = ""
    strikes: int = 0

    @property
    def idle(self) -> bool:
        return self.node is not None and self.hand is None


class Crew:
    """Hands out units to actors, and takes back those of actors that are lost.

    Parameters
    ----------
    ray : module
    job : Job
    workers : int, optional
        How many actors; by default as many as there is room for, looked at again and again.
    cores : int
        Of each.
    say : callable
        Called with a line for people.
    """

    def __init__(
        self, ray: Any, job: Job, workers: int | None, cores: int, say: Callable[[str], None]
    ) -> None:
        self._ray, self.job, self._workers, self._cores, self._say = ray, job, workers, cores, say
        self._made = ray.remote(UnitWorker)
        self._home = Home.here()
        self._members: dict[int, _Member] = {}
        self._numbers = iter(range(2**62))
        self._again: deque[_Attempt] = deque()
        self._ahead: deque[WorkUnit] = deque()
        self._looked = self._worked = time.monotonic() - _LOOK_AGAIN
        self._told = False
        self._often = ""  # what the workers that are left out have failed at
        self._stillborn = 0  # actors that ended before they lived, one after the other

    def receipts(self, units: Iterator[WorkUnit]) -> Iterator[Receipt]:
        """Keep all members busy until nothing is left; receipts come as units are done."""
        while self._more(units) or any(member.hand for member in self._members.values()):
            self._look()
            self._hand_out(units)
            asked = {m.asked: n for n, m in self._members.items() if m.asked is not None}
            if asked:
                ready, _ = self._ray.wait(list(asked), num_returns=1, timeout=_LOOK_AGAIN)
            else:
                ready = []
                time.sleep(_LOOK_AGAIN / 10)
            for ref in ready:
                if (receipt := self._answered(asked[ref])) is not None:
                    yield receipt
            self._tell()

    def dismiss(self) -> None:
        """End the actors."""
        for member in self._members.values():
            self._end(member)
        self._members.clear()

    def _more(self, units: Iterator[WorkUnit]) -> bool:
        """Look at the next units; return whether there is one to hand out."""
        while len(self._ahead) < _LOOK_AHEAD and (unit := next(units, None)) is not None:
            self._ahead.append(unit)
        return bool(self._ahead or self._again)

    def _answered(self, number: int) -> Receipt | None:
        """Return the receipt of a unit that is done, or given up; None if it is not over."""
        member = self._members[number]
        ref, attempt = member.asked, member.hand
        member.asked = member.hand = None
        try:
            answer = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            return self._lost(number, attempt, error)
        self._worked, self._told = time.monotonic(), False
        if attempt is None:
            member.node, self._stillborn = answer, 0
            return None
        receipt: Receipt = self._seen(attempt.unit, answer)
        if receipt.problem is None or receipt.hopeless:
            member.strikes = 0
            return receipt
        member.strikes += 1
        attempt.tries += 1
        attempt.avoid.add(member.node or "")
        if member.strikes == _STRIKES:
            self._leave_out(receipt)
        if attempt.tries < _TRIES:
            self._again.append(attempt)
            return None
        return receipt

    def _seen(self, unit: WorkUnit, receipt: Receipt) -> Receipt:
        """Check that what a worker has written can be read here: each may have a disk of its own."""
        if receipt.problem is not None or self.job.place(unit) in self.job.storage:
            return receipt
        problem = (
            f"what {receipt.node or 'a worker'} has written to {self.job.out} cannot be seen here; give "
            "a folder or URL that is the same for all machines"
        )
        return Receipt(name=unit.name, problem=problem, node=receipt.node)

    def _leave_out(self, receipt: Receipt) -> None:
        """Tell of a worker that gets nothing done; raise where all are like that."""
        self._often = f"{_STRIKES} units in a row, the last because: {receipt.problem}"
        if all(member.strikes >= _STRIKES for member in self._members.values()):
            self._give_up()
        self._say(f"left out: a worker on {receipt.node}, which has failed {self._often}")

    def _give_up(self) -> None:
        raise RunError(
            f"all workers have failed {self._often}. What is done is kept: the same command does the rest"
        )

    def _lost(self, number: int, attempt: _Attempt | None, error: Exception) -> Receipt | None:
        """Take back the unit of an actor that has ended."""
        self._end(self._members.pop(number))
        self._looked = -_LOOK_AGAIN  # at once: another may take its place
        if attempt is None:
            self._stillborn += 1
            if self._stillborn >= _DEATHS and not any(m.node for m in self._members.values()):
                raise RunError(
                    f"no worker can be started on the cluster: {cause_of(error)}"
                ) from error
            return None
        attempt.deaths += 1
        self._say(f"lost a worker, and another does what it had in hand: {cause_of(error)}")
        if attempt.deaths < _DEATHS:
            self._again.append(attempt)
            return None
        problem = (
            f"{_DEATHS} workers that had it in hand have ended, the last because: {cause_of(error)}"
        )
        return Receipt(name=attempt.unit.name, problem=problem)

    def _hand_out(self, units: Iterator[WorkUnit]) -> None:
        members = self._members.values()
        if all(
            member.node and not member.hand and member.strikes >= _STRIKES for member in members
        ):
            for member in members:  # those that did better have gone: give these another chance
                member.strikes = 0
        for member in members:
            if not self._more(units):
                return
            if not member.idle or member.strikes >= _STRIKES:
                continue
            if (attempt := self._next(member)) is not None:
                member.hand = attempt
                member.group = attempt.unit.group
                member.asked = member.actor.do.remote(attempt.unit)

    def _next(self, member: _Member) -> _Attempt | None:
        """Return what a member is to do next: what failed elsewhere, else what it has loaded most for."""
        nodes = {m.node for m in self._members.values() if m.node and m.strikes < _STRIKES}
        coming = any(m.node is None for m in self._members.values())
        waits = coming and time.monotonic() - self._worked < 2 * _PATIENCE
        for attempt in list(self._again):
            # Where it has failed on all nodes that work, and no other comes, any of them will do.
            if member.node not in attempt.avoid or (nodes <= attempt.avoid and not waits):
                self._again.remove(attempt)
                return attempt
        if not self._ahead:
            return None
        taken = {other.group for other in self._members.values() if other.hand is not None}
        unit = next(
            (unit for unit in self._ahead if unit.group == member.group),
            next((unit for unit in self._ahead if unit.group not in taken), self._ahead[0]),
        )
        self._ahead.remove(unit)
        return _Attempt(unit)

    def _look(self) -> None:
        """Have as many members as there is room for, and no more than there is work for."""
        if time.monotonic() - self._looked < _LOOK_AGAIN:
            return
        self._looked = time.monotonic()
        room, gpus = self._room()
        # What has failed needs another node than the one that it failed on.
        left = len(self._ahead) + len(self._again) * _TRIES
        left += sum(member.hand is not None for member in self._members.values())
        wanted = min(self._workers or room, left)
        while len(self._members) < wanted:
            actor = self._made.options(
                num_cpus=self._cores, num_gpus=gpus, max_restarts=0, max_task_retries=0
            ).remote(self.job, self._cores, self._home)
            self._members[next(self._numbers)] = _Member(actor, actor.node.remote())

    def _room(self) -> tuple[int, int]:
        """Return how many workers the living nodes have room for, and the GPUs of each worker."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        cores = [int(node.get("CPU", 0)) for node in nodes]
        # One that is to run on the processor leaves GPUs to others.
        wanted = self.job.device != "cpu"
        gpus = int(wanted and any(node.get("GPU", 0) >= 1 for node in nodes))
        rooms = [
            min(n // self._cores, int(node.get("GPU", 0)) if gpus else n)
            for n, node in zip(cores, nodes, strict=True)
        ]
        if not any(rooms) and any(cores):
            raise SettingError(
                f"a worker is to have {count(self._cores, 'core')}, and the largest node of the cluster "
                f"has {max(cores)}: give --cores {max(cores)} or fewer"
            )
        # On a cluster that grows when it is asked to, one that waits is what makes it grow.
        return max(sum(rooms), 1), gpus

    def _tell(self) -> None:
        """Tell that there is no room; raise where those that live fail, and others do not come."""
        living = [member for member in self._members.values() if member.node is not None]
        idle = time.monotonic() - self._worked
        if living and all(m.strikes >= _STRIKES for m in living) and idle > 2 * _PATIENCE:
            self._give_up()
        if living or self._told or idle < _PATIENCE:
            return
        self._told = True
        free = self._ray.available_resources()
        self._say(
            f"no worker has started for {_PATIENCE:.0f} s: {free.get('CPU', 0):g} cores and "
            f"{free.get('GPU', 0):g} GPUs of the cluster are free; waiting"
        )

    def _end(self, member: _Member) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(member.actor)


def cause_of(error: Exception) -> str:
    """Return the line of an error of Ray's that says why: the last one that says anything."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        error = cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
