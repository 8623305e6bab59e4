"""Hosts: a cluster whose nodes are in network namespaces of their own, as on separate machines.

Each namespace has one address, on a bridge that is inside the first. The command is typed on the first
host, and on one that is no node, through Ray's client. Needs root, and `ip` of iproute2; all that was made
is removed. ``python -m tests.attack hosts`` makes the files of one process by both, and compares.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

from tests.attack.clusters import FaultError, Field, Job, files_of, jobs
from tests.distributed.cluster_tools import OBJECT_STORE, UNHURRIED

HARMLESS = frozenset({"ok", "not allowed here"})
_NET = "10.203.77"


def ip(*words: str) -> None:
    """Call ip; raise a FaultError with what it says."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise FaultError("not allowed here", done.stderr.strip())


@contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """Make namespaces that reach each other, and nothing else; the first holds the bridge."""
    if shutil.which("ip") is None:
        raise FaultError("not allowed here", "there is no ip command")
    names = [f"pb{os.getpid()}-{number}" for number in range(count)]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        first = names[0]
        ip("-n", first, "link", "add", "br0", "type", "bridge")
        ip("-n", first, "addr", "add", f"{_NET}.1/24", "dev", "br0")
        ip("-n", first, "link", "set", "br0", "up")
        # By the way out Ray knows its own address; nothing is behind it.
        ip("-n", first, "route", "add", "default", "dev", "br0")
        for number, name in enumerate(names[1:], 2):
            peer = ("peer", "name", "eth0", "netns", name)
            ip("-n", first, "link", "add", f"to{number}", "type", "veth", *peer)
            ip("-n", first, "link", "set", f"to{number}", "master", "br0", "up")
            ip("-n", name, "addr", "add", f"{_NET}.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "route", "add", "default", "dev", "eth0")
        yield names
    finally:
        for name in names:
            with suppress(FaultError):
                ip("netns", "del", name)


@contextmanager
def cluster(names: Sequence[str], folder: Path) -> Iterator[None]:
    """Start a node of Ray in each namespace, and end them."""
    ray = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--disable-usage-stats"]
    ray += ["--num-cpus=1", f"--object-store-memory={OBJECT_STORE}"]
    head = ["--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={folder}"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, name in enumerate(names, 1):
            where = head if number == 1 else [f"--address={_NET}.1:6379"]
            command = ["ip", "netns", "exec", name, *ray, f"--node-ip-address={_NET}.{number}"]
            with (folder / f"node-{number}.txt").open("wb") as said:
                started.append(
                    subprocess.Popen(
                        [*command, *where], stdout=said, stderr=said, start_new_session=True
                    )
                )
            # One after the other: they share a folder, in which two at once take the same names.
            _wait_for(folder, names[0], number)
        yield
    finally:
        for node in reversed(started):
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGTERM)
            node.wait(300)


def _wait_for(folder: Path, name: str, nodes: int) -> None:
    """Wait until so many nodes live."""
    look = (
        "import ray, sys\n"
        f"ray.init('{_NET}.1:6379', logging_level='ERROR', log_to_driver=False)\n"
        f"sys.exit(sum(node['Alive'] for node in ray.nodes()) < {nodes})"
    )
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        command = ["ip", "netns", "exec", name, sys.executable, "-c", look]
        if not subprocess.run(command, capture_output=True, check=False).returncode:
            return
        time.sleep(1)
    said = "".join(path.read_text()[-800:] for path in folder.glob("node-*.txt"))
    raise FaultError("stuck", "not all nodes live", said)


def check(field_: Field, job: Job, host: str, on: str) -> None:
    """Do a job from a host; raise unless its files are those of one process."""
    place = field_.fresh()
    os.environ["RAY_ADDRESS"] = "" if "://" in on else f"{_NET}.1:6379"
    command = field_.start(job, place, "--on", on, under=("ip", "netns", "exec", host))
    if command.wait(900):
        raise FaultError(f"{job.name} on {on}: stuck", (place / "said.txt").read_text()[-2000:])
    expected, made = field_.expected[job.name], files_of(place / "out")
    if expected != made:
        both = sorted(expected.keys() ^ made.keys())
        raise FaultError(f"{job.name} on {on}: mixed", *both[:5])


def run(count: int, seed: int) -> dict[str, int]:
    """Embed and compare on separate hosts; `count` and `seed` change nothing."""
    outcomes: dict[str, int] = {}
    # A cluster that `ray start` makes may want a token: this one has its own, made here.
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), **UNHURRIED}
    with patch.dict(os.environ, own), tempfile.TemporaryDirectory(prefix="pbh-") as folder:
        field_ = Field(Path(folder), None)
        try:
            with namespaces(4) as names:
                for job in jobs(cells=24):
                    field_.expect(job)
                with cluster(names[:3], Path(folder)):
                    for job in jobs(cells=24):
                        check(field_, job, names[0], "ray")
                        check(field_, job, names[3], f"ray://{_NET}.1:10001")
                        outcomes["ok"] = outcomes.get("ok", 0) + 2
        except FaultError as fault:
            outcomes[fault.args[0]] = 1
            print(*fault.args, file=sys.stderr)
    return outcomes
