"""The gradient composer on the same task as the greedy search: time, memory, and what it reaches."""

import time
import tracemalloc
from dataclasses import replace

import numpy as np

from benchmarks.task import Task
from promptboost.boosting import (
    BoostSettings,
    Composition,
    GradientSettings,
    GradientTrace,
    GridPool,
    Shots,
)
from promptboost.boosting.gradient.compose import compose_by_gradient
from promptboost.boosting.gradient.scale import FACTORS, choose_scale
from promptboost.boosting.grid import GridRows
from promptboost.training.learner import calibrated_logit_scale

#: Three times the logit scale of CLIP, like the default for an encoder that says 100.
SETTINGS = GradientSettings(logit_scale=300.0)
_PROBABILITY_SCALES = ("probability_scale_s", "greedy_probability_scale_s")


def measure_gradient(
    task: Task, hits: "np.ndarray[tuple[int, int], np.dtype[np.bool_]]", greedy_error: float
) -> dict[str, object]:
    """Compose with the default settings, and again until the greedy search's error is reached."""
    pool = GridPool(task.templates, tuple(task.prompts))
    _compose(task.X[: len(task.templates) * 4], task, pool, hits, replace(SETTINGS, sweeps=1))
    start = time.perf_counter()
    # The largest size would take half an hour of choosing and repeating: one shorter fit must do.
    large = len(task.X) > 20_000
    asked = replace(SETTINGS, sweeps=10) if large else SETTINGS
    whole = _compose(task.X, task, pool, hits, asked)
    seconds = time.perf_counter() - start
    sweeps, level = (0, float("nan")) if large else _until(task, pool, hits, greedy_error)
    tracemalloc.start()
    _compose(task.X, task, pool, hits, replace(SETTINGS, sweeps=2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(whole.trace, GradientTrace)
    choices = dict.fromkeys(("choice_of_scale_s", *_PROBABILITY_SCALES), float("nan"))
    if not large:
        choices = _choose(task, pool)
    return {
        **choices,
        "gradient_s": seconds,
        "gradient_error_after": whole.error,
        "gradient_sweeps": whole.trace.sweeps,
        "gradient_pool_reads": whole.trace.pool_reads,
        "gradient_gap": whole.trace.gaps[-1],
        "gradient_objective": whole.trace.objectives[-1],
        "gradient_peak_extra_bytes": peak,
        "same_error_sweeps": sweeps,
        "same_error_s": level,
    }


def _choose(task: Task, pool: GridPool) -> dict[str, float]:
    """Time the choice of the composer's logit scale and of that of probabilities, as a fit does both.

    The gradient composer has scores of images set aside from its own choice; for the greedy one a round
    is composed on each half of the images.
    """
    views = 4  # of each image, one after the other, in every task
    rows = task.X.reshape(-1, views, task.X.shape[1])
    shots = Shots(np.ascontiguousarray(rows[:, 0]), task.y[::views], rows)
    encoder_scale = SETTINGS.scale / FACTORS[0]
    start = time.perf_counter()
    choice = choose_scale(shots, pool, SETTINGS, encoder_scale, views=views)
    times = [time.perf_counter() - start]
    greedy = BoostSettings(rounds=1, views_per_round=views)
    gradient = replace(greedy, gradient=SETTINGS)
    for settings, held_out in ((gradient, choice.held_out), (greedy, None)):
        start = time.perf_counter()
        calibrated_logit_scale(shots, pool, settings, encoder_scale, held_out)
        times.append(time.perf_counter() - start)
    return dict(zip(("choice_of_scale_s", *_PROBABILITY_SCALES), times, strict=True))


def _until(
    task: Task,
    pool: GridPool,
    hits: "np.ndarray[tuple[int, int], np.dtype[np.bool_]]",
    error: float,
) -> tuple[int, float]:
    """Find how many sweeps reach an error, and time exactly those."""
    for sweeps in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, SETTINGS.sweeps):
        asked = replace(SETTINGS, sweeps=sweeps)
        start = time.perf_counter()
        found = _compose(task.X, task, pool, hits, asked)
        if found.error <= error:
            return sweeps, time.perf_counter() - start
    return SETTINGS.sweeps, float("nan")


def _compose(
    X: GridRows,
    task: Task,
    pool: GridPool,
    hits: "np.ndarray[tuple[int, int], np.dtype[np.bool_]]",
    settings: GradientSettings,
) -> Composition:
    n = len(X)
    rng = np.random.default_rng(0)
    return compose_by_gradient(
        X, task.y[:n], task.weights[:n], pool, settings, rng=rng, hits=hits[:n]
    )
