"""Do pairwise steps pay? The objective after some steps, beside that of appending one copy a step.

Both see every class and the whole pool once a step. What is given is how far the objective still is above
the best that real shares reach (to 0.1 %), in per cent of it. Caution is 0, so that it is convex.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from benchmarks.findings import tables
from benchmarks.findings.fits import boosted, gradient_settings
from benchmarks.findings.sets import ImageSet
from benchmarks.findings.weights_problem import Problem, pose
from benchmarks.findings.weights_solvers import on_simplex
from promptboost.boosting.composition import GradientTrace
from promptboost.compare.cells import Key, Result

STEPS = (3, 5, 10, 20, 30)
VARIANTS = ("append one copy", "pairwise, 32 copies", "pairwise, 1024 copies")


def work(images: ImageSet, key: Key) -> list[Result]:
    """Return the distance from the best after each number of steps."""
    draw, words = images.draw(key), images.words()
    shots = images.shots(draw)
    asked = gradient_settings(images, shots, "promptboost?caution=0&tolerance=0")
    copies = 1024 if "1024" in str(key["variant"]) else 32
    spelling = f"promptboost?caution=0&tolerance=0&sweeps={STEPS[-1]}&copies={copies}"
    [fitted] = boosted(images, draw, f"{spelling}&logit_scale={asked.scale!r}", key)
    weak = fitted.composition
    problem = replace(pose(shots, words, weak.template, asked.scale), strength=asked.spread)
    best = on_simplex(problem, 1e-3).objective
    if key["variant"] == "append one copy":
        values = list(_appending(problem, STEPS[-1]))
    else:
        assert isinstance(weak.trace, GradientTrace)
        values = list(weak.trace.objectives)
    return [
        # A fit that has nothing more to move stays where it is.
        {"rounds": n, "figure": 100 * (values[min(n, len(values) - 1)] / best - 1)}
        for n in STEPS
    ]


def _appending(problem: Problem, steps: int) -> Iterator[float]:
    """Append to every bank, which begins with the template, one copy of the best prompt a step."""
    weights = problem.start()
    for size in range(1, steps + 2):
        value, slope = problem.slope(weights)
        yield value
        slope = np.where(problem.present, slope, np.inf)
        weights *= size / (size + 1)
        weights[np.arange(len(weights)), slope.argmin(axis=1)] += 1 / (size + 1)


def show(results: list[Result]) -> None:
    """Print the distances."""
    print("per cent above the best that real shares reach, after M steps")
    tables.show("steps", results)
