"""Real weights by optimisation: on the simplex to a certified gap, and without any constraint."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.findings.weights_problem import Problem, Weights

# Far more than any cell needed; a fit that gets there is seen by its gap.
_MOST_STEPS = 5000
# The gap costs a gradient of its own, so it is looked at now and then only.
_LOOK_EVERY = 10
# Objectives are sums of float32 products: smaller differences than this share are noise.
_NOISE = 1e-7


@dataclass(frozen=True)
class Solution:
    """Weights, what they cost, and how far from the best on the simplex that is at most."""

    weights: Weights
    objective: float
    gap: float | None
    steps: int


def on_simplex(problem: Problem, tolerance: float) -> Solution:
    """Find the shares of least objective, by accelerated projected gradient steps.

    The step length is found by halving. Momentum is dropped whenever it points uphill: then it
    does more harm than good. Stops when the Frank-Wolfe gap, which no better shares can beat, falls
    below ``tolerance`` of the objective.
    """
    here = ahead = problem.start()
    momentum, length, gap = 1.0, 1.0, np.inf
    for step in range(1, _MOST_STEPS + 1):
        there, length = _step(problem, ahead, length)
        if step % _LOOK_EVERY == 0:
            reached, slope = problem.slope(there)
            gap = simplex_gap(there, slope, problem.present)
            if gap <= tolerance * reached:
                break
        if float(((there - ahead) * (there - here)).sum()) < 0:
            momentum = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = there + (momentum - 1) / following * (there - here)
        here, momentum = there, following
    return Solution(there, problem.value(there), gap, step)


def _step(problem: Problem, here: Weights, length: float) -> tuple[Weights, float]:
    """Take one projected step, as long as the objective still curves less than it assumes."""
    value, slope = problem.slope(here)
    length *= 1.1  # it may have been too short since
    while True:
        there = projected(here - length * slope, problem.present)
        moved = there - here
        bound = value + float((slope * moved).sum()) + float((moved**2).sum()) / (2 * length)
        if problem.value(there) <= bound + _NOISE * abs(value):
            return there, length
        length /= 2


def projected(weights: Weights, present: NDArray[np.bool_]) -> Weights:
    """Return for every class the nearest weights that are not negative and add up to one.

    Examples
    --------
    >>> present = np.array([[True, True, False]])
    >>> projected(np.array([[0.9, 0.5, 7.0]]), present).round(3).tolist()
    [[0.7, 0.3, 0.0]]
    """
    values = np.where(present, weights, -np.inf)
    falling = -np.sort(-values, axis=1)
    numbers = np.arange(1, values.shape[1] + 1)
    with np.errstate(invalid="ignore"):  # −∞ where there is no prompt
        excess = (np.cumsum(falling, axis=1) - 1) / numbers
        kept = np.count_nonzero(falling > excess, axis=1)
    lowered = values - excess[np.arange(len(values)), kept - 1][:, None]
    return np.asarray(np.maximum(lowered, 0.0))


def simplex_gap(weights: Weights, slope: Weights, present: NDArray[np.bool_]) -> float:
    """Return the Frank-Wolfe gap: how much lower the objective can be on the simplex at most."""
    lowest = np.where(present, slope, np.inf).min(axis=1)
    return float((weights * slope).sum() - lowest.sum())


def unconstrained(problem: Problem, iterations: int, start: Weights | None = None) -> Solution:
    """Lower the objective over any real weights by L-BFGS, from the template's share 1 by default."""
    from scipy.optimize import minimize

    shape = problem.present.shape

    def flat(weights: Weights) -> tuple[float, Weights]:
        value, slope = problem.slope(weights.reshape(shape))
        return value, slope.ravel()

    found = minimize(
        flat,
        (problem.start() if start is None else start).ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": iterations, "maxfun": 4 * iterations, "gtol": 1e-6, "ftol": 1e-9},
    )
    return Solution(found.x.reshape(shape), float(found.fun), None, int(found.nit))
