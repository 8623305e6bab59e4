"""Seconds to the first answer of a ConSE encoder in a fresh process.

Run ``python -m benchmarks.start [ENCODER ...]``. Each line is a process of its own: the first finds
nothing on disk, the others find the embeddings of ImageNet's class names and the weights' hashes.
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


def main() -> None:
    for name in sys.argv[1:] or ["conse:lite0", "conse:lite2"]:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "PROMPTBOOST_CACHE": folder}
            for what in ("nothing kept", "names kept", "names kept"):
                start = time.perf_counter()
                command = [sys.executable, "-c", STEPS.format(name=name)]
                done = subprocess.run(
                    command, env=environment, check=True, capture_output=True, text=True
                )
                seconds = time.perf_counter() - start
                print(f"{name}, {what}: {seconds:.2f} s ({done.stdout.strip()})", flush=True)


if __name__ == "__main__":
    main()
