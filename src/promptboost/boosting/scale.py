"""Logit scales chosen by cross-validation: of the gradient composer, of probabilities, of encoders."""

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting.compiled import in_threads
from promptboost.boosting.composition import (
    Composition,
    class_rows,
    encoder_slices,
    log_losses,
    scores_of,
    template_hits,
)
from promptboost.boosting.gradient.compose import GradientSettings, compose_by_gradient
from promptboost.boosting.grid import (
    COSINE_UNIT,
    DType,
    GridPool,
    GridRows,
    Shots,
    block_of,
    stacked,
)
from promptboost.boosting.samme import BoostSettings, boost
from promptboost.errors import WeightError
from promptboost.progress import Advance, Progress, no_progress, stage

Scores = NDArray[np.floating]

#: Candidate scales, as multiples of the encoder's own scale; the preferred one comes first.
FACTORS = (3.0, 2.0, 4.0, 6.0, 1.0)

_MAX_FOLDS = 4
# Held-out images that suffice to compare scales, and to calibrate probabilities at the chosen scale.
# Further folds are not evaluated.
_ENOUGH_TO_COMPARE = 128
_ENOUGH_TO_CALIBRATE = 256
# Limits that keep cross-validation cheap without changing the choice. More sweeps, rows or prompts
# improve a fit, but hardly the comparison of scales.
_MAX_SWEEPS = 10
_MAX_ROWS = 1024
_MAX_PROMPTS = 256
# Up to this size (K·D) folds are composed in parallel. Each takes some hundred times the memory.
_PARALLEL_SIZE = 2**18
_STAGE = "cross-validating"
_RESCALINGS = np.geomspace(0.1, 10.0, 41)


@dataclass(frozen=True)
class FoldClassRows:
    """Class rows (F, K, D) of F weak classifiers; number f is composed without the images of fold f.

    `fold` has the fold of each image, −1 for images that are in the training set of all of them.
    """

    fold: NDArray[np.int64]
    rows: NDArray[np.float32]


