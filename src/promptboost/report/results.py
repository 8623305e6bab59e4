"""The files of a run folder that a report is made of."""

import dataclasses
import json
import math
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from promptboost.errors import FileFormatError, RunError
from promptboost.model import PromptEnsemble

__all__ = [
    "listed",
    "record_from",
    "BadPicture",
    "ClassResult",
    "Confusion",
    "HardPicture",
    "Method",
    "Metrics",
    "Stage",
    "Task",
    "Transfer",
    "read_metrics",
    "Run",
    "read_run",
]

T = TypeVar("T")


def record_from(cls: type[T], value: object, where: str) -> T:
    """Make a dataclass of a JSON object.

    A field may be left out when it has a default. Fields that are not known are skipped: the file
    may be of a later promptboost, and a report loses nothing by not showing them.

    Examples
    --------
    >>> @dataclasses.dataclass
    ... class Point:
    ...     x: float
    ...     name: str | None = None
    >>> record_from(Point, {"x": 1}, "points[0]")
    Point(x=1.0, name=None)
    >>> record_from(Point, {"x": "1"}, "points[0]")
    Traceback (most recent call last):
    promptboost.errors.FileFormatError: points[0].x: must be a number, not '1'
    """
    if not isinstance(value, Mapping):
        raise FileFormatError(f"{where}: must be an object, not {value!r:.60}")
    found: dict[str, Any] = {}
    for name, key, kind, needed in _plan(cls):  # type: ignore[arg-type]  # a class can be hashed
        place = f"{where}.{key}" if where else key
        if key in value:
            found[name] = _converted(kind, value[key], place)
        elif needed:
            raise FileFormatError(f"{place}: is missing")
    return cls(**found)


def listed(cls: type[T], value: object, where: str) -> tuple[T, ...]:
    """Make a dataclass of each object in a JSON list."""
    if not isinstance(value, list):
        raise FileFormatError(f"{where}: must be a list, not {value!r:.60}")
    return tuple(record_from(cls, item, f"{where}[{i}]") for i, item in enumerate(value))


@cache
def _plan(cls: type[Any]) -> tuple[tuple[str, str, Any, bool], ...]:
    """Return name, JSON key, annotation, and whether it must be there, for each field."""
    hints = get_type_hints(cls)
    return tuple(
        (item.name, item.metadata.get("key", item.name), hints[item.name], _is_needed(item))
        for item in dataclasses.fields(cls)
    )


