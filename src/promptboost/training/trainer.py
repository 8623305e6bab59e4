"""Trainer: the only place that composes prompts, fits residuals and builds heads."""

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import promptboost
from promptboost.boosting import BoostRound, BoostSettings, GradientSettings, GridPool, Shots, boost
from promptboost.boosting.composition import GradientTrace, class_rows
from promptboost.boosting.grid import from_grid
from promptboost.boosting.residual import Residual, added_class_lift, fit_residual, unseen_texts
from promptboost.boosting.samme import BoostState
from promptboost.boosting.scale import (
    FoldClassRows,
    balanced_weights,
    calibrated_scale,
    choose_scale,
    fold_class_rows,
    probability_scales,
    sample_prompts,
    with_relative_scales,
)
from promptboost.config import BoostConfig
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import TextSource
from promptboost.errors import DataError, LabelError, SettingError, few
from promptboost.model import Head, PromptEnsemble, Round
from promptboost.model.ensemble import EncoderRecord
from promptboost.model.head import SCATTERED, Balance
from promptboost.model.schema import Scalar
from promptboost.progress import Progress, no_progress
from promptboost.threads import single_blas_thread
from promptboost.training.examples import Examples
from promptboost.training.pool_rows import PoolRows, PoolTexts

Floats = NDArray[np.floating]
#: Called after each round with the ensemble so far; fitting stops if it returns True.
OnRound = Callable[[PromptEnsemble, BoostRound], bool | None]

# Significant digits that are kept.
_DIGITS = 7


@dataclass(frozen=True)
class Fitted:
    """The result of a fit: the text, and for each encoder its head with residual and class balance.

    Attributes
    ----------
    ensemble : PromptEnsemble
        The text.
    heads : tuple of Head
        One per encoder, in the order of the encoders.
    residuals : tuple of Residual or None
        How the residual of each head was fitted; None without one.
    folds : FoldClassRows or None
        Texts composed on parts of the images, which weighted text and residual.
    """

    ensemble: PromptEnsemble
    heads: tuple[Head, ...]
    residuals: tuple[Residual | None, ...]
    folds: FoldClassRows | None = None

    @property
    def head(self) -> Head:
        """The head of the first encoder."""
        return self.heads[0]


