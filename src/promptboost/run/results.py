"""``metrics.json``: everything that was measured of a run, as typed records.

One module writes and reads it, for runs, commands, report and card. A file of version 1 is read too;
its names are mapped to today's by one table each.
"""

import re
from collections.abc import Callable, Mapping
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
from promptboost.errors import FileFormatError, RunError, without_place
from promptboost.io import load_json, read_text, write_json
from promptboost.model.provenance import Composed
from promptboost.run.overlap import Overlap

SCHEMA_VERSION = 2


class LeftOut(msgspec.Struct, frozen=True):
    """A file that could not be used."""

    path: str
    reason: str


class TaskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Which images taught and which tested; the digests are those of the images learnt from."""

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
        """The same without the folders in which the images lay: a run is passed on."""
        bad = tuple(LeftOut(without_place(item.path, 2), item.reason) for item in self.bad_images)
        return msgspec.structs.replace(self, data=without_place(self.data), bad_images=bad)


class EncoderFacts(msgspec.Struct, frozen=True):
    """The encoder of the fit."""

    id: str
    fingerprint: str | None = None
    dim: Count | None = None


class PoolFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The words the fit could choose from; `chosen` says of each class where its prompts are from."""

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
    """A learning image with a large boosting weight."""

    image: str
    label: str
    predicted: str
    weight: Positive
    words: Share | None = None  # how much of the answer is words, where there is a residual


class ResidualResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the images taught beside the words, and how much of the answers is words."""

    penalty: Positive | None  # None if the images said that it does harm: there is none then
    text_scale: Positive  # the factor on the text beside it
    text_loss: Positive | None = None  # log loss on images set aside of the fit, by the text alone,
    loss: Positive | None = None  # and with the residual
    words: Share = 1.0  # share of the answers that is words, on the images measured, and
    class_words: dict[str, Share] = {}  # by class


class TransferResult(msgspec.Struct, frozen=True):
    """The same text on another encoder: accuracy by method, None where nothing was measured.

    It may be one of several that the text was learnt on.
    """

    encoder: str
    accuracy: dict[str, Share | None]
    note: str = ""
    learnt_on: bool = False

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
    residual: ResidualResult | None = None  # None if none was asked for
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
        """Check a record that was read from JSON, of this version or an earlier one."""
        version = record.get("schema_version") if isinstance(record, Mapping) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise FileFormatError(
                f"schema_version: is {version}, and this promptboost reads {SCHEMA_VERSION}: upgrade "
                "with pip install -U promptboost"
            )
        if version not in (1, 2) or isinstance(version, bool) or not isinstance(record, Mapping):
            raise FileFormatError(f"schema_version: must be 1 or 2, not {version!r:.60}")
        try:
            return msgspec.convert(_from_version_1(record) if version == 1 else record, cls)
        except msgspec.ValidationError as error:
            raise FileFormatError(_worded(str(error))) from None
        except UnicodeEncodeError as error:  # half of a character, as a name
            raise FileFormatError(
                f"a name is not valid Unicode text: {error.object!r:.60}"
            ) from None

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_json(path, msgspec.to_builtins(self), follow=False)

    @property
    def held_out(self) -> bool:
        """Whether any image was kept from learning; without one, no accuracy is evidence."""
        return self.task.held_out is not None and self.task.held_out_images > 0

    def method(self, name: str) -> MethodResult | None:
        """Find a method by its name."""
        return next((method for method in self.methods if method.name == name), None)

    def measured(self, name: str = OURS) -> float | None:
        """Return a method's accuracy on held-out images or, if there are none, on learning ones."""
        method = self.method(name)
        if method is None:
            return None
        return method.accuracy if self.held_out else method.learn_accuracy

    def answer(self) -> dict[str, Any]:
        """Return what commands print as JSON: the names of version 1, and today's beside them."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        return {
            **record,
            **{section: _each(record[section], old_names) for section in _RENAMED},
            "methods": [method_answer(method) for method in self.methods],
            "per_class": [flat_answer(item) for item in self.per_class],
            "transfers": [flat_answer(item) for item in self.transfers],
            "schema_version": 1,
        }


# Names of version 1 by today's. Commands still print them.
_METHODS = {
    "zero-shot": "zero_shot",
    "zero-shot-80": "template_mean",
    "pool-mean": "pool_mean",
    "logistic": "probe",
    OURS: "boosted",
}
_FIELDS = {
    "image": "picture",
    "images": "pictures",
    "learn_images": "learn_pictures",
    "held_out_images": "held_out_pictures",
    "bad_images": "bad_pictures",
    "images_s": "pictures_s",
    "images_are": "pictures_are",
}
_RENAMED = ("task", "confusions", "hardest", "timing")  # where these fields are


def _from_version_1(record: Mapping[str, Any]) -> dict[str, Any]:
    """Rename what had other names; whatever else is wrong is found afterwards."""
    fields = {old: new for new, old in _FIELDS.items()}
    methods = {old: new for new, old in _METHODS.items()}

    def renamed(part: dict[str, Any]) -> dict[str, Any]:
        return {fields.get(name, name): value for name, value in part.items()}

    def named(part: dict[str, Any]) -> dict[str, Any]:
        name = part.get("name")
        return {**part, "name": methods.get(name, name)} if isinstance(name, str) else part

    def gathered(part: dict[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in part.items() if name not in methods}
        return {**rest, "accuracy": {new: part[old] for old, new in methods.items() if old in part}}

    changes = dict.fromkeys(_RENAMED, renamed)
    changes |= {"methods": named, "per_class": gathered, "transfers": gathered}
    today = {
        name: _each(value, changes[name]) if name in changes else value
        for name, value in record.items()
    }
    return {**today, "schema_version": SCHEMA_VERSION}


def _each(value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Change an object, or every object of a list."""
    if isinstance(value, list | tuple):
        return [_each(part, change) for part in value]
    return change(value) if isinstance(value, dict) else value


def old_names(part: dict[str, Any]) -> dict[str, Any]:
    """Add the earlier names of fields."""
    return {**part, **{old: part[new] for new, old in _FIELDS.items() if new in part}}


def method_answer(method: MethodResult) -> dict[str, Any]:
    """Return what a command prints of a method; its `name` is that of version 1."""
    name = _METHODS.get(method.name, method.name)
    return {**msgspec.to_builtins(method), "name": name, "method": method.name}


def flat_answer(item: ClassResult | TransferResult) -> dict[str, Any]:
    """Return what a command prints of a class or a transfer: each method's accuracy as a field."""
    part = msgspec.to_builtins(item)
    # What says nothing is left out: an empty note, and that it is not one of several encoders.
    rest = {
        name: value
        for name, value in part.items()
        if name != "accuracy" and value != "" and value is not False
    }
    return {**rest, **{_METHODS.get(name, name): v for name, v in part["accuracy"].items()}}


_PLACE = re.compile(r"^(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?$", re.S)
_KINDS = {
    "object": "an object",
    "array": "a list",
    "str": "text",
    "int": "a whole number from 0 up",
    "float": "a number",
}


def _worded(message: str) -> str:
    """Put what msgspec says into our words: the place first, then what must be there.

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
