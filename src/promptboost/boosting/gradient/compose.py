"""Composing by gradient: Frank-Wolfe steps on the logistic loss.

Every class has the same number of copies to spend, at first all on the template. With W_k the mean of
bank k and λ_kt the share of prompt t in it, the composer lowers

    Σ_i v_i · CE(softmax(β · x_i·Wᵀ), y_i)  +  spread / 2K · Σ_k Σ_t λ_kt²

by moving copies, in each class, from the prompt whose share should fall most to the one whose share
should rise most (a pairwise Frank-Wolfe step). Which those are follows from one product of the pool with
G_k = β Σ_i v_i (p_ik − [y_i = k]) x_i, whatever the number of images; how many copies move is
found by an exact line search over whole numbers.

With several encoders, each image has a row of each, its logits β_e · x_e·W_eᵀ: W_k and G_k have a block of
columns for each encoder, and the loss is the mean over encoders.

The second term is why banks transfer. An encoder rates each wording a little off, and another encoder
rates it off in another way; the variance of a bank's mean is that of one wording times Σ_t λ_t².
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting.compiled import (
    compiled_any_order,
    in_threads,
    multiply,
)
from promptboost.boosting.composition import (
    Composition,
    GradientTrace,
    parts_of,
    pick_template,
    template_hits,
)
from promptboost.boosting.gradient.banks import Banks, Held, move, penalty_of
from promptboost.boosting.gradient.linesearch import add_gradient, move_copies, sum_up
from promptboost.boosting.grid import (
    MAX_BANK_SIZE,
    GridRows,
    block_of,
    from_grid,
    weights_to_grid,
)
from promptboost.boosting.problem import GridPool
from promptboost.errors import SettingError

Floats = NDArray[np.float32]

# Rows that are gone through at once, and classes whose changes stand in memory.
_ROWS = 256
_CLASSES = 64


@dataclass(frozen=True)
class GradientSettings:
    """Settings of the gradient composer.

    Attributes
    ----------
    logit_scale : float or None
        β: what cosines are multiplied with. Higher trusts the images more and the pool less. None
        leaves it open, for ``boosting.gradient.scale.choose_scale``. It is that of the
        first encoder; the others have theirs in proportion (``GridPool.scales``).
    sweeps : int
        Most passes over all classes; fewer if the gap closes before.
    copies : int
        Copies each class can spend: the finest share is one of them, and no bank is longer.
    spread : float
        How much a bank is drawn to many prompts rather than few.
    caution : float
        An image of which the right class has probability p counts p**caution: those that no sentence
        explains, mislabelled ones for example, are left alone. 0 is the plain logistic loss.
    tolerance : float
        Stop when the gap falls below this share of the objective.
    """

    logit_scale: float | None = None
    sweeps: int = 30
    copies: int = 32
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
        if scale is not None and not (np.isfinite(scale) and scale > 0):
            raise SettingError(f"logit_scale must be positive, got {scale}")
        for name in ("spread", "caution", "tolerance"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise SettingError(f"{name} must be 0 or more, got {value}")

    @property
    def scale(self) -> float:
        """The logit scale, where one must be known."""
        if self.logit_scale is None:
            raise SettingError(
                "logit_scale is not set: pass one, the encoder's own times 3 for example, or choose it "
                "with promptboost.boosting.gradient.scale.choose_scale"
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
    earlier: Floats | None = None,
) -> Composition:
    """Compose a weak classifier on weighted rows.

    Parameters
    ----------
    X, y, weights, pool, rng, hits
        As for :func:`~promptboost.boosting.compose_greedily`.
    settings : GradientSettings
        Its logit scale must be known.
    fresh : callable, optional
        Returns other rows of the same images for each sweep after the first, by its number.
    earlier : array of float32, shape (K, D), optional
        Class rows of what is there already: the banks are then composed to be added to it.

    Examples
    --------
    >>> from promptboost.boosting.grid import to_grid
    >>> pool = GridPool.from_rows(
    ...     [[[0.0, 1.0]], [[1.0, 0.0]]],                    # one template
    ...     [[[0.0, 1.0], [0.96, 0.28]], [[0.28, 0.96]]],    # two prompts and one prompt
    ... )
    >>> X, y = to_grid([[0.6, 0.8], [0.8, 0.6]]), np.array([1, 0])
    >>> asked = GradientSettings(logit_scale=10.0, copies=4, spread=0.0)
    >>> weak = compose_by_gradient(X, y, [0.5, 0.5], pool, asked, rng=np.random.default_rng(0))
    >>> weak.template_error, weak.error
    (1.0, 0.0)
    >>> weak.banks, weak.template_copies
    (({1: 4}, {0: 4}), (0, 0))
    """
    grid_weights = weights_to_grid(weights, len(X))
    if hits is None:
        hits = template_hits(X, y, pool.templates)
    template = pick_template(hits, grid_weights, rng)
    share = grid_weights / grid_weights.sum()
    banks = Banks(pool, template, settings.copies, settings.spread / len(pool.prompts))
    added = np.float32(0) if earlier is None else earlier
    rows = _Rows(X, y, share, settings, banks.means + added, pool.scales)
    objectives: list[float] = []
    gaps: list[float] = []
    while True:
        gradient = rows.gradient()
        objectives.append(rows.loss + banks.penalty())
        last = len(objectives) > settings.sweeps
        gap = banks.find_moves(gradient, whole_pool=last)
        gaps.append(gap)
        if last or gap <= settings.tolerance * objectives[-1]:
            break
        if not _sweep(rows, banks) and not banks.widen():
            break  # the chosen exchange helps in no class, and the whole pool was looked at
        if fresh is not None:
            X = fresh(len(gaps))
            rows = _Rows(X, y, share, settings, banks.means + added, pool.scales)
    return Composition(
        template,
        float(share[~hits[:, template]].sum()),
        error=rows.error(),
        template_copies=banks.template_copies(),
        banks=banks.without_template(),
        trace=GradientTrace(tuple(objectives), tuple(gaps), banks.pool_reads),
    )


class _Rows:
    """The rows a sweep works on, and their logits under the banks as they are.

    Those of several encoders are stacked; `scales` has their logit scales, in multiples of the first.
    """

    def __init__(
        self,
        X: GridRows,
        y: NDArray[np.int64],
        share: NDArray[np.float64],
        settings: GradientSettings,
        means: Floats,
        scales: tuple[float, ...] = (1.0,),
    ) -> None:
        self.X = from_grid(X)
        self._scales = np.array([settings.scale * scale for scale in scales], dtype=np.float32)
        self._parts = parts_of(len(X), len(scales))
        self.logits = self.logits_of(means)
        self.loss = np.nan
        self.counted = share
        self.totals = np.empty(len(y))
        self.y, self._share, self._caution = y, share, settings.caution

    def logits_of(self, class_rows: Floats) -> Floats:
        """Return the scaled products of some class rows, (K, E·D), with all rows: (K, n)."""
        dim = self.X.shape[1]
        logits = [
            multiply(block_of(class_rows, e, dim) * scale, self.X[part])
            for e, (scale, part) in enumerate(zip(self._scales, self._parts, strict=True))
        ]
        return logits[0] if len(logits) == 1 else np.concatenate(logits, axis=1)

    def gradient(self) -> Floats:
        """Return the loss's gradient by the class rows, shape (K, E·D); weigh the images anew.

        A block of rows at a time, so that they stay in cache.
        """
        n = len(self.y)
        in_threads(
            lambda rows: sum_up(self.logits, rows.start, rows.stop, self.totals),
            n,
            self.logits.size,
            chunk=_ROWS,
        )
        log_chances = self.logits[self.y, np.arange(n)] - self.totals
        counted = self._share * np.exp(self._caution * log_chances)
        self.counted = counted / counted.sum()
        self.loss = -float(self.counted @ log_chances)
        K, dim = len(self.logits), self.X.shape[1]
        gradient = np.zeros((len(self._parts), K, dim), dtype=np.float32)
        state = self.logits, self.totals, self.counted, self.y, self.X

        def add(classes: slice) -> None:
            some = classes.start, classes.stop
            for into, part in zip(gradient, self._parts, strict=True):
                for start in range(part.start, part.stop, _ROWS):
                    rows = start, min(start + _ROWS, part.stop)
                    add_gradient(*state, some, rows, into)

        in_threads(add, K, self.logits.size)
        gradient *= self._scales[:, None, None]
        return np.ascontiguousarray(gradient.transpose(1, 0, 2)).reshape(K, -1)

    def error(self) -> float:
        """Return the weighted error."""
        return float(self._share[self.logits.argmax(axis=0) != self.y].sum())


def _sweep(rows: _Rows, banks: Banks) -> bool:
    """Move copies in every class; return whether any were moved."""
    moved = 0
    for block in _blocks(len(banks.means), _CLASSES):
        changes = rows.logits_of(banks.directions[block])
        state = rows.logits, rows.totals, rows.counted, rows.y
        moved += _sweep_classes(*state, block.start, changes, banks.held, banks.rate, banks.copies)
    return moved > 0


@compiled_any_order
def _sweep_classes(
    logits: Floats,
    totals: NDArray[np.float64],
    weights: NDArray[np.float64],
    labels: NDArray[np.int64],
    first: int,
    changes: Floats,
    held: Held,
    rate: float,
    copies: int,
) -> int:
    """Move copies in some classes, one after the other; return in how many."""
    moved = 0
    for k in range(first, first + len(changes)):
        source = held.sources[k]
        if source < 0:
            continue
        penalty = penalty_of(held, k, rate, copies)
        limit = held.copies[k, source]
        d = move_copies(
            logits, k, changes[k - first], totals, weights, labels == k, penalty, copies, limit
        )
        if d > 0:
            move(held, k, d, copies)
            moved += 1
    return moved


def _blocks(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
