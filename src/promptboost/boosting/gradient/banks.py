"""Banks of the gradient composer, and the choice of prompts that gain and lose copies."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import column, compiled, compiled_any_order, in_threads
from promptboost.boosting.grid import COSINE_UNIT, ROW_UNIT, GridPool, GridRows, from_grid

Floats = NDArray[np.float32]
Values = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Index of the template among the prompts of a bank.
TEMPLATE = -1

# Number of prompts per class that are compared between two reads of the whole pool.
CANDIDATES = 64
# The pool is read again when the gap of the candidates falls below this fraction of the last full gap.
REREAD = 0.3

_UNIT = np.float32(1 / ROW_UNIT)


class Held(NamedTuple):
    """The bank of each class, in slots, and the exchange chosen for it."""

    sizes: Integers  # (K,): slots in use
    prompts: Integers  # (K, slots): −1 for the template
    copies: Integers  # (K, slots)
    rows: Floats  # (K, slots, D)
    sources: Integers  # (K,): the slot that loses copies, or −1 for no exchange
    targets: Integers  # (K,): the prompt that gains them
    target_rows: Floats  # (K, D)
    directions: Floats  # (K, D): the target's row minus the source's
    means: Floats  # (K, D): the mean row of each bank


class Candidates(NamedTuple):
    """The prompts of each class that are compared between reads of the whole pool."""

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
    """Choose the source and the target of a class; return its gap and the index of the target.

    ``prompts`` are the possible targets, in ascending order, and ``slopes`` the derivatives of the loss
    by their shares. For prompts in the bank, the penalty is added here.
    """
    mean, highest, source = 0.0, -np.inf, 0
    for slot in range(held.sizes[k]):
        share = held.copies[k, slot] / copies
        slope = slope_of(held.rows[k, slot], gradient) + rate * share
        mean += share * slope
        if slope > highest:
            highest, source = slope, slot
        index = np.searchsorted(prompts, held.prompts[k, slot])
        if index < len(prompts) and prompts[index] == held.prompts[k, slot]:
            slopes[index] = slope
    best = int(np.argmin(slopes))
    held.targets[k] = prompts[best]
    held.sources[k] = -1 if prompts[best] == held.prompts[k, source] else source
    # Negative if the template beats all prompts; it must not reduce the gaps of other classes.
    return max(mean - slopes[best], 0.0), best


@compiled
def set_direction(held: Held, k: int, row: Floats) -> None:
    """Set the direction of the exchange, given the row of its target."""
    held.target_rows[k] = row
    if held.sources[k] < 0:
        held.directions[k] = 0.0
    else:
        held.directions[k] = row - held.rows[k, held.sources[k]]


@compiled
def choose_candidates(
    held: Held, candidates: Candidates, gradient: Floats, rate: float, copies: int
) -> Values:
    """Choose the exchange of every class among its candidates; return their gaps."""
    gaps = np.empty(len(gradient))
    for k in range(len(gradient)):
        size = candidates.sizes[k]
        slopes = np.empty(size)
        for p in range(size):
            slopes[p] = slope_of(candidates.rows[k, p], gradient[k])
        gap, best = choose_exchange(
            held, k, gradient[k], candidates.prompts[k, :size], slopes, rate, copies
        )
        set_direction(held, k, candidates.rows[k, best])
        gaps[k] = gap
    return gaps


@compiled
def as_floats(row: GridRows, out: Floats) -> None:
    """Fill ``out`` with a row on the grid."""
    for j in range(len(row)):
        out[j] = np.float32(row[j]) * _UNIT


@compiled
def set_candidates(prompts: GridRows, k: int, numbers: Integers, candidates: Candidates) -> None:
    """Set the candidates of a class."""
    candidates.sizes[k] = len(numbers)
    for index in range(len(numbers)):
        candidates.prompts[k, index] = numbers[index]
        as_floats(prompts[numbers[index]], candidates.rows[k, index])


@compiled
def least(values: Values, most: int) -> Integers:
    """Return the indices of the lowest values, in ascending order; the first of equal values win."""
    if len(values) <= most:
        return np.arange(len(values))
    bound = np.partition(values, most - 1)[most - 1]
    equal = most - np.sum(values < bound)
    indices, size = np.empty(most, np.int64), 0
    for number in range(len(values)):
        if values[number] == bound and equal > 0:
            equal -= 1
        elif not values[number] < bound:
            continue
        indices[size] = number
        size += 1
    return indices


@compiled
def rank_class(
    prompts: GridRows, gradient: Floats, row_length: float, most: int
) -> tuple[Integers, Values]:
    """Return the prompts of a class with the lowest slopes, and the slopes."""
    # Dividing by this length keeps products of the gradient with prompts within 32 bits.
    length = np.sqrt(np.sum(gradient.astype(np.float64) ** 2)) * row_length
    unit = ROW_UNIT / length if length > 0 else 1.0
    products = np.empty(len(prompts), np.int32)
    column(prompts, np.rint(gradient * unit).astype(np.int16), products)
    slopes = products * (length / COSINE_UNIT)
    numbers = least(slopes, most)
    return numbers, slopes[numbers]


@compiled
def choose_ranked(
    prompts: GridRows,
    k: int,
    numbers: Integers,
    slopes: Values,
    gradient: Floats,
    held: Held,
    candidates: Candidates,
    rate: float,
    copies: int,
) -> float:
    """Choose the exchange of a class from its ranked prompts and set its candidates; return its gap."""
    set_candidates(prompts, k, numbers[least(slopes, candidates.prompts.shape[1])], candidates)
    bank = held.prompts[k, : held.sizes[k]]
    bank = bank[bank != TEMPLATE]
    targets = np.unique(np.concatenate((numbers, bank)))
    target_slopes = np.full(len(targets), np.inf)  # choose_exchange fills in those of the bank
    target_slopes[np.searchsorted(targets, numbers)] = slopes
    gap, best = choose_exchange(held, k, gradient, targets, target_slopes, rate, copies)
    row = np.empty_like(gradient)
    as_floats(prompts[targets[best]], row)
    set_direction(held, k, row)
    return gap


@compiled
def move(held: Held, k: int, number: int, copies: int) -> None:
    """Move copies in a class from its source to its target."""
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
    """Return the coefficients of γ and γ² in the change of the penalty when a share γ is moved."""
    target_copies = 0
    for slot in range(held.sizes[k]):
        if held.prompts[k, slot] == held.targets[k]:
            target_copies = held.copies[k, slot]
    return rate * ((target_copies - held.copies[k, held.sources[k]]) / copies), rate


class Banks:
    """One bank per class, each with a fixed number of copies.

    If `few`, all prompts are candidates. `held` has the banks and the exchanges chosen last.
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
        self._pool, self._skipped = pool.candidates, pool.skipped or (0,) * K
        # Rows have a unit block of columns per encoder.
        self._row_length = float(np.sqrt(pool.encoders))
        self._size = sum(P.size for P in self._pool)
        most = min(max(len(P) for P in self._pool), CANDIDATES)
        self._candidates = Candidates(
            np.zeros(K, dtype=np.int64),
            np.zeros((K, most), dtype=np.int64),
            np.zeros((K, most, dim), dtype=np.float32),
        )
        self._few = few
        if few:
            for k, P in enumerate(self._pool):
                set_candidates(P, k, np.arange(len(P)), self._candidates)

    @property
    def members(self) -> list[dict[int, int]]:
        """Prompt → copies for each class; −1 is the template."""
        held, banks = self.held, []
        for k, size in enumerate(held.sizes):
            prompts = held.prompts[k, :size]
            prompts = np.where(prompts == TEMPLATE, TEMPLATE, prompts + self._skipped[k])
            banks.append(dict(zip(prompts.tolist(), held.copies[k, :size].tolist(), strict=True)))
        return banks

    def choose(self, gradient: Floats) -> Values:
        """Choose the exchange of every class among its candidates; return its part of the Frank-Wolfe gap.

        `gradient` is that of the loss by the bank means.
        """
        self._make_room()
        return choose_candidates(self.held, self._candidates, gradient, self.rate, self.copies)

    def read(self, gradient: Floats) -> Values:
        """Choose among all prompts, as :meth:`choose` does, and update the candidates."""
        if self._few:
            return self.choose(gradient)
        self._make_room()
        gaps = np.zeros(len(gradient))
        # More prompts than any bank has, so that the best prompt outside is among them.
        most = max(CANDIDATES, int(self.held.sizes.max()) + 1)

        def work(classes: slice) -> None:
            for k in range(classes.start, classes.stop):
                ranked = rank_class(self._pool[k], gradient[k], self._row_length, most)
                args = self._pool[k], k, *ranked, gradient[k], self.held, self._candidates
                gaps[k] = choose_ranked(*args, self.rate, self.copies)

        in_threads(work, len(gaps), self._size, chunk=-(-len(gaps) // 8))
        return gaps

    def _make_room(self) -> None:
        """Ensure that every bank has a free slot."""
        held = self.held
        slots = held.prompts.shape[1]
        if held.sizes.max() == slots:
            self.held = held._replace(
                prompts=np.concatenate([held.prompts, held.prompts], axis=1),
                copies=np.concatenate([held.copies, held.copies], axis=1),
                rows=np.concatenate([held.rows, held.rows], axis=1),
            )

    def squares(self) -> int:
        """Return the sum of squared copies, which the penalty depends on."""
        used = np.arange(self.held.copies.shape[1]) < self.held.sizes[:, None]
        return int((self.held.copies**2).sum(where=used))


def all_are_candidates(pool: GridPool) -> bool:
    """Return whether every class has so few prompts that all of them are candidates."""
    return max(len(P) for P in pool.candidates) <= CANDIDATES
