"""Boosting: SAMME.R over weak classifiers made of prompts.

Each round draws views of every image, composes a weak classifier on them, applies it to the original
images and increases the weights of misclassified ones. A round depends only on the settings, its number
and its initial weights, so a fit can be interrupted after any round and resumed.

With several encoders each view has a row per encoder, but one weight per image. Its update uses the mean
exponent over encoders, which gives the geometric mean of the weights that each encoder alone would give.
So images that are hard for all encoders count most. With one encoder this is SAMME.R.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting.composition import (
    Composition,
    scores_of,
    template_hits,
    without_duplicates,
)
from promptboost.boosting.gradient.compose import GradientSettings, compose_by_gradient
from promptboost.boosting.greedy.insertion import compose_greedily
from promptboost.boosting.grid import GridPool, GridRows, Shots, stacked, weights_to_grid
from promptboost.errors import SettingError, WeightError
from promptboost.progress import Progress, no_progress


@dataclass(frozen=True)
class BoostSettings:
    """Settings of a fit.

    Attributes
    ----------
    rounds : int
        M, the number of weak classifiers.
    views_per_round : int
        a, the number of views per image and round; with 0 the original images are used.
    temperature : float
        τ of the softmax over scores.
    seed : int
        Seed for drawing views and for breaking ties between templates.
    max_copies : int, optional
        Maximum number of copies of a prompt that the greedy composer adds in one step.
    penalty : bool
        Whether the greedy composer compares prompts by the error change per copy or in total.
    patience : int, optional
        Stop after this many consecutive rounds without error. Never by default.
    gradient : GradientSettings, optional
        Settings of the gradient composer; by default the paper's greedy composer is used.
    """

    rounds: int = 50
    views_per_round: int = 4
    temperature: float = 1.0
    seed: int = 0
    max_copies: int | None = None
    penalty: bool = True
    patience: int | None = None
    gradient: GradientSettings | None = None

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("views_per_round", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise SettingError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("max_copies", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name} must be at least 1 or None, got {value}")
        if not (np.isfinite(self.temperature) and self.temperature > 0):
            raise SettingError(f"temperature must be positive, got {self.temperature}")

    @property
    def composer(self) -> str:
        """Name of the composer."""
        return "greedy" if self.gradient is None else "gradient"


@dataclass(frozen=True)
class BoostState:
    """State of a fit, from which it can be resumed.

    The sample weights are those of the next round and sum to one. The last `quiet_rounds` rounds had no
    error. `finished` is set if `patience` has ended the fit.
    """

    rounds_done: int
    weights: NDArray[np.float64]
    quiet_rounds: int = 0
    finished: bool = False


@dataclass(frozen=True)
class BoostRound:
    """A weak classifier, its weighted error on the original images, and the state after its round."""

    composition: Composition
    original_error: float
    state: BoostState


def boost(
    shots: Shots,
    pool: GridPool,
    settings: BoostSettings | None = None,
    *,
    weights: ArrayLike | None = None,
    state: BoostState | None = None,
    progress: Progress = no_progress,
) -> Iterator[BoostRound]:
    """Iterate over boosting rounds.

    Input is checked immediately; each round runs when the iterator advances.

    Parameters
    ----------
    shots, pool : Shots and GridPool
        Images and prompts.
    settings : BoostSettings, optional
        The paper's by default.
    weights : array of float, shape (n,), optional
        Initial sample weights; uniform by default.
    state : BoostState, optional
        State after the last round of an interrupted fit.
    progress : callable, optional
        Called after each sweep of the gradient composer, and after each round of the greedy one.

    Examples
    --------
    >>> from promptboost.encoders.base import unit_rows
    >>> rng = np.random.default_rng(0)
    >>> images, templates, prompts = (
    ...     unit_rows(rng.standard_normal((4 * n, 16))).reshape(4, n, 16) for n in (9, 2, 30)
    ... )
    >>> shots = Shots.from_rows(images[:, 0], np.arange(4), images[:, 1:])
    >>> pool = GridPool.from_rows(templates, list(prompts))
    >>> rounds = list(boost(shots, pool, BoostSettings(rounds=3)))
    >>> [r.state.rounds_done for r in rounds]
    [1, 2, 3]
    """
    settings = settings or BoostSettings()
    pool.check_against(shots)
    _check_views(shots, settings.views_per_round)
    if state is None:
        n = len(shots.labels)
        state = BoostState(0, _normalized(np.ones(n) if weights is None else weights, n))
    elif weights is not None:
        raise WeightError("pass initial weights or a state to resume from, not both")
    else:
        weights_to_grid(state.weights, len(shots.labels))  # raises on invalid weights
    return _rounds(shots, pool, settings, state, progress)


def _rounds(
    shots: Shots, pool: GridPool, settings: BoostSettings, state: BoostState, progress: Progress
) -> Iterator[BoostRound]:
    n, K, E = len(shots.labels), len(pool.prompts), pool.encoders
    views, originals = _ViewSampler(shots, pool, settings), stacked(shots.originals, E)
    while state.rounds_done < settings.rounds and not state.finished:
        weak = _compose(views, pool, settings, state, progress)
        scores = scores_of(weak, originals, pool).reshape(E, n, K)
        wrong = (scores.argmax(axis=2) != shots.labels).mean(axis=0)  # share of encoders
        error = float((state.weights * wrong)[wrong > 0].sum())
        mean = scores.mean(axis=0)  # the exponent is linear in the scores
        weights = updated_weights(state.weights, mean, shots.labels, settings.temperature)
        quiet = state.quiet_rounds + 1 if weak.error == 0 else 0
        finished = settings.patience is not None and quiet >= settings.patience
        state = BoostState(state.rounds_done + 1, weights, quiet, finished)
        yield BoostRound(weak, error, state)


def _compose(
    views: "_ViewSampler",
    pool: GridPool,
    settings: BoostSettings,
    state: BoostState,
    progress: Progress,
) -> Composition:
    number = state.rounds_done
    rng = np.random.default_rng([settings.seed, number])
    if settings.gradient is None:
        progress("composing", number, settings.rounds)
        X, y, owners, hits = views.draw(number)
        weak = compose_greedily(
            X,
            y,
            state.weights[owners],
            pool,
            rng=rng,
            hits=hits,
            max_copies=settings.max_copies,
            penalty=settings.penalty,
        )
        progress("composing", number + 1, settings.rounds)
        return weak
    # Each sweep draws new views, as each round of the greedy composer does.
    first = number * (settings.gradient.sweeps + 1)
    X, y, owners, hits = views.draw(first)

    def round_progress(stage: str, done: int, total: int | None) -> None:
        suffix = f" round {number + 1} of {settings.rounds}" if settings.rounds > 1 else ""
        progress(stage + suffix, done, total)

    composed = compose_by_gradient(
        X,
        y,
        state.weights[owners],
        pool,
        settings.gradient,
        rng=rng,
        hits=hits,
        fresh=None if views.constant else lambda sweep: views.rows(first + sweep),
        progress=round_progress,
    )
    weak = without_duplicates(composed, pool) if pool.merges else composed
    if weak.banks == composed.banks:
        return composed
    right = scores_of(weak, X, pool).argmax(axis=1) == y
    shares = state.weights[owners] / state.weights[owners].sum()
    return replace(weak, error=float(shares[~right].sum()))


def updated_weights(
    weights: NDArray[np.float64],
    scores: NDArray[np.float64],
    labels: NDArray[np.int64],
    temperature: float,
) -> NDArray[np.float64]:
    """Return the weights after a round of SAMME.R: ``w · exp(−(K−1)/K · ỹᵀ log p)``, normalized.

    The log-partition of the softmax cancels in ``ỹᵀ log p = (s_y − mean of the other s)/τ``, so no
    probability has to be clipped.
    """
    n, K = scores.shape
    true = scores[np.arange(n), labels]
    others = (scores.sum(axis=1) - true) / (K - 1)
    exponent = -(K - 1) / K * (true - others) / temperature
    # Relative to the largest exponent of an image with positive weight, so that exp does not underflow.
    growth = np.exp(np.minimum(exponent - exponent[weights > 0].max(), 0.0))
    return _normalized(weights * growth, n)


class _ViewSampler:
    """Draws views for each round, without replacement.

    The V views of an image are shuffled and split into rounds of a; when fewer than a are left, all are
    shuffled again.
    """

    def __init__(self, shots: Shots, pool: GridPool, settings: BoostSettings) -> None:
        self._pool, self._labels, self._seed = pool, shots.labels, settings.seed
        views = shots.views if settings.views_per_round else None
        self._bank = shots.originals[:, None] if views is None else views
        n, V = self._bank.shape[:2]
        self._number = settings.views_per_round or 1
        # Whether every round has the same rows: the originals, or all views.
        self.constant = self._number == V
        self._hits = np.zeros((pool.encoders, n, V, pool.templates.shape[1]), dtype=np.bool_)
        self._has_hits = np.zeros((n, V), dtype=np.bool_)

    def rows(self, round_index: int) -> GridRows:
        """Return the rows of one round."""
        rows = self._bank
        if not self.constant:
            views = self._views_of(round_index)
            rows = rows[np.arange(len(views))[:, None], views]
        return stacked(rows.reshape(-1, rows.shape[2]), self._pool.encoders)

    def draw(
        self, round_index: int
    ) -> tuple[GridRows, NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return the rows, labels, image indices and template hits of one round.

        The rows of several encoders are stacked, with the same views in the same order.
        """
        views = self._views_of(round_index)
        E, owners = self._pool.encoders, np.repeat(np.arange(len(views)), views.shape[1])
        flat = views.ravel()
        rows = self.rows(round_index)
        y = self._labels[owners]
        new = ~self._has_hits[owners, flat]
        if new.any():
            hits = template_hits(rows[np.tile(new, E)], np.tile(y[new], E), self._pool.templates)
            self._hits[:, owners[new], flat[new]] = hits.reshape(E, -1, hits.shape[1])
            self._has_hits[owners[new], flat[new]] = True
        hits = self._hits[:, owners, flat].reshape(len(rows), -1)
        return rows, np.tile(y, E), np.tile(owners, E), hits

    def _views_of(self, round_index: int) -> NDArray[np.int64]:
        n, V = self._has_hits.shape
        if self.constant:  # independent of the seed
            return np.tile(np.arange(V), (n, 1))
        shuffle, turn = divmod(round_index, V // self._number)
        # A stream separate from the one that breaks ties between templates.
        rng = np.random.default_rng([self._seed, shuffle, 1])
        order = rng.permuted(np.tile(np.arange(V), (n, 1)), axis=1)
        return np.asarray(order[:, turn * self._number : (turn + 1) * self._number])


def _check_views(shots: Shots, a: int) -> None:
    if a and shots.views is None:
        raise SettingError(
            f"views_per_round is {a}, but there are no views; pass views or set views_per_round=0"
        )
    if shots.views is not None and shots.views.shape[1] < a:
        raise SettingError(
            f"views_per_round is {a} but there are only {shots.views.shape[1]} views of each image"
        )


def _normalized(weights: ArrayLike, count: int) -> NDArray[np.float64]:
    values = np.asarray(weights, dtype=np.float64)
    weights_to_grid(values, count)  # raises on invalid weights
    return np.asarray(values / values.sum())
