"""Attacks, bounded and repeatable: ``python -m tests.attack [NAME …] [--count N] [--seed N]``.

A module here is an attack if it has ``run(count, seed)``, which returns how many came to what, and
``HARMLESS``, the names of what is as it should be. Anything else is a failure.
"""

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path

#: Attacks, with the number of times that takes a minute or two.
COUNTS = {
    "mutations": 5000,
    "kills": 300,
    "races": 200,
    "requests": 2000,
    "clusters": 20,
    "hosts": 4,
    "memory": 3,
}


def main() -> int:
    """Make the attacks that are there, print counts, and return 1 if any did harm."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    there = [name for name in COUNTS if (Path(__file__).parent / f"{name}.py").exists()]
    parser.add_argument("names", nargs="*", default=there, metavar="NAME", help=", ".join(there))
    parser.add_argument("--count", type=int, help="how often; each attack has a default")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    harmed = 0
    for name in options.names:
        module = import_module(f"tests.attack.{name}")
        start = time.perf_counter()
        found = module.run(options.count or COUNTS[name], options.seed)
        seconds = time.perf_counter() - start
        listed = ", ".join(f"{what}: {count}" for what, count in sorted(found.items()))
        print(f"{name}  {sum(found.values())} in {seconds:.0f} s  {listed}")
        harmed += sum(count for what, count in found.items() if what not in module.HARMLESS)
    print(f"{harmed} did harm" if harmed else "none did harm")
    return 1 if harmed else 0


if __name__ == "__main__":
    sys.exit(main())
