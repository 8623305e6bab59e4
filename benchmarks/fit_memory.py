"""``promptboost fit`` on a big pool, its rows in memory and on disk: time, peak memory, and the same text.

    python -m benchmarks.fit_memory [--classes K] [--prompts P] [--dim D] [--json]
    python -m benchmarks.fit_memory --ten-million [--workers N] [--shots N]   10^7 prompts, here and on Ray

Each fit runs in a process of its own, with the fake encoder and without the store, so that what is measured
is the pool; `--quick` has digests of texts for rows, and leaves nothing but the pool. *On Ray*: by so many
workers as are asked for, of which the memory of the largest is given too. *On disk, read anew*: the pages
of the file are taken away every fifth of a second, as on a machine on which the pool does not fit into
memory. Two figures of memory a fit: what the process cannot give back (anonymous memory, sampled), and the
resident set, which also counts pages of mapped files that the system takes back when it must. *Boosting* is
the time after all is embedded.
"""

import argparse
import contextlib
import functools
import itertools
import json
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from benchmarks.pools import QuickEncoder
from promptboost.encoders.fake import FakeEncoder
from promptboost.pool import TEMPLATES

WORDS = ("red", "blue", "long", "short", "round", "sharp", "soft", "wing", "tail", "leaf", "stripe")
IMAGES = 6
SHOTS = 4
FITS = {"in memory": 2**62, "on disk": 0, "on disk, read anew": -1, "on Ray": 0}


def write_task(folder: Path, classes: int, prompts: int) -> None:
    """Write small images, and so many sentences that each class has about `prompts` prompts."""
    rng = np.random.default_rng(0)
    sentences = max(1, (prompts - len(TEMPLATES)) // (1 + len(TEMPLATES)))
    described = {}
    for k in range(classes):
        name = f"kind {k:03d}"
        (folder / "images" / name).mkdir(parents=True)
        for i in range(IMAGES):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / name / f"{i}.png")
        described[name] = [
            f"{' '.join(rng.choice(WORDS, 6))} {k * sentences + s}." for s in range(sentences)
        ]
    (folder / "sentences.json").write_text(json.dumps(described))
    (folder / "all.toml").write_text('concatenate = "all"\n')


def fit(
    folder: Path,
    dim: int,
    most: int | None,
    quick: bool = False,
    workers: int = 0,
    shots: int = SHOTS,
) -> dict[str, Any]:
    """Fit in this process, or with so many workers on Ray.

    `most` is the number of bytes that a pool may take in memory.
    """
    # The fake encoder makes each word anew: remembering them saves minutes that are not the pool's.
    FakeEncoder.word_vector = functools.cache(FakeEncoder.word_vector)  # type: ignore[method-assign]
    if most is not None:
        import promptboost.run.results as results

        results.MOST_IN_MEMORY = max(0, most)
        if most < 0:
            _take_pages_away()
    from promptboost.cli import main

    peak = _sample_anonymous_memory()
    start, used = time.perf_counter(), time.process_time()
    arguments = f"fit {folder}/images -o {folder}/run --prompts {folder}/sentences.json"
    encoder = f"{QuickEncoder.id}?dim={dim}" if quick else f"fake:{dim}-0"
    arguments += f" --config {folder}/all.toml --encoder {encoder} --shots {shots} --overwrite"
    arguments += f" --on ray --workers {workers}" if workers else ""
    try:
        main([*arguments.split(), "--no-cache", "--quiet"])
    except SystemExit as done:
        if done.code:
            raise
    timing = json.loads((folder / "run" / "metrics.json").read_text())["timing"]
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_s": round(time.process_time() - used, 2),
        "boosting_s": timing["boost_s"],
        "anonymous_mb": peak[0] // 1000,
        "resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000,
        "worker_anonymous_mb": peak[1] // 1000,
        "text": (folder / "run" / "ensemble.json").read_text(),
    }


