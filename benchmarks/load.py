"""A fit while other processes hold the cores, beside the same fit without them.

    python -m benchmarks.load [--busy N] [--json]

N processes, by default as many as there are cores, do nothing but count. The system then gives the fit half
of each core, so twice the time is what it must take; what is more is lost by threads that wait for each
other. The ratio of processor time shows how much of that they spend spinning. Fits are in processes of
their own, turn about; the quickest of each counts.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.fit_memory import run_fit, write_task
from promptboost.threads import available_cores

DIM = 512


def beside(busy: int, folder: Path) -> dict[str, Any]:
    """Fit beside so many processes that count."""
    counting = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(counting) for _ in range(busy)]
    try:
        return run_fit(folder, DIM)
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure(busy: int, classes: int, prompts: int, repeat: int) -> dict[str, Any]:
    best: dict[int, dict[str, Any]] = {}
    texts = set()
    with tempfile.TemporaryDirectory() as name:
        write_task(Path(name), classes, prompts)
        for _ in range(repeat):
            for number in (0, busy):
                done = beside(number, Path(name))
                texts.add(done.pop("text"))
                if number not in best or done["boosting_s"] < best[number]["boosting_s"]:
                    best[number] = done
    alone, crowded = best[0], best[busy]
    return {
        "busy": busy,
        "cores": available_cores(),
        "alone": alone,
        "crowded": crowded,
        "boosting_ratio": round(crowded["boosting_s"] / alone["boosting_s"], 2),
        "ratio": round(crowded["seconds"] / alone["seconds"], 2),
        "cpu_ratio": round(crowded["cpu_s"] / alone["cpu_s"], 2),
        "fair_ratio": 1 + busy / available_cores(),
        "same_text": len(texts) == 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--busy", type=int, default=available_cores())
    parser.add_argument("--classes", type=int, default=37)
    parser.add_argument("--prompts", type=int, default=3000, help="prompts a class")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measure(asked.busy, asked.classes, asked.prompts, asked.repeat)
    if asked.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name.replace('_', ' ')}: {value}")


if __name__ == "__main__":
    main()
