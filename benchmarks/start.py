"""Seconds to the first answer of a ConSE encoder in a fresh process.

Run ``python -m benchmarks.start [ENCODER ...]``. Each line is a process of its own: the first finds
nothing on disk, the others find the embeddings of ImageNet's class names and the weights' hashes.
Processor seconds are those of all threads; on a busy machine they say more than the clock does.
"""

import os
import subprocess
import sys
import tempfile
import time

STEPS = """
import time
start = time.perf_counter()
from PIL import Image
from promptboost.encoders import load_encoder
encoder = load_encoder({name!r})
loaded = time.perf_counter()
from promptboost.encoders.runtime import pick_device
pick_device(None)
torch = time.perf_counter()
encoder.encode_images([Image.new("RGB", (300, 300), "red")])
done = time.perf_counter()
print(f"load {{loaded - start:.2f}} s, import torch {{torch - loaded:.2f}} s, "
      f"image {{done - torch:.2f}} s")
"""


def _processor_seconds() -> float:
    """Return what finished child processes have used."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    for name in sys.argv[1:] or ["conse:lite0", "conse:lite2"]:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "PROMPTBOOST_CACHE": folder}
            for what in ("nothing kept", "names kept", "names kept"):
                start, used = time.perf_counter(), _processor_seconds()
                command = [sys.executable, "-c", STEPS.format(name=name)]
                done = subprocess.run(
                    command, env=environment, check=True, capture_output=True, text=True
                )
                seconds = time.perf_counter() - start
                used = _processor_seconds() - used
                parts = f"{used:.2f} s of processor; {done.stdout.strip()}"
                print(f"{name}, {what}: {seconds:.2f} s ({parts})", flush=True)


if __name__ == "__main__":
    main()
