"""Engines carry out units of work, in this process or on Ray, with the same files in the end.

A unit is a shard or a cell: its result is one file, whose name is a digest of everything it depends on.
"""

import errno
import hashlib
import importlib
import itertools
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from promptboost.distributed.storage import Storage
from promptboost.errors import PromptBoostError, RunError, SettingError
from promptboost.progress import Advance

Say = Callable[[str], None]


class UnitError(PromptBoostError):
    """A unit fails wherever it is tried: it is reported, and not tried again."""


class WorkUnit(msgspec.Struct, frozen=True):
    """One piece of work, small enough to send: its result, and where its inputs are."""

    name: str  # of the result file: a digest of all that the content depends on
    order: Any = None  # arguments for the worker: numbers, names, paths in storage; never vectors


class Job(msgspec.Struct, frozen=True):
    """What the units of one command have in common.

    Attributes
    ----------
    worker : str
        The class that does them, as ``"promptboost.package.module:Class"``. It is created with the
        settings, once in each process.
    settings : dict
        Its arguments, serializable as JSON.
    out : str
        The folder or URL of the results.
    folder : str
        The folder below it that holds them.
    device : str, optional
        Where workers compute; on ``"cpu"`` they reserve no GPU.
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

    def path(self, unit: WorkUnit) -> str:
        """Return the path of a result in the storage."""
        return f"{self.folder}/{unit.name}"

    def done(self) -> set[str]:
        """Return the names of all finished units, by listing the results once."""
        return set(self.storage.names(self.folder))


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What comes back for a unit; its result is in storage."""

    name: str
    items: int = 0  # images, texts or cells in it
    seconds: float = 0.0
    problem: str | None = None  # why it failed
    final: bool = False  # whether it would fail elsewhere too
    node: str = ""


class UnitResult(msgspec.Struct, frozen=True):
    """The content of a result file, and the number of items in it."""

    content: bytes
    items: int = 1


class Worker(Protocol):
    """Does units one after the other; what it needs is loaded once."""

    def do(self, order: Any) -> UnitResult:
        """Do one unit."""


class ResidentLostError(Exception):
    """A process has ended, and the state of its resident is lost."""


class Residents(Protocol):
    """Objects that keep state between calls, each in a process of its own."""

    def __len__(self) -> int:
        """Return how many there are."""

    def share(self, value: Any) -> Any:
        """Return a reference to a value that is sent to several residents."""

    def ask(self, number: int, call: str, *given: Any) -> Callable[[], Any]:
        """Call a method of one resident, and return a function for its result or ResidentLostError.

        Calls to one resident run in order, those to several at once.
        """

    def end(self) -> None:
        """End them."""