class Trainer:
    """Fit ensembles of prompts, residuals and heads.

    Parameters
    ----------
    config : BoostConfig, optional
        The settings of the fit.
    progress : callable, optional
        Called with stage, done and total.

    Examples
    --------
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> from promptboost.pool import build_pool
    >>> from promptboost.training import PoolTexts
    >>> encoder = FakeEncoder()
    >>> pool = build_pool(
    ...     ["fire", "ice"], descriptions={"fire": ["something red"], "ice": ["something blue"]}
    ... )
    >>> images = encoder.encode_texts(["red", "dark red", "blue", "light blue"])
    >>> examples = Examples(images, np.array([0, 0, 1, 1]), ("a", "b", "c", "d"))
    >>> rows = PoolRows.embed(PoolTexts.of(pool), encoder)
    >>> fitted = Trainer().fit(examples, rows, [encoder])
    >>> fitted.head.predict(encoder.encode_texts(["pale red"])).tolist()
    ['fire']
    """

    def __init__(
        self, config: BoostConfig | None = None, *, progress: Progress = no_progress
    ) -> None:
        self.config = config or BoostConfig()
        self.progress = progress

    def fit(
        self,
        examples: Examples,
        pool: PoolRows,
        sources: Sequence[TextSource],
        *,
        n_heads: int | None = None,
        notes: Mapping[str, Scalar] | None = None,
        resume: PromptEnsemble | None = None,
        on_round: OnRound | None = None,
    ) -> Fitted:
        """Compose an ensemble, fit its residuals, and build its heads.

        Parameters
        ----------
        examples : Examples
            Labeled images of at least two classes of the pool. The embeddings of several encoders are
            next to each other. The bank of a class without images has all sentences of its pool, or 256
            of them.
        pool : PoolRows
            The embedded pool.
        sources : sequence of encoder, mapping or callable
            The encoders, or what embeds texts in their place.
        n_heads : int, optional
            How many of the encoders get a head; all by default.
        notes : mapping of str to scalar, optional
            Other facts that the fit depends on; stored with the settings of the ensemble.
        resume : PromptEnsemble, optional
            An unfinished ensemble of the same fit, to continue.
        on_round : callable, optional
            Called after each round with the ensemble so far and the round; fitting stops if it returns
            True.
        """
        heads = _HeadBuilder(self.config, examples, sources, pool, self.progress)
        learned = pool.of_classes(heads.classes)
        ensemble, folds = fit_ensemble(
            heads.shots,
            learned.grid,
            learned.texts,
            heads.settings,
            image_ids=examples.ids,
            weights=_class_balanced(heads.examples),
            encoders=[
                EncoderRecord.of(source) for source in sources if isinstance(source, Encoder)
            ],
            notes=notes,
            resume=resume,
            on_round=on_round,
            progress=self.progress,
        )
        return heads.build(_with_classes(ensemble, pool.texts), n_heads, folds)

    def refit(
        self,
        ensemble: PromptEnsemble,
        examples: Examples,
        sources: Sequence[TextSource],
        pool: PoolRows | None = None,
        *,
        unseen: Sequence[Floats] | None = None,
    ) -> Fitted:
        """Fit the residuals and the balance of a given text; the text stays.

        Classes without images have no residual; their text is balanced against the others.

        Parameters
        ----------
        ensemble : PromptEnsemble
            The text.
        examples, sources
            As for :meth:`fit`; at least two classes need images.
        pool : PoolRows, optional
            The pool of the fit. Text and residual are weighted by texts composed on parts of the images
            and evaluated on the others; without a pool, `unseen` stands for them.
        unseen : sequence of array of shape (K, D), optional
            Class embeddings made without any image, per encoder, where there is no pool.
        """
        if len(np.unique(examples.labels)) < 2:
            raise DataError("a residual needs images of two classes or more")
        heads = _HeadBuilder(self.config, examples, sources, pool, self.progress)
        return heads.build(ensemble, unseen=unseen)


