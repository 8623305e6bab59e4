"""Killed workers, nodes and commands, and full disks: only running work is lost."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress

import psutil
import pytest

from promptboost.compare.compare import compare
from promptboost.distributed.engine import Placement
from tests.attack.clusters import Field, attack, files_of, jobs
from tests.attack.forks import ROOT
from tests.cli.cli_tools import call
from tests.compare.test_compare import request as comparison
from tests.distributed.cluster_tools import UNHURRIED


@contextmanager
def node_with_a_small_disk(address, folder):
    """Start a node that sees a disk of a few kilobytes instead of a folder."""
    ray = shutil.which("ray", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    mount = f"mount -t tmpfs -o size=12k tmpfs {folder}"
    # With a session of its own, all of it can be ended at once.
    start = f"{mount} && exec {ray} start --address={address} --num-cpus=1 --block"
    start += f" --object-store-memory={80 * 2**20} --disable-usage-stats"
    node = subprocess.Popen(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", start],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield node
    finally:
        os.killpg(node.pid, signal.SIGTERM)
        node.wait(300)


def wait_for_nodes(count):
    import ray

    deadline = time.monotonic() + 600
    while sum(node["Alive"] for node in ray.nodes()) != count:
        assert time.monotonic() < deadline, ray.nodes()
        time.sleep(0.1)


def can_mount(folder):
    folder.mkdir(exist_ok=True)
    command = f"mount -t tmpfs -o size=12k tmpfs {folder}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, check=False)
    return done.returncode == 0


def test_a_node_whose_disk_is_full_or_not_shared_is_left_out(noisy_task, cluster):
    if not shutil.which("unshare") or not can_mount(noisy_task / "probe"):
        pytest.skip("needs the right to mount in a namespace of its own (unshare -m)")
    import ray

    few = {"methods": ("zero-shot", "logistic"), "shots": (1,), "seeds": (1, 2, 3)}
    compare(comparison(noisy_task, "here", **few))
    cells = noisy_task / "there" / "cells"
    cells.mkdir(parents=True)
    shutil.copy(noisy_task / "here" / "compare.json", noisy_task / "there" / "compare.json")
    said, holders = [], []

    class Holder:
        def ready(self):
            return True

    def hear(line):
        said.append(line)
        if line.startswith("left out"):
            for holder in holders:
                ray.kill(holder)

    ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        good = len(cluster.list_all_nodes())
        wait_for_nodes(good)  # one that another test has killed may still count
        # All other cores are taken until the node has failed: it is the first to work.
        holders += [ray.remote(Holder).options(num_cpus=1).remote() for _ in range(good)]
        ray.get([holder.ready.remote() for holder in holders], timeout=600)
        with node_with_a_small_disk(cluster.address, cells):
            wait_for_nodes(good + 1)
            found = compare(comparison(noisy_task, "there", **few), hear, Placement("ray"))
    finally:
        ray.shutdown()
    assert not found.failed
    assert files_of(noisy_task / "there") == files_of(noisy_task / "here")
    left_out = [line for line in said if line.startswith("left out: a worker on ")]
    assert len(left_out) == 1
    assert "cannot be seen here" in left_out[0] or "No space left" in left_out[0]


def test_a_worker_a_node_and_the_command_are_killed_and_nothing_is_lost(
    tmp_path, cluster, capsys, monkeypatch
):
    """``python -m tests.attack clusters`` runs many more of these."""
    _, job = jobs(cells=12)
    field = Field(tmp_path, cluster)
    monkeypatch.chdir(field.fresh())
    assert call(capsys, *job.command, "--quiet").code == 0
    field.expected[job.name] = files_of(tmp_path / "try-1" / "out")
    attack(field, job, random.Random(0), 3, ("worker", "node", "command"))


def of_ours(mark):
    """Return the processes with a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("RAY_TMPDIR") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def mark():
    """A folder for Ray that marks its processes; paths of sockets must be short."""
    folder = tempfile.mkdtemp(prefix="pb-", dir="/tmp")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class Watch(threading.Thread):
    """Measures the peak memory of all processes of a command."""

    def __init__(self, mark):
        super().__init__(daemon=True)
        self.mark, self.peak, self.over = mark, 0, threading.Event()

    def run(self):
        while not self.over.wait(0.5):
            total = 0
            for process in of_ours(self.mark):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.peak = max(self.peak, total)


def start_alone(noisy_task, mark, *options):
    """Start a comparison on a new cluster of two cores, with a small /dev/shm if possible."""
    command = [sys.executable, "-m", "promptboost", "compare", "images", "-o", "out"]
    command += ["--encoder", "fake:32-0", "--shots", "1", "--on", "ray", "--workers", "2", *options]
    if shutil.which("unshare") and can_mount(noisy_task / "probe"):
        small = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", small, "sh", *command]
    environment = {name: text for name, text in os.environ.items() if name != "RAY_ADDRESS"}
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    environment |= {"RAY_TMPDIR": mark, "PYTHONPATH": paths, **UNHURRIED}
    return subprocess.Popen(
        command,
        cwd=noisy_task,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background does not hear of Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def has_a_worker(mark):
    for process in of_ours(mark):
        with suppress(psutil.Error):  # it may be gone by now
            if "UnitWorker" in " ".join(process.cmdline()):
                return True
    return False


def gone(mark):
    deadline = time.monotonic() + 300
    while (left := of_ours(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def test_a_cluster_of_its_own_is_small_quiet_and_gone_in_the_end(noisy_task, mark):
    watch = Watch(mark)
    watch.start()
    command = start_alone(noisy_task, mark, "--methods", "zero-shot,logistic", "--seeds", "1,2")
    out, err = command.communicate(timeout=900)
    watch.over.set()
    assert command.returncode == 0, err
    assert "accuracy in percent" in out
    # Nothing about /dev/shm, figures of use, GPUs or the dashboard.
    ours = ("on Ray: ", "no worker is ready")
    assert [line for line in err.splitlines() if not line.startswith(ours)] == []
    assert gone(mark) == []
    assert 0 < watch.peak < 2 * 2**30


def test_control_c_leaves_no_process(noisy_task, mark):
    seeds = ",".join(map(str, range(60)))  # more than are done before the signal comes
    command = start_alone(noisy_task, mark, "--methods", "tpb?rounds=400", "--seeds", seeds)
    deadline = time.monotonic() + 600
    while not has_a_worker(mark):
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=600)
    assert command.returncode == 130
    assert "the same command again; what is done is kept" in err
    assert gone(mark) == []