class LocalResidents:
    """Residents of this process, which answer at once.

    Examples
    --------
    >>> numbers = LocalResidents([[3, 1, 2]])
    >>> numbers.ask(0, "index", 2)()
    2
    """

    def __init__(self, residents: Sequence[Any]) -> None:
        self._residents = list(residents)

    def __len__(self) -> int:
        return len(self._residents)

    def share(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def ask(self, number: int, call: str, *given: Any) -> Callable[[], Any]:
        """Call a method at once."""
        answer = getattr(self._residents[number], call)(*given)
        return lambda: answer

    def end(self) -> None:
        """Remove them."""
        self._residents.clear()


class Engine(Protocol):
    """Carries out units and returns receipts as they come."""

    def carry_out(
        self, job: Job, units: Iterable[WorkUnit], worker: Worker | None = None
    ) -> Iterator[Receipt]:
        """Do units lazily; a failed one has a receipt too.

        An existing `worker` is used where the work is done in this process.
        """

    def residents(self, path: str, settings: dict[str, Any], most: int) -> Residents:
        """Create at most `most` objects of a class, ``"promptboost.package.module:Class"``.

        They end when the engine gets other work.
        """

    def close(self) -> None:
        """End every process it has started."""


@dataclass
class Outcome:
    """A summary of the units of a job."""

    units: int = 0
    done_before: int = 0
    items: int = 0
    seconds: float = 0.0  # of all workers together
    failed: list[Receipt] = field(default_factory=list)


class LocalEngine:
    """Does all units in this process, one after the other."""

    def carry_out(
        self, job: Job, units: Iterable[WorkUnit], worker: Worker | None = None
    ) -> Iterator[Receipt]:
        """Do units in order; a full disk ends it, as there is no other to write to."""
        for unit in units:
            worker = worker or make_worker(job)
            try:
                receipt = carry_out(job, worker, unit)
            except Exception as error:
                if isinstance(error, OSError) and (full := full_disk(job, error)) is not None:
                    raise full from error
                receipt = failed(unit, error)
            yield receipt

    def residents(self, path: str, settings: dict[str, Any], most: int) -> Residents:
        """Create one object here."""
        return LocalResidents([load_attribute(path)(**settings)])

    def close(self) -> None:
        """Do nothing: no process was started."""


def full_disk(job: Job, error: OSError) -> RunError | None:
    """Return the error to raise for a full disk; None for other errors."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    return RunError(
        f"{error.strerror}, in {job.out} or in the embedding cache. Finished work is kept: free some "
        "space and run the same command again"
    )


def load_attribute(path: str) -> Any:
    """Import ``"promptboost.package.module:name"``, and nothing outside of promptboost."""
    module, _, name = path.partition(":")
    if not module.startswith("promptboost."):
        raise ValueError(f"{path} is not a part of promptboost")
    return getattr(importlib.import_module(module), name)


def make_worker(job: Job) -> Worker:
    """Create the worker of a job."""
    worker: Worker = load_attribute(job.worker)(**job.settings)
    return worker


def carry_out(job: Job, worker: Worker, unit: WorkUnit) -> Receipt:
    """Do one unit and write its result atomically; an existing result is left as it is."""
    storage, node = job.storage, socket.gethostname()
    if job.path(unit) in storage:
        return Receipt(name=unit.name, node=node)
    start = time.perf_counter()
    result = worker.do(unit.order)
    storage.write(job.path(unit), result.content)
    seconds = time.perf_counter() - start
    return Receipt(name=unit.name, items=result.items, seconds=seconds, node=node)


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
    """Return a file name from a digest of all that a result depends on.

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
    """One of several equal parts of the units, for schedulers that start the same command n times.

    Examples
    --------
    >>> Share.parse("2/8")
    Share(number=2, of=8)
    >>> list(Share(2, 8).of_units(range(20)))
    [2, 10, 18]
    """

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
    """Where units are carried out, and which of them.

    Parameters
    ----------
    on, workers, cores
        As for :func:`open_engine`.
    share : Share, optional
        Do only a part, in this process.
    merge : bool, default=False
        Do nothing, and merge the results of all parts.
    storage : str, optional
        The folder or URL of shard results, visible to all machines; each command has a default. Cells are
        in the folder of their comparison.
    per_shard : int, optional
        The approximate number of images or texts per shard; another number makes other shards.

    Examples
    --------
    >>> Placement().elsewhere, Placement("ray").elsewhere, Placement(share=Share(0, 2)).in_parts
    (False, True, True)
    >>> Placement().in_shards, Placement(storage="s3://bucket/work").in_shards
    (False, True)
    """

    on: str = "local"
    workers: int | None = None
    cores: int | None = None
    share: Share | None = None
    merge: bool = False
    storage: str | None = None
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
        """Whether other processes do the work."""
        return self.on != "local"

    @property
    def in_parts(self) -> bool:
        """Whether the same command is started several times, with a part of the units each."""
        return self.share is not None or self.merge

    @property
    def in_shards(self) -> bool:
        """Whether images and texts are processed in shards at all."""
        stored = self.storage is not None or self.per_shard is not None
        return stored or self.elsewhere or self.in_parts

    def engine(self, say: Say = lambda _: None) -> Engine:
        """Open the engine; `say` is called with a line for people now and then."""
        return open_engine(self.on, workers=self.workers, cores=self.cores, say=say)


def open_engine(
    on: str = "local",
    *,
    workers: int | None = None,
    cores: int | None = None,
    say: Say = lambda _: None,
) -> Engine:
    """Open an engine by its name.

    Parameters
    ----------
    on : str
        ``"local"``: this process. ``"ray"``: the running Ray cluster, else a new one on this machine that
        ends with the command. ``"ray://HOST:PORT"``: a cluster elsewhere.
    workers : int, optional
        How many processes work; by default as many as there are GPUs, or cores by `cores`.
    cores : int, optional
        Cores for each worker; by default 1.
    say : callable, optional
        Called with a line for people now and then.

    Examples
    --------
    >>> open_engine("local").close()
    """
    if on == "local":
        return LocalEngine()
    if on == "ray" or on.startswith("ray://"):
        from promptboost.distributed.cluster import RayEngine

        return RayEngine(None if on == "ray" else on, workers=workers, cores=cores or 1, say=say)
    raise SettingError(f"on is {on!r}; give local, ray, or ray://HOST:PORT")


def run_units(
    engine: Engine,
    job: Job,
    units: Iterable[WorkUnit],
    *,
    advance: Advance | None = None,
    worker: Worker | None = None,
    each: Callable[[Receipt], None] = lambda _: None,
) -> Outcome:
    """Do the units without a result, and return a summary.

    `advance` is called with the number of items done, and `each` with every receipt. An existing `worker`
    is used by an engine that works in this process.
    """
    outcome, done = Outcome(), job.done()

    def missing() -> Iterator[WorkUnit]:
        for unit in units:
            outcome.units += 1
            if unit.name in done:
                outcome.done_before += 1
            else:
                yield unit

    for receipt in engine.carry_out(job, missing(), worker):
        outcome.items += receipt.items
        outcome.seconds += receipt.seconds
        if receipt.problem is not None:
            outcome.failed.append(receipt)
        if advance is not None:
            advance(receipt.items)
        each(receipt)
    return outcome
