"""Texts a second through the text tower of ViT-B-32, padded to the context and in length buckets.

Run ``python benchmarks/encode.py [DESCRIPTIONS.json] [--texts N] [--json]``. The weights are random:
speed does not depend on them. Without a file the sentences are those promptboost comes with.
"""

import argparse
import json
import random
import time

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.openclip.openclip import OpenClipEncoder
from promptboost.pool import TEMPLATES, emoji_descriptions, fill, read_descriptions

REPEATS = 3


def sentences(path: str | None, count: int) -> list[str]:
    """Draw sentences about classes, and templates filled with their names, half and half."""
    described = read_descriptions(path) if path else emoji_descriptions()
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
            encoder.buckets = buckets
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("descriptions", nargs="?", help="JSON file of sentences by class")
    parser.add_argument("--texts", type=int, default=256, help="how many texts (default: 256)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    result = measure(sentences(arguments.descriptions, arguments.texts))
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name.replace('_', ' '):20} {value:g}")


if __name__ == "__main__":
    main()
