"""Best-first search for the prompt, and its number of copies, that reduces the error most.

A plain search multiplies every row with every prompt. This one returns the same (t, d) with few products:

1. Only two kinds of rows can be gained by class k: misclassified rows of class k, and rows wrongly
   classified as k whose runner-up is correct. Without any, the class is skipped. Their products with the
   pool of the class, and those of rows with the smallest margins, are computed once per round and kept.
2. These products bound the gain of each candidate. Candidates are evaluated in the order of that bound,
   until it falls below the best value so far.
3. A candidate is dropped as soon as rows that it harms make it worse than the best. Rows that it harmed
   on an earlier visit come first, then those with the smallest margins, then all others.
4. A step changes one column of scores, so winners and runners-up are updated incrementally.
5. If the rows do not fit the processor's cache, reading them takes longer than multiplying. Then the
   choices of the next classes are predicted in parallel, and multiplied with all rows at once.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import column, in_threads, products
from promptboost.boosting.greedy import flips
from promptboost.boosting.grid import MAX_BANK_SIZE, GridRows, block_of

# Rows of small margin whose products with the pool of a class are kept from the first visit on.
KEPT_RISKY_ROWS = 12
# Further rows of small margin that are evaluated before all others.
RISKY_ROWS = 512
# If the rows have more bytes than fit the cache, the choices of this many classes are predicted.
CACHED_BYTES = 2**25
GUESSES = 16

# A predicted prompt, and its cosines with all rows.
_Guess = tuple[int, NDArray[np.int32]]


@dataclass(frozen=True)
class Choice:
    """Append ``copies`` of prompt ``prompt``; the error falls by ``gain`` weight units."""

    prompt: int
    copies: int
    gain: int


class _ClassCache:
    """Products and risky rows of a class, kept between the visits of a round."""

    def __init__(self, prompts: int, at_risk: NDArray[np.int64]) -> None:
        self.rows = np.empty(0, dtype=np.int64)
        self.products = np.empty((prompts, 0), dtype=np.int32)
        self.harmed = np.full((prompts, flips.MEMORY), -1, dtype=np.int32)
        self.cosines = np.zeros((prompts, flips.MEMORY), dtype=np.int32)
        self.risky = at_risk

    def reserve(self, more: int) -> None:
        """Make room for ``more`` columns of products."""
        needed = len(self.rows) + more
        if needed > self.products.shape[1]:
            width = -(-(needed + needed // 8) // flips.LANES) * flips.LANES
            wider = np.empty((len(self.products), width), dtype=np.int32)
            wider[:, : len(self.rows)] = self.products[:, : len(self.rows)]
            self.products = wider


class _Workspace(threading.local):
    """Buffers, different ones in each thread."""

    def __init__(self, n: int) -> None:
        self.gain_rows = np.empty(n, dtype=np.int64)
        self.marks = np.zeros((2, n), dtype=np.bool_)
        self.events = flips.Events(*np.empty((3, n), dtype=np.int64))
        self.columns = np.empty((2, n), dtype=np.int32)
        self.n_products = np.zeros(1, dtype=np.int64)


class PromptSearch:
    """Scores of a set of banks, and the search for the next prompt.

    `first`, (K, D), are the prompts that the banks start with. For the other parameters see
    :func:`~promptboost.boosting.greedy.insertion.compose_greedily`.

    `products` counts the products computed.
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
        self._encoder_rows = n // (first.shape[1] // X.shape[1])  # rows per encoder
        self._max_copies = MAX_BANK_SIZE if max_copies is None else max_copies
        self._penalty = penalty
        sums = np.empty((-(-n // flips.TILE), K, flips.TILE), dtype=np.int64)
        sizes = np.ones(K, dtype=np.int64)
        ranks = np.zeros((6, n), dtype=np.int64)  # filled by rank_all
        labels = (np.ascontiguousarray(values, dtype=np.int64) for values in (y, weights))
        self._scores = flips.Scores._make([sums, sizes, *ranks, *labels])
        self._caches: dict[int, _ClassCache] = {}
        self._workspace = _Workspace(n)
        self._guesses: dict[int, _Guess | None] = {}
        self._selected: tuple[int, int] | None = None
        self.products, self._lock = 0, threading.Lock()
        self._fill_scores(first)
        flips.rank_all(self._scores)

    @property
    def error(self) -> int:
        """Weight of the misclassified rows."""
        return int(self._scores.weights.sum() - self._scores.correct.sum())

    def select(self, k: int) -> Choice | None:
        """Return the (t, d) of class k that reduces the error most per copy, or None."""
        if self._X.nbytes > CACHED_BYTES and k not in self._guesses:
            self._guess(range(k, min(k + GUESSES, len(self._prompts))))
        gain, copies, prompt = self._search(k, self._guesses.pop(k, None))
        self._selected = (k, prompt)
        return Choice(int(prompt), int(copies), int(gain)) if prompt >= 0 else None

    def _search(
        self, k: int, guess: _Guess | None = None, *, predicts: bool = False
    ) -> tuple[int, int, int]:
        workspace = self._workspace
        limit = min(self._max_copies, MAX_BANK_SIZE - int(self._scores.sizes[k]))
        count = flips.find_gain_rows(self._scores, k, workspace.gain_rows)
        if count == 0 or limit < 1:
            return 0, 1, -1
        cache = self._update_cache(k, workspace.gain_rows[: int(count)])
        is_kept, is_risky = workspace.marks
        is_kept[cache.rows] = is_risky[cache.risky] = True
        kept = flips.Kept(
            cache.products,
            np.empty((len(cache.rows), 4), dtype=np.int64),
            np.empty(len(cache.rows), dtype=np.int64),
        )
        flips.fill_slots(self._scores, cache.rows, k, kept)
        visit = flips.Visit(
            self._scores,
            self._X,
            self._prompts[k],
            k,
            kept,
            cache.harmed,
            cache.cosines,
            cache.risky,
            is_kept,
            is_risky,
            limit,
            self._penalty,
            workspace.events,
            workspace.n_products,
            workspace.columns,
            predicts,
            *(guess or (-1, workspace.columns[1])),
        )
        best = flips.search_class(visit)
        is_kept[cache.rows] = is_risky[cache.risky] = False
        with self._lock:
            self.products += int(workspace.n_products[0])
        workspace.n_products[0] = 0
        return best

    def _guess(self, classes: range) -> None:
        """Predict the choices of some classes and compute their products with all rows in one pass.

        The prediction is the first candidate that survives the risky rows. It only saves products; a
        wrong one does not change the choice.
        """
        prompts = np.full(len(classes), -1)
        dim = self._X.shape[1]

        def predict(numbers: slice) -> None:
            for number in range(numbers.start, numbers.stop):
                prompts[number] = self._search(classes[number], predicts=True)[2]

        in_threads(predict, len(classes), self._X.size, chunk=2)
        predicted = np.flatnonzero(prompts >= 0)
        T = np.empty((len(predicted), self._prompts[classes[0]].shape[1]), dtype=np.int16)
        for row, number in enumerate(predicted):
            T[row] = self._prompts[classes[number]][prompts[number]]
        columns = np.empty((len(predicted), len(self._X)), dtype=np.int32)

        def multiply(rows: slice) -> None:
            for start, stop, e in self._by_encoder(rows):
                products(self._X[start:stop], T, columns[:, start:stop], e * dim)

        in_threads(multiply, len(self._X), columns.size * dim, chunk=4096)
        self.products += columns.size
        self._guesses = dict.fromkeys(classes, None) | {
            classes[number]: (int(prompts[number]), columns[row])
            for row, number in enumerate(predicted)
        }

    def _by_encoder(self, rows: slice) -> Iterator[tuple[int, int, int]]:
        """Split a range of rows by encoder; yield start, stop and the index of the encoder."""
        start = rows.start
        while start < rows.stop:
            e = start // self._encoder_rows
            stop = min(rows.stop, (e + 1) * self._encoder_rows)
            yield start, stop, e
            start = stop

    def append(self, k: int, prompt: int, copies: int) -> None:
        """Append copies of a prompt to bank k and update the scores."""
        c = self._workspace.columns[0]
        if self._selected != (k, prompt):
            column(self._X, self._prompts[k][prompt], c)
            self.products += len(c)
        self._selected = None
        self._scores.sizes[k] += copies

        def add(rows: slice) -> None:
            flips.add_copies(self._scores, k, c, copies, rows.start, rows.stop)

        in_threads(add, len(c), self._X.size, chunk=4096)

    def _fill_scores(self, first: GridRows) -> None:
        def fill(rows: slice) -> None:
            number = -(-(rows.stop - rows.start) // flips.TILE)
            sums = np.zeros((number * flips.TILE, len(first)), np.int32)
            for start, stop, e in self._by_encoder(rows):
                prompts = block_of(first, e, self._X.shape[1])
                products(prompts, self._X[start:stop], sums[start - rows.start :])
            tiles = sums.reshape(number, flips.TILE, len(first)).transpose(0, 2, 1)
            self._scores.sums[rows.start // flips.TILE :][:number] = tiles

        in_threads(fill, len(self._X), self._X.size * len(first), chunk=4096)

    def _update_cache(self, k: int, gain_rows: NDArray[np.int64]) -> _ClassCache:
        """Return the cache of a class, with products for all rows that it can gain."""
        cache = self._caches.get(k)
        required = gain_rows
        if cache is None:
            riskiest, risky = np.split(self._rows_at_risk(k), [KEPT_RISKY_ROWS])
            cache = self._caches[k] = _ClassCache(len(self._prompts[k]), risky.copy())
            required = np.union1d(gain_rows, riskiest)
        is_kept = self._workspace.marks[0]
        is_kept[cache.rows] = True
        new = required[~is_kept[required]]
        is_kept[cache.rows] = False
        if len(new):
            self._add_products(k, cache, new)
            self._workspace.n_products[0] += len(new) * len(self._prompts[k])
        return cache

    def _rows_at_risk(self, k: int) -> NDArray[np.int64]:
        """Return the correctly classified rows of smallest margin, in ascending order of it."""
        margins = np.empty(len(self._X), dtype=np.float64)
        flips.margins_to(self._scores, k, margins)
        number = min(KEPT_RISKY_ROWS + RISKY_ROWS, len(margins))
        nearest = np.argpartition(margins, number - 1)[:number]
        return np.asarray(nearest[np.argsort(margins[nearest], kind="stable")])

    def _add_products(self, k: int, cache: _ClassCache, new: NDArray[np.int64]) -> None:
        """Multiply new rows with the pool of class k."""
        T = self._prompts[k]
        cache.reserve(len(new))
        out = cache.products[:, len(cache.rows) : len(cache.rows) + len(new)]
        encoders, dim = new // self._encoder_rows, self._X.shape[1]
        for e in np.unique(encoders):  # new rows are in ascending order
            columns = slice(*np.searchsorted(encoders, [e, e + 1]))
            self._multiply(self._X[new[columns]], T, out[:, columns], int(e) * dim)
        cache.rows = np.concatenate([cache.rows, new])

    def _multiply(self, X: GridRows, T: GridRows, out: NDArray[np.int32], first: int) -> None:
        in_threads(lambda rows: products(X, T[rows], out[rows], first), len(T), X.size * len(T))
