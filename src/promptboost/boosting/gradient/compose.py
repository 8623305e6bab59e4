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

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting.composition import (
    Composition,
    GradientTrace,
    pick_template,
    template_hits,
)
from promptboost.boosting.gradient.banks import REREAD, TEMPLATE, are_few
from promptboost.boosting.gradient.blocks import (
    Asked,
    BlocksLostError,
    ClassBlock,
    Keeper,
    KeeperHere,
    Values,
    class_slices,
)
from promptboost.boosting.grid import MAX_BANK_SIZE, GridPool, GridRows, weights_to_grid
from promptboost.errors import SettingError
from promptboost.progress import Progress, no_progress

Floats = NDArray[np.float32]

# Logits that are much higher say nothing in single precision.
_MOST_SCALE = 10**6
# The logarithm of the least that an image counts: lower, and exp would come near the smallest number.
_LEAST = -600.0


@dataclass(frozen=True)
class GradientSettings:
    """Settings of the gradient composer.

    Attributes
    ----------
    logit_scale : float or None
        β: what cosines are multiplied with. Higher trusts the images more and the pool less. None
        leaves it open, for ``boosting.scale.choose_scale``. It is that of the
        first encoder; the others have theirs in proportion (``GridPool.scales``).
    sweeps : int
        Most passes over all classes; fewer if the gap closes before.
    copies : int
        Copies each class can spend: the finest share is one of them, and no bank is longer.
    spread : float
        How much a bank is drawn to many prompts rather than few.
    caution : float
        An image of which the right class has probability p counts p**caution: those that no sentence
        explains, mislabeled ones for example, are left alone. 0 is the plain logistic loss.
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
        if scale is not None and not 0 < scale <= _MOST_SCALE:
            raise SettingError(
                f"logit_scale must be positive and at most {_MOST_SCALE:,}, got {scale}"
            )
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
    earlier: Floats | None = None,
    progress: Progress = no_progress,
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
    progress : callable, optional
        Called after each sweep.

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
    asked = Asked(
        template,
        settings.copies,
        settings.spread / len(pool.prompts),
        are_few(pool),
        tuple(settings.scale * scale for scale in pool.scales),
    )
    keeper = pool.keeper or KeeperHere(pool)
    work = _Work(keeper, len(pool.prompts), y, share, asked, settings.caution)
    progress("composing", 0, settings.sweeps)
    while True:
        try:
            work.begin(X, earlier)
            trace = _compose(work, settings, fresh, progress)
            members = work.members()
            error = work.error()
            break
        except BlocksLostError:
            continue  # nothing depends on what is lost: the same banks come out
    progress("composing", settings.sweeps, settings.sweeps)
    return Composition(
        template,
        float(share[~hits[:, template]].sum()),
        error=error,
        template_copies=tuple(bank.get(TEMPLATE, 0) for bank in members),
        banks=tuple({j: c for j, c in bank.items() if j != TEMPLATE} for bank in members),
        trace=trace,
    )


def _compose(
    work: "_Work",
    settings: GradientSettings,
    fresh: Callable[[int], GridRows] | None,
    progress: Progress,
) -> GradientTrace:
    """Sweep over the classes as long as it helps."""
    objectives: list[float] = []
    gaps: list[float] = []
    while True:
        objectives.append(work.objective())
        last = len(objectives) > settings.sweeps
        gap = work.find_moves(whole_pool=last)
        gaps.append(gap)
        if last or gap <= settings.tolerance * objectives[-1]:
            break
        if not work.sweep() and not work.widen():
            break  # the chosen exchange helps in no class, and the whole pool was looked at
        if fresh is not None:
            work.look(fresh(len(gaps)))
        progress("composing", len(gaps), settings.sweeps)
    return GradientTrace(tuple(objectives), tuple(gaps), work.pool_reads)


class _Work:
    """A composition at work: what all classes make of each row together, and when the pool is read.

    `pool_reads` counts how often the whole pool was looked at.
    """

    def __init__(
        self,
        keeper: Keeper,
        classes: int,
        y: NDArray[np.int64],
        share: Values,
        asked: Asked,
        caution: float,
    ) -> None:
        self._keeper, self._y, self._share = keeper, y, share
        self._asked, self._caution = asked, caution
        self._rows = [
            np.flatnonzero((y >= some.start) & (y < some.stop)) for some in class_slices(classes)
        ]

    def begin(self, X: GridRows, earlier: Floats | None) -> None:
        """Begin with the template alone."""
        self.pool_reads, self._full_gap, self._read_last = 0, 0.0, False
        self._keeper.begin(self._y, self._asked, earlier)
        self.look(X)

    def look(self, X: GridRows) -> None:
        """Look at these rows from now on."""
        self._parts = self._keeper.look(X)

    def objective(self) -> float:
        """Return what is minimized; weigh the images anew."""
        self._totals = functools.reduce(np.logaddexp, (part.total for part in self._parts))
        own = np.empty(len(self._y), dtype=np.float32)
        for rows, part in zip(self._rows, self._parts, strict=True):
            own[rows] = part.own
        log_chances = own - self._totals
        # Not so low that nothing would count where no image has a chance.
        counted = self._share * np.exp(np.maximum(self._caution * log_chances, _LEAST))
        self._counted = counted / counted.sum()
        # Not a product of BLAS, of which long ones depend on the number of threads in the last bit.
        loss = -float((self._counted * log_chances).sum())
        squares = sum(part.squares for part in self._parts)
        return loss + self._asked.rate / 2 * squares / self._asked.copies**2

    def find_moves(self, *, whole_pool: bool = False) -> float:
        """Choose for every class which prompt should lose copies and which should gain them.

        Unless `whole_pool`, it may look only at the prompts that came first when all were looked at.
        Returns the Frank-Wolfe gap; infinite where it did so.
        """
        whole_pool = whole_pool or self._asked.few or not self.pool_reads
        state = self._totals, self._counted, whole_pool
        gap = _sum(self._keeper.every(ClassBlock.weigh, *state))
        if not whole_pool:
            if gap > REREAD * self._full_gap:
                self._read_last = False
                return np.inf
            gap = _sum(self._keeper.every(ClassBlock.read))
        self._full_gap = gap
        self.pool_reads += 1
        self._read_last = True
        return gap

    def widen(self) -> bool:
        """Have the whole pool looked at next time; return whether that can bring anything new."""
        self._full_gap = np.inf
        return not self._read_last

    def sweep(self) -> bool:
        """Move copies in every class, block after block; return whether any were moved.

        A block is told what all others have of each row, those before it as they are by now. While it is
        searched, the next ones are prepared.
        """
        keeper, parts = self._keeper, self._parts
        nothing = np.full(len(self._y), -np.inf)
        after = [nothing]  # what the blocks after each have together
        for part in parts[:0:-1]:
            after.append(np.logaddexp(part.total, after[-1]))
        before = nothing
        for number in range(min(keeper.ahead, len(parts))):
            keeper.one(number, ClassBlock.prepare)
        for number in range(len(parts)):
            outside = np.logaddexp(before, after.pop())
            answer = keeper.one(number, ClassBlock.search, outside)
            if number + keeper.ahead < len(parts):
                keeper.one(number + keeper.ahead, ClassBlock.prepare)
            parts[number] = answer()
            before = np.logaddexp(before, parts[number].total)
        return any(part.moved for part in parts)

    def members(self) -> list[dict[int, int]]:
        """Return the bank of each class."""
        return [bank for banks in self._keeper.every(ClassBlock.members) for bank in banks]

    def error(self) -> float:
        """Return the weighted error."""
        logits, classes = zip(*self._keeper.every(ClassBlock.best), strict=True)
        first = np.argmax(logits, axis=0)
        guesses = np.stack(classes)[first, np.arange(len(first))]
        return float(self._share[guesses != self._y].sum())


def _sum(gaps: Sequence[Values]) -> float:
    return float(np.concatenate(gaps).sum())
