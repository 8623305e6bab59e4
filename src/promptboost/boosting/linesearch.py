"""How many copies to move: the line search of the gradient composer, compiled.

Moving a share γ of a bank from one prompt to another changes the logits of one class by γ·δ. With the
other classes fixed, a row depends on its logit z through log(exp(z) + exp(other)), so the search has one
dimension and is convex: where its slope is zero, one of the two whole numbers of copies next to it is best.
"""

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.kernel import compiled_any_order

__all__ = ["best_copies", "loss_change", "move_copies"]

Column = NDArray[np.float32]
Values = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Newton's method is safeguarded by bisection, which alone would need fifteen steps for 2**15 copies.
_STEPS = 30
# A class that has all of a row's probability leaves the others this share at least.
_SMALLEST_REST = 1e-12


@compiled_any_order
def slopes(
    z: Column, delta: Column, other: Values, weights: Values, own: Flags, gamma: float
) -> tuple[float, float]:
    """Give the first and second derivative of the loss by the share that is moved."""
    first, second = 0.0, 0.0
    for i in range(len(z)):
        step = float(delta[i])
        chance = 1.0 / (1.0 + np.exp(other[i] - z[i] - gamma * step))
        first += weights[i] * step * (chance - (1.0 if own[i] else 0.0))
        second += weights[i] * step * step * chance * (1.0 - chance)
    return first, second


@compiled_any_order
def loss_change(
    z: Column, delta: Column, other: Values, weights: Values, own: Flags, gamma: float
) -> float:
    """Give the change of the loss when the share ``gamma`` is moved."""
    total = 0.0
    for i in range(len(z)):
        before = z[i] - other[i]
        after = before + gamma * delta[i]
        # log(1 + exp(u)) is written so that nothing overflows.
        change = max(after, 0.0) - max(before, 0.0)
        change += np.log1p(np.exp(-abs(after))) - np.log1p(np.exp(-abs(before)))
        total += weights[i] * (change - (gamma * delta[i] if own[i] else 0.0))
    return total


@compiled_any_order
def best_copies(
    z: Column,
    delta: Column,
    other: Values,
    weights: Values,
    own: Flags,
    penalty: tuple[float, float],
    copies: int,
    limit: int,
) -> int:
    """Find the number of copies, from 0 to ``limit``, that lowers the objective most.

    Parameters
    ----------
    z, delta : arrays of float32
        Logits of the class, and how they change with the share that is moved.
    other : array of float64
        Logarithm of the summed exponentials of the other classes' logits.
    weights : array of float64
        Weight of each row.
    own : array of bool
        Which rows are of this class.
    penalty : tuple of two floats
        The penalty changes by γ times the first plus γ² times the second.
    copies, limit : int
        Copies in the bank, and how many of them can be moved.
    """
    low, high = 0.0, limit / copies
    first, second = slopes(z, delta, other, weights, own, low)
    slope, bend = first + penalty[0], second + 2.0 * penalty[1]
    if slope >= 0.0:
        return 0
    gamma = 0.0
    for _ in range(_STEPS):
        # Newton's step; where it would leave what is possible, half of that.
        step = -slope / bend if bend > 0.0 else np.inf
        if low < gamma + step < high:
            gamma = gamma + step
        elif high == limit / copies and low < high:
            gamma = high  # the end itself has not been tried
        else:
            gamma = (low + high) / 2.0
        first, second = slopes(z, delta, other, weights, own, gamma)
        slope = first + penalty[0] + 2.0 * penalty[1] * gamma
        bend = second + 2.0 * penalty[1]
        if slope < 0.0:
            if gamma == limit / copies:
                return limit
            low = gamma
        else:
            high = gamma
        if int(low * copies) == int(high * copies):
            break  # no whole number lies between
        if bend > 0.0 and abs(slope / bend) * copies < 1e-3:
            break
    fewer = int(gamma * copies + 1e-9)
    best, lowest = 0, 0.0
    for d in (fewer, fewer + 1):
        if 0 < d <= limit:
            share = d / copies
            change = loss_change(z, delta, other, weights, own, share)
            change += share * penalty[0] + share * share * penalty[1]
            if change < lowest:
                best, lowest = d, change
    return best


@compiled_any_order
def move_copies(
    z: Column,
    delta: Column,
    total: Values,
    weights: Values,
    own: Flags,
    penalty: tuple[float, float],
    copies: int,
    limit: int,
) -> int:
    """Find the best number of copies to move, and move them.

    ``total`` is the logarithm of the summed exponentials of all classes' logits. It and the logits
    ``z`` are changed in place. See :func:`best_copies` for the rest.
    """
    n = len(z)
    other = np.empty(n, np.float64)
    for i in range(n):
        chance = min(np.exp(z[i] - total[i]), 1.0 - _SMALLEST_REST)
        other[i] = total[i] + np.log1p(-chance)
    d = best_copies(z, delta, other, weights, own, penalty, copies, limit)
    if d > 0:
        share = d / copies
        for i in range(n):
            z[i] += np.float32(share) * delta[i]
            high, low = max(z[i], other[i]), min(z[i], other[i])
            total[i] = high + np.log1p(np.exp(low - high))
    return d
