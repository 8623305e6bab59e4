"""The compiled inner loops of the search. What decides is integer arithmetic on the grid.

Names follow the paper. ``total(s, i, k)`` is the sum of cosines of row i with all copies in bank k
and ``sizes[k]`` the number of copies, so the score s_ik is their quotient; ``winner`` and ``runner``
are ŷ and ŷ² (exact ties go to the lower class index, as argmax does). A prompt t enters only through
its cosines c = x·t.

For a class k each row has one *rival*: the winner, which k must overtake, or, where k itself wins,
the runner-up, which must overtake k. The prediction flips for every number of copies from one
threshold on.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import (
    Cosines,
    Integers,
    compiled,
    dot,
    own_block,
    some_cosines,
)
from promptboost.boosting.grid import GridRows
from promptboost.boosting.heap import make_heap, second_bound, sift_down

Flags = NDArray[np.bool_]
Value = tuple[int, int, int]
"""A candidate's worth: (gain in weight units, number of copies, index of the prompt or -1)."""

# Rows that killed a candidate are remembered with it for the next visit of its class.
MEMORY = 4
# Sums of many rows stand together: a step writes a column of them, a new ranking reads a row.
TILE = 64
# Rows a surviving candidate is multiplied with before it is asked again whether it still survives.
BLOCK = 256
LANES = 16
# Ranges of numbers of copies, each bounded on its own: from one of these to the next.
FEWEST = (1, 2, 3, 5, 9)


class Scores(NamedTuple):
    """The state of a collection of banks on n rows, and what is asked of each row most often."""

    sums: Integers  # (n / TILE, K, TILE)
    sizes: Integers  # (K,)
    winner: Integers
    runner: Integers
    ahead: Integers  # appending to k can flip a row that k does not win only if c > ahead[i]
    behind: Integers  # … and a row that k wins only if c < behind[i]
    rest: Integers  # no class but the two best scores more than this
    right: Integers  # the weight of a row if it is rightly classified, else 0
    y: Integers
    weights: Integers


class Kept(NamedTuple):
    """Rows whose products with the whole pool of the class are kept, in slots."""

    products: Cosines  # (P, at least number of slots)
    terms: Integers  # (slots, 4): see flip_terms
    roles: Integers  # weight of a row that pays, minus the weight of one that harms, or 0


class Memory(NamedTuple):
    """What is remembered of the candidates of a class, and which rows need no product."""

    killers: Cosines  # (P, MEMORY): rows, or -1
    cosines: Cosines  # (P, MEMORY)
    risky: Integers  # rows to look at first
    is_kept: Flags  # (n,)
    is_risky: Flags  # (n,)


class Guess(NamedTuple):
    """A prompt whose cosines with all rows are known already, or −1; or the question for one."""

    is_asked: bool
    prompt: int
    column: Cosines


class Events(NamedTuple):
    """Thresholds of the gains of one candidate in ascending order, and harm booked at each."""

    copies: Integers
    gain: Integers
    harm: Integers


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
    """Find ŷ and ŷ² of row i anew, and what the third best class scores."""
    first, second, third = 0, -1, -1
    for k in range(1, s.sizes.shape[0]):
        if beats(s, i, k, first):
            first, second, third = k, first, second
        elif second < 0 or beats(s, i, k, second):
            second, third = k, second
        elif third < 0 or beats(s, i, k, third):
            third = k
    s.winner[i], s.runner[i] = first, second
    s.rest[i] = score_ceiling(s, i, third) if third >= 0 else -(2**40)


@compiled
def note_row(s: Scores, i: int) -> None:
    """Bring what depends on the two best classes of row i up to date."""
    first, second = s.winner[i], s.runner[i]
    s.ahead[i] = total(s, i, first) // s.sizes[first]
    s.behind[i] = score_ceiling(s, i, second)
    s.right[i] = s.weights[i] if first == s.y[i] else 0


@compiled
def rank_all(s: Scores) -> None:
    """Find ŷ and ŷ² of every row."""
    for i in range(s.y.shape[0]):
        rank_row(s, i)
        note_row(s, i)


