"""Kills on a cluster: SIGKILL of workers, of nodes and of the command, while it embeds and compares.

Three nodes of a real Ray cluster on this machine embed 20,000 texts, then compare 60 cells, again and
again. At moments that are drawn, by how many results are there, a worker, a node or the command is
killed; a node that is gone is followed by a new one, and a command by the same one. In the end the files
are those of one process, and no result that was there at a kill was made again.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.attack.forks import ROOT, chances, write_task
from tests.distributed.cluster_tools import OBJECT_STORE, ray_cluster

HARMLESS = frozenset({"ok"})
KINDS = ("worker", "node", "command")
# So many kills in one job, and no job may take longer than this, in seconds.
_KILLS, _LIMIT = 5, 1800.0
_NODE = {"num_cpus": 1, "object_store_memory": OBJECT_STORE}
_ENCODER = "fake:16-0"


@dataclass(frozen=True)
class Job:
    """A command, and the folder in which its results appear, one file each."""

    name: str
    command: tuple[str, ...]
    results: str  # below the folder of the command


def jobs(cells: int = 60) -> tuple[Job, Job]:
    """Return an embed of 20,000 texts, in shards of about 250, and a comparison of so many cells."""
    embed = ("embed", "--texts", "texts.txt", "--storage", "out", "--per-shard", "250")
    methods = "zero-shot,logistic,tip-adapter,promptboost?rounds=20"
    seeds = ",".join(map(str, range(cells // 12)))
    compare = ("compare", "images", "-o", "out", "--methods", methods, "--shots", "1,2,3")
    both = ("--encoder", _ENCODER)
    return (
        Job("embed", (*embed, *both), "out/units"),
        Job("compare", (*compare, "--seeds", seeds, "--views", "2", *both), "out/cells"),
    )


class FaultError(Exception):
    """What must not happen did."""


@dataclass
class Field:
    """A cluster, a folder of inputs, and the command that runs at present."""

    root: Path
    cluster: Any
    tries: int = 0
    expected: dict[str, dict[str, bytes]] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def fresh(self) -> Path:
        """Return a new folder with the inputs of both jobs."""
        self.tries += 1
        place = self.root / f"try-{self.tries}"
        write_task(place)
        texts = "".join(f"a photo of thing number {i}.\n" for i in range(20_000))
        (place / "texts.txt").write_text(texts, encoding="utf-8")
        return place

    def start(
        self, job: Job, place: Path, *options: str, under: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        """Start the command of a job, perhaps under another one."""
        paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        environment = {
            **os.environ,
            "PYTHONPATH": paths,
            "PROMPTBOOST_CACHE": str(place / "store"),
            "OMP_NUM_THREADS": "1",
        }
        with (place / "said.txt").open("ab") as said:
            process = subprocess.Popen(
                [
                    *under,
                    sys.executable,
                    "-m",
                    "promptboost",
                    *job.command,
                    "--quiet",
                    *options,
                ],
                cwd=place,
                env=environment,
                stdout=said,
                stderr=said,
            )
        self.processes.append(process)
        return process

    def expect(self, job: Job) -> None:
        """Do a job in one process, and keep its files."""
        place = self.fresh()
        code = self.start(job, place).wait(_LIMIT)
        made = files_of(place / "out")
        if code:
            raise FaultError("stuck", code, (place / "said.txt").read_text()[-2000:])
        self.expected[job.name] = made

    def workers(self) -> list[int]:
        """Return the processes in which units are done."""
        import psutil

        found = []
        for node in self.cluster.list_all_nodes():
            [raylet] = node.all_processes["raylet"]
            children: list[Any] = []
            try:
                children = psutil.Process(raylet.process.pid).children()
                found += [one.pid for one in children if "UnitWorker" in " ".join(one.cmdline())]
            except psutil.Error:
                continue
        return found

    def kill(self, kind: str, chance: Random, command: subprocess.Popen[bytes]) -> None:
        """Kill one of them; a node that is gone is followed by a new one."""
        if kind == "node":
            others = [n for n in self.cluster.list_all_nodes() if n is not self.cluster.head_node]
            self.cluster.remove_node(chance.choice(others), allow_graceful=False)
            self.cluster.add_node(**_NODE)
        elif kind == "worker" and (workers := self.workers()):
            os.kill(chance.choice(workers), signal.SIGKILL)
        else:  # also where no worker is there yet
            command.kill()
            command.wait()


def stamps(folder: Path) -> dict[str, int]:
    """Return the files of a folder, each with what changes when it is written again."""
    try:
        return {
            entry.name: entry.stat().st_ino
            for entry in os.scandir(folder)
            if not entry.name.startswith(".")
        }
    except FileNotFoundError:
        return {}


def files_of(folder: Path) -> dict[str, bytes]:
    """Return all files that a job has made, without what is measured in time."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name in ("results.csv", "results.md"):
            continue
        content = path.read_bytes()
        if path.parent.name == "cells":
            entry = {name: part for name, part in json.loads(content).items() if name != "times"}
            content = json.dumps(entry).encode()
        found[str(path.relative_to(folder))] = content
    return found


