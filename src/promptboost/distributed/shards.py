"""Shards: a listing cut into pieces, each one unit of work whose name is a digest of its content.

Where a shard ends depends only on the names near it: one image more or less among ten million changes a
shard or two, and all others keep their names and results.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from promptboost.distributed.engine import (
    Job,
    LocalEngine,
    Outcome,
    Placement,
    Say,
    WorkUnit,
    run_units,
    unit_name,
)
from promptboost.distributed.images import ImageItem
from promptboost.distributed.storage import Storage
from promptboost.errors import RunError, count
from promptboost.progress import Progress, no_progress, stage

#: Images of a shard, and texts: some seconds of work, which is all that a killed worker loses.
SHARD_IMAGES, SHARD_TEXTS = 512, 4096
_LISTS = "lists"
# Small files that are written at once: each takes as long as the storage takes to answer.
_WRITTEN_AT_ONCE = 16

Listed = TypeVar("Listed", bound=ImageItem | str)


def cut(items: Iterable[Listed], size: int) -> Iterator[list[Listed]]:
    """Cut a listing into shards of about `size` items: at least a quarter and at most twice of it.

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
        if len(shard) >= most or (len(shard) >= least and _ends(_name(item), size)):
            yield shard
            shard = []
    if shard:
        yield shard


def _name(item: ImageItem | str) -> str:
    return item if isinstance(item, str) else item.name


def _ends(name: str, size: int) -> bool:
    """Return whether a shard may end after a name: one name of `size`."""
    # By the file and its folder alone, wherever they are.
    short = name[name.rfind("/", 0, max(0, name.rfind("/"))) + 1 :]
    checksum = zlib.crc32(short.encode("utf-8", "surrogatepass"))
    # Names that differ in a digit have checksums that differ in few bits: spread them.
    return (checksum * 0x9E3779B1 >> 16 & 0xFFFF) * size < 0x10000


def read_list(storage: Storage, order: dict[str, Any]) -> list[Any]:
    """Read the items of a shard: images or texts."""
    item_type: Any = str if order["of"] == "texts" else ImageItem
    if "items" in order:
        return msgspec.convert(order["items"], list[item_type])
    content = storage.read(f"{_LISTS}/{order['list']}")
    return msgspec.json.decode(content, type=list[item_type])


@dataclass
class ShardPlan:
    """The shards of a job in their order, or those of one share of it; see :func:`plan_shards`.

    Attributes
    ----------
    sizes : list of int
        Items in each; 0 for a tar, which is not opened yet.
    """

    job: Job
    units: list[WorkUnit]
    sizes: list[int]
    outcome: Outcome | None = None

    @property
    def new(self) -> int:
        """How many were missing."""
        assert self.outcome is not None
        return self.outcome.units - self.outcome.done_before

    def results(self) -> Iterator[bytes]:
        """Read the results, one shard after the other."""
        return (self.job.storage.read(self.job.path(unit)) for unit in self.units)


def plan_shards(
    job: Job,
    shards: Iterable[Sequence[Any]],
    facts: Sequence[str],
    place: Placement,
    *,
    of: str,
    ending: str,
) -> ShardPlan:
    """Name shards by their content and by `facts`, and write the lists of those that are missing."""
    done, storage, share = job.done(), job.storage, place.share
    write = not place.merge
    listed = set(storage.names(_LISTS)) if write else set()
    units: list[WorkUnit] = []
    sizes: list[int] = []

    def orders() -> Iterator[tuple[str, bytes]]:
        for shard in shards if share is None else share.of_units(shards):
            content = msgspec.json.encode(list(shard))
            list_name = unit_name([content], ".json")
            name = unit_name([of, *facts, list_name], ending)
            first, size = shard[0], len(shard)
            order: dict[str, Any] = {"of": of, "list": list_name}
            if isinstance(first, ImageItem) and first.holds_many:
                order = {"of": of, "items": msgspec.to_builtins(shard)}
                size = 0 if first.rows is None else first.rows[1] - first.rows[0]
            elif write and name not in done and list_name not in listed:
                yield f"{_LISTS}/{list_name}", content
            units.append(WorkUnit(name, order))
            sizes.append(size)

    _write_all(storage, orders())
    return ShardPlan(job, units, sizes)


def _write_all(storage: Storage, files: Iterator[tuple[str, bytes]]) -> None:
    """Write files, several at once; only those are in memory."""
    with ThreadPoolExecutor(_WRITTEN_AT_ONCE) as threads:
        waiting = []
        for path, content in files:
            waiting.append(threads.submit(storage.write, path, content))
            if len(waiting) >= 4 * _WRITTEN_AT_ONCE:
                waiting.pop(0).result()
        for future in waiting:
            future.result()


def map_shards(
    shards: Iterable[Sequence[Any]],
    job: Job,
    facts: Sequence[str],
    place: Placement,
    *,
    of: str,
    ending: str,
    title: str,
    progress: Progress = no_progress,
    say: Say = lambda _: None,
) -> ShardPlan:
    """Apply the worker of a job to every shard without a result.

    Parameters
    ----------
    shards : iterable of sequences
        Images or texts; see :func:`cut`.
    job : Job
    facts : sequence of str
        What results depend on, besides the items of a shard.
    place : Placement
        Where the work is done, and which share of it; with ``merge``, all results must be there.
    of : str
        ``"images"`` or ``"texts"``.
    ending : str
        Of the names of results.
    title : str
        The stage that is reported as progress.
    progress, say : callable, optional

    Raises
    ------
    RunError
        If a shard fails, after all others are done; its items are reported by `say`.
    """
    plan = plan_shards(job, shards, facts, place, of=of, ending=ending)
    done = job.done()
    missing = [unit for unit in plan.units if unit.name not in done]
    if place.merge:
        if missing:
            raise RunError(
                f"{len(missing)} of {count(len(plan.units), 'shard')} are not in {job.out} yet. What "
                "is done is kept: do the rest, by the same command with --shard or --on, then --merge"
            )
        plan.outcome = Outcome(units=len(plan.units), done_before=len(plan.units))
        return plan
    sizes = zip(plan.units, plan.sizes, strict=True)
    done_items = sum(size for unit, size in sizes if unit.name in done)
    engine = place.engine(say) if place.elsewhere and missing else LocalEngine()
    try:
        with stage(progress, title, sum(plan.sizes) if all(plan.sizes) else None) as advance:
            advance(done_items)
            # Shards with the same content have one name, and are done once.
            units = {unit.name: unit for unit in plan.units}
            plan.outcome = run_units(engine, job, units.values(), advance=advance)
    finally:
        engine.close()
    for receipt in plan.outcome.failed:
        names = [_name(item) for item in read_list(job.storage, units[receipt.name].order)]
        say(f"a shard of {of} failed: {receipt.problem}. Its {of}: {', '.join(names)}")
    if plan.outcome.failed:
        first = plan.outcome.failed[0]
        items = read_list(job.storage, units[first.name].order)
        raise RunError(
            f"{len(plan.outcome.failed)} of {count(plan.outcome.units, 'shard')} of {of} could not be "
            f"done, the first ({_name(items[0])} to {_name(items[-1])}) because: {first.problem}. What is "
            f"done is kept in {job.out}: the same command does the rest"
        )
    return plan
