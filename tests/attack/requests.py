"""Hostile requests: bombs, files that are cut off, slow clients, wrong types, and what is no HTTP at all.

A real server in a process of its own answers each, or says in JSON what is wrong with it. It has no fault
(status 500), tells nothing of itself, and is still right about sound images. After them it has no more than
100 MB above its first requests, and never more than one image may take beside that.
"""

import base64
import io
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Event, Lock, Thread

from PIL import Image

from promptboost.serve.limits import Limits

#: Whatever a request comes to that is as it should be.
HARMLESS = {"answered", "refused", "closed", "sound"}
MOST_GROWTH = 100 * 2**20
MOST_PEAK = MOST_GROWTH + Limits().max_image_memory
#: Seconds within which the server says that it is alive, on an idle machine.
MOST_SILENT = 1.0
_THREADS, _SECONDS, _WARM = 16, 30.0, 50
_PATIENCE = 1.0  # of the server, in seconds: so that slow clients are many
_LEAK = re.compile(rb"Traceback|site-packages|\.py\b|/tmp/|promptboost[/\\]")
_SERVER = """
import sys
from pathlib import Path
from promptboost.serve.limits import Limits
from promptboost.serve.server import serve
from promptboost.serve.service import Service
service = Service({"run": Path(sys.argv[1])}, limits=Limits(patience=float(sys.argv[2])), cache=False)
serve(service, port=0, started=lambda address: print(address, flush=True))
"""


@dataclass(frozen=True)
class Attempt:
    """Bytes to send, and how: all at once, or only a part, or drop by drop."""

    kind: str
    data: bytes
    pause: float = 0.0
    leave: bool = False  # without waiting for an answer
    answer: str | None = None  # the class that a sound image is of


