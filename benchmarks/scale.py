"""What work beyond one process costs: ``python -m benchmarks.scale [--json] [--shards N] [--seconds S]``.

There are four measurements, each beside what it is compared with, in the same run:

* Overhead: shards of texts that conse:lite0 embeds in about ten seconds each, in this process and by one
  worker on Ray, turn about. The worker is loaded before anything is timed.
* Efficiency: the same shards by one worker and by two, beside two plain processes without Ray, which is
  what the machine has to give. On a machine that others use, the share of its time that a worker was at
  work says more than the clock does, and so do the seconds of a shard in which it was not.
* Memory: the most that the command took, and that Ray's object store held, while texts were embedded in
  shards, for two numbers of shards of which one is ten times the other.
* Planning: seconds until a resume knows what is missing of 10^8 rows of Parquet files, half of which are
  done, from a listing that is made up; and the same for a million files that are listed one by one.
"""

import argparse
import base64
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from promptboost.distributed.engine import (
    Engine,
    Job,
    Placement,
    ShardPlan,
    WorkUnit,
    carry_out,
    make_worker,
    plan_shards,
)
from promptboost.distributed.images import SHARD_IMAGES, TABLE_ROWS, ImageItem, cut
from promptboost.pool import TEMPLATES, fill
from promptboost.pool.readers import emoji_descriptions
from promptboost.threads import set_threads

_WORKER = "promptboost.distributed.shard_embeddings:TextShardWorker"
_ENCODER = "conse:lite0"
_MEGABYTE = 2**20
_ROWS = 10**8


def texts() -> Iterator[str]:
    """Return sentences without end, no two of them alike."""
    names = list(emoji_descriptions())
    number = 0
    while True:
        for template in TEMPLATES:
            yield f"{fill(template, names[number % len(names)])} {number}"
            number += 1


def plan_of(out: Path, shards: Iterable[Sequence[str]], encoder: str) -> ShardPlan:
    """Return shards of texts as units."""
    settings = {"encoder": encoder, "device": "cpu"}
    job = Job(_WORKER, settings, str(out), device="cpu")
    return plan_shards(job, shards, [encoder], Placement(), of="texts", ending=".bin")


def shards_of(folder: Path, count: int, seconds: float) -> ShardPlan:
    """Return so many shards that take about so many seconds each in one thread."""
    stream = texts()
    probe = [next(stream) for _ in range(300)]
    plan = plan_of(folder, [probe], _ENCODER)
    worker = make_worker(plan.job)
    worker.do(plan.units[0].order)  # what happens only once is over then
    start = time.perf_counter()
    worker.do(plan.units[0].order)
    size = max(1, int(len(probe) * seconds / (time.perf_counter() - start)))
    lists = [[next(stream) for _ in range(size)] for _ in range(count)]
    return plan_of(folder, lists, _ENCODER)


def timed(
    engine: Engine, job: Job, units: Sequence[WorkUnit], worker: Any = None
) -> tuple[float, float]:
    """Return how long units take whose results are not there, and how long workers were at work."""
    for unit in units:
        job.storage.remove(job.path(unit))
    start = time.perf_counter()
    receipts = list(engine.carry_out(job, units, worker))
    seconds = time.perf_counter() - start
    assert not any(receipt.problem for receipt in receipts), receipts
    return seconds, sum(receipt.seconds for receipt in receipts)


def overhead(folder: Path, count: int, seconds: float) -> dict[str, Any]:
    """Measure shards in this process and by one worker, turn about."""
    plan = shards_of(folder, count, seconds)
    worker, local = make_worker(plan.job), Engine()
    here, there, at_work = [], [], []
    engine = Placement("ray", workers=1).engine()
    try:
        timed(engine, plan.job, plan.units[:1])
        for unit in plan.units:
            here.append(timed(local, plan.job, [unit], worker)[0])
            seconds, busy = timed(engine, plan.job, [unit])
            there.append(seconds)
            at_work.append(busy)
    finally:
        engine.close()
    ratios = [two / one for one, two in zip(here, there, strict=True)]
    return {
        "shards": count,
        "seconds_here": here,
        "seconds_on_ray": there,
        "overhead": statistics.median(ratios) - 1,
        "seconds_beside_the_work": statistics.median(
            all_of_it - busy for all_of_it, busy in zip(there, at_work, strict=True)
        ),
    }


