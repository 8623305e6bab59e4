"""The logit scale of probabilities, and the relative scales of several encoders."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.composition import log_losses, parts_of, scores_of
from promptboost.boosting.gradient.scale import calibrated_scale, dealt, lowest
from promptboost.boosting.grid import stacked
from promptboost.boosting.problem import GridPool, Shots
from promptboost.boosting.samme import BoostSettings, boost
from promptboost.errors import EncoderError

Scores = NDArray[np.floating]

# Steps of a twentieth: the log loss hardly changes within one.
_SCALES = np.geomspace(0.5, 2000.0, 171)


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

    return float(f"{lowest(loss, _SCALES):.4g}")


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
