"""The compiled inner loops of the search, in integer arithmetic on the grid.

Names follow the paper. ``total(s, i, k)`` is the sum of cosines of row i with all copies in bank k and
``sizes[k]`` the number of copies; the score s_ik is their quotient. ``winner`` and ``runner`` are ŷ and ŷ²
(ties go to the lower class index, as in argmax). A prompt t matters only through its cosines c = x·t.

For class k, the *rival* of a row is the winner, which k must overtake, or if k wins, the runner-up, which
must overtake k. The prediction flips for all numbers of copies from a threshold on.
"""

from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import Cosines, Integers, compiled, dot, own_block, some_cosines
from promptboost.boosting.grid import GridRows

Flags = NDArray[np.bool_]
Value = tuple[int, int, int]
"""Value of a candidate: (gain in weight units, number of copies, index of the prompt or -1)."""

# Number of harmed rows stored per candidate for the next visit of its class.
MEMORY = 4
# Rows per tile of sums: a step writes a column of a tile, a new ranking reads a row.
TILE = 64
# Rows that a candidate is multiplied with at once.
BLOCK = 256
LANES = 16
# First numbers of copies of the ranges that are bounded separately.
FEWEST = (1, 2, 3, 5, 9)


class Scores(NamedTuple):
    """Scores of all banks on n rows, and frequently used values of each row."""

    sums: Integers  # (n / TILE, K, TILE)
    sizes: Integers  # (K,)
    winner: Integers
    runner: Integers
    ahead: Integers  # appending to k can flip a row that k does not win only if c > ahead[i]
    behind: Integers  # … and a row that k wins only if c < behind[i]
    third: Integers  # upper bound on the scores of all but the two best classes
    correct: Integers  # weight of the row if it is correctly classified, else 0
    y: Integers
    weights: Integers


class Kept(NamedTuple):
    """Rows, in slots, whose products with the whole pool of the class are cached."""

    products: Cosines  # (P, at least number of slots)
    terms: Integers  # (slots, 4): see flip_terms
    roles: Integers  # weight of a row that can be gained, minus the weight of one that can be lost, or 0


class Events(NamedTuple):
    """Thresholds of the gains of a candidate in ascending order, and the harm up to each."""

    copies: Integers
    gain: Integers
    harm: Integers


class Visit(NamedTuple):
    """A search for the best prompt of a class."""

    s: Scores
    X: GridRows
    T: GridRows
    k: int
    kept: Kept
    harmed: Cosines  # (P, MEMORY): rows that each candidate harmed on earlier visits, or −1
    cosines: Cosines  # (P, MEMORY)
    risky: Integers  # rows to evaluate first
    is_kept: Flags  # (n,)
    is_risky: Flags  # (n,)
    limit: int  # largest number of copies
    penalty: bool  # whether prompts are compared by the gain per copy
    events: Events  # a buffer
    n_products: Integers  # (1,): the number of products computed
    columns: Cosines  # (2, n): a buffer; the first holds the cosines of the best prompt afterwards
    predicts: bool  # whether to stop at the first candidate that survives the risky rows
    guess: int  # a predicted prompt or −1,
    guess_column: Cosines  # and its cosines with all rows


