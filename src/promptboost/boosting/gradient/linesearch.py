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
Labels = NDArray[np.int64]

# After this many of Newton's steps, bisection finds what is left in fifteen at most.
_NEWTON = 8
# Where a class leaves the others less than this share of a row, theirs is summed up anew.
_SMALLEST_REST = 1e-6
# A class so far below the sum of all on a logarithmic scale adds nothing to the sum: 1e-13.
_NOTHING = 30.0
# And has nothing of a row that a gradient in single precision, or a line search, would show: 1e-8.
_FAINT = 18.0
# The moves that are looked for first are up to this part of a bank.
_SHORT = 8


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
def rest_of(logits: Logits, i: int, k: int, total: float, outside: float) -> float:
    """Return the logarithm of the summed exponentials of the other classes' logits, of one row.

    ``outside`` is that of all classes that have no logits here.
    """
    rest = -np.expm1(logits[k, i] - total)
    if rest > _SMALLEST_REST:
        return float(total + np.log(rest))
    # So little is left that it is lost in the rounding of the total. A row has one such class.
    highest = outside
    for j in range(logits.shape[0]):
        if j != k:
            highest = max(highest, logits[j, i])
    rest = 0.0
    for j in range(logits.shape[0]):
        if j != k:
            rest += np.exp(logits[j, i] - highest)
    return float(highest + np.log(rest + np.exp(outside - highest)))


@compiled_any_order
def open_rows(
    z: Column, delta: Column, total: Values, in_class: Flags, most: float, nothing: float
) -> NDArray[np.int64]:
    """Return the rows of a class, and those of which it has anything, or would after the longest move."""
    rows = np.empty(len(z), np.int64)
    count = 0
    longest = np.float32(most)
    for i in range(len(z)):
        rows[count] = i
        reached = z[i] + max(longest * delta[i], np.float32(0.0)) - total[i]
        count += 1 if reached > -nothing or in_class[i] else 0
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

    ``logits`` has one row a class; ``outside`` is the logarithm of the summed exponentials of all classes
    that are not among them, ``total`` that of all. ``logits`` and ``total`` are changed in place. See
    :func:`best_copies` for the rest.

    Most classes have nothing of most rows. Those have no say, unless the others leave the slope so near
    zero that next to nothing decides. Most moves are short, and fewer rows have a say in a short one: it is
    looked for first, and is the best if one copy more would be worse.
    """
    z, nothing = logits[k], _FAINT
    most = min(limit, max(copies // _SHORT, 1))
    while True:
        rows = open_rows(z, delta, total, in_class, most / copies, nothing)
        logit, change, weight, own = z[rows], delta[rows], weights[rows], in_class[rows]
        other = np.empty(len(rows))
        for at in range(len(rows)):
            i = rows[at]
            other[at] = rest_of(logits, i, k, total[i], outside[i])
        slope = slopes(logit, change, other, weight, own, 0.0)[0] + penalty[0]
        if len(rows) < len(z) and abs(slope) <= np.exp(-nothing) * np.abs(delta).max():
            nothing = np.inf
            continue
        d = best_copies(logit, change, other, weight, own, penalty, copies, most)
        if d < most or most == limit:
            break
        most = limit
    if d > 0:
        share = np.float32(d / copies)
        for i in range(len(z)):
            z[i] += share * delta[i]
        for at in range(len(rows)):
            i = rows[at]
            high, low = max(z[i], other[at]), min(z[i], other[at])
            total[i] = high + np.log1p(np.exp(low - high))
    return d


@compiled_any_order
def sum_up(logits: Logits, start: int, stop: int, total: Values) -> None:
    """Fill ``total`` of some rows with the logarithm of their logits' summed exponentials."""
    highest = logits[0, start:stop].copy()
    for k in range(1, logits.shape[0]):
        z = logits[k, start:stop]
        for i in range(len(highest)):
            highest[i] = max(highest[i], z[i])
    sums = np.zeros(len(highest))
    for k in range(logits.shape[0]):
        z = logits[k, start:stop]
        for i in range(len(highest)):
            if z[i] > highest[i] - _NOTHING:
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
    """Add what some rows say of some classes to the gradient by the class rows.

    Rows of which a class has next to nothing are passed over, so the product is a thin one. The logits
    begin with those of class ``first``.
    """
    for k in range(classes[0], classes[1]):
        z, into = logits[k], out[k]
        for i in range(rows[0], rows[1]):
            own = labels[i] == first + k
            if z[i] > total[i] - _FAINT or own:
                missing = np.float32(weights[i] * (np.exp(z[i] - total[i]) - (1.0 if own else 0.0)))
                for j in range(X.shape[1]):
                    into[j] += missing * X[i, j]
