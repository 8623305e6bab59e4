"""An engine on a Ray cluster: a running one, or a new one on this machine.

Ray restarts workers that end and repeats their unit, on another node if necessary. A unit that raises is
retried later, and a worker that fails several units in a row gets no more.
"""

import contextlib
import logging
import os
import platform
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from promptboost import __version__
from promptboost.distributed.engine import (
    Engine,
    Job,
    Receipt,
    Say,
    Worker,
    WorkUnit,
    carry_out,
    failed,
    make_worker,
)
from promptboost.encoders.runtime import require_modules
from promptboost.errors import RunError, SettingError, count
from promptboost.threads import set_threads

# The number of failures in a row after which a worker is left out.
_STRIKES = 3
# How often a unit is tried: once more than the worker that is left out can have tried it.
_TRIES = _STRIKES + 1
# Seconds between checks of the cluster's size, and seconds without a result after which idle workers
# release their cores and the lack of workers is reported.
_CHECK, _RELEASE, _NO_WORKER = 2.0, 10.0, 30.0
# Close to Ray's minimum: results are files, and no data are sent.
_OBJECT_STORE_BYTES = 80 * 2**20
# Seconds to wait for an answer of a busy cluster; Ray itself waits a minute and a half.
_PATIENCE = 20.0
# Calls that check whether a cluster, or its server for clients, answers and requires a token.
_CALL, _CLIENT_CALL = "NodeInfoGcsService/GetClusterId", "RayletDriver/ClusterInfo"
# The error if the client's process died between fork and exec on a busy head node: worth a retry.
_STILLBORN, _STARTS = "Initialization failure from server", 4


class UnitWorker:
    """An actor that processes units; its worker is created for the first one."""

    def __init__(self, job: Job, threads: int, environment: dict[str, Any]) -> None:
        self._job, self._threads, self._environment = job, threads, environment
        self._worker: Worker | None = None

    def do(self, unit: WorkUnit) -> Receipt:
        """Process one unit; return a receipt with any error."""
        try:
            if self._worker is None:
                _enter(**self._environment)
                set_threads(self._threads)
                self._worker = make_worker(self._job)
        except Exception as error:  # perhaps only on this node, such as a missing package
            return msgspec.structs.replace(failed(unit, error), final=False)
        try:
            return carry_out(self._job, self._worker, unit)
        except Exception as error:
            return failed(unit, error)


def _environment() -> dict[str, Any]:
    """Return what a worker inherits from this process."""
    variables = {k: v for k, v in os.environ.items() if k.startswith("PROMPTBOOST_")}
    return {"folder": os.getcwd(), "variables": variables, "version": __version__}


def _enter(folder: str, variables: dict[str, str], version: str) -> None:
    """Take over the environment of the process that started the command."""
    os.environ.update(variables)
    with contextlib.suppress(OSError):  # for relative paths
        os.chdir(folder)
    if version != __version__:
        raise RunError(
            f"promptboost is {__version__} on {platform.node()} and {version} where the command was "
            "started; install the same version on all machines"
        )


@dataclass(eq=False)
class _Member:
    """A worker of the engine: an actor, which Ray restarts if it ends."""

    actor: Any
    busy: bool = False
    strikes: int = 0  # failures in a row


