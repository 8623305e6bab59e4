"""Memory: embed, predict and compare on Ray with two workers, where all of it may have 4 GB.

The limit is a control group of Linux, as a container has one; the command, Ray and its workers are in it.
``python -m tests.attack memory`` does each in one process first, then there, compares the files, and prints
the most that was taken. Needs root.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tests.attack.clusters import FaultError, Field, Job, files_of

HARMLESS = frozenset({"ok", "not allowed here"})
_LIMIT = 4 * 2**30
_ENCODER = ("--encoder", "conse:lite0")
_ROOT = Path("/sys/fs/cgroup")
_PREDICT = ("predict", "run", "images", "-o", "out/answers.jsonl")


@dataclass(frozen=True)
class Group:
    """A control group with a limit, of the first kind or the second."""

    folder: Path
    peak_file: str

    @property
    def peak(self) -> int:
        """The most that was taken, in bytes, what the system keeps of files included."""
        return int((self.folder / self.peak_file).read_text())

    @property
    def within(self) -> tuple[str, ...]:
        """What to type before a command to have it in the group."""
        enter = f'echo $$ > {self.folder}/cgroup.procs && exec "$@"'
        return ("sh", "-c", enter, "sh")


@contextmanager
def limited() -> Iterator[Group]:
    """Make a group, and remove it."""
    first = (_ROOT / "memory").is_dir()
    folder = (_ROOT / "memory" if first else _ROOT) / f"promptboost-{os.getpid()}"
    names = ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
    limit, peak = names if first else ("memory.max", "memory.peak")
    try:
        folder.mkdir()
        (folder / limit).write_text(str(_LIMIT))
        yield Group(folder, peak)
    except PermissionError as error:
        raise FaultError("not allowed here", str(error)) from error
    finally:
        with suppress(OSError):
            folder.rmdir()


def jobs() -> tuple[Job, ...]:
    """Return what is done; `predict` needs the run that is made beside it."""
    compare = ("compare", "images", "-o", "out", "--methods", "zero-shot,logistic,promptboost")
    return (
        Job("embed", ("embed", "images", *_ENCODER, "--storage", "out"), ""),
        Job("predict", _PREDICT, ""),
        Job("compare", (*compare, *_ENCODER, "--shots", "1", "--seeds", "1,2"), ""),
    )


def check(field_: Field, job: Job) -> int:
    """Do a job in one process and within the limit; return the most it took, in bytes."""
    made, peak = [], 0
    place = field_.fresh()
    if job.name == "predict":
        fit = Job("fit", ("fit", "images", "-o", "run", "--shots", "1", *_ENCODER), "")
        if field_.start(fit, place).wait(600):
            raise FaultError("fit: stuck", (place / "said.txt").read_text()[-2000:])
    for there in (False, True):
        (place / "out").mkdir()
        with limited() as group:
            options = ("--on", "ray", "--workers", "2") if there else ()
            in_shards = () if job.name == "compare" else ("--per-shard", "8")
            under = group.within if there else ()
            try:
                code = field_.start(job, place, *in_shards, *options, under=under).wait(600)
            except subprocess.TimeoutExpired:
                code = -1
            if code:
                raise FaultError(f"{job.name}: stuck", (place / "said.txt").read_text()[-2000:])
            peak = group.peak
        made.append(files_of(place / "out"))
        # What is named by its place is to have the same name again.
        for name in ("out", "store"):
            shutil.rmtree(place / name, ignore_errors=True)
    if made[0] != made[1] or not made[0]:
        raise FaultError(f"{job.name}: mixed", *sorted(made[0].keys() ^ made[1].keys())[:5])
    return peak


def run(count: int, seed: int) -> dict[str, int]:
    """Embed, predict and compare within 4 GB; `count` and `seed` change nothing."""
    outcomes: dict[str, int] = {}
    # In a folder of its own, so that no cluster of this machine is found.
    with tempfile.TemporaryDirectory(prefix="pbm-", dir="/tmp") as folder:
        field_ = Field(Path(folder), None)
        with patch.dict(os.environ, RAY_TMPDIR=folder, RAY_ADDRESS=""):
            for job in jobs():
                try:
                    megabytes = check(field_, job) / 2**20
                    print(f"{job.name}: {megabytes:,.0f} MB at most", flush=True)
                    outcomes["ok"] = outcomes.get("ok", 0) + 1
                except FaultError as fault:
                    outcomes[fault.args[0]] = 1
                    print(*fault.args, file=sys.stderr)
    return outcomes
