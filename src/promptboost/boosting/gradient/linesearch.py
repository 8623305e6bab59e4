"""The line search of the gradient composer, compiled: how many copies to move.

Moving a share γ of a bank from one prompt to another changes the logits of one class by γ·δ. With the
other classes fixed, a row's loss depends on its logit z through log(exp(z) + exp(other)). The problem is
one-dimensional and convex, so the best number of copies is one of the two integers next to its minimum.
"""

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import compiled_any_order

Column = NDArray[np.float32]
Logits = NDArray[np.float32]
Values = NDArray[np.float64]
Flags = NDArray[np.bool_]
Labels = NDArray[np.int64]

# Newton steps before bisection, which takes at most fifteen more.
_NEWTON = 8
# If the other classes have less than this share of a row, their sum is computed directly.
_SMALLEST_REST = 1e-6
# Log-probabilities below which a class is negligible in a sum (1e-13),
_NEGLIGIBLE = 30.0
# and in a single-precision gradient or a line search (1e-8).
_FAINT = 18.0
# Moves of up to this part of a bank are searched first.
_SHORT = 8


@compiled_any_order
def slopes(
    z: Column, delta: Column, other: Values, weights: Values, in_class: Flags, gamma: float
) -> tuple[float, float]:
    """Return the first and second derivative of the loss by the moved share."""
    first, second = 0.0, 0.0
    for i in range(len(z)):
        step = float(delta[i])
        probability = 1.0 / (1.0 + np.exp(other[i] - z[i] - gamma * step))
        first += weights[i] * step * (probability - (1.0 if in_class[i] else 0.0))
        second += weights[i] * step * step * probability * (1.0 - probability)
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
    """Return the change of the loss when the moved share goes from ``start`` to ``stop``."""
    total = 0.0
    for i in range(len(z)):
        first = z[i] - other[i] + start * delta[i]
        last = z[i] - other[i] + stop * delta[i]
        # log(1 + exp(u)), without overflow.
        change = max(last, 0.0) - max(first, 0.0)
        change += np.log1p(np.exp(-abs(last))) - np.log1p(np.exp(-abs(first)))
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

    ``z`` are the logits of the class, ``delta`` their derivatives by the moved share, ``other`` the
    log-sum-exp of the logits of the other classes, and ``in_class`` marks the rows of the class.
    ``penalty`` has the coefficients of γ and γ². The bank has ``copies``, of which ``limit`` can be moved.
    """
    tries = 0
    first, second = slopes(z, delta, other, weights, in_class, 0.0)
    slope, bend = first + penalty[0], second + 2.0 * penalty[1]
    if slope >= 0.0:
        return 0
    # Invariant: the slope is negative at `low`, and not at `high` unless that is beyond the limit.
    d, low, high = 0, 0, limit + 1
    while high - low > 1:
        # A Newton step rounded to an integer and clipped to the bracket, later bisection.
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
    # The minimum is between low and high copies.
    share, more = low / copies, 1.0 / copies
    change = loss_change(z, delta, other, weights, in_class, share, share + more)
    change += more * (penalty[0] + (2.0 * share + more) * penalty[1])
    return high if change < 0.0 else low


@compiled_any_order
def log_sum_of_others(logits: Logits, i: int, k: int, total: float, outside: float) -> float:
    """Return the log-sum-exp of the other classes' logits of a row.

    ``outside`` is that of classes in other blocks.
    """
    others = -np.expm1(logits[k, i] - total)
    if others > _SMALLEST_REST:
        return float(total + np.log(others))
    # The difference is lost in rounding. This happens for at most one class of a row.
    highest = outside
    for j in range(logits.shape[0]):
        if j != k:
            highest = max(highest, logits[j, i])
    others = 0.0
    for j in range(logits.shape[0]):
        if j != k:
            others += np.exp(logits[j, i] - highest)
    return float(highest + np.log(others + np.exp(outside - highest)))


@compiled_any_order
def open_rows(
    z: Column, delta: Column, total: Values, in_class: Flags, most: float, threshold: float
) -> NDArray[np.int64]:
    """Return the rows of a class, and those where it is not negligible, now or after the longest move."""
    rows = np.empty(len(z), np.int64)
    count = 0
    longest = np.float32(most)
    for i in range(len(z)):
        rows[count] = i
        reached = z[i] + max(longest * delta[i], np.float32(0.0)) - total[i]
        count += 1 if reached > -threshold or in_class[i] else 0
    return rows[:count]


@compiled_any_order
def move_copies(
    logits: Logits,
    k: int,
    delta: Column,
    total: Values,
    outside: Values,
    weights: Values,
    in_class: Flags,
    penalty: tuple[float, float],
    copies: int,
    limit: int,
) -> int:
    """Move the best number of copies in class ``k``, and return it.

    ``logits`` has one row per class; ``outside`` is the log-sum-exp of classes in other blocks, ``total``
    that of all classes. ``logits`` and ``total`` are changed in place. See :func:`best_copies` for the
    other parameters.

    Rows in which the class is negligible are ignored, unless the slope is close to zero. Fewer rows matter
    for a short move, so short moves are tried first. As the objective is convex, a move shorter than the
    limit is the best one.
    """
    z, threshold = logits[k], _FAINT
    most = min(limit, max(copies // _SHORT, 1))
    while True:
        rows = open_rows(z, delta, total, in_class, most / copies, threshold)
        logit, change, weight, label = z[rows], delta[rows], weights[rows], in_class[rows]
        other = np.empty(len(rows))
        for j in range(len(rows)):
            i = rows[j]
            other[j] = log_sum_of_others(logits, i, k, total[i], outside[i])
        slope = slopes(logit, change, other, weight, label, 0.0)[0] + penalty[0]
        if len(rows) < len(z) and abs(slope) <= np.exp(-threshold) * np.abs(delta).max():
            threshold = np.inf
            continue
        d = best_copies(logit, change, other, weight, label, penalty, copies, most)
        if d < most or most == limit:
            break
        most = limit
    if d > 0:
        share = np.float32(d / copies)
        for i in range(len(z)):
            z[i] += share * delta[i]
        for j in range(len(rows)):
            i = rows[j]
            high, low = max(z[i], other[j]), min(z[i], other[j])
            total[i] = high + np.log1p(np.exp(low - high))
    return d


@compiled_any_order
def sum_up(logits: Logits, start: int, stop: int, total: Values) -> None:
    """Fill ``total`` of a range of rows with the log-sum-exp of their logits."""
    highest = logits[0, start:stop].copy()
    for k in range(1, logits.shape[0]):
        z = logits[k, start:stop]
        for i in range(len(highest)):
            highest[i] = max(highest[i], z[i])
    sums = np.zeros(len(highest))
    for k in range(logits.shape[0]):
        z = logits[k, start:stop]
        for i in range(len(highest)):
            if z[i] > highest[i] - _NEGLIGIBLE:
                sums[i] += np.exp(float(z[i]) - float(highest[i]))
    for i in range(len(highest)):
        total[start + i] = highest[i] + np.log(sums[i])


@compiled_any_order
def add_gradient(
    logits: Logits,
    total: Values,
    weights: Values,
    labels: Labels,
    X: Logits,
    first: int,
    classes: tuple[int, int],
    rows: tuple[int, int],
    out: Logits,
) -> None:
    """Add the gradient by the class rows, for ranges of classes and rows.

    Rows in which a class is negligible are skipped. ``logits`` starts with class ``first``.
    """
    for k in range(classes[0], classes[1]):
        z, gradient = logits[k], out[k]
        for i in range(rows[0], rows[1]):
            in_class = labels[i] == first + k
            if z[i] > total[i] - _FAINT or in_class:
                residual = np.float32(
                    weights[i] * (np.exp(z[i] - total[i]) - (1.0 if in_class else 0.0))
                )
                for j in range(X.shape[1]):
                    gradient[j] += residual * X[i, j]
