"""Boosting: SAMME.R over weak classifiers made of prompts.

Each round draws views of every image, composes a weak classifier on them, applies it to the original
images and raises the weight of those it gets wrong. A round depends only on the settings, its number
and the weights it starts with, so a fit can be stopped after any round and continued.

With several encoders each view has a row of each, and a composer sees them all. The weight belongs to the
image: it changes by the mean over encoders of SAMME.R's exponent, so to the geometric mean of the weights
that each encoder alone would give. A weight for each row instead would let an image that one encoder
will never see rightly fill the rounds of that encoder, which no wording mends; this way, what is hard for
all counts most, that is where the words are at fault. With one encoder it is SAMME.R.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting.composition import Composition, scores_of, template_hits
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
        a, the number of views of each image drawn for a round; 0 composes on the originals.
    temperature : float
        τ of the softmax over scores.
    seed : int
        Decides which views are drawn and how ties between templates are broken.
    max_copies : int, optional
        The greedy composer adds at most so many copies of a prompt at once.
    penalty : bool
        The greedy composer compares prompts by the change of the error per copy, not by the change alone.
    patience : int, optional
        Stop after this many rounds in a row that leave no error. Never by default.
    gradient : GradientSettings, optional
        Compose by gradient, with these; by default greedily, as in the paper.
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
    """Where a fit stands: all that is needed to continue it.

    The sample weights are those of the next round and add up to one; the last `quiet_rounds` left no
    error; `finished` says that there is nothing more to do, whatever the number of rounds asked.
    """

    rounds_done: int
    weights: NDArray[np.float64]
    quiet_rounds: int = 0
    finished: bool = False


@dataclass(frozen=True)
class BoostRound:
    """One finished round: a weak classifier, and where the fit stands after it.

    The error on the original images is under the weights it was composed with.
    """

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
    """Run the rounds one after the other.

    Input is checked at once; work starts when the first round is asked for.

    Parameters
    ----------
    shots, pool : Shots and GridPool
        Images and prompts.
    settings : BoostSettings, optional
        The paper's by default.
    weights : array of float, shape (n,), optional
        Sample weights to start with; uniform by default.
    state : BoostState, optional
        Where to continue: the state of the last round of an earlier call.
    progress : callable, optional
        Called after each sweep of the gradient composer, and after each round of the greedy one.

    Examples
    --------
    >>> from promptboost.testing import clip_like
    >>> task = clip_like(n_classes=4, shots=4, views=8, prompts=30, seed=0)
    >>> shots = Shots.from_rows(task.images, task.labels, task.views)
    >>> pool = GridPool.from_rows(task.templates, task.prompts)
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
        raise WeightError("pass start weights or a state to continue from, not both")
    else:
        weights_to_grid(state.weights, len(shots.labels))  # checked, but kept to the last bit
    return _rounds(shots, pool, settings, state, progress)


def _rounds(
    shots: Shots,
    pool: GridPool,
    settings: BoostSettings,
    state: BoostState,
    progress: Progress,
) -> Iterator[BoostRound]:
    views = _ViewDraws(shots, pool, settings)
    while state.rounds_done < settings.rounds and not state.finished:
        weak = _compose(views, pool, settings, state, progress)
        done = _finish_round(shots, pool, settings, state, weak)
        state = done.state
        yield done


