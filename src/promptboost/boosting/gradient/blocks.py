"""Class blocks: the classes of a composition, a run of them at a time, and who keeps them.

All that grows with the number of classes belongs to a class: its bank, its prompts, its logits. What they
have to know of each other is one number a row, the logarithm of the summed exponentials of their logits. So
a block of classes needs nobody else's state: it is told that number of all others, and tells its own. Where
it is, in this process or on another machine, changes nothing.

A block has the same number of classes everywhere, and what blocks have together is added up in their order:
so the last bit is the same too, whoever keeps the blocks, and in how many places.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import compiled_any_order, in_threads, multiply
from promptboost.boosting.composition import parts_of
from promptboost.boosting.gradient.banks import Banks, Held, move, penalty_of
from promptboost.boosting.gradient.linesearch import add_gradient, move_copies, sum_up
from promptboost.boosting.grid import GridPool, GridRows, block_of, from_grid

Floats = NDArray[np.float32]
Values = NDArray[np.float64]
Labels = NDArray[np.int64]
Given = ParamSpec("Given")
Answer = TypeVar("Answer")

#: Classes of a block. Another number would round sums in another way.
CLASSES = 64
# Rows that are gone through at once.
_ROWS = 256


class Asked(NamedTuple):
    """What is asked of all blocks of a composition."""

    template: int  # that every bank begins with
    copies: int  # of each bank
    rate: float  # what unequal shares cost, for one class
    few: bool  # whether all prompts are candidates
    logit_scales: tuple[float, ...]  # of each encoder


class Part(NamedTuple):
    """What the composer has to know of a block."""

    total: Values  # (n,): the logarithm of its classes' summed exponentials
    own: Floats  # the logits of the rows of its classes for their class, in the order of rows
    squares: int  # of the copies in its banks: see Banks.squares
    moved: int = 0  # in how many classes copies were moved


class BlocksLostError(Exception):
    """A keeper has lost blocks and what they held: the composition has to be begun anew."""


class ClassBlock:
    """Some classes of a composition: their banks, and their logits of all rows.

    Parameters
    ----------
    pool : GridPool
        Of its classes only.
    first : int
        The number of the first of them.
    y : array of int, shape (n,)
        The labels of the rows.
    asked : Asked
    earlier : array of float32, shape (K, D), optional
        Class rows of what is there already; see ``compose_by_gradient``.
    """

    def __init__(
        self, pool: GridPool, first: int, y: Labels, asked: Asked, earlier: Floats | None = None
    ) -> None:
        self.banks = Banks(pool, asked.template, asked.copies, asked.rate, asked.few)
        self._first, self._y, self._earlier = first, y, earlier
        self._own = np.flatnonzero((y >= first) & (y < first + len(pool.prompts)))
        self._scales = np.array(asked.logit_scales, dtype=np.float32)
        self._parts = parts_of(len(y), len(self._scales))
        self._total = self._counted = np.empty(0)
        self.logits = self.gradient = np.empty((0, 0), dtype=np.float32)
        self._changes: Floats | None = None

    def look(self, X: Floats) -> Part:
        """Look at rows, for the first time or at others of the same images."""
        self._X = X
        means = self.banks.means
        self.logits = self._products(means if self._earlier is None else means + self._earlier)
        return self._part()

    def weigh(self, totals: Values, counted: Values, whole_pool: bool) -> Values:
        """Choose the exchange of each class among its candidates or all prompts; return the gaps.

        `totals` are those of all classes, and `counted` what each row counts until it is weighed again.
        """
        self._counted = counted
        self._find_gradient(totals)
        return self.read() if whole_pool else self.banks.choose(self.gradient)

    def read(self) -> Values:
        """Choose among all prompts, by the gradient that is known; return the gaps."""
        return self.banks.read(self.gradient)

    def prepare(self) -> None:
        """Multiply the rows with what may change: most of the work, and none of another block's."""
        self._changes = self._products(self.banks.directions)

    def search(self, outside: Values) -> Part:
        """Move copies in one class after the other; `outside` is what all other blocks have of a row."""
        banks, changes = self.banks, self._changes
        if changes is None:
            changes = self._products(banks.directions)
        totals = np.logaddexp(outside, self._total)
        state = self.logits, totals, outside, self._counted, self._y
        moved = _search(*state, self._first, changes, banks.held, banks.rate, banks.copies)
        self._changes = None
        return self._part(moved)

    def best(self) -> tuple[Floats, Labels]:
        """Return the highest logit of each row, and the number of its class."""
        return self.logits.max(axis=0), self._first + self.logits.argmax(axis=0)

    def members(self) -> list[dict[int, int]]:
        """Return prompt → copies of each class, the template being prompt −1."""
        return self.banks.members

    def _part(self, moved: int | None = None) -> Part:
        if moved != 0:
            total = np.empty(len(self._y))
            in_threads(
                lambda rows: sum_up(self.logits, rows.start, rows.stop, total),
                len(total),
                self.logits.size,
                chunk=_ROWS,
            )
            self._total = total
        own = self.logits[self._y[self._own] - self._first, self._own]
        return Part(self._total, own, self.banks.squares(), moved or 0)

    def _products(self, class_rows: Floats) -> Floats:
        """Return the scaled products of some class rows, (K, E·D), with all rows: (K, n)."""
        dim = self._X.shape[1]
        products = [
            multiply(block_of(class_rows, e, dim) * scale, self._X[part])
            for e, (scale, part) in enumerate(zip(self._scales, self._parts, strict=True))
        ]
        return products[0] if len(products) == 1 else np.concatenate(products, axis=1)

    def _find_gradient(self, totals: Values) -> None:
        """Find the loss's gradient by the class rows, (K, E·D), a block of rows at a time."""
        K, dim = len(self.logits), self._X.shape[1]
        gradient = np.zeros((len(self._parts), K, dim), dtype=np.float32)
        state = self.logits, totals, self._counted, self._y, self._X, self._first

        def add(classes: slice) -> None:
            some = classes.start, classes.stop
            for into, part in zip(gradient, self._parts, strict=True):
                for start in range(part.start, part.stop, _ROWS):
                    rows = start, min(start + _ROWS, part.stop)
                    add_gradient(*state, some, rows, into)

        in_threads(add, K, self.logits.size)
        gradient *= self._scales[:, None, None]
        self.gradient = np.ascontiguousarray(gradient.transpose(1, 0, 2)).reshape(K, -1)


