"""``metrics.json``: the measurements of a run, as typed records."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from promptboost.baselines.measures import (
    OURS,
    ClassResult,
    Confusion,
    Count,
    MethodResult,
    Positive,
    Share,
)
from promptboost.errors import FileFormatError, RunError, count, without_place
from promptboost.io import load_json, read_text, write_json
from promptboost.model import PromptEnsemble
from promptboost.run.overlap import Overlap

SCHEMA_VERSION = 2

_HOW = {
    "gradient": "by gradient: copies moved to the sentences that lower the logistic loss most",
    "greedy": "greedily, as in the paper: sentences added while they mend errors",
}


class LeftOut(msgspec.Struct, frozen=True):
    """A file that could not be used."""

    path: str
    reason: str


class TaskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a fit; the digests are those of the training images."""

    data: str
    classes: Count
    learn_images: Count
    held_out_images: Count
    held_out: str | None
    shots: Count | None
    seed: Count
    learn_digests: tuple[str, ...] | None = None
    bad_images: tuple[LeftOut, ...] = ()

    @property
    def public(self) -> "TaskFacts":
        """The same without the folders of the images, as runs are shared."""
        bad = tuple(LeftOut(without_place(item.path, 2), item.reason) for item in self.bad_images)
        return msgspec.structs.replace(self, data=without_place(self.data), bad_images=bad)


@dataclass(frozen=True)
class Composed:
    """What composed an ensemble, and what it says about its own work."""

    composer: str  # of several, joined by "and"
    rounds: int
    mean_prompts: float  # distinct prompts of a class: mean over the classes
    most_prompts: int
    logit_scale: float | None = None  # of the gradient composer
    scale_choice: str | None = None  # why it is this one; None if it was given
    # In the round of the widest gap. None once the text was edited: they were about the text before.
    objective: float | None = None
    gap: float | None = None

    @classmethod
    def of(cls, ensemble: PromptEnsemble) -> "Composed":
        """Gather what an ensemble says."""
        sizes = [len(ensemble.prompts(name)) for name in ensemble.class_names]
        scale = ensemble.settings.get("logit_scale")
        why = ensemble.settings.get("scale_choice")
        certified = [
            (item.gap, item.objective)
            for item in ensemble.rounds
            if item.gap is not None and item.objective is not None and not ensemble.history
        ]
        gap, objective = max(certified, default=(None, None))
        return cls(
            composer=" and ".join(dict.fromkeys(item.composer for item in ensemble.rounds)),
            rounds=len(ensemble),
            mean_prompts=sum(sizes) / len(sizes),
            most_prompts=max(sizes),
            logit_scale=float(scale) if isinstance(scale, int | float) else None,
            scale_choice=why if isinstance(why, str) else None,
            objective=objective,
            gap=gap,
        )

    @property
    def label(self) -> str:
        """Name of the ensemble among other methods."""
        by_gradient = self.composer == "gradient"
        how = ["by gradient"] if by_gradient else []
        if self.rounds > 1 or not by_gradient:
            how.append(count(self.rounds, "round"))
        return ", ".join(["boosted", *how])

    @property
    def briefly(self) -> str:
        """How and in how many rounds, to follow the word "chosen"."""
        how = "greedily" if self.composer == "greedy" else f"by {self.composer}"
        return how if self.rounds == 1 else f"{how} in {self.rounds} rounds"

    @property
    def how(self) -> str:
        """How prompts were chosen."""
        return _HOW.get(self.composer, f"by {self.composer}")

    @property
    def scale(self) -> str | None:
        """The logit scale, and why it is this one."""
        if self.logit_scale is None:
            return None
        return self.scale_choice or f"logit scale {self.logit_scale:g}, as it was given"

    @property
    def certificate(self) -> str | None:
        """How much better any weighting of the pool could be."""
        if self.objective is None or self.gap is None:
            return None
        where = " in the round furthest from the best" if self.rounds > 1 else ""
        return (  # a gap is never negative but for rounding, and its first digits say all
            f"objective {self.objective:.3f}{where}; no weighting of the pool's prompts could lower it "
            f"by more than {max(self.gap, 0.0):.2g}"
        )

    @property
    def size(self) -> str:
        """How much there is to read."""
        return f"{self.mean_prompts:.1f} distinct prompts a class on average, {self.most_prompts} at most"

    def lines(self) -> list[tuple[str, str]]:
        """Return what is known as titles and words."""
        known = (
            ("composed", self.how),
            ("scale", self.scale),
            ("certificate", self.certificate),
            ("prompts", self.size),
        )
        return [(title, words) for title, words in known if words is not None]


class EncoderFacts(msgspec.Struct, frozen=True):
    """The encoder of the fit."""

    id: str
    fingerprint: str | None = None
    dim: Count | None = None


class PoolFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The pool of a fit; `chosen` has the source of each chosen prompt by class."""

    fingerprint: str | None = None
    templates: Count | None = None
    prompts: Count | None = None
    statistics: dict[str, Any] = {}
    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    chosen: dict[str, dict[str, str]] = {}


class StageResult(msgspec.Struct, frozen=True):
    """The ensemble after one more round."""

    round: Count
    accuracy: Share | None
    learn_accuracy: Share
    weak_error: float | None = None
    template_error: float | None = None


class HardImage(msgspec.Struct, frozen=True):
    """A training image with a large boosting weight."""

    image: str
    label: str
    predicted: str
    weight: Positive
    text_share: Share | None = None  # of the prediction, where there is a residual


class ResidualResult(msgspec.Struct, frozen=True, kw_only=True):
    """The residual, and the text's share of the predictions: see `Prediction.text_share`."""

    penalty: Positive | None  # None if the images said that it does harm: there is none then
    text_scale: Positive  # the factor on the text logits
    text_loss: Positive | None = None  # log loss on validation images, by the text alone
    loss: Positive | None = None  # and with the residual
    text_share: Share = 1.0  # mean over the measured images
    class_text_shares: dict[str, Share] = {}  # by class


class TransferResult(msgspec.Struct, frozen=True):
    """The same text on another encoder: accuracy by method, None where nothing was measured.

    `learned_on` is whether the fit used this encoder, too.
    """

    encoder: str
    accuracy: dict[str, Share | None]
    note: str = ""
    learned_on: bool = False

    def of(self, method: str) -> float | None:
        """Return the accuracy of a method."""
        return self.accuracy.get(method)


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    schema_version: int = SCHEMA_VERSION
    task: TaskFacts
    overlap: Overlap | None = None  # None in files of a promptboost that did not look
    ensemble_fingerprint: str | None = None
    composed: Composed | None = None
    encoder: EncoderFacts
    pool: PoolFacts = PoolFacts()
    methods: tuple[MethodResult, ...]
    residual: ResidualResult | None = None  # None if the fit had no residual
    staged: tuple[StageResult, ...] = ()
    per_class: tuple[ClassResult, ...] = ()
    confusions: tuple[Confusion, ...] = ()
    hardest: tuple[HardImage, ...] = ()
    transfers: tuple[TransferResult, ...] = ()
    timing: dict[str, Any] = {}

    @classmethod
    def read(cls, path: str | Path) -> "Results":
        """Read ``metrics.json``."""
        if not Path(path).exists():
            raise RunError(f"{path} does not exist; finish the fit with --resume")
        record = load_json(read_text(path, error=FileFormatError), str(path))
        try:
            return cls.from_record(record)
        except FileFormatError as error:
            raise FileFormatError(f"{path}: {error}") from None

    @classmethod
    def from_record(cls, record: object) -> "Results":
        """Check a record that was read from JSON."""
        version = record.get("schema_version") if isinstance(record, Mapping) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise FileFormatError(
                f"schema_version: is {version}, and this promptboost reads {SCHEMA_VERSION}: upgrade "
                "with pip install -U promptboost"
            )
        if version != SCHEMA_VERSION:
            raise FileFormatError(
                f"schema_version: must be {SCHEMA_VERSION}, not {version!r:.60}; fit the run again"
            )
        try:
            return msgspec.convert(record, cls)
        except msgspec.ValidationError as error:
            raise FileFormatError(_worded(str(error))) from None
        except UnicodeEncodeError as error:  # half of a character, as a name
            raise FileFormatError(
                f"a name is not valid Unicode text: {error.object!r:.60}"
            ) from None

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_json(path, self.record(), follow=False)

    @property
    def held_out(self) -> bool:
        """Whether there are test images; without any, no accuracy is evidence."""
        return self.task.held_out is not None and self.task.held_out_images > 0

    def method(self, name: str) -> MethodResult | None:
        """Find a method by its name."""
        return next((method for method in self.methods if method.name == name), None)

    def measured(self, name: str = OURS) -> float | None:
        """Return the accuracy of a method on held-out images or, without any, on training images."""
        method = self.method(name)
        if method is None:
            return None
        return method.accuracy if self.held_out else method.learn_accuracy

    def record(self) -> dict[str, Any]:
        """Return a JSON-serializable dict."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        return record


_PLACE = re.compile(r"^(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?$", re.S)
_KINDS = {
    "object": "an object",
    "array": "a list",
    "str": "text",
    "int": "a whole number from 0 up",
    "float": "a number",
}


def _worded(message: str) -> str:
    """Rewrite an error message of msgspec: the path first, then the expected type.

    Examples
    --------
    >>> _worded("Expected `float | null`, got `str` - at `$.methods[0].accuracy`")
    'methods[0].accuracy: must be a number, not str'
    >>> _worded("Object missing required field `task`")
    'task: is missing'
    """
    match = _PLACE.match(message)
    text, place = (match[1], match[2] or "") if match else (message, "")
    if missing := re.search(r"missing required field `(.*)`", text):
        return f"{place}.{missing[1]}: is missing".removeprefix(".")
    if expected := re.match(r"Expected `(\w+)[^`]*`(?:, got `(.*)`)?(.*)", text):
        kind, other, limit = expected.groups()
        said = f"must be {_KINDS.get(kind, kind)}{limit}"
        return f"{place}: {said}, not {other}" if other else f"{place}: {said}"
    return f"{place}: {text}"
