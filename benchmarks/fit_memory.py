"""Peak memory of ``promptboost fit`` on a big pool, in memory and on disk.

Run ``python -m benchmarks.fit_memory [--classes K] [--prompts P] [--dim D]``. Each fit runs in a
process of its own, with the fake encoder and without the store, so that what is measured is the
pool. Two figures a fit: what the process cannot give back (anonymous memory, sampled), and the
resident set, which also counts pages of mapped files that the system takes back when it must.
"""

import argparse
import functools
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from PIL import Image

from promptboost.encoders.fake import FakeEncoder
from promptboost.pool import TEMPLATES

WORDS = ("red", "blue", "long", "short", "round", "sharp", "soft", "wing", "tail", "leaf", "stripe")
PICTURES = 6
SHOTS = 4


def write_task(folder: Path, classes: int, prompts: int) -> None:
    """Write small images, and so many sentences that each class has about `prompts` prompts."""
    rng = np.random.default_rng(0)
    sentences = max(1, (prompts - len(TEMPLATES)) // (1 + len(TEMPLATES)))
    described = {}
    for k in range(classes):
        name = f"kind {k:03d}"
        (folder / "pictures" / name).mkdir(parents=True)
        for i in range(PICTURES):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / name / f"{i}.png")
        described[name] = [
            f"{' '.join(rng.choice(WORDS, 6))} {k * sentences + s}." for s in range(sentences)
        ]
    (folder / "sentences.json").write_text(json.dumps(described))
    (folder / "all.toml").write_text('concatenate = "all"\n')


def fit(folder: Path, dim: int, most: int | None) -> None:
    """Fit in this process; `most` is the number of bytes a pool may take in memory."""
    # The fake encoder makes each word anew: remembering them saves minutes that are not the pool's.
    FakeEncoder.word_vector = functools.cache(FakeEncoder.word_vector)  # type: ignore[method-assign]
    if most is not None:
        import promptboost.training.pool_rows as pool_rows

        pool_rows.MOST_IN_MEMORY = most
    from promptboost.cli import main

    peak = _sample_anonymous_memory()
    start = time.perf_counter()
    arguments = f"fit {folder}/images -o {folder}/run --prompts {folder}/sentences.json"
    arguments += f" --config {folder}/all.toml --encoder fake:{dim}-0 --shots {SHOTS} --overwrite"
    try:
        main([*arguments.split(), "--no-cache", "--quiet"])
    except SystemExit as done:
        if done.code:
            raise
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
    print(f"{time.perf_counter() - start:.0f} s | {peak[0] // 1000} MB | {resident} MB", flush=True)


def _sample_anonymous_memory() -> list[int]:
    peak = [0]

    def watch() -> None:
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    peak[0] = max(peak[0], int(line.split()[1]))
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--prompts", type=int, default=3000, help="prompts a class")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--most", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.only:
        fit(asked.only, asked.dim, asked.most)
        return
    with tempfile.TemporaryDirectory() as name:
        write_task(Path(name), asked.classes, asked.prompts)
        print("| pool | time | cannot be given back | resident set |\n|---|--:|--:|--:|")
        for label, most in (("in memory", 2**62), ("on disk", 0)):
            again = ["--only", name, "--dim", str(asked.dim), "--most", str(most)]
            command = [sys.executable, "-m", "benchmarks.fit_memory", *again]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            print(f"| {label} | {done.stdout.strip().splitlines()[-1]} |", flush=True)


if __name__ == "__main__":
    main()
