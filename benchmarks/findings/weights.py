"""Do learnt real weights overfit, and transfer worse than copies? The same loss, optimised over both.

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

from benchmarks.findings.fits import boosted, gradient_settings, measured, percent_right
from benchmarks.findings.sets import VIEWS, Draw, ImageSet, Words
from benchmarks.findings.weights_choosing import choose_strength
from benchmarks.findings.weights_problem import Problem, Weights, pose
from benchmarks.findings.weights_solvers import Solution, on_simplex, unconstrained
from promptboost.boosting import BoostSettings, GradientSettings, boost
from promptboost.evaluation.cells import Key, Result

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
    shots, seed = int(key["shots"]), int(key["seed"])
    if shots not in SHOTS:
        return []
    variant = VARIANTS[str(key["variant"])]
    draw, words = images.draw(shots, seed), images.words()
    gradient = replace(_default(images, shots, seed), spread=variant.get("spread", 0.0))
    settings = BoostSettings(rounds=1, views_per_round=VIEWS, seed=seed, gradient=gradient)
    # Where all banks start does not depend on how they go on.
    first = next(boost(draw.shots(), words.grid, replace(settings, gradient=_short(gradient))))
    template = first.composition.template
    problem = pose(draw.shots(), words, template, gradient.scale)
    start = time.perf_counter()
    if variant["how"] == "copies":
        fitted = next(boosted(draw, words, settings, (1,)))
        found = {**measured(draw, fitted), "rounds": None, "loss": problem.loss(fitted.source)}
    else:
        solution, strength = _solved(variant, problem, draw)
        found = _measured(draw, words, template, problem, solution)
        found["strength"] = strength
    # The choice of the scale is the same for all and left out.
    return [{**found, "scale": gradient.scale, "seconds": time.perf_counter() - start}]


@lru_cache(maxsize=64)
def _default(images: ImageSet, shots: int, seed: int) -> GradientSettings:
    """Settle the scale as the default does on this draw; all variants share it."""
    chosen = gradient_settings(images.draw(shots, seed), images.words(), VIEWS)
    return replace(chosen, caution=0.0)


def _short(settings: GradientSettings) -> GradientSettings:
    return replace(settings, sweeps=1)


def _solved(variant: dict[str, Any], problem: Problem, draw: Draw) -> tuple[Solution, float]:
    if variant["how"] == "simplex":
        strength = variant["spread"]
        return on_simplex(replace(problem, strength=strength), TOLERANCE), strength
    strength = 0.0
    if variant["how"] == "held back":
        strength = choose_strength(problem, draw.rows[:, 0], draw.labels)
    return unconstrained(replace(problem, strength=strength), ITERATIONS), strength


def _measured(
    draw: Draw, words: Words, template: int, problem: Problem, solution: Solution
) -> Result:
    banks = _worded(solution.weights, words, template)
    texts = [text for bank in banks for text in bank]
    source, target = (
        np.stack([np.array(list(bank.values())) @ rows(list(bank)) for bank in banks])
        for rows in words.rows_of(texts)
    )
    sizes = [np.abs(list(bank.values())) / sum(map(abs, bank.values())) for bank in banks]
    return {
        "source": percent_right(draw.held_out, source, draw.held_out_labels),
        "target": percent_right(draw.held_out_target, target, draw.held_out_labels),
        "learnt": percent_right(draw.rows[:, 0], source, draw.labels),
        "distinct": float(np.mean([(size > LEAST_SHARE).sum() for size in sizes])),
        "loss": problem.loss(problem.classes(solution.weights)),
        "objective": solution.objective,
        "gap": solution.gap,
        "steps": solution.steps,
        "negative": float(
            np.clip(-solution.weights, 0, None).sum() / np.abs(solution.weights).sum()
        ),
        "largest": float(np.abs(solution.weights).max()),
    }


def _worded(weights: Weights, words: Words, template: int) -> list[dict[str, float]]:
    """Say which text has which weight; the template is a text of the pool as well."""
    banks = []
    for k, prompts in enumerate(words.texts.prompt_texts):
        bank = {words.texts.template_texts[k][template]: float(weights[k, 0])}
        for text, weight in zip(prompts, weights[k, 1:], strict=False):  # zeros below
            bank[text] = bank.get(text, 0.0) + float(weight)
        banks.append(bank)
    return banks