def _sample_anonymous_memory() -> list[int]:
    """Return a list that has the most of this process and of a worker of Ray, from now on."""
    peak = [0, 0]

    def note(place: int, process: int | str) -> None:
        with contextlib.suppress(OSError):  # it may have ended
            for line in Path(f"/proc/{process}/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    peak[place] = max(peak[place], int(line.split()[1]))

    def watch() -> None:
        for turn in itertools.count():
            note(0, "self")
            if turn % 50 == 0:
                for child in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        if child.cmdline()[:1] and child.cmdline()[0].startswith("ray::"):
                            note(1, child.pid)
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    return peak


def _take_pages_away() -> None:
    """Have the pages of every mapped file of rows forgotten, again and again."""
    mapped: list[tuple[Any, str]] = []
    plain = np.memmap

    def noted(file: Any, *args: Any, **options: Any) -> Any:
        rows = plain(file, *args, **options)
        mapped.append((rows._mmap, str(file)))  # type: ignore[attr-defined]
        return rows

    def forget() -> None:
        while True:
            for pages, file in mapped:
                pages.madvise(mmap.MADV_DONTNEED)
                descriptor = os.open(file, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
            time.sleep(0.2)

    np.memmap = noted  # type: ignore[assignment, misc]
    threading.Thread(target=forget, daemon=True).start()


def run_fit(
    folder: Path,
    dim: int,
    most: int | None = None,
    quick: bool = False,
    workers: int = 0,
    shots: int = SHOTS,
) -> dict[str, Any]:
    """Fit in a process of its own."""
    again = ["--only", str(folder), "--dim", str(dim), "--workers", str(workers)]
    again += ["--shots", str(shots)]
    again += [] if most is None else [f"--most={most}"]
    again += ["--quick"] if quick else []
    command = [sys.executable, "-m", "benchmarks.fit_memory", *again]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def measure(
    classes: int,
    prompts: int,
    dim: int,
    repeat: int,
    ways: Sequence[str],
    quick: bool = False,
    workers: int = 2,
    shots: int = SHOTS,
) -> dict[str, Any]:
    """Fit each way, turn about; the figures of the quickest of each."""
    fits: dict[str, dict[str, Any]] = {}
    texts = set()
    with tempfile.TemporaryDirectory() as name:
        write_task(Path(name), classes, prompts)
        for _ in range(repeat):
            for label in ways:
                on = workers if label == "on Ray" else 0
                done = run_fit(Path(name), dim, FITS[label], quick, on, shots)
                texts.add(done.pop("text"))
                if label not in fits or done["boosting_s"] < fits[label]["boosting_s"]:
                    fits[label] = done
    here = fits[ways[0]]
    for there in fits.values():
        there["ratio"] = round(there["seconds"] / here["seconds"], 2)
        there["boosting_ratio"] = round(there["boosting_s"] / here["boosting_s"], 2)
    return {
        "classes": classes,
        "prompts": prompts,
        "dim": dim,
        "rows_mb": round(classes * prompts * dim * 2 / 1e6),
        "same_text": len(texts) == 1,
        "fits": fits,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--prompts", type=int, default=3000, help="prompts a class")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--fits", nargs="+", choices=FITS, default=[*FITS][:3])
    parser.add_argument("--shots", type=int, default=SHOTS)
    parser.add_argument("--workers", type=int, default=2, help="on Ray")
    parser.add_argument("--quick", action="store_true", help="rows are digests of texts")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--most", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ten-million", action="store_true", help="a task of that size, quickly")
    asked = parser.parse_args()
    if asked.ten_million:
        asked.classes, asked.prompts, asked.dim, asked.quick = 1000, 10_100, 64, True
        asked.fits = ["on disk", "on Ray"]
    if asked.only:
        options = asked.quick, asked.workers, asked.shots
        print(json.dumps(fit(asked.only, asked.dim, asked.most, *options)))
        return
    sizes = asked.classes, asked.prompts, asked.dim, asked.repeat
    found = measure(*sizes, asked.fits, asked.quick, asked.workers, asked.shots)
    if asked.json:
        print(json.dumps(found))
        return
    columns = list(found["fits"][asked.fits[0]])
    print(f"{found['rows_mb']} MB of rows, the same text: {found['same_text']}\n")
    print(f"| pool | {' | '.join(name.replace('_', ' ') for name in columns)} |")
    print("|---|" + "--:|" * len(columns))
    for label, figures in found["fits"].items():
        print(f"| {label} | {' | '.join(str(figures[name]) for name in columns)} |")


if __name__ == "__main__":
    main()
