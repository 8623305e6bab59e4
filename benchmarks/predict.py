"""How fast ``promptboost predict`` goes through image files, beside its encoder alone.

    python -m benchmarks.predict                        1,000 images, as a table
    python -m benchmarks.predict --count 5000 --json    one JSON object

Three rates, turn about in one process, best of a few: *tower*, the encoder on images that are decoded
already, on all cores; *decoding*, the files read and decoded by all cores, and no more; *predict*, from
files to answers, with an empty embedding store. All three need the processor, so that on a machine
without another device nothing can be faster than tower and decoding one after the other: *best possible*.
On a busy machine the processor's time for an image says more than the clock.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from promptboost.data.decode import read_image
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.store import EmbeddingStore
from promptboost.model import PromptEnsemble, Round
from promptboost.model.classifier import PromptClassifier
from promptboost.run.predict import open_classifier, predict_paths
from promptboost.threads import set_threads, thread_count

SIZE = (500, 375)
CLASSES = 10
DECODED = 256  # images in memory for the encoder alone


def write_images(folder: Path, count: int) -> list[Path]:
    """Write JPEG files of smooth colors with some noise, as large as photographs of this size."""
    files = []
    for number in range(count):
        rng = np.random.default_rng(number)
        smooth = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(SIZE)
        pixels = np.asarray(smooth) + rng.normal(0, 8, (SIZE[1], SIZE[0], 1))
        files.append(folder / f"{number:05d}.jpg")
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(files[-1], quality=90)
    return files


def write_run(folder: Path, encoder: str) -> None:
    """Write a text of a few classes, with its vectors."""
    names = tuple(f"kind {number}" for number in range(CLASSES))
    banks = {name: {f"a photo of {name}": 1} for name in names}
    PromptClassifier(PromptEnsemble(names, (Round("{}", banks, 0.0, 0.1),)), encoder).save(folder)


class Measured:
    """Images a second, and the processor's milliseconds for one: the best of a few times."""

    def __init__(self) -> None:
        self.rate, self.milliseconds = 0.0, np.inf

    def add(self, work: Callable[[], object], images: int) -> None:
        """Do the work once more."""
        start, used = time.perf_counter(), time.process_time()
        work()
        self.rate = max(self.rate, images / (time.perf_counter() - start))
        self.milliseconds = min(self.milliseconds, (time.process_time() - used) / images * 1000)


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Return, in the end, by how many bytes memory that cannot be given back has grown."""
    grown, running = [0], True

    def anonymous() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    before = anonymous()

    def watch() -> None:
        while running:
            grown[0] = max(grown[0], anonymous() - before)
            time.sleep(0.2)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield grown
    finally:
        running = False
        watcher.join()


def measure(encoder: str, count: int, repeat: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "images").mkdir()
        files = write_images(Path(place) / "images", count)
        kilobytes = sum(file.stat().st_size for file in files) / len(files) / 1000
        os.environ["PROMPTBOOST_CACHE"] = place  # it is cleared, so it must not be the user's
        write_run(Path(place) / "run", encoder)
        tower, decoding, predict = Measured(), Measured(), Measured()
        network = Embedder.open(encoder, cache=False).encoder
        network.encode_images([Image.new("RGB", SIZE)] * 8)
        classifier = open_classifier(Path(place) / "run", encoder=encoder)
        list(predict_paths(classifier, files[:8]))
        peak = 0

        def encode_again(decoded: list[Image.Image], passes: int) -> None:
            for _ in range(passes):
                network.encode_images(decoded)

        def decode_all() -> None:
            with ThreadPoolExecutor(thread_count()) as threads:
                for _ in threads.map(lambda file: read_image(file).size, files):
                    pass

        for _ in range(repeat):
            EmbeddingStore().clear()
            with peak_memory() as grown:
                predict.add(lambda: list(predict_paths(classifier, files)), count)
            peak = max(peak, grown[0])
            decoding.add(decode_all, count)
            decoded = [read_image(file) for file in files[:DECODED]]
            passes = max(1, round(count / len(decoded)))
            tower.add(partial(encode_again, decoded, passes), passes * len(decoded))
        EmbeddingStore().clear()
    best = 1 / (1 / tower.rate + 1 / decoding.rate)
    work = tower.milliseconds + decoding.milliseconds
    return {
        "encoder": encoder,
        "images": count,
        "kilobytes": round(kilobytes),
        "threads": thread_count(),
        "tower_images_s": round(tower.rate, 1),
        "decoding_images_s": round(decoding.rate, 1),
        "predict_images_s": round(predict.rate, 1),
        "ratio": round(predict.rate / tower.rate, 3),
        "best_possible_ratio": round(best / tower.rate, 3),
        "of_best_possible": round(predict.rate / best, 3),
        "tower_cpu_ms": round(tower.milliseconds, 2),
        "decoding_cpu_ms": round(decoding.milliseconds, 2),
        "predict_cpu_ms": round(predict.milliseconds, 2),
        "cpu_ratio": round(tower.milliseconds / predict.milliseconds, 3),
        "cpu_of_best_possible": round(work / predict.milliseconds, 3),
        "peak_extra_mb": round(peak / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", default="conse:lite0")
    parser.add_argument("--count", type=int, default=1000, help="images")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.threads:
        set_threads(asked.threads)
    found = measure(asked.encoder, asked.count, asked.repeat)
    if asked.json:
        print(json.dumps(found))
        return
    print("| | |\n|---|--:|")
    for name, value in found.items():
        print(f"| {name.replace('_', ' ')} | {value} |")


if __name__ == "__main__":
    main()
