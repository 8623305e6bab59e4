"""A unit of work: a shard or a cell, whose result is one file named by all it depends on."""

import hashlib
import importlib
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import msgspec

from promptboost.distributed.storage import Storage
from promptboost.errors import PromptBoostError


class UnitError(PromptBoostError):
    """A unit cannot be done, here or elsewhere: it is reported, and not tried again."""


class WorkUnit(msgspec.Struct, frozen=True):
    """One piece of work, small enough to send: what it makes, and where to find what it needs."""

    name: str  # of the file it makes, from all that the content depends on
    order: Any = None  # what a worker is told: numbers, names, places in storage; never vectors
    group: str = ""  # those of one group load the same things, and are given to the same worker


class Job(msgspec.Struct, frozen=True):
    """What the units of one command have in common.

    Attributes
    ----------
    worker : str
        The class that does them, as ``"promptboost.room.file:Class"``. It is called with the settings,
        once in each process.
    settings : dict
        What it is made with, as JSON can hold it.
    out : str
        The folder or URL of the results.
    folder : str
        The folder below it in which they lie.
    device : str, optional
        What workers compute on; on ``"cpu"`` they leave GPUs to others.
    """

    worker: str
    settings: dict[str, Any]
    out: str
    folder: str = "units"
    device: str | None = None

    @property
    def storage(self) -> Storage:
        """Where results are written."""
        return Storage(self.out)

    def place(self, unit: WorkUnit) -> str:
        """Return where the result of a unit lies in the storage."""
        return f"{self.folder}/{unit.name}"

    def done(self) -> set[str]:
        """Return the names of all units that are done: one listing, however many they are."""
        return set(self.storage.names(self.folder))


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What comes back for a unit: never its result, which is in storage."""

    name: str
    items: int = 0  # images, texts or cells in it
    seconds: float = 0.0
    problem: str | None = None  # why it could not be done
    hopeless: bool = False  # whether it would fail elsewhere too
    node: str = ""
    skipped: bool = False  # whether it was there already


class Result(msgspec.Struct, frozen=True):
    """What a worker makes of a unit: the content of its file, and what its receipt says."""

    content: bytes
    items: int = 1


class Worker(Protocol):
    """Does units, one after the other, with what it has loaded once."""

    def do(self, order: Any) -> Result:
        """Do one unit."""


class ItemWorker(Worker, Protocol):
    """Does units of which single items can be left out: those named in ``order["lost"]``, with why."""

    def items(self, order: Any) -> Iterator[str]:
        """Try the items of a unit one by one, for nothing; the name of each comes before it is touched.

        The first has no name: something plain, so that a worker which ends on anything is known.
        """


def part_of_promptboost(name: str) -> Any:
    """Return a class or function by its name, ``"promptboost.room.file:name"``, and nothing else."""
    module, _, name_there = name.partition(":")
    if not module.startswith("promptboost."):
        raise ValueError(f"{name} is not a part of promptboost")
    return getattr(importlib.import_module(module), name_there)


def make_worker(job: Job) -> Worker:
    """Make the worker of a job."""
    worker: Worker = part_of_promptboost(job.worker)(**job.settings)
    return worker


def carry_out(job: Job, worker: Worker, unit: WorkUnit) -> Receipt:
    """Do one unit and write its result, whole; what is there already is left as it is."""
    storage, node = job.storage, socket.gethostname()
    if job.place(unit) in storage:
        return Receipt(name=unit.name, node=node, skipped=True)
    start = time.perf_counter()
    result = worker.do(unit.order)
    storage.write(job.place(unit), result.content)
    return Receipt(
        name=unit.name,
        items=result.items,
        seconds=time.perf_counter() - start,
        node=node,
    )


def try_unit(job: Job, worker: Worker, unit: WorkUnit) -> Receipt:
    """Do one unit; what is wrong with it is in the receipt, so that it is never the end of the others."""
    try:
        return carry_out(job, worker, unit)
    except Exception as error:
        return failed(unit, error)


def failed(unit: WorkUnit, error: Exception) -> Receipt:
    """Return the receipt of a unit that raised; what nobody raised on purpose is named by its kind."""
    kind = "" if isinstance(error, PromptBoostError) else f"{type(error).__name__}: "
    return Receipt(
        name=unit.name,
        problem=f"{kind}{error}",
        hopeless=isinstance(error, UnitError),
        node=socket.gethostname(),
    )


def unit_name(parts: Iterable[str | bytes], ending: str) -> str:
    """Return a name made of all that a result depends on.

    Examples
    --------
    >>> unit_name(["texts", "fake:16-0", "a cat"], ".safetensors")
    'a0a995ece6ae8fb83a24.safetensors'
    """
    digest = hashlib.blake2b(digest_size=10)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        # The length first, so that no two lists of parts read the same.
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest() + ending
