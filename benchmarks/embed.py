"""How busy the pipeline from files to embeddings keeps its encoder.

    python -m benchmarks.embed                        as a table
    python -m benchmarks.embed --count 4000 --json    one JSON object

*Device*: a made-up encoder whose network takes a fixed time for each batch and no processor, as a GPU.
Its time is half, all of, and twice what the threads of this process need to read, decode and preprocess
the images. The goal is 0.95 of the slower of the two. *Waiting*: the same with images that take 0.1 s
each and no processor, in batches of six, so that other programs matter less. *Processor*: an encoder on
the cores that also decode; the ratio is that of the processor's time, which other programs change less
than the clock. All of them start with an empty store.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.predict import write_images
from promptboost.data.dataset import LabeledImage
from promptboost.data.decode import read_image
from promptboost.encoders import Embedder, load_encoder
from promptboost.encoders.base import unit_rows
from promptboost.encoders.conse.conse import square_pixels
from promptboost.encoders.embedder import WORKING_SIDE
from promptboost.encoders.fake import FakeEncoder
from promptboost.encoders.store import EmbeddingStore
from promptboost.threads import set_threads, thread_count


class Device(FakeEncoder):
    """A network of another processor, which takes `seconds` for a batch."""

    batch_size = 64
    seconds = 0.0
    waits = 0.0

    def preprocess(self, image: Image.Image) -> Any:
        if self.waits:
            time.sleep(self.waits)
            return np.asarray(image)
        return square_pixels(image, 224)

    def encode_preprocessed(self, inputs: Sequence[Any]) -> Any:
        time.sleep(self.seconds)
        return unit_rows(np.stack([pixels[0, : self.dim, 0] + 1.0 for pixels in inputs]))

    def encode_images(self, images: Iterable[Image.Image]) -> Any:
        return self.encode_preprocessed([self.preprocess(image) for image in images])


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return seconds of the clock and of the processor."""
    start, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - used


def prepare(encoder: Any, files: Sequence[Path]) -> list[Any]:
    """Read, decode and preprocess files with all threads."""
    with ThreadPoolExecutor(thread_count()) as threads:
        return list(
            threads.map(
                lambda file: encoder.preprocess(read_image(file, at_least=WORKING_SIDE)), files
            )
        )


def embed(encoder: Any, files: Sequence[Path], folder: Path) -> None:
    """Embed files with a new store."""
    with tempfile.TemporaryDirectory(dir=folder) as store:
        images = [LabeledImage(str(file), "", file) for file in files]
        Embedder(encoder, EmbeddingStore(store)).images(images)


def write_tiny(folder: Path, count: int) -> list[Path]:
    """Write files that are decoded at once, no two the same."""
    files = [folder / f"{number}.bmp" for number in range(count)]
    for number, file in enumerate(files):
        Image.new("RGB", (32, 1), (number // 256, number % 256, 0)).save(file)
    return files


def measure_device(
    name: str, waits: float, files: Sequence[Path], folder: Path, repeat: int
) -> dict[str, Any]:
    device = Device(32)
    device.waits = waits
    device.batch_size = 6 if waits else 64
    batches = -(-len(files) // device.batch_size)
    ratios: dict[float, list[float]] = {0.5: [], 1.0: [], 2.0: []}
    rates = []
    for _ in range(repeat):
        for factor, of_factor in ratios.items():
            # Next to each run, because other programs use the cores as well.
            decoding, _ = timed(lambda: prepare(device, files))
            device.seconds = factor * decoding / batches
            whole, _ = timed(lambda: embed(device, files, folder))
            again, _ = timed(lambda: prepare(device, files))
            slower = max((decoding + again) / 2, device.seconds * batches)
            of_factor.append(slower / whole)
            rates.append(len(files) / decoding)
    result = {f"{name}_decoding_images_s": round(median(rates), 1)}
    for factor, of_factor in ratios.items():
        result[f"{name}_{factor:g}_ratio"] = round(median(of_factor), 3)
    return result


def measure_processor(
    name: str, files: Sequence[Path], folder: Path, repeat: int
) -> dict[str, Any]:
    encoder: Any = load_encoder(name)
    size = getattr(encoder, "batch_size", 64)
    inputs = prepare(encoder, files[:size])
    encoder.encode_preprocessed(inputs)
    ratios, clock = [], []
    passes = max(1, len(files) // size)
    for _ in range(repeat):
        decoding, decoding_cpu = timed(lambda: prepare(encoder, files))
        tower, tower_cpu = timed(
            lambda: [encoder.encode_preprocessed(inputs) for _ in range(passes)]
        )
        scale = len(files) / (passes * size)
        whole, whole_cpu = timed(lambda: embed(encoder, files, folder))
        ratios.append((decoding_cpu + tower_cpu * scale) / whole_cpu)
        clock.append((decoding + tower * scale) / whole)
    return {
        "processor_encoder": name,
        "processor_cpu_ratio": round(median(ratios), 3),
        "processor_clock_ratio": round(median(clock), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", default="conse:lite0", help="the encoder on the processor")
    parser.add_argument("--count", type=int, default=2048, help="images")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--waiting", action="store_true", help="nothing else")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.threads:
        set_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "images").mkdir()
        few = 1 if arguments.waiting else arguments.count
        files = write_images(folder / "images", few)
        result: dict[str, Any] = {"images": len(files), "threads": thread_count()}
        (folder / "tiny").mkdir()
        tiny = write_tiny(folder / "tiny", 300)
        result |= measure_device("waiting", 0.1, tiny, folder, arguments.repeat)
        if arguments.waiting:
            print(json.dumps(result))
            return
        result |= measure_device("device", 0.0, files, folder, arguments.repeat)
        few = files[: max(64, len(files) // 4)]
        result |= measure_processor(arguments.encoder, few, folder, arguments.repeat)
    if arguments.json:
        print(json.dumps(result))
        return
    print("| | |\n|---|--:|")
    for name, value in result.items():
        print(f"| {name.replace('_', ' ')} | {value} |")


if __name__ == "__main__":
    main()