def efficiency(folder: Path, count: int, seconds: float) -> dict[str, Any]:
    """Measure the same shards by one worker, by two, and by two processes without Ray."""
    plan = shards_of(folder, count, seconds)
    taken, at_work = {}, {}
    for workers in (1, 2):
        engine = Placement("ray", workers=workers).engine()
        try:
            timed(engine, plan.job, plan.units[:workers])
            taken[workers], at_work[workers] = timed(engine, plan.job, plan.units)
        finally:
            engine.close()
    plain = two_processes(plan)
    return {
        "shards": count,
        "seconds_by_workers": taken,
        "seconds_of_two_plain_processes": plain,
        "efficiency": taken[1] / (2 * taken[2]),
        "against_plain_processes": plain / taken[2],
        "share_at_work": {n: at_work[n] / (n * taken[n]) for n in taken},
    }


def two_processes(plan: ShardPlan) -> float:
    """Have two processes do half of the shards each, from the moment at which both are loaded."""
    for unit in plan.units:
        plan.job.storage.remove(plan.job.path(unit))
    orders = [[unit.name, base64.b64encode(unit.order).decode()] for unit in plan.units]
    order = json.dumps([plan.job.settings, plan.job.out, orders])
    command = [sys.executable, "-m", "benchmarks.scale", "--do"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started: list[Any] = [subprocess.Popen([*command, str(part)], **pipes) for part in (0, 1)]
    for process in started:
        process.stdin.write(order + "\n")
        process.stdin.flush()
    for process in started:
        assert process.stdout.readline() == "ready\n"
    start = time.perf_counter()
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        process.wait()
    return time.perf_counter() - start


def do_half(part: int) -> None:
    """Do every second shard: one of the plain processes."""
    set_threads(1)
    settings, out, encoded = json.loads(sys.stdin.readline())
    orders = [(name, base64.b64decode(order)) for name, order in encoded]
    job = Job(_WORKER, settings, out)
    worker = make_worker(job)
    worker.do(orders[part][1])
    print("ready", flush=True)
    sys.stdin.readline()
    for name, order in orders[part::2]:
        carry_out(job, worker, WorkUnit(name, order))


class Watch(threading.Thread):
    """Looks at the memory of this process and of Ray's object store, again and again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.process, self.store, self.over = 0, 0.0, threading.Event()

    def run(self) -> None:
        import ray

        own = psutil.Process()
        while not self.over.wait(0.2):
            self.process = max(self.process, own.memory_info().rss)
            whole = ray.cluster_resources().get("object_store_memory", 0.0)
            free = ray.available_resources().get("object_store_memory", whole)
            self.store = max(self.store, whole - free)


def memory(shards: int) -> dict[str, float]:
    """Embed shards of a hundred texts with the fake encoder on Ray, and return megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        stream = texts()
        lists = ([next(stream) for _ in range(100)] for _ in range(shards))
        engine = Placement("ray", workers=2).engine()
        watch = Watch()
        watch.start()
        try:
            plan = plan_of(Path(folder), lists, "fake:512-0")
            start = time.perf_counter()
            receipts = list(engine.carry_out(plan.job, plan.units))
            seconds = time.perf_counter() - start
            assert not any(receipt.problem for receipt in receipts), receipts
        finally:
            watch.over.set()
            watch.join()
            engine.close()
    return {
        "shards": shards,
        "shards_a_second": shards / seconds,
        "driver_megabytes": watch.process / _MEGABYTE,
        "object_store_megabytes": watch.store / _MEGABYTE,
    }


def listing(rows: int) -> Iterator[ImageItem]:
    """Return a listing of Parquet files of 100,000 rows each, as a bucket would answer."""
    for number in range(rows // 100_000):
        place = f"s3://bucket/photos/part-{number:06d}.parquet"
        for start in range(0, 100_000, TABLE_ROWS):
            stop = min(start + TABLE_ROWS, 100_000)
            yield ImageItem(f"part-{number:06d}", place, "31457280-abc", rows=(start, stop))


def planning(folder: Path, items: Iterable[ImageItem], rows: int) -> dict[str, float]:
    """Measure how long a resume takes to know what is missing, where half is done."""
    job = Job(_WORKER, {}, str(folder))
    half = plan_shards(
        job,
        cut(listing(2_000_000), SHARD_IMAGES),
        ["x"],
        Placement(merge=True),
        of="images",
        ending=".bin",
    )
    del half  # the code is warm
    start = time.perf_counter()
    plan = plan_shards(
        job, cut(items, SHARD_IMAGES), ["x"], Placement(merge=True), of="images", ending=".bin"
    )
    seconds = time.perf_counter() - start
    # The files of half of the shards, as names that a listing of the results returns.
    (folder / "units").mkdir(parents=True)
    for unit in plan.units[::2]:
        (folder / "units" / unit.name).touch()
    start = time.perf_counter()
    done = plan.job.done()
    missing = sum(unit.name not in done for unit in plan.units)
    seconds += time.perf_counter() - start
    assert missing == len(plan.units) // 2, (missing, len(plan.units))
    return {"rows": rows, "shards": len(plan.units), "missing": missing, "seconds": seconds}


def files(count: int) -> Iterator[ImageItem]:
    """Return a listing of single files."""
    for number in range(count):
        name = f"{number % 1000:03d}/{number:09d}.jpg"
        yield ImageItem(name, f"photos/{name}", f"{number}-17")


def measure(count: int, seconds: float) -> dict[str, Any]:
    """Return all measurements."""
    set_threads(1)
    # Both sides at the same priority: Ray's workers step back behind all else by default.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        found["planning"] = planning(root / "plan", listing(_ROWS), _ROWS)
        found["planning_files"] = planning(root / "files", files(10**6), 10**6)
        found["overhead"] = overhead(root / "overhead", count, seconds)
        found["efficiency"] = efficiency(root / "efficiency", 2 * count, seconds)
    command = [sys.executable, "-m", "benchmarks.scale", "--memory"]
    for shards in (200, 2000):
        made = subprocess.run([*command, str(shards)], capture_output=True, text=True, check=True)
        found[f"memory_{shards}"] = json.loads(made.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--shards", type=int, default=3, help="to measure overhead with")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a shard, about")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--do", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.do is not None:
        do_half(options.do)
        return
    if options.memory is not None:
        print(json.dumps(memory(options.memory)))
        return
    found = measure(options.shards, options.seconds)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    ahead, both = found["overhead"], found["efficiency"]
    print(
        f"overhead of a shard of {statistics.median(ahead['seconds_here']):.1f} s on Ray: "
        f"{100 * ahead['overhead']:.1f} % (goal: 5); "
        f"{1000 * ahead['seconds_beside_the_work']:.0f} ms of it are not its work"
    )
    print(
        f"efficiency of 2 workers: {both['efficiency']:.2f} (goal: 0.9); "
        f"{both['against_plain_processes']:.2f} of two plain processes; "
        f"at work for {100 * both['share_at_work'][2]:.0f} % of the time"
    )
    for name in ("memory_200", "memory_2000"):
        one = found[name]
        print(
            f"{one['shards']} shards: {one['driver_megabytes']:.0f} MB in the command, "
            f"{one['object_store_megabytes']:.1f} MB in the object store (goal: 200)"
        )
    for name in ("planning", "planning_files"):
        one = found[name]
        print(
            f"a resume of {one['rows']:,} rows in {one['shards']:,} shards is planned in "
            f"{one['seconds']:.1f} s{' (goal: 30)' if name == 'planning' else ''}"
        )


if __name__ == "__main__":
    main()