@compiled
def move_class(s: Scores, i: int, k: int) -> None:
    """Find ŷ and ŷ² of row i after the score of class k has changed and no other has."""
    above_rest = total(s, i, k) > s.rest[i] * s.sizes[k]
    first, second = s.winner[i], s.runner[i]
    if first == k:
        if not beats(s, i, k, second):
            if above_rest:
                s.winner[i], s.runner[i] = second, k
            else:
                rank_row(s, i)
    elif second == k:
        if beats(s, i, k, first):
            s.winner[i], s.runner[i] = k, first
        elif not above_rest:
            rank_row(s, i)
    elif beats(s, i, k, second):
        s.rest[i] = max(s.rest[i], s.behind[i])
        s.runner[i] = k
        if beats(s, i, k, first):
            s.winner[i], s.runner[i] = k, first
    elif above_rest:
        s.rest[i] = score_ceiling(s, i, k)
        return
    note_row(s, i)


@compiled
def add_copies(s: Scores, k: int, c: Cosines, d: int, start: int, stop: int) -> None:
    """Bring the scores of some rows up to date, to which d copies of the prompt with cosines c were added.

    They are in the size of bank k already. Only one column of scores changes.
    """
    size = s.sizes[k]
    for i in range(start, stop):
        new = total(s, i, k) + d * np.int64(c[i])
        s.sums[i // TILE, k, i % TILE] = new
        # Most rows are far away, and their best scores need not be fetched to see it.
        far = new < (s.behind[i] - 1) * size and new <= s.rest[i] * size
        if not far or s.winner[i] == k or s.runner[i] == k:
            move_class(s, i, k)


@compiled
def pays(s: Scores, i: int, k: int) -> bool:
    """Return whether a flip of row i by class k would make it right."""
    return bool(s.runner[i] == s.y[i] if s.winner[i] == k else s.y[i] == k)


@compiled
def find_gain_rows(s: Scores, k: int, rows: Integers) -> int:
    """List the rows whose flip would pay; return how many."""
    count = 0
    for i in range(s.y.shape[0]):
        if s.right[i] == 0 and s.weights[i] > 0 and pays(s, i, k):
            rows[count] = i
            count += 1
    return count


@compiled
def flip_terms(s: Scores, i: int, k: int) -> tuple[int, int, int, bool]:
    """Return (gap, scale, offset, tie) of row i: d copies flip it iff ``d·(scale·c − offset) > gap``.

    With ``tie``, drawing level is enough: the class that moves ahead has the lower index.
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
    """Return the fewest copies that flip a row, where each makes up ``step`` of ``gap``; 0 if never.

    This is ``floor(gap / step) + 1``, or ``ceil(gap / step)`` where a tie is enough.
    """
    if step <= 0 or gap > step * limit:
        return 0
    d = gap // step
    if not (tie and d > 0 and d * step == gap):
        d += 1
    return d if d <= limit else 0


@compiled
def fill_slots(s: Scores, slots: Integers, k: int, kept: Kept) -> None:
    """Compute flip terms and roles of the kept rows."""
    for j in range(slots.shape[0]):
        i = slots[j]
        gap, scale, offset, tie = flip_terms(s, i, k)
        kept.terms[j, 0], kept.terms[j, 1], kept.terms[j, 2] = gap, scale, offset
        kept.terms[j, 3] = 1 if tie else 0
        kept.roles[j] = s.weights[i] if pays(s, i, k) else -s.right[i]


@compiled
def copies_in_slot(kept: Kept, p: int, j: int, limit: int) -> int:
    """Return the fewest copies of candidate p that flip the row in slot j; 0 if never."""
    step = kept.terms[j, 1] * np.int64(kept.products[p, j]) - kept.terms[j, 2]
    return fewest_copies(kept.terms[j, 0], step, kept.terms[j, 3] == 1, limit)


@compiled
def fewest_needed(kept: Kept, j: int, copies: int) -> int:
    """Return the least cosine, or its complement, with which so many copies flip the row in slot j."""
    gap, scale, offset, tie = kept.terms[j]
    step = -(-gap // copies) if tie == 1 and gap > 0 else gap // copies + 1
    least = -(-(step + offset) // scale) if scale > 0 else ~((step + offset) // scale)
    return max(-(2**31), min(2**31 - 1, least))  # type: ignore[no-any-return]


@compiled
def fill_thresholds(kept: Kept, limit: int, thresholds: Cosines, weights: Cosines) -> float:
    """Fill what bound_candidates compares and adds up; return the unit of the weights.

    A row that pays counts from the most copies of a range on, one that is harmed from the fewest.
    Weights are rounded to 32 bits so that no sum of them is too low; equal ones stay equal.
    """
    slots = kept.roles.shape[0]
    largest, scale = 1, 2**20
    for j in range(slots):
        largest = max(largest, abs(kept.roles[j]))
    while scale * slots >= 2**31:
        scale //= 2
    for j in range(slots):
        # Rounded up, whether it pays or harms.
        weights[j] = -((-kept.roles[j] * scale) // largest)
        for r in range(len(FEWEST)):
            most = min(limit, FEWEST[r + 1] - 1) if r + 1 < len(FEWEST) else limit
            copies = most if kept.roles[j] > 0 else FEWEST[r]
            thresholds[r, j] = fewest_needed(kept, j, copies)
    return largest / scale


@compiled
def bound_candidates(kept: Kept, limit: int, penalty: bool, bounds: NDArray[np.float64]) -> None:
    """Bound ``−Δε/d`` (``−Δε`` without penalty) of every candidate from above, by the kept rows.

    In a range of numbers of copies a candidate gains at most what the most of them gain, less
    what the fewest harm, per copy of the fewest.
    """
    # Slots up to a whole number of SIMD lanes; what stands in the last ones has no weight.
    slots = min(-(-kept.roles.shape[0] // LANES) * LANES, kept.products.shape[1])
    thresholds = np.zeros((len(FEWEST), slots), np.int32)
    weights, turned = np.zeros(slots, np.int32), np.zeros(slots, np.int32)
    unit = fill_thresholds(kept, limit, thresholds, weights)
    for j in range(kept.roles.shape[0]):
        turned[j] = 0 if kept.terms[j, 1] > 0 else -1  # ~c grows as c falls
    one, two, three, five, nine = thresholds
    zero = np.int32(0)
    for p in range(bounds.shape[0]):
        cosines = kept.products[p]
        a = b = c = d = e = zero
        for j in range(slots):
            cosine, weight = cosines[j] ^ turned[j], weights[j]
            a = np.int32(a + (weight if cosine >= one[j] else zero))
            b = np.int32(b + (weight if cosine >= two[j] else zero))
            c = np.int32(c + (weight if cosine >= three[j] else zero))
            d = np.int32(d + (weight if cosine >= five[j] else zero))
            e = np.int32(e + (weight if cosine >= nine[j] else zero))
        if penalty:
            bounds[p] = max(a * unit, b * unit / 2, c * unit / 3, d * unit / 5, e * unit / 9)
        else:
            bounds[p] = max(a, b, c, d, e) * unit


@compiled
def collect_gains(kept: Kept, p: int, limit: int, events: Events) -> int:
    """List what candidate p can win, by number of copies; return how many rows."""
    n_gains = 0
    for j in range(kept.roles.shape[0]):
        d = copies_in_slot(kept, p, j, limit) if kept.roles[j] > 0 else 0
        if d == 0:
            continue
        at = n_gains
        while at > 0 and events.copies[at - 1] > d:
            events.copies[at] = events.copies[at - 1]
            events.gain[at] = events.gain[at - 1]
            at -= 1
        events.copies[at], events.gain[at] = d, kept.roles[j]
        n_gains += 1
    events.harm[:n_gains] = 0
    return n_gains


@compiled
def book_harm(events: Events, n_gains: int, d: int, weight: int) -> bool:
    """Book a harmful flip at the first gain that it spoils; return whether there is one."""
    if d == 0 or d > events.copies[n_gains - 1]:
        return False
    at = 0
    while events.copies[at] < d:
        at += 1
    events.harm[at] += weight
    return True


@compiled
def best_copies(events: Events, n_gains: int, penalty: bool) -> tuple[int, int]:
    """Return ``(gain, d)`` for the best number of copies (ties: fewer); gain 0 if none pays.

    Only thresholds of gains need be tried: between them Δε/d can only get worse.
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
def worth_of(gain: int, d: int, penalty: bool) -> float:
    """Return what candidates are ordered by: the gain per copy, or the gain."""
    return gain / d if penalty else float(gain)


@compiled
def copies_to_flip(s: Scores, i: int, k: int, c: int, limit: int) -> int:
    """Return the fewest copies of a prompt with cosine c that flip row i; 0 if never."""
    gap, scale, offset, tie = flip_terms(s, i, k)
    return fewest_copies(gap, scale * c - offset, tie, limit)


@compiled
def book_known_harm(
    s: Scores, kept: Kept, memory: Memory, p: int, k: int, n_gains: int, events: Events
) -> None:
    """Book the harm of candidate p to kept rows and remembered killers: no product is needed."""
    if n_gains == 0:
        return
    limit = events.copies[n_gains - 1]
    for j in range(kept.roles.shape[0]):
        if kept.roles[j] < 0:
            book_harm(events, n_gains, copies_in_slot(kept, p, j, limit), -kept.roles[j])
    for m in range(MEMORY):
        i = memory.killers[p, m]
        if i >= 0 and s.right[i] > 0 and not memory.is_kept[i]:
            d = copies_to_flip(s, i, k, memory.cosines[p, m], limit)
            book_harm(events, n_gains, d, s.right[i])


@compiled
def remember(memory: Memory, p: int, i: int, c: int) -> None:
    """Keep row i, most recent first, as one that harms candidate p."""
    for m in range(MEMORY - 1, 0, -1):
        memory.killers[p, m] = memory.killers[p, m - 1]
        memory.cosines[p, m] = memory.cosines[p, m - 1]
    memory.killers[p, 0] = i
    memory.cosines[p, 0] = c


@compiled
def flips(s: Scores, i: int, k: int, c: int) -> bool:
    """Return whether any number of copies of a prompt with cosine c can flip row i."""
    return bool(c < s.behind[i] if s.winner[i] == k else c > s.ahead[i])


@compiled
def harms_row(
    s: Scores, p: int, i: int, k: int, c: int, memory: Memory, n_gains: int, events: Events
) -> bool:
    """Book the harm that candidate p with cosine c does to row i; return whether there is any."""
    d = copies_to_flip(s, i, k, c, events.copies[n_gains - 1])
    if not book_harm(events, n_gains, d, s.right[i]):
        return False
    remember(memory, p, i, c)
    return True


@compiled
def contains(values: Cosines, i: int) -> bool:
    """Return whether i is one of the values."""
    for m in range(values.shape[0]):  # noqa: SIM110 (compiled code has no generators)
        if values[m] == i:
            return True
    return False


@compiled
def survives_risky_rows(
    s: Scores, X: GridRows, t: GridRows, p: int, k: int, memory: Memory, booked: Cosines,
    n_gains: int, events: Events, best: Value, next_worth: float, penalty: bool, looks: Integers,
) -> bool:  # fmt: skip
    """Return whether candidate p may still beat the best after the rows at greatest risk.

    Rows that are left are not looked at once it is worth less than the next candidate may be.
    """
    risky = memory.risky
    for j in range(risky.shape[0]):
        i = risky[j]
        if s.right[i] == 0 or memory.is_kept[i] or contains(booked, i):
            continue
        looks[0] += 1
        c = dot(X[i], own_block(t, X, i))
        if not flips(s, i, k, c) or not harms_row(s, p, i, k, c, memory, n_gains, events):
            continue
        # A row that harms moves up: the next candidate meets it sooner.
        risky[j], risky[j // 2] = risky[j // 2], i
        gain, d = best_copies(events, n_gains, penalty)
        if not surpasses(gain, d, p, best, penalty):
            return False
        if worth_of(gain, d, penalty) < next_worth:
            return True
    return True


@compiled
def call_risky(memory: Memory, i: int) -> None:
    """Let row i take the place of the least risky one, so that the next candidate meets it soon."""
    last = memory.risky.shape[0] - 1
    if last >= 0:
        memory.is_risky[memory.risky[last]] = False
        memory.is_risky[i] = True
        memory.risky[last] = memory.risky[last // 2]
        memory.risky[last // 2] = i


@compiled
def value_over_all_rows(
    s: Scores, X: GridRows, t: GridRows, p: int, k: int, c: Cosines, memory: Memory,
    is_filled: bool, booked: Cosines, n_gains: int, events: Events, best: Value, penalty: bool,
    looks: Integers,
) -> tuple[int, int]:  # fmt: skip
    """Return ``(gain, d)`` of a candidate that survived; fill ``c`` with its cosines with all rows.

    Rows are multiplied block by block, unless they are already; gain 0 as soon as the candidate is beaten.
    """
    for start in range(0, X.shape[0], BLOCK):
        stop = min(start + BLOCK, X.shape[0])
        if not is_filled:
            some_cosines(X, t, start, stop, c)
            looks[0] += stop - start
        for i in range(start, stop):
            if s.right[i] == 0 or not flips(s, i, k, c[i]):
                continue
            if memory.is_kept[i] or memory.is_risky[i] or contains(booked, i):
                continue
            if not harms_row(s, p, i, k, c[i], memory, n_gains, events):
                continue
            gain, d = best_copies(events, n_gains, penalty)
            if not surpasses(gain, d, p, best, penalty):
                call_risky(memory, i)
                return 0, 1
    return best_copies(events, n_gains, penalty)


@compiled
def search_class(
    s: Scores, X: GridRows, T: GridRows, k: int, kept: Kept, memory: Memory, limit: int,
    penalty: bool, events: Events, columns: Cosines, guess: Guess, looks: Integers,
) -> Value:  # fmt: skip
    """Return the best (gain, d, p) of class k; p is -1 if nothing lowers the error.

    On return ``columns[0]`` holds the cosines of the best prompt with all rows. ``looks`` counts
    products and candidates. Where a guess is asked for, it is the first that the rows at risk leave.
    """
    bounds = np.empty(T.shape[0])
    heap = np.empty(T.shape[0], np.int64)
    bound_candidates(kept, limit, penalty, bounds)
    size = make_heap(bounds, heap)
    best = (0, 1, -1)
    worth = 0.0
    while size > 0 and bounds[heap[0]] * (1.0 + 1e-9) >= worth:
        p = heap[0]
        looks[1] += 1
        booked = memory.killers[p].copy()
        n_gains = collect_gains(kept, p, limit, events)
        book_known_harm(s, kept, memory, p, k, n_gains, events)
        gain, d = best_copies(events, n_gains, penalty)
        promising = surpasses(gain, d, p, best, penalty)
        if promising and worth_of(gain, d, penalty) >= bounds[p]:
            promising = survives_risky_rows(
                s, X, T[p], p, k, memory, booked, n_gains, events, best,
                second_bound(heap, size, bounds), penalty, looks,
            )  # fmt: skip
            gain, d = best_copies(events, n_gains, penalty)
        if promising and worth_of(gain, d, penalty) < bounds[p]:
            # Its bound was too high: it waits for its turn again, before more is spent on it.
            bounds[p] = worth_of(gain, d, penalty)
            sift_down(heap, size, bounds, 0)
            continue
        size -= 1
        heap[0] = heap[size]
        sift_down(heap, size, bounds, 0)
        if not promising:
            continue
        if guess.is_asked:
            return gain, d, p
        is_filled = p == guess.prompt
        c = guess.column if is_filled else columns[1]
        gain, d = value_over_all_rows(
            s, X, T[p], p, k, c, memory, is_filled, booked, n_gains, events, best, penalty, looks
        )
        if surpasses(gain, d, p, best, penalty):
            best = (gain, d, p)
            worth = worth_of(gain, d, penalty)
            columns[0] = c
    return best


@compiled
def margins_to(s: Scores, k: int, out: NDArray[np.float64]) -> None:
    """Fill ``out`` with how far, about, each rightly classified row is from a flip by class k."""
    for i in range(out.shape[0]):
        rival = s.behind[i] if s.winner[i] == k else s.ahead[i]
        out[i] = abs(rival - total(s, i, k) / s.sizes[k]) if s.right[i] > 0 else 1e30