def _compose(
    views: "_ViewDraws",
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
    # Each sweep counts as a round does for the greedy composer: it has views of its own.
    first = number * (settings.gradient.sweeps + 1)
    X, y, owners, hits = views.draw(first)
    weights, asked = state.weights[owners], settings.gradient

    def of_round(stage: str, done: int, total: int | None) -> None:
        several = settings.rounds > 1
        progress(
            f"{stage} round {number + 1} of {settings.rounds}" if several else stage, done, total
        )

    fresh = None if views.always_the_same else (lambda sweep: views.rows(first + sweep))
    return compose_by_gradient(
        X, y, weights, pool, asked, rng=rng, hits=hits, fresh=fresh, progress=of_round
    )


def _finish_round(
    shots: Shots, pool: GridPool, settings: BoostSettings, state: BoostState, weak: Composition
) -> BoostRound:
    n, K = len(shots.labels), len(pool.prompts)
    scores = scores_of(weak, stacked(shots.originals, pool.encoders), pool)
    scores = scores.reshape(pool.encoders, n, K)
    wrong = (scores.argmax(axis=2) != shots.labels).mean(axis=0)  # the share of encoders
    error = float((state.weights * wrong)[wrong > 0].sum())
    quiet = state.quiet_rounds + 1 if weak.error == 0 else 0
    finished = settings.patience is not None and quiet >= settings.patience
    mean = scores.mean(axis=0)  # the exponent is linear in the scores
    weights = updated_weights(state.weights, mean, shots.labels, settings.temperature)
    after = BoostState(state.rounds_done + 1, weights, quiet, finished)
    return BoostRound(weak, error, after)


def updated_weights(
    weights: NDArray[np.float64],
    scores: NDArray[np.float64],
    labels: NDArray[np.int64],
    temperature: float,
) -> NDArray[np.float64]:
    """Return the weights after a round of SAMME.R: ``w · exp(−(K−1)/K · ỹᵀ log p)``, normalized.

    The log-partition of the softmax cancels in ``ỹᵀ log p = (s_y − mean of the other s)/τ``, so the
    scores are enough, and no probability has to be clipped.
    """
    n, K = scores.shape
    true = scores[np.arange(n), labels]
    others = (scores.sum(axis=1) - true) / (K - 1)
    exponent = -(K - 1) / K * (true - others) / temperature
    # Relative to the largest of those that count: one of weight zero must not drown them.
    growth = np.exp(np.minimum(exponent - exponent[weights > 0].max(), 0.0))
    return _normalized(weights * growth, n)


class _ViewDraws:
    """The views that each round sees.

    Views of an image are dealt like cards: a in each round, and all are shuffled anew when fewer than a
    are left. So a bank of V >= M·a views has fresh ones in every round.
    """

    def __init__(self, shots: Shots, pool: GridPool, settings: BoostSettings) -> None:
        self._shots, self._pool, self._settings = shots, pool, settings
        number = 1 if settings.views_per_round == 0 else self._bank().shape[1]
        n, self._encoders = len(shots.labels), pool.encoders
        self._hits = np.zeros((self._encoders, n, number, pool.templates.shape[1]), dtype=np.bool_)
        self._known = np.zeros((n, number), dtype=np.bool_)

    @property
    def always_the_same(self) -> bool:
        """Whether every draw has the same rows: the originals, or all views."""
        return self._settings.views_per_round in (0, self._bank().shape[1])

    def rows(self, round_index: int) -> GridRows:
        """Return the rows of one round."""
        rows = self._bank()
        if not self.always_the_same:
            views = self._views_of(round_index)
            rows = rows[np.arange(len(views))[:, None], views]
        return stacked(rows.reshape(-1, rows.shape[2]), self._encoders)

    def draw(
        self, round_index: int
    ) -> tuple[GridRows, NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return the rows, labels, owning images, and template hits of one round.

        The rows of several encoders are stacked: the same views, in the same order, by each.
        """
        views = self._views_of(round_index)
        E, owners = self._encoders, np.repeat(np.arange(len(views)), views.shape[1])
        flat = views.ravel()
        rows = self.rows(round_index)
        y = self._shots.labels[owners]
        new = ~self._known[owners, flat]
        if new.any():
            some, its_y = rows[np.tile(new, E)], np.tile(y[new], E)
            hits = template_hits(some, its_y, self._pool.templates)
            self._hits[:, owners[new], flat[new]] = hits.reshape(E, -1, hits.shape[1])
            self._known[owners[new], flat[new]] = True
        hits = self._hits[:, owners, flat].reshape(len(rows), -1)
        return rows, np.tile(y, E), np.tile(owners, E), hits

    def _bank(self) -> GridRows:
        if self._settings.views_per_round == 0 or self._shots.views is None:
            return self._shots.originals[:, None]
        return self._shots.views

    def _views_of(self, round_index: int) -> NDArray[np.int64]:
        a, n = self._settings.views_per_round, len(self._shots.labels)
        if a == 0:
            return np.zeros((n, 1), dtype=np.int64)
        V = self._bank().shape[1]
        if a == V:  # in one order, so that nothing depends on the seed that need not
            return np.tile(np.arange(V), (n, 1))
        deal, turn = divmod(round_index, V // a)
        # The stream of a deal is separate from the one that breaks ties in its rounds.
        rng = np.random.default_rng([self._settings.seed, deal, 1])
        order = rng.permuted(np.tile(np.arange(V), (n, 1)), axis=1)
        return np.asarray(order[:, turn * a : (turn + 1) * a])


def _check_views(shots: Shots, a: int) -> None:
    if a and shots.views is None:
        raise SettingError(
            f"views_per_round is {a} but no views were given; give views or set views_per_round=0"
        )
    if shots.views is not None and shots.views.shape[1] < a:
        raise SettingError(
            f"views_per_round is {a} but there are only {shots.views.shape[1]} views of each image"
        )


def _normalized(weights: ArrayLike, count: int) -> NDArray[np.float64]:
    values = np.asarray(weights, dtype=np.float64)
    weights_to_grid(values, count)  # raises if they cannot be weights
    return np.asarray(values / values.sum())
