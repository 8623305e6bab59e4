"""Texts a second through the text tower of ViT-B-32, padded to the context and in length buckets.

Run ``python benchmarks/encode.py [DESCRIPTIONS.json] [--texts N] [--json]``. The weights are random:
speed does not depend on them. Without a file the sentences are those promptboost comes with.

With ``--conse`` it is the two networks of conse:lite0 instead, by onnxruntime, as the encoder runs
them, and by torch: milliseconds of processor and of the clock an image and a text, and the largest
difference; ``--threads`` says in how many threads, by default in as many as there are cores.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders import load_encoder
from promptboost.encoders.base import encode_with
from promptboost.encoders.conse.conse import BATCH, ConseEncoder
from promptboost.encoders.openclip.openclip import OpenClipEncoder
from promptboost.pool import TEMPLATES, fill
from promptboost.pool.readers import emoji_descriptions, read_sources
from promptboost.threads import set_threads, thread_count

REPEATS = 3


def sentences(path: str | None, count: int) -> list[str]:
    """Draw sentences about classes, and templates filled with their names, half and half."""
    described = read_sources(path)[0].sentences if path else emoji_descriptions()
    written = [sentence for group in described.values() for sentence in group]
    filled = [fill(template, name) for template in TEMPLATES for name in described]
    draw = random.Random(0)
    return [draw.choice(written if number % 2 else filled) for number in range(count)]


def random_model() -> OpenClipEncoder:
    import open_clip
    import torch

    torch.manual_seed(0)
    model = open_clip.create_model("ViT-B-32").eval()
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    return OpenClipEncoder(model, None, tokenizer, id="ViT-B-32", fingerprint="random")


def timed(encoder: OpenClipEncoder, texts: list[str]) -> tuple[float, NDArray[np.float32]]:
    start = time.perf_counter()
    rows = encoder.encode_texts(texts)
    return len(texts) / (time.perf_counter() - start), rows


def measure(texts: list[str]) -> dict[str, float]:
    encoder = random_model()
    encoder.encode_texts(texts[:64])  # the first batch pays for starting the threads
    speeds: dict[bool, list[float]] = {False: [], True: []}
    rows = {}
    for _ in range(REPEATS):  # turn about, so that what else the machine does hits both
        for buckets in (False, True):
            encoder.trims = buckets
            speed, rows[buckets] = timed(encoder, texts)
            speeds[buckets].append(speed)
    padded, bucketed = max(speeds[False]), max(speeds[True])
    return {
        "texts": len(texts),
        "mean_tokens": round(float(encoder.count_tokens(texts).mean()), 1),
        "padded_per_second": round(padded, 1),
        "bucketed_per_second": round(bucketed, 1),
        "ratio": round(bucketed / padded, 2),
        "max_difference": float(np.abs(rows[True] - rows[False]).max()),
    }


def torch_classifier(encoder: ConseEncoder) -> Any:
    """Return the image network in torch at its fastest: normalization folded, channels last."""
    import torch
    from efficientnet_lite_pytorch import EfficientNet
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    network = EfficientNet.from_name("efficientnet-lite0").eval()
    network.load_state_dict(torch.load(encoder._image_file, weights_only=True))
    pairs = {"_conv_stem": "_bn0", "_conv_head": "_bn1", "_expand_conv": "_bn0"}
    pairs |= {"_depthwise_conv": "_bn1", "_project_conv": "_bn2"}
    for module in [network, *network._blocks]:
        for convolution, norm in pairs.items():
            if hasattr(module, convolution):
                fused = fuse_conv_bn_eval(getattr(module, convolution), getattr(module, norm))
                setattr(module, convolution, fused)
                setattr(module, norm, torch.nn.Identity())
    return network.to(memory_format=torch.channels_last)


def measure_conse(texts: list[str], images: int = 32) -> dict[str, float]:
    import torch

    torch.set_num_threads(thread_count())
    encoder = load_encoder("conse:lite0")
    assert isinstance(encoder, ConseEncoder)
    size = encoder._image_net.size
    pixels = np.random.default_rng(0).integers(0, 256, (images, size, size, 3), dtype=np.uint8)
    batches = [pixels[start : start + BATCH] for start in range(0, images, BATCH)]
    session = encoder._classifier
    network, tower = torch_classifier(encoder), encoder.text_tower()
    batch = sorted(texts, key=len)[len(texts) // 2 :][:64]  # of one length, nearly

    def by_torch(pixels: NDArray[np.uint8]) -> Any:
        return network((torch.from_numpy(pixels).permute(0, 3, 1, 2).float() - 127) / 128).numpy()

    def by_onnx() -> list[Any]:
        with ThreadPoolExecutor(thread_count()) as threads:
            return list(threads.map(lambda part: session.run(None, {"pixels": part})[0], batches))

    ways: dict[str, Callable[[], Any]] = {
        # As the encoder does it: each batch in one thread, several batches at a time.
        "onnx_image": by_onnx,
        "torch_image": lambda: [by_torch(part) for part in batches],
        "onnx_text": lambda: [encoder.encode_texts(batch)],
        "torch_text": lambda: [encode_with(tower, batch).numpy()],
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    clock: dict[str, list[float]] = {name: [] for name in ways}
    outputs = {}
    with torch.inference_mode():
        for _ in range(1 + REPEATS):  # turn about; the first time pays for starting the threads
            for name, way in ways.items():
                start, began = time.process_time(), time.perf_counter()
                outputs[name] = np.concatenate(way())
                each = 1000 / len(outputs[name])
                times[name].append(each * (time.process_time() - start))
                clock[name].append(each * (time.perf_counter() - began))
    result: dict[str, float] = {"threads": thread_count()}
    result |= {f"{name}_ms": round(min(taken[1:]), 2) for name, taken in times.items()}
    result |= {f"{name}_clock_ms": round(min(taken[1:]), 2) for name, taken in clock.items()}
    for kind in ("image", "text"):
        difference = np.abs(outputs[f"onnx_{kind}"] - outputs[f"torch_{kind}"]).max()
        result[f"{kind}_difference"] = float(difference)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("descriptions", nargs="?", help="JSON file of sentences by class")
    parser.add_argument("--texts", type=int, default=256, help="how many texts (default: 256)")
    parser.add_argument("--conse", action="store_true", help="the networks of conse:lite0")
    parser.add_argument("--threads", type=int, help="how many threads (default: as many as cores)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.threads:
        set_threads(arguments.threads)
    run = measure_conse if arguments.conse else measure
    result = run(sentences(arguments.descriptions, arguments.texts))
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name.replace('_', ' '):20} {value:g}")


if __name__ == "__main__":
    main()
