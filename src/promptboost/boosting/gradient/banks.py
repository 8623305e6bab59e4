"""The banks of the gradient composer, and which of their prompts should gain or lose copies."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import column, compiled, compiled_any_order, in_threads
from promptboost.boosting.grid import COSINE_UNIT, ROW_UNIT, GridPool, GridRows, from_grid
from promptboost.boosting.heap import sift_down

Floats = NDArray[np.float32]
Values = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Stands for the template among the prompts of a bank.
TEMPLATE = -1

# Prompts of a class that are looked at between two reads of the whole pool: those that came first.
CANDIDATES = 64
# The pool is read again when the candidates' own gap has shrunk to this share of the last full one.
REREAD = 0.3

_UNIT = np.float32(1 / ROW_UNIT)


class Held(NamedTuple):
    """What the bank of each class holds, in slots, and what may change there next."""

    sizes: Integers  # (K,): slots in use
    prompts: Integers  # (K, slots): which prompt, −1 for the template
    copies: Integers  # (K, slots)
    rows: Floats  # (K, slots, D)
    sources: Integers  # (K,): the slot that should lose copies, or −1 if nothing should move
    targets: Integers  # (K,): the prompt that should gain them
    target_rows: Floats  # (K, D)
    directions: Floats  # (K, D): the target's row minus the source's
    means: Floats  # (K, D): the mean row of each bank


class Candidates(NamedTuple):
    """The prompts of each class that are looked at most of the time."""

    sizes: Integers  # (K,)
    prompts: Integers  # (K, most): in ascending order
    rows: Floats  # (K, most, D)


@compiled_any_order
def slope_of(row: Floats, gradient: Floats) -> float:
    """Return the product of a row with a gradient."""
    total = np.float32(0.0)
    for j in range(len(row)):
        total += row[j] * gradient[j]
    return float(total)


@compiled
def choose_exchange(
    held: Held,
    k: int,
    gradient: Floats,
    prompts: Integers,
    slopes: Values,
    rate: float,
    copies: int,
) -> tuple[float, int]:
    """Choose the source and the target of a class; return its gap, and where the target is listed.

    ``prompts`` are those that may be the target, in ascending order, and ``slopes`` how the loss
    changes with their shares. To those the bank holds, what the penalty adds is added here.
    """
    mean, highest, source = 0.0, -np.inf, 0
    for slot in range(held.sizes[k]):
        share = held.copies[k, slot] / copies
        slope = slope_of(held.rows[k, slot], gradient) + rate * share
        mean += share * slope
        if slope > highest:
            highest, source = slope, slot
        at = np.searchsorted(prompts, held.prompts[k, slot])
        if at < len(prompts) and prompts[at] == held.prompts[k, slot]:
            slopes[at] = slope
    best = int(np.argmin(slopes))
    held.targets[k] = prompts[best]
    held.sources[k] = -1 if prompts[best] == held.prompts[k, source] else source
    # Where the template beats all prompts there is nothing to gain, and nothing to take off the gap
    # of the other classes.
    return max(mean - slopes[best], 0.0), best


@compiled
def set_direction(held: Held, k: int, row: Floats) -> None:
    """Note the row of the target that was chosen."""
    held.target_rows[k] = row
    if held.sources[k] < 0:
        held.directions[k] = 0.0
    else:
        held.directions[k] = row - held.rows[k, held.sources[k]]


@compiled
def choose_candidates(
    held: Held, found: Candidates, gradient: Floats, rate: float, copies: int
) -> Values:
    """Choose the exchange of every class among its candidates; return their gaps."""
    gaps = np.empty(len(gradient))
    for k in range(len(gradient)):
        size = found.sizes[k]
        slopes = np.empty(size)
        for p in range(size):
            slopes[p] = slope_of(found.rows[k, p], gradient[k])
        gap, best = choose_exchange(
            held, k, gradient[k], found.prompts[k, :size], slopes, rate, copies
        )
        set_direction(held, k, found.rows[k, best])
        gaps[k] = gap
    return gaps


@compiled
def as_floats(row: GridRows, out: Floats) -> None:
    """Fill ``out`` with a row on the grid."""
    for j in range(len(row)):
        out[j] = np.float32(row[j]) * _UNIT


@compiled
def keep(prompts: GridRows, k: int, numbers: Integers, found: Candidates) -> None:
    """Make some prompts the candidates of a class."""
    found.sizes[k] = len(numbers)
    for at in range(len(numbers)):
        found.prompts[k, at] = numbers[at]
        as_floats(prompts[numbers[at]], found.rows[k, at])


@compiled
def least(values: Values, most: int) -> Integers:
    """Return where the least values are, so many of them, in ascending order; of equal ones the first."""
    if len(values) <= most:
        return np.arange(len(values))
    heap = np.arange(most)  # the greatest of them is on top
    for start in range(most // 2 - 1, -1, -1):
        sift_down(heap, most, values, start)
    for number in range(most, len(values)):
        if values[number] < values[heap[0]]:
            heap[0] = number
            sift_down(heap, most, values, 0)
    bound = values[heap[0]]
    equal = np.sum(values[heap] == bound)
    found, at = np.empty(most, np.int64), 0
    for number in range(len(values)):
        if values[number] == bound and equal > 0:
            equal -= 1
        elif not values[number] < bound:
            continue
        found[at] = number
        at += 1
    return found


@compiled
def rank_class(
    prompts: GridRows, gradient: Floats, row_length: float, most: int
) -> tuple[Integers, Values]:
    """Return the prompts of a class that would lower the loss most, and by how much: their slopes.

    What comes back depends on nothing else, so any process that has the rows can do it.
    """
    # Divided by this, the gradient is so short that its product with no prompt leaves 32 bits.
    length = np.sqrt(np.sum(gradient.astype(np.float64) ** 2)) * row_length
    unit = ROW_UNIT / length if length > 0 else 1.0
    products = np.empty(len(prompts), np.int32)
    column(prompts, np.rint(gradient * unit).astype(np.int16), products)
    slopes = products * (length / COSINE_UNIT)
    numbers = least(slopes, most)
    return numbers, slopes[numbers]


@compiled
def take_ranked(
    prompts: GridRows,
    k: int,
    numbers: Integers,
    slopes: Values,
    gradient: Floats,
    held: Held,
    found: Candidates,
    rate: float,
    copies: int,
) -> float:
    """Choose the exchange of a class, and make what came first its candidates; return its gap.

    The prompt to gain copies is the best of all: it came first, or the bank holds it already.
    """
    keep(prompts, k, numbers[least(slopes, found.prompts.shape[1])], found)
    own = held.prompts[k, : held.sizes[k]]
    own = own[own != TEMPLATE]
    both = np.unique(np.concatenate((numbers, own)))
    theirs = np.full(len(both), np.inf)  # those of prompts the bank holds are found there
    theirs[np.searchsorted(both, numbers)] = slopes
    gap, best = choose_exchange(held, k, gradient, both, theirs, rate, copies)
    row = np.empty_like(gradient)
    as_floats(prompts[both[best]], row)
    set_direction(held, k, row)
    return gap


@compiled
def move(held: Held, k: int, number: int, copies: int) -> None:
    """Move a number of copies in a class, from its source to its target."""
    source, size = held.sources[k], held.sizes[k]
    slot = 0
    while slot < size and held.prompts[k, slot] != held.targets[k]:
        slot += 1
    if slot == size:
        held.sizes[k] = size = size + 1
        held.prompts[k, slot], held.copies[k, slot] = held.targets[k], 0
        held.rows[k, slot] = held.target_rows[k]
    held.copies[k, slot] += number
    held.copies[k, source] -= number
    if held.copies[k, source] == 0:
        for later in range(source, size - 1):
            held.prompts[k, later] = held.prompts[k, later + 1]
            held.copies[k, later] = held.copies[k, later + 1]
            held.rows[k, later] = held.rows[k, later + 1]
        held.sizes[k] = size - 1
    held.means[k] += np.float32(number / copies) * held.directions[k]


@compiled
def penalty_of(held: Held, k: int, rate: float, copies: int) -> tuple[float, float]:
    """Return how the penalty changes with the share γ moved in a class: by γ and by γ²."""
    there = 0
    for slot in range(held.sizes[k]):
        if held.prompts[k, slot] == held.targets[k]:
            there = held.copies[k, slot]
    return rate * ((there - held.copies[k, held.sources[k]]) / copies), rate


class Banks:
    """One bank a class, of a fixed number of copies.

    `held` is what they hold, with what :meth:`choose` or :meth:`read` chose last. The pool may be that of
    some classes of many; whether it is `few`, so that all prompts are candidates, is said for all of them.
    """

    def __init__(
        self, pool: GridPool, template: int, copies: int, penalty: float, few: bool
    ) -> None:
        K, dim, start = len(pool.prompts), pool.templates.shape[2], 4
        self.copies, self.rate = copies, penalty
        means = from_grid(pool.templates[:, template])
        self.held = Held(
            np.ones(K, dtype=np.int64),
            np.full((K, start), TEMPLATE, dtype=np.int64),
            np.full((K, start), copies, dtype=np.int64),
            np.repeat(means[:, None], start, axis=1),
            np.full(K, -1, dtype=np.int64),
            np.full(K, TEMPLATE, dtype=np.int64),
            means.copy(),
            np.zeros_like(means),
            means,
        )
        self._pool = pool.prompts
        # So long is a prompt's row, in which those of all encoders are side by side.
        self._row_length = float(np.sqrt(pool.encoders))
        self._size = sum(P.size for P in pool.prompts)
        self._few = few
        most = min(max(len(P) for P in pool.prompts), CANDIDATES)
        self._candidates = Candidates(
            np.zeros(K, dtype=np.int64),
            np.zeros((K, most), dtype=np.int64),
            np.zeros((K, most, dim), dtype=np.float32),
        )
        if self._few:
            for k, P in enumerate(pool.prompts):
                keep(P, k, np.arange(len(P)), self._candidates)

    @property
    def members(self) -> list[dict[int, int]]:
        """Prompt → copies for each class, the template being prompt −1."""
        held, slots = self.held, [slice(size) for size in self.held.sizes]
        return [
            dict(zip(held.prompts[k, s].tolist(), held.copies[k, s].tolist(), strict=True))
            for k, s in enumerate(slots)
        ]

    @property
    def means(self) -> Floats:
        """The mean row of each bank, (K, D)."""
        return self.held.means

    @property
    def directions(self) -> Floats:
        """The target's row minus the source's, (K, D)."""
        return self.held.directions

    def choose(self, gradient: Floats) -> Values:
        """Choose for every class which prompt should lose copies and which should gain them.

        `gradient` is the loss's, by the means. The candidates are looked at: the prompts that came first
        when all were. Returned are the classes' parts of the Frank-Wolfe gap, as far as these tell.
        """
        self._make_room()
        return choose_candidates(self.held, self._candidates, gradient, self.rate, self.copies)

    def read(self, gradient: Floats) -> Values:
        """Choose as :meth:`choose` does, among all prompts, and make the first ones candidates."""
        if self._few:
            return self.choose(gradient)
        self._make_room()
        gaps = np.zeros(len(gradient))
        # More than any bank holds, so that the best of the others is among them.
        most = max(CANDIDATES, int(self.held.sizes.max()) + 1)

        def work(part: slice) -> None:
            for k in range(part.start, part.stop):
                first = rank_class(self._pool[k], gradient[k], self._row_length, most)
                taken = self._pool[k], k, *first, gradient[k], self.held, self._candidates
                gaps[k] = take_ranked(*taken, self.rate, self.copies)

        in_threads(work, len(gaps), self._size, chunk=-(-len(gaps) // 8))
        return gaps

    def _make_room(self) -> None:
        """See that every bank has a free slot."""
        held = self.held
        slots = held.prompts.shape[1]
        if held.sizes.max() == slots:
            self.held = held._replace(
                prompts=np.concatenate([held.prompts, held.prompts], axis=1),
                copies=np.concatenate([held.copies, held.copies], axis=1),
                rows=np.concatenate([held.rows, held.rows], axis=1),
            )

    def squares(self) -> int:
        """Return the squared copies of all prompts, added up: what unequal shares cost depends on it."""
        used = np.arange(self.held.copies.shape[1]) < self.held.sizes[:, None]
        return int((self.held.copies**2).sum(where=used))


def are_few(pool: GridPool) -> bool:
    """Tell whether every class has so few prompts that all of them are looked at every time."""
    return max(len(P) for P in pool.prompts) <= CANDIDATES
