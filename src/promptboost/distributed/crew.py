"""The actors of one job on Ray: each has one unit in hand, and what is lost is done by another.

A unit that ends its workers, or keeps one from ever answering, may hold an image or text that does. Then a
worker tries its items one by one, and each call is for one of them: so it is known which one it was. What
has been in hand at two such ends is left out, as a line of the result, and the others are done.
"""

import contextlib
import os
import platform
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from promptboost import __version__
from promptboost.distributed.unit import (
    ItemWorker,
    Job,
    Receipt,
    Worker,
    WorkUnit,
    failed,
    make_worker,
    part_of_promptboost,
    try_unit,
)
from promptboost.errors import RunError, SettingError, count

# A unit that fails is tried on other nodes, then reported.
_TRIES = 3
# Workers end through no fault of their unit, too: a machine is switched off. One that gives no answer has
# cost more time, and counts as several.
_DEATHS, _SILENCE = 5, 3
# So many ends until the items of a unit are tried one by one, and until one of them is left out.
_SUSPECT = 2
# Where more items than this end their workers, the fault is not theirs, and the unit is reported.
_MOST_LOST = 8
# Seconds that a worker may take to answer: for a unit that cannot be tried by item, such as a fit, which
# has no usual length; for one that can, before any is done, and then as many times the longest as this,
# but never less than that; and for one item. One that is late for no fault of its items is given longer.
_LONGEST_WHOLE, _LONGEST_FIRST, _TIMES_LONGEST, _LONGEST_LEAST = 86_400.0, 3600.0, 20, 600.0
_LONGEST_ITEM = 300.0
# What sets the limit by hand, in seconds.
_LIMIT = "PROMPTBOOST_UNIT_SECONDS"
# A worker that fails so many units in a row waits, as long as there are others.
_STRIKES = 3
# How often the cluster is asked for nodes that came or went, in seconds.
_LOOK_AGAIN = 2.0
# Seconds without any worker until people are told, and until it is given up that a better one comes: one
# takes some to start, and a cluster that grows takes minutes.
_PATIENCE, _MOST_PATIENCE = 30.0, 300.0
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
    """What lives in an actor: a worker."""

    def __init__(self, job: Job, threads: int, home: Home) -> None:
        from promptboost.threads import set_threads

        home.enter()
        set_threads(threads)
        self._job = job
        self._worker: Worker | None = None
        self._trying: Iterator[str] | None = None  # the items of one unit

    def load(self) -> str:
        """Load what is needed, so that no unit pays for what ends there; return the node it lives on."""
        import ray

        with contextlib.suppress(Exception):  # raised again, and told, with the first unit
            self._worker = make_worker(self._job)
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

    def try_item(self, unit: WorkUnit) -> str | None:
        """Try the item of a unit that was named last; return the name of the next, None after the last."""
        try:
            if self._trying is None:
                self._trying = cast(ItemWorker, self._worker).items(unit.order)
            name = next(self._trying, None)
        except Exception:  # whatever raises is told when the unit is done
            name = None
        if name is None:
            self._trying = None
        return name


@dataclass
class _Attempt:
    unit: WorkUnit
    tries: int = 0
    deaths: int = 0  # of workers that had it in hand, since something was found out about that
    ended: int = 0  # all of them
    avoid: set[str] = field(default_factory=set)  # nodes it has failed on
    by_item: bool = False  # whether its items are tried one by one, at present
    tried: float = 0.0  # when that began; 0 if it never did
    patience: float = 0.0  # seconds that it may take at least: twice what its items took one by one
    suspects: Counter[str] = field(
        default_factory=Counter
    )  # items that were in hand when a worker ended
    lost: dict[str, str] = field(default_factory=dict)  # items that are left out, and why


