"""Batches of images, and their waiting times."""

import threading
import time

from promptboost.model import Head
from promptboost.serve.batcher import Batcher
from tests.serve.server_tools import SLOW, SlowEncoder, png, running, write_run


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


def test_a_batch_that_fails_is_not_the_end_of_all(world, monkeypatch):
    plain, failures = Head.predict_proba, [MemoryError("no room"), ValueError("odd")]

    def fails(self, rows):
        if failures:
            raise failures.pop()
        return plain(self, rows)

    monkeypatch.setattr(Head, "predict_proba", fails)
    with running({"saved": world / "saved"}) as client:
        for _ in range(2):
            answer = client.post_form("/predict", png())
            assert answer.status == 500
            assert "a fault in the server" in answer.json["error"]
        assert client.post_form("/predict", png()).status == 200


def test_an_encoder_that_warms_up_for_a_new_version_turns_nobody_away(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    ready = []
    with running({"run": run}) as client:
        plain = Batcher._warm_up

        def waits(batcher):
            ready.append(client.get("/readyz").status)
            ready.append(client.post_form("/predict", png()).status)
            plain(batcher)

        monkeypatch.setattr(Batcher, "_warm_up", waits)
        write_run(run, encoder="fake:32-1")
        client.service.reload()
        assert client.get("/runs/run").json["encoder"] == "fake:32-1"
    assert ready == [200, 200]
