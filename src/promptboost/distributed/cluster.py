"""A Ray cluster as an engine: one that runs here or elsewhere, else a new one on this machine's cores.

Ray restarts workers that end and repeats their unit, elsewhere if a node is lost. A unit that raises is
tried on other nodes, and a worker that fails one unit after the other gets no more of them.
"""

import contextlib
import logging
import os
import platform
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from promptboost import __version__
from promptboost.distributed.engine import (
    Job,
    Receipt,
    ResidentLostError,
    Residents,
    Say,
    Worker,
    WorkUnit,
    carry_out,
    failed,
    load_attribute,
    make_worker,
)
from promptboost.errors import MissingExtraError, RunError, SettingError, count

# How often Ray repeats a unit whose worker or node ended, and how often a unit that raises is tried.
_RETRIES, _TRIES = 4, 3
# A worker that fails so many units in a row gets no more of them.
_STRIKES = 3
# Seconds after which room for more workers is looked for, without an answer after which idle workers give
# their cores to others, and without a worker after which that is reported.
_LOOK_AGAIN, _RELEASE, _NO_WORKER = 2.0, 10.0, 30.0
# Seconds that a resident may take to start while others have started already.
_START = 60.0
# About Ray's minimum: only sums over classes go through it, a number per row.
_OBJECT_STORE_BYTES = 80 * 2**20
# Seconds that a busy cluster may take to answer; Ray itself would wait a minute and a half.
_PATIENCE = 20.0
# Calls to check whether a cluster, or its server for clients, answers and requires a token.
_CALL, _CLIENT_CALL = "NodeInfoGcsService/GetClusterId", "RayletDriver/ClusterInfo"

