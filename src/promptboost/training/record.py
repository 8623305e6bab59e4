"""What an ensemble says about its fit, and whether another fit would continue it."""

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

import promptboost
from promptboost.boosting import BoostSettings, BoostState, Shots
from promptboost.errors import LabelError, SettingError
from promptboost.model import PromptEnsemble, Round
from promptboost.model.schema import Scalar
from promptboost.training.pool_rows import PoolTexts

# A longer or more patient fit goes through the same rounds, and why a scale is what it is changes none.
_MAY_DIFFER = ("rounds", "patience", "scale_choice")
# These are fields of the ensemble itself.
_OWN_FIELDS = ("algorithm", "temperature")


@dataclass(frozen=True)
class FitRecord:
    """All that is known of a fit before its first round.

    Attributes
    ----------
    texts : PoolTexts
        The words.
    settings : BoostSettings
        What boosting is asked.
    image_ids : tuple of str
        One for each image, in the order of the rows.
    recorded : mapping of str to scalar
        The ensemble's ``settings``: see :func:`recorded_settings`.
    encoder_id, encoder_fingerprint : str or None
        Where the rows come from.
    encoder_scale : float or None
        What that encoder multiplies cosines with.
    logit_scale : float or None
        The one that probabilities use; None for SAMME, whose votes have their own.
    """

    texts: PoolTexts
    settings: BoostSettings
    image_ids: tuple[str, ...]
    recorded: Mapping[str, Scalar]
    encoder_id: str | None
    encoder_fingerprint: str | None
    encoder_scale: float | None = None
    logit_scale: float | None = None

    def __post_init__(self) -> None:
        seen: set[object] = set()
        ids: Sequence[object] = self.image_ids
        for name in ids:
            if not isinstance(name, str) or name in seen:
                problem = "occurs twice" if name in seen else "is not a text"
                raise LabelError(f"the image id {name!r} {problem}; give each image its own")
            seen.add(name)

    def ensemble(self, rounds: Sequence[Round], weights: NDArray[np.float64]) -> PromptEnsemble:
        """Write down the rounds so far, and the weights the next would start with."""
        scale = self.logit_scale
        if self.settings.algorithm == "samme":
            # Votes are log-odds; scores are shares of them, so their sum restores them.
            scale = sum(item.vote for item in rounds) or 1.0
        return PromptEnsemble(
            class_names=self.texts.class_names,
            rounds=tuple(rounds),
            temperature=self.settings.temperature,
            algorithm=self.settings.algorithm,
            encoder_id=self.encoder_id,
            encoder_fingerprint=self.encoder_fingerprint,
            pool_fingerprint=self.texts.fingerprint,
            settings=self.recorded,
            versions={
                "promptboost": promptboost.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            sample_weights=dict(zip(self.image_ids, weights.tolist(), strict=True)),
            logit_scale=scale,
            encoder_logit_scale=self.encoder_scale,
        )

    def state_after(self, before: PromptEnsemble) -> BoostState:
        """Find where a fit stood when it wrote an ensemble."""
        differences = self._differences(before)
        if differences:
            raise SettingError(
                f"cannot continue this ensemble, it is of another fit: {'; '.join(differences)}"
            )
        quiet = 0
        for item in reversed(before.rounds):
            if item.error != 0:
                break
            quiet += 1
        patience = self.settings.patience
        finished = patience is not None and quiet >= patience
        # SAMME ends with a learner no better than chance, whose vote is 0, or with a perfect one,
        # whose vote is 1 because its logarithm would be infinite.
        if self.settings.algorithm == "samme":
            finished = finished or before.rounds[-1].vote in (0.0, 1.0)
        weights = np.array([before.sample_weights[name] for name in self.image_ids])
        return BoostState(len(before), weights, quiet, finished)

    def _differences(self, before: PromptEnsemble) -> list[str]:
        if before.history:
            return [f"it was edited after its fit ({before.history[-1]})"]
        found = [
            _differs(what, getattr(before, field), now)
            for what, field, now in (
                ("the classes", "class_names", self.texts.class_names),
                ("the algorithm", "algorithm", self.settings.algorithm),
                ("the temperature", "temperature", self.settings.temperature),
                ("the encoder", "encoder_id", self.encoder_id),
                ("the encoder's fingerprint", "encoder_fingerprint", self.encoder_fingerprint),
                ("the pool's fingerprint", "pool_fingerprint", self.texts.fingerprint),
            )
            if getattr(before, field) != now
        ]
        if not before.sample_weights:
            return [*found, "it was saved without the weights of its images (sample_weights=True)"]
        odd = sorted(set(before.sample_weights) ^ set(self.image_ids))
        if odd:
            return [*found, f"the images: only one fit has {_some(odd)}"]
        found += [
            _differs(f"the setting {key!r}", before.settings.get(key), self.recorded.get(key))
            for key in sorted({*before.settings, *self.recorded} - {*_MAY_DIFFER})
            if before.settings.get(key) != self.recorded.get(key)
        ]
        if len(before) > self.settings.rounds:
            found.append(
                f"it has {len(before)} rounds, more than the {self.settings.rounds} asked for "
                "(truncate gives fewer)"
            )
        return found


def recorded_settings(
    shots: Shots,
    settings: BoostSettings,
    image_ids: Sequence[str],
    weights: ArrayLike | None,
    notes: Mapping[str, Scalar],
    *,
    scale_choice: str | None = None,
) -> dict[str, Scalar]:
    """Return what an ensemble's ``settings`` say: all a fit depends on, apart from the embeddings.

    Beside the settings of boosting that are: ``views``, how many views of each image there were
    to draw from; ``images``, which changes with the ids, labels and order of the images; and
    ``start_weights``, which is "uniform" or changes with the weights. Where the logit scale was chosen,
    ``scale_choice`` says why.
    """
    own = {name: value for name, value in asdict(settings).items() if name not in _OWN_FIELDS}
    own.pop("gradient")
    if settings.gradient is not None:
        own |= asdict(settings.gradient)
    own["composer"] = settings.composer
    if scale_choice is not None:
        own["scale_choice"] = scale_choice
    labelled = json.dumps([list(image_ids), shots.labels.tolist()]).encode()
    own["views"] = 0 if shots.views is None else shots.views.shape[1]
    own["pictures"] = _short_hash(labelled)
    if weights is None:
        own["start_weights"] = "uniform"
    else:
        own["start_weights"] = _short_hash(np.asarray(weights, dtype="<f8").tobytes())
    if taken := sorted(set(own) & set(notes)):
        raise SettingError(f"notes must not repeat settings of the fit: {', '.join(taken)}")
    return {**own, **notes}


def _short_hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _differs(what: str, before: object, now: object) -> str:
    return f"{what}: {before!r} then, {now!r} now"


def _some(names: Sequence[str], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(repr, names[:limit])) + more