class _HeadBuilder:
    """Build the heads of a text from labeled images."""

    def __init__(
        self,
        config: BoostConfig,
        examples: Examples,
        sources: Sequence[TextSource],
        pool: PoolRows | None,
        progress: Progress,
    ) -> None:
        self.classes, labels = np.unique(examples.labels, return_inverse=True)  # those with images
        self.examples = replace(examples, labels=labels)
        self.shots = self.examples.shots()
        views = 0 if self.shots.views is None else self.shots.views.shape[1]
        self.settings = boost_settings(
            config if views else replace(config, views_per_round=0), views
        )
        self._config, self._sources, self._pool, self._progress = config, sources, pool, progress

    def build(
        self,
        ensemble: PromptEnsemble,
        n_heads: int | None = None,
        folds: FoldClassRows | None = None,
        unseen: Sequence[Floats] | None = None,
    ) -> Fitted:
        """Return the text with a head for each encoder, or for the first few.

        `folds` are texts composed on parts of the images, if there are any. `unseen` is as for
        :meth:`Trainer.refit`.
        """
        composed = None
        if self._config.residual and self._pool is not None:
            folds, composed = self._fold_texts(ensemble, self._pool, folds)
        else:
            folds = None
        heads, residuals = [], []
        for number, source in enumerate(self._sources[:n_heads]):
            head = ensemble.embed(source)
            start = number * (self.examples.rows.shape[1] // self.examples.encoders)
            columns = slice(start, start + head.dim)
            untrained: Floats
            if self._pool is not None:
                untrained = unseen_texts(self._pool.of(number, head.dim))
            else:
                assert unseen is not None
                untrained = unseen[number][None]
            residual = None
            if self._config.residual:
                residual = self._residual(head, columns, untrained, folds, composed)
                head = head.with_residual(residual)
                if self._pool is not None:
                    head = replace(head, pool_fingerprint=self._pool.texts.fingerprint)
            if residual is not None or len(self.classes) < len(head.class_names):
                head = self._balanced(head, columns, untrained[0])
            heads.append(head)
            residuals.append(residual)
        return Fitted(ensemble, tuple(heads), tuple(residuals), folds)

    def _residual(
        self,
        head: Head,
        columns: slice,
        unseen: Floats,
        folds: FoldClassRows | None,
        composed: Floats | None,
    ) -> Residual:
        """Fit the residual of one encoder, for all classes of the text."""
        text, classes = head.weights / np.float32(head.rounds), self.classes
        views = self.shots.originals[:, None]
        if self.shots.views is not None:
            views = np.concatenate([views, self.shots.views], axis=1)
        if folds is not None:
            folds = replace(folds, rows=folds.rows[..., columns])
            if composed is not None:  # move the text of each fold as much as edits moved the text
                edits = (text[classes] - composed[:, columns]).astype(np.float32, copy=False)
                folds = replace(folds, rows=folds.rows + edits)
        # BLAS has little to do here, and its threads would spin while other processes hold the cores.
        with single_blas_thread():
            residual = fit_residual(
                from_grid(views[..., columns]),
                self.shots.labels,
                text[classes],
                unseen[:, classes],
                folds=folds,
                groups=self.examples.groups,
                weights=self.examples.weights,
                progress=self._progress,
            )
        weights = np.zeros((len(text), head.dim), dtype=residual.weights.dtype)
        weights[classes] = residual.weights
        return replace(residual, weights=weights)

    def _balanced(self, head: Head, columns: slice, unseen: Floats) -> Head:
        """Return the head with the balance of classes without images, present or added later."""
        text, both = (h.matrix / np.float32(h.rounds) for h in (head.without_residual(), head))
        images, labels = self.examples.rows[:, columns], self.classes[self.shots.labels]
        balance = measure_balance(head.class_names, images, labels, text, both, unseen)
        return replace(head, balance=balance)

    def _fold_texts(
        self, ensemble: PromptEnsemble, pool: PoolRows, folds: FoldClassRows | None
    ) -> tuple[FoldClassRows | None, Floats | None]:
        """Compose texts on parts of the images, if that is not done.

        For an edited text, also return the class rows of the text before its edits, composed again.
        """
        if folds is not None and not ensemble.history:
            return folds, None
        known = {encoder.id: encoder.encoder_logit_scale for encoder in ensemble.encoders}
        own_scales = [
            known.get(source.id, source.logit_scale) if isinstance(source, Encoder) else None
            for source in self._sources
        ]
        grid = with_relative_scales(self.shots, pool.of_classes(self.classes).grid, own_scales)
        settings, scale = self.settings, ensemble.settings.get("logit_scale")
        if settings.gradient is not None and isinstance(scale, int | float):
            # It is a multiple of the own scale of the first encoder of the fit, which may be another.
            first = next((encoder.encoder_logit_scale for encoder in ensemble.encoders), None)
            factor = own_scales[0] / first if own_scales[0] and first else 1.0
            gradient = replace(settings.gradient, logit_scale=scale * factor)
            settings = replace(settings, gradient=gradient)
        if folds is None:
            folds = fold_class_rows(self.shots, grid, settings, self._progress)
        if folds is None or not ensemble.history:
            return folds, None
        rounds = boost(self.shots, grid, settings, weights=_class_balanced(self.examples))
        rows = [class_rows(each.composition, grid) for each in rounds]
        return folds, np.asarray(np.mean(rows, axis=0))


def _with_classes(ensemble: PromptEnsemble, texts: PoolTexts) -> PromptEnsemble:
    """Add the classes of a pool without images; their banks have one copy of each sentence."""
    if ensemble.class_names == texts.class_names:
        return ensemble
    banks: dict[str, dict[str, int]] = {}
    for name, prompts, start in zip(
        texts.class_names, texts.prompt_texts, texts.skipped, strict=True
    ):
        if name not in ensemble.class_names:
            numbers = sample_prompts(np.arange(start, len(prompts)))
            banks[name] = {prompts[i]: 1 for i in numbers.tolist()}
    rounds = tuple(replace(round_, banks={**round_.banks, **banks}) for round_ in ensemble.rounds)
    return replace(
        ensemble, class_names=texts.class_names, rounds=rounds, pool_fingerprint=texts.fingerprint
    )


def _class_balanced(examples: Examples) -> Floats | None:
    """Return sample weights with the same total for every class; None if all images count alike."""
    sizes = np.bincount(examples.labels)
    if examples.weights is None and (sizes == sizes[0]).all():
        return None
    return balanced_weights(examples.labels, examples.weights)


def boost_settings(config: BoostConfig, views: int) -> BoostSettings:
    """Return the settings of boosting, where each image has so many views."""
    values = {entry.name: getattr(config, entry.name) for entry in fields(BoostConfig)}
    steps = {entry.name: values.pop(entry.name) for entry in fields(GradientSettings)}
    steps["copies"] = max(config.copies // config.rounds, 1)
    gradient = GradientSettings(**steps) if values.pop("composer") == "gradient" else None
    del values["residual"]  # comes after boosting
    if config.views_per_round is None:
        values["views_per_round"] = views
    return BoostSettings(**values, gradient=gradient)


def measure_balance(
    class_names: tuple[str, ...],
    rows: Floats,
    labels: NDArray[np.integer],
    text: Floats,
    both: Floats,
    unseen: Floats,
) -> Balance | None:
    """Measure the balance on images (n, D).

    `text`, `both` and `unseen` are class rows (K, D): of the text, of text and residual, and of words that
    have seen no image. Return None if the images point in all directions.
    """
    center = rows.mean(axis=0, dtype=np.float64)
    learned = np.unique(labels)
    if center @ center < SCATTERED or len(learned) < 2:
        return None
    classes = np.searchsorted(learned, labels)
    lifts = [
        added_class_lift(rows, classes, matrix[learned], unseen[learned], center)
        for matrix in (text, both)
    ]
    names = tuple(class_names[k] for k in learned.tolist())
    return Balance(names, np.array([_short(x) for x in center]), *map(_short, lifts))


def _short(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


# --- the text -------------------------------------------------------------------------------------


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
    progress: Progress = no_progress,
) -> tuple[PromptEnsemble, FoldClassRows | None]:
    """Compose an ensemble; input is checked before the first round.

    `image_ids` are the unique names of the images, `weights` their initial weights, and `encoders` those
    of the rows, none if they are unknown. `notes`, `resume` and `on_round` are as for
    :meth:`Trainer.fit`; of a resumed fit, only ``rounds`` and ``patience`` may differ. Also return the
    class rows of the folds if cross-validation chooses the logit scale.

    Raises an InputError if the inputs do not match, or `resume` belongs to another fit.
    """
    settings = settings or BoostSettings()
    if len(set(image_ids)) != len(shots.labels):
        raise LabelError(f"{len(set(image_ids))} unique image ids for {len(shots.labels)} images")
    pool.check_against(shots)
    encoder_scales = [record.encoder_logit_scale for record in encoders] or [None] * pool.encoders
    pool = with_relative_scales(shots, pool, encoder_scales)
    settings, why, held_out, folds = settle_scale(
        shots, pool, settings, encoder_scales[0], resume, progress
    )
    if resume is not None and resume.logit_scale is not None:
        resumed = {record.id: record for record in resume.encoders}
        scales = [resume.logit_scale]
        encoders = [
            replace(
                record,
                logit_scale=resumed[record.id].logit_scale,
                encoder_logit_scale=resumed[record.id].encoder_logit_scale,
            )
            if record.id in resumed
            else record
            for record in encoders
        ]
    else:
        scales = probability_scales(shots, pool, settings, encoder_scales, held_out)
        encoders = [
            replace(record, logit_scale=scale)
            for record, scale in zip(encoders, scales, strict=False)
        ]
    first = encoders[0] if encoders else None
    facts: dict[str, Any] = {
        "class_names": texts.class_names,
        "temperature": settings.temperature,
        "encoder_id": first and first.id,
        "encoder_fingerprint": first and first.fingerprint,
        "pool_fingerprint": texts.fingerprint,
        "settings": _recorded_settings(shots, settings, image_ids, weights, notes or {}, why),
        "versions": {
            "promptboost": promptboost.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "logit_scale": scales[0],
        "encoder_logit_scale": first and first.encoder_logit_scale,
        "further_encoders": tuple(encoders[1:]),
    }

    def ensemble_of(rounds: Sequence[Round], weights: NDArray[np.float64]) -> PromptEnsemble:
        sample_weights = dict(zip(image_ids, weights.tolist(), strict=True))
        return PromptEnsemble(rounds=tuple(rounds), sample_weights=sample_weights, **facts)

    rounds: list[Round] = []
    state = None
    if resume is not None:
        pairs = [(record.id, record.fingerprint) for record in encoders]
        _check_same_fit(resume, facts | {"encoders": pairs}, image_ids, settings.rounds)
        state, rounds, weights = _state_after(resume, image_ids, settings), [*resume.rounds], None
    for boosted in boost(shots, pool, settings, weights=weights, state=state, progress=progress):
        rounds.append(_round_as_text(boosted, texts))
        state = boosted.state
        if on_round is not None and on_round(ensemble_of(rounds, state.weights), boosted):
            break
    assert state is not None  # settings require at least one round
    return ensemble_of(rounds, state.weights), folds


def settle_scale(
    shots: Shots,
    pool: GridPool,
    settings: BoostSettings,
    encoder_scale: float | None,
    resume: PromptEnsemble | None = None,
    progress: Progress = no_progress,
) -> tuple[BoostSettings, str | None, Floats | None, FoldClassRows | None]:
    """Choose the logit scale of the gradient composer, if it is not set.

    Return the settings with a scale, an explanation of the choice, and from its cross-validation the
    held-out scores and the class rows of the folds; all but the settings are None if nothing was chosen.
    A resumed fit keeps its scale.
    """
    gradient = settings.gradient
    if gradient is None or gradient.logit_scale is not None:
        return settings, None, None, None
    earlier = None if resume is None else resume.settings.get("logit_scale")
    if resume is not None and isinstance(earlier, int | float):
        why = resume.settings.get("scale_choice")
        settled = replace(settings, gradient=replace(gradient, logit_scale=float(earlier)))
        return settled, why if isinstance(why, str) else None, None, None
    start = calibrated_scale(shots, pool) if encoder_scale is None else encoder_scale
    views = settings.views_per_round
    choice = choose_scale(shots, pool, gradient, start, views=views, progress=progress)
    why = str(choice)
    if encoder_scale is None:
        why += f"; the encoder's own scale was estimated as {start:.3g} from the best template"
    settled = replace(settings, gradient=replace(gradient, logit_scale=choice.logit_scale))
    return settled, why, choice.held_out, choice.fold_class_rows


def _round_as_text(boosted: BoostRound, texts: PoolTexts) -> Round:
    weak = boosted.composition
    banks: dict[str, Counter[str]] = {}
    for k, name in enumerate(texts.class_names):
        bank = banks[name] = Counter()
        if weak.template_copies[k]:
            bank[texts.template_texts[k][weak.template]] = weak.template_copies[k]
        for prompt, copies in weak.banks[k].items():
            bank[texts.prompt_texts[k][prompt]] += copies
    trace = weak.trace if isinstance(weak.trace, GradientTrace) else None
    return Round(
        template=texts.templates[weak.template],
        banks=banks,
        error=weak.error,
        template_error=weak.template_error,
        composer=weak.composer,
        objective=trace.objectives[-1] if trace else None,
        gap=trace.gaps[-1] if trace else None,
    )


# Settings that do not change the rounds so far.
_MAY_DIFFER = ("rounds", "patience", "scale_choice")


def _state_after(
    ensemble: PromptEnsemble, image_ids: Sequence[str], settings: BoostSettings
) -> BoostState:
    """Return the state of a fit after the rounds of an ensemble."""
    quiet = len(list(takewhile(lambda round_: round_.error == 0, reversed(ensemble.rounds))))
    finished = settings.patience is not None and quiet >= settings.patience
    weights = np.array([ensemble.sample_weights[name] for name in image_ids])
    return BoostState(len(ensemble), weights, quiet, finished)


def _check_same_fit(
    ensemble: PromptEnsemble, facts: Mapping[str, Any], image_ids: Sequence[str], rounds: int
) -> None:
    """Raise if an ensemble is not of the fit with these facts and images, or has more rounds."""
    then = [(record.id, record.fingerprint) for record in ensemble.encoders]
    pairs: dict[str, tuple[Any, Any]] = {
        "the classes": (ensemble.class_names, facts["class_names"]),
        "the temperature": (ensemble.temperature, facts["temperature"]),
        "the pool's fingerprint": (ensemble.pool_fingerprint, facts["pool_fingerprint"]),
        "the encoders": (then, facts["encoders"]),
    }
    if ensemble.sample_weights:
        pairs |= {
            f"the setting {key!r}": (ensemble.settings.get(key), facts["settings"].get(key))
            for key in sorted({*ensemble.settings, *facts["settings"]} - {*_MAY_DIFFER})
        }
    differences = [
        f"{what}: {old!r} before, {new!r} now" for what, (old, new) in pairs.items() if old != new
    ]
    if not ensemble.sample_weights:
        differences.append("it has no sample weights (save it with sample_weights=True)")
    elif different := sorted(set(ensemble.sample_weights) ^ set(image_ids)):
        names = few([*map(repr, different)], most=3)
        differences.append(f"the images: only one of the fits has {names}")
    if len(ensemble) > rounds:
        differences.append(f"it has {len(ensemble)} rounds, more than {rounds} (truncate it)")
    if ensemble.history:
        differences = [f"it was edited after its fit ({ensemble.history[-1]})"]
    if differences:
        raise SettingError(
            f"cannot resume from this ensemble, as the fit was another: {'; '.join(differences)}"
        )


def _recorded_settings(
    shots: Shots,
    settings: BoostSettings,
    image_ids: Sequence[str],
    weights: ArrayLike | None,
    notes: Mapping[str, Scalar],
    scale_choice: str | None,
) -> dict[str, Scalar]:
    """Return the ``settings`` of an ensemble: all that a fit depends on, apart from the embeddings."""
    recorded = asdict(settings)
    for name in ("temperature", "gradient"):
        del recorded[name]
    if settings.gradient is not None:
        recorded |= asdict(settings.gradient)
    recorded["composer"] = settings.composer
    if scale_choice is not None:
        recorded["scale_choice"] = scale_choice
    recorded["views"] = 0 if shots.views is None else shots.views.shape[1]
    # A hash of the ids, labels and order of the images; the key is part of the file format.
    labeled = json.dumps([list(image_ids), shots.labels.tolist()])
    recorded["pictures"] = _short_hash(labeled.encode())
    start = None if weights is None else np.asarray(weights, dtype="<f8").tobytes()
    recorded["start_weights"] = "uniform" if start is None else _short_hash(start)
    if repeated := sorted(set(recorded) & set(notes)):
        raise SettingError(f"notes must not repeat settings of the fit: {', '.join(repeated)}")
    return {**recorded, **notes}


def _short_hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
