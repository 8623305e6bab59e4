"""Engines: what carries units out, in this process or on Ray, with the same files in the end."""

import errno
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from promptboost.distributed.unit import (
    Job,
    Receipt,
    Worker,
    WorkUnit,
    carry_out,
    failed,
    make_worker,
    part_of_promptboost,
)
from promptboost.errors import RunError, SettingError
from promptboost.progress import Advance

if TYPE_CHECKING:
    from promptboost.distributed.residents import Residents

Say = Callable[[str], None]


def full_disk(job: Job, error: OSError) -> RunError | None:
    """Return what to raise where a disk is full; None if it is something else."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    return RunError(
        f"{error.strerror}, in {job.out} or where embeddings are kept. What is done is kept: make room, "
        "and the same command goes on"
    )


class Engine(Protocol):
    """Carries out units and returns receipts as they come."""

    def carry_out(
        self, job: Job, units: Iterable[WorkUnit], worker: Worker | None = None
    ) -> Iterator[Receipt]:
        """Do units, some ahead of what was asked for, never all; a failed one has a receipt too.

        A `worker` that is there already is used where the work is done in this process.
        """

    def residents(self, part: str, settings: dict[str, Any], most: int) -> "Residents":
        """Make objects of a class of promptboost, ``"promptboost.room.file:Class"``, that stay.

        Each is in a process of its own, as many as the engine has and no more than `most`. What they are
        asked and answer are small numbers. They end when the engine gets other work.
        """

    def close(self) -> None:
        """End every process it has started."""


@dataclass
class Outcome:
    """What became of the units of a job."""

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

    def residents(self, part: str, settings: dict[str, Any], most: int) -> "Residents":
        """Make one object here."""
        from promptboost.distributed.residents import LocalResidents

        return LocalResidents([part_of_promptboost(part)(**settings)])

    def close(self) -> None:
        """Do nothing: no process was started."""


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
        Do nothing, and put together what all parts have done.
    storage : str, optional
        Where the results of shards lie: a folder that all machines see, or a URL; a default of the command
        if it is not given. Cells lie in the folder of their comparison.
    per_shard : int, optional
        About so many images or texts in each shard; another number makes other shards.

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
        """Whether images and texts are done in shards at all."""
        asked = self.storage is not None or self.per_shard is not None
        return asked or self.elsewhere or self.in_parts

    def engine(self, say: Say = lambda _: None) -> Engine:
        """Open the engine; `say` is told what people should know, such as that the cluster is full."""
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
        ``"local"``: this process. ``"ray"``: the Ray cluster that is running, else one that is started on
        this machine and ends with the command. ``"ray://HOST:PORT"``: a cluster elsewhere.
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
    share: Share | None = None,
    advance: Advance | None = None,
    worker: Worker | None = None,
    each: Callable[[Receipt], None] = lambda _: None,
) -> Outcome:
    """Do what is missing, and return what became of it.

    `advance` is called with the number of items done, and `each` with every receipt. A `worker` that is
    there already is used by an engine that works in this process.
    """
    outcome, done = Outcome(), job.done()

    def missing() -> Iterator[WorkUnit]:
        for unit in units if share is None else share.of_units(units):
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
