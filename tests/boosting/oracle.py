"""The search and the composition, straight from the paper and as plain as possible.

Two oracles. :func:`select_plain` follows the closed form: every image times every prompt in
float64, all flip thresholds, the running sum of ±w over them, argmin of Δε/d. On grid rows its
float64 numbers are integers below 2**53, so each sum and product is exact, and so is the floor of a
quotient of two of them. :func:`select_by_trying` knows no closed form at all: it appends copies one
by one and counts errors with fractions.
"""

from fractions import Fraction

import numpy as np

MAX_BANK_SIZE = 2**15


class PlainBanks:
    """Sums of cosines and sizes of all banks; predictions by argmax, lowest index on ties."""

    def __init__(self, X, y, w, pools, first):
        self.X = X.astype(np.float64)
        self.y, self.w = y, w.astype(np.float64)
        self.pools = pools
        self.sums = self.X @ first.astype(np.float64).T
        self.sizes = np.ones(len(pools))

    def ranks(self):
        """ŷ and ŷ² of every row by exact comparison of fractions, lowest index on ties."""
        n, K = self.sums.shape
        winner = np.zeros(n, dtype=int)
        for k in range(1, K):
            winner = np.where(self._ahead(k, winner), k, winner)
        runner = np.where(winner == 0, 1, 0)
        for k in range(K):
            other = (winner != k) & (runner != k)
            ahead = self._ahead(k, runner) | (self._level(k, runner) & (k < runner))
            runner = np.where(other & ahead, k, runner)
        return winner, runner

    def _of(self, classes):
        return self.sums[np.arange(len(self.sums)), classes], self.sizes[classes]

    def _ahead(self, k, classes):
        sums, sizes = self._of(classes)
        return self.sums[:, k] * sizes > sums * self.sizes[k]

    def _level(self, k, classes):
        sums, sizes = self._of(classes)
        return self.sums[:, k] * sizes == sums * self.sizes[k]

    def error(self):
        return self.w[self.ranks()[0] != self.y].sum()

    def append(self, k, t, d):
        self.sums[:, k] += d * (self.X @ self.pools[k][t].astype(np.float64))
        self.sizes[k] += d


def select_plain(banks, k, *, max_copies=None, penalty=True):
    """(t, d, gain) of class k by the closed form, or None."""
    winner, runner = banks.ranks()
    limit = min(max_copies or MAX_BANK_SIZE, MAX_BANK_SIZE - banks.sizes[k])
    rival = np.where(winner == k, runner, winner)
    rows = np.arange(len(winner))
    S_r, n_r = banks.sums[rows, rival], banks.sizes[rival]
    S_k, n_k = banks.sums[:, k], banks.sizes[k]
    up = winner != k
    sign = np.where(up, 1.0, -1.0)
    gap = sign * (S_r * n_k - S_k * n_r)
    # A tie goes to the lower index: then the one that moves ahead need only draw level.
    tie = np.where(up, k < rival, rival < k)
    helps = np.where(up, banks.y == k, banks.y == runner)
    harms = winner == banks.y
    value = banks.w * (helps * 1.0 - harms * 1.0)

    best = None
    for t, c in enumerate((banks.X @ banks.pools[k].T.astype(np.float64)).T):
        step = sign * (n_r * c - S_r)
        can = step > 0
        d = np.full(len(step), np.inf)
        quotient = gap[can] / step[can]
        d[can] = np.where(
            tie[can] & (quotient == np.floor(quotient)) & (quotient > 0),
            quotient,
            np.floor(quotient) + 1,
        )
        can = d <= limit
        if not can.any():
            continue
        order = np.argsort(d[can], kind="stable")
        thresholds, change = d[can][order], -np.cumsum(value[can][order])
        last = np.append(thresholds[1:] != thresholds[:-1], True)
        thresholds, change = thresholds[last], change[last]
        for d_t, delta in zip(thresholds, change, strict=True):
            if delta >= 0:
                continue
            key = Fraction(int(delta), int(d_t) if penalty else 1)
            if best is None or key < best[0]:
                best = (key, t, int(d_t), -int(delta))
    return None if best is None else best[1:]


def select_by_trying(banks, k, *, max_copies, penalty=True):
    """The same by brute force: append 1, 2, … copies and recount the error."""
    before = banks.error()
    best = None
    for t in range(len(banks.pools[k])):
        sums, size = banks.sums[:, k].copy(), banks.sizes[k]
        for d in range(1, max_copies + 1):
            banks.append(k, t, 1)
            delta = banks.error() - before
            key = Fraction(int(delta), d if penalty else 1)
            if delta < 0 and (best is None or key < best[0]):
                best = (key, t, d, -int(delta))
        banks.sums[:, k], banks.sizes[k] = sums, size
    return None if best is None else best[1:]


def compose_plain(banks, **options):
    """Cyclic insertion until a full cycle changes nothing: list of (k, t, d, error after)."""
    steps, K = [], len(banks.pools)
    while True:
        before = len(steps)
        for k in range(K):
            choice = select_plain(banks, k, **options)
            if choice is not None:
                t, d, _ = choice
                banks.append(k, t, d)
                steps.append((k, t, d, int(banks.error())))
        if len(steps) == before:
            return steps


def template_plain(X, y, w, templates):
    """Weighted error of each shared template; templates has shape (K, number, D)."""
    errors = []
    for j in range(templates.shape[1]):
        scores = X.astype(np.float64) @ templates[:, j].astype(np.float64).T
        errors.append(int(w[scores.argmax(axis=1) != y].sum()))
    return errors
