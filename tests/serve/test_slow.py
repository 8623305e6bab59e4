"""Requests that keep decoders or the event loop busy: others are answered, and the server stops."""

import threading
import time

import pytest

from promptboost.serve import batcher
from tests.data.test_slow_images import scanned
from tests.serve.server_tools import SLOW, SlowEncoder, form, png, running


def in_background(function, *args):
    """Call a function in a thread; return the list that gets its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*args)), daemon=True)
    thread.start()
    return thread, results


def test_images_that_take_a_decoder_minutes_are_refused(server):
    slow = scanned(4_000, 2_000)
    waiting = [in_background(server.post_form, "/predict", slow) for _ in range(2)]
    start = time.monotonic()
    assert server.post_form("/predict", png()).status == 200
    assert time.monotonic() - start < 10
    for thread, results in waiting:
        thread.join(30)
        assert results[0].status == 422
        assert "too many scans" in results[0].error


def test_no_request_waits_for_decoders_that_hang(world, monkeypatch):
    hanging, read_image = threading.Event(), batcher.read_image

    def hangs(data, *args, **options):
        if data == b"slow":
            hanging.wait(60)
        return read_image(data, *args, **options)

    monkeypatch.setattr(batcher, "read_image", hangs)
    limits = {"decode_seconds": 1.0, "stop_seconds": 2.0}
    try:
        with running({"saved": world / "saved"}, limits=limits) as client:
            waiting = [in_background(client.post_form, "/predict", b"slow") for _ in range(2)]
            time.sleep(0.3)
            answer = client.post_form("/predict", png())
            assert (answer.status, answer.error.partition(": ")[2]) == (
                503,
                "takes too long to decode: try again later",
            )
            for thread, results in waiting:
                thread.join(10)
                assert results[0].status == 503
            in_background(client.post_form, "/predict", b"slow")
            start = time.monotonic()
            client.server.handle_exit(15, None)
            client.thread.join(10)
            assert time.monotonic() - start < 5
            # Nor does the end of the process wait for it.
            decoders = [thread for thread in threading.enumerate() if "(work)" in thread.name]
            assert len(decoders) >= 2
            assert all(thread.daemon for thread in decoders)
    finally:
        hanging.set()


def test_a_request_that_outlasts_the_stop_is_refused_as_json(world, monkeypatch):
    monkeypatch.setattr(SlowEncoder, "batches", [])
    monkeypatch.setattr(SlowEncoder, "seconds", 4.0)
    limits = {"stop_seconds": 1.0}
    with running({"saved": world / "saved"}, limits=limits, encoder=SLOW) as client:
        thread, results = in_background(client.post_form, "/predict", png())
        while not SlowEncoder.batches:
            time.sleep(0.01)
        client.server.handle_exit(15, None)
        thread.join(10)
    assert (results[0].status, results[0].error) == (503, "the server is stopping")


BODIES = {
    "options": b'{"images":[""],"top_k":[%s]}' % b",".join([b"[]"] * 8_000_000),
    "images": b'{"images":[%s]}' % b",".join([b'""'] * 8_000_000),
    "objects": b'{"images":[%s]}' % b",".join([b'{"data":""}'] * 2_500_000),
    "rows": b'{"embeddings":[%s]}' % b",".join([b"[]"] * 8_000_000),
    "numbers": b'{"embeddings":[[%s]]}' % b",".join([b"0"] * 14_000_000),
    "keys": b"{%s}" % b",".join([b'"top_k":1'] * 2_500_000),
    "depth": b'{"images":' + b"[" * 20_000_000,
}


@pytest.mark.parametrize("name", BODIES)
def test_large_json_becomes_no_objects_and_stops_nobody(server, name):
    import psutil

    memory = psutil.Process().memory_info
    before, body = memory().rss, BODIES[name]
    thread, results = in_background(server.ask, "POST", "/predict", body, "application/json")
    slowest = peak = 0.0
    while thread.is_alive():
        start = time.monotonic()
        assert server.get("/healthz").status == 200
        slowest = max(slowest, time.monotonic() - start)
        peak = max(peak, memory().rss - before)
    assert results[0].status in (400, 413, 422)
    assert slowest < 1
    # The body itself, in the client, in pieces and whole, and as two fields.
    assert peak < 5 * len(body) + 50e6


def test_ragged_embeddings_are_refused(server):
    rows = [[0.5] * 31, [0.5] * 33]
    answer = server.post_json("/predict", {"embeddings": rows})
    assert (answer.status, answer.error[:26]) == (422, "embeddings have the shape ")


def test_a_form_of_many_small_parts_stops_nobody(server):
    body, kind = form(b"\r\n--" * 7_000_000)
    thread, _ = in_background(server.ask, "POST", "/predict", body, kind)
    while thread.is_alive():
        start = time.monotonic()
        assert server.get("/healthz").status == 200
        assert time.monotonic() - start < 1
