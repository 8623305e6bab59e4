"""Shards: a listing cut into fixed pieces, each one unit of work whose name is made of what is in it.

Where a shard ends depends on the names near that place alone: an image more or less in the middle of ten
million changes a shard or two, and all others keep their names and their results. A plan knows shards,
not images: of a hundred million images it holds some two hundred thousand names.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from promptboost.distributed.engine import LocalEngine, Outcome, Placement, Say, Share, run_units
from promptboost.distributed.items import ImageItem
from promptboost.distributed.storage import Storage
from promptboost.distributed.unit import Job, WorkUnit, unit_name
from promptboost.errors import RunError, count
from promptboost.progress import Progress, stage

#: Images of a shard, and texts: some seconds of work, which is all that a killed worker loses.
SHARD_IMAGES, SHARD_TEXTS = 512, 4096
_LISTS = "lists"
_WRITTEN_AT_ONCE = 16

Listed = TypeVar("Listed", bound=ImageItem | str)


def cut(items: Iterable[Listed], size: int) -> Iterator[list[Listed]]:
    """Cut a listing into shards of about `size` items, a quarter of it at least and twice it at most.

    A shard ends after an item whose name hashes to it, so that shards before and after a change stay.
    A part of a Parquet file and a tar are a shard of their own.

    Examples
    --------
    >>> names = [f"{number}.png" for number in range(40)]
    >>> before, after = list(cut(names, 8)), list(cut(["00.png", *names], 8))
    >>> [len(shard) for shard in before], [len(shard) for shard in after]
    ([7, 8, 6, 13, 5, 1], [8, 8, 6, 13, 5, 1])
    >>> before[1:] == after[1:]
    True
    """
    least, most = max(1, size // 4), 2 * size
    shard: list[Listed] = []
    for item in items:
        if isinstance(item, ImageItem) and item.holds_many:
            if shard:
                yield shard
                shard = []
            yield [item]
            continue
        shard.append(item)
        name = item if isinstance(item, str) else item.name
        if len(shard) < least:
            continue
        if len(shard) >= most or _ends(name, size):
            yield shard
            shard = []
    if shard:
        yield shard


def _ends(name: str, size: int) -> bool:
    """Tell whether a shard may end after a name: one name of so many."""
    # By the file and its folder alone, wherever they lie.
    short = name[name.rfind("/", 0, max(0, name.rfind("/"))) + 1 :]
    checksum = zlib.crc32(short.encode("utf-8", "surrogatepass"))
    # Names that differ in a digit have checksums that differ in few bits: spread them.
    return (checksum * 0x9E3779B1 >> 16 & 0xFFFF) * size < 0x10000


def read_list(job_storage: Storage, order: dict[str, Any]) -> list[Any]:
    """Read what is in a shard: items of images, or texts."""
    if "items" in order:
        return msgspec.convert(order["items"], list[ImageItem])
    content = job_storage.read(f"{_LISTS}/{order['list']}")
    if order["of"] == "texts":
        texts: list[str] = msgspec.json.decode(content, type=list[str])
        return texts
    return msgspec.json.decode(content, type=list[ImageItem])


@dataclass
class ShardPlan:
    """The shards of a job in their order; made by :meth:`of`.

    Attributes
    ----------
    job : Job
    units : list of WorkUnit
        All of them, or those of one share.
    sizes : list of int
        Items in each; 0 for a tar, which nobody has opened yet.
    """

    job: Job
    units: list[WorkUnit] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        job: Job,
        shards: Iterable[Sequence[Any]],
        facts: Sequence[str],
        *,
        of: str,
        ending: str,
        share: Share | None = None,
        write: bool = True,
    ) -> "ShardPlan":
        """Name shards by what they hold and by `facts`, and write the lists of those that are missing."""
        plan, done, storage = cls(job), job.done(), job.storage
        known = set(storage.names(_LISTS)) if write else set()
        with _Writer(storage) as writer:
            for number, shard in enumerate(shards):
                if share is not None and number % share.of != share.number:
                    continue
                content = msgspec.json.encode(list(shard))
                listed = unit_name([content], ".json")
                name = unit_name([of, *facts, listed], ending)
                order: dict[str, Any] = {"of": of, "list": listed}
                if _holds_many(shard):
                    order = {"of": of, "items": msgspec.to_builtins(shard)}
                elif write and name not in done and listed not in known:
                    writer.write(f"{_LISTS}/{listed}", content)
                plan.units.append(WorkUnit(name, order))
                plan.sizes.append(_size(shard))
        return plan

    @property
    def total(self) -> int | None:
        """How many items there are; None if that is not known before all are done."""
        return sum(self.sizes) if all(self.sizes) else None

    def missing(self) -> list[WorkUnit]:
        """Return the units that are not done: one listing of results, and no look at any image."""
        done = self.job.done()
        return [unit for unit in self.units if unit.name not in done]

    def check_complete(self) -> None:
        """Raise if the result of a shard is not there: nothing is put together of a part."""
        if missing := self.missing():
            raise RunError(
                f"{len(missing)} of {count(len(self.units), 'shard')} are not in {self.job.out} yet. What "
                "is done is kept: do the rest, by the same command with --shard or --on, then --merge"
            )

    def results(self) -> Iterator[bytes]:
        """Read the results, one shard after the other."""
        storage = self.job.storage
        for unit in self.units:
            yield storage.read(self.job.place(unit))


def carry_out_plan(
    plan: ShardPlan,
    placement: Placement,
    progress: Progress,
    title: str,
    *,
    what: str,
    say: Say = lambda _: None,
) -> Outcome:
    """Do what is missing of a plan, where it is to be done; raise if a shard could not be done.

    `title` is the stage that is reported; `say` is called with what people should know, such as that a
    worker is lost.
    """
    if placement.merge:
        plan.check_complete()
        return Outcome(units=len(plan.units), done_before=len(plan.units))
    todo = {unit.name for unit in plan.missing()}
    before = sum(
        size for unit, size in zip(plan.units, plan.sizes, strict=True) if unit.name not in todo
    )
    engine = placement.engine(say) if placement.elsewhere and todo else LocalEngine()
    try:
        with stage(progress, title, plan.total) as advance:
            advance(before)
            # Shards with the same content have one name, and are done once.
            distinct = {unit.name: unit for unit in plan.units}
            outcome = run_units(engine, plan.job, distinct.values(), advance=advance)
    finally:
        engine.close()
    if outcome.failed:
        first = outcome.failed[0]
        raise RunError(
            f"{len(outcome.failed)} of {count(outcome.units, 'shard')} of {what} could not be done, "
            f"the first because: {first.problem}. What is done is kept in {plan.job.out}: the same command "
            "does the rest"
        )
    return outcome


class _Writer:
    """Writes small files several at a time: each takes as long as the storage takes to answer."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._threads = ThreadPoolExecutor(_WRITTEN_AT_ONCE)
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._threads.shutdown(cancel_futures=kind is not None)
        while kind is None and self._waiting:
            self._waiting.popleft().result()

    def write(self, name: str, content: bytes) -> None:
        if len(self._waiting) >= 4 * _WRITTEN_AT_ONCE:  # what waits is in memory
            self._waiting.popleft().result()
        self._waiting.append(self._threads.submit(self._storage.write, name, content))


def _holds_many(shard: Sequence[Any]) -> bool:
    return isinstance(shard[0], ImageItem) and shard[0].holds_many


def _size(shard: Sequence[Any]) -> int:
    if _holds_many(shard):
        rows = shard[0].rows
        return 0 if rows is None else rows[1] - rows[0]
    return len(shard)