@compiled
def total(s: Scores, i: int, k: int) -> int:
    """Return the sum of cosines of row i with all copies in bank k."""
    return s.sums[i // TILE, k, i % TILE]  # type: ignore[no-any-return]


@compiled
def beats(s: Scores, i: int, a: int, b: int) -> bool:
    """Return whether class a is ahead of class b on row i."""
    left = total(s, i, a) * s.sizes[b]
    right = total(s, i, b) * s.sizes[a]
    return bool(left > right or (left == right and a < b))


@compiled
def score_ceiling(s: Scores, i: int, k: int) -> int:
    """Return the score of class k on row i, rounded up."""
    return -(-total(s, i, k) // s.sizes[k])  # type: ignore[no-any-return]


@compiled
def rank_row(s: Scores, i: int) -> None:
    """Compute ŷ, ŷ² and the third best score of row i."""
    first, second, third = 0, -1, -1
    for k in range(1, s.sizes.shape[0]):
        if beats(s, i, k, first):
            first, second, third = k, first, second
        elif second < 0 or beats(s, i, k, second):
            second, third = k, second
        elif third < 0 or beats(s, i, k, third):
            third = k
    s.winner[i], s.runner[i] = first, second
    s.third[i] = score_ceiling(s, i, third) if third >= 0 else -(2**40)


@compiled
def update_row(s: Scores, i: int) -> None:
    """Update the values that depend on the two best classes of row i."""
    first, second = s.winner[i], s.runner[i]
    s.ahead[i] = total(s, i, first) // s.sizes[first]
    s.behind[i] = score_ceiling(s, i, second)
    s.correct[i] = s.weights[i] if first == s.y[i] else 0


@compiled
def rank_all(s: Scores) -> None:
    """Compute ŷ and ŷ² of every row."""
    for i in range(s.y.shape[0]):
        rank_row(s, i)
        update_row(s, i)


@compiled
def move_class(s: Scores, i: int, k: int) -> None:
    """Update ŷ and ŷ² of row i after a change of the score of class k."""
    above_third = total(s, i, k) > s.third[i] * s.sizes[k]
    first, second = s.winner[i], s.runner[i]
    if first == k:
        if not beats(s, i, k, second):
            if above_third:
                s.winner[i], s.runner[i] = second, k
            else:
                rank_row(s, i)
    elif second == k:
        if beats(s, i, k, first):
            s.winner[i], s.runner[i] = k, first
        elif not above_third:
            rank_row(s, i)
    elif beats(s, i, k, second):
        s.third[i] = max(s.third[i], s.behind[i])
        s.runner[i] = k
        if beats(s, i, k, first):
            s.winner[i], s.runner[i] = k, first
    elif above_third:
        s.third[i] = score_ceiling(s, i, k)
        return
    update_row(s, i)


@compiled
def add_copies(s: Scores, k: int, c: Cosines, d: int, start: int, stop: int) -> None:
    """Update the scores of a range of rows after d copies with cosines c were appended to bank k.

    The size of the bank must have been updated before.
    """
    size = s.sizes[k]
    for i in range(start, stop):
        new = total(s, i, k) + d * np.int64(c[i])
        s.sums[i // TILE, k, i % TILE] = new
        # Most rows cannot change their ranking; skip them without reading their best scores.
        far = new < (s.behind[i] - 1) * size and new <= s.third[i] * size
        if not far or s.winner[i] == k or s.runner[i] == k:
            move_class(s, i, k)


@compiled
def can_gain(s: Scores, i: int, k: int) -> bool:
    """Return whether a flip of row i by class k would make it correct."""
    return bool(s.runner[i] == s.y[i] if s.winner[i] == k else s.y[i] == k)


@compiled
def find_gain_rows(s: Scores, k: int, rows: Integers) -> int:
    """Fill ``rows`` with the rows that class k can gain; return their number."""
    count = 0
    for i in range(s.y.shape[0]):
        if s.correct[i] == 0 and s.weights[i] > 0 and can_gain(s, i, k):
            rows[count] = i
            count += 1
    return count


@compiled
def flip_terms(s: Scores, i: int, k: int) -> tuple[int, int, int, bool]:
    """Return (gap, scale, offset, tie) of row i: d copies flip it iff ``d·(scale·c − offset) > gap``.

    With ``tie``, equality is enough, as the class that moves ahead has the lower index.
    """
    if s.winner[i] == k:
        rival, sign = s.runner[i], -1
    else:
        rival, sign = s.winner[i], 1
    gap = sign * (total(s, i, rival) * s.sizes[k] - total(s, i, k) * s.sizes[rival])
    tie = (rival < k) == (s.winner[i] == k)
    return gap, sign * s.sizes[rival], sign * total(s, i, rival), tie


@compiled
def fewest_copies(gap: int, step: int, tie: bool, limit: int) -> int:
    """Return the least number of copies that flip a row, each reducing ``gap`` by ``step``; 0 if none does.

    This is ``floor(gap / step) + 1``, or ``ceil(gap / step)`` if a tie is enough.
    """
    if step <= 0 or gap > step * limit:
        return 0
    d = gap // step
    if not (tie and d > 0 and d * step == gap):
        d += 1
    return d if d <= limit else 0


@compiled
def fill_slots(s: Scores, slots: Integers, k: int, kept: Kept) -> None:
    """Compute the flip terms and roles of the kept rows."""
    for j in range(slots.shape[0]):
        i = slots[j]
        gap, scale, offset, tie = flip_terms(s, i, k)
        kept.terms[j, 0], kept.terms[j, 1], kept.terms[j, 2] = gap, scale, offset
        kept.terms[j, 3] = 1 if tie else 0
        kept.roles[j] = s.weights[i] if can_gain(s, i, k) else -s.correct[i]


@compiled
def copies_in_slot(kept: Kept, p: int, j: int, limit: int) -> int:
    """Return the least number of copies of candidate p that flip the row in slot j; 0 if none does."""
    step = kept.terms[j, 1] * np.int64(kept.products[p, j]) - kept.terms[j, 2]
    return fewest_copies(kept.terms[j, 0], step, kept.terms[j, 3] == 1, limit)


@compiled
def fewest_needed(kept: Kept, j: int, copies: int) -> int:
    """Return the least cosine, or its complement, with which ``copies`` flip the row in slot j."""
    gap, scale, offset, tie = kept.terms[j]
    step = -(-gap // copies) if tie == 1 and gap > 0 else gap // copies + 1
    least = -(-(step + offset) // scale) if scale > 0 else ~((step + offset) // scale)
    return max(-(2**31), min(2**31 - 1, least))  # type: ignore[no-any-return]


@compiled
def fill_thresholds(kept: Kept, limit: int, thresholds: Cosines, weights: Cosines) -> float:
    """Fill the thresholds and weights of bound_candidates; return the unit of the weights.

    Gains are counted at the largest number of copies of a range, harm at the smallest. Weights are
    rounded up to 32 bits, so that sums of them are upper bounds.
    """
    slots = kept.roles.shape[0]
    largest, scale = 1, 2**20
    for j in range(slots):
        largest = max(largest, abs(kept.roles[j]))
    while scale * slots >= 2**31:
        scale //= 2
    for j in range(slots):
        # Rounded up, also if negative.
        weights[j] = -((-kept.roles[j] * scale) // largest)
        for r in range(len(FEWEST)):
            most = min(limit, FEWEST[r + 1] - 1) if r + 1 < len(FEWEST) else limit
            copies = most if kept.roles[j] > 0 else FEWEST[r]
            thresholds[r, j] = fewest_needed(kept, j, copies)
    return largest / scale


@compiled
def bound_candidates(kept: Kept, limit: int, penalty: bool, bounds: NDArray[np.float64]) -> None:
    """Compute upper bounds on ``−Δε/d`` (``−Δε`` without penalty) from the kept rows.

    Within a range of numbers of copies, the gain is at most that of the largest number minus the harm of
    the smallest, divided by the smallest.
    """
    # Padded to whole SIMD lanes with weights of zero.
    slots = min(-(-kept.roles.shape[0] // LANES) * LANES, kept.products.shape[1])
    thresholds = np.zeros((len(FEWEST), slots), np.int32)
    weights, turned = np.zeros(slots, np.int32), np.zeros(slots, np.int32)
    unit = fill_thresholds(kept, limit, thresholds, weights)
    for j in range(kept.roles.shape[0]):
        turned[j] = 0 if kept.terms[j, 1] > 0 else -1  # ~c grows as c falls
    from_1, from_2, from_3, from_5, from_9 = thresholds
    zero = np.int32(0)
    for p in range(bounds.shape[0]):
        cosines = kept.products[p]
        a = b = c = d = e = zero
        for j in range(slots):
            cosine, weight = cosines[j] ^ turned[j], weights[j]
            a = np.int32(a + (weight if cosine >= from_1[j] else zero))
            b = np.int32(b + (weight if cosine >= from_2[j] else zero))
            c = np.int32(c + (weight if cosine >= from_3[j] else zero))
            d = np.int32(d + (weight if cosine >= from_5[j] else zero))
            e = np.int32(e + (weight if cosine >= from_9[j] else zero))
        if penalty:
            bounds[p] = max(a * unit, b * unit / 2, c * unit / 3, d * unit / 5, e * unit / 9)
        else:
            bounds[p] = max(a, b, c, d, e) * unit


@compiled
def collect_gains(kept: Kept, p: int, limit: int, events: Events) -> int:
    """Fill ``events`` with the gains of candidate p, sorted by copies; return their number."""
    n_gains = 0
    for j in range(kept.roles.shape[0]):
        d = copies_in_slot(kept, p, j, limit) if kept.roles[j] > 0 else 0
        if d == 0:
            continue
        e = n_gains
        while e > 0 and events.copies[e - 1] > d:
            events.copies[e] = events.copies[e - 1]
            events.gain[e] = events.gain[e - 1]
            e -= 1
        events.copies[e], events.gain[e] = d, kept.roles[j]
        n_gains += 1
    events.harm[:n_gains] = 0
    return n_gains


@compiled
def add_harm(events: Events, n_gains: int, d: int, weight: int) -> bool:
    """Add a harmful flip at d copies to the first gain that needs as many; return False if none does."""
    if d == 0 or d > events.copies[n_gains - 1]:
        return False
    e = 0
    while events.copies[e] < d:
        e += 1
    events.harm[e] += weight
    return True


@compiled
def best_copies(events: Events, n_gains: int, penalty: bool) -> tuple[int, int]:
    """Return ``(gain, d)`` for the best number of copies (ties: fewer); gain 0 if none reduces the error.

    Only thresholds of gains are tried, because Δε/d can only get worse between them.
    """
    best, best_d, total = 0, 1, 0
    for j in range(n_gains):
        total += events.gain[j] - events.harm[j]
        if j + 1 < n_gains and events.copies[j + 1] == events.copies[j]:
            continue
        d = events.copies[j]
        if total * best_d > best * d if penalty else total > best:
            best, best_d = total, d
    return best, best_d


@compiled
def surpasses(gain: int, d: int, p: int, best: Value, penalty: bool) -> bool:
    """Return whether candidate p with (gain, d) comes before the best so far (ties: lowest index)."""
    best_gain, best_d, best_p = best
    if gain <= 0 or best_p < 0:
        return gain > 0
    left = gain * best_d if penalty else gain
    right = best_gain * d if penalty else best_gain
    return left > right or (left == right and p < best_p)


@compiled
def value_of(gain: int, d: int, penalty: bool) -> float:
    """Return the value that candidates are ordered by: the gain per copy, or the gain."""
    return gain / d if penalty else float(gain)


@compiled
def copies_to_flip(s: Scores, i: int, k: int, c: int, limit: int) -> int:
    """Return the least number of copies with cosine c that flip row i; 0 if none does."""
    gap, scale, offset, tie = flip_terms(s, i, k)
    return fewest_copies(gap, scale * c - offset, tie, limit)


@compiled
def add_known_harm(v: Visit, p: int, n_gains: int) -> None:
    """Add the harm of candidate p to rows with a cached product."""
    if n_gains == 0:
        return
    events = v.events
    limit = events.copies[n_gains - 1]
    for j in range(v.kept.roles.shape[0]):
        role = v.kept.roles[j]
        if role < 0:
            add_harm(events, n_gains, copies_in_slot(v.kept, p, j, limit), -role)
    for m in range(MEMORY):
        i = v.harmed[p, m]
        if i >= 0 and v.s.correct[i] > 0 and not v.is_kept[i]:
            d = copies_to_flip(v.s, i, v.k, v.cosines[p, m], limit)
            add_harm(events, n_gains, d, v.s.correct[i])


@compiled
def harms_row(v: Visit, p: int, i: int, c: int, n_gains: int) -> bool:
    """Add the harm of candidate p with cosine c to row i, and remember it; return whether there is any."""
    d = copies_to_flip(v.s, i, v.k, c, v.events.copies[n_gains - 1])
    if not add_harm(v.events, n_gains, d, v.s.correct[i]):
        return False
    for m in range(MEMORY - 1, 0, -1):  # most recent first
        v.harmed[p, m], v.cosines[p, m] = v.harmed[p, m - 1], v.cosines[p, m - 1]
    v.harmed[p, 0], v.cosines[p, 0] = i, c
    return True


@compiled
def flips(s: Scores, i: int, k: int, c: int) -> bool:
    """Return whether any number of copies of a prompt with cosine c can flip row i."""
    return bool(c < s.behind[i] if s.winner[i] == k else c > s.ahead[i])


@compiled
def contains(values: Cosines, i: int) -> bool:
    """Return whether i is one of the values."""
    for m in range(values.shape[0]):  # noqa: SIM110 (compiled code has no generators)
        if values[m] == i:
            return True
    return False


@compiled
def survives_risky_rows(
    v: Visit, p: int, evaluated: Cosines, n_gains: int, best: Value, next_value: float
) -> bool:
    """Return whether candidate p may still beat the best after evaluating the risky rows.

    Evaluation stops early once its value falls below the bound of the next candidate.
    """
    risky, t = v.risky, v.T[p]
    for j in range(risky.shape[0]):
        i = risky[j]
        if v.s.correct[i] == 0 or v.is_kept[i] or contains(evaluated, i):
            continue
        v.n_products[0] += 1
        c = dot(v.X[i], own_block(t, v.X, i))
        if not flips(v.s, i, v.k, c) or not harms_row(v, p, i, c, n_gains):
            continue
        # Move the row to the front, as it is likely to be harmed by the next candidate.
        risky[j], risky[j // 2] = risky[j // 2], i
        gain, d = best_copies(v.events, n_gains, v.penalty)
        if not surpasses(gain, d, p, best, v.penalty):
            return False
        if value_of(gain, d, v.penalty) < next_value:
            return True
    return True


@compiled
def promote_risky(v: Visit, i: int) -> None:
    """Replace the least risky row by row i, so that the next candidates evaluate it early."""
    last = v.risky.shape[0] - 1
    if last >= 0:
        v.is_risky[v.risky[last]] = False
        v.is_risky[i] = True
        v.risky[last] = v.risky[last // 2]
        v.risky[last // 2] = i


@compiled
def value_over_all_rows(
    v: Visit, p: int, c: Cosines, evaluated: Cosines, n_gains: int, best: Value
) -> tuple[int, int]:
    """Return the final ``(gain, d)`` of a candidate; fill ``c`` with its cosines with all rows.

    Unless they were guessed, cosines are computed block by block. Gain 0 as soon as the candidate is
    worse than the best.
    """
    for start in range(0, v.X.shape[0], BLOCK):
        stop = min(start + BLOCK, v.X.shape[0])
        if p != v.guess:
            some_cosines(v.X, v.T[p], start, stop, c)
            v.n_products[0] += stop - start
        for i in range(start, stop):
            if v.s.correct[i] == 0 or not flips(v.s, i, v.k, c[i]):
                continue
            if v.is_kept[i] or v.is_risky[i] or contains(evaluated, i):
                continue
            if not harms_row(v, p, i, c[i], n_gains):
                continue
            gain, d = best_copies(v.events, n_gains, v.penalty)
            if not surpasses(gain, d, p, best, v.penalty):
                promote_risky(v, i)
                return 0, 1
    return best_copies(v.events, n_gains, v.penalty)


@compiled
def search_class(v: Visit) -> Value:
    """Return the best (gain, d, p) of a class; p is -1 if nothing lowers the error."""
    bounds = np.empty(v.T.shape[0])
    bound_candidates(v.kept, v.limit, v.penalty, bounds)
    # The largest bound first; of equals, the lowest index.
    candidates = [(-bounds[p], p) for p in range(bounds.shape[0]) if bounds[p] > 0.0]
    heapify(candidates)
    best = (0, 1, -1)
    best_value = 0.0
    while len(candidates) > 0 and -candidates[0][0] * (1.0 + 1e-9) >= best_value:
        negative, p = heappop(candidates)
        bound, next_bound = -negative, -candidates[0][0] if len(candidates) > 0 else 0.0
        evaluated = v.harmed[p].copy()
        n_gains = collect_gains(v.kept, p, v.limit, v.events)
        add_known_harm(v, p, n_gains)
        gain, d = best_copies(v.events, n_gains, v.penalty)
        promising = surpasses(gain, d, p, best, v.penalty)
        if promising and value_of(gain, d, v.penalty) >= bound:
            promising = survives_risky_rows(v, p, evaluated, n_gains, best, next_bound)
            gain, d = best_copies(v.events, n_gains, v.penalty)
        if not promising:
            continue
        if value_of(gain, d, v.penalty) < bound:  # put it back with the tighter bound
            heappush(candidates, (-value_of(gain, d, v.penalty), p))
            continue
        if v.predicts:
            return gain, d, p
        c = v.guess_column if p == v.guess else v.columns[1]
        gain, d = value_over_all_rows(v, p, c, evaluated, n_gains, best)
        if surpasses(gain, d, p, best, v.penalty):
            best = (gain, d, p)
            best_value = value_of(gain, d, v.penalty)
            v.columns[0] = c
    return best


@compiled
def margins_to(s: Scores, k: int, out: NDArray[np.float64]) -> None:
    """Fill ``out`` with the approximate margin of each correctly classified row to a flip by class k."""
    for i in range(out.shape[0]):
        rival = s.behind[i] if s.winner[i] == k else s.ahead[i]
        out[i] = abs(rival - total(s, i, k) / s.sizes[k]) if s.correct[i] > 0 else 1e30