class Target:
    """A server in another process."""

    def __init__(self, folder: Path) -> None:
        from tests.serve.server_tools import write_run

        (folder / "run").mkdir()
        write_run(folder / "run")
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(folder / "run"), str(_PATIENCE)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError((folder / "log").read_text())
        self.port = int(line.strip().rpartition(":")[2])
        deadline = time.monotonic() + 300
        while b" 200 " not in self.ask(Attempt("", _request("GET", "/readyz"))):
            if time.monotonic() > deadline:
                raise RuntimeError("the server is not ready")
            time.sleep(0.05)

    def close(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.communicate(timeout=60)

    def memory(self, field: str = "VmRSS") -> int:
        """Return the bytes of memory it has."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(rf"{field}:\s+(\d+)", status)[1])  # type: ignore[index]

    def ask(self, attempt: Attempt) -> bytes:
        """Send what an attempt sends; return what comes back until the connection is closed."""
        parts = []
        with socket.create_connection(("127.0.0.1", self.port), _SECONDS) as wire:
            with suppress(ConnectionError):  # it may be closed before all is sent
                size = 200 if attempt.pause else len(attempt.data) or 1
                for start in range(0, len(attempt.data), size):
                    wire.sendall(attempt.data[start : start + size])
                    time.sleep(attempt.pause)
            if attempt.leave:
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return b""
            with suppress(ConnectionError):
                while part := wire.recv(65536):
                    parts.append(part)
        return b"".join(parts)

    def outcome(self, attempt: Attempt) -> tuple[str, bytes]:
        """Make an attempt, and return what it came to."""
        try:
            came = self.ask(attempt)
        except TimeoutError:
            return "stuck", b""
        except ConnectionRefusedError:
            return "died", b""
        return judged(attempt, came), came


def judged(attempt: Attempt, came: bytes) -> str:
    """Return what the answer to an attempt is worth."""
    if attempt.answer is not None:
        right = f'"predicted":"{attempt.answer}"'.encode()
        return "sound" if came.startswith(b"HTTP/1.1 200") and right in came else "wrong"
    if _LEAK.search(came):
        return "leak"
    # One connection may carry several requests.
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", came)]
    if not statuses:
        return "closed" if not came else "no HTTP"
    if 500 in statuses:
        return "fault"
    if statuses[-1] < 400:
        return "answered"
    _, _, body = came.rpartition(b"\r\n\r\n")
    if attempt.data.startswith(b"HEAD"):
        return "refused"
    try:
        return "refused" if json.loads(body)["error"] else "no words"
    except (ValueError, KeyError, TypeError):
        return "no words"


# --- what is sent ------------------------------------------------------------------------------


def _request(
    method: str, path: str, body: bytes = b"", kind: str = "", *more: str, host: str = "localhost"
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *more]
    if kind:
        lines.append(f"Content-Type: {kind}")
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def _file(rng: random.Random, kind: str, size: tuple[int, int] | None = None) -> bytes:
    size = size or (rng.randint(1, 60), rng.randint(1, 60))
    image = Image.frombytes("RGB", size, rng.randbytes(3 * size[0] * size[1]))
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def _png(width: int, height: int, mode: int, data: bytes, more: bytes = b"") -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + crc

    header = struct.pack(">IIBBBBB", width, height, 8, mode, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + more
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )


def _bomb(rng: random.Random) -> bytes:
    """Return a small file that is a large image, or says so."""
    kind = rng.randrange(6)
    if kind == 0:  # says that it is enormous
        return _png(rng.choice([30_000, 2**31 - 1]), rng.choice([30_000, 2**31 - 1]), 2, b"\0" * 99)
    if kind == 1:  # really is: some MB of zeros
        side = rng.choice([3000, 6000])
        return _png(side, side, 0, bytes((side + 1) * side))
    if kind == 2:  # a text that unpacks to much
        text = b"a\0\0" + zlib.compress(bytes(20 * 2**20))
        crc = struct.pack(">I", zlib.crc32(b"zTXt" + text))
        return _png(4, 4, 2, bytes(52), struct.pack(">I", len(text)) + b"zTXt" + text + crc)
    if kind == 3:
        width, height = rng.choice([(65535, 65535), (65535, 1), (0, 0)])
        return b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0" + rng.randbytes(40)
    if kind == 4:
        return (
            b"BM"
            + struct.pack("<IHHIIiiHH", 99, 0, 0, 54, 40, 2**31 - 1, 2**31 - 1, 1, 24)
            + bytes(60)
        )
    icon = _png(20_000, 20_000, 6, b"\0" * 99)
    return b"\0\0\1\0\1\0" + struct.pack("<BBBBHHII", 0, 0, 0, 0, 1, 32, len(icon), 22) + icon


def _bad_file(rng: random.Random) -> bytes:
    """Return a file that is cut off, altered, a bomb, or none at all."""
    kind = rng.randrange(8)
    if kind < 2:
        return _bomb(rng)
    if kind == 2:
        return rng.randbytes(rng.choice([0, 1, 10, 1000]))
    file = bytearray(_file(rng, rng.choice(["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM"])))
    if kind in (3, 4):
        return bytes(file[: rng.randrange(len(file))])
    for _ in range(rng.choice([1, 3, 30])):
        file[rng.randrange(len(file))] = rng.randrange(256)
    return bytes(file)


def _text(file: bytes) -> str:
    return base64.b64encode(file).decode()


def _form(rng: random.Random, files: list[bytes], **fields: str) -> tuple[bytes, str]:
    boundary = f"b{rng.randrange(10**9)}"
    disposition = 'Content-Disposition: form-data; name="image"; filename="'
    parts = [f'{disposition}{rng.choice(_NAMES)}"\r\n\r\n'.encode() + file for file in files]
    parts += [
        f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode()
        for name, value in fields.items()
    ]
    line = f"--{boundary}".encode()
    body = b"".join(line + b"\r\n" + part + b"\r\n" for part in parts) + line + b"--\r\n"
    return body, f"multipart/form-data; boundary={boundary}"


_NAMES = (
    "a.png",
    "../../etc/passwd",
    "é\u202e.png",
    "a\x1b[2J",
    "<script>",
    "x" * 5000,
    "",
    "%00",
    'q"',
)
_PATHS = ("/predict", "/runs/run/predict")
_VALUES: tuple[object, ...] = (
    *(None, True, 0, -1, 10**30, 1e308, -0.5, "", "\ud800", "\0", "a" * 100, [], {}, [[]], [None]),
    *({"data": 1}, {"data": "", "name": None}, {"": ""}, [[[[1]]]], "data:;base64,", "====", "%%%"),
)


def _bad_json(rng: random.Random) -> bytes:
    kind = rng.randrange(8)
    if kind == 0:
        return (b"[" * 100_000) + b"]" * 100_000
    if kind == 1:
        return b'{"images": ' + b'{"data":' * 50_000
    if kind == 2:
        return rng.randbytes(rng.choice([1, 50, 5000]))
    if kind == 3:
        return rng.choice(
            [b"", b"null", b"NaN", b'"', b"{", b"[1,", b'{"images":[NaN]}', b"\xff\xfe{\0}\0"]
        )
    image = _text(_file(rng, "PNG"))
    record: dict[str, object] = {
        "images": [image],
        "top_k": 1,
        "min_probability": 0.1,
        "explain": False,
    }
    for _ in range(rng.randint(1, 3)):
        record[rng.choice([*record, "id", "embeddings", "\0"])] = rng.choice(_VALUES)
    if kind == 4:
        record["images"] = [rng.choice([image, *_VALUES]) for _ in range(rng.choice([2, 70, 3000]))]
    return json.dumps(record).encode()


def _bad_embeddings(rng: random.Random) -> bytes:
    row: list[object] = [
        rng.choice([0.5, 0.1, 1e300, None, "a", [1.0], True])
        for _ in range(rng.choice([0, 31, 32]))
    ]
    good = [0.5] * rng.choice([1, 32, 32, 100_000])
    rows = rng.choice([row, [row], [good], [good, row], [good] * 70, [[]] * 99_999, {}, "no"])
    record: dict[str, object] = {"embeddings": rows}
    if rng.random() < 0.3:
        record[rng.choice(["images", "top_k", "explain", "inputs"])] = rng.choice(_VALUES)
    return json.dumps(record).encode()


def _images(rng: random.Random) -> Attempt:
    path, files = rng.choice(_PATHS), [_bad_file(rng) for _ in range(rng.choice([1, 1, 1, 3]))]
    if rng.random() < 0.3:
        body, kind = (
            json.dumps({"images": [_text(file) for file in files]}).encode(),
            "application/json",
        )
    elif rng.random() < 0.3:
        body, kind = files[0], rng.choice(["image/png", "image/x", "application/octet-stream"])
    else:
        body, kind = _form(rng, files, top_k=rng.choice(["1", "2", "x", "-1"]))
    return Attempt("image", _request("POST", path, body, kind))


def _types(rng: random.Random) -> Attempt:
    body = _bad_embeddings(rng) if rng.random() < 0.4 else _bad_json(rng)
    path = rng.choice(_PATHS)
    kind = rng.choice(
        ["application/json"] * 4 + ["text/plain", "image/png", "multipart/form-data", "é", ""]
    )
    return Attempt("types", _request("POST", path, body, kind))


def _forms(rng: random.Random) -> Attempt:
    body, kind = _form(rng, [_file(rng, "PNG")] * rng.choice([0, 1, 2, 70, 400]))
    change = rng.randrange(7)
    if change == 0:
        body = body[: rng.randrange(len(body))]
    elif change == 1:
        altered = bytearray(body)
        for _ in range(5):
            altered[rng.randrange(len(altered))] = rng.randrange(256)
        body = bytes(altered)
    elif change == 2:
        kind = rng.choice(
            ["multipart/form-data", "multipart/form-data; boundary=", kind + "; charset=utf-7"]
        )
    elif change == 3:
        kind += rng.choice(
            ["; charset=no", "; charset=idna", "; charset=base64", '"', "x" * 300, "é"]
        )
    elif change == 4:
        body, kind = _form(
            rng, [], **{f"field{number}": "a" * 900 for number in range(rng.choice([9, 300]))}
        )
    elif change == 5:
        body = body.replace(
            b"form-data", rng.choice([b"", b"attachment", b"form-data; name*=utf-8''%ff"])
        )
    else:
        body = body.replace(b"\r\n", b"\n")
    return Attempt("form", _request("POST", "/predict", body, kind))


def _heads(rng: random.Random) -> Attempt:
    """Return what is no HTTP, or too much of it."""
    good = _request("POST", "/predict", _file(rng, "PNG"), "image/png")
    lines = (
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + rng.randbytes(200),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n"
        + b"A: b\r\n" * rng.choice([150, 20_000])
        + b"\r\n",
        b"GET /"
        + b"%41" * rng.choice([10, 40_000])
        + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        good.replace(b"Content-Length: ", b"Content-Length: -"),
        good.replace(b"Content-Length", b"Content-Length: 3\r\nContent-Length"),
        good.replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length"),
        good.replace(b"Connection: close", b"Connection: Upgrade\r\nUpgrade: websocket"),
        good.replace(b"Connection: close", b"Connection: Upgrade\r\nUpgrade: h2c"),
        good.replace(
            b"localhost", rng.choice([b"evil.example", b"", b"\xff", b"localhost:99999999"])
        ),
        good.replace(b"Host: localhost\r\n", b""),
        good.replace(b"Connection: close", b"Origin: http://evil.example\r\nConnection: close"),
        good.replace(b"Connection: close", b"Content-Encoding: gzip\r\nConnection: close"),
        good.replace(b"Connection: close", b"Authorization: Bearer \xff\xfe\r\nConnection: close"),
        good.replace(b"Connection: close", b"Expect: 100-continue\r\nConnection: close"),
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"1\r\na\r\n" * 500_000,
    )
    if rng.random() < 0.7:
        return Attempt("head", rng.choice(lines))
    altered = bytearray(good)
    for _ in range(rng.choice([1, 5])):
        altered[rng.randrange(min(len(altered), 200))] = rng.randrange(256)
    return Attempt("head", bytes(altered))


def _addresses(rng: random.Random) -> Attempt:
    paths = (
        *(
            "/",
            "//",
            "/runs/../../etc/passwd",
            "/runs/%2e%2e%2fetc",
            "/runs/%00",
            "/runs/%ff",
            "/runs/é",
        ),
        *(
            "/runs/run/card",
            "/runs/none/card",
            "/docs",
            "/metrics?x=%ff",
            "/openapi.json",
        ),
        *(
            "/runs/run/versions/9",
            "/runs/%0d%0aX: y",
            "/runs/" + "a" * 3000,
            "*",
            "http://a/runs",
        ),
        *(
            "/predict?top_k=9e9",
            "/predict?top_k=\0",
            "/predict?explain=maybe&explain=1",
            "/predict?" + "&" * 9999,
        ),
    )
    method = rng.choice(
        ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "BREW"]
    )
    body = _file(rng, "PNG") if method == "POST" else b""
    return Attempt("address", _request(method, rng.choice(paths), body, "image/png"))


def _slow(rng: random.Random) -> Attempt:
    """Return what stops in the middle, comes drop by drop, or leaves."""
    good = _request("POST", "/predict", _file(rng, "PNG", (40, 40)), "image/png")
    part = good[: rng.randrange(len(good))]
    kind = rng.randrange(3)
    return Attempt("slow", part, pause=0.1 if kind == 1 else 0.0, leave=kind == 2)


@cache
def _gray() -> bytes:
    """Return a small file of 36 million pixels."""
    return _png(6000, 6000, 0, bytes(6001 * 6000))


def _large(rng: random.Random) -> Attempt:
    """Return a body that is too large, or as large as it may be."""
    size, kind = rng.choice([33, 40]) * 2**20, rng.randrange(6)
    if kind < 2:
        body = bytes(rng.choice([2**20, size]))
        return Attempt("large", _request("POST", "/predict", body, "image/png"))
    most = Limits().max_bytes - 2**10
    if kind == 2:
        body = b'{"images": ["%s"]}' % (b"A" * (most // 4 * 4))
        return Attempt("large", _request("POST", "/predict", body, "application/json"))
    if kind == 3:
        body = b'{"embeddings": [%s[]]}' % (b" " * most)
        return Attempt("large", _request("POST", "/predict", body, "application/json"))
    if kind == 4:
        body, form = _form(rng, [_gray(), bytes(most - 2**20)])
        return Attempt("large", _request("POST", "/predict", body, form))
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return Attempt("large", head + (b"100000\r\n" + bytes(2**20) + b"\r\n") * 40)


def _sound(rng: random.Random) -> Attempt:
    color, answer = rng.choice([("red", "fire"), ("blue", "ice")])
    file = io.BytesIO()
    Image.new("RGB", (rng.randint(1, 99), rng.randint(1, 99)), color).save(file, "PNG")
    return Attempt(
        "sound", _request("POST", "/predict", file.getvalue(), "image/png"), answer=answer
    )


_KINDS: tuple[tuple[Callable[[random.Random], Attempt], int], ...] = (
    (_images, 35),
    (_types, 20),
    (_forms, 12),
    (_heads, 12),
    (_addresses, 8),
    (_slow, 4),
    (_large, 1),
    (_sound, 8),
)


def attempts(count: int, seed: int) -> Iterator[Attempt]:
    """Return attempts, the same for the same seed."""
    makers, shares = zip(*_KINDS, strict=True)
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        yield rng.choices(makers, shares)[0](rng)


def _burst(seed: int) -> list[Attempt]:
    """Return the attempts that take most memory."""
    return [_large(random.Random(f"{seed}/large/{number}")) for number in range(2 * _THREADS)]


@contextmanager
def target() -> Iterator[Target]:
    """Start a server, and stop it."""
    with tempfile.TemporaryDirectory() as folder:
        server = Target(Path(folder))
        try:
            yield server
        finally:
            server.close()


def attack(
    server: Target, count: int, seed: int, *, health_counts: bool = False
) -> tuple[Counter[str], list[str]]:
    """Make attempts, many at once; return what they came to, and lines about those that did harm."""
    counts: Counter[str] = Counter()
    harm: list[str] = []
    made, lock = attempts(count, seed), Lock()

    def attempt_all() -> None:
        while True:
            with lock:
                if (attempt := next(made, None)) is None:
                    return
            came_to, came = server.outcome(attempt)
            with lock:
                counts[came_to] += 1
                if came_to not in HARMLESS:
                    harm.append(
                        f"{came_to}: {attempt.kind} {attempt.data[:300]!r}: {came[-300:]!r}"
                    )

    slowest, done_all = 0.0, Event()

    def ask_health() -> None:
        nonlocal slowest
        while not done_all.wait(0.1):
            start = time.perf_counter()
            answer = server.ask(Attempt("", _request("GET", "/healthz")))
            slowest = max(slowest, time.perf_counter() - start)
            if b" 200 " not in answer[:20]:
                harm.append(f"health: {answer[:200]!r}")

    with ThreadPoolExecutor(_THREADS) as threads:
        warm = [_sound(random.Random(number)) for number in range(_WARM)]
        harm += [name for name, _ in threads.map(server.outcome, warm) if name != "sound"]
        before = server.memory()
        health = Thread(target=ask_health)
        health.start()
        for done in [threads.submit(attempt_all) for _ in range(_THREADS)]:
            done.result()
        counts += Counter(name for name, _ in threads.map(server.outcome, _burst(seed)))
        done_all.set()
        health.join()
        # As before: what clients left behind is decoded, and freed.
        harm += [name for name, _ in threads.map(server.outcome, warm) if name != "sound"]
    grown = server.memory() - before
    peak = server.memory("VmHWM") - before
    print(
        f"memory: {before / 1e6:.0f} MB, {grown / 1e6:+.0f} MB after, {peak / 1e6:+.0f} MB at the peak"
    )
    print(f"/healthz: {1000 * slowest:.0f} ms at most")
    if slowest > (MOST_SILENT if health_counts else 10 * MOST_SILENT):
        counts["silent"] += 1
        harm.append(f"silent: /healthz took {slowest:.1f} s")
    for bytes_, most in ((grown, MOST_GROWTH), (peak, MOST_PEAK)):
        if bytes_ > most:
            counts["grew"] += 1
            harm.append(f"grew: by {bytes_ / 1e6:.0f} MB, more than {most / 1e6:.0f} MB")
    return counts, harm


def run(count: int, seed: int) -> Counter[str]:
    """Make attempts against a server, and return how many came to what.

    Where other programs keep the cores busy, `/healthz` may take ten times as long.
    """
    idle = os.getloadavg()[0] < (os.cpu_count() or 1)
    with target() as server:
        counts, harm = attack(server, count, seed, health_counts=idle)
    for line in harm[:20]:
        print(line)
    return counts
