"""A workbench on the loopback, as the command starts it, in a thread of the test."""

import queue
import threading
from contextlib import contextmanager

from promptboost.report import write_card, write_report
from promptboost.run.holdout import open_held_out
from promptboost.serve.limits import Limits
from promptboost.workbench.application import serve_workbench
from promptboost.workbench.state import Workbench, draft_folder, only_editor
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
def on_workbench(run, *, model=None, limits=None):
    """Put a run on a workbench and serve it; the client has the bench, too."""
    held_out = open_held_out(run, cache=False)
    with only_editor(draft_folder(run, held_out.ensemble.fingerprint)):
        opened = Workbench(
            run, held_out, model=model, finish=(write_report, write_card), options={"cache": False}
        )
        address, stop = queue.SimpleQueue(), threading.Event()
        options = {
            "token": TOKEN,
            "limits": Limits(stop_seconds=5.0, patience=2.0, **(limits or {})),
            "started": address.put,
            "stop": stop,
        }
        thread = threading.Thread(
            target=serve_workbench, args=(opened,), kwargs=options, daemon=True
        )
        thread.start()
        client = Bench(int(address.get(timeout=30).split(":")[2].split("/")[0]), TOKEN)
        client.workbench = opened
        try:
            client.read()
            yield client
        finally:
            stop.set()
            thread.join(30)
            assert not thread.is_alive()
