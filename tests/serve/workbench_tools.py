"""A workbench on the loopback, as the command starts it, in a thread of the test."""

import threading
from contextlib import contextmanager

from promptboost.report import write_card, write_report
from promptboost.runs.bench import open_bench
from promptboost.runs.draft import draft_folder, only_editor
from promptboost.runs.workbench import open_workbench
from promptboost.serve.limits import Limits
from promptboost.serve.server import Server, listen
from promptboost.serve.workbench_app import Desk, create_workbench_app
from tests.serve.server_tools import TOKEN, Client


class Bench(Client):
    """Asks a workbench, and knows the newest state that it was told."""

    state = None

    def read(self):
        self.state = self.get("/api/state").json
        return self.state

    def step(self, path, status=200, **body):
        """Ask for a change of the draft as it was seen last."""
        reply = self.post_json(path, {"revision": self.state["revision"], **body})
        assert reply.status == status, reply.body
        if status == 200:
            self.state = reply.json
        return reply

    def edit(self, kind, status=200, **change):
        change = {"class" if key == "name" else key: value for key, value in change.items()}
        return self.step("/api/edit", status, change={"kind": kind, **change})

    def of_class(self, name):
        return next(item for item in self.state["classes"] if item["name"] == name)

    def sentences(self, name):
        return {item["text"]: item["share"] for item in self.of_class(name)["sentences"]}

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}/#token={self.token}"


@contextmanager
def on_workbench(run, *, model=None, limits=None, port=0, bench=None):
    """Put a run on a workbench and serve it; the client has the desk, too."""
    bench = bench or open_bench(run, progress=False, cache=False)
    with only_editor(draft_folder(run, bench.ensemble.fingerprint)):
        opened = open_workbench(
            run, bench, model=model, finish=(write_report, write_card), options={"cache": False}
        )
        desk = Desk(opened, Limits(stop_seconds=5.0, patience=2.0, **(limits or {})))
        ready = threading.Event()
        with listen("127.0.0.1", port) as listening:
            server = Server(create_workbench_app(desk, TOKEN), desk, ready.set)
            thread = threading.Thread(
                target=server.run, kwargs={"sockets": [listening]}, daemon=True
            )
            thread.start()
            assert ready.wait(30)
            client = Bench(listening.getsockname()[1], TOKEN)
            client.desk = desk
            try:
                client.read()
                yield client
            finally:
                server.handle_exit(15, None)
                thread.join(30)
                assert not thread.is_alive()
