"""Engines process units of work in this process or on Ray, and write the same files.

A unit is a shard or a cell. Its result is one file, whose name is a digest of everything it depends on.
Shards are a listing cut into units, each named by a digest of its content: one more image among ten million
changes one or two, and all others keep their names and results.
"""

import errno
import hashlib
import importlib
import itertools
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from promptboost.distributed.storage import Storage
from promptboost.errors import PromptBoostError, RunError, SettingError, count, few
from promptboost.progress import Progress, no_progress, stage

Say = Callable[[str], None]
# Most names of items in the message about a shard that failed.
_NAMED = 1024


class UnitError(PromptBoostError):
    """A unit that fails on every machine; it is reported and not retried."""


class WorkUnit(msgspec.Struct, frozen=True):
    """One unit of work: the name of its result file, and the argument for the worker."""

    name: str  # a digest of everything that the result depends on
    order: Any = None  # small and serializable: numbers, names, paths; no embeddings


class Job(msgspec.Struct, frozen=True):
    """Settings shared by all units of a command."""

    worker: str  # its class, "promptboost.package.module:Class"; created once per process
    settings: dict[str, Any]  # its arguments, serializable as JSON
    out: str  # folder or URL of the results
    folder: str = "units"  # subfolder of the result files
    device: str | None = None  # on "cpu", workers reserve no GPU

    @property
    def storage(self) -> Storage:
        """Where results are written."""
        return Storage(self.out)

    def path(self, unit: WorkUnit) -> str:
        """Return the path of a result in the storage."""
        return f"{self.folder}/{unit.name}"

    def done(self) -> set[str]:
        """Return the names of all finished units, by listing the results once."""
        return set(self.storage.names(self.folder))


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one unit; its result is in storage."""

    name: str
    seconds: float = 0.0
    problem: str | None = None  # the error message of a failed unit
    final: bool = False  # whether retrying is useless
    node: str = ""


class Worker(Protocol):
    """Processes units one after the other; models are loaded once."""

    def do(self, order: Any) -> bytes:
        """Process one unit; return the content of its result file."""


class Engine:
    """Processes units one after the other in this process; a subclass does so on Ray."""

    def carry_out(
        self, job: Job, units: Iterable[WorkUnit], worker: Worker | None = None
    ) -> Iterator[Receipt]:
        """Process units lazily, by an existing `worker` if it is in this process; yield receipts.

        Raise RunError if the disk is full.
        """
        for unit in units:
            worker = worker or make_worker(job)
            try:
                receipt = carry_out(job, worker, unit)
            except Exception as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise RunError(
                        f"{error.strerror}, in {job.out} or in the embedding cache. Finished work is "
                        "kept: free some space and run the same command again"
                    ) from error
                receipt = failed(unit, error)
            yield receipt

    def close(self) -> None:
        """End all processes that were started for it."""


def make_worker(job: Job) -> Worker:
    """Import and create the worker of a job; nothing outside of promptboost is imported."""
    module, _, name = job.worker.partition(":")
    if not module.startswith("promptboost."):
        raise ValueError(f"{job.worker} is not a part of promptboost")
    worker: Worker = getattr(importlib.import_module(module), name)(**job.settings)
    return worker


def carry_out(job: Job, worker: Worker, unit: WorkUnit) -> Receipt:
    """Process one unit and write its result atomically, unless the result exists."""
    storage, node = job.storage, socket.gethostname()
    if job.path(unit) in storage:
        return Receipt(name=unit.name, node=node)
    start = time.perf_counter()
    storage.write(job.path(unit), worker.do(unit.order))
    seconds = time.perf_counter() - start
    return Receipt(name=unit.name, seconds=seconds, node=node)


def failed(unit: WorkUnit, error: Exception) -> Receipt:
    """Return the receipt of a unit that raised; unexpected errors are named by their type."""
    kind = "" if isinstance(error, PromptBoostError) else f"{type(error).__name__}: "
    return Receipt(
        name=unit.name,
        problem=f"{kind}{error}",
        final=isinstance(error, UnitError),
        node=socket.gethostname(),
    )


def unit_name(parts: Iterable[str | bytes], ending: str) -> str:
    """Return a file name that is a digest of everything a result depends on.

    Examples
    --------
    >>> unit_name(["texts", "fake:16-0", "a cat"], ".safetensors")
    'a0a995ece6ae8fb83a24.safetensors'
    """
    digest = hashlib.blake2b(digest_size=10)
    for content in parts:
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        # The length first, so that no two lists of parts have the same digest.
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest() + ending


@dataclass(frozen=True)
class Share:
    """One of n equal shares of the units, for schedulers that start the same command n times."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Read ``i/n``, with i from 0 to n − 1."""
        match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if match is None or not int(match[1]) < int(match[2]):
            raise SettingError(
                f"the shard is {text!r}; give its number, from 0, and how many there are, as in 0/8"
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def of_units(self, units: Iterable[Any]) -> Iterator[Any]:
        """Return every n-th unit."""
        return itertools.islice(units, self.number, None, self.of)


@dataclass(frozen=True)
class Placement:
    """Where units are processed, and which of them."""

    # ``"local"``: this process. ``"ray"``: the running Ray cluster, or a new one on this machine.
    # ``"ray://HOST:PORT"``: a remote cluster.
    on: str = "local"
    # number of worker processes; by default one per GPU, or as many as the cores allow
    workers: int | None = None
    cores: int | None = None  # cores per worker; by default 1
    share: Share | None = None  # process only this share, in this process
    merge: bool = False  # only merge the results of all shares
    # the folder or URL of shard results, visible to all machines. Each command has a default; cells
    # are stored in the folder of their comparison.
    storage: str | None = None
    # the approximate number of images or texts per shard; changing it changes all shards
    per_shard: int | None = None

    def __post_init__(self) -> None:
        if self.on not in ("local", "ray") and not self.on.startswith("ray://"):
            raise SettingError(f"--on is {self.on!r}; give local, ray, or ray://HOST:PORT")
        if self.in_parts and self.elsewhere:
            raise SettingError("--shard and --merge are for work without Ray: leave --on out")
        if self.share is not None and self.merge:
            raise SettingError("--merge comes after all parts are done: leave --shard out")
        if not self.elsewhere and (self.workers is not None or self.cores is not None):
            raise SettingError("--workers and --cores are for --on ray")

    @property
    def elsewhere(self) -> bool:
        """Whether the work is done by other processes."""
        return self.on != "local"

    @property
    def in_parts(self) -> bool:
        """Whether the command is started several times, once per share."""
        return self.share is not None or self.merge

    @property
    def in_shards(self) -> bool:
        """Whether images and texts are processed in shards at all."""
        stored = self.storage is not None or self.per_shard is not None
        return stored or self.elsewhere or self.in_parts

    def engine(self, say: Say = lambda _: None) -> Engine:
        """Open the engine; `say` is called with status messages.

        A Ray cluster that is started for it ends with it.
        """
        if not self.elsewhere:
            return Engine()
        from promptboost.distributed.cluster import RayEngine

        address = None if self.on == "ray" else self.on
        return RayEngine(address, workers=self.workers, cores=self.cores or 1, say=say)


def read_shard(order: bytes, kind: Any) -> list[Any]:
    """Return the items of a shard, which are texts or images of a listing."""
    return msgspec.json.decode(zlib.decompress(order), type=list[kind])


@dataclass
class ShardPlan:
    """The shards of a job in order, or those of one share."""

    job: Job
    done: set[str]  # names of shards with results
    units: list[WorkUnit] = field(default_factory=list)
    new: int = 0  # number of shards that were missing
    seconds: float = 0.0  # of all workers together

    def results(self) -> Iterator[bytes]:
        """Read the results, one shard after the other."""
        return (self.job.storage.read(self.job.path(unit)) for unit in self.units)


def plan_shards(
    job: Job,
    shards: Iterable[Sequence[Any]],
    facts: Sequence[str],
    placement: Placement,
    *,
    of: str,
    ending: str,
) -> ShardPlan:
    """Name shards by their content and by `facts`; finished shards keep no list of items in memory."""
    plan = ShardPlan(job, job.done())
    for shard in shards if placement.share is None else placement.share.of_units(shards):
        content = msgspec.json.encode(list(shard))
        name = unit_name([of, *facts, unit_name([content], ".json")], ending)
        # Names compress well, to some 25 bytes per image.
        order = None if name in plan.done or placement.merge else zlib.compress(content, 1)
        plan.units.append(WorkUnit(name, order))
    return plan


def map_shards(
    shards: Iterable[Sequence[Any]],
    job: Job,
    facts: Sequence[str],
    placement: Placement,
    *,
    of: str,
    ending: str,
    title: str,
    progress: Progress = no_progress,
    say: Say = lambda _: None,
) -> ShardPlan:
    """Apply the worker of a job to every shard without a result.

    Results depend on the items of a shard (`of` images or texts) and on `facts`; their files end in
    `ending`. With ``placement.merge``, all must exist. If a shard fails, `say` is called with its
    items, the others are finished, and RunError is raised.
    """
    plan = plan_shards(job, shards, facts, placement, of=of, ending=ending)
    # Shards with the same content have one name and are processed once.
    missing = {unit.name: unit for unit in plan.units if unit.name not in plan.done}
    if placement.merge:
        if missing:
            raise RunError(
                f"{len(missing)} of {count(len(plan.units), 'shard')} are not in {job.out} yet. Finished "
                "work is kept: run the same command with --shard or --on for the rest, then --merge"
            )
        return plan
    plan.new, failures = len(missing), []
    engine = placement.engine(say) if missing else Engine()
    try:
        with stage(progress, title, len(missing)) as advance:
            for receipt in engine.carry_out(job, missing.values()):
                advance()
                plan.seconds += receipt.seconds
                if receipt.problem is not None:
                    failures.append(receipt)
    finally:
        engine.close()
    for receipt in failures:
        entries = read_shard(missing[receipt.name].order, Any)
        names = [entry if isinstance(entry, str) else entry[0] for entry in entries]
        say(f"a shard of {of} failed: {receipt.problem}. Its {of}: {few(names, _NAMED)}")
    if failures:
        raise RunError(
            f"{len(failures)} of {count(len(plan.units), 'shard')} of {of} could not be processed, the "
            f"first because: {failures[0].problem}. Finished work is kept in {job.out}: run the same "
            "command again for the rest"
        )
    return plan
