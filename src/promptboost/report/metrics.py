"""What ``metrics.json`` says, as typed records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from promptboost.errors import FileFormatError
from promptboost.report.records import record_from

__all__ = [
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
]

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
        """Give a method's accuracy on held-out pictures or, if there are none, on learning ones."""
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
