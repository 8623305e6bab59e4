"""Attacks, bounded and repeatable: ``python -m tests.attack [NAME …] [--count N] [--seed N]``.

A module here is an attack if it has ``run(count, seed)``, which returns how many came to what, and
``HARMLESS``, the names of what is as it should be. Anything else is a failure.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path

#: Attacks, with the number of times that takes a minute or two.
COUNTS = {
    "requests": 2000,
    "parsers": 10_000,
    "mutations": 2000,
    "kills": 150,
    "races": 100,
    "surroundings": 1,
    "clusters": 20,
    "hosts": 4,
    "memory": 3,
}


#: Attacks that measure how fast a server answers come first, alone; then these lists, at the same time.
#: All that start Ray are in one list: a cluster would find the other.
LISTS = (
    ("mutations", "parsers", "surroundings"),
    ("clusters", "hosts", "memory", "kills", "races"),
)

Result = tuple[str, dict[str, int], float]


def attack(names: Sequence[str], count: int | None, seed: int) -> list[Result]:
    """Make attacks one after the other; return their names, outcomes and seconds."""
    results = []
    for name in names:
        start = time.perf_counter()
        found = import_module(f"tests.attack.{name}").run(count or COUNTS[name], seed)
        results.append((name, dict(found), time.perf_counter() - start))
        print(line(*results[-1]), flush=True)
    return results


def line(name: str, found: dict[str, int], seconds: float) -> str:
    """Return the line of an attack in the table."""
    listed = ", ".join(f"{what}: {count:,}" for what, count in sorted(found.items()))
    return f"{name:<14}{sum(found.values()):>8,}{seconds:>6.0f} s   {listed}"


def main() -> int:
    """Make the attacks that are there, print counts, and return 1 if any did harm."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    there = [name for name in COUNTS if (Path(__file__).parent / f"{name}.py").exists()]
    parser.add_argument("names", nargs="*", default=there, metavar="NAME", help=", ".join(there))
    parser.add_argument("--count", type=int, help="how often; each attack has a default")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start, listed = time.perf_counter(), [name for names in LISTS for name in names]
    arguments = options.count, options.seed
    results = attack([name for name in options.names if name not in listed], *arguments)
    parts = [[name for name in names if name in options.names] for names in LISTS]
    if not all(parts):
        results += attack([name for names in parts for name in names], *arguments)
    else:
        with ProcessPoolExecutor(len(LISTS), multiprocessing.get_context("spawn")) as processes:
            running = [processes.submit(attack, names, *arguments) for names in parts]
            results += [result for part in running for result in part.result()]
    harmed = 0
    print(f"\nseed {options.seed}, load {os.getloadavg()[1]:.1f}")
    print("attack          number    time   outcomes")
    for name, found, seconds in results:
        print(line(name, found, seconds))
        harmless = import_module(f"tests.attack.{name}").HARMLESS
        harmed += sum(count for what, count in found.items() if what not in harmless)
    print(f"{time.perf_counter() - start:.0f} s; {harmed or 'none'} did harm")
    return 1 if harmed else 0


if __name__ == "__main__":
    # Imported again under its name, by which spawned processes find it.
    sys.exit(import_module("tests.attack.__main__").main())
