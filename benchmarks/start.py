"""Seconds to the first answer of a ConSE encoder in a fresh process.

Run ``python -m benchmarks.start [ENCODER ...]``. Each line is a process of its own. The first three load
an encoder and embed an image: one finds nothing on disk, the others find the graphs, the embeddings of
ImageNet's class names and the weights' hashes. The last two are ``promptboost predict RUN IMAGE`` with an
image that the store has not seen. Processor seconds are those of all threads; on a busy machine they
say more than the clock does.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

STEPS = """
import time
start = time.perf_counter()
from PIL import Image
from promptboost.encoders import load_encoder
encoder = load_encoder({name!r})
loaded = time.perf_counter()
encoder.encode_images([Image.new("RGB", (300, 300), "red")])
print(f"; load {{loaded - start:.2f}} s, image {{time.perf_counter() - loaded:.2f}} s", end="")
"""
COMMAND = "from promptboost.cli import main; main()"


def timed(what: str, arguments: list[str], folder: Path) -> None:
    """Run Python on `arguments` in a folder, with what is kept there, and print what it took."""
    environment = {**os.environ, "PROMPTBOOST_CACHE": str(folder / "cache")}
    start, used = time.perf_counter(), _processor_seconds()
    done = subprocess.run(
        [sys.executable, "-c", *arguments],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, used = time.perf_counter() - start, _processor_seconds() - used
    parts = done.stdout if done.stdout.startswith("; ") else ""
    print(f"{what}: {seconds:.2f} s ({used:.2f} s of processor{parts})", flush=True)


def _processor_seconds() -> float:
    """Return what finished child processes have used."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    for name in sys.argv[1:] or ["conse:lite0", "conse:lite2"]:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            for what in ("nothing kept", "all kept", "all kept"):
                timed(f"{name}, {what}", [STEPS.format(name=name)], folder)
            for label in ("red", "blue"):
                (folder / "images" / label).mkdir(parents=True)
                for side in (50, 60, 70):
                    Image.new("RGB", (side, 50), label).save(folder / f"images/{label}/{side}.png")
            fit = [COMMAND, "fit", "images", "-o", "run", "--encoder", name, "--shots", "2"]
            timed(f"{name}, fit", [*fit, "--views", "0", "--rounds", "1"], folder)
            for side in (80, 90):
                Image.new("RGB", (side, 50), "red").save(folder / f"{side}.png")
                timed(f"{name}, predict", [COMMAND, "predict", "run", f"{side}.png"], folder)


if __name__ == "__main__":
    main()
