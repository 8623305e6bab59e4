"""Weak classifiers: a bank of prompts for every class, its trace, and its scores."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import in_threads, multiply, products
from promptboost.boosting.grid import COSINE_UNIT, GridPool, GridRows, block_of, from_grid

#: Prompts of a bank with at least this cosine are merged.
NEARLY_EQUAL = 0.95
# Rows converted to floats at once.
_ROWS = 4096
# Numbers of a matrix that are processed at once.
_NUMBERS = 2**17


@dataclass(frozen=True)
class Step:
    """Copies of a prompt appended to the bank of a class, and the resulting error."""

    class_index: int
    prompt: int
    copies: int
    error: float


@dataclass(frozen=True)
class GradientTrace:
    """Objective and Frank-Wolfe gap before each sweep of the gradient composer, and at the end.

    The last gap is a certificate: with the final image weights, no distribution over the prompts of the
    pool has an objective lower by more than that. `pool_reads` counts how often slopes were computed for
    the whole pool.
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
    """One weak classifier."""

    template: int  # index of the template that every bank started with
    template_error: float  # weighted error with the template alone
    error: float  # weighted error of the weak classifier on the rows it was composed on
    # for each class, the copies of the template in its bank; may be 0
    template_copies: tuple[int, ...]
    # for each class, prompt → number of copies, in order of entry, without the template
    banks: tuple[Mapping[int, int], ...]
    trace: (
        tuple[Step, ...] | GradientTrace
    )  # steps of the greedy composer, sweeps of the gradient one

    @property
    def composer(self) -> str:
        """Name of the composer."""
        return "gradient" if isinstance(self.trace, GradientTrace) else "greedy"

    def bank(self, k: int, pool: GridPool) -> tuple[NDArray[np.int64], GridRows]:
        """Return the copies and rows of the prompts in the bank of a class, the template first."""
        copies = self.banks[k]
        rows = pool.templates[k, self.template][None], pool.prompts[k][list(copies)]
        return np.array([self.template_copies[k], *copies.values()]), np.concatenate(rows)


def scores_of(weak: Composition, X: GridRows, pool: GridPool) -> NDArray[np.float64]:
    """Return the mean cosine with each bank, shape (n, K); sums are exact, the division rounds.

    The rows of several encoders are stacked: see :func:`~promptboost.boosting.grid.stacked`.
    """
    K, dim = len(pool.prompts), X.shape[1]
    sums = np.empty((K, pool.templates.shape[2]))
    sizes = np.empty(K)
    for k in range(K):
        copies, rows = weak.bank(k, pool)
        sums[k], sizes[k] = copies @ rows, copies.sum()
    scores = np.empty((len(X), K))
    for encoder, block in enumerate(encoder_slices(len(X), pool.encoders)):
        class_rows = block_of(sums, encoder, dim)
        for start in range(block.start, block.stop, _ROWS):
            chunk = slice(start, min(start + _ROWS, block.stop))
            # Integers below 2**45, so double precision is exact.
            scores[chunk] = multiply(class_rows, X[chunk].astype(np.float64)).T
    return scores / (sizes * COSINE_UNIT)


def encoder_slices(count: int, encoders: int) -> list[slice]:
    """Return the slice of each encoder in stacked rows."""
    size = count // encoders
    return [slice(e * size, (e + 1) * size) for e in range(encoders)]


def class_rows(weak: Composition, pool: GridPool) -> NDArray[np.float32]:
    """Return the mean row of each bank, shape (K, D)."""
    rows = np.empty((len(pool.prompts), pool.templates.shape[2]), dtype=np.float32)
    for k in range(len(rows)):
        copies, bank = weak.bank(k, pool)
        counts = copies.astype(np.float32)
        rows[k] = counts @ from_grid(bank) / counts.sum()
    return rows


def without_duplicates(weak: Composition, pool: GridPool) -> Composition:
    """Merge prompts with nearly equal embeddings; the one with more copies stays, of equals the first.

    Prompts are compared from the heaviest to the lightest, the template first, by the mean cosine over
    encoders.
    """
    template_copies, banks = [], []
    for k, bank in enumerate(weak.banks):
        copies, rows = weak.bank(k, pool)
        unit = from_grid(rows)
        cosines = unit @ unit.T / pool.encoders
        distinct: list[int] = []
        for i in np.argsort(-copies, kind="stable").tolist():
            equal = next((j for j in distinct if cosines[i, j] >= NEARLY_EQUAL), i)
            if equal == i:
                distinct.append(i)
            elif copies[i]:
                copies[equal] += copies[i]
                copies[i] = 0
        template_copies.append(int(copies[0]))
        banks.append({j: int(c) for j, c in zip(bank, copies[1:], strict=True) if c})
    return replace(weak, template_copies=tuple(template_copies), banks=tuple(banks))


def log_losses(
    logits: NDArray[np.floating], labels: NDArray[np.int64], scale: float = 1.0
) -> NDArray[np.float64]:
    """Return the log loss of each row of logits, multiplied by `scale`."""
    losses = np.empty(len(labels))
    size = rows_at_once(logits.shape[1])
    for start in range(0, len(labels), size):
        chunk = slice(start, start + size)
        block, true = logits[chunk] * scale, labels[chunk]
        highest = block.max(axis=1)
        right = block[np.arange(len(true)), true]
        block -= highest[:, None]
        losses[chunk] = highest + np.log(np.exp(block, out=block).sum(axis=1)) - right
    return losses


def rows_at_once(columns: int, numbers: int = _NUMBERS) -> int:
    """Return how many rows of a matrix to process at once."""
    return max(1, numbers // max(columns, 1))


def template_hits(X: GridRows, y: NDArray[np.int64], templates: GridRows) -> NDArray[np.bool_]:
    """Return whether each template alone classifies each row correctly, shape (n, number of templates).

    This does not depend on the sample weights, so it can be reused in later rounds. The rows of several
    encoders are stacked.
    """
    K, number, dim = len(templates), templates.shape[1], X.shape[1]
    hits = np.empty((len(X), number), dtype=np.bool_)

    def fill(numbers: slice) -> None:
        for t in range(numbers.start, numbers.stop):
            for e, rows in enumerate(encoder_slices(len(X), templates.shape[2] // dim)):
                prompts = block_of(np.ascontiguousarray(templates[:, t]), e, dim)
                for start in range(rows.start, rows.stop, _ROWS):
                    chunk = slice(start, min(start + _ROWS, rows.stop))
                    cosines = np.empty((chunk.stop - start, K), dtype=np.int32)
                    products(prompts, X[chunk], cosines)
                    hits[chunk, t] = cosines.argmax(axis=1) == y[chunk]

    in_threads(fill, number, X.size * K * number, chunk=1)
    return hits


def pick_template(
    hits: NDArray[np.bool_], grid_weights: NDArray[np.int64], rng: np.random.Generator
) -> int:
    """Choose the template with the least weighted error, at random among ties."""
    errors = np.array([int(grid_weights[~column].sum()) for column in hits.T])
    return int(rng.choice(np.flatnonzero(errors == errors.min())))