class RayEngine(Engine):
    """An engine on a running Ray cluster, or on a new one on this machine; see :class:`Placement`.

    The workers stay until another job begins, so that models are loaded once. Without a number of
    `workers`, their number follows the size of the cluster.
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
        self._job: Job | None = None
        self._members: list[_Member] = []
        self._ray, self._ours = _start(address)
        self._remote = self._ray.remote(UnitWorker)
        nodes = sum(node["Alive"] for node in self._ray.nodes())
        total = self._ray.cluster_resources()
        gpus = f" and {count(int(total['GPU']), 'GPU')}" if total.get("GPU") else ""
        say(f"on Ray: {count(nodes, 'node')} with {count(int(total.get('CPU', 0)), 'core')}{gpus}")

    def close(self) -> None:
        """Disconnect; a cluster that was started here ends with all its processes."""
        self._dismiss()
        if self._ours and self._ray.is_initialized():
            self._ray.shutdown()

    def carry_out(
        self, job: Job, units: Iterable[WorkUnit], worker: Worker | None = None
    ) -> Iterator[Receipt]:
        """Process units on all nodes; yield receipts as they finish."""
        if self._job != job:
            self._dismiss()
            self._job = job
            self._limit = self._gpus = 0
            self._checked = -_CHECK
            self._done = self._lost = 0  # units
        try:
            yield from self._receipts(job, units)
        except BaseException:
            self._dismiss()
            self._job = None
            raise

    def _receipts(self, job: Job, units: Iterable[WorkUnit]) -> Iterator[Receipt]:
        """Keep all actors busy; yield receipts as units finish."""
        queue = deque((unit, 1) for unit in units)  # with the number of the try
        running: dict[Any, tuple[_Member, WorkUnit, int]] = {}
        answered, warned = time.monotonic(), False
        while queue or running:
            while queue and (member := self._free(job)):
                unit, tries = queue.popleft()
                member.busy = True
                running[member.actor.do.remote(unit)] = member, unit, tries
            ready, _ = self._ray.wait(list(running), num_returns=1, timeout=_CHECK)
            quiet = time.monotonic() - answered
            if ready:
                answered = time.monotonic()
            elif quiet > _RELEASE:
                # A busy actor that was restarted may wait for the cores of an idle one.
                self._dismiss([m for m in self._members if not m.busy and m.strikes < _STRIKES])
            if not warned and quiet > _NO_WORKER and not self._done:
                warned = True
                self._say(f"no worker is ready after {_NO_WORKER:.0f} s; waiting for the cluster")
            for reference in ready:
                member, unit, tries = running.pop(reference)
                receipt = self._receipt(job, member, unit, tries, reference)
                if receipt.problem is None or receipt.final or tries == _TRIES:
                    yield receipt
                else:
                    queue.append((unit, tries + 1))

    def _dismiss(self, members: Sequence[_Member] | None = None) -> None:
        """End some workers, by default all."""
        for member in list(self._members) if members is None else members:
            self._members.remove(member)
            with contextlib.suppress(Exception):
                self._ray.kill(member.actor)

    def _free(self, job: Job) -> _Member | None:
        """Return an idle actor, perhaps a new one."""
        usable = [member for member in self._members if member.strikes < _STRIKES]
        for member in usable:
            if not member.busy:
                return member
        if time.monotonic() - self._checked >= _CHECK:
            self._checked = time.monotonic()
            room, self._gpus = self._room(job.device)
            self._limit = self._workers or room
        if usable and len(self._members) >= self._limit:
            return None
        actor = self._remote.options(
            num_cpus=self._cores, num_gpus=self._gpus, max_restarts=-1
        ).remote(job, self._cores, _environment())
        self._members.append(_Member(actor))
        return self._members[-1]

    def _receipt(
        self, job: Job, member: _Member, unit: WorkUnit, tries: int, reference: Any
    ) -> Receipt:
        """Return the receipt of a unit; leave a worker out that keeps failing."""
        member.busy = False
        try:
            receipt: Receipt = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            # The next try is by a new worker: this one may be on a node that is gone, where Ray's own
            # retries would all fail before it has noticed.
            self._dismiss([member])
            self._lost += tries == _TRIES
            problem = f"its worker ended in the last of {tries} tries: {_cause_of(error)}"
            if not self._done and self._lost >= _STRIKES:
                raise RunError(
                    f"all of the first {count(self._lost, 'unit')} failed: {problem}"
                ) from error
            return Receipt(name=unit.name, problem=problem)
        if receipt.problem is None and job.path(unit) not in job.storage:
            problem = (
                f"results written by {receipt.node} to {job.out} cannot be seen here; give a folder or URL "
                "that all machines share"
            )
            receipt = msgspec.structs.replace(receipt, problem=problem)
        if receipt.problem is None or receipt.final:
            member.strikes = 0
            self._done += 1
            return receipt
        member.strikes += 1
        if member.strikes == _STRIKES:
            failures = f"failed {_STRIKES} units in a row, the last because: {receipt.problem}"
            if all(other.strikes >= _STRIKES for other in self._members):
                raise RunError(
                    f"all workers have {failures}. Finished work is kept: run the same command again "
                    "for the rest"
                )
            self._say(f"left out: a worker on {receipt.node}, which has {failures}")
        return receipt

    def _room(self, device: str | None) -> tuple[int, int]:
        """Return how many workers fit on the cluster, and the GPUs per worker."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        # Workers that compute on the processor reserve no GPU.
        gpus = int(device != "cpu" and any(node.get("GPU", 0) >= 1 for node in nodes))
        nodes = [node for node in nodes if node.get("GPU", 0) >= gpus]
        cores = [int(node.get("CPU", 0)) for node in nodes]
        rooms = [
            min(n // self._cores, int(node["GPU"]) if gpus else n)
            for n, node in zip(cores, nodes, strict=True)
        ]
        if not any(rooms) and any(cores):
            which = "node with a GPU" if gpus else "node of the cluster"
            raise SettingError(
                f"a worker needs {count(self._cores, 'core')}, and the largest {which} has {max(cores)}: "
                f"give --cores {max(cores)} or fewer"
            )
        # A waiting worker makes a cluster with autoscaling grow.
        return max(sum(rooms), 1), gpus


def _cause_of(error: Exception) -> str:
    """Return the last line of a Ray error, which names its cause."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        error = cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _start(address: str | None) -> tuple[Any, bool]:
    """Connect to a cluster, or start one; return Ray, and whether to disconnect in the end."""
    # No usage statistics, no warnings about them and about GPUs, no pages about lost nodes on stdout.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    if (imported := sys.modules.get("ray")) is not None and imported.is_initialized():
        return imported, False
    require_modules(["ray", "grpc"], "ray", "Ray clusters")
    # Before the import of Ray, which decides whether to send a token.
    address = _address(address)
    import ray

    # "local" starts a cluster even if another program has one.
    settings = _new_cluster() if address is None else {}
    for attempt in range(1, _STARTS + 1):
        try:
            ray.init(
                address or "local", **settings, logging_level=logging.ERROR, log_to_driver=False
            )
            break
        except Exception as error:  # Ray raises many types, plain Exception included
            with contextlib.suppress(Exception):
                ray.shutdown()
            reason = " ".join(str(error).split())
            if _STILLBORN in reason and attempt < _STARTS:
                continue
            if address is None:
                raise RunError(f"cannot start a Ray cluster on this machine: {reason}") from error
            raise RunError(
                f"the Ray cluster at {address} answers, but cannot be used from here: {reason}. Install "
                "the same Ray and Python, and copy ~/.ray/auth_token, if there is one, to all machines; "
                "from a machine outside of the cluster, give --on ray://HOST:10001"
            ) from error
    return ray, True


def _address(requested: str | None) -> str | None:
    """Return the address of a cluster that answers; None to start a new one.

    A named cluster that does not answer is an error; one that `ray start` had started here and that has
    ended is ignored.
    """
    address = requested or os.environ.get("RAY_ADDRESS") or "auto"
    if address == "local":
        return None
    if address == "auto":
        return _running()
    host = address.removeprefix("ray://").partition("?")[0]
    if ":" not in host:
        return address
    if not _answers(host, _CLIENT_CALL if address.startswith("ray://") else _CALL):
        source = "" if requested else ", which RAY_ADDRESS names"
        advice = "correct the address" if requested else "unset RAY_ADDRESS"
        raise RunError(
            f"no Ray cluster answers at {host}{source}: start it there, by ray start --head, or {advice}"
        )
    return address


def _answers(host: str, call: str) -> bool:
    """Return whether a Ray service answers at ``HOST:PORT``; if it requires a token, make Ray send it.

    An open port is not enough: it may be of another program. Ray itself waits a minute and a half.
    """
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return True  # no answer without a certificate
    import grpc

    with grpc.insecure_channel(host) as channel:
        try:
            channel.unary_unary(f"/ray.rpc.{call}")(b"", timeout=_PATIENCE)
        except grpc.RpcError as error:
            if error.code().name == "UNAUTHENTICATED":  # by default, Ray sends none to an address
                os.environ.setdefault("RAY_AUTH_MODE", "token")
            return error.code().name not in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
    return True


def _new_cluster() -> dict[str, Any]:
    """Return the settings of a new cluster: small, and without warnings on a small /dev/shm."""
    settings: dict[str, Any] = {
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
    }
    with contextlib.suppress(OSError):
        shared = os.statvfs("/dev/shm")
        if shared.f_bavail * shared.f_frsize < 2 * _OBJECT_STORE_BYTES:
            settings["_plasma_directory"] = _folder()
    return settings


def _folder() -> str:
    return os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"


def _running() -> str | None:
    """Return the address of the cluster that ``ray start`` has started here, if it answers.

    Ray's own search also finds the temporary cluster of another command.
    """
    with contextlib.suppress(OSError, ValueError):
        address = (Path(_folder()) / "ray" / "ray_current_cluster").read_text().strip()
        if _answers(address, _CALL):
            return address
    return None
