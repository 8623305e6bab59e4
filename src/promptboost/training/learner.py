"""Boosting as text: every round becomes readable prompts as soon as it is composed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting import BoostRound, BoostSettings, GradientTrace, GridPool, Shots, boost
from promptboost.boosting.calibration import probability_scales, with_relative_scales
from promptboost.boosting.composition import Composition
from promptboost.boosting.gradient.scale import FoldTexts, calibrated_scale, choose_scale
from promptboost.errors import LabelError, SettingError
from promptboost.model import LearntOn, PromptEnsemble, Round
from promptboost.model.schema import Scalar
from promptboost.progress import Progress, no_progress
from promptboost.training.pool_rows import PoolTexts
from promptboost.training.record import FitRecord, recorded_settings

Scores = NDArray[np.floating]


def settle_scale(
    shots: Shots,
    pool: GridPool,
    settings: BoostSettings,
    encoder_scale: float | None,
    resume: PromptEnsemble | None = None,
    progress: Progress = no_progress,
) -> tuple[BoostSettings, str | None, Scores | None, FoldTexts | None]:
    """Choose the logit scale of the gradient composer, if it is not given.

    Returns the settings with a scale, the reason for it, and from the cross-validation that chose it the
    held-out scores of the images and the texts of the folds (None where nothing was chosen). A resumed
    fit keeps its scale.
    """
    gradient = settings.gradient
    if gradient is None or gradient.logit_scale is not None:
        return settings, None, None, None
    earlier = None if resume is None else resume.settings.get("logit_scale")
    if resume is not None and isinstance(earlier, int | float):
        why = resume.settings.get("scale_choice")
        settled = replace(settings, gradient=replace(gradient, logit_scale=float(earlier)))
        return settled, why if isinstance(why, str) else None, None, None
    pool.check_against(shots)  # before the choice, not only in the fit
    start = calibrated_scale(shots, pool) if encoder_scale is None else encoder_scale
    views = settings.views_per_round
    choice = choose_scale(shots, pool, gradient, start, views=views, progress=progress)
    why = str(choice)
    if encoder_scale is None:
        why += (
            f". The encoder's own scale is unknown; {start:.3g} replaces it, at which the best template "
            "suits these images best"
        )
    settled = replace(settings, gradient=replace(gradient, logit_scale=choice.logit_scale))
    return settled, why, choice.held_out, choice.texts


OnRound = Callable[[PromptEnsemble, BoostRound], bool | None]


def fit_ensemble(
    shots: Shots,
    pool: GridPool,
    texts: PoolTexts,
    settings: BoostSettings | None = None,
    *,
    image_ids: Sequence[str],
    weights: ArrayLike | None = None,
    encoders: Sequence[LearntOn] = (),
    notes: Mapping[str, Scalar] | None = None,
    resume: PromptEnsemble | None = None,
    on_round: OnRound | None = None,
    on_folds: Callable[[FoldTexts], object] | None = None,
    progress: Progress = no_progress,
) -> PromptEnsemble:
    """Boost and return the result as text. Input is checked before the first round.

    Parameters
    ----------
    shots : Shots
        Labeled images and their views.
    pool : GridPool
        The rows of templates and prompts.
    texts : PoolTexts
        Their texts, in the same order.
    settings : BoostSettings, optional
        The paper's by default.
    image_ids : sequence of str
        A name for each image, under which its weight is kept.
    weights : array of float, shape (n,), optional
        Sample weights to start with; uniform by default.
    encoders : sequence of LearntOn
        The encoders whose embeddings are next to each other in the rows, with their own logit scales;
        none if unknown. The logit scales of probabilities are chosen here.
    notes : mapping of str to scalar, optional
        Other facts that the rows depend on, such as how views were drawn; stored with the settings.
    resume : PromptEnsemble, optional
        The result of an earlier, shorter call. The fit continues after its last round, and ends with the
        same text as without the interruption. Only ``rounds`` and ``patience`` may differ.
    on_round : callable, optional
        Called after each round with the ensemble so far and the round; fitting stops if it returns
        True.
    on_folds : callable, optional
        Called with the texts of the folds, where cross-validation chooses the logit scale: the residual
        needs them again.
    progress : callable, optional
        Called with stage, done and total.

    Returns
    -------
    PromptEnsemble
        Copies of prompts with the same text are counted together, template included.

    Raises
    ------
    InputError
        If the parts do not match, or `resume` belongs to another fit; the message names the difference.

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
    own_scales = [item.encoder_logit_scale for item in encoders] or [None] * pool.encoders
    pool = with_relative_scales(shots, pool, own_scales)
    settings, why, held_out, folds = settle_scale(
        shots, pool, settings, own_scales[0], resume, progress
    )
    if folds is not None and on_folds is not None:
        on_folds(folds)
    if resume is not None and resume.logit_scale is not None:
        scale, known = resume.logit_scale, {item.id: item for item in resume.encoders}
        encoders = [
            replace(
                item,
                logit_scale=known[item.id].logit_scale,
                encoder_logit_scale=known[item.id].encoder_logit_scale,
            )
            if item.id in known
            else item
            for item in encoders
        ]
    else:
        pool.check_against(shots)
        scales = probability_scales(shots, pool, settings, own_scales, held_out)
        scale = scales[0]
        encoders = [
            replace(item, logit_scale=value) for item, value in zip(encoders, scales, strict=False)
        ]
    record = FitRecord(
        texts,
        settings,
        tuple(image_ids),
        recorded_settings(shots, settings, image_ids, weights, notes or {}, scale_choice=why),
        tuple(encoders),
        scale,
    )
    rounds: list[Round] = []
    state = None
    if resume is not None:
        state, rounds, weights = record.state_after(resume), [*resume.rounds], None

    for done in boost(shots, pool, settings, weights=weights, state=state, progress=progress):
        rounds.append(round_text(done, texts))
        state = done.state
        if on_round is not None and _stops(on_round(record.ensemble(rounds, state.weights), done)):
            break
    assert state is not None  # settings require at least one round
    return record.ensemble(rounds, np.asarray(state.weights))


def _stops(answer: object) -> bool:
    if answer is None or isinstance(answer, bool | np.bool_):
        return bool(answer)
    raise SettingError(f"on_round returns True to stop, else None or False; got {answer!r}")


def bank_texts(weak: Composition, texts: PoolTexts) -> dict[str, dict[str, int]]:
    """Return the banks of a weak classifier as text: class name → {text: copies}."""
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
    """Return a round as text."""
    weak = done.composition
    trace = weak.trace if isinstance(weak.trace, GradientTrace) else None
    return Round(
        template=texts.templates[weak.template],
        banks=bank_texts(weak, texts),
        error=weak.error,
        template_error=weak.template_error,
        composer=weak.composer,
        objective=trace.objectives[-1] if trace else None,
        gap=trace.gaps[-1] if trace else None,
    )
