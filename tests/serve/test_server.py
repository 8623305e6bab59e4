"""Start, stop and reload without dropped requests."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.cli_tools import call
from tests.serve.server_tools import SLOW, TOKEN, Client, SlowEncoder, png, running, write_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return write_run(tmp_path / "run")


class Load:
    """Clients that send requests continuously and keep the responses."""

    def __init__(self, client, threads=4):
        self.client, self.answers, self.stopped = client, [], False
        self.threads = [threading.Thread(target=self._ask) for _ in range(threads)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopped = True
        for thread in self.threads:
            thread.join()

    def _ask(self):
        wire = http.client.HTTPConnection("127.0.0.1", self.client.port, timeout=30)
        with closing(wire):
            while not self.stopped:
                try:
                    answer = self.client.ask(
                        "POST", "/predict", png("blue"), "image/png", connection=wire
                    )
                except (OSError, http.client.HTTPException) as error:
                    self.answers.append(error)
                    return
                self.answers.append(answer)

    def wait(self, number):
        deadline, seen = time.monotonic() + 30, len(self.answers)
        while len(self.answers) < seen + number:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_loading_again_under_load_drops_nothing(run):
    with running({"run": run}) as client, Load(client) as load:
        digests = {client.get("/runs/run").json["digest"]}
        for number in range(2, 6):
            load.wait(8)
            write_run(run, name=f"ice {number}")
            client.service.reload()
            told = client.get("/runs/run").json
            assert told["version"] == number
            digests.add(told["digest"])
            load.wait(8)
    assert len(digests) == 5
    assert {answer.status for answer in load.answers} == {200}
    versions = {1: "ice"} | {number: f"ice {number}" for number in range(2, 6)}
    seen = set()
    for answer in load.answers:
        [prediction] = answer.json["predictions"]
        assert prediction["predicted"] == versions[answer.json["version"]]
        seen.add(answer.json["version"])
    assert seen == set(versions)


def test_another_encoder_under_load_drops_nothing(run):
    with running({"run": run}) as client, Load(client) as load:
        for encoder in ("fake:16-1", "fake:32-0", "fake:16-1"):
            load.wait(8)
            write_run(run, encoder=encoder)
            client.service.reload()
            load.wait(8)
            assert client.get("/runs/run").json["encoder"] == encoder
        assert list(client.service._batchers) == ["fake:16-1"]
    assert {getattr(answer, "status", answer) for answer in load.answers} == {200}


def test_a_broken_version_leaves_the_old_one_answering(run):
    with running({"run": run}) as client:
        before = client.get("/runs/run").json
        sound = (run / "ensemble.json").read_bytes()
        (run / "ensemble.json").write_bytes(sound[:100])
        client.service.reload()
        after = client.get("/runs/run").json
        assert "version 1 is still served" in after["problem"]
        assert str(run) not in after["problem"]
        assert {**after, "problem": None} == before
        assert client.post_form("/predict", png("blue")).json["version"] == 1
        (run / "ensemble.json").write_bytes(sound)
        client.service.reload()
        assert client.get("/runs/run").json == before


def test_a_watched_run_is_loaded_when_its_files_change(run):
    with running({"run": run}, watch=True) as client:
        (run / "ensemble.json").write_bytes(b"{}")  # broken: nothing happens
        time.sleep(1.5)
        assert client.get("/runs/run").json["version"] == 1
        write_run(run, name="snow")
        deadline = time.monotonic() + 20
        while client.get("/runs/run").json["version"] == 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        told = client.get("/runs/run").json
        assert told["classes"] == ["fire", "snow"]
        assert told["problem"] is None


def test_stopping_answers_what_is_in_hand(run, monkeypatch):
    monkeypatch.setattr(SlowEncoder, "seconds", 1.5)
    with (
        running({"run": run}, encoder=SLOW) as client,
        ThreadPoolExecutor(4) as threads,
    ):
        in_hand = [threads.submit(client.post_form, "/predict", png("red")) for _ in range(4)]
        while len(client.server.server_state.tasks) < 4:
            time.sleep(0.01)
        client.server.handle_exit(signal.SIGTERM, None)
        answers = [one.result() for one in in_hand]
        client.thread.join(20)
        assert not client.thread.is_alive()
        with pytest.raises(ConnectionRefusedError):
            client.get("/healthz")
    assert {answer.status for answer in answers} == {200}


def start(*arguments, cwd, **environment):
    process = subprocess.Popen(
        [sys.executable, "-m", "promptboost", "serve", *map(str, arguments), "--json"],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{ROOT}",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    assert line, process.stderr.read()
    address = json.loads(line)["address"]
    client = Client(int(address.rpartition(":")[2]), environment.get("PROMPTBOOST_TOKEN"))
    deadline = time.monotonic() + 60
    while True:
        try:
            if client.get("/readyz").status == 200:
                return process, client
        except OSError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there are no such signals here")
def test_signals_to_the_command(run):
    process, client = start(run, "--port", 0, "--no-cache", cwd=run.parent, PROMPTBOOST_TOKEN=TOKEN)
    try:
        with Load(client, threads=2) as load:
            load.wait(4)
            write_run(run, name="snow")
            process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 30
            while client.get("/runs/run").json["version"] == 1:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            load.wait(4)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        answered = [one for one in load.answers if not isinstance(one, Exception)]
        assert {one.status for one in answered} <= {200, 503}  # others were not taken at all
        assert {one.json["version"] for one in answered if one.status == 200} == {1, 2}
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def test_what_a_server_says_when_it_starts(run):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "promptboost",
            "serve",
            f"mine={run}",
            "--port",
            "0",
            "--no-cache",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PROMPTBOOST_TOKEN": TOKEN},
    )
    try:
        out = "".join(
            iter(process.stdout.readline, "Ctrl-C stops it after the running requests.\n")
        )
        assert out.startswith("serving mine on http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert (
            '  curl -H "Authorization: Bearer $PROMPTBOOST_TOKEN" -F image=@photo.jpg http://'
            in out
        )
        assert TOKEN not in out + err
        assert err.strip() == "stopped"
    finally:
        process.kill()
        process.communicate()


def test_a_server_for_other_machines_needs_a_token(capsys, run, monkeypatch):
    monkeypatch.delenv("PROMPTBOOST_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        answer = call(capsys, "serve", run, "--host", host, "--no-cache")
        assert answer.code == 2
        assert "set a token in PROMPTBOOST_TOKEN or with --token-file" in answer.err


def test_tokens_that_are_none(capsys, run, tmp_path, monkeypatch):
    file = tmp_path / "token"
    for text in ("", "short", "with a space in its middle", "é" * 20):
        file.write_text(text)
        answer = call(capsys, "serve", run, "--token-file", file, "--no-cache")
        assert answer.code == 2
        assert "contains no token" in answer.err
        monkeypatch.setenv("PROMPTBOOST_TOKEN", text or " ")
        assert call(capsys, "serve", run, "--no-cache").code == 2
    assert call(capsys, "serve", run, "--token-file", tmp_path / "none").code == 2


def test_what_cannot_be_served(capsys, run, tmp_path, monkeypatch):
    monkeypatch.delenv("PROMPTBOOST_TOKEN", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answer = call(capsys, "serve", run, "--port", taken.getsockname()[1], "--no-cache")
        assert answer.code == 2
        assert "choose another with --host and --port" in answer.err
    answer = call(capsys, "serve", tmp_path / "none")
    assert answer.code == 2
    assert "none does not exist; to make one, type: " in answer.err
    assert "two runs are called run" in call(capsys, "serve", run, run).err
    shutil.copytree(run, tmp_path / "broken")
    (tmp_path / "broken/ensemble.json").write_text("{")
    assert call(capsys, "serve", tmp_path / "broken").code == 2
    code = call(capsys, "serve", write_code(run))
    assert code.code == 2
    assert "code that would be imported" in code.err


def write_code(run):
    """A run that names code as its encoder."""
    write_run(run, encoder="os:system?command=true")
    return run


def test_without_its_packages_the_command_says_what_to_type(capsys, run, monkeypatch):
    from importlib import util

    import promptboost.encoders.runtime as runtime

    monkeypatch.setattr(
        runtime, "find_spec", lambda name: None if name == "fastapi" else util.find_spec(name)
    )
    answer = call(capsys, "serve", run)
    assert answer.code == 2
    assert "[serve]'" in answer.err
