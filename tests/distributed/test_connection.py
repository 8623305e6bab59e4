"""Errors for clusters that have ended or require a token."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress

import pytest

from promptboost.distributed import cluster as connection
from promptboost.distributed.engine import Placement
from promptboost.errors import RunError
from tests.attack.forks import ROOT
from tests.distributed.cluster_tools import OBJECT_STORE, UNHURRIED


@pytest.fixture
def closed():
    """A local port without a listener."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


@pytest.fixture
def deaf(monkeypatch):
    """A port at which a program listens and never answers."""
    monkeypatch.setattr(connection, "_PATIENCE", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield f"127.0.0.1:{one.getsockname()[1]}"


@pytest.mark.parametrize("which", ["closed", "deaf"])
def test_a_cluster_that_is_gone_is_an_error_at_once(which, request, monkeypatch):
    import ray

    place = request.getfixturevalue(which)
    # Ray would wait for a minute and a half, each time: it is not even asked.
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray was asked"))
    monkeypatch.setenv("RAY_ADDRESS", place)
    with pytest.raises(RunError, match=f"answers at {place}, which RAY_ADDRESS names.* unset"):
        Placement("ray").engine()
    with pytest.raises(
        RunError, match=rf"answers at {place}: start it there.* correct the address"
    ):
        Placement(f"ray://{place}").engine()


@pytest.mark.parametrize("which", ["closed", "deaf"])
def test_the_address_of_a_cluster_that_is_gone_is_no_cluster(which, request, tmp_path, monkeypatch):
    """The address that `ray start` writes remains after the machine was switched off."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(request.getfixturevalue(which))
    assert connection._address(None) is None
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert connection._address(None) is None


@pytest.mark.parametrize("deaths", [2, 10])
def test_a_head_node_that_starts_no_process_for_a_client_is_asked_again(deaths, monkeypatch):
    """Ray's server for clients forks while threads run, so that a process may die at once."""
    import ray

    tries = []

    def init(address, **settings):
        tries.append(address)
        if len(tries) <= deaths:
            raise ConnectionAbortedError(
                "Initialization failure from server:\npsutil.ZombieProcess"
            )

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(connection, "_address", lambda asked: asked)
    if deaths < 4:
        assert connection._start("ray://head:10001") == (ray, True)
        assert tries == ["ray://head:10001"] * 3
    else:
        with pytest.raises(
            RunError, match="cannot be used from here: Initialization failure from server"
        ):
            connection._start("ray://head:10001")
        assert len(tries) == 4


@contextmanager
def started_with_a_token(folder, home, port):
    """Start a cluster by `ray start` with a token and a server for clients."""
    ray = shutil.which("ray", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    command = [ray, "start", "--head", "--port=0", "--num-cpus=1"]
    command += [f"--ray-client-server-port={port}"]
    command += ["--include-dashboard=false", "--disable-usage-stats", "--block"]
    command += [f"--object-store-memory={OBJECT_STORE}"]
    environment = {name: text for name, text in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"RAY_TMPDIR": folder, "HOME": str(home), **UNHURRIED}
    head = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    file = os.path.join(folder, "ray", "ray_current_cluster")
    try:
        deadline = time.monotonic() + 600
        while not os.path.exists(file) or not os.path.getsize(file):
            assert head.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)
        head.wait(60)


def test_a_cluster_that_asks_for_a_token_gets_it_or_says_so(tmp_path, closed):
    """With ~/.ray/auth_token, `ray start` requires the token."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for place, token in ((home, "b" * 64), (elsewhere, "a" * 64)):
        (place / ".ray").mkdir(parents=True)
        (place / ".ray" / "auth_token").write_text(token)
    look = (
        "import sys; from promptboost.distributed.engine import Placement; "
        "Placement(sys.argv[1]).engine(print).close()"
    )
    folder = tempfile.mkdtemp(prefix="pb-", dir="/tmp")
    said = {}
    try:
        with started_with_a_token(folder, home, closed.partition(":")[2]):
            for name, place, on in (
                ("same", home, "ray"),
                ("client", home, f"ray://{closed}"),
                ("other", elsewhere, "ray"),
                ("none", tmp_path, f"ray://{closed}"),
            ):
                environment = {n: text for n, text in os.environ.items() if n != "RAY_ADDRESS"}
                paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
                environment |= {"RAY_TMPDIR": folder, "HOME": str(place), "PYTHONPATH": paths}
                done = subprocess.run(
                    [sys.executable, "-c", look, on],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=600,
                )
                said[name] = done.stdout + done.stderr
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert said["same"] == said["client"] == "on Ray: 1 node with 1 core\n"
    for name in ("other", "none"):
        assert "answers, but cannot be used from here: " in said[name]
        assert "copy ~/.ray/auth_token" in said[name]
