"""Batches: who waits for whom, and for how long."""

import re
import threading
import time

import numpy as np

from promptboost import PromptClassifier, PromptEnsemble, load
from promptboost.model import Round
from tests.serve.server_tools import SLOW, SlowEncoder, png, running


def test_a_single_client_waits_for_nobody(world):
    limits = {"max_wait_ms": 20_000}
    with running({"saved": world / "saved"}, limits=limits) as client:
        start = time.monotonic()
        assert client.post_form("/predict", png()).status == 200
        assert client.post_form("/predict", png(), png(), png()).status == 200
        assert time.monotonic() - start < 10


def test_images_that_come_while_the_encoder_is_busy_go_through_it_together(world, monkeypatch):
    monkeypatch.setattr(SlowEncoder, "batches", [])
    monkeypatch.setattr(SlowEncoder, "seconds", 0.5)
    with running({"saved": world / "saved"}, limits={"max_batch": 5}, encoder=SLOW) as client:
        first = threading.Thread(target=client.post_form, args=("/predict", png()))
        first.start()
        while not SlowEncoder.batches:
            time.sleep(0.01)
        others = [
            threading.Thread(target=client.post_form, args=("/predict", png())) for _ in range(7)
        ]
        for thread in others:
            thread.start()
        # The encoder is busy, and the event loop is not.
        start = time.monotonic()
        assert client.get("/healthz").status == 200
        assert client.get("/runs").status == 200
        quick = time.monotonic() - start
        for thread in (first, *others):
            thread.join()
    assert SlowEncoder.batches[0] == 1
    assert sum(SlowEncoder.batches) == 8
    assert max(SlowEncoder.batches) == 5
    assert quick < 5


def test_a_batch_for_each_core_has_the_answers_of_one_for_all(tmp_path, monkeypatch):
    """ConSE encoders are run by several threads at once, each with one core."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    banks = {name: {f"a photo of something {name}": 1} for name in ("red", "blue")}
    ensemble = PromptEnsemble(
        ("red", "blue"), (Round("{}", banks, 0.0, 0.1),), encoder_id="conse:lite0"
    )
    PromptClassifier(ensemble, cache=False).save(tmp_path / "run")
    files = [
        png(colour, size) for colour in ("red", "blue", "green") for size in ((9, 9), (70, 40))
    ]
    expected = load(tmp_path / "run", cache=False).predict_proba(files)
    with running({"run": tmp_path / "run"}) as client:
        assert client.service.run().current.batcher.encoders == 2
        for _ in range(4):
            answers = client.post_form("/predict", *files * 4, top_k=2).json["predictions"]
        text = client.get("/metrics").body.decode()
    chances = [
        [{one["class"]: one["probability"] for one in answer["top"]}[name] for name in banks]
        for answer in answers
    ]
    np.testing.assert_allclose(chances, np.tile(expected, (4, 1)), atol=1e-5)
    batches = re.search(r'promptboost_batch_images_count{encoder="conse:lite0"} (\d+)', text)
    assert int(batches[1]) > 4  # a request was divided
