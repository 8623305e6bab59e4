"""How many copies to move: the line search of the gradient composer, compiled.

Moving a share γ of a bank from one prompt to another changes the logits of one class by γ·δ. With the
other classes fixed, a row depends on its logit z through log(exp(z) + exp(other)), so the search has one
dimension and is convex: where its slope is zero, one of the two whole numbers of copies next to it is best.
"""

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import compiled_any_order

Column = NDArray[np.float32]
Logits = NDArray[np.float32]
Values = NDArray[np.float64]
Flags = NDArray[np.bool_]

# After this many of Newton's steps, bisection finds what is left in fifteen at most.
_NEWTON = 8
# Where a class leaves the others less than this share of a row, theirs is summed up anew.
_SMALLEST_REST = 1e-6


@compiled_any_order
def slopes(
    z: Column, delta: Column, other: Values, weights: Values, in_class: Flags, gamma: float
) -> tuple[float, float]:
    """Return the first and second derivative of the loss by the share that is moved."""
    first, second = 0.0, 0.0
    for i in range(len(z)):
        step = float(delta[i])
        chance = 1.0 / (1.0 + np.exp(other[i] - z[i] - gamma * step))
        first += weights[i] * step * (chance - (1.0 if in_class[i] else 0.0))
        second += weights[i] * step * step * chance * (1.0 - chance)
    return first, second


@compiled_any_order
def loss_change(
    z: Column,
    delta: Column,
    other: Values,
    weights: Values,
    in_class: Flags,
    start: float,
    stop: float,
) -> float:
    """Return the change of the loss when the share that is moved goes from ``start`` to ``stop``."""
    total = 0.0
    for i in range(len(z)):
        before = z[i] - other[i] + start * delta[i]
        after = z[i] - other[i] + stop * delta[i]
        # log(1 + exp(u)) is written so that nothing overflows.
        change = max(after, 0.0) - max(before, 0.0)
        change += np.log1p(np.exp(-abs(after))) - np.log1p(np.exp(-abs(before)))
        total += weights[i] * (change - ((stop - start) * delta[i] if in_class[i] else 0.0))
    return total


@compiled_any_order
def best_copies(
    z: Column,
    delta: Column,
    other: Values,
    weights: Values,
    in_class: Flags,
    penalty: tuple[float, float],
    copies: int,
    limit: int,
) -> int:
    """Return the number of copies, from 0 to ``limit``, that lowers the objective most.

    ``z`` are the logits of the class, ``delta`` how they change with the share that is moved, ``other``
    the logarithm of the summed exponentials of the other classes' logits; ``in_class`` says which rows
    are of the class. The penalty changes by γ times its first number plus γ² times its second. The bank
    has ``copies``, of which ``limit`` can be moved.
    """
    tries = 0
    first, second = slopes(z, delta, other, weights, in_class, 0.0)
    slope, bend = first + penalty[0], second + 2.0 * penalty[1]
    if slope >= 0.0:
        return 0
    # The slope is negative at `low` and not at `high`, as far as is known: beyond the limit is a wall.
    d, low, high = 0, 0, limit + 1
    while high - low > 1:
        # Newton's step to a whole number, or half of what is left where it would leave that.
        step = -slope / bend * copies if bend > 0.0 else float(copies)
        aim = d + int(min(max(step, -float(copies)), float(copies)) + (0.5 if step > 0 else -0.5))
        d = min(max(aim, low + 1), high - 1) if tries < _NEWTON else (low + high) // 2
        tries += 1
        share = d / copies
        first, second = slopes(z, delta, other, weights, in_class, share)
        slope = first + penalty[0] + 2.0 * penalty[1] * share
        bend = second + 2.0 * penalty[1]
        if slope < 0.0:
            low = d
        else:
            high = d
    if high > limit:
        return limit
    # One copy more passes the lowest point; it may still be lower than one copy fewer.
    share, more = low / copies, 1.0 / copies
    change = loss_change(z, delta, other, weights, in_class, share, share + more)
    change += more * (penalty[0] + (2.0 * share + more) * penalty[1])
    return high if change < 0.0 else low


@compiled_any_order
def others_of(logits: Logits, k: int, total: Values) -> Values:
    """Return for every row the logarithm of the summed exponentials of the other classes' logits."""
    K, n = logits.shape
    other = np.empty(n, np.float64)
    for i in range(n):
        rest = -np.expm1(logits[k, i] - total[i])
        if rest > _SMALLEST_REST:
            other[i] = total[i] + np.log(rest)
            continue
        # So little is left that it is lost in the rounding of the total. A row has one such class.
        highest = -np.inf
        for j in range(K):
            if j != k:
                highest = max(highest, logits[j, i])
        rest = 0.0
        for j in range(K):
            if j != k:
                rest += np.exp(logits[j, i] - highest)
        other[i] = highest + np.log(rest)
    return other


@compiled_any_order
def move_copies(
    logits: Logits,
    k: int,
    delta: Column,
    total: Values,
    weights: Values,
    in_class: Flags,
    penalty: tuple[float, float],
    copies: int,
    limit: int,
) -> int:
    """Move the best number of copies in class ``k``, and return it.

    ``logits`` has one row a class; ``total`` is the logarithm of their summed exponentials. Both are
    changed in place. See :func:`best_copies` for the rest.
    """
    z, other = logits[k], others_of(logits, k, total)
    d = best_copies(z, delta, other, weights, in_class, penalty, copies, limit)
    if d > 0:
        share = np.float32(d / copies)
        for i in range(len(z)):
            z[i] += share * delta[i]
            high, low = max(z[i], other[i]), min(z[i], other[i])
            total[i] = high + np.log1p(np.exp(low - high))
    return d