def attack(field_: Field, job: Job, chance: Random, kills: int, kinds: tuple[str, ...]) -> None:
    """Do a job with so many kills, and check what is there in the end."""
    place = field_.fresh()
    results = place / job.results
    folder = Path(job.results).name
    total = sum(name.startswith(f"{folder}/") for name in field_.expected[job.name])
    marks = sorted(chance.sample(range(1, total), kills))
    command = field_.start(job, place, "--on", "ray")
    deadline = time.monotonic() + _LIMIT
    seen: dict[str, int] = {}
    for number, mark in enumerate(marks):
        while len(stamps(results)) < mark and command.poll() is None:
            if time.monotonic() > deadline:
                raise FaultError("stuck", (place / "said.txt").read_text()[-2000:])
            time.sleep(0.01)
        seen = stamps(results)
        field_.kill(kinds[number % len(kinds)], chance, command)
        if command.poll() is not None:
            command = field_.start(job, place, "--on", "ray")
    try:
        command.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise FaultError("stuck", (place / "said.txt").read_text()[-2000:]) from None
    if command.returncode:
        raise FaultError("stuck", command.returncode, (place / "said.txt").read_text()[-2000:])
    if "raylet" in (place / "said.txt").read_text():
        raise FaultError("pages of Ray's on stdout")
    check(field_, job, place, seen)


def check(field_: Field, job: Job, place: Path, seen: dict[str, int]) -> None:
    """Raise unless the files are those of one process, and none that was there was made again."""
    expected, made = field_.expected[job.name], files_of(place / "out")
    if lost := sorted(expected.keys() - made.keys()):
        raise FaultError("lost", *lost[:5])
    if more := sorted(made.keys() - expected.keys()):
        raise FaultError("left behind", *more[:5])
    if mixed := [name for name in expected if expected[name] != made[name]]:
        raise FaultError("mixed", *mixed[:5])
    after = stamps(place / job.results)
    if twice := [name for name, stamp in seen.items() if after.get(name) != stamp]:
        raise FaultError("twice", *twice[:5])


@contextmanager
def ground() -> Iterator[Field]:
    """Start a cluster, and end all that was started on it."""
    with (
        tempfile.TemporaryDirectory(prefix="promptboost-cluster-") as folder,
        ray_cluster() as cluster,
    ):
        field_ = Field(Path(folder), cluster)
        try:
            yield field_
        finally:
            for process in field_.processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()


def run(count: int, seed: int) -> dict[str, int]:
    """Kill so often in an embed of 20,000 texts, and as often in a comparison of 60 cells."""
    outcomes: Counter[str] = Counter()
    with ground() as field_:
        for job in jobs():
            field_.expect(job)
            left = count
            for number, chance in enumerate(chances(-(-count // _KILLS), seed)):
                kills = min(_KILLS, left)
                left -= kills
                kinds = tuple(chance.choice(KINDS) for _ in range(kills))
                start = time.monotonic()
                outcome = "ok"
                try:
                    attack(field_, job, chance, kills, kinds)
                except FaultError as fault:
                    outcome = f"{job.name}: {fault.args[0]}"
                    print(
                        f"{job.name} {number} of seed {seed}: {fault.args}"[:2000], file=sys.stderr
                    )
                outcomes[outcome] += kills
                seconds = time.monotonic() - start
                print(
                    f"{job.name} {number}: {', '.join(kinds)}: {outcome}, {seconds:.0f} s",
                    flush=True,
                )
    return dict(outcomes)
