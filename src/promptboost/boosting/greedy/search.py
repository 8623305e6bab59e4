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
5. Where the rows do not fit the cache of a processor, reading them for one prompt takes longer than
   multiplying. Then the prompts that the next classes are likely to choose are guessed beforehand, side by
   side, and multiplied with all rows at once.
"""

import threading
from collections.abc import Iterator, Sequence
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
# Rows of more bytes than this are read from memory each time, and for so many classes there are guesses.
CACHED_BYTES = 2**25
GUESSES = 16


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


class _Bench:
    """What one thread needs room for while it searches a class."""

    def __init__(self, n: int) -> None:
        self.gain_rows = np.empty(n, dtype=np.int64)
        self.marks = np.zeros((2, n), dtype=np.bool_)
        self.events = flips.Events(*np.empty((3, n), dtype=np.int64))
        self.columns = np.empty((2, n), dtype=np.int32)
        self.looks = np.zeros(2, dtype=np.int64)
        self.no_guess = flips.Guess(False, -1, self.columns[1])


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
        self._bench = _Bench(n)
        self._others = threading.local()  # benches of threads that guess
        self._guesses: dict[int, flips.Guess] = {}
        self._selected: tuple[int, int] | None = None
        self._effort, self._lock = Effort(), threading.Lock()
        self._fill_scores(first)
        flips.rank_all(self._scores)

    @property
    def error(self) -> int:
        """Weight of the rows that are misclassified now."""
        return int(self._scores.weights.sum() - self._scores.right.sum())

    @property
    def effort(self) -> Effort:
        """What the search has done so far."""
        self._count(self._bench)
        self._effort.kept_bytes = sum(
            4 * len(memory.rows) * len(memory.products) for memory in self._memory.values()
        )
        return self._effort

    def _count(self, bench: _Bench) -> None:
        with self._lock:
            self._effort.products += int(bench.looks[0])
            self._effort.candidates += int(bench.looks[1])
        bench.looks[:] = 0

    def select(self, k: int) -> Choice | None:
        """Return the (t, d) of class k that lowers the error most per copy, or None."""
        if self._X.nbytes > CACHED_BYTES and k not in self._guesses:
            self._guess(range(k, min(k + GUESSES, len(self._prompts))))
        guess = self._guesses.pop(k, self._bench.no_guess)
        gain, copies, prompt = self._search(k, self._bench, guess)
        self._selected = (k, prompt)
        return Choice(int(prompt), int(copies), int(gain)) if prompt >= 0 else None

    def _search(self, k: int, bench: _Bench, guess: flips.Guess) -> tuple[int, int, int]:
        limit = min(self._max_copies, MAX_BANK_SIZE - int(self._scores.sizes[k]))
        count = flips.find_gain_rows(self._scores, k, bench.gain_rows)
        if count == 0 or limit < 1:
            return 0, 1, -1
        self._effort.visits += not guess.is_asked
        memory = self._memory_of(k, bench.gain_rows[: int(count)], bench)
        is_kept, is_risky = bench.marks
        is_kept[memory.rows] = is_risky[memory.risky] = True
        kept = flips.Kept(
            memory.products,
            np.empty((len(memory.rows), 4), dtype=np.int64),
            np.empty(len(memory.rows), dtype=np.int64),
        )
        flips.fill_slots(self._scores, memory.rows, k, kept)
        found = flips.search_class(
            self._scores,
            self._X,
            self._prompts[k],
            k,
            kept,
            flips.Memory(memory.killers, memory.cosines, memory.risky, is_kept, is_risky),
            limit,
            self._penalty,
            bench.events,
            bench.columns,
            guess,
            bench.looks,
        )
        is_kept[memory.rows] = is_risky[memory.risky] = False
        return found

    def _guess(self, classes: range) -> None:
        """Guess what some classes will choose, and multiply it with all rows, which are read once.

        A guess is what a class would look at first if it came now. What it turns out to be changes no
        choice: only products that are known need not be made.
        """
        prompts = np.full(len(classes), -1)
        dim = self._X.shape[1]

        def look(part: slice) -> None:
            bench = self._bench_here()
            for at in range(part.start, part.stop):
                asked = bench.no_guess._replace(is_asked=True)
                prompts[at] = self._search(classes[at], bench, asked)[2]
            self._count(bench)

        in_threads(look, len(classes), self._X.size, chunk=2)
        known = np.flatnonzero(prompts >= 0)
        T = np.empty((len(known), self._prompts[classes[0]].shape[1]), dtype=np.int16)
        for at, number in enumerate(known):
            T[at] = self._prompts[classes[number]][prompts[number]]
        columns = np.empty((len(known), len(self._X)), dtype=np.int32)

        def multiply(part: slice) -> None:
            for start, stop, e in self._by_encoder(part):
                products(self._X[start:stop], T, columns[:, start:stop], e * dim)

        in_threads(multiply, len(self._X), columns.size * dim, chunk=4096)
        self._effort.products += columns.size
        self._guesses = dict.fromkeys(classes, self._bench.no_guess) | {
            classes[number]: flips.Guess(False, int(prompts[number]), columns[at])
            for at, number in enumerate(known)
        }

    def _bench_here(self) -> _Bench:
        """Return the bench of this thread for guesses."""
        if not hasattr(self._others, "bench"):
            self._others.bench = _Bench(len(self._X))
        return self._others.bench  # type: ignore[no-any-return]

    def _by_encoder(self, part: slice) -> Iterator[tuple[int, int, int]]:
        """Yield some rows, up to where those of the next encoder begin, and the number of the encoder."""
        start = part.start
        while start < part.stop:
            e = start // self._rows_of_one
            stop = min(part.stop, (e + 1) * self._rows_of_one)
            yield start, stop, e
            start = stop

    def append(self, k: int, prompt: int, copies: int) -> None:
        """Append copies of a prompt to bank k and update the scores."""
        c = self._bench.columns[0]
        if self._selected != (k, prompt):
            column(self._X, self._prompts[k][prompt], c)
            self._effort.products += len(c)
        self._selected = None
        self._scores.sizes[k] += copies

        def add(rows: slice) -> None:
            flips.add_copies(self._scores, k, c, copies, rows.start, rows.stop)

        in_threads(add, len(c), self._X.size, chunk=4096)

    def _fill_scores(self, first: GridRows) -> None:
        def fill(part: slice) -> None:
            number = -(-(part.stop - part.start) // flips.TILE)
            rows = np.zeros((number * flips.TILE, len(first)), np.int32)
            for start, stop, e in self._by_encoder(part):
                filled = block_of(first, e, self._X.shape[1])
                products(filled, self._X[start:stop], rows[start - part.start :])
            tiles = rows.reshape(number, flips.TILE, len(first)).transpose(0, 2, 1)
            self._scores.sums[part.start // flips.TILE :][:number] = tiles

        in_threads(fill, len(self._X), self._X.size * len(first), chunk=4096)

    def _memory_of(self, k: int, gain_rows: NDArray[np.int64], bench: _Bench) -> _ClassMemory:
        memory = self._memory.get(k)
        wanted = gain_rows
        if memory is None:
            first, others = np.split(self._rows_at_risk(k), [KEPT_RISKY_ROWS])
            memory = self._memory[k] = _ClassMemory(len(self._prompts[k]), others.copy())
            wanted = np.union1d(gain_rows, first)
        is_kept = bench.marks[0]
        is_kept[memory.rows] = True
        new = wanted[~is_kept[wanted]]
        is_kept[memory.rows] = False
        if len(new):
            self._keep(k, memory, new)
            bench.looks[0] += len(new) * len(self._prompts[k])
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

    def _multiply(self, X: GridRows, T: GridRows, out: NDArray[np.int32], first: int) -> None:
        in_threads(lambda part: products(X, T[part], out[part], first), len(T), X.size * len(T))
