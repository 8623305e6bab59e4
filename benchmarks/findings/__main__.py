"""Answer one question of docs/results/findings.md.

    python -m benchmarks.findings QUESTION --images DIR --pools DIR

Every cell is kept in OUT/QUESTION as soon as it is there: stop it, and the same command goes on.
"""

import argparse
import importlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.findings.sets import SETS, ImageSet, Places
from benchmarks.findings.tables import show
from promptboost.compare.cells import Key, Result, ResultLog, cell_file
from promptboost.progress import Progress, ProgressBars, stage

QUESTIONS = ("default", "rounds", "temperature", "noise", "weights")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("--images", type=Path, help="folder of the photographs")
    parser.add_argument("--pools", type=Path, help="folder of the released sentences")
    parser.add_argument("--out", type=Path, default=Path("findings"))
    parser.add_argument("--sets", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--shots", nargs="*", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--variants", nargs="*")
    parser.add_argument("--encoder", default=Places.encoder)
    parser.add_argument("--target", default=Places.target, help="encoder to carry the text to")
    options = parser.parse_args()
    if set(options.sets) - {"emoji"} and not (options.images and options.pools):
        parser.error("photographs need --images and --pools; --sets emoji needs neither")
    question = importlib.import_module(f"benchmarks.findings.{options.question}")
    draws = tuple(options.shots), tuple(options.seeds)
    encoders = options.encoder, options.target
    places = Places(options.images, options.pools, *draws, *encoders)
    results = []
    for name in options.sets:
        images = ImageSet(name, places)
        keys = [
            {"set": name, "shots": shots, "seed": seed, "variant": variant}
            for variant in options.variants or list(question.VARIANTS)
            for shots in options.shots
            for seed in options.seeds
        ]
        # One file a set, so that sets can be done side by side.
        notebook = ResultLog(options.out / options.question / f"{name}.jsonl")
        with ProgressBars() as progress:
            results += fill(notebook, keys, partial(question.work, images), progress)
    if hasattr(question, "show"):
        question.show(results)
    else:
        show(options.question, results)


def fill(
    log: ResultLog, keys: Sequence[Key], work: Callable[[Key], list[Result]], progress: Progress
) -> list[Result]:
    """Compute the missing results of some keys, and return all."""
    missing = [key for key in keys if key not in log]
    with stage(progress, "cells", len(missing)) as advance:
        for key in missing:
            start = time.perf_counter()
            results = work(key)
            times = {"seconds": round(time.perf_counter() - start, 3)}
            log.storage.write(log.name(key), cell_file(key, results, times))
            log.take(log.name(key))
            advance()
    log.write()
    return log.results(keys)


if __name__ == "__main__":
    main()
