"""What the gradient composer minimizes, its gap, its sweeps and the optimum, as plain as possible.

Everything is float64 and knows nothing of copies that move, of candidates, or of sums kept up to date:
each question is answered from all logits anew. A bank is an array of shares, the template's first.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from promptboost.boosting import GridPool
from promptboost.boosting.gradient.compose import GradientSettings, compose_by_gradient

UNIT = 32767.0


@dataclass
class Task:
    """Rows on the grid, as the composer gets them, and what is asked of it."""

    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    pool: GridPool
    settings: GradientSettings

    def compose(self, **other):
        """Run the real composer; ``other`` replaces arguments of it or fields of the settings."""
        names = {"X", "y", "weights", "pool", "fresh", "hits"}
        given = {"X": self.X, "y": self.y, "weights": self.weights, "pool": self.pool}
        given |= {name: value for name, value in other.items() if name in names}
        asked = {name: value for name, value in other.items() if name not in names}
        settings = GradientSettings(**{**vars(self.settings), **asked})
        return compose_by_gradient(**given, settings=settings, rng=np.random.default_rng(0))


class Plain:
    """The problem once the template is known."""

    def __init__(self, task, template=0, **other):
        asked = {**vars(task.settings), **other}
        self.beta, self.caution = asked["logit_scale"], asked["caution"]
        self.copies, self.rate = asked["copies"], asked["spread"] / len(task.pool.prompts)
        self.X, self.y = task.X / UNIT, task.y
        self.v = np.asarray(task.weights, dtype=float) / np.sum(task.weights)
        self.rows = [
            np.concatenate([first[template][None], P]) / UNIT
            for first, P in zip(task.pool.templates, task.pool.prompts, strict=True)
        ]

    def start(self):
        return [np.eye(len(rows))[0] for rows in self.rows]

    def shares(self, weak):
        """The banks of a composition as shares."""
        found = [np.zeros(len(rows)) for rows in self.rows]
        for k, bank in enumerate(weak.banks):
            found[k][0] = weak.template_copies[k]
            for j, copies in bank.items():
                found[k][j + 1] = copies
        return [share / self.copies for share in found]

    def logits(self, shares):
        means = [share @ rows for share, rows in zip(shares, self.rows, strict=True)]
        return self.beta * self.X @ np.array(means).T

    def log_chances(self, shares):
        logits = self.logits(shares)
        top = logits.max(axis=1, keepdims=True)
        return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))

    def own(self, shares):
        return self.log_chances(shares)[np.arange(len(self.y)), self.y]

    def counted(self, shares):
        """Weights of the rows: v_i · p_i**caution, adding up to one."""
        weights = self.v * np.exp(self.caution * self.own(shares))
        return weights / weights.sum()

    def penalty(self, shares):
        return self.rate / 2 * sum((share**2).sum() for share in shares)

    def objective(self, shares, weights=None):
        weights = self.counted(shares) if weights is None else weights
        return -(weights @ self.own(shares)) + self.penalty(shares)

    def slopes(self, shares, weights=None):
        """Derivatives of the objective by every share, for fixed weights."""
        weights = self.counted(shares) if weights is None else weights
        missing = np.exp(self.log_chances(shares)) - np.eye(len(shares))[self.y]
        G = self.beta * (weights[:, None] * missing).T @ self.X
        return [
            rows @ g + self.rate * share
            for rows, g, share in zip(self.rows, G, shares, strict=True)
        ]

    def gap(self, shares, *, template=False, weights=None):
        """The Frank-Wolfe gap against all weightings of the prompts, and of the template if asked.

        Where no prompt is better than what a class has, the class adds nothing.
        """
        first = 0 if template else 1
        return sum(
            max(share @ slope - slope[first:].min(), 0.0)
            for share, slope in zip(shares, self.slopes(shares, weights), strict=True)
        )

    def sweep(self, shares):
        """One sweep: targets and sources first, then whole copies class by class, all numbers tried.

        ``self.doubt`` is how near the nearest choice was to another one, on any scale.
        """
        weights, slopes = self.counted(shares), self.slopes(shares)
        shares = [share.copy() for share in shares]
        self.doubt = np.inf
        for k, slope in enumerate(slopes):
            target = 1 + self.clearly(slope[1:])
            held = np.flatnonzero(shares[k] > 0)
            source = int(held[self.clearly(-slope[held])])
            if target == source:
                continue
            most = round(shares[k][source] * self.copies)
            tried = [self.moved(shares, k, source, target, d) for d in range(most + 1)]
            shares = tried[self.clearly([self.objective(banks, weights) for banks in tried])]
        return shares

    def clearly(self, values):
        """Index of the least value; notes how far the next one is."""
        if len(values) > 1:
            least, second = np.partition(values, 1)[:2]
            self.doubt = min(self.doubt, second - least)
        return int(np.argmin(values))

    def moved(self, shares, k, source, target, d):
        copies = np.rint(shares[k] * self.copies)
        copies[source] -= d
        copies[target] += d
        return [*shares[:k], copies / self.copies, *shares[k + 1 :]]

    def optimum(self, *, template=False, steps=4000, close=1e-5):
        """The lowest objective over real shares, by exponentiated gradient; and a bound of the rest.

        Only for caution 0, where the problem is convex. The step grows while it helps.
        """
        assert self.caution == 0
        first = 0 if template else 1
        shares = [np.r_[np.zeros(first), np.full(len(r) - first, 1.0)] for r in self.rows]
        shares = [share / share.sum() for share in shares]
        value, step = self.objective(shares), 1.0
        for _ in range(steps):
            slopes = self.slopes(shares)
            tried = []
            for share, slope in zip(shares, slopes, strict=True):
                raised = share * np.exp(-step * (slope - slope[first:].min()))
                tried.append(raised / raised.sum())
            after = self.objective(tried)
            if after <= value:
                shares, value, step = tried, after, step * 1.3
            else:
                step /= 2
            if self.gap(shares, template=template) < close * value:
                break
        return value, self.gap(shares, template=template)


class Move(NamedTuple):
    """Copies that should go from one prompt of a bank to another prompt of the pool."""

    source: int
    target: int


def moves_of(banks):
    """What banks chose last, class by class; None where nothing should move."""
    held = banks.held
    return [
        None if slot < 0 else Move(int(held.prompts[k, slot]), int(held.targets[k]))
        for k, slot in enumerate(held.sources)
    ]


def unit_grid(rows):
    rows = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.rint(rows * UNIT).astype(np.int16)


def make_task(seed, *, K=3, n=18, P=6, D=5, templates=1, noise=0.7, weights="uniform", **settings):
    """Images and prompts around one point a class; ``noise`` decides how hard it is."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((K, D))
    y = np.arange(n) % K
    v = {
        "uniform": np.ones(n),
        "uneven": rng.random(n) + 0.05,
        "zeros": np.where(np.arange(n) % 5 == 4, 0.0, rng.random(n) + 0.05),
    }[weights]
    pool = GridPool(
        unit_grid(centers[:, None] + noise * rng.standard_normal((K, templates, D))),
        tuple(unit_grid(c + 1.5 * noise * rng.standard_normal((P, D))) for c in centers),
    )
    X = unit_grid(centers[y] + noise * rng.standard_normal((n, D)))
    asked = {"logit_scale": 8.0, "copies": 16, "spread": 0.5, "caution": 0.0, "tolerance": 0.0}
    return Task(X, y, v, pool, GradientSettings(**{**asked, **settings}))
