"""Shards: a listing cut into units of work, each named by a digest of its content.

A cut depends only on the names around it: one more image among ten million changes one or two shards, and
all others keep their names and results.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from promptboost.distributed.engine import Engine, Job, Placement, Say, WorkUnit, unit_name
from promptboost.distributed.images import ImageItem
from promptboost.errors import RunError, count, few
from promptboost.progress import Progress, no_progress, stage

#: Images and texts per shard: some seconds of work, which is what a killed worker loses.
SHARD_IMAGES, SHARD_TEXTS = 512, 4096

Listed = TypeVar("Listed", bound=ImageItem | str)


def cut(items: Iterable[Listed], size: int) -> Iterator[list[Listed]]:
    """Cut a listing into shards of about `size` items: at least a quarter and at most twice of it.

    A shard ends after an item whose name hashes to zero modulo `size`, so that shards before and after a
    change stay the same. A part of a Parquet file and a tar are a shard of their own.
    """
    least, most = max(1, size // 4), 2 * size
    shard: list[Listed] = []
    for entry in items:
        if isinstance(entry, ImageItem) and entry.holds_many:
            if shard:
                yield shard
                shard = []
            yield [entry]
            continue
        shard.append(entry)
        if len(shard) >= most or (len(shard) >= least and _ends(_name(entry), size)):
            yield shard
            shard = []
    if shard:
        yield shard


def _name(entry: ImageItem | str) -> str:
    return entry if isinstance(entry, str) else entry.name


def _ends(name: str, size: int) -> bool:
    """Return True for one name out of `size`."""
    # Only the file and its folder count, wherever they are.
    short = name[name.rfind("/", 0, max(0, name.rfind("/"))) + 1 :]
    checksum = zlib.crc32(short.encode("utf-8", "surrogatepass"))
    # Names that differ in a digit have checksums that differ in few bits: spread them.
    return (checksum * 0x9E3779B1 >> 16 & 0xFFFF) * size < 0x10000


def read_texts(order: bytes) -> list[str]:
    """Return the texts of a shard."""
    return msgspec.json.decode(zlib.decompress(order), type=list[str])


def read_images(order: bytes) -> list[ImageItem]:
    """Return the listed images of a shard."""
    return msgspec.json.decode(zlib.decompress(order), type=list[ImageItem])


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
        entries = msgspec.json.decode(zlib.decompress(missing[receipt.name].order))
        names = [entry if isinstance(entry, str) else entry[0] for entry in entries]
        say(f"a shard of {of} failed: {receipt.problem}. Its {of}: {few(names, 2 * SHARD_IMAGES)}")
    if failures:
        raise RunError(
            f"{len(failures)} of {count(len(plan.units), 'shard')} of {of} could not be processed, the "
            f"first because: {failures[0].problem}. Finished work is kept in {job.out}: run the same "
            "command again for the rest"
        )
    return plan
