"""Each limit and its status; the server works afterwards."""

import hmac
import http.client
import io
import socket
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from promptboost.errors import SettingError
from promptboost.serve.limits import Limits
from tests.serve.server_tools import (
    SLOW,
    TOKEN,
    Client,
    SlowEncoder,
    form,
    png,
    running,
    text_of,
)


@pytest.fixture(scope="module")
def small(world):
    """A server with small limits."""
    limits = {"max_bytes": 100_000, "max_images": 4, "max_held": 250_000, "max_connections": 40}
    with running({"saved": world / "saved"}, limits=limits) as client:
        yield client


def bomb(side=100_000):
    """A PNG of some hundred bytes whose header claims any size."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


def still_answers(client):
    assert client.post_form("/predict", png("red")).json["predictions"][0]["predicted"] == "fire"


def test_tiny_chunks_are_refused_before_they_are_parsed(small):
    head = (
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    for spam in (
        head + b"1\r\na\r\n" * 5000,
        head + b"A\r\n0123456789\r\n" * 3 + b"1\r\na\r\n" * 50_000,
    ):
        answer = small.raw(spam)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"its chunks are too small" in answer
    image = png("red")
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in image) + b"0\r\n\r\n"
    assert b'"fire"' in small.raw(head + chunks)


def test_limits_are_numbers_above_zero():
    with pytest.raises(SettingError, match="max_queue is 0"):
        Limits(max_queue=0)
    assert Limits(max_wait_ms=0).max_wait_ms == 0
    assert Limits(max_images=9, max_queue=5).most_images == 5


@pytest.mark.parametrize("announced", [True, False])
def test_too_many_bytes(small, announced):
    body, kind = form(b"x" * 200_000)
    if announced:
        answer = small.ask("POST", "/predict", body, kind)
    else:  # in pieces, whose number nobody knows before
        pieces = (body[start : start + 5000] for start in range(0, len(body), 5000))
        answer = small.ask("POST", "/predict", pieces, kind)
    assert answer.status == 413
    assert "100.0 kB" in answer.error
    still_answers(small)


def test_an_endless_body_is_cut_off(small):
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", small.port), 10) as wire:
        wire.sendall(head)
        piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        deadline = time.monotonic() + 10
        with suppress(OSError):
            while time.monotonic() < deadline:
                wire.sendall(piece)
        assert time.monotonic() < deadline
    still_answers(small)


def test_leave_to_send_is_not_given_for_too_much(small):
    answer = small.raw(
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n"
        b"Expect: 100-continue\r\nConnection: close\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"100 Continue" not in answer


@pytest.mark.parametrize("side", [20_000, 100_000])
def test_bombs_of_pixels(small, side):
    answer = small.post_form("/predict", ("bomb.png", bomb(side)))
    assert answer.status in (413, 422)
    assert answer.error.startswith("bomb.png: too large") == (answer.status == 413)
    still_answers(small)


def test_an_image_that_takes_too_much_memory(world):
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (5000, 5000)).save(file, "PNG")  # 25 MB decoded, of a few KB
    limits = {"max_image_memory": 10 * 2**20}
    with running({"saved": world / "saved"}, limits=limits) as client:
        answer = client.post_form("/predict", file.getvalue())
        assert answer.status == 413
        assert "too large: 5000 × 5000" in answer.error
        images = {"images": [text_of(bomb(20_000))]}
        assert client.post_json("/predict", images).status in (413, 422)
        still_answers(client)


def test_too_many_images(small):
    assert small.post_form("/predict", *[png()] * 4).status == 200
    for answer in (
        small.post_form("/predict", *[png()] * 5),
        small.post_form("/predict", *[png()] * 50),
        small.post_json("/predict", {"images": [text_of(png())] * 5}),
    ):
        assert answer.status == 422
        assert "no more than 4" in answer.error


def test_embeddings_that_are_too_large_are_not_decoded(small):
    for record in ({"embeddings": [[0.5] * 3000]}, {"embeddings": [[]] * 5000}):
        answer = small.post_json("/predict", record)
        assert (answer.status, answer.error[:29]) == (413, "the embeddings are too large;")
    still_answers(small)


def test_a_full_queue(world, monkeypatch):
    monkeypatch.setattr(SlowEncoder, "batches", [])
    limits = {"max_queue": 4, "max_batch": 1}
    answers = []
    with running({"saved": world / "saved"}, limits=limits, encoder=SLOW) as client:
        threads = [
            threading.Thread(
                target=lambda: answers.append(client.post_form("/predict", png(), png()))
            )
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        still_answers(client)
    assert sorted({answer.status for answer in answers}) == [200, 429]
    refused = next(answer for answer in answers if answer.status == 429)
    assert "images: try again later" in refused.error
    assert int(refused.headers["retry-after"]) >= 1


def test_bodies_of_all_requests_together(small):
    """Unfinished requests use memory up to a limit."""
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\n"
    wires = []
    statuses = []
    for _ in range(4):
        wire = socket.create_connection(("127.0.0.1", small.port), 10)
        wire.sendall(head + b"x" * 89_000)
        wires.append(wire)
    for wire in wires:
        statuses.append(wire.recv(12)[-3:])
        wire.close()
    assert statuses.count(b"429") >= 1
    assert set(statuses) <= {b"429", b"408"}
    still_answers(small)


def test_slow_clients(small):
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n"
    clients = [
        (b"", 0.0, None),  # nothing at all
        (b"GET /healthz HTTP/1.1\r\n" + b"X-A: b\r\n" * 50, 0.05, 10),  # headers for ever
        (head + b"x" * 100, 0.0, None),  # a body that stops
        (head + b"x" * 90, 0.05, 4),  # a body drop by drop
    ]
    start = time.monotonic()
    with ThreadPoolExecutor(len(clients)) as threads:
        answers = list(threads.map(lambda client: small.raw(*client), clients))
    assert time.monotonic() - start < 15
    assert answers[:2] == [b"", b""]
    for answer in answers[2:]:
        assert b" 408 " in answer.split(b"\r\n")[0]
        assert b'"error"' in answer
    still_answers(small)


def test_slow_clients_do_not_pile_up(small):
    wires = [socket.create_connection(("127.0.0.1", small.port), 10) for _ in range(60)]
    assert small.get("/healthz").status == 503
    for wire in wires:
        assert wire.recv(4096) == b""
        wire.close()
    still_answers(small)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nX-A: " + b"b" * 400_000,
        b"GET /" + b"a" * 400_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01 this is not HTTP\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: a\r\n\r\n",
    ],
)
def test_heads_that_are_none(small, data):
    answer = small.raw(data)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'{"error":"' in answer
    still_answers(small)


def test_a_client_that_leaves_frees_its_place(world, monkeypatch):
    monkeypatch.setattr(SlowEncoder, "batches", [])
    monkeypatch.setattr(SlowEncoder, "seconds", 1.0)
    limits = {"max_queue": 8, "max_batch": 1, "max_images": 8}
    with (
        running({"saved": world / "saved"}, limits=limits, encoder=SLOW) as client,
        closing(http.client.HTTPConnection("127.0.0.1", client.port)) as leaving,
    ):
        body, kind = form(*[png()] * 8)
        leaving.request("POST", "/predict", body, {"Content-Type": kind})
        queue = f'promptboost_queue_images{{encoder="{SLOW}"}} 8.0'
        while queue not in client.get("/metrics").body.decode():
            time.sleep(0.01)
        assert client.post_form("/predict", png()).status == 429
        leaving.close()
        deadline = time.monotonic() + 10
        while client.post_form("/predict", png()).status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert sum(SlowEncoder.batches) < 8  # what nobody waits for is not looked at


def test_tokens_are_compared_in_constant_time(world, monkeypatch):
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda *pair: compared.append(pair))
    shown = ["no", TOKEN[:-1], f"{TOKEN}x", TOKEN]
    with running({"saved": world / "saved"}, token=TOKEN) as client:
        for token in shown:
            headers = {"Authorization": f"Bearer {token}"}
            # Nothing but the comparison, which denies here, decides.
            assert Client(client.port).get("/runs", headers=headers).status == 401
    assert [(token.encode(), TOKEN.encode()) for token in shown] == compared[-4:]


def test_the_token(world):
    with running({"saved": world / "saved"}, token=TOKEN) as client:
        still_answers(client)
        stranger = Client(client.port)
        for shown in (
            None,
            "Bearer no",
            f"Basic {TOKEN}",
            f"Bearer {TOKEN}x",
            "Bearer",
            TOKEN,
            "Bearer é",
        ):
            headers = {} if shown is None else {"Authorization": shown.encode("latin-1")}
            for path in ("/runs", "/metrics", "/openapi.json"):
                answer = stranger.get(path, headers=headers)
                assert answer.status == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                assert TOKEN not in answer.error
            assert stranger.post_form("/predict", png(), headers=headers).status == 401
        for path in ("/healthz", "/readyz"):
            assert stranger.get(path).status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("[::1]:99", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost@evil.example:80", 421),
        ("", 421),
    ],
)
def test_names_that_the_server_is_called_by(small, host, status):
    assert small.get("/runs", headers={"Host": host}).status == status


def test_pages_of_other_sites_are_refused(small):
    here = f"http://127.0.0.1:{small.port}"
    for headers, status in [
        ({"Origin": here}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ]:
        answer = small.get("/runs", headers=headers)
        assert answer.status == status
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_not_ready_before_the_encoder_has_seen_an_image(world, monkeypatch):
    held = threading.Event()

    def wait(self, images):
        held.wait(20)
        return type(self).__mro__[1].encode_images(self, images)

    monkeypatch.setattr(SlowEncoder, "encode_images", wait)
    with running({"saved": world / "saved"}, encoder=SLOW, wait=False) as client:
        assert client.get("/healthz").status == 200
        assert client.get("/readyz").status == 503
        assert client.get("/readyz").json == {"state": "loading"}
        answer = client.post_form("/predict", png())
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        held.set()
        deadline = time.monotonic() + 20
        while client.get("/readyz").status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        still_answers(client)


def test_an_encoder_that_fails_on_one_image_fails_no_other(world, monkeypatch):
    def encode(self, images):
        images = list(images)
        if any(image.getpixel((0, 0)) == (0, 255, 0) for image in images):
            raise RuntimeError("/a/secret/path")
        return type(self).__mro__[1].encode_images(self, images)

    monkeypatch.setattr(SlowEncoder, "encode_images", encode)
    with running({"saved": world / "saved"}, encoder=SLOW) as client:
        answer = client.post_form("/predict", png("red"), png((0, 255, 0)), png("blue"))
        found = [one["predicted"] for one in answer.json["predictions"]]
        assert found == ["fire", None, "ice"]
        assert answer.json["predictions"][1]["error"] == "the encoder cannot embed it"
        alone = client.post_form("/predict", png((0, 255, 0)))
        assert alone.status == 422
        assert "secret" not in alone.error
