"""The workbench: how long it takes from an edit to its figures, over HTTP on the loopback.

Run ``python -m benchmarks.workbench [IMAGES] [SENTENCES] [CLASSES]``: 50,000, 1,000 and 100 by default.
Embeddings are random, of 512 numbers; everything else is what ``promptboost workbench`` runs: the bench,
the draft in a file, the server. Every kind of edit is made many times; only a sentence that is new is
embedded, here by a function that takes no time. Prints JSON: milliseconds at the median and the 95th
percentile, for each kind and for all; how much of that the processor worked, server and client together,
which other programs do not change; and the memory of the process.
"""

import hashlib
import http.client
import json
import queue
import random
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.model import PromptEnsemble, Round
from promptboost.model.head import Head
from promptboost.model.scores import SentenceScores
from promptboost.run.holdout import HeldOutSet
from promptboost.run.versions import Lineage
from promptboost.workbench.application import serve_workbench
from promptboost.workbench.state import Workbench

DIM = 512
REPEATS = 12
TOKEN = "a-token-of-the-benchmark"


def embedded(texts: list[str]) -> NDArray[np.float32]:
    """Return a random row of length one for each text, the same every time."""
    rows = []
    for text in texts:
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        row = np.random.default_rng(seed).normal(size=DIM)
        rows.append(row / np.linalg.norm(row))
    return np.array(rows, dtype=np.float32)


def make_bench(images: int, sentences: int, classes: int) -> HeldOutSet:
    """Make a run's text, and images near the sentences of their class."""
    names = tuple(f"class {number}" for number in range(classes))
    texts = {
        name: [f"sentence {k} of {name}" for k in range(sentences // classes)] for name in names
    }
    banks = {
        name: {text: 1 + place % 5 for place, text in enumerate(own)} for name, own in texts.items()
    }
    ensemble = PromptEnsemble(names, (Round("a {}", banks, 0.0, 0.0),), logit_scale=30.0)
    vectors = {
        text: row for own in texts.values() for text, row in zip(own, embedded(own), strict=True)
    }
    head = ensemble.embed(vectors)
    assert isinstance(head, Head)
    rng = np.random.default_rng(0)
    rest = rng.normal(0, 0.003, head.weights.shape).astype(np.float32)
    head = replace(head, residual=rest, text_scale=30.0)
    labels = rng.integers(0, classes, images)
    rows = rng.normal(size=(images, DIM)).astype(np.float32)
    rows += 2.4 * np.asarray(head.weights, dtype=np.float32)[labels]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    scores = SentenceScores(rows, embedded, head)
    return HeldOutSet(
        ensemble, scores, [f"{k}.jpg" for k in range(images)], labels, names, Lineage()
    )


class Page:
    """What stands for the browser: one connection, and the newest revision."""

    def __init__(self, port: int) -> None:
        self._wire = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self.state: dict[str, Any] = {}
        self.milliseconds: dict[str, list[float]] = {}
        self.worked: list[float] = []

    def ask(self, kind: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        content = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        start, before = time.perf_counter(), time.process_time()
        self._wire.request("GET" if content is None else "POST", path, content, headers)
        reply = self._wire.getresponse()
        found: dict[str, Any] = json.loads(reply.read())
        self.milliseconds.setdefault(kind, []).append(1000 * (time.perf_counter() - start))
        if kind not in ("open", "reasons"):
            self.worked.append(1000 * (time.process_time() - before))
        assert reply.status == 200, found
        return found

    def step(self, kind: str, path: str, **body: Any) -> None:
        self.state = self.ask(kind, path, {"revision": self.state["revision"], **body})

    def edit(self, kind: str, **change: Any) -> None:
        self.step(kind, "/api/edit", change={"kind": kind, **change})

    def some_class(self, chance: random.Random) -> dict[str, Any]:
        found: dict[str, Any] = chance.choice(
            [c for c in self.state["classes"] if len(c["sentences"]) > 3]
        )
        return found


def edit_all(page: Page) -> None:
    """Make every kind of edit, again and again."""
    chance = random.Random(0)
    page.state = page.ask("open", "/api/state")
    for number in range(REPEATS):
        one = page.some_class(chance)
        page.edit("remove", **{"class": one["name"], "sentence": one["sentences"][0]["text"]})
        page.step("undo", "/api/undo")
        page.step("redo", "/api/redo")
        one = page.some_class(chance)
        sentence = chance.choice(one["sentences"])["text"]
        page.edit("weight", **{"class": one["name"], "sentence": sentence, "share": 0.4})
        one = page.some_class(chance)
        page.edit("add", **{"class": one["name"], "sentence": f"new {number}", "share": 0.2})
        one = page.some_class(chance)
        page.edit("rename-class", **{"class": one["name"], "to": f"renamed {number}"})
        page.edit(
            "add-class",
            **{"class": f"added {number}", "sentences": [f"one {number}", f"two {number}"]},
        )
        page.edit("drop-class", **{"class": f"added {number}"})


def memory() -> float:
    """Return the most memory that this process has had, in MB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM"):
            return float(line.split()[1]) / 1024
    return float("nan")


def quantiles(values: list[float]) -> dict[str, float]:
    """Return the median and the 95th percentile."""
    return {f"p{part}_ms": round(float(np.percentile(values, part)), 1) for part in (50, 95)}


def measured(images: int, sentences: int, classes: int) -> dict[str, Any]:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        (draft := Path(folder, "draft")).mkdir()
        bench = Workbench(Path(folder, "run"), make_bench(images, sentences, classes), draft)
        address: queue.SimpleQueue[str] = queue.SimpleQueue()
        options = {"token": TOKEN, "started": address.put, "stop": (stop := threading.Event())}
        thread = threading.Thread(target=serve_workbench, args=(bench,), kwargs=options)
        thread.start()
        page = Page(int(address.get().split(":")[2].split("/")[0]))
        page.ask("open", "/api/state")
        opened = time.perf_counter() - start
        edit_all(page)
        page.ask("reasons", "/api/reasons")
        stop.set()
        thread.join()
    beside = {kind: page.milliseconds.pop(kind) for kind in ("open", "reasons")}
    every = [value for values in page.milliseconds.values() for value in values]
    return {
        "images": images,
        "sentences": sentences,
        "classes": classes,
        "edits": len(every),
        "edit_to_figures": quantiles(every),
        "of_which_processor": quantiles(page.worked),
        **{kind: quantiles(values) for kind, values in page.milliseconds.items()},
        "influence_of_all_sentences_ms": round(beside["reasons"][0], 1),
        "seconds_to_open": round(opened, 1),
        "memory_mb": round(memory()),
    }


if __name__ == "__main__":
    given = [int(number.replace(",", "")) for number in sys.argv[1:4]]
    print(json.dumps(measured(*given, *(50_000, 1_000, 100)[len(given) :]), indent=1))
