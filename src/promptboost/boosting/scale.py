"""Logit scales chosen by cross-validation: of the gradient composer, of probabilities, of encoders."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import in_threads
from promptboost.boosting.composition import (
    Composition,
    class_rows,
    log_losses,
    parts_of,
    scores_of,
    template_hits,
)
from promptboost.boosting.gradient.compose import GradientSettings, compose_by_gradient
from promptboost.boosting.grid import COSINE_UNIT, GridPool, GridRows, Shots, block_of, stacked
from promptboost.boosting.samme import BoostSettings, boost
from promptboost.errors import EncoderError
from promptboost.progress import Progress, no_progress

Scores = NDArray[np.floating]

#: Scales that may be tried, as multiples of the encoder's own; the first one is the starting point.
FACTORS = (3.0, 2.0, 4.0, 6.0, 1.0)

_MOST_FOLDS = 4
# Folds are set aside one after the other until there are so many images to compare scales by, and at the
# scale chosen some more: they also tell how sure the text may be of images it has not seen.
_TO_COMPARE = 128
_TO_JUDGE = 256
# Enough to tell scales apart; the last sweeps of a fit are about the last copies.
_SWEEPS = 10
# More rows or prompts a class than these make a fit better, but no choice of a scale: see `_Parts`.
_MOST_ROWS = 1024
_MOST_PROMPTS = 256
# Class rows of so many numbers make a composition small: it needs some hundred times the room of them.
_SMALL = 2**18
_STAGE = "cross-validating"
_LOUDNESS = np.geomspace(0.1, 10.0, 41)


@dataclass(frozen=True)
class FoldTexts:
    """Texts composed without some of the images: number f without those of fold f, `rows` (F, K, D).

    The fold of an image is −1 if no text was composed without it.
    """

    fold: NDArray[np.int64]
    rows: NDArray[np.float32]


@dataclass(frozen=True)
class ScaleChoice:
    """A logit scale, and why: scale → log loss on the images set aside, dealt into so many folds.

    There are none if there were too few images. `held_out` are the scores, (n, K), of each image when it
    was set aside, NaN if it never was, composed at the scale chosen; with several encoders those of the
    first, then those of the next: (E·n, K). `texts` are those of the folds, at that scale. Scales were
    `compared` on so many of the folds: fewer than all where there are many images.
    """

    logit_scale: float
    folds: int
    losses: dict[float, float]
    held_out: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)
    texts: FoldTexts | None = field(default=None, repr=False, compare=False)
    compared: int = 0

    def __str__(self) -> str:
        if not self.losses:
            return (
                f"logit scale {self.logit_scale:g}, {FACTORS[0]:g} × the encoder's own: "
                "a class has one image only, so none can be set aside to choose by"
            )
        tried = ", ".join(f"{scale:g}: {loss:.3f}" for scale, loss in sorted(self.losses.items()))
        some = f"{self.compared} of " if self.compared < self.folds else ""
        best = self.losses.get(self.logit_scale, 0.0) <= min(self.losses.values())
        return (
            f"logit scale {self.logit_scale:g}, by the log loss on images set aside "
            f"({some}{self.folds} folds; {tried}{'' if best else '; none is surely better'})"
        )


def choose_scale(
    shots: Shots,
    pool: GridPool,
    settings: GradientSettings,
    encoder_scale: float,
    *,
    views: int = 0,
    factors: Sequence[float] = FACTORS,
    progress: Progress = no_progress,
) -> ScaleChoice:
    """Choose the logit scale of the gradient composer by cross-validation over images.

    Views of an image never stand on both sides. The same input gives the same choice. It composes on so
    many `views` of each image, 0 for the images themselves, which also stand for their views where these
    are more than 1,024; and on 256 prompts of each class, drawn from all. A quarter of the images is set
    aside at a time, and no further one where that makes 128 images, or 256 at the scale chosen. What is
    tried are `factors` of the encoder's own scale, the preferred one first; those far from the best are
    left out. Several encoders have one factor, each of its own scale, and the loss of an image is the mean
    of theirs. `progress` is called after each composition.
    """
    folds = min(int(np.bincount(shots.labels).min()), _MOST_FOLDS)
    if folds < 2:
        return ScaleChoice(encoder_scale * factors[0], 0, {})
    parts = _Parts(shots, pool, folds, views)
    asked = _few_sweeps(settings)
    parts.watch(progress, most=len(factors) * parts.compared + parts.judged - parts.compared)
    labels = shots.labels[parts.aside(range(parts.compared))]
    tried: dict[float, NDArray[np.float64]] = {}
    composed: dict[float, list[_Aside]] = {}
    while due := _due(tried, factors):
        scales = [replace(asked, logit_scale=encoder_scale * factor) for factor in due]
        done = parts.compose(scales, range(parts.compared))
        composed |= zip(due, done, strict=True)
        for factor in due:
            scores = parts.scores(composed[factor])
            tried[factor] = np.mean(
                [
                    _losses(encoder_scale * factor * relative * some, labels)
                    for relative, some in zip(pool.scales, scores, strict=True)
                ],
                axis=0,
            )
    losses = np.stack(list(tried.values()))
    means = losses.mean(axis=1)
    behind = losses - losses[means.argmin()]
    doubt = behind.std(axis=1, ddof=1) / np.sqrt(len(labels))
    as_good = behind.mean(axis=1) <= doubt
    chosen = next(f for f in factors if f in tried and as_good[list(tried).index(f)])
    table = {encoder_scale * f: float(mean) for f, mean in zip(tried, means, strict=True)}
    scale = encoder_scale * chosen
    (further,) = parts.compose(
        [replace(asked, logit_scale=scale)], range(parts.compared, parts.judged)
    )
    parts.finish()
    every = [*composed[chosen], *further]
    held_out = np.full((pool.encoders, *parts.shape), np.nan, dtype=np.float32)
    held_out[:, parts.fold >= 0] = parts.scores(every)
    return ScaleChoice(
        scale,
        folds,
        table,
        held_out.reshape(-1, parts.shape[1]),
        parts.texts(every),
        parts.compared,
    )


def fold_texts(
    shots: Shots,
    pool: GridPool,
    settings: GradientSettings,
    *,
    views: int = 0,
    progress: Progress = no_progress,
) -> FoldTexts | None:
    """Compose texts on parts of the images, as :func:`choose_scale` does; None if there are too few."""
    folds = min(int(np.bincount(shots.labels).min()), _MOST_FOLDS)
    if folds < 2:
        return None
    parts = _Parts(shots, pool, folds, views)
    parts.watch(progress, most=parts.judged)
    (done,) = parts.compose([_few_sweeps(settings)], range(parts.judged))
    parts.finish()
    return parts.texts(done)


def _few_sweeps(settings: GradientSettings) -> GradientSettings:
    return replace(settings, sweeps=min(settings.sweeps, _SWEEPS))


def _losses(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each image's log loss, at the loudness that suits all best."""
    best = lowest(lambda loud: float(log_losses(logits * loud, labels).mean()), _LOUDNESS)
    return log_losses(logits * best, labels)


