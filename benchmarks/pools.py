"""Time and memory to build, check and embed a pool of ten million prompts.

Run ``python -m benchmarks.pools [--classes K] [--sentences S]``: 80 templates and S sentences a
class, with all their concatenations. Each step runs in a process of its own, so that its memory
is its own; every step but the first builds the pool before its clock starts.
"""

import argparse
import functools
import hashlib
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from promptboost.distributed.pool_folder import write_pool
from promptboost.encoders.base import UnitRows, unit_rows
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.fake import FakeEncoder
from promptboost.encoders.store import EmbeddingStore
from promptboost.pool import PromptPool, build_pool, save_pool
from promptboost.pool.io import load_pool
from promptboost.pool.lint import lint
from promptboost.pool.readers.source import Source
from promptboost.pool.sources import match_classes
from promptboost.training import PoolTexts

DIM = 64
WORDS = ("red", "blue", "long", "short", "round", "sharp", "soft", "wing", "tail", "leaf", "stripe")


class QuickEncoder(FakeEncoder):
    """Digests as rows: as quick as can be, so that the time measured is the pool's own.

    Any process that can import this file loads it by its id.
    """

    id = "benchmarks.pools:QuickEncoder"

    def __init__(self, dim: int | str = DIM) -> None:
        super().__init__(int(dim))
        self.id = f"{type(self).id}?dim={dim}"
        self.fingerprint = hashlib.blake2b(self.id.encode(), digest_size=16).hexdigest()

    @functools.cache  # noqa: B019 (there is one encoder a process)
    def word_vector(self, word: str) -> NDArray[np.float64]:
        """Return the vector of a word, of which images are made."""
        return super().word_vector(word)

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed each text as its digest."""
        digests = (hashlib.blake2b(text.encode(), digest_size=self.dim).digest() for text in texts)
        rows = np.frombuffer(b"".join(digests), dtype=np.int8).reshape(-1, self.dim)
        return unit_rows(rows.astype(np.float32))


def make_descriptions(classes: int, sentences: int) -> dict[str, list[str]]:
    """Make sentences of ten words, each with a number of its own."""
    draw = random.Random(0)
    return {
        f"kind {k}": [
            f"{' '.join(draw.choices(WORDS, k=9))} {k * sentences + s}" for s in range(sentences)
        ]
        for k in range(classes)
    }


def build(descriptions: dict[str, list[str]]) -> PromptPool:
    templates = [f"a photo of a {{}}, number {number}." for number in range(80)]
    return build_pool(
        list(descriptions), templates=templates, descriptions=descriptions, concatenate="all"
    )


def into_store(pool: PromptPool, folder: Path) -> str:
    embedder = _embedder(folder)
    done = 0
    for name, filled in zip(pool.class_names, pool.template_texts(), strict=True):
        done += len(embedder.texts([*filled, *pool.texts(name)]).matrix)
    return f"{done:,} rows, {_megabytes(folder / 'store')} on disk"


def from_store(pool: PromptPool, folder: Path) -> str:
    return into_blocks(pool, folder, _embedder(folder).encode_texts, "blocks")


def _embedder(folder: Path) -> Embedder:
    store = EmbeddingStore(folder / "store")
    return Embedder(QuickEncoder(DIM), store)


def computed(pool: PromptPool, folder: Path) -> str:
    return into_blocks(pool, folder, QuickEncoder(DIM).encode_texts, "computed")


def into_blocks(
    pool: PromptPool, folder: Path, encode: Callable[[list[str]], UnitRows], name: str
) -> str:
    texts = PoolTexts.of(pool)
    grid = write_pool(folder / name, texts, texts.blocks(encode), DIM)
    return f"{sum(map(len, grid.prompts)):,} rows, {_megabytes(folder / name)} on disk"


def read_blocks(pool: PromptPool, folder: Path) -> str:
    def refuse(texts: list[str]) -> UnitRows:
        raise AssertionError(f"{len(texts)} texts were not found again")

    texts = PoolTexts.of(pool)
    grid = write_pool(folder / "blocks", texts, texts.blocks(refuse), DIM)
    image = grid.templates[0, 0].astype(np.float32)
    best = [int((rows @ image).argmax()) for rows in grid.prompts]
    return f"best prompt of each class, {len(best):,} classes"


def walk(pool: PromptPool, _: Path) -> str:
    return (
        f"{sum(len(text) for name in pool.class_names for text in pool.texts(name)):,} characters"
    )


def check(pool: PromptPool, _: Path) -> str:
    # After the templates of a class come its sentences, then the concatenations.
    first = len(pool.templates)
    last = first + pool.prompts_by_source["descriptions"] // len(pool.class_names)
    sentences = {name: list(pool.texts(name)[first:last]) for name in pool.class_names}
    met = match_classes(Source("mine", "plain", Path("mine.json"), sentences), pool.class_names)
    found = lint(met, pool.class_names, QuickEncoder(DIM))
    return f"{sum(map(len, sentences.values())):,} sentences, {len(found)} findings"


def summarize(pool: PromptPool, _: Path) -> str:
    return str(pool.statistics()["fingerprint"])[:8] + "…"


def write(pool: PromptPool, folder: Path) -> str:
    save_pool(pool, folder / "pool.jsonl")
    return f"{_megabytes(folder / 'pool.jsonl')} on disk"


def read(_: PromptPool, folder: Path) -> str:
    return repr(load_pool(folder / "pool.jsonl"))


STEPS: dict[str, Callable[[PromptPool, Path], str] | None] = {
    "build, repeats left out": None,
    "make every text once": walk,
    "statistics and fingerprint": summarize,
    "check all sentences": check,
    "embed into the store": into_store,
    "store to blocks of int16": from_store,
    "embed into blocks of int16": computed,
    "read every block, map": read_blocks,
    "save as JSON Lines": write,
    "load from JSON Lines": read,
}


def run_step(step: str, folder: Path, classes: int, sentences: int) -> None:
    descriptions = make_descriptions(classes, sentences)
    before = peak_megabytes()
    start = time.perf_counter()
    pool = build(descriptions)
    result = repr(pool)
    if work := STEPS[step]:
        before = peak_megabytes()
        start = time.perf_counter()
        result = work(pool, folder)
    seconds = time.perf_counter() - start
    result = result.strip("<>")
    print(f"| {step} | {seconds:.1f} s | {before:.0f} | {peak_megabytes():.0f} | {result} |")


def peak_megabytes() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def _megabytes(path: Path) -> str:
    files = path.rglob("*") if path.is_dir() else [path]
    return f"{sum(file.stat().st_size for file in files if file.is_file()) / 1e6:,.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--sentences", type=int, default=125, help="sentences a class")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        run_step(options.step, options.folder, options.classes, options.sentences)
        return
    print("| step | time | MB before | MB peak | result |\n|---|--:|--:|--:|---|", flush=True)
    sizes = ["--classes", str(options.classes), "--sentences", str(options.sentences)]
    with tempfile.TemporaryDirectory() as folder:
        for step in STEPS:
            command = [sys.executable, "-m", "benchmarks.pools", "--step", step, *sizes]
            subprocess.run([*command, "--folder", folder], check=True)


if __name__ == "__main__":
    main()
