"""A workbench on the loopback, served in a thread."""

import queue
import threading
from contextlib import contextmanager

from promptboost.run.fit import fit_run
from promptboost.run.holdout import open_held_out
from promptboost.serve.limits import Limits
from promptboost.workbench.application import serve_workbench
from promptboost.workbench.state import Workbench, draft_folder, only_editor
from tests.run.run_tools import request, write_images, write_sentences
from tests.serve.server_tools import TOKEN, Client


def fit_without_residual(root):
    """Fit a run of 16 images per class without a residual."""
    write_images(root / "images", count=16, noise=150.0)
    write_sentences(root / "sentences.json")
    alone = {"views": 1, "views_per_round": 1, "residual": False}
    fit_run(**request(root, "run", cache=False, copies=40, **alone))


class Bench(Client):
    """A client of a workbench that stores its newest state."""

    state = None

    def read(self):
        self.state = self.get("/api/state").json
        return self.state

    def step(self, path, status=200, **body):
        """Change the draft at the last revision."""
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
def on_workbench(run, *, model=None, limits=None, **options):
    """Serve a workbench for a run; yield a client that also has the workbench."""
    held_out = open_held_out(run, needed=False, cache=False)
    with only_editor(draft_folder(run, held_out.ensemble.fingerprint)):
        opened = Workbench(
            run,
            held_out,
            model=model,
            options={"cache": False},
            **options,
        )
        address, stop = queue.SimpleQueue(), threading.Event()
        serving = {
            "token": TOKEN,
            "limits": Limits(stop_seconds=5.0, patience=2.0, **(limits or {})),
            "started": address.put,
            "stop": stop,
        }
        thread = threading.Thread(
            target=serve_workbench, args=(opened,), kwargs=serving, daemon=True
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