# The error of Ray's client if its process on the head node died between fork and exec: the server forks
# while its threads make calls, which fails now and then on a busy node. The next attempt mostly works.
_STILLBORN, _STARTS = "Initialization failure from server", 4


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
    say : callable, optional
        Called with a line for people now and then.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        cores: int = 1,
        say: Say = lambda _: None,
    ) -> None:
        self._workers, self._cores, self._say = workers, cores, say
        self._pool: ActorPool | None = None
        self._residents: RayResidents | None = None
        self._ray, self._ours = _start(address)
        nodes = sum(node["Alive"] for node in self._ray.nodes())
        there = self._ray.cluster_resources()
        cards = f" and {count(int(there['GPU']), 'GPU')}" if there.get("GPU") else ""
        say(f"on Ray: {count(nodes, 'node')} with {count(int(there.get('CPU', 0)), 'core')}{cards}")

    def close(self) -> None:
        """Leave the cluster; one that was started here ends, with all its processes."""
        self._dismiss()
        if self._ours and self._ray.is_initialized():
            self._ray.shutdown()

    def residents(self, path: str, settings: dict[str, Any], most: int) -> Residents:
        """Create objects that keep state, one in each worker."""
        self._dismiss()
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = sum(int(node.get("CPU", 0)) // self._cores for node in nodes)
        wanted = min(self._workers or max(room, 1), most)
        self._residents = RayResidents(self._ray, path, settings, wanted, self._cores, self._say)
        return self._residents

    def carry_out(
        self, job: Job, units: Iterable[WorkUnit], worker: Worker | None = None
    ) -> Iterator[Receipt]:
        """Do units on all nodes; receipts come in the order in which units are done.

        The workers stay until other work comes: for the next units of a job, everything is loaded.
        """
        if self._pool is None or self._pool.job != job:
            self._dismiss()
            self._pool = ActorPool(self._ray, job, self._workers, self._cores, self._say)
        try:
            yield from self._pool.receipts(iter(units))
        except BaseException:
            self._dismiss()
            raise

    def _dismiss(self) -> None:
        if self._residents is not None:
            self._residents.end()
            self._residents = None
        if self._pool is not None:
            self._pool.end()
            self._pool = None


@dataclass(frozen=True)
class _Environment:
    """What a worker takes over from the process that started it."""

    folder: str = field(default_factory=os.getcwd)  # relative paths are relative to it
    variables: dict[str, str] = field(
        default_factory=lambda: {
            k: v for k, v in os.environ.items() if k.startswith("PROMPTBOOST_")
        }
    )
    version: str = __version__

    def enter(self, threads: int) -> None:
        from promptboost.threads import set_threads

        os.environ.update(self.variables)
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        set_threads(threads)
        if self.version != __version__:
            raise RunError(
                f"promptboost is {__version__} on {platform.node()} and {self.version} where the "
                "command was started; install the same version on all machines"
            )


class UnitWorker:
    """An actor that does units; its worker is created with the first one."""

    def __init__(self, job: Job, threads: int, environment: _Environment) -> None:
        self._job, self._threads, self._environment = job, threads, environment
        self._worker: Worker | None = None

    def ready(self) -> bool:
        """Return True, once the actor has started."""
        return True

    def do(self, unit: WorkUnit) -> tuple[str, Receipt]:
        """Do one unit; return the node, and a receipt that names any error."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        try:
            if self._worker is None:
                self._environment.enter(self._threads)
                self._worker = make_worker(self._job)
        except Exception as error:  # perhaps on this node only: a package is missing there
            return node, msgspec.structs.replace(failed(unit, error), final=False)
        try:
            return node, carry_out(self._job, self._worker, unit)
        except Exception as error:
            return node, failed(unit, error)


@dataclass(eq=False)
class _Member:
    actor: Any
    started: Any  # a reference that is ready once the actor is
    node: str | None = None
    busy: bool = False
    strikes: int = 0


@dataclass
class _Attempt:
    unit: WorkUnit
    tries: int = 0
    failed_on: set[str | None] = field(default_factory=set)  # nodes


class ActorPool:
    """Hands out units to actors, which Ray restarts if they end.

    Without a number of `workers`, the room that the cluster has is counted again and again.
    """

    def __init__(self, ray: Any, job: Job, workers: int | None, cores: int, say: Say) -> None:
        self._ray, self.job, self._workers, self._cores, self._say = ray, job, workers, cores, say
        self._remote = ray.remote(UnitWorker)
        self._environment = _Environment()
        self._members: list[_Member] = []
        self._limit = self._gpus = 0
        self._looked = -_LOOK_AGAIN
        self._done = self._lost = 0  # units

    def receipts(self, units: Iterator[WorkUnit]) -> Iterator[Receipt]:
        """Keep all actors busy until nothing is left; receipts come as units are done."""
        running: dict[Any, tuple[_Member, _Attempt]] = {}
        again: deque[_Attempt] = deque()
        upcoming: _Attempt | None = None
        answered = time.monotonic()
        warned = False
        while True:
            self._look()
            upcoming = upcoming or next(map(_Attempt, units), None)
            while upcoming is not None and (member := self._free(upcoming, running)):
                running[self._ask(member, upcoming)] = member, upcoming
                upcoming = next(map(_Attempt, units), None)
            for attempt in list(again):
                if member := self._free(attempt, running):
                    again.remove(attempt)
                    running[self._ask(member, attempt)] = member, attempt
            if not running:
                return
            ready, _ = self._ray.wait(list(running), num_returns=1, timeout=_LOOK_AGAIN)
            quiet = time.monotonic() - answered
            if ready:
                answered = time.monotonic()
            elif upcoming is None and quiet > _RELEASE:
                # A unit may wait for an actor that waits for the cores of one that has nothing to do.
                self._end([m for m in self._members if not m.busy and m.strikes < _STRIKES])
            if not ready and not warned and quiet > _NO_WORKER:
                warned = True
                self._warn()
            for reference in ready:
                member, attempt = running.pop(reference)
                receipt = self._receipt(member, attempt, reference)
                if receipt is None:
                    again.append(attempt)
                else:
                    yield receipt

    def end(self) -> None:
        """End the actors."""
        self._end(list(self._members))

    def _end(self, members: list[_Member]) -> None:
        for member in members:
            self._members.remove(member)
            with contextlib.suppress(Exception):
                self._ray.kill(member.actor)

    def _free(self, attempt: _Attempt, running: dict[Any, Any]) -> _Member | None:
        """Return an actor for a unit, on a node where it has not failed if there may be one."""
        idle = [m for m in self._members if not m.busy and m.strikes < _STRIKES]
        for member in idle:
            if member.node is None or member.node not in attempt.failed_on:
                return member
        if len(self._members) < self._limit:
            actor = self._remote.options(
                num_cpus=self._cores,
                num_gpus=self._gpus,
                max_restarts=-1,
                max_task_retries=_RETRIES,
            ).remote(self.job, self._cores, self._environment)
            self._members.append(_Member(actor, actor.ready.remote()))
            return self._members[-1]
        return idle[0] if idle and not running else None

    def _ask(self, member: _Member, attempt: _Attempt) -> Any:
        member.busy = True
        return member.actor.do.remote(attempt.unit)

    def _receipt(self, member: _Member, attempt: _Attempt, reference: Any) -> Receipt | None:
        """Return the receipt of a unit that is done or given up; None if it is to be tried again."""
        member.busy = False
        try:
            member.node, receipt = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._end([member])
            self._lost += 1
            problem = f"its worker ended {_RETRIES + 1} times, the last because: {cause_of(error)}"
            if not self._done and self._lost >= _STRIKES:
                raise RunError(
                    f"nothing could be done of {count(self._lost, 'unit')}: {problem}"
                ) from error
            return Receipt(name=attempt.unit.name, problem=problem)
        receipt = self._visible(attempt.unit, receipt)
        if receipt.problem is None or receipt.final:
            member.strikes = 0
            self._done += 1
            return receipt
        member.strikes += 1
        attempt.tries += 1
        attempt.failed_on.add(member.node)
        if member.strikes == _STRIKES:
            self._leave_out(receipt)
        return None if attempt.tries < _TRIES else receipt

    def _visible(self, unit: WorkUnit, receipt: Receipt) -> Receipt:
        """Check that the result of a worker can be read here: each may have a disk of its own."""
        if receipt.problem is not None or self.job.path(unit) in self.job.storage:
            return receipt
        problem = (
            f"what {receipt.node or 'a worker'} has written to {self.job.out} cannot be seen here; give "
            "a folder or URL that is the same for all machines"
        )
        return Receipt(name=unit.name, problem=problem, node=receipt.node)

    def _leave_out(self, receipt: Receipt) -> None:
        """Report a worker that gets no more units; raise if it was the last."""
        problem = f"failed {_STRIKES} units in a row, the last because: {receipt.problem}"
        if all(member.strikes >= _STRIKES for member in self._members):
            raise RunError(
                f"all workers have {problem}. Finished work is kept: the same command does the rest"
            )
        self._say(f"left out: a worker on {receipt.node}, which has {problem}")

    def _look(self) -> None:
        if time.monotonic() - self._looked >= _LOOK_AGAIN:
            self._looked = time.monotonic()
            room, self._gpus = self._room()
            self._limit = self._workers or room

    def _room(self) -> tuple[int, int]:
        """Return how many workers the living nodes have room for, and the GPUs of each worker."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        # Workers that compute on the processor reserve no GPU.
        gpus = int(self.job.device != "cpu" and any(node.get("GPU", 0) >= 1 for node in nodes))
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
        # On a cluster with autoscaling, a worker that waits makes it grow.
        return max(sum(rooms), 1), gpus

    def _warn(self) -> None:
        """Report that no worker has started."""
        if self._ray.wait([member.started for member in self._members], timeout=0)[0]:
            return
        free = self._ray.available_resources()
        self._say(
            f"no worker is ready after {_NO_WORKER:.0f} s: {free.get('CPU', 0):g} cores and "
            f"{free.get('GPU', 0):g} GPUs of the cluster are free; waiting"
        )


class ResidentActor:
    """An actor that holds one resident."""

    def __init__(
        self, path: str, settings: dict[str, Any], threads: int, environment: _Environment
    ) -> None:
        environment.enter(threads)
        self._resident = load_attribute(path)(**settings)

    def ready(self) -> bool:
        """Return True, once everything is loaded."""
        return True

    def ask(self, call: str, *given: Any) -> Any:
        """Call a method of the resident."""
        return getattr(self._resident, call)(*given)


class RayResidents:
    """Residents in actors, which are not restarted: their state would be lost.

    Of the `wanted` actors, those that do not start in a minute, while others have, are ended.
    """

    def __init__(
        self, ray: Any, path: str, settings: dict[str, Any], wanted: int, cores: int, say: Say
    ) -> None:
        self._ray, self._say = ray, say
        remote = ray.remote(ResidentActor).options(num_cpus=cores)
        environment = _Environment()
        self._actors = [remote.remote(path, settings, cores, environment) for _ in range(wanted)]
        try:
            self._actors = self._started()
        except BaseException:
            self.end()
            raise

    def __len__(self) -> int:
        return len(self._actors)

    def share(self, value: Any) -> Any:
        """Send a value to the cluster once, however many residents use it."""
        return self._ray.put(value)

    def ask(self, number: int, call: str, *given: Any) -> Callable[[], Any]:
        """Call a method of one actor."""
        reference = self._actors[number].ask.remote(call, *given)
        return lambda: self._result(reference)

    def end(self) -> None:
        """End the actors."""
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        self._actors = []

    def _result(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError:  # the method has raised, and the actor lives
            raise
        except errors.RayError as error:
            self._say(f"lost a worker: {cause_of(error)}")
            raise ResidentLostError(cause_of(error)) from error

    def _started(self) -> list[Any]:
        """Wait until some have started; return those, and end the others."""
        actors = {actor.ready.remote(): actor for actor in self._actors}
        ready: list[Any] = []
        while not ready:
            ready, late = self._ray.wait(list(actors), num_returns=len(actors), timeout=_START)
            if not ready:
                self._say(f"no worker has started for {_START:.0f} s; waiting")
        started, problem = [], None
        for reference in ready:
            try:
                self._ray.get(reference)
                started.append(actors[reference])
            except self._ray.exceptions.RayError as error:
                problem = error
        for reference in late:
            self._ray.kill(actors[reference])
        if not started:
            assert problem is not None
            raise RunError(f"no worker can be started on the cluster: {cause_of(problem)}")
        return started


def cause_of(error: Exception) -> str:
    """Return the line of a Ray error that names its cause: the last one with any text."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        error = cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _start(address: str | None) -> tuple[Any, bool]:
    """Connect to a cluster, or start one; return Ray, and whether to leave it in the end."""
    # No usage statistics, and no warnings about them and about GPUs.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray would print pages about a lost node on stdout, between results.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    if (known := sys.modules.get("ray")) is not None and known.is_initialized():
        return known, False
    try:
        # Before Ray is imported, which decides then whether to send a token.
        address = _address(address)
        import ray
    except ImportError as error:
        raise MissingExtraError(
            "Ray is not installed; type: pip install 'promptboost[ray]'"
        ) from error
    # "local" starts a cluster even if another program has one.
    own = _own() if address is None else {}
    for left in reversed(range(_STARTS)):
        try:
            ray.init(address or "local", **own, logging_level=logging.ERROR, log_to_driver=False)
            break
        except Exception as error:  # Ray raises all kinds, the plain one included
            with contextlib.suppress(Exception):
                ray.shutdown()
            if not (left and _STILLBORN in str(error)):
                raise _refusal(address, " ".join(str(error).split())) from error
    return ray, True


def _refusal(address: str | None, text: str) -> RunError:
    """Return the error for a cluster that did not start, or answers and refuses the connection."""
    if address is None:
        return RunError(f"no Ray cluster can be started on this machine: {text}")
    if _STILLBORN in text:
        return RunError(
            f"the Ray cluster at {address} answers, but starts no process for this command, which was "
            f"tried {count(_STARTS, 'time')}: {text}. Is its head node short of memory? Else start it again"
        )
    return RunError(
        f"the Ray cluster at {address} answers, but cannot be used from here: {text}. Install the same "
        "Ray and Python on all machines; from one that is no node of it, give --on ray://HOST:10001"
    )


def _address(asked: str | None) -> str | None:
    """Return the address of a cluster that answers; None if a new one is to be started.

    A named cluster that does not answer is an error at once; one that `ray start` had started here and
    that is gone is ignored.
    """
    named = asked or os.environ.get("RAY_ADDRESS") or "auto"
    if named == "local":
        return None
    if named == "auto":
        return _running()
    place = named.removeprefix("ray://").partition("?")[0]
    if ":" not in place:
        return named
    call = _CLIENT_CALL if named.startswith("ray://") else _CALL
    if not (heard := _heard(place, call)):
        whose = "" if asked else ", which RAY_ADDRESS names"
        what = "correct the address" if asked else "unset RAY_ADDRESS"
        raise RunError(
            f"no Ray cluster answers at {place}{whose}: start it there, by ray start --head, or {what}"
        )
    _show_token(place, call, heard)
    return named


def _heard(place: str, call: str, token: str = "") -> str:
    """Call a Ray service at ``HOST:PORT``; return the status of the answer, empty if there is none.

    An open port is not enough: another program may use it by now.
    """
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return "OK"  # no answer without a certificate
    import grpc

    said = (("authorization", f"Bearer {token}"),) if token else ()
    with grpc.insecure_channel(place) as channel:
        try:
            channel.unary_unary(f"/ray.rpc.{call}")(b"", timeout=_PATIENCE, metadata=said)
        except grpc.RpcError as error:
            status: str = error.code().name
            return "" if status in ("UNAVAILABLE", "DEADLINE_EXCEEDED") else status
    return "OK"


def _show_token(place: str, call: str, heard: str) -> None:
    """Let Ray send the token to a cluster that requires it; raise if it is missing or wrong.

    Ray does not send it by default to a cluster named by its address.
    """
    if heard != "UNAUTHENTICATED":
        return
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    token = os.environ.get("RAY_AUTH_TOKEN") or ""
    with contextlib.suppress(OSError):
        token = token or file.read_text().strip()
    if not token or _heard(place, call, token) == heard:
        raise RunError(
            f"the Ray cluster at {place} asks for a token, and this machine has "
            f"{'another one' if token else 'none'}: copy ~/.ray/auth_token from the machine on which it "
            "was started, or set RAY_AUTH_TOKEN to what is in it"
        )
    os.environ.setdefault("RAY_AUTH_MODE", "token")


def _own() -> dict[str, Any]:
    """Return the settings of a new cluster: small, and quiet on a small /dev/shm."""
    settings: dict[str, Any] = {"include_dashboard": False}
    settings["object_store_memory"] = _OBJECT_STORE_BYTES
    with contextlib.suppress(OSError):
        shared = os.statvfs("/dev/shm")
        if shared.f_bavail * shared.f_frsize < 2 * _OBJECT_STORE_BYTES:
            # Ray would use it too, with a warning.
            settings["_plasma_directory"] = _folder()
    return settings


def _folder() -> str:
    return os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"


def _running() -> str | None:
    """Return the address of the cluster that ``ray start`` has started here, if it answers.

    Ray's own search takes any cluster, also one that another command has for itself and soon ends.
    """
    with contextlib.suppress(OSError, ValueError):
        address = (Path(_folder()) / "ray" / "ray_current_cluster").read_text().strip()
        if heard := _heard(address, _CALL):
            _show_token(address, _CALL, heard)
            return address
    return None
