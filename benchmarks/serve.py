"""Images a second of a server with many clients, beside the encoder alone.

Run ``python -m benchmarks.serve [--images FOLDER] [--encoder conse:lite0] [--clients 32] [--json]``. A
server in a process of its own is asked by clients in a third one, over the loopback, one image a request.
Beside it, turn about: the encoder alone on decoded images (``tower``), and `predict_proba` on the same
files, decoded as it goes (``library``). Clients and server share the cores, so the processor's time an
image is counted too, of each process: it does not depend on what else the machine does.
"""

import argparse
import asyncio
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image, ImageFilter
from threadpoolctl import threadpool_limits

from promptboost import load
from promptboost.data.decode import read_image
from promptboost.encoders.embedder import WORKING_SIDE
from promptboost.model import PromptClassifier, PromptEnsemble, Round

CLASSES = ("cat", "dog", "bird", "fish", "tree", "car", "house", "flower")
BATCH = 32


def files(folder: str | None, number: int) -> list[bytes]:
    """Read JPEG files of a folder, or make some of the size of photographs on the web."""
    if folder is not None:
        found = sorted(Path(folder).rglob("*.jpg"))
        return [
            path.read_bytes() for path in random.Random(0).sample(found, min(number, len(found)))
        ]
    made = []
    for seed in range(number):
        noise = Image.frombytes("RGB", (64, 48), random.Random(seed).randbytes(64 * 48 * 3))
        image = noise.resize((500, 375)).filter(ImageFilter.GaussianBlur(2))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        made.append(file.getvalue())
    return made


def write_run(folder: Path, encoder: str) -> Path:
    banks = {name: {f"a photo of a {name}.": 1} for name in CLASSES}
    ensemble = PromptEnsemble(CLASSES, (Round("{}", banks, 0.0, 0.1),), encoder_id=encoder)
    PromptClassifier(ensemble).save(folder)
    return folder


def measured(work: Callable[[], Any], images: int) -> dict[str, float]:
    """Return images a second, and processor milliseconds of this process an image."""
    before, start = time.process_time(), time.perf_counter()
    work()
    seconds, processor = time.perf_counter() - start, time.process_time() - before
    return {"per_second": images / seconds, "cpu_ms": 1000 * processor / images}


# --- the clients, in a process of their own ------------------------------------------------------


async def ask(port: int, bodies: list[bytes], clients: int, requests: int) -> list[float]:
    """Ask so many times, each client without a pause; return the seconds that each took."""
    seconds: list[float] = []
    numbers = iter(range(requests))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            body = bodies[number % len(bodies)]
            head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            start = time.perf_counter()
            writer.write(head.encode() + b"Content-Type: image/jpeg\r\n\r\n" + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer)
            if length is None or not answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(answer.decode())
            await reader.readexactly(int(length[1]))
            seconds.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*[client() for _ in range(clients)])
    return seconds


def be_clients(port: int, folder: str, clients: int, requests: int) -> None:
    bodies = [path.read_bytes() for path in sorted(Path(folder).iterdir())]
    start, processor = time.perf_counter(), time.process_time()
    latencies = asyncio.run(ask(port, bodies, clients, requests))
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    print(json.dumps([seconds, processor, sorted(latencies)]))


# --- the server ----------------------------------------------------------------------------------


class ServerProcess:
    """``promptboost serve`` on a free port."""

    def __init__(self, run: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "promptboost",
            "serve",
            str(run),
            "--port",
            "0",
            "--json",
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.port = int(json.loads(line)["address"].rpartition(":")[2])

    def memory(self) -> float:
        """Return the megabytes it has."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else float("nan")

    def processor(self) -> float:
        """Return the processor's seconds it has taken."""
        parts = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    def asked(self, folder: Path, clients: int, requests: int) -> dict[str, Any]:
        """Let clients ask it."""
        before = self.processor()
        arguments = [str(self.port), str(folder), str(clients), str(requests)]
        command = [sys.executable, "-m", "benchmarks.serve", "--be-clients", *arguments]
        seconds, clients_cpu, latencies = json.loads(subprocess.check_output(command))
        return {
            "per_second": requests / seconds,
            "cpu_ms": 1000 * (self.processor() - before) / requests,
            "clients_cpu_ms": 1000 * clients_cpu / requests,
            "p50_ms": 1000 * latencies[len(latencies) // 2],
            "p99_ms": 1000 * latencies[int(0.99 * len(latencies))],
        }


def measure(options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder, run = Path(name) / "images", Path(name) / "run"
        folder.mkdir()
        data = files(options.images, options.number)
        for number, file in enumerate(data):
            (folder / f"{number:04}.jpg").write_bytes(file)
        write_run(run, options.encoder)
        classifier = load(run, cache=False)
        decoded = [read_image(file, at_least=WORKING_SIDE) for file in data]
        encoder = classifier.embedder.encoder

        def tower() -> None:
            for start in range(0, len(decoded), BATCH):
                encoder.encode_images(decoded[start : start + BATCH])

        threadpool_limits(1, user_api="blas")  # as the server does: the encoder at its best
        tower()
        server = ServerProcess(run)
        try:
            server.asked(folder, options.clients, 2 * options.clients)
            before = server.memory()
            rounds: dict[str, list[dict[str, Any]]] = {"tower": [], "library": [], "server": []}
            for _ in range(
                options.repeats
            ):  # turn about, so that what else the machine does hits all
                rounds["tower"].append(measured(tower, len(data)))
                rounds["library"].append(
                    measured(lambda: classifier.predict_proba(data), len(data))
                )
                rounds["server"].append(server.asked(folder, options.clients, options.requests))
            grown = server.memory() - before
        finally:
            server.process.terminate()
            server.process.wait()
    found = {
        f"{what}_{part}": round(median(one[part] for one in parts), 2)
        for what, parts in rounds.items()
        for part in parts[0]
    }
    pairs = list(zip(rounds["server"], rounds["tower"], rounds["library"], strict=True))
    found["ratio_to_tower"] = round(
        median(a["per_second"] / b["per_second"] for a, b, _ in pairs), 3
    )
    found["ratio_to_library"] = round(
        median(a["per_second"] / c["per_second"] for a, _, c in pairs), 3
    )
    return {**found, "memory_mb": round(before), "growth_mb": round(grown, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", help="a folder of JPEG files; without it some are made")
    parser.add_argument("--encoder", default="conse:lite0")
    parser.add_argument("--number", type=int, default=128, help="different images")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=512, help="in each repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--be-clients", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be_clients:
        port, folder, clients, requests = options.be_clients
        be_clients(int(port), folder, int(clients), int(requests))
        return
    found = measure(options)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
