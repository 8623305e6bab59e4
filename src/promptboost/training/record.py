"""What an ensemble says about its fit, and whether another fit would continue it."""

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import ArrayLike, NDArray

import promptboost
from promptboost.boosting import BoostSettings, BoostState, Shots
from promptboost.errors import LabelError, SettingError, few
from promptboost.model import LearntOn, PromptEnsemble, Round
from promptboost.model.schema import Scalar
from promptboost.training.pool_rows import PoolTexts

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
    encoders: tuple[LearntOn, ...]  # none if unknown
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
    labelled = json.dumps([list(image_ids), shots.labels.tolist()])
    recorded["pictures"] = _short_hash(labelled.encode())
    start = None if weights is None else np.asarray(weights, dtype="<f8").tobytes()
    recorded["start_weights"] = "uniform" if start is None else _short_hash(start)
    if taken := sorted(set(recorded) & set(notes)):
        raise SettingError(f"notes must not repeat settings of the fit: {', '.join(taken)}")
    return {**recorded, **notes}


def _short_hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _differs(what: str, before: object, now: object) -> str:
    return f"{what}: {before!r} then, {now!r} now"
