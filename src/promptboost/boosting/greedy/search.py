"""Best-first search for the prompt, and its number of copies, that lowers the error of one class most.

The plain search multiplies every row with every prompt. This one returns the same (t, d) and multiplies
only what can matter:

1. Only rows now misclassified as something else, and rows wrongly called k whose runner-up is right, can
   pay. Without one, the class is skipped. Their products with the pool of the class, and those of the
   rows at greatest risk, are computed once a round and kept.
2. They bound what each candidate can gain. Candidates are taken in the order of that bound, until it
   falls below the best value so far.
3. A candidate is dropped as soon as the rows it would harm leave it no chance: first those that killed
   it on an earlier visit, then those with the smallest margins, then all others.
4. One column of scores changes per step, so winners and runners-up are kept up to date, not recomputed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import column, in_threads, products
from promptboost.boosting.greedy import flips
from promptboost.boosting.grid import MAX_BANK_SIZE, GridRows, block_of

# Rows at risk whose products with the whole pool of a class are kept from the first visit on.
KEPT_RISKY_ROWS = 12
# Further rows at risk that a candidate meets before all others.
RISKY_ROWS = 512


@dataclass(frozen=True)
class Choice:
    """Append ``copies`` of prompt ``prompt``; the error falls by ``gain`` weight units."""

    prompt: int
    copies: int
    gain: int


@dataclass
class Effort:
    """What the search has done so far, for benchmarks."""

    products: int = 0
    candidates: int = 0
    visits: int = 0
    kept_bytes: int = 0


class _ClassMemory:
    """What is remembered of one class between the visits of a round."""

    def __init__(self, prompts: int, at_risk: NDArray[np.int64]) -> None:
        self.rows = np.empty(0, dtype=np.int64)
        self.products = np.empty((prompts, 0), dtype=np.int32)
        self.killers = np.full((prompts, flips.MEMORY), -1, dtype=np.int32)
        self.cosines = np.zeros((prompts, flips.MEMORY), dtype=np.int32)
        self.risky = at_risk

    def room_for(self, more: int) -> None:
        """Grow the table of products by at least ``more`` columns, seldom."""
        needed = len(self.rows) + more
        if needed > self.products.shape[1]:
            width = -(-(needed + needed // 8) // flips.LANES) * flips.LANES
            wider = np.empty((len(self.products), width), dtype=np.int32)
            wider[:, : len(self.rows)] = self.products[:, : len(self.rows)]
            self.products = wider


class PromptSearch:
    """The scores of one collection of banks, and the search for what to append next.

    `X` are views of the images, on the grid, with their classes `y` and weights; `prompts` the pool of each
    class, and `first`, (K, D), the prompt each bank starts with. Where these have the rows of several
    encoders side by side, those of X are stacked. For `max_copies` and `penalty` see
    :func:`~promptboost.boosting.greedy.insertion.compose_greedily`.
    """

    def __init__(
        self,
        X: GridRows,
        y: NDArray[np.int64],
        weights: NDArray[np.int64],
        prompts: Sequence[GridRows],
        first: GridRows,
        *,
        max_copies: int | None = None,
        penalty: bool = True,
    ) -> None:
        n, K = len(X), len(prompts)
        self._X, self._prompts = X, prompts
        self._rows_of_one = n // (first.shape[1] // X.shape[1])  # rows of each encoder
        self._max_copies = MAX_BANK_SIZE if max_copies is None else max_copies
        self._penalty = penalty
        sums = np.empty((-(-n // flips.TILE), K, flips.TILE), dtype=np.int64)
        sizes = np.ones(K, dtype=np.int64)
        ranks = np.zeros((6, n), dtype=np.int64)  # what rank_all fills, from winner to right
        known = (np.ascontiguousarray(values, dtype=np.int64) for values in (y, weights))
        self._scores = flips.Scores._make([sums, sizes, *ranks, *known])
        self._memory: dict[int, _ClassMemory] = {}
        self._gain_rows = np.empty(n, dtype=np.int64)
        self._marks = np.zeros((2, n), dtype=np.bool_)
        self._events = flips.Events(*np.empty((3, n), dtype=np.int64))
        self._columns = np.empty((2, n), dtype=np.int32)
        self._selected: tuple[int, int] | None = None
        self._looks = np.zeros(2, dtype=np.int64)
        self._effort = Effort()
        self._fill_scores(first)
        flips.rank_all(self._scores)

    @property
    def error(self) -> int:
        """Weight of the rows that are misclassified now."""
        return int(self._scores.weights.sum() - self._scores.right.sum())

    @property
    def effort(self) -> Effort:
        """What the search has done so far."""
        self._effort.products += int(self._looks[0])
        self._effort.candidates += int(self._looks[1])
        self._looks[:] = 0
        return self._effort

    def select(self, k: int) -> Choice | None:
        """Return the (t, d) of class k that lowers the error most per copy, or None."""
        limit = min(self._max_copies, MAX_BANK_SIZE - int(self._scores.sizes[k]))
        count = flips.find_gain_rows(self._scores, k, self._gain_rows)
        if count == 0 or limit < 1:
            return None
        self._effort.visits += 1
        memory = self._memory_of(k, self._gain_rows[: int(count)])
        is_kept, is_risky = self._marks
        is_kept[memory.rows] = is_risky[memory.risky] = True
        kept = flips.Kept(
            memory.products,
            np.empty((len(memory.rows), 4), dtype=np.int64),
            np.empty(len(memory.rows), dtype=np.int64),
        )
        flips.fill_slots(self._scores, memory.rows, k, kept)
        gain, copies, prompt = flips.search_class(
            self._scores,
            self._X,
            self._prompts[k],
            k,
            kept,
            flips.Memory(memory.killers, memory.cosines, memory.risky, is_kept, is_risky),
            limit,
            self._penalty,
            self._events,
            self._columns,
            self._looks,
        )
        is_kept[memory.rows] = is_risky[memory.risky] = False
        self._selected = (k, prompt)
        return Choice(int(prompt), int(copies), int(gain)) if prompt >= 0 else None

    def append(self, k: int, prompt: int, copies: int) -> None:
        """Append copies of a prompt to bank k and update the scores."""
        c = self._columns[0]
        if self._selected != (k, prompt):
            column(self._X, self._prompts[k][prompt], c)
            self._effort.products += len(c)
        self._selected = None
        flips.append(self._scores, k, c, copies)

    def _fill_scores(self, first: GridRows) -> None:
        def fill(part: slice) -> None:
            number = -(-(part.stop - part.start) // flips.TILE)
            rows = np.zeros((number * flips.TILE, len(first)), np.int32)
            start = part.start
            while start < part.stop:  # up to where the rows of the next encoder begin
                e = start // self._rows_of_one
                stop = min(part.stop, (e + 1) * self._rows_of_one)
                filled = block_of(first, e, self._X.shape[1])
                products(filled, self._X[start:stop], rows[start - part.start :])
                start = stop
            tiles = rows.reshape(number, flips.TILE, len(first)).transpose(0, 2, 1)
            self._scores.sums[part.start // flips.TILE :][:number] = tiles

        in_threads(fill, len(self._X), self._X.size * len(first), chunk=4096)

    def _memory_of(self, k: int, gain_rows: NDArray[np.int64]) -> _ClassMemory:
        memory = self._memory.get(k)
        wanted = gain_rows
        if memory is None:
            first, others = np.split(self._rows_at_risk(k), [KEPT_RISKY_ROWS])
            memory = self._memory[k] = _ClassMemory(len(self._prompts[k]), others.copy())
            wanted = np.union1d(gain_rows, first)
        is_kept = self._marks[0]
        is_kept[memory.rows] = True
        new = wanted[~is_kept[wanted]]
        is_kept[memory.rows] = False
        if len(new):
            self._keep(k, memory, new)
        return memory

    def _rows_at_risk(self, k: int) -> NDArray[np.int64]:
        """Return the rightly classified rows, nearest to a flip first."""
        margins = np.empty(len(self._X), dtype=np.float64)
        flips.margins_to(self._scores, k, margins)
        number = min(KEPT_RISKY_ROWS + RISKY_ROWS, len(margins))
        nearest = np.argpartition(margins, number - 1)[:number]
        return np.asarray(nearest[np.argsort(margins[nearest], kind="stable")])

    def _keep(self, k: int, memory: _ClassMemory, new: NDArray[np.int64]) -> None:
        """Multiply new rows with the pool of class k."""
        T = self._prompts[k]
        memory.room_for(len(new))
        out = memory.products[:, len(memory.rows) : len(memory.rows) + len(new)]
        encoders, dim = new // self._rows_of_one, self._X.shape[1]
        for e in np.unique(encoders):  # new rows are in ascending order
            at = slice(*np.searchsorted(encoders, [e, e + 1]))
            self._multiply(self._X[new[at]], T, out[:, at], int(e) * dim)
        memory.rows = np.concatenate([memory.rows, new])
        self._effort.products += out.size
        self._effort.kept_bytes += out.nbytes

    def _multiply(self, X: GridRows, T: GridRows, out: NDArray[np.int32], first: int) -> None:
        in_threads(lambda part: products(X, T[part], out[part], first), len(T), X.size * len(T))
