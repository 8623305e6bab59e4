"""Boosting as text: each round becomes prompts, and an ensemble records the fit that it can continue."""

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile

import numpy as np
from numpy.typing import ArrayLike, NDArray

import promptboost
from promptboost.boosting import BoostRound, BoostSettings, GridPool, Shots, boost
from promptboost.boosting.composition import Composition, GradientTrace
from promptboost.boosting.samme import BoostState
from promptboost.boosting.scale import (
    FoldTexts,
    calibrated_scale,
    choose_scale,
    probability_scales,
    with_relative_scales,
)
from promptboost.errors import LabelError, SettingError, few
from promptboost.model import PromptEnsemble, Round
from promptboost.model.ensemble import EncoderRecord
from promptboost.model.schema import Scalar
from promptboost.progress import Progress, no_progress
from promptboost.training.pool_rows import PoolTexts

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
    encoders: Sequence[EncoderRecord] = (),
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
    encoders : sequence of EncoderRecord
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


# A longer or more patient fit goes through the same rounds, and why a scale is what it is changes none.
_MAY_DIFFER = ("rounds", "patience", "scale_choice")
# A field of the ensemble itself.
_OWN_FIELDS = ("temperature",)


@dataclass(frozen=True)
class FitRecord:
    """All that is known of a fit before its first round."""

    texts: PoolTexts
    settings: BoostSettings
    image_ids: tuple[str, ...]  # in the order of the rows
    recorded: Mapping[str, Scalar]  # the ensemble's settings: see recorded_settings
    encoders: tuple[EncoderRecord, ...]  # none if unknown
    logit_scale: float | None = None  # of probabilities, with the first encoder

    def __post_init__(self) -> None:
        seen: set[object] = set()
        ids: Sequence[object] = self.image_ids
        for name in ids:
            if not isinstance(name, str) or name in seen:
                problem = "occurs twice" if name in seen else "is not a text"
                raise LabelError(f"the image id {name!r} {problem}; give each image its own")
            seen.add(name)

    def ensemble(self, rounds: Sequence[Round], weights: NDArray[np.float64]) -> PromptEnsemble:
        """Return the rounds so far as an ensemble, with the weights that the next would start with."""
        first = self.encoders[0] if self.encoders else None
        return PromptEnsemble(
            class_names=self.texts.class_names,
            rounds=tuple(rounds),
            temperature=self.settings.temperature,
            encoder_id=None if first is None else first.id,
            encoder_fingerprint=None if first is None else first.fingerprint,
            pool_fingerprint=self.texts.fingerprint,
            settings=self.recorded,
            versions={
                "promptboost": promptboost.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            sample_weights=dict(zip(self.image_ids, weights.tolist(), strict=True)),
            logit_scale=self.logit_scale,
            encoder_logit_scale=None if first is None else first.encoder_logit_scale,
            further_encoders=self.encoders[1:],
        )

    def state_after(self, before: PromptEnsemble) -> BoostState:
        """Find where a fit stood when it wrote an ensemble."""
        differences = self._differences(before)
        if differences:
            raise SettingError(
                f"cannot continue this ensemble, it is of another fit: {'; '.join(differences)}"
            )
        quiet = len(list(takewhile(lambda item: item.error == 0, reversed(before.rounds))))
        patience = self.settings.patience
        finished = patience is not None and quiet >= patience
        weights = np.array([before.sample_weights[name] for name in self.image_ids])
        return BoostState(len(before), weights, quiet, finished)

    def _differences(self, before: PromptEnsemble) -> list[str]:
        if before.history:
            return [f"it was edited after its fit ({before.history[-1]})"]
        differences = [
            _differs(what, getattr(before, field), now)
            for what, field, now in (
                ("the classes", "class_names", self.texts.class_names),
                ("the temperature", "temperature", self.settings.temperature),
                ("the pool's fingerprint", "pool_fingerprint", self.texts.fingerprint),
            )
            if getattr(before, field) != now
        ]
        then, now_too = (
            [(item.id, item.fingerprint) for item in ensemble.encoders]
            for ensemble in (before, self)
        )
        if then != now_too:
            differences.append(_differs("the encoders", then, now_too))
        if not before.sample_weights:
            return [
                *differences,
                "it was saved without the weights of its images (sample_weights=True)",
            ]
        if odd := sorted(set(before.sample_weights) ^ set(self.image_ids)):
            names = few([*map(repr, odd)], most=3)
            return [*differences, f"the images: only one fit has {names}"]
        differences += [
            _differs(f"the setting {key!r}", before.settings.get(key), self.recorded.get(key))
            for key in sorted({*before.settings, *self.recorded} - {*_MAY_DIFFER})
            if before.settings.get(key) != self.recorded.get(key)
        ]
        if len(before) > self.settings.rounds:
            differences.append(
                f"it has {len(before)} rounds, more than the {self.settings.rounds} asked for "
                "(truncate gives fewer)"
            )
        return differences


def recorded_settings(
    shots: Shots,
    settings: BoostSettings,
    image_ids: Sequence[str],
    weights: ArrayLike | None,
    notes: Mapping[str, Scalar],
    *,
    scale_choice: str | None = None,
) -> dict[str, Scalar]:
    """Return what an ensemble's ``settings`` say: all a fit depends on, apart from the embeddings."""
    recorded = asdict(settings)
    for name in (*_OWN_FIELDS, "gradient"):
        del recorded[name]
    if settings.gradient is not None:
        recorded |= asdict(settings.gradient)
    recorded["composer"] = settings.composer
    if scale_choice is not None:
        recorded["scale_choice"] = scale_choice
    recorded["views"] = 0 if shots.views is None else shots.views.shape[1]
    # Changes with the ids, labels and order of the images. The name is that of earlier files.
    labeled = json.dumps([list(image_ids), shots.labels.tolist()])
    recorded["pictures"] = _short_hash(labeled.encode())
    start = None if weights is None else np.asarray(weights, dtype="<f8").tobytes()
    recorded["start_weights"] = "uniform" if start is None else _short_hash(start)
    if taken := sorted(set(recorded) & set(notes)):
        raise SettingError(f"notes must not repeat settings of the fit: {', '.join(taken)}")
    return {**recorded, **notes}


def _short_hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _differs(what: str, before: object, now: object) -> str:
    return f"{what}: {before!r} then, {now!r} now"