@dataclass(frozen=True)
class ScaleChoice:
    """A logit scale chosen by cross-validation."""

    logit_scale: float  # the chosen scale
    folds: int  # number of folds; 0 if there are too few images for cross-validation
    losses: dict[float, float]  # mean log loss on held-out images for each scale that was tried
    # (E·n, K): held-out scores of the n images at the chosen scale, by each of E encoders in turn.
    # Rows of images that were never held out are NaN.
    held_out: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)
    # class rows of the classifiers that were composed at the chosen scale
    fold_class_rows: FoldClassRows | None = field(default=None, repr=False, compare=False)
    # number of folds in which scales were compared; fewer than `folds` if there are many images
    folds_compared: int = 0

    def __str__(self) -> str:
        if not self.losses:
            return (
                f"logit scale {self.logit_scale:g}, {FACTORS[0]:g} × the encoder's own: "
                "no cross-validation, because most classes have only one image or group"
            )
        losses = ", ".join(f"{scale:g}: {loss:.3f}" for scale, loss in sorted(self.losses.items()))
        partly = f"{self.folds_compared} of " if self.folds_compared < self.folds else ""
        best = self.losses.get(self.logit_scale, 0.0) <= min(self.losses.values())
        return (
            f"logit scale {self.logit_scale:g}, by the log loss in cross-validation "
            f"({partly}{self.folds} folds; {losses}"
            f"{'' if best else '; within one standard error of the best'})"
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

    The choice is deterministic. It is the first of `factors` whose log loss on held-out images is within
    one standard error of the least. Factors far from the best are not tried.

    All views of an image are in the same fold. With up to four folds, evaluation stops after the fold
    that completes 128 held-out images (256 at the chosen scale). Weak classifiers are composed on at most
    256 prompts per class.

    With several encoders, a factor applies to the scale of each, and the loss of an image is the mean over
    encoders. The `encoder_scale`, that of the encoder, is multiplied by the `factors`, the preferred one
    first; the scale in the `settings` is ignored. Only the original images are used if `views` is 0, or if
    there are more than 1,024 views in total.
    """
    folds = _fold_count(shots)
    if folds < 2:
        return ScaleChoice(encoder_scale * factors[0], 0, {})
    validation = _CrossValidation(shots, pool, views)
    compared, used = validation.folds_compared, validation.folds_used
    held_out = np.isin(validation.fold, range(compared))
    losses: dict[float, NDArray[np.float64]] = {}
    fits: dict[float, list[_FoldFit]] = {}

    def as_good(factor: float) -> bool:
        excess = losses[factor] - min(losses.values(), key=lambda values: float(values.mean()))
        return bool(excess.mean() <= excess.std(ddof=1) / np.sqrt(len(excess)))

    with stage(progress, _STAGE, (len(factors) - 1) * compared + used) as advance:
        while new_factors := _next_factors(losses, factors):
            scaled = [replace(settings, logit_scale=encoder_scale * new) for new in new_factors]
            new_fits = validation.fit(scaled, range(compared), advance)
            fits |= zip(new_factors, new_fits, strict=True)
            for factor in new_factors:
                scores = validation.held_out_scores(fits[factor])
                each = [
                    calibrated_losses(
                        encoder_scale * factor * relative * encoder_scores[held_out],
                        shots.labels[held_out],
                    )
                    for relative, encoder_scores in zip(pool.scales, scores, strict=True)
                ]
                losses[factor] = np.mean(each, axis=0)
        chosen = next(factor for factor in factors if factor in losses and as_good(factor))
        scaled = [replace(settings, logit_scale=encoder_scale * chosen)]
        (further,) = validation.fit(scaled, range(compared, used), advance)
    chosen_fits = [*fits[chosen], *further]
    return ScaleChoice(
        encoder_scale * chosen,
        folds,
        {encoder_scale * factor: float(values.mean()) for factor, values in losses.items()},
        np.concatenate(validation.held_out_scores(chosen_fits)).astype(np.float32),
        validation.class_rows(chosen_fits),
        compared,
    )


def fold_class_rows(
    shots: Shots, pool: GridPool, settings: BoostSettings, progress: Progress = no_progress
) -> FoldClassRows | None:
    """Compose a weak classifier without the images of each fold, as :func:`choose_scale` does.

    Return their class rows; None for the greedy composer, and with too few images.
    """
    gradient = settings.gradient
    if _fold_count(shots) < 2 or gradient is None or gradient.logit_scale is None:
        return None
    validation = _CrossValidation(shots, pool, settings.views_per_round)
    with stage(progress, _STAGE, validation.folds_used) as advance:
        (fits,) = validation.fit([gradient], range(validation.folds_used), advance)
    return validation.class_rows(fits)


def _fold_count(shots: Shots) -> int:
    return int(held_out_folds(shots.labels, shots.groups).max()) + 1


def calibrated_losses(
    logits: NDArray[np.floating], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the log loss of each image after rescaling all logits by the best factor."""
    factor = minimize_convex(
        lambda factor: float(log_losses(logits, labels, factor).mean()), _RESCALINGS
    )
    return log_losses(logits, labels, factor)


def minimize_convex(function: Callable[[float], float], grid: NDArray[np.float64]) -> float:
    """Return the point of a grid where a convex function is least, by bisection.

    The log loss is convex in a factor on the logits.
    """
    value = cache(lambda index: function(float(grid[index])))
    rising = bisect_left(
        range(len(grid) - 1), True, key=lambda index: value(index) <= value(index + 1)
    )
    return float(grid[rising])


def _next_factors(
    losses: Mapping[float, NDArray[np.float64]], factors: Sequence[float]
) -> list[float]:
    """Return the factors to try next: the first one and its neighbors, then a neighbor of the best."""
    best = min(losses, key=lambda factor: float(losses[factor].mean())) if losses else factors[0]
    order = sorted(factors)
    index = order.index(best)
    neighbors = order[max(index - 1, 0) : index + 2]
    untried = [factor for factor in factors if factor in neighbors and factor not in losses]
    return untried[:1] if losses else untried


@dataclass(frozen=True)
class _FoldFit:
    """A weak classifier composed without the images of a fold, and the scores (E, m, K) of those images."""

    fold: int
    composition: Composition
    scores: NDArray[np.float64]


class _CrossValidation:
    """Folds of images, and the reduced training rows and prompts that are used with them.

    Rows and prompts are selected without regard to labels, so nothing leaks from held-out images.

    `fold` has the fold of each image, −1 for images that are never held out.
    """

    def __init__(self, shots: Shots, pool: GridPool, views: int) -> None:
        self._shots, self._encoders, self._lock = shots, pool.encoders, threading.Lock()
        self.fold = held_out_folds(shots.labels, shots.groups)
        held_out = np.bincount(self.fold[self.fold >= 0]).cumsum()[:-1]
        self.folds_compared = 1 + int(np.searchsorted(held_out, _ENOUGH_TO_COMPARE))
        self.folds_used = 1 + int(np.searchsorted(held_out, _ENOUGH_TO_CALIBRATE))
        self.fold[self.fold >= self.folds_used] = -1
        self._rows = _training_rows(shots, views)
        prompts = tuple(sample_prompts(rows) for rows in pool.candidates)
        self._pool = replace(pool, prompts=prompts, skipped=())
        labels = self._row_labels(np.arange(len(shots.labels)))
        hits = template_hits(self._stacked(self._rows), labels, pool.templates)
        self._hits = hits.reshape(self._encoders, *self._rows.shape[:2], -1)

    def fit(
        self, settings: Sequence[GradientSettings], folds: range, advance: Advance
    ) -> list[list[_FoldFit]]:
        """Compose a weak classifier with each of the settings for each fold."""
        tasks = [(each, fold) for each in settings for fold in folds]
        fits: dict[int, _FoldFit] = {}

        def run(numbers: slice) -> None:
            for number in range(numbers.start, numbers.stop):
                fits[number] = self._fit_fold(*tasks[number])
                with self._lock:
                    advance()

        # A large composition has work for all threads, and needs the memory.
        K, dim = len(self._pool.prompts), self._pool.templates.shape[2]
        chunk = 1 if K * dim <= _PARALLEL_SIZE else len(tasks)
        in_threads(run, len(tasks), self._rows.size * K * _MAX_SWEEPS, chunk=chunk)
        ordered = [fits[number] for number in range(len(tasks))]
        return [ordered[i * len(folds) : (i + 1) * len(folds)] for i in range(len(settings))]

    def _fit_fold(self, settings: GradientSettings, fold: int) -> _FoldFit:
        train, test = self.fold != fold, self.fold == fold
        labels = self._row_labels(train)
        weak = compose_by_gradient(
            self._stacked(self._rows[train]),
            labels,
            balanced_weights(labels),
            self._pool,
            replace(settings, sweeps=min(settings.sweeps, _MAX_SWEEPS)),
            rng=np.random.default_rng(0),
            hits=self._hits[:, train].reshape(len(labels), -1),
        )
        scores = scores_of(weak, stacked(self._shots.originals[test], self._encoders), self._pool)
        return _FoldFit(fold, weak, scores.reshape(self._encoders, -1, scores.shape[1]))

    def held_out_scores(self, fits: Sequence[_FoldFit]) -> NDArray[np.float64]:
        """Return the held-out scores of all images, (E, n, K); NaN where there are none."""
        scores = np.full((self._encoders, len(self.fold), len(self._pool.prompts)), np.nan)
        for fit in fits:
            scores[:, self.fold == fit.fold] = fit.scores
        return scores

    def class_rows(self, fits: Sequence[_FoldFit]) -> FoldClassRows:
        """Return the class rows of the weak classifiers."""
        rows = [class_rows(fit.composition, self._pool) for fit in fits]
        return FoldClassRows(self.fold, np.stack(rows))

    def _stacked(self, rows: GridRows) -> GridRows:
        return stacked(rows.reshape(-1, rows.shape[2]), self._encoders)

    def _row_labels(self, images: NDArray[Any]) -> NDArray[np.int64]:
        """Return the label of every training row of the selected images."""
        return np.tile(self._shots.labels[images].repeat(self._rows.shape[1]), self._encoders)


def _training_rows(shots: Shots, views: int) -> GridRows:
    """Return the first views of each image, (n, v, D), or the originals if that would be too many rows."""
    few = len(shots.labels) * views <= _MAX_ROWS
    rows = shots.views if views and few and shots.views is not None else shots.originals[:, None]
    # Taking the first views keeps the choice independent of seeds.
    return rows[:, : max(views, 1)]


def sample_prompts(prompts: NDArray[DType]) -> NDArray[DType]:
    """Return at most 256 prompts of a class, rows or numbers, always the same random sample."""
    if len(prompts) <= _MAX_PROMPTS:
        return prompts
    # Not every n-th prompt: a pool may repeat its templates periodically.
    rng = np.random.default_rng(0)
    return prompts[np.sort(rng.permutation(len(prompts))[:_MAX_PROMPTS])]


def held_out_folds(
    labels: NDArray[np.int64],
    groups: NDArray[np.int64] | None = None,
    rng: np.random.Generator | None = None,
) -> NDArray[np.int64]:
    """Assign images to folds; −1 for a class of one image or one group, which is never held out.

    There are as many folds as a typical class has images, four at most. With fewer than two, no image is
    in a fold. Images are assigned in their order, or at random with `rng`; with `groups`, the groups of a
    class are assigned from large to small, each to the fold that has the fewest of its images.

    Examples
    --------
    >>> held_out_folds(np.array([0, 0, 0, 0, 1, 1]), groups=np.array([5, 7, 7, 8, 9, 6]))
    array([1, 0, 0, 2, 1, 0])
    """
    sizes = np.bincount(labels)
    folds = min(int(np.median(sizes[sizes > 0])), _MAX_FOLDS)
    if folds < 2:
        return np.full(len(labels), -1)
    if groups is None:
        return np.where(sizes[labels] > 1, stratified_folds(labels, folds, rng), -1)
    fold = np.full(len(labels), -1)
    for label in np.unique(labels):
        members, filled = np.flatnonzero(labels == label), np.zeros(folds, dtype=np.int64)
        _, group, counts = np.unique(groups[members], return_inverse=True, return_counts=True)
        if len(counts) > 1:
            for number in np.argsort(-counts, kind="stable"):
                smallest = int(filled.argmin())
                fold[members[group == number]] = smallest
                filled[smallest] += counts[number]
    return fold


def balanced_weights(
    labels: NDArray[np.int64], weights: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return sample weights with the same total for every class, and a mean of one."""
    counted = np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=np.float64)
    if counted.shape != labels.shape or not np.isfinite(counted).all() or (counted < 0).any():
        raise WeightError(f"weights must be {len(labels)} numbers of 0 or more")
    totals = np.bincount(labels, weights=counted)[labels]
    if not totals.any():
        raise WeightError("all weights are zero")
    shares = np.divide(counted, totals, out=np.zeros(len(labels)), where=totals > 0)
    return np.asarray(shares / shares.mean())


def stratified_folds(
    labels: NDArray[np.int64], folds: int, rng: np.random.Generator | None = None
) -> NDArray[np.int64]:
    """Assign images to folds, class by class, in their order or at random."""
    fold = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        if rng is not None:
            members = rng.permutation(members)
        fold[members] = np.arange(len(members)) % folds
    return fold


_SCALES = np.geomspace(0.5, 1000.0, 67)
# If a template classifies every image correctly, the loss keeps falling with the scale. The lowest scale
# within this tolerance of the least loss is used.
_TOLERANCE = 0.001


def calibrated_scale(shots: Shots, pool: GridPool, encoder: int = 0) -> float:
    """Estimate the logit scale of an encoder from its best template.

    It is the factor between 0.5 and 1000 on the template's cosines that has the least mean log loss on
    the original images; among factors within 0.001 of that, the lowest.
    """
    dim = pool.templates.shape[2] // pool.encoders
    originals, templates = (
        block_of(rows, encoder, dim) for rows in (shots.originals, pool.templates)
    )
    hits = template_hits(originals, shots.labels, templates)
    rows = templates[:, hits.sum(axis=0).argmax()].astype(np.float64)
    cosines = originals.astype(np.float64) @ rows.T / COSINE_UNIT
    loss = cache(lambda scale: float(log_losses(cosines, shots.labels, scale).mean()))
    best = minimize_convex(loss, _SCALES)
    scales = _SCALES[best >= _SCALES].tolist()
    # The loss falls up to its minimum.
    near = bisect_left(scales, True, key=lambda scale: loss(scale) <= loss(best) + _TOLERANCE)
    return float(scales[near])


# In steps of 5%, within which the log loss hardly changes.
_PROBABILITY_SCALES = np.geomspace(0.5, 2000.0, 171)


def probability_scales(
    shots: Shots,
    pool: GridPool,
    settings: BoostSettings,
    encoder_scales: Sequence[float | None],
    held_out: Scores | None = None,
) -> list[float]:
    """Choose the logit scale of probabilities for each encoder, by the log loss on held-out images.

    Training images cannot be used: an ensemble classifies nearly all of them correctly, and with simulated
    CLIP embeddings the scale with the least training loss is up to 70 times the one that suits new images.

    `held_out` are the scores from the cross-validation of the gradient composer's scale. Without them, one
    round is composed on each half of the images and scored on the other half. The resulting scale is
    slightly low for an ensemble of many rounds.

    If a class has only one image, the scale is the encoder's own, one of `encoder_scales`, or
    :func:`calibrated_scale` where that is unknown.
    """
    if held_out is None:
        if np.bincount(shots.labels).min() < 2:
            return _encoder_scales(shots, pool, encoder_scales)
        held_out = _half_split_scores(shots, pool, settings)
    return [
        _least_loss_scale(held_out[rows], shots.labels)
        for rows in encoder_slices(len(held_out), pool.encoders)
    ]


def _encoder_scales(
    shots: Shots, pool: GridPool, encoder_scales: Sequence[float | None]
) -> list[float]:
    """Return the scales with unknown ones estimated."""
    return [
        calibrated_scale(shots, pool, encoder) if scale is None else scale
        for encoder, scale in enumerate(encoder_scales)
    ]


def _least_loss_scale(scores: Scores, labels: NDArray[np.int64]) -> float:
    """Return the scale of least log loss with Platt's softened targets; rows of NaN are ignored.

    Without softening, the loss of a few images that are all classified correctly has no minimum. The
    targets are softened as if there were half an image more, shared by all classes.
    """
    finite = np.isfinite(scores).all(axis=1)
    scores, labels = scores[finite].astype(np.float64), labels[finite]
    n = len(labels)

    def loss(scale: float) -> float:
        logits = scale * scores
        losses = log_losses(logits, labels)
        # The loss averaged over all classes is that of the true class plus this mean margin.
        margins = logits[np.arange(n), labels] - logits.mean(axis=1)
        return float((losses + margins / (2 * n + 1)).mean())

    return float(f"{minimize_convex(loss, _PROBABILITY_SCALES):.4g}")


def _half_split_scores(shots: Shots, pool: GridPool, settings: BoostSettings) -> Scores:
    """Compose one round on each half of the images and return the stacked scores of the other half."""
    settings = replace(settings, rounds=1, patience=None)
    fold = stratified_folds(shots.labels, 2)
    scores = np.empty((pool.encoders, len(shots.labels), len(pool.prompts)))
    for test_fold in (0, 1):
        train, test = fold != test_fold, fold == test_fold
        views = None if shots.views is None else np.ascontiguousarray(shots.views[train])
        half = Shots(np.ascontiguousarray(shots.originals[train]), shots.labels[train], views)
        (boosted,) = boost(half, pool, settings)
        test_rows = stacked(shots.originals[test], pool.encoders)
        test_scores = scores_of(boosted.composition, test_rows, pool)
        scores[:, test] = test_scores.reshape(pool.encoders, -1, scores.shape[2])
    return scores.reshape(-1, scores.shape[2])


def with_relative_scales(
    shots: Shots, pool: GridPool, encoder_scales: Sequence[float | None]
) -> GridPool:
    """Set the relative scales of a pool of several encoders; unknown ones are estimated."""
    if len(encoder_scales) == 1:
        return pool
    pool = replace(pool, scales=(1.0,) * len(encoder_scales))
    scales = _encoder_scales(shots, pool, encoder_scales)
    return replace(pool, scales=tuple(scale / scales[0] for scale in scales))