def lowest(value: Callable[[float], float], scales: NDArray[np.float64]) -> float:
    """Return the scale of least value, which is convex: as a log loss is in a scale of its logits."""
    known: dict[int, float] = {}

    def at(place: int) -> float:
        if place not in known:
            known[place] = value(float(scales[place]))
        return known[place]

    low, high = 0, len(scales) - 1
    while low < high:
        middle = (low + high) // 2
        if at(middle) <= at(middle + 1):
            high = middle
        else:
            low = middle + 1
    return float(scales[low])


def _due(tried: Mapping[float, NDArray[np.float64]], factors: Sequence[float]) -> list[float]:
    """Return the factors to try next: the first with its neighbors, then those of the best so far."""
    order = sorted(factors)

    def around(factor: float) -> list[float]:
        at = order.index(factor)
        near = order[max(at - 1, 0) : at + 2]
        return [one for one in factors if one in near and one not in tried]

    if not tried:
        return around(factors[0])
    return around(min(tried, key=lambda factor: float(tried[factor].mean())))[:1]


@dataclass(frozen=True)
class _Aside:
    """What was composed without the images of a fold, and their scores, (E, m, K)."""

    part: int
    composition: Composition
    scores: NDArray[np.float64]


class _Parts:
    """The images, dealt to folds, and what is composed on: a dozen compositions, so as little as will do.

    Images are fewer than their views, and prompts drawn from the pool fewer than all. Both are chosen
    without a look at any label, so nothing is learned of the images set aside.
    """

    def __init__(self, shots: Shots, pool: GridPool, folds: int, views: int) -> None:
        self._shots, self._encoders, self._lock = shots, pool.encoders, threading.Lock()
        fold = dealt(shots.labels, folds)
        self.compared, self.judged = _folds_used(fold)
        self.fold = np.where(fold < self.judged, fold, -1)
        self._rows = _bank(shots, views)
        # Class blocks elsewhere know nothing of the part that is drawn.
        self._pool = replace(pool, prompts=tuple(drawn(P) for P in pool.prompts), keeper=None)
        self._hits = template_hits(
            self._flat(self._rows), self._labels(np.arange(len(shots.labels))), pool.templates
        ).reshape(self._encoders, *self._rows.shape[:2], -1)

    def watch(self, progress: Progress, *, most: int) -> None:
        """Report each composition, of `most` at the most."""
        self._progress, self._most, self._composed = progress, most, 0
        progress(_STAGE, 0, most)

    def finish(self) -> None:
        """Report that no further composition follows."""
        self._progress(_STAGE, self._most, self._most)

    def _count(self) -> None:
        with self._lock:
            self._composed += 1
            self._progress(_STAGE, self._composed, self._most)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of images, and of classes."""
        return len(self.fold), len(self._pool.prompts)

    def aside(self, folds: range) -> NDArray[np.bool_]:
        """Return which images are in some folds."""
        return np.isin(self.fold, folds)

    def compose(self, scales: Sequence[GradientSettings], folds: range) -> list[list[_Aside]]:
        """Compose at some scales without the images of some folds in turn, and score those images."""
        K, number = self.shape[1], len(folds)
        done: list[_Aside | None] = [None] * (len(scales) * number)

        def work(some: slice) -> None:
            for at in range(some.start, some.stop):
                part = folds[at % number]
                kept, aside = self.fold != part, self.fold == part
                y = self._labels(kept)
                weak = compose_by_gradient(
                    self._flat(self._rows[kept]),
                    y,
                    np.ones(len(y)),
                    self._pool,
                    scales[at // number],
                    rng=np.random.default_rng(0),
                    hits=self._hits[:, kept].reshape(len(y), -1),
                )
                originals = stacked(self._shots.originals[aside], self._encoders)
                scores = scores_of(weak, originals, self._pool)
                done[at] = _Aside(part, weak, scores.reshape(self._encoders, -1, K))
                self._count()

        # Side by side where a composition is small; a large one has work for all threads, and needs room.
        small = K * self._pool.templates.shape[2] <= _SMALL
        in_threads(work, len(done), self._rows.size * K * _SWEEPS, chunk=1 if small else len(done))
        every = [one for one in done if one is not None]
        return [every[at * number : (at + 1) * number] for at in range(len(scales))]

    def scores(self, done: Sequence[_Aside]) -> NDArray[np.float64]:
        """Return the scores, (E, m, K), of all images that were set aside, in their order."""
        of_fold = self.fold[np.isin(self.fold, [one.part for one in done])]
        scores = np.empty((self._encoders, len(of_fold), self.shape[1]))
        for one in done:
            scores[:, of_fold == one.part] = one.scores
        return scores

    def texts(self, done: Sequence[_Aside]) -> FoldTexts:
        """Return the class rows of the texts of all folds."""
        rows = [class_rows(one.composition, self._pool) for one in done]
        return FoldTexts(self.fold, np.stack(rows))

    def _flat(self, rows: GridRows) -> GridRows:
        return stacked(rows.reshape(-1, rows.shape[2]), self._encoders)

    def _labels(self, images: NDArray[Any]) -> NDArray[np.int64]:
        """Return the label of each row of some images."""
        return np.tile(self._shots.labels[images].repeat(self._rows.shape[1]), self._encoders)


def _folds_used(fold: NDArray[np.int64]) -> tuple[int, int]:
    """Return by how many folds scales are compared, and by how many the one chosen is judged."""
    set_aside = np.bincount(fold).cumsum()[:-1]
    return (
        1 + int(np.searchsorted(set_aside, _TO_COMPARE)),
        1 + int(np.searchsorted(set_aside, _TO_JUDGE)),
    )


def _bank(shots: Shots, views: int) -> GridRows:
    """Return what stands for each image, (n, v, D): its views, or itself where these would be many."""
    few = len(shots.labels) * views <= _MOST_ROWS
    bank = shots.views if views and few and shots.views is not None else shots.originals[:, None]
    # The first views: which ones hardly matters here, and it keeps the choice free of seeds.
    return bank[:, : max(views, 1)]


def drawn(prompts: GridRows) -> GridRows:
    """Return the prompts of a class that stand for all: all, or as many as will do."""
    if len(prompts) <= _MOST_PROMPTS:
        return prompts
    # At random, as a pool may repeat its templates in turn; and always the same ones.
    rng = np.random.default_rng(0)
    return prompts[np.sort(rng.permutation(len(prompts))[:_MOST_PROMPTS])]


def dealt(
    labels: NDArray[np.int64], folds: int, rng: np.random.Generator | None = None
) -> NDArray[np.int64]:
    """Return the fold of each image: those of a class are dealt in turn, in their order or at random."""
    fold = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        if rng is not None:
            members = rng.permutation(members)
        fold[members] = np.arange(len(members)) % folds
    return fold


_SCALES = np.geomspace(0.5, 1000.0, 67)
# Where a template is right about every image, the loss falls for ever. A thousandth more is as good.
_AS_GOOD = 0.001


def calibrated_scale(shots: Shots, pool: GridPool, encoder: int = 0) -> float:
    """Return the factor at which the cosines of the best template are the best log-odds.

    That is the one of least mean log loss on the images as they are, between 0.5 and 1000; of those
    that are as good to a thousandth, the lowest. It is that of one encoder, the first of several.
    """
    dim = pool.templates.shape[2] // pool.encoders
    originals, templates = (
        block_of(rows, encoder, dim) for rows in (shots.originals, pool.templates)
    )
    hits = template_hits(originals, shots.labels, templates)
    rows = templates[:, hits.sum(axis=0).argmax()].astype(np.float64)
    cosines = originals.astype(np.float64) @ rows.T / COSINE_UNIT
    losses = np.array([log_losses(scale * cosines, shots.labels).mean() for scale in _SCALES])
    return float(_SCALES[np.argmax(losses <= losses.min() + _AS_GOOD)])


# Steps of a twentieth: the log loss hardly changes within one.
_PROBABILITY_SCALES = np.geomspace(0.5, 2000.0, 171)


def probability_scales(
    shots: Shots,
    pool: GridPool,
    settings: BoostSettings,
    encoder_scales: Sequence[float | None],
    held_out: Scores | None = None,
) -> list[float]:
    """Choose the logit scale of probabilities for each encoder: the one of least held-out log loss.

    On the images it was composed on, an ensemble is nearly always right, and any scale would look too
    low: with simulated CLIP embeddings, the scale that suits those is up to 70 times the one that suits
    new images. So only held-out scores count. The gradient composer cross-validates its own scale in up
    to four folds; those scores are reused as `held_out`. For the greedy composer, and where a scale is
    given, one round is composed on each half of the images and scored on the other. A mean of many
    rounds is a little surer than one round, and the scale on the low side for it.

    Few images may all be right by luck, and then the loss falls forever. As Platt does, the loss is
    taken with softened targets: as if, besides the n images, half an image belonged to any class.

    With a single image of a class none can be held out: the scale is then the encoder's own, one of
    `encoder_scales`, or where that is unknown the one that suits the templates.
    """
    if held_out is None:
        if np.bincount(shots.labels).min() < 2:
            return [
                calibrated_scale(shots, pool, number) if scale is None else scale
                for number, scale in enumerate(encoder_scales)
            ]
        held_out = scores_of_halves(shots, pool, settings)
    return [
        _least_loss_scale(held_out[part], shots.labels)
        for part in parts_of(len(held_out), pool.encoders)
    ]


def _least_loss_scale(scores: Scores, labels: NDArray[np.int64]) -> float:
    """Return the factor on scores of least softened log loss; NaN rows were never held out."""
    judged = np.isfinite(scores).all(axis=1)
    scores, labels = scores[judged].astype(np.float64), labels[judged]
    n = len(labels)

    def loss(scale: float) -> float:
        logits = scale * scores
        losses = log_losses(logits, labels)
        # The mean over classes of the loss is the loss of the true class plus how far the others lie.
        distances = logits[np.arange(n), labels] - logits.mean(axis=1)
        return float((losses + distances / (2 * n + 1)).mean())

    return float(f"{lowest(loss, _PROBABILITY_SCALES):.4g}")


def scores_of_halves(shots: Shots, pool: GridPool, settings: BoostSettings) -> Scores:
    """Compose a round on each half of the images, and return the scores of the other half, stacked."""
    settings = replace(settings, rounds=1, patience=None)
    half = dealt(shots.labels, 2)
    scores = np.empty((pool.encoders, len(shots.labels), len(pool.prompts)))
    for fold in (0, 1):
        train, test = half != fold, half == fold
        views = None if shots.views is None else np.ascontiguousarray(shots.views[train])
        some = Shots(np.ascontiguousarray(shots.originals[train]), shots.labels[train], views)
        (done,) = boost(some, pool, settings)
        fold_scores = scores_of(
            done.composition, stacked(shots.originals[test], pool.encoders), pool
        )
        scores[:, test] = fold_scores.reshape(pool.encoders, -1, scores.shape[2])
    return scores.reshape(-1, scores.shape[2])


def with_relative_scales(
    shots: Shots, pool: GridPool, encoder_scales: Sequence[float | None]
) -> GridPool:
    """Set the relative scales of a pool of several encoders; unknown ones are estimated."""
    if len(encoder_scales) == 1:
        return pool
    if pool.templates.shape[2] % len(encoder_scales):
        raise EncoderError(
            f"{len(encoder_scales)} encoders are named, but {pool.templates.shape[2]} columns cannot be "
            "divided into as many blocks"
        )
    pool = replace(pool, scales=(1.0,) * len(encoder_scales))
    pool.check_against(shots)
    scales = [
        calibrated_scale(shots, pool, number) if scale is None else scale
        for number, scale in enumerate(encoder_scales)
    ]
    return replace(pool, scales=tuple(scale / scales[0] for scale in scales))
