"""The gradient composer on the same task as the greedy search: time, memory, and what it reaches."""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.task import Task
from promptboost.boosting import BoostSettings, GradientSettings, GridPool, Shots, boost
from promptboost.boosting.composition import Composition, GradientTrace, class_rows
from promptboost.boosting.gradient.compose import compose_by_gradient
from promptboost.boosting.grid import GridRows, from_grid
from promptboost.boosting.residual import fit_residual, unseen_texts
from promptboost.boosting.scale import FACTORS, probability_scales
from promptboost.threads import single_blas_thread
from promptboost.training.trainer import settle_scale

Result = TypeVar("Result")

#: Three times the logit scale of CLIP, like the default for an encoder that says 100.
SETTINGS = GradientSettings(logit_scale=300.0)


def measure_gradient(
    task: Task, hits: "np.ndarray[tuple[int, int], np.dtype[np.bool_]]", greedy_error: float
) -> dict[str, Any]:
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
    return {
        **measure_fit(task, pool),
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


def measure_fit(task: Task, pool: GridPool, *, greedy: bool = True) -> dict[str, Any]:
    """Fit with the default settings, part by part; seconds, those of the processor, and memory.

    One composition is one round at a scale that is known, its templates compared included. The whole fit
    begins with the choice of that scale and ends with the residual. With `greedy`, what the greedy composer
    needs for the scale of probabilities is measured too.
    """
    views = 4  # of each image, one after the other, in every task
    rows = task.X.reshape(-1, views, task.X.shape[1])
    shots = Shots(np.ascontiguousarray(rows[:, 0]), task.y[::views], rows)
    encoder_scale = SETTINGS.scale / FACTORS[0]
    asked = BoostSettings(
        rounds=1, views_per_round=views, gradient=replace(SETTINGS, logit_scale=None)
    )
    times = {"fit_s": 0.0, "fit_cpu_s": 0.0}

    def timed(part: str, work: Callable[[], Result]) -> Result:
        wall, processor = time.perf_counter(), time.process_time()
        result = work()
        spent = {"s": time.perf_counter() - wall, "cpu_s": time.process_time() - processor}
        for clock, seconds in spent.items():
            times[f"{part}_{clock}"] = seconds
            times[f"fit_{clock}"] += seconds
        return result

    before = resident_bytes(forget_peak=True)
    settled, why, held_out, folds = timed(
        "choice_of_scale", lambda: settle_scale(shots, pool, asked, encoder_scale)
    )
    (done,) = timed("composition", lambda: list(boost(shots, pool, settled)))
    timed(
        "calibration", lambda: probability_scales(shots, pool, settled, [encoder_scale], held_out)
    )
    text = class_rows(done.composition, pool)
    images = from_grid(np.concatenate([shots.originals[:, None], rows], axis=1))
    with single_blas_thread():  # as in a fit
        timed(
            "residual",
            lambda: fit_residual(images, shots.labels, text, unseen_texts(pool), folds=folds),
        )
    peak = resident_bytes() - before
    if greedy:
        start = time.perf_counter()
        probability_scales(shots, pool, replace(settled, gradient=None), [encoder_scale])
        times["greedy_calibration_s"] = time.perf_counter() - start
    return {
        **times,
        "fit_over_composition": times["fit_s"] / times["composition_s"],
        "fit_cpu_over_composition_cpu": times["fit_cpu_s"] / times["composition_cpu_s"],
        "fit_peak_extra_bytes": peak,
        "scale_choice": why,
    }


def resident_bytes(*, forget_peak: bool = False) -> int:
    """Return the most memory that was resident since the peak was forgotten last; 0 where Linux is not.

    Unlike what Python traces, it has the arrays of compiled code and buffers of libraries in it.
    """
    try:
        if forget_peak:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


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
