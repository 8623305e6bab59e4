"""Batches: who waits for whom, and for how long."""

import threading
import time

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
