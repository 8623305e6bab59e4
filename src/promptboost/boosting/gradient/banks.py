"""The banks of the gradient composer, and which of their prompts should gain or lose copies."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import column, compiled_any_order, in_threads
from promptboost.boosting.grid import COSINE_UNIT, ROW_UNIT, GridRows, from_grid
from promptboost.boosting.problem import GridPool

Floats = NDArray[np.float32]

#: Stands for the template among the prompts of a bank.
TEMPLATE = -1

# Prompts of a class that are looked at between two reads of the whole pool: those that came first.
CANDIDATES = 64
# The pool is read again when the candidates' own gap has shrunk to this share of the last full one.
REREAD = 0.3


@dataclass(frozen=True)
class Move:
    """Copies that should go from one prompt of a bank to another prompt of the pool."""

    source: int
    target: int


class _Class:
    """What one class has in its bank, and what else it is considering."""

    def __init__(self, prompts: GridRows, template: Floats) -> None:
        self.prompts = prompts
        self.bank = template[None]  # a row for each prompt that has copies, in the order of entry
        self.candidates = np.empty(0, dtype=np.int64)
        self.candidate_rows = np.empty((0, prompts.shape[1]), dtype=np.float32)

    def read(self, gradient: Floats) -> NDArray[np.float64]:
        """Multiply the whole pool with a gradient, and keep the prompts that come first."""
        length = float(np.linalg.norm(gradient))
        direction = np.rint(gradient * (ROW_UNIT / (length or 1.0))).astype(np.int16)
        products = np.empty(len(self.prompts), dtype=np.int32)
        column(self.prompts, direction, products)
        if len(products) > CANDIDATES:
            self.candidates = np.sort(np.argpartition(products, CANDIDATES)[:CANDIDATES])
        elif not len(self.candidates):
            self.candidates = np.arange(len(products))
        self.candidate_rows = from_grid(self.prompts[self.candidates])
        return np.asarray(products * (length / COSINE_UNIT))


@compiled_any_order
def slopes_of(rows: Floats, gradient: Floats) -> NDArray[np.float64]:
    """Return the product of each row with a gradient."""
    slopes = np.empty(len(rows))
    for p in range(len(rows)):
        total = np.float32(0.0)
        for j in range(rows.shape[1]):
            total += rows[p, j] * gradient[j]
        slopes[p] = total
    return slopes


class Banks:
    """One bank a class, of a fixed number of copies.

    `members` are prompt → copies for each class, the template being prompt −1; `means` the mean row of
    each bank, (K, D). `moves` is what :meth:`find_moves` chose last, and `directions` the target row minus
    the source row of each, (K, D). `pool_reads` counts how often the whole pool was looked at.
    """

    def __init__(self, pool: GridPool, template: int, copies: int, penalty: float) -> None:
        self.copies = copies
        self.means = from_grid(pool.templates[:, template])
        self.members: list[dict[int, int]] = [{TEMPLATE: copies} for _ in pool.prompts]
        self.moves: list[Move | None] = [None] * len(pool.prompts)
        self.directions = np.zeros_like(self.means)
        self.pool_reads = 0
        self._rate = penalty
        self._classes = [
            _Class(P, row) for P, row in zip(pool.prompts, self.means.copy(), strict=True)
        ]
        self._size = sum(P.size for P in pool.prompts)
        self._small = all(len(P) <= CANDIDATES for P in pool.prompts)
        self._full_gap = 0.0
        self._read_last = False

    def find_moves(self, gradient: Floats, *, whole_pool: bool = False) -> float:
        """Choose for every class which prompt should lose copies and which should gain them.

        `gradient` is the loss's, by the means. Unless `whole_pool`, it may look only at the prompts that
        came first when all were looked at. Returns the Frank-Wolfe gap; infinite where it did so.
        """
        if not whole_pool and self.pool_reads and not self._small:
            gap = self._choose(gradient, read=False)
            if gap > REREAD * self._full_gap:
                self._read_last = False
                return np.inf
        self._full_gap = self._choose(gradient, read=True)
        self.pool_reads += 1
        self._read_last = True
        return self._full_gap

    def widen(self) -> bool:
        """Have the whole pool looked at next time; return whether that can bring anything new."""
        self._full_gap = np.inf
        return not self._read_last

    def _choose(self, gradient: Floats, *, read: bool) -> float:
        gaps = np.zeros(len(self.members))

        def work(part: slice) -> None:
            for k in range(part.start, part.stop):
                gaps[k] = self._choose_for(k, gradient[k], read=read)

        in_threads(work, len(gaps), self._size if read else 0)
        return float(gaps.sum())

    def _choose_for(self, k: int, gradient: Floats, *, read: bool) -> float:
        one, bank = self._classes[k], self.members[k]
        prompts = np.fromiter(bank, dtype=np.int64)
        shares = np.fromiter(bank.values(), dtype=np.float64) / self.copies
        held = slopes_of(one.bank, gradient) + self._rate * shares
        if read:
            values, at = one.read(gradient), prompts
        else:
            values = slopes_of(one.candidate_rows, gradient)
            at = one.candidates.searchsorted(prompts).clip(max=len(values) - 1)
        names = None if read else one.candidates
        known = prompts != TEMPLATE if names is None else names[at] == prompts
        values[at[known]] = held[known]
        best, last = int(values.argmin()), int(held.argmax())
        target = best if names is None else int(names[best])
        source = int(prompts[last])
        self.moves[k] = None if target == source else Move(source, target)
        self.directions[k] = from_grid(one.prompts[target]) - one.bank[last]
        # Where the template beats all prompts there is nothing to gain, and nothing to take off the gap
        # of the other classes.
        return max(float(shares @ held - values[best]), 0.0)

    def penalty(self) -> float:
        """Return what unequal shares cost."""
        squares = sum(c * c for bank in self.members for c in bank.values())
        return self._rate / 2 * squares / self.copies**2

    def penalty_of(self, k: int) -> tuple[float, float]:
        """Return how the penalty changes with the share γ moved in a class: by γ and by γ²."""
        move, bank = self.moves[k], self.members[k]
        assert move is not None
        apart = (bank.get(move.target, 0) - bank[move.source]) / self.copies
        return self._rate * apart, self._rate

    def apply(self, k: int, copies: int) -> None:
        """Move copies in a class."""
        move, bank = self.moves[k], self.members[k]
        assert move is not None
        one, place = self._classes[k], list(bank).index(move.source)
        if move.target not in bank:
            one.bank = np.concatenate([one.bank, from_grid(one.prompts[move.target])[None]])
        bank[move.target] = bank.get(move.target, 0) + copies
        bank[move.source] -= copies
        if not bank[move.source]:
            del bank[move.source]
            one.bank = np.delete(one.bank, place, axis=0)
        self.means[k] += np.float32(copies / self.copies) * self.directions[k]

    def template_copies(self) -> tuple[int, ...]:
        """Return the copies of the template in each bank."""
        return tuple(bank.get(TEMPLATE, 0) for bank in self.members)

    def without_template(self) -> tuple[dict[int, int], ...]:
        """Return the other prompts of each bank, and their copies."""
        return tuple({j: c for j, c in bank.items() if j != TEMPLATE} for bank in self.members)
