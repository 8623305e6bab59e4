"""Do learned real weights overfit, and transfer worse than copies? The same loss, optimized over both.

Every variant starts from the template that the default starts from, on all views, at the logit scale the
default has chosen for the draw. Caution is 0 for all, so that all have one loss and it is convex; "copies,
spread 2" is the default but for that. Weights "on the simplex" are shares as those of copies are, but not
whole numbers: their gap says that no shares are better by more than a thousandth. "Any" weights may be
negative and of any size.
"""

import time
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.findings.fits import boosted, gradient_settings, measured
from benchmarks.findings.sets import Floats, ImageSet, Words
from benchmarks.findings.weights_choosing import choose_strength
from benchmarks.findings.weights_problem import Problem, Weights, pose
from benchmarks.findings.weights_solvers import Solution, on_simplex, unconstrained
from promptboost.compare.cells import Key, Result
from promptboost.compare.comparison import FewShotTask
from promptboost.encoders import Encoder
from promptboost.methods.base import Origin
from promptboost.methods.fitted import LinearClassifier, embed_distinct

VARIANTS: dict[str, dict[str, Any]] = {
    "simplex, spread 0": {"how": "simplex", "spread": 0.0},
    "simplex, spread 2": {"how": "simplex", "spread": 2.0},
    "any weights": {"how": "any"},
    "any weights, held back": {"how": "held back"},
    "copies, spread 0": {"how": "copies", "spread": 0.0},
    "copies, spread 2": {"how": "copies", "spread": 2.0},
}

SHOTS = (1, 4, 16)
TOLERANCE = 1e-3
ITERATIONS = 200
#: A prompt counts as one to read from a tenth of a copy on.
LEAST_SHARE = 1 / 320


def work(images: ImageSet, key: Key) -> list[Result]:
    """Fit one variant on one draw; nothing for numbers of shots that the question leaves out."""
    if int(key["shots"]) not in SHOTS:
        return []
    variant = VARIANTS[str(key["variant"])]
    draw, words = images.draw(key), images.words
    shots, scale = images.shots(draw), _scale(images, int(key["shots"]), int(key["seed"]))
    spelling = f"promptboost?caution=0&logit_scale={scale!r}&spread={variant.get('spread', 0.0)}"
    # Where all banks start does not depend on how they go on.
    [first] = boosted(images, draw, f"{spelling}&sweeps=1", key)
    template = first.composition.template
    problem = pose(shots, words, template, scale)
    start = time.perf_counter()
    if variant["how"] == "copies":
        [fitted] = boosted(images, draw, spelling, key)
        result = measured(images, draw, fitted.classifier)
        result["loss"] = problem.loss(fitted.classifier.rows)
    else:
        solution, strength = _solved(variant, problem, images.rows(draw)[:, 0], shots.labels)
        result = _measured(images, draw, template, problem, solution)
        result["strength"] = strength
    # The choice of the scale is the same for all and left out.
    return [{**result, "scale": scale, "seconds": time.perf_counter() - start}]


@lru_cache(maxsize=64)
def _scale(images: ImageSet, shots: int, seed: int) -> float:
    """Settle the scale as the default does on this draw; all variants share it."""
    draw = images.draw({"shots": shots, "seed": seed})
    return gradient_settings(images, images.shots(draw)).scale


def _solved(
    variant: dict[str, Any], problem: Problem, originals: Floats, labels: NDArray[np.int64]
) -> tuple[Solution, float]:
    if variant["how"] == "simplex":
        strength = variant["spread"]
        return on_simplex(replace(problem, strength=strength), TOLERANCE), strength
    strength = 0.0
    if variant["how"] == "held back":
        strength = choose_strength(problem, originals, labels)
    return unconstrained(replace(problem, strength=strength), ITERATIONS), strength


def _measured(
    images: ImageSet, draw: FewShotTask, template: int, problem: Problem, solution: Solution
) -> Result:
    banks = _worded(solution.weights, images.words, template)
    source, target = (
        _linear(banks, images.class_names, e) for e in (images.encoder, images.target)
    )
    sizes = [np.abs(list(bank.values())) / sum(map(abs, bank.values())) for bank in banks]
    return {
        **measured(images, draw, source, target),
        "prompts": float(np.mean([(size > LEAST_SHARE).sum() for size in sizes])),
        "loss": problem.loss(problem.classes(solution.weights)),
        "objective": solution.objective,
        "gap": solution.gap,
        "steps": solution.steps,
        "negative": float(
            np.clip(-solution.weights, 0, None).sum() / np.abs(solution.weights).sum()
        ),
        "largest": float(np.abs(solution.weights).max()),
    }


def _linear(
    banks: list[dict[str, float]], class_names: tuple[str, ...], encoder: Encoder
) -> LinearClassifier:
    """Return the classifier of sums of rows; weights may be negative, so it is no mean of texts."""
    rows = [np.array(list(b.values())) @ embed_distinct(list(b), encoder) for b in banks]
    origin = Origin("real weights", class_names, encoder)
    return LinearClassifier(origin, np.stack(rows), np.zeros(len(rows), dtype=np.float32))


def _worded(weights: Weights, words: Words, template: int) -> list[dict[str, float]]:
    """Return which text has which weight; the template is a text of the pool as well."""
    banks = []
    for k, prompts in enumerate(words.texts.prompt_texts):
        bank = {words.texts.template_texts[k][template]: float(weights[k, 0])}
        for text, weight in zip(prompts, weights[k, 1:], strict=False):  # zeros below
            bank[text] = bank.get(text, 0.0) + float(weight)
        banks.append(bank)
    return banks
