"""One weak classifier: a bank of prompts for every class, how it was composed, and its scores."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import fill_hits, in_threads, multiply
from promptboost.boosting.greedy.search import Effort
from promptboost.boosting.grid import COSINE_UNIT, GridPool, GridRows, block_of, from_grid

# Rows whose numbers stand in memory as floats at once.
_ROWS = 4096
# Templates that one thread looks at, so that they share the work of reading rows.
_TEMPLATES = 4


@dataclass(frozen=True)
class Step:
    """Copies of one prompt appended to the bank of one class, and the error after that."""

    class_index: int
    prompt: int
    copies: int
    error: float


@dataclass(frozen=True)
class GreedyTrace:
    """How the greedy composer went: what it appended, in order, in how many cycles over all classes.

    The last cycle changed nothing.
    """

    steps: tuple[Step, ...]
    cycles: int
    effort: Effort


@dataclass(frozen=True)
class GradientTrace:
    """How the gradient composer went: objective and Frank-Wolfe gap before each sweep, and at the end.

    The last gap is the certificate: no weighting of all prompts of the pool, whole copies or not, has an
    objective lower by more than that (the images weighed as at the end, see
    :class:`~promptboost.boosting.gradient.compose.GradientSettings`). `pool_reads` counts how often the
    whole pool was looked at.
    """

    objectives: tuple[float, ...]
    gaps: tuple[float, ...]
    pool_reads: int

    @property
    def sweeps(self) -> int:
        """Number of passes over all classes."""
        return len(self.objectives) - 1


@dataclass(frozen=True)
class Composition:
    """One weak classifier, and how it was composed.

    Attributes
    ----------
    template : int
        The template every bank began with.
    template_error : float
        Weighted error with the template alone.
    error : float
        Weighted error of the weak classifier on the rows it was composed on.
    template_copies : tuple of int
        For each class, the copies of the template in its bank; may be 0.
    banks : tuple of mapping of int to int
        For each class, prompt → number of copies, in order of entry, without the template.
    trace : GreedyTrace or GradientTrace
        How it came about.
    """

    template: int
    template_error: float
    error: float
    template_copies: tuple[int, ...]
    banks: tuple[Mapping[int, int], ...]
    trace: GreedyTrace | GradientTrace

    @property
    def composer(self) -> str:
        """Name of the composer."""
        return "greedy" if isinstance(self.trace, GreedyTrace) else "gradient"


def scores_of(weak: Composition, X: GridRows, pool: GridPool) -> NDArray[np.float64]:
    """Return the mean cosine with each bank, shape (n, K); sums are exact, the division rounds.

    The rows of several encoders are stacked: see :func:`~promptboost.boosting.grid.stacked`.
    """
    K, dim = len(pool.prompts), X.shape[1]
    sums = np.empty((K, pool.templates.shape[2]))
    sizes = np.empty(K)
    for k in range(K):
        copies = weak.banks[k]
        counts = np.array([weak.template_copies[k], *copies.values()], dtype=np.int64)
        rows = [pool.templates[k, weak.template][None], pool.prompts[k][list(copies)]]
        sums[k], sizes[k] = counts @ np.concatenate(rows), counts.sum()
    scores = np.empty((len(X), K))
    for number, part in enumerate(parts_of(len(X), pool.encoders)):
        class_rows = block_of(sums, number, dim)
        for start in range(part.start, part.stop, _ROWS):
            some = slice(start, min(start + _ROWS, part.stop))
            # Whole numbers, with no partial sum above 2**45: in double precision none is rounded.
            scores[some] = multiply(class_rows, X[some].astype(np.float64)).T
    return scores / (sizes * COSINE_UNIT)


def parts_of(count: int, encoders: int) -> list[slice]:
    """Return where the rows of each encoder are among those that are stacked."""
    each = count // encoders
    return [slice(e * each, (e + 1) * each) for e in range(encoders)]


def class_rows(weak: Composition, pool: GridPool) -> NDArray[np.float32]:
    """Return the mean row of each bank, shape (K, D)."""
    rows = np.empty((len(pool.prompts), pool.templates.shape[2]), dtype=np.float32)
    for k, copies in enumerate(weak.banks):
        bank = [pool.templates[k, weak.template][None], pool.prompts[k][list(copies)]]
        counts = np.array([weak.template_copies[k], *copies.values()], dtype=np.float32)
        rows[k] = counts @ from_grid(np.concatenate(bank)) / counts.sum()
    return rows


def log_losses(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each row's log loss: minus the logarithm of the probability of its label."""
    losses = np.empty(len(labels))
    for start in range(0, len(labels), _ROWS):
        some, own = logits[start : start + _ROWS], labels[start : start + _ROWS]
        highest = some.max(axis=1)
        total = highest + np.log(np.exp(some - highest[:, None]).sum(axis=1))
        losses[start : start + _ROWS] = total - some[np.arange(len(own)), own]
    return losses


def template_hits(X: GridRows, y: NDArray[np.int64], templates: GridRows) -> NDArray[np.bool_]:
    """Return which template alone classifies which row rightly, shape (n, number of templates).

    This does not depend on the weights, so rows that return in later rounds need it only once. The rows
    of several encoders are stacked.
    """
    number, dim = templates.shape[1], X.shape[1]
    parts = parts_of(len(X), templates.shape[2] // dim)
    hits = np.empty((number, len(X)), dtype=np.bool_)

    def fill(part: slice) -> None:
        filled = np.ascontiguousarray(templates[:, part].transpose(1, 0, 2))
        for e, rows in enumerate(parts):
            fill_hits(X[rows], block_of(filled, e, dim), y[rows], hits[part, rows])

    in_threads(fill, number, X.size * len(templates) * number, chunk=_TEMPLATES)
    return np.ascontiguousarray(hits.T)


def pick_template(
    hits: NDArray[np.bool_], grid_weights: NDArray[np.int64], rng: np.random.Generator
) -> int:
    """Pick the template of least weighted error; ties are broken at random."""
    errors = np.array([int(grid_weights[~column].sum()) for column in hits.T])
    return int(rng.choice(np.flatnonzero(errors == errors.min())))
