"""The logit scale of a fit by gradient, where none is asked for."""

from dataclasses import replace

import numpy as np

from promptboost.boosting import BoostSettings, GridPool, Shots
from promptboost.boosting.choosing import choose_scale
from promptboost.boosting.grid import COSINE_UNIT
from promptboost.boosting.scores import log_losses
from promptboost.boosting.templates import template_hits
from promptboost.ensemble import PromptEnsemble

__all__ = ["calibrated_scale", "settle_scale"]

_SCALES = np.geomspace(0.5, 1000.0, 67)
# Where a template is right about every picture, the loss falls for ever. A thousandth more is as good.
_AS_GOOD = 0.001


def settle_scale(
    shots: Shots,
    pool: GridPool,
    settings: BoostSettings,
    encoder_scale: float | None,
    before: PromptEnsemble | None = None,
) -> tuple[BoostSettings, str | None]:
    """Choose the logit scale, if the composer needs one and none is given.

    Parameters
    ----------
    shots : Shots
        Labelled pictures and their views.
    pool : GridPool
        Templates and prompts.
    settings : BoostSettings
        What is asked. A ``gradient.logit_scale`` of None is to be chosen.
    encoder_scale : float or None
        What the encoder multiplies cosines with. None if the rows are of no known encoder: then
        :func:`calibrated_scale` takes its place.
    before : PromptEnsemble, optional
        What the fit continues: its scale is kept, not chosen again.

    Returns
    -------
    tuple of BoostSettings and (str or None)
        The settings with a scale, and why it is this one; None where nothing was chosen.

    Examples
    --------
    >>> from promptboost.boosting import GradientSettings
    >>> from promptboost.testing import clip_like
    >>> task = clip_like(n_classes=3, shots=1, prompts=20, seed=0)
    >>> shots = Shots.from_rows(task.pictures, task.labels)
    >>> pool = GridPool.from_rows(task.templates, task.prompts)
    >>> asked = BoostSettings(views_per_round=0, gradient=GradientSettings())
    >>> settled, why = settle_scale(shots, pool, asked, encoder_scale=20.0)
    >>> settled.gradient.logit_scale
    60.0
    >>> print(why)
    logit scale 60, 3 × the encoder's own: a class has one picture only, so none can be set aside to \
choose by
    """
    asked = settings.gradient
    if asked is None or asked.logit_scale is not None:
        return settings, None
    kept = None if before is None else before.settings.get("logit_scale")
    if before is not None and isinstance(kept, int | float):
        why = before.settings.get("scale_choice")
        settled = replace(settings, gradient=replace(asked, logit_scale=float(kept)))
        return settled, why if isinstance(why, str) else None
    # Checked here too, as a fit would check it: the choice is made before the fit begins.
    pool.check_against(shots)
    start = calibrated_scale(shots, pool) if encoder_scale is None else encoder_scale
    choice = choose_scale(shots, pool, asked, start, views=settings.views_per_round)
    why = str(choice)
    if encoder_scale is None:
        why += (
            f". The encoder's own is not known; {start:.3g} stands for it, at which the best template "
            "suits these pictures best"
        )
    settled = replace(settings, gradient=replace(asked, logit_scale=choice.logit_scale))
    return settled, why


def calibrated_scale(shots: Shots, pool: GridPool) -> float:
    """Give the factor at which the cosines of the best template are the best log-odds.

    That is the one of least mean log loss on the pictures as they are, between 0.5 and 1000; of those
    that are as good to a thousandth, the lowest. The best template is the one that is right about most
    pictures.

    Examples
    --------
    >>> shots = Shots.from_rows([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]], [0, 0, 1, 1])
    >>> pool = GridPool.from_rows([[[1.0, 0.0]], [[0.0, 1.0]]], [[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> round(calibrated_scale(shots, pool), 2)  # two of four pictures are a little wrong
    1.99
    """
    hits = template_hits(shots.originals, shots.labels, pool.templates)
    rows = pool.templates[:, hits.sum(axis=0).argmax()].astype(np.float64)
    cosines = shots.originals.astype(np.float64) @ rows.T / COSINE_UNIT
    losses = np.array([log_losses(scale * cosines, shots.labels).mean() for scale in _SCALES])
    return float(_SCALES[np.argmax(losses <= losses.min() + _AS_GOOD)])