@dataclass
class _Member:
    """An actor; what it is asked at present, first of all where it lives; and what it has in hand."""

    actor: Any
    asked: Any
    since: float = 0.0  # when it was asked
    node: str | None = None  # None until it has loaded what it needs
    hand: _Attempt | None = None
    item: str | None = None  # the one of the unit that is tried
    group: str = ""
    strikes: int = 0

    @property
    def idle(self) -> bool:
        return self.node is not None and self.hand is None

    def ask(self, attempt: _Attempt, item: str | None = None) -> None:
        """Hand it a unit, or one item of a unit that it has in hand."""
        call = self.actor.try_item if attempt.by_item else self.actor.do
        self.hand, self.item, self.group = attempt, item, attempt.unit.group
        self.asked, self.since = call.remote(attempt.unit), time.monotonic()


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
        # Only a worker that can name its items can be asked to try them one by one.
        self._has_items = hasattr(part_of_promptboost(job.worker), "items")
        self._limit = _limit_by_hand()
        self._longest = 0.0  # seconds of a unit that was done
        self._done = 0  # units
        self._fallen = 0  # units that were given up, as they end their workers

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
            for number, seconds in self._silent():
                cause = f"it gave no answer in {seconds:g} s"
                if (receipt := self._lost(number, cause, silent=True)) is not None:
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
        try:
            answer = self._ray.get(member.asked)
        except self._ray.exceptions.RayError as error:
            return self._lost(number, cause_of(error))
        attempt, member.asked = member.hand, None
        self._worked, self._told = time.monotonic(), False
        if attempt is None:
            member.node, self._stillborn = answer, 0
            return None
        if attempt.by_item and answer is not None:
            member.ask(attempt, answer)
            return None
        member.hand = None
        if attempt.by_item:  # all are tried: now it is done, without those that are left out
            attempt.by_item = False
            attempt.patience = 2 * (time.monotonic() - attempt.tried)
            self._again.appendleft(attempt)
            return None
        receipt: Receipt = self._seen(attempt.unit, answer)
        if receipt.problem is None or receipt.hopeless:
            member.strikes = 0
            self._done += 1
            self._longest = max(self._longest, receipt.seconds)
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

    def _silent(self) -> list[tuple[int, float]]:
        """Return the members that have had something in hand for far too long, and how long they might."""
        now = time.monotonic()
        limits = {n: self._seconds(m, m.hand) for n, m in self._members.items() if m.hand}
        late = [number for number in limits if now - self._members[number].since > limits[number]]
        # What was answered while nobody looked is not late.
        silent = [n for n in late if not self._ray.wait([self._members[n].asked], timeout=0)[0]]
        return [(number, limits[number]) for number in silent]

    def _seconds(self, member: _Member, attempt: _Attempt) -> float:
        """Return how long a member may take for what it has in hand."""
        if attempt.by_item and member.item:
            return min(self._limit or _LONGEST_ITEM, _LONGEST_ITEM)
        usual = max(_TIMES_LONGEST * self._longest, _LONGEST_LEAST)
        if not self._has_items:
            usual = _LONGEST_WHOLE
        elif not self._longest:
            usual = _LONGEST_FIRST
        return max(self._limit or usual, attempt.patience)

    def _lost(self, number: int, cause: str, *, silent: bool = False) -> Receipt | None:
        """Take back the unit of an actor that has ended, or gives no answer."""
        member = self._members.pop(number)
        self._end(member)
        attempt = member.hand
        if attempt is None:
            self._stillborn += 1
            if self._stillborn >= _DEATHS and not any(m.node for m in self._members.values()):
                raise RunError(f"no worker can be started on the cluster: {cause}")
            self._say(f"lost a worker before it had begun: {cause}")
            # Not at once: on that node, the next may end as well.
            self._looked = time.monotonic() + _LOOK_AGAIN * (self._stillborn - 1)
            return None
        self._looked = -_LOOK_AGAIN  # at once: another may take its place
        attempt.deaths += _SILENCE if silent else 1
        attempt.ended += 1
        if attempt.by_item and member.item is not None:
            self._suspect(attempt, member.item, cause if silent else "it killed its worker")
        if (
            attempt.deaths >= _DEATHS
            or attempt.suspects[""] >= _SUSPECT
            or len(attempt.lost) > _MOST_LOST
        ):
            return self._fell(attempt, cause)
        self._say(f"lost a worker, and another does what it had in hand: {cause}")
        if self._has_items and not attempt.tried and attempt.deaths >= _SUSPECT:
            attempt.by_item, attempt.tried, attempt.deaths = True, time.monotonic(), 0
        self._again.append(attempt)
        return None

    def _suspect(self, attempt: _Attempt, item: str, problem: str) -> None:
        """Remember what a worker had in hand when it ended; leave out what it was for the second time."""
        attempt.suspects[item] += 1
        # Once: a worker that does not leave it out ends again, and its unit is given up.
        if item and attempt.suspects[item] == _SUSPECT:
            attempt.lost[item] = problem
            order = {**attempt.unit.order, "lost": dict(attempt.lost)}
            attempt.unit = msgspec.structs.replace(attempt.unit, order=order)
            attempt.deaths = 0
            self._say(f"left out {item}: {problem}")

    def _fell(self, attempt: _Attempt, cause: str) -> Receipt:
        """Return the receipt of a unit that is given up; raise where no unit could be done so far."""
        whose = ""
        if attempt.suspects[""]:
            whose = ", also with nothing but something plain"
        elif attempt.suspects:
            whose = f", with {', '.join(attempt.suspects)} in hand"
        ended = f"{count(attempt.ended, 'worker')} that had it in hand ended"
        problem = f"{ended}{whose}, the last because: {cause}"
        self._fallen += 1
        if not self._done and self._fallen >= _STRIKES:
            raise RunError(f"nothing could be done of {count(self._fallen, 'unit')}: {problem}")
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
                member.ask(attempt)

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
            self._members[next(self._numbers)] = _Member(actor, actor.load.remote())

    def _room(self) -> tuple[int, int]:
        """Return how many workers the living nodes have room for, and the GPUs of each worker."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        # One that is to run on the processor leaves GPUs to others.
        wanted = self.job.device != "cpu"
        gpus = int(wanted and any(node.get("GPU", 0) >= 1 for node in nodes))
        nodes = [node for node in nodes if not gpus or node.get("GPU", 0) >= 1]
        cores = [int(node.get("CPU", 0)) for node in nodes]
        rooms = [
            min(n // self._cores, int(node["GPU"]) if gpus else n)
            for n, node in zip(cores, nodes, strict=True)
        ]
        if not any(rooms) and any(cores):
            which = "node with a GPU" if gpus else "node of the cluster"
            raise SettingError(
                f"a worker is to have {count(self._cores, 'core')}, and the largest {which} has "
                f"{max(cores)}: give --cores {max(cores)} or fewer"
            )
        # On a cluster that grows when it is asked to, one that waits is what makes it grow.
        return max(sum(rooms), 1), gpus

    def _tell(self) -> None:
        """Tell that there is no room; raise where those that live fail, and others do not come."""
        living = [member for member in self._members.values() if member.node is not None]
        idle = time.monotonic() - self._worked
        if living and all(m.strikes >= _STRIKES for m in living) and idle > _MOST_PATIENCE:
            self._give_up()
        if living or self._told or idle < _PATIENCE:
            return
        self._told = True
        free = self._ray.available_resources()
        self._say(
            f"no worker is ready after {_PATIENCE:.0f} s: {free.get('CPU', 0):g} cores and "
            f"{free.get('GPU', 0):g} GPUs of the cluster are free; waiting"
        )

    def _end(self, member: _Member) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(member.actor)


def _limit_by_hand() -> float | None:
    """Return what is set as the seconds that a worker may take to answer, if anything is."""
    text = os.environ.get(_LIMIT)
    if not text:
        return None
    with contextlib.suppress(ValueError):
        if (seconds := float(text)) > 0:
            return seconds
    raise SettingError(f"{_LIMIT} is {text!r}; give seconds, such as 1800")


def cause_of(error: Exception) -> str:
    """Return the line of an error of Ray's that says why: the last one that says anything."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        error = cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