@compiled_any_order
def _search(
    logits: Floats,
    totals: Values,
    outside: Values,
    weights: Values,
    labels: Labels,
    first: int,
    changes: Floats,
    held: Held,
    rate: float,
    copies: int,
) -> int:
    """Move copies in the classes of a block, one after the other; return in how many."""
    moved = 0
    for k in range(len(changes)):
        source = held.sources[k]
        if source < 0:
            continue
        penalty = penalty_of(held, k, rate, copies)
        limit = held.copies[k, source]
        own = labels == first + k
        d = move_copies(
            logits, k, changes[k], totals, outside, weights, own, penalty, copies, limit
        )
        if d > 0:
            move(held, k, d, copies)
            moved += 1
    return moved


class Keeper(Protocol):
    """Keeps the blocks of a composition, and passes on what they are asked.

    `ahead` is how many blocks are prepared before they are searched: one in each process, so that one
    process holds the products of one block at a time.
    """

    @property
    def ahead(self) -> int:
        """How many blocks are prepared at once."""

    def begin(self, y: Labels, asked: Asked, earlier: Floats | None) -> None:
        """Make all blocks anew."""

    def look(self, X: GridRows) -> list[Part]:
        """Have every block look at rows."""

    def every(
        self,
        call: Callable[Concatenate[ClassBlock, Given], Answer],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> list[Answer]:
        """Ask every block; the answers are in the order of blocks."""

    def one(
        self,
        number: int,
        call: Callable[Concatenate[ClassBlock, Given], Answer],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> Callable[[], Answer]:
        """Ask one block, and return what returns its answer: other blocks can be asked meanwhile."""


class KeeperHere:
    """Keeps the blocks of a pool in this process."""

    ahead = 1

    def __init__(self, pool: GridPool) -> None:
        self._pool = pool
        self._blocks: list[ClassBlock] = []

    def begin(self, y: Labels, asked: Asked, earlier: Floats | None) -> None:
        """Make all blocks anew."""
        self._blocks = [
            ClassBlock(
                part_of(self._pool, some),
                some.start,
                y,
                asked,
                None if earlier is None else earlier[some],
            )
            for some in class_slices(len(self._pool.prompts))
        ]

    def look(self, X: GridRows) -> list[Part]:
        """Have every block look at rows."""
        return self.every(ClassBlock.look, from_grid(X))

    def every(
        self,
        call: Callable[Concatenate[ClassBlock, Given], Answer],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> list[Answer]:
        """Ask one block after the other."""
        return [call(block, *given, **named) for block in self._blocks]

    def one(
        self,
        number: int,
        call: Callable[Concatenate[ClassBlock, Given], Answer],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> Callable[[], Answer]:
        """Ask one block, at once."""
        answer = call(self._blocks[number], *given, **named)
        return lambda: answer


def class_slices(count: int) -> list[slice]:
    """Return which classes of so many are in each block."""
    return [slice(start, min(start + CLASSES, count)) for start in range(0, count, CLASSES)]


def part_of(pool: GridPool, some: slice) -> GridPool:
    """Return the pool of some classes."""
    return replace(pool, templates=pool.templates[some], prompts=pool.prompts[some])
