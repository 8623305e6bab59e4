"""A Ray cluster as an engine: the one that runs here or elsewhere, else one of this machine's cores."""

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from promptboost.errors import MissingExtraError, RunError, count
from promptboost.scale.crew import Crew, Home
from promptboost.scale.unit import Job, Receipt, Worker, WorkUnit, part_of_promptboost

# About the least that Ray takes: nothing of ours goes through it.
_OBJECT_STORE_BYTES = 80 * 2**20
_RETRIES = 5


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

    def call(self, function: str, orders: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a function on all nodes; a call whose process or node is lost is made again."""
        self._dismiss()
        remote = self._ray.remote(_call).options(num_cpus=self._cores, max_retries=_RETRIES)
        home = Home.here()
        answers: list[Any] = self._ray.get(
            [remote.remote(function, order, home) for order in orders]
        )
        return answers

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
        if self._crew is not None:
            self._crew.dismiss()
            self._crew = None


def _call(function: str, order: tuple[Any, ...], home: Home) -> Any:
    home.enter()
    return part_of_promptboost(function)(*order)


def _start(address: str | None) -> tuple[Any, bool]:
    """Connect to a cluster, or start one; return Ray, and whether to leave it in the end."""
    # Nobody asked for figures of use to be sent, or for warnings about that and about GPUs.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Of a node that is lost it would print pages on stdout, in the midst of a result.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            "Ray is not installed; type: pip install 'promptboost[ray]'"
        ) from error
    if ray.is_initialized():
        return ray, False
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    address = address or os.environ.get("RAY_ADDRESS") or _running()
    try:
        if address is not None:
            ray.init(address, **quiet)
        else:
            # By that name one is started, though another program may have one of its own.
            ray.init("local", **_own(), **quiet)
    except (OSError, ValueError, RuntimeError) as error:  # a path too long for a socket, too
        with contextlib.suppress(Exception):
            ray.shutdown()
        where = f"at {address}" if address else "on this machine"
        text = " ".join(str(error).split())
        raise RunError(f"no Ray cluster can be reached {where}: {text}") from error
    return ray, True


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
    return os.environ.get("RAY_TMPDIR") or "/tmp"


def _running() -> str | None:
    """Return the address of the cluster that ``ray start`` has started here, if it answers.

    Ray's own search takes any cluster, also one that another command has for itself and soon ends.
    """
    with contextlib.suppress(OSError, ValueError):
        address = (Path(_folder()) / "ray" / "ray_current_cluster").read_text().strip()
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=2):
            return address
    return None
