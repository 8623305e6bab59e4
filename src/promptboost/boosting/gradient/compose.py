"""Composing by gradient: Frank-Wolfe steps on the logistic loss.

Every bank has the same number of copies, initially all of the template. With W_k the mean of bank k and
λ_kt the share of prompt t in it, the composer minimizes

    Σ_i v_i · CE(softmax(β · x_i·Wᵀ), y_i)  +  spread / 2K · Σ_k Σ_t λ_kt²

by pairwise Frank-Wolfe steps: in each class, copies move from the prompt with the highest slope to the
one with the lowest. The slopes are one product of the pool with G_k = β Σ_i v_i (p_ik − [y_i = k]) x_i,
whatever the number of images. The number of copies is found by an exact line search over integers.

Banks, prompts and logits belong to a class. Classes interact only through one number per row, the
log-sum-exp of their logits. So classes are split into blocks, which limits memory: they exchange these
numbers, and the products of rows and directions are needed for one block at a time.

With several encoders, each image has one row per encoder, with logits β_e · x_e·W_eᵀ. W_k and G_k have a
block of columns per encoder, and the loss is the mean over encoders.

The second term makes banks transfer to other encoders. Each encoder embeds a wording with some error,
independent of other encoders; the variance of a bank's mean is that of one wording times Σ_t λ_t².
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting.compiled import compiled_any_order, in_threads, multiply
from promptboost.boosting.composition import (
    Composition,
    GradientTrace,
    encoder_slices,
    pick_template,
    template_hits,
)
from promptboost.boosting.gradient.banks import (
    REREAD,
    TEMPLATE,
    Banks,
    Held,
    all_are_candidates,
    move,
    penalty_of,
)
from promptboost.boosting.gradient.linesearch import add_gradient, move_copies, sum_up
from promptboost.boosting.grid import (
    MAX_BANK_SIZE,
    GridPool,
    GridRows,
    block_of,
    from_grid,
    weights_to_grid,
)
from promptboost.errors import SettingError
from promptboost.progress import Progress, no_progress

Floats = NDArray[np.float32]
Values = NDArray[np.float64]
Labels = NDArray[np.int64]

#: Classes per block. Another number would round sums differently.
CLASSES = 64
# Rows per chunk.
_ROWS = 256
# Single precision limits the range of logits.
_MAX_SCALE = 10**6
# Lower bound of the log weight of an image, so that exp does not underflow.
_MIN_LOG_WEIGHT = -600.0


@dataclass(frozen=True)
class GradientSettings:
    """Settings of the gradient composer.

    Attributes
    ----------
    logit_scale : float or None
        β, the factor on cosines. A higher scale fits the images more closely. With None it is chosen by
        ``boosting.scale.choose_scale``. With several encoders it is that of the first
        one; the others are relative to it (``GridPool.scales``).
    sweeps : int
        Maximum number of passes over all classes.
    copies : int
        Number of copies in each bank.
    spread : float
        Penalty on unequal shares; higher values give banks of more prompts.
    caution : float
        An image whose true class has probability p has weight p**caution, so images that no prompt
        explains, such as mislabeled ones, count less. 0 is the plain logistic loss.
    tolerance : float
        Stop when the gap falls below this fraction of the objective.
    """

    logit_scale: float | None = None
    sweeps: int = 30
    copies: int = 8
    spread: float = 2.0
    caution: float = 0.3
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        for name in ("sweeps", "copies"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.copies > MAX_BANK_SIZE:
            raise SettingError(f"copies must be at most {MAX_BANK_SIZE}, got {self.copies}")
        scale = self.logit_scale
        if scale is not None and not 0 < scale <= _MAX_SCALE:
            raise SettingError(
                f"logit_scale must be positive and at most {_MAX_SCALE:,}, got {scale}"
            )
        for name in ("spread", "caution", "tolerance"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise SettingError(f"{name} must be 0 or more, got {value}")

    @property
    def scale(self) -> float:
        """The logit scale; raise SettingError if it is None."""
        if self.logit_scale is None:
            raise SettingError(
                "logit_scale is not set: pass a number, such as 3 times that of the encoder, or choose it "
                "with promptboost.boosting.scale.choose_scale"
            )
        return self.logit_scale


def compose_by_gradient(
    X: GridRows,
    y: NDArray[np.int64],
    weights: ArrayLike,
    pool: GridPool,
    settings: GradientSettings,
    *,
    rng: np.random.Generator,
    hits: NDArray[np.bool_] | None = None,
    fresh: Callable[[int], GridRows] | None = None,
    progress: Progress = no_progress,
) -> Composition:
    """Compose a weak classifier on weighted rows.

    The arguments are those of :func:`~promptboost.boosting.compose_greedily`. `settings` has a logit scale.
    `fresh` returns other rows of the same images for each sweep after the first, given its number.
    """
    grid_weights = weights_to_grid(weights, len(X))
    if hits is None:
        hits = template_hits(X, y, pool.templates)
    template = pick_template(hits, grid_weights, rng)
    share = grid_weights / grid_weights.sum()
    optimizer = _Optimizer(pool, template, y, share, settings)
    progress("composing", 0, settings.sweeps)
    optimizer.set_rows(X)
    trace = optimizer.run(fresh, progress)
    members = [bank for block in optimizer.blocks for bank in block.banks.members]
    progress("composing", settings.sweeps, settings.sweeps)
    return Composition(
        template,
        float(share[~hits[:, template]].sum()),
        error=optimizer.error(),
        template_copies=tuple(bank.get(TEMPLATE, 0) for bank in members),
        banks=tuple({j: c for j, c in bank.items() if j != TEMPLATE} for bank in members),
        trace=trace,
    )


class _Optimizer:
    """Frank-Wolfe over all class blocks."""

    def __init__(
        self,
        pool: GridPool,
        template: int,
        y: NDArray[np.int64],
        share: Values,
        settings: GradientSettings,
    ) -> None:
        self._y, self._share, self._settings = y, share, settings
        K, self._few = len(pool.prompts), all_are_candidates(pool)
        self._rate = settings.spread / K  # penalty on squared shares, per class
        scales = np.array([settings.scale * scale for scale in pool.scales], dtype=np.float32)
        self.blocks = []
        for start in range(0, K, CLASSES):
            part = pool.of_classes(range(start, min(start + CLASSES, K)))
            banks = Banks(part, template, settings.copies, self._rate, self._few)
            self.blocks.append(ClassBlock(banks, start, y, scales))
        self._pool_reads, self._full_gap, self._read_last = 0, 0.0, False

    def run(self, fresh: Callable[[int], GridRows] | None, progress: Progress) -> GradientTrace:
        """Run sweeps until convergence."""
        sweeps, tolerance = self._settings.sweeps, self._settings.tolerance
        objectives: list[float] = []
        gaps: list[float] = []
        while True:
            objectives.append(self._objective())
            last = len(objectives) > sweeps
            gap = self._choose_exchanges(whole_pool=last)
            gaps.append(gap)
            if last or gap < tolerance * objectives[-1]:
                break
            if not self._sweep():
                if self._read_last:
                    break  # no exchange of the whole pool lowers the objective
                self._full_gap = np.inf  # read the whole pool next time
            if fresh is not None:
                self.set_rows(fresh(len(gaps)))
            progress("composing", len(gaps), sweeps)
        return GradientTrace(tuple(objectives), tuple(gaps), self._pool_reads)

    def set_rows(self, X: GridRows) -> None:
        """Use these rows from now on."""
        rows = from_grid(X)
        for block in self.blocks:
            block.set_rows(rows)

    def _objective(self) -> float:
        """Update the image weights and return the objective."""
        self._totals = functools.reduce(np.logaddexp, (block.total for block in self.blocks))
        label_logits = np.empty(len(self._y), dtype=np.float32)
        for block in self.blocks:
            label_logits[block.own_rows] = block.label_logits()
        log_probabilities = label_logits - self._totals
        counted = self._share * np.exp(
            np.maximum(self._settings.caution * log_probabilities, _MIN_LOG_WEIGHT)
        )
        self._counted = counted / counted.sum()
        # Not a BLAS product, whose last bit can depend on the number of threads.
        loss = -float((self._counted * log_probabilities).sum())
        squares = sum(block.banks.squares() for block in self.blocks)
        return loss + self._rate / 2 * squares / self._settings.copies**2

    def _choose_exchanges(self, *, whole_pool: bool) -> float:
        """Choose for every class which prompt loses copies and which gains them.

        Return the Frank-Wolfe gap, or infinity if only candidates were compared. The whole pool is read
        if `whole_pool` is set or the gap of the candidates has become small.
        """
        whole_pool = whole_pool or self._few or not self._pool_reads
        state = self._totals, self._counted, whole_pool
        gap = _sum([block.weigh(*state) for block in self.blocks])
        if not whole_pool:
            if gap > REREAD * self._full_gap:
                self._read_last = False
                return np.inf
            gap = _sum([block.banks.read(block.gradient) for block in self.blocks])
        self._full_gap = gap
        self._pool_reads += 1
        self._read_last = True
        return gap

    def _sweep(self) -> bool:
        """Move copies in every class, block after block; return whether any were moved.

        The log-sum-exp over other blocks includes the moves of earlier blocks.
        """
        nothing = np.full(len(self._y), -np.inf)
        sums_after = [nothing]  # for each block, the log-sum-exp over those after it
        for block in self.blocks[:0:-1]:
            sums_after.append(np.logaddexp(block.total, sums_after[-1]))
        sum_before, moved = nothing, 0
        for block in self.blocks:
            moved += block.search(np.logaddexp(sum_before, sums_after.pop()))
            sum_before = np.logaddexp(sum_before, block.total)
        return moved > 0

    def error(self) -> float:
        """Return the weighted error."""
        logits, classes = zip(*[block.best() for block in self.blocks], strict=True)
        block = np.argmax(logits, axis=0)
        predictions = np.stack(classes)[block, np.arange(len(block))]
        return float(self._share[predictions != self._y].sum())


def _sum(gaps: Sequence[Values]) -> float:
    return float(np.concatenate(gaps).sum())


class ClassBlock:
    """Banks of consecutive classes, and their logits for all rows.

    `own_rows` are the rows of these classes, `total` (n,) is the log-sum-exp of their logits.
    `logit_scales` are those of the encoders.
    """

    def __init__(self, banks: Banks, first: int, y: Labels, logit_scales: Floats) -> None:
        self.banks = banks
        self._first, self._y, self._scales = first, y, logit_scales
        self.own_rows = np.flatnonzero((y >= first) & (y < first + len(banks.held.means)))
        self._encoder_rows = encoder_slices(len(y), len(logit_scales))

    def set_rows(self, X: Floats) -> None:
        """Set the rows, again to use other views of the same images."""
        self._X = X
        self.logits = self._products(self.banks.held.means)
        self._update_total()

    def weigh(self, totals: Values, counted: Values, whole_pool: bool) -> Values:
        """Choose the exchange of each class among its candidates or all prompts; return the gaps.

        `totals` is the log-sum-exp over all classes, `counted` the weight of each row.
        """
        self._counted = counted
        self._find_gradient(totals)
        return (self.banks.read if whole_pool else self.banks.choose)(self.gradient)

    def search(self, outside: Values) -> int:
        """Move copies in each class in turn; return the number of classes that changed.

        `outside` is the log-sum-exp of all other blocks.
        """
        banks = self.banks
        changes = self._products(banks.held.directions)
        totals = np.logaddexp(outside, self.total)
        state = self.logits, totals, outside, self._counted, self._y
        moved = _search(*state, self._first, changes, banks.held, banks.rate, banks.copies)
        if moved:
            self._update_total()
        return moved

    def label_logits(self) -> Floats:
        """Return the logits of the true class, for the rows of these classes."""
        return self.logits[self._y[self.own_rows] - self._first, self.own_rows]

    def best(self) -> tuple[Floats, Labels]:
        """Return the highest logit of each row and its class."""
        return self.logits.max(axis=0), self._first + self.logits.argmax(axis=0)

    def _update_total(self) -> None:
        total = np.empty(len(self._y))
        in_threads(
            lambda rows: sum_up(self.logits, rows.start, rows.stop, total),
            len(total),
            self.logits.size,
            chunk=_ROWS,
        )
        self.total = total

    def _products(self, class_rows: Floats) -> Floats:
        """Return the scaled products, (K, n), of class rows (K, E·D) and all rows."""
        dim = self._X.shape[1]
        products = [
            multiply(block_of(class_rows, e, dim) * scale, self._X[rows])
            for e, (scale, rows) in enumerate(zip(self._scales, self._encoder_rows, strict=True))
        ]
        return products[0] if len(products) == 1 else np.concatenate(products, axis=1)

    def _find_gradient(self, totals: Values) -> None:
        """Compute the gradient of the loss with respect to the class rows, (K, E·D)."""
        K, dim = len(self.logits), self._X.shape[1]
        gradient = np.zeros((len(self._encoder_rows), K, dim), dtype=np.float32)
        state = self.logits, totals, self._counted, self._y, self._X, self._first

        def add(classes: slice) -> None:
            class_range = classes.start, classes.stop
            for out, rows in zip(gradient, self._encoder_rows, strict=True):
                for start in range(rows.start, rows.stop, _ROWS):
                    add_gradient(*state, class_range, (start, min(start + _ROWS, rows.stop)), out)

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
    """Move copies in each class in turn; return the number of classes that changed."""
    moved = 0
    for k in range(len(changes)):
        source = held.sources[k]
        if source < 0:
            continue
        penalty = penalty_of(held, k, rate, copies)
        limit = held.copies[k, source]
        in_class = labels == first + k
        d = move_copies(
            logits, k, changes[k], totals, outside, weights, in_class, penalty, copies, limit
        )
        if d > 0:
            move(held, k, d, copies)
            moved += 1
    return moved
