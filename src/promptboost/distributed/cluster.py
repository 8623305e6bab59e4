"""A Ray cluster as an engine: the one that runs here or elsewhere, else one of this machine's cores."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from promptboost.distributed.crew import Crew
from promptboost.distributed.residents import RayResidents, Residents
from promptboost.distributed.unit import Job, Receipt, Worker, WorkUnit
from promptboost.errors import MissingExtraError, RunError, count

# About the least that Ray takes: nothing of ours goes through it but sums over classes, a number a row.
_OBJECT_STORE_BYTES = 80 * 2**20
# Seconds that a cluster has to answer, busy as it may be; Ray itself would wait a minute and a half for one
# that is gone.
_PATIENCE = 20.0
# Calls by which to hear whether a cluster, or its server for clients, listens and wants a token.
_CALL, _CLIENT_CALL = "NodeInfoGcsService/GetClusterId", "RayletDriver/ClusterInfo"

# What Ray's client says where the head node's process for it died between fork and exec: its server forks
# while threads of its own make calls, which goes wrong now and then on a busy node. The next mostly lives.
_STILLBORN, _TRIES = "Initialization failure from server", 4


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
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._workers, self._cores, self._say = workers, cores, say
        self._crew: Crew | None = None
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

    def residents(self, part: str, settings: dict[str, Any], most: int) -> Residents:
        """Make objects that stay, one in each worker."""
        self._dismiss()
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = sum(int(node.get("CPU", 0)) // self._cores for node in nodes)
        wanted = min(self._workers or max(room, 1), most)
        self._residents = RayResidents(self._ray, part, settings, wanted, self._cores, self._say)
        return self._residents

    def carry_out(
        self, job: Job, units: Iterable[WorkUnit], worker: Worker | None = None
    ) -> Iterator[Receipt]:
        """Do units on all nodes; receipts come in the order in which units are done.

        The workers stay until other work comes: the next units of a job find all loaded.
        """
        if self._crew is None or self._crew.job != job:
            self._dismiss()
            self._crew = Crew(self._ray, job, self._workers, self._cores, self._say)
        try:
            yield from self._crew.receipts(iter(units))
        except BaseException:
            self._dismiss()
            raise

    def _dismiss(self) -> None:
        if self._residents is not None:
            self._residents.end()
            self._residents = None
        if self._crew is not None:
            self._crew.dismiss()
            self._crew = None


def _start(address: str | None) -> tuple[Any, bool]:
    """Connect to a cluster, or start one; return Ray, and whether to leave it in the end."""
    # Nobody asked for figures of use to be sent, or for warnings about that and about GPUs.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Of a node that is lost it would print pages on stdout, in the midst of a result.
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
    # By the name "local" one is started, though another program may have one of its own.
    own = _own() if address is None else {}
    for left in reversed(range(_TRIES)):
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
    """Return the error for a cluster that did not start, or answers and does not let us in."""
    if address is None:
        return RunError(f"no Ray cluster can be started on this machine: {text}")
    if _STILLBORN in text:
        return RunError(
            f"the Ray cluster at {address} answers, but starts no process for this command, which was "
            f"tried {count(_TRIES, 'time')}: {text}. Is its head node short of memory? Else start it again"
        )
    return RunError(
        f"the Ray cluster at {address} answers, but cannot be used from here: {text}. Install the same "
        "Ray and Python on all machines; from one that is no node of it, give --on ray://HOST:10001"
    )


def _address(asked: str | None) -> str | None:
    """Return where a cluster is that answers; None if one of our own is to be started.

    One that was asked for and does not answer is an error at once; one that `ray start` has started here
    and that is gone is no cluster.
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
    """Call who listens at ``HOST:PORT``; return the status of the answer, nothing if there is none.

    That a port is open does not say that a cluster is behind it: another program may have it by now.
    """
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return "OK"  # nothing is heard without a certificate
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
    """Have Ray send the token to a cluster that asks for it; raise if there is none, or another.

    Ray does not send it by itself to a cluster that is named by its address.
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
    """Return the settings of a cluster of our own: small, and quiet on a small /dev/shm."""
    settings: dict[str, Any] = {
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
    }
    with contextlib.suppress(OSError):
        shared = os.statvfs("/dev/shm")
        if shared.f_bavail * shared.f_frsize < 2 * _OBJECT_STORE_BYTES:
            # Where Ray would put it too, with a warning to those who can do nothing about it.
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