def _is_needed(item: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return item.default is missing and item.default_factory is missing


def _converted(kind: Any, value: object, where: str) -> Any:
    convert = _CONVERTERS.get(kind)
    if convert is not None:
        return convert(value, where)
    if dataclasses.is_dataclass(kind):
        return record_from(kind, value, where)  # type: ignore[arg-type]
    return listed(kind.__args__[0], value, where)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise FileFormatError(f"{where}: must be text, not {value!r:.60}")
    return value


def _count(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FileFormatError(f"{where}: must be a whole number from 0 up, not {value!r:.60}")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FileFormatError(f"{where}: must be a number, not {value!r:.60}")
    return float(value)


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise FileFormatError(f"{where}: must be a list, not {value!r:.60}")
    return tuple(_text(item, f"{where}[{i}]") for i, item in enumerate(value))


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise FileFormatError(f"{where}: must be an object, not {value!r:.60}")
    return value


def _optional(convert: Callable[[object, str], T]) -> Callable[[object, str], T | None]:
    return lambda value, where: None if value is None else convert(value, where)


_CONVERTERS: dict[Any, Callable[[object, str], Any]] = {
    str: _text,
    int: _count,
    float: _number,
    tuple[str, ...]: _texts,
    Mapping[str, Any]: _mapping,
    str | None: _optional(_text),
    int | None: _optional(_count),
    float | None: _optional(_number),
}

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class BadPicture:
    """A file that could not be used."""

    path: str
    reason: str


@dataclass(frozen=True)
class Task:
    """Which pictures taught and which tested."""

    data: str
    classes: int
    learn_pictures: int
    held_out_pictures: int
    held_out: str | None
    shots: int | None
    seed: int
    bad_pictures: tuple[BadPicture, ...] = ()


@dataclass(frozen=True)
class EncoderFacts:
    """The encoder of the fit."""

    id: str
    fingerprint: str | None = None
    dim: int | None = None


@dataclass(frozen=True)
class PoolFacts:
    """The words the fit could choose from."""

    fingerprint: str | None = None
    templates: int | None = None
    prompts: int | None = None
    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Method:
    """One way of classifying the same pictures."""

    name: str
    label: str
    accuracy: float | None
    class_accuracy: float | None
    learn_accuracy: float | None


@dataclass(frozen=True)
class Stage:
    """The ensemble after one more round."""

    round: int
    accuracy: float | None
    learn_accuracy: float
    weak_error: float | None = None
    template_error: float | None = None


@dataclass(frozen=True)
class ClassResult:
    """One class before and after."""

    class_name: str = field(metadata={"key": "class"})
    count: int
    zero_shot: float | None
    boosted: float | None


@dataclass(frozen=True)
class Confusion:
    """Pictures of one class taken for another."""

    true: str
    predicted: str
    count: int
    pictures: tuple[str, ...] = ()


@dataclass(frozen=True)
class HardPicture:
    """A learning picture with a large boosting weight."""

    picture: str
    label: str
    predicted: str
    weight: float


@dataclass(frozen=True)
class Transfer:
    """The same text on another encoder."""

    encoder: str
    zero_shot: float | None
    template_mean: float | None
    pool_mean: float | None
    boosted: float | None


@dataclass(frozen=True)
class Metrics:
    """The whole file."""

    task: Task
    encoder: EncoderFacts
    methods: tuple[Method, ...]
    pool: PoolFacts = field(default_factory=PoolFacts)
    staged: tuple[Stage, ...] = ()
    per_class: tuple[ClassResult, ...] = ()
    confusions: tuple[Confusion, ...] = ()
    hardest: tuple[HardPicture, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    timing: Mapping[str, Any] = field(default_factory=dict)
    ensemble_fingerprint: str | None = None

    @property
    def held_out(self) -> bool:
        """Whether any picture was kept from learning; without one, no accuracy is evidence."""
        return self.task.held_out is not None and self.task.held_out_pictures > 0

    def method(self, name: str) -> Method | None:
        """Find a method by its short name."""
        return next((method for method in self.methods if method.name == name), None)

    def measured(self, name: str) -> float | None:
        """Return a method's accuracy on held-out pictures or, if there are none, on learning ones."""
        method = self.method(name)
        if method is None:
            return None
        return method.accuracy if self.held_out else method.learn_accuracy


def read_metrics(record: object) -> Metrics:
    """Check what was read from ``metrics.json``.

    Examples
    --------
    >>> read_metrics({"schema_version": 9})
    Traceback (most recent call last):
    promptboost.errors.FileFormatError: schema_version: is 9, and this promptboost reads 1: upgrade \
with pip install -U promptboost
    """
    version = record.get("schema_version") if isinstance(record, Mapping) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise FileFormatError(
            f"schema_version: is {version}, and this promptboost reads {SCHEMA_VERSION}: upgrade "
            "with pip install -U promptboost"
        )
    if version != SCHEMA_VERSION:
        raise FileFormatError(f"schema_version: must be {SCHEMA_VERSION}, not {version!r:.60}")
    return record_from(Metrics, record, "")


# Only what is inside the file itself, and only pixels: an SVG can carry a script or an address.
_PIXELS = re.compile(r"data:image/(?:jpeg|png|webp|gif);base64,[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class Run:
    """Everything a report or a card can say.

    Attributes
    ----------
    path : Path
        The folder.
    ensemble : PromptEnsemble
        The fitted text.
    metrics : Metrics
        The figures.
    settings : mapping
        ``run.toml``, or what the ensemble remembers if there is none.
    thumbnails : mapping of str to str
        Picture id → ``data:`` address of a small version.
    """

    path: Path
    ensemble: PromptEnsemble
    metrics: Metrics
    settings: Mapping[str, Any]
    thumbnails: Mapping[str, str]

    @property
    def name(self) -> str:
        """The folder's own name: a report is passed on, and where it lay is nobody's business."""
        return self.path.resolve().name

    @property
    def shell_name(self) -> str:
        """The folder's name as a shell wants it."""
        return shlex.quote(self.name)

    @property
    def is_conse(self) -> bool:
        """Whether the encoder is a ConSE one, which must not be taken for a CLIP model."""
        return self.metrics.encoder.id.startswith("conse:")

    @cached_property
    def is_edited(self) -> bool:
        """Whether the figures are of another text than the one that is here now."""
        measured = self.metrics.ensemble_fingerprint
        return measured is not None and not self.ensemble.has_fingerprint(measured)

    @property
    def measure_again(self) -> str:
        """The command that measures the text as it is now."""
        return f"promptboost evaluate {self.shell_name} DATA"


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read a run folder.

    Raises
    ------
    RunError
        If there is no such folder, or it lacks ``ensemble.json`` or ``metrics.json``.
    FileFormatError
        If a file is there and cannot be understood; the message names it and the place in it.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise RunError(
            f"{folder} is not a run folder. To make one, type: "
            f"promptboost fit DATA -o {shlex.quote(str(folder))}"
        )
    for name in ("ensemble.json", "metrics.json"):
        if not (folder / name).is_file():
            raise RunError(
                f"{folder} has no {name}: the fit was not finished. To finish it, repeat the "
                "promptboost fit command with --resume"
            )
    ensemble = PromptEnsemble.load(folder / "ensemble.json")
    return Run(
        path=folder,
        ensemble=ensemble,
        metrics=_read_metrics(folder / "metrics.json"),
        settings=_read_settings(folder / "run.toml", ensemble),
        thumbnails=_read_thumbnails(folder / "thumbnails.json"),
    )


def _read_metrics(file: Path) -> Metrics:
    try:
        return read_metrics(_read_json(file))
    except FileFormatError as error:
        raise FileFormatError(f"{file}: {error}") from None


def _read_settings(file: Path, ensemble: PromptEnsemble) -> Mapping[str, Any]:
    if not file.is_file():
        return {"settings": dict(ensemble.settings), "versions": dict(ensemble.versions)}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{file}: not TOML that can be read: {error}") from None


def _read_thumbnails(file: Path) -> dict[str, str]:
    if not file.is_file():
        return {}
    try:
        record = _read_json(file)
    except FileFormatError as error:
        raise FileFormatError(f"{file}: {error}") from None
    if not isinstance(record, Mapping):
        raise FileFormatError(f"{file}: must be an object of pictures, not {record!r:.60}")
    return {
        picture: address
        for picture, address in record.items()
        if isinstance(address, str) and _PIXELS.fullmatch(address)
    }


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        # ValueError: not JSON, not UTF-8, or a number of thousands of digits.
        raise FileFormatError(f"not JSON that can be read: {error}") from None
