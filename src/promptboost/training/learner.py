"""Boosting, written down: each round becomes text as soon as it is done."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting import BoostRound, BoostSettings, GradientTrace, GridPool, Shots, boost
from promptboost.boosting.composition import Composition, log_losses, parts_of, scores_of
from promptboost.boosting.gradient.compose import GradientSettings
from promptboost.boosting.gradient.scale import (
    FoldTexts,
    calibrated_scale,
    choose_scale,
    dealt,
    drawn,
    fold_texts,
    lowest,
    most_rows,
)
from promptboost.boosting.grid import GridRows, from_grid, stacked
from promptboost.boosting.quota import OnRows, Quota, unwatched
from promptboost.boosting.residual import Residual, expected_rows, fit_residual
from promptboost.boosting.samme import rows_of_round
from promptboost.config import BoostConfig
from promptboost.errors import EncoderError, LabelError
from promptboost.model import LearntOn, LinearHead, PromptEnsemble, Round
from promptboost.model.schema import Scalar
from promptboost.threads import single_blas_thread
from promptboost.training.pool_rows import PoolTexts
from promptboost.training.record import FitRecord, recorded_settings

Scores = NDArray[np.floating]
OnFolds = Callable[[FoldTexts], object]

# Steps of a twentieth: the log loss hardly changes within one.
_SCALES = np.geomspace(0.5, 2000.0, 171)


def settle_scale(
    shots: Shots,
    pool: GridPool,
    settings: BoostSettings,
    encoder_scale: float | None,
    before: PromptEnsemble | None = None,
    on_folds: OnFolds | None = None,
    on_rows: OnRows = unwatched,
) -> tuple[BoostSettings, str | None, Scores | None]:
    """Choose the logit scale of the composer, if the composer needs one and none is given.

    Returned are the settings with a scale, why it is this one, and the scores of the images when they
    were set aside to choose it; None where nothing was chosen. What the fit continues keeps its scale.
    `on_folds` is called with the texts that were composed at that scale without some of the images.
    """
    asked = settings.gradient
    if asked is None or asked.logit_scale is not None:
        return settings, None, None
    kept = None if before is None else before.settings.get("logit_scale")
    if before is not None and isinstance(kept, int | float):
        why = before.settings.get("scale_choice")
        settled = replace(settings, gradient=replace(asked, logit_scale=float(kept)))
        return settled, why if isinstance(why, str) else None, None
    # Checked here too, as a fit would check it: the choice is made before the fit begins.
    pool.check_against(shots)
    start = calibrated_scale(shots, pool) if encoder_scale is None else encoder_scale
    views = settings.views_per_round
    choice = choose_scale(shots, pool, asked, start, views=views, on_rows=on_rows)
    why = str(choice)
    if encoder_scale is None:
        why += (
            f". The encoder's own is not known; {start:.3g} stands for it, at which the best template "
            "suits these images best"
        )
    settled = replace(settings, gradient=replace(asked, logit_scale=choice.logit_scale))
    if on_folds is not None and choice.texts is not None:
        on_folds(choice.texts)
    return settled, why, choice.held_out


def calibrated_logit_scale(
    shots: Shots,
    pool: GridPool,
    settings: BoostSettings,
    encoder_scale: float | None,
    held_out: Scores | None = None,
    encoder: int = 0,
) -> float:
    """Choose the logit scale that probabilities use: the one of least log loss on images set aside.

    On the images it was composed on, an ensemble is nearly always right, and any scale would look too
    low: with made-up CLIP-like rows, the scale that suits those is up to 70 times the one that suits
    new images. So only images that were set aside count. The gradient composer sets them aside to choose
    its own scale, in up to four folds; their scores are used again. For the greedy composer, and where a
    scale is given, one round is composed on each half of the images and scored on the other. A mean of
    many rounds is a little surer than one round, and the scale on the low side for it.

    Few images may all be right by luck, and then the loss falls for ever. As Platt does, the loss is
    taken with softened targets: as if, beside the n images, half an image were of any class.

    With one image of a class none can be set aside: then it is the encoder's own scale.

    Of several encoders, it is the scale of the one with the number `encoder`.
    """
    if held_out is None and np.bincount(shots.labels).min() < 2:
        return calibrated_scale(shots, pool, encoder) if encoder_scale is None else encoder_scale
    if held_out is None:
        held_out = scores_of_halves(shots, pool, settings)
    scores = held_out[parts_of(len(held_out), pool.encoders)[encoder]]
    judged = np.isfinite(scores).all(axis=1)  # the others were never set aside
    scores, labels = scores[judged].astype(np.float64), shots.labels[judged]
    n = len(labels)

    def loss(scale: float) -> float:
        logits = scale * scores
        losses_of_label = log_losses(logits, labels)
        # The mean over classes of the loss is the loss of the own class plus how far the others lie.
        others = logits[np.arange(n), labels] - logits.mean(axis=1)
        return float((losses_of_label + others / (2 * n + 1)).mean())

    return float(f"{lowest(loss, _SCALES):.4g}")


def scores_of_halves(
    shots: Shots, pool: GridPool, settings: BoostSettings, on_rows: OnRows = unwatched
) -> Scores:
    """Compose a round on each half of the images, and return the scores of the other, stacked."""
    settings = replace(settings, rounds=1, patience=None)
    half = dealt(shots.labels, 2)
    scores = np.empty((pool.encoders, len(shots.labels), len(pool.prompts)))
    for part in (0, 1):
        kept, aside = half != part, half == part
        views = None if shots.views is None else np.ascontiguousarray(shots.views[kept])
        learnt = Shots(np.ascontiguousarray(shots.originals[kept]), shots.labels[kept], views)
        (done,) = boost(learnt, pool, settings, on_rows=on_rows)
        found = scores_of(done.composition, stacked(shots.originals[aside], pool.encoders), pool)
        scores[:, aside] = found.reshape(pool.encoders, -1, scores.shape[2])
    return scores.reshape(-1, scores.shape[2])


def boost_settings(config: BoostConfig, views: int) -> BoostSettings:
    """Return what boosting is asked, where there are so many views of each image."""
    asked = {item.name: getattr(config, item.name) for item in fields(BoostConfig)}
    steps = GradientSettings(
        **{item.name: asked.pop(item.name) for item in fields(GradientSettings)}
    )
    gradient = steps if asked.pop("composer") == "gradient" else None
    del asked["residual"]  # comes after boosting
    if config.views_per_round is None:
        asked["views_per_round"] = views
    return BoostSettings(**asked, gradient=gradient)


def learn_residual(
    shots: Shots,
    pool: GridPool,
    text_rows: NDArray[np.floating],
    settings: BoostSettings,
    weights: ArrayLike | None = None,
    encoder: int = 0,
    folds: FoldTexts | None = None,
    on_rows: OnRows = unwatched,
) -> Residual:
    """Learn what the images teach beside a text that was composed on them; see :mod:`.boosting.residual`.

    `text_rows`, (K, D), are the mean rows of its banks, and `settings` have the logit scale it was
    composed at. Texts composed on parts of the images say how far it can be trusted, where the gradient
    composer made the text and there are images enough. They are `folds` if the choice of that scale has
    composed them, else they are composed here, and are the same: a fit that was interrupted ends with the
    same residual. Of several encoders, the residual is that of the one with the number `encoder`, whose
    rows the text's are; the parts are composed on all. `on_rows` is told of :func:`rows_of_residual`.
    """
    start = encoder * (pool.templates.shape[2] // pool.encoders)
    block = slice(start, start + text_rows.shape[1])
    originals = shots.originals[:, None]
    rows = originals if shots.views is None else np.concatenate([originals, shots.views], axis=1)
    templates = from_grid(pool.templates[..., block]).mean(axis=1)
    gradient = settings.gradient
    quota = Quota(
        rows_of_residual(shots, settings, pool.encoders, folds=folds is not None), on_rows
    )
    if folds is None and gradient is not None and gradient.logit_scale is not None:
        views = settings.views_per_round
        folds = fold_texts(shots, pool, gradient, views=views, on_rows=quota.use)
    # Little is left to BLAS there, and its threads would spin while other processes hold the cores.
    with single_blas_thread():
        residual = fit_residual(
            from_grid(rows[..., block]),
            shots.labels,
            text_rows,
            _unseen_rows(templates, [prompts[:, block] for prompts in pool.prompts]),
            folds=None if folds is None else folds.fold,
            fold_rows=None if folds is None else folds.rows[..., block],
            weights=weights,
            on_rows=quota.use,
        )
    quota.end()
    return residual


def rows_of_residual(shots: Shots, settings: BoostSettings, encoders: int, *, folds: bool) -> int:
    """Return how many rows the residual of one encoder takes about, if the texts of `folds` are there."""
    rows = expected_rows(len(shots.labels), 0 if shots.views is None else shots.views.shape[1])
    if settings.gradient is None or folds:
        return rows
    views = settings.views_per_round
    return rows + most_rows(shots, settings.gradient, encoders, views=views, scales=1)


def _unseen_rows(
    templates: NDArray[np.floating], prompts: Sequence[GridRows]
) -> NDArray[np.floating]:
    """Return class rows that have seen no image, (2, K, D): the means of templates and of prompts."""
    means = [np.mean(drawn(of_class), axis=0, dtype=np.float64) for of_class in prompts]
    rows = np.stack([templates, np.stack(means)])
    lengths = np.linalg.norm(rows, axis=2, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1))


def head_with_residual(
    head: LinearHead,
    ensemble: PromptEnsemble,
    shots: Shots,
    pool: GridPool,
    settings: BoostSettings,
    weights: ArrayLike | None = None,
    encoder: int = 0,
    folds: FoldTexts | None = None,
    on_rows: OnRows = unwatched,
) -> tuple[LinearHead, Residual]:
    """Learn the residual of a fitted text, and return its head with it; see :func:`learn_residual`."""
    if ensemble.further_encoders:
        further = ensemble.further_encoders
        pool = _with_scales(shots, pool, ensemble.encoder_logit_scale, further)
    scale = ensemble.settings.get("logit_scale")
    if settings.gradient is not None and isinstance(scale, int | float):
        settings = replace(settings, gradient=replace(settings.gradient, logit_scale=float(scale)))
    rows = head.weights / np.float32(head.rounds)
    residual = learn_residual(shots, pool, rows, settings, weights, encoder, folds, on_rows)
    return head.with_residual(residual), residual


OnRound = Callable[[PromptEnsemble, BoostRound], bool | None]


def fit_ensemble(
    shots: Shots,
    pool: GridPool,
    texts: PoolTexts,
    settings: BoostSettings | None = None,
    *,
    image_ids: Sequence[str],
    weights: ArrayLike | None = None,
    encoder_id: str | None = None,
    encoder_fingerprint: str | None = None,
    encoder_scale: float | None = None,
    further_encoders: Sequence[LearntOn] = (),
    notes: Mapping[str, Scalar] | None = None,
    resume: PromptEnsemble | None = None,
    on_round: OnRound | None = None,
    on_folds: OnFolds | None = None,
    on_rows: OnRows = unwatched,
) -> PromptEnsemble:
    """Boost, and return the result as text. Input is checked before the first round.

    Parameters
    ----------
    shots : Shots
        Labelled images and their views.
    pool : GridPool
        The rows of templates and prompts.
    texts : PoolTexts
        What they say, in the same order.
    settings : BoostSettings, optional
        The paper's by default.
    image_ids : sequence of str
        A name for each image, under which its weight is kept.
    weights : array of float, shape (n,), optional
        Sample weights to start with; uniform by default.
    encoder_id, encoder_fingerprint : str, optional
        The encoder that made the rows.
    encoder_scale : float, optional
        What that encoder multiplies cosines with. Where `settings` leave the logit scale of the gradient
        composer open, it is chosen around this.
    further_encoders : sequence of LearntOn
        The other encoders, where those of several are side by side in the rows (see
        :func:`~promptboost.boosting.grid.side_by_side`). Their logit scales are chosen here.
    notes : mapping of str to scalar, optional
        What else the rows depend on, such as how views were drawn: kept with the settings.
    resume : PromptEnsemble, optional
        What an earlier, shorter call gave or passed to `on_round`. The fit continues after its last
        round, and ends with the text that it would have had without the interruption. Only ``rounds``
        and ``patience`` may differ from the earlier call.
    on_round : callable, optional
        Called after each round with the ensemble so far, which may be saved, and the round. If
        it returns True, no further round is begun.
    on_folds : callable, optional
        Called with the texts composed without some of the images, if the logit scale is chosen by them:
        the residual needs them again (see :func:`learn_residual`).
    on_rows : callable, optional
        Told how far it has come: of the rows gone over since, in all of :func:`rows_of_fit`.

    Returns
    -------
    PromptEnsemble
        Copies of prompts with the same text are counted together, template included.

    Raises
    ------
    InputError
        If the parts do not belong together, or `resume` is of another fit; the message names what
        differs.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> encoder = FakeEncoder()
    >>> texts = PoolTexts.of(build_pool(
    ...     ["fire", "ice"],
    ...     templates=["a photo of {}."],
    ...     descriptions={"fire": ["something red"], "ice": ["something blue"]},
    ... ))
    >>> images = encoder.encode_texts(["red", "dark red", "blue", "light blue"])
    >>> ensemble = fit_ensemble(
    ...     Shots.from_rows(images, [0, 0, 1, 1]),
    ...     texts.embed(encoder.encode_texts),
    ...     texts,
    ...     BoostSettings(rounds=2, views_per_round=0),
    ...     image_ids=["a.png", "b.png", "c.png", "d.png"],
    ... )
    >>> ensemble.rounds[0].banks["fire"]
    {'a photo of fire.': 1, 'something red': 1}
    """
    settings = settings or BoostSettings()
    texts.check_against(pool)
    if len(image_ids) != len(shots.labels):
        raise LabelError(f"{len(image_ids)} image ids for {len(shots.labels)} images")
    if further_encoders:
        pool = _with_scales(shots, pool, encoder_scale, further_encoders)
    quota = Quota(rows_of_fit(shots, settings, pool.encoders, resume), on_rows)
    settings, why, held_out = settle_scale(
        shots, pool, settings, encoder_scale, resume, on_folds, quota.use
    )
    scale: float | None
    if resume is not None and resume.logit_scale is not None:
        scale, encoder_scale = resume.logit_scale, resume.encoder_logit_scale
        known = {item.id: item.logit_scale for item in resume.further_encoders}
        further_encoders = [
            replace(item, logit_scale=known.get(item.id, item.logit_scale))
            for item in further_encoders
        ]
    else:
        own = encoder_scale, *(item.encoder_logit_scale for item in further_encoders)
        scale, *others = _logit_scales(shots, pool, settings, own, held_out, quota.use)
        further_encoders = [
            item if other is None else replace(item, logit_scale=other)
            for item, other in zip(further_encoders, others, strict=True)
        ]
    record = FitRecord(
        texts,
        settings,
        tuple(image_ids),
        recorded_settings(shots, settings, image_ids, weights, notes or {}, scale_choice=why),
        encoder_id,
        encoder_fingerprint,
        encoder_scale,
        scale,
        tuple(further_encoders),
    )
    rounds: list[Round] = []
    state = None
    if resume is not None:
        state, rounds, weights = record.state_after(resume), [*resume.rounds], None

    def report(done: BoostRound) -> bool | None:
        # Boosting gives a round out before it calls back, so that it is among the rounds already.
        assert on_round is not None
        return on_round(record.ensemble(rounds, done.state.weights), done)

    callback = None if on_round is None else report
    for done in boost(
        *(shots, pool, settings),
        weights=weights,
        state=state,
        callback=callback,
        on_rows=quota.use,
    ):
        rounds.append(round_text(done, texts))
        state = done.state
    quota.end()
    assert state is not None  # at least one round is done: settings refuse to ask for none
    return record.ensemble(rounds, np.asarray(state.weights))


def _logit_scales(
    shots: Shots,
    pool: GridPool,
    settings: BoostSettings,
    own: Sequence[float | None],
    held_out: Scores | None,
    on_rows: OnRows,
) -> list[float | None]:
    """Choose what scores are multiplied with, to be probabilities, for each encoder by its `own` scale."""
    if settings.algorithm == "samme":  # its votes are log-odds already: see FitRecord.ensemble
        return [None] * len(own)
    pool.check_against(shots)
    if held_out is None and np.bincount(shots.labels).min() > 1:  # once for all encoders
        held_out = scores_of_halves(shots, pool, settings, on_rows)
    return [
        calibrated_logit_scale(shots, pool, settings, scale, held_out, number)
        for number, scale in enumerate(own)
    ]


def rows_of_fit(
    shots: Shots,
    settings: BoostSettings,
    encoders: int = 1,
    before: PromptEnsemble | None = None,
    residuals: int = 0,
) -> int:
    """Return how many rows :func:`fit_ensemble` goes over at most, and the residuals after it.

    `before` is what the fit goes on with.
    """
    a_round = rows_of_round(len(shots.labels), settings, encoders)
    asked = settings.gradient
    choice = before is None and asked is not None and asked.logit_scale is None
    rows = (settings.rounds - (0 if before is None else len(before))) * a_round
    if asked is not None and choice:
        rows += most_rows(shots, asked, encoders, views=settings.views_per_round)
    elif before is None and settings.algorithm == "samme.r" and np.bincount(shots.labels).min() > 1:
        rows += a_round  # for both halves of the images: see scores_of_halves
    if residuals:
        rows += residuals * rows_of_residual(shots, settings, encoders, folds=choice)
    return max(rows, 0)


def _with_scales(
    shots: Shots, pool: GridPool, first: float | None, further: Sequence[LearntOn]
) -> GridPool:
    """Note what each encoder multiplies cosines with; one that does not say is looked at."""
    own = [first, *(item.encoder_logit_scale for item in further)]
    if pool.templates.shape[2] % len(own):
        raise EncoderError(
            f"{len(own)} encoders are named, but {pool.templates.shape[2]} columns are no rows of so "
            "many side by side"
        )
    pool = replace(pool, scales=(1.0,) * len(own))
    pool.check_against(shots)
    scales = [
        calibrated_scale(shots, pool, number) if scale is None else scale
        for number, scale in enumerate(own)
    ]
    return replace(pool, scales=tuple(scale / scales[0] for scale in scales))


def bank_texts(weak: Composition, texts: PoolTexts) -> dict[str, dict[str, int]]:
    """Put the banks of a weak classifier into words: class name → {text: copies}."""
    banks: dict[str, dict[str, int]] = {}
    for k, name in enumerate(texts.class_names):
        bank: Counter[str] = Counter()
        if weak.template_copies[k]:
            bank[texts.template_texts[k][weak.template]] = weak.template_copies[k]
        for prompt, copies in weak.banks[k].items():
            bank[texts.prompt_texts[k][prompt]] += copies
        banks[name] = bank
    return banks


def round_text(done: BoostRound, texts: PoolTexts) -> Round:
    """Put a round into words."""
    weak = done.composition
    trace = weak.trace if isinstance(weak.trace, GradientTrace) else None
    return Round(
        template=texts.templates[weak.template],
        banks=bank_texts(weak, texts),
        error=weak.error,
        template_error=weak.template_error,
        vote=done.vote,
        composer=weak.composer,
        objective=trace.objectives[-1] if trace else None,
        gap=trace.gaps[-1] if trace else None,
    )
