"""Hostile bytes for each parser: ensembles, heads, results, pools, manifests, bodies of requests and more.

A parser returns a value or raises an error of promptboost with a short message. A sound file is altered
many times for each of them, in one process.
"""

import asyncio
import json
import multiprocessing
import random
import signal
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from promptboost.errors import PromptBoostError
from tests.attack.alterations import (
    altered_bytes,
    altered_head,
    altered_json,
    altered_json_lines,
    altered_toml,
)

HARMLESS = frozenset({"read", "refused"})
#: Beyond what a sound file takes.
MOST_MEMORY = 100 * 2**20
_SECONDS = 10
#: The slowest first, for two processes.
NAMES = (
    *("results", "settings", "pool", "sentences", "manifest", "ensemble", "head"),
    *("body", "embeddings", "hub list"),
)
Alter = Callable[[bytes, random.Random], tuple[str, bytes]]
Parser = tuple[bytes, Alter, Callable[[bytes], object]]


def _lines_of_table(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Alter the cells of a CSV file."""
    rows: list[list[str]] = [line.split(",") for line in data.decode().splitlines()]
    hostile = (
        "",
        '"',
        "../../etc/passwd",
        "/dev/zero",
        "x" * 5000,
        "\0",
        "=1+1",
        "a\nb",
        "\x1b[2J",
        "é",
    )
    for _ in range(draw.choice((1, 1, 3))):
        row = draw.choice(rows)
        row[draw.randrange(len(row))] = draw.choice((*hostile, ",", "image", "nan"))
        if draw.random() < 0.2:
            rows.append(row * draw.choice((1, 2, 50)))
    return "cells", "\n".join(map(",".join, rows)).encode()


def parsers(folder: Path) -> dict[str, Parser]:
    """Return each parser with a sound file and a way to alter it; `folder` is empty."""
    from starlette.datastructures import Headers, QueryParams

    from promptboost.data.manifest import read_manifest
    from promptboost.hub import _listed
    from promptboost.model import Head, PromptEnsemble
    from promptboost.pool import build_pool, save_pool
    from promptboost.pool.io import load_pool
    from promptboost.pool.readers import read_sources
    from promptboost.run.fit import fit_run
    from promptboost.run.run_folder import RunFolder
    from promptboost.serve.limits import Limits
    from promptboost.serve.messages import read_request
    from tests.run.run_tools import SENTENCES, request, write_images, write_sentences

    write_images(folder / "images", count=3)
    write_sentences(folder / "sentences.json")
    views = {"shots": 2, "views": 0, "views_per_round": 0, "rounds": 1}
    fit_run(**request(folder, cache=False, **views))
    run, pool = folder / "run", folder / "pool.jsonl"
    save_pool(build_pool(list(SENTENCES), descriptions=SENTENCES), pool)
    rows = [f"images/{name}/{n}.png,{name}" for name in SENTENCES for n in range(3)]
    body = {"images": ["aGVsbG8="], "top_k": 2, "min_probability": 0.5, "explain": True}
    vectors = {"embeddings": [[0.5] * 32, [0.25] * 32]}
    digests = {"format": "promptboost-run", "version": 1, "files": {"ensemble.json": "0" * 64}}

    def of_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
        def parse(data: bytes) -> object:
            path = folder / name
            path.write_bytes(data)
            return read(path)

        return parse

    def answer(data: bytes) -> object:
        headers = Headers({"content-type": "application/json"})
        return asyncio.run(read_request(data, headers, QueryParams(), Limits(), 32))

    def results(data: bytes) -> object:
        (run / "metrics.json").write_bytes(data)
        return RunFolder(run).results

    def settings(data: bytes) -> object:
        (run / "run.toml").write_bytes(data)
        return RunFolder(run).settings

    head = next(run.glob("head-*.safetensors")).read_bytes()
    return {
        "ensemble": (
            (run / "ensemble.json").read_bytes(),
            altered_json,
            of_file("ensemble.json", PromptEnsemble.load),
        ),
        "head": (head, altered_head, of_file("head.safetensors", Head.load)),
        "results": ((run / "metrics.json").read_bytes(), altered_json, results),
        "settings": ((run / "run.toml").read_bytes(), altered_toml, settings),
        "pool": (pool.read_bytes(), altered_json_lines, of_file("pool.jsonl", load_pool)),
        "sentences": (
            json.dumps(SENTENCES).encode(),
            altered_json,
            of_file("mine.json", read_sources),
        ),
        "manifest": (
            "\n".join(["path,label", *rows]).encode(),
            _lines_of_table,
            of_file("list.csv", read_manifest),
        ),
        "hub list": (
            json.dumps(digests).encode(),
            altered_json,
            lambda data: _listed(data, "name/run"),
        ),
        "body": (json.dumps(body).encode(), altered_json, answer),
        "embeddings": (json.dumps(vectors).encode(), altered_json, answer),
    }


def _too_slow(*_: object) -> None:
    raise TimeoutError


def outcome(parser: Parser, draw: random.Random) -> tuple[str, str]:
    """Alter a file once; return what came of reading it, and a line about it."""
    sound, alter, parse = parser
    if draw.random() < 0.3:
        alter = altered_bytes
    change, data = alter(sound, draw)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        parse(data)
    except PromptBoostError as error:
        shown = str(error)
        return ("refused" if 0 < len(shown) < 2000 else "long message"), f"{change}: {shown[:300]}"
    except TimeoutError:
        return "stuck", change
    except Exception as error:
        return "traceback", f"{change}: {error!r}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "read", change


def attack(
    names: list[str] | None, count: int, seed: int
) -> tuple[dict[str, Counter[str]], list[str]]:
    """Alter the file of each parser; return how often each outcome came, and lines about harm."""
    counts: dict[str, Counter[str]] = {}
    harm: list[str] = []
    before = signal.signal(signal.SIGALRM, _too_slow)
    try:
        with tempfile.TemporaryDirectory() as folder:
            there: dict[str, Any] = parsers(Path(folder))
            for name in names or there:
                start, counts[name] = time.perf_counter(), Counter()
                tracemalloc.start() if count <= 500 else None
                for number in range(count):
                    what, line = outcome(there[name], random.Random(f"{seed}/{name}/{number}"))
                    counts[name][what] += 1
                    if what not in HARMLESS:
                        harm.append(f"{name} {number}: {what}: {line}")
                if tracemalloc.is_tracing():
                    peak = tracemalloc.get_traced_memory()[1]
                    tracemalloc.stop()
                    if peak > MOST_MEMORY:
                        harm.append(f"{name}: {peak / 1e6:.0f} MB")
                shown = ", ".join(f"{what}: {n:,}" for what, n in sorted(counts[name].items()))
                print(f"  {name:<12}{count:>8,}  {shown}  {time.perf_counter() - start:.0f} s")
    finally:
        signal.signal(signal.SIGALRM, before)
    return counts, harm


def run(count: int, seed: int) -> dict[str, int]:
    """Alter the file of each parser `count` times; return how many came to what."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
        parts = [processes.submit(attack, [name], count, seed) for name in NAMES]
        done = [part.result() for part in parts]
    for line in [line for _, harm in done for line in harm][:20]:
        print(line[:600], file=sys.stderr)
    return dict(sum((counts for part, _ in done for counts in part.values()), Counter[str]()))
