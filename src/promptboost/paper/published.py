"""Numbers that the paper prints: every table and figure as data, each number with where it stands.

The facts are files of this package, ``numbers/``. ``entries.toml`` lists the tables and figures, with
what the paper says it used; ``NAME.csv`` has the numbers of one of them, a number a line. Encoders go by
the names open_clip has for what the paper describes. A group of encoders, such as ``ViT-L``, stands for
the mean over its members, which :func:`groups` lists. The method's two drawings (Figures 1a and 2) are
left out: there is nothing in them to find again.
"""

import csv
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from promptboost.errors import SettingError
from promptboost.io import load_toml

#: What a number is of where it is the mean over all data sets of its entry.
AVERAGE = "average"
_LIST = "entries.toml"
# Not a setting of an experiment, but printed with the number: the files have it in the same column.
_DEVIATION = "deviation"


class PrintedPrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A prompt, or words of one, that the paper shows."""

    text: str
    class_name: str
    round: int | None = None  # from 1; None where the paper does not name a round


class PublishedNumber(msgspec.Struct, frozen=True):
    """One number of the paper, an accuracy in percent."""

    entry: str  # name of the table or figure
    dataset: str  # a benchmark, or ``average``: the mean over the data sets of the entry
    method: str  # ``coop+eft`` and ``promptsrc+eft`` are those two, emulated on the target
    shots: int | None  # training images per class; None for zero-shot methods
    source: str  # encoder to fit with; zero-shot methods have none
    target: str  # encoder to measure with
    setting: str  # what else the table varies, as ``key=value;key=value``
    value: float
    # Over seeds; of an average, the mean of the data sets' deviations. None where the paper prints none.
    deviation: float | None = None

    @property
    def settings(self) -> dict[str, str]:
        """What else the table varies, by key."""
        return _pairs(self.setting)

    @property
    def key(self) -> tuple[str, str, int | None, str, str, str]:
        """What the number is of; no two numbers of an entry have the same."""
        return self.dataset, self.method, self.shots, self.source, self.target, self.setting


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table or figure of the paper, and what the paper says it used for it."""

    name: str
    title: str
    kind: Literal["table", "figure"]
    place: str  # number in the paper
    label: str  # in the paper's source
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    sources: tuple[str, ...]  # encoders to fit with
    targets: tuple[str, ...]  # encoders to measure with, or groups
    shots: tuple[int, ...]
    in_text: bool = True  # the files of some figures are not part of the paper's text
    rounds: tuple[int, ...] = (50,)
    views: tuple[int, ...] = (4,)  # of each image in a round; 0 is the image itself
    seeds: int = 3  # number of seeds; 0 where the paper does not say
    decimals: int = 2
    tolerance: float = 1.0  # least difference, in points, that counts as one
    deviations_from: str = ""  # entry that prints the same numbers with their deviations
    note: str = ""
    prompts: tuple[PrintedPrompt, ...] = ()

    def allowed(self, number: PublishedNumber) -> float:
        """Return how far, in points, another value may be from a number and still agree with it.

        One point, or the deviation over seeds where that is more. Two means of three seeds each differ
        by 0.8 deviations as a rule, by chance alone, so that less than one says nothing. One point is
        more than nearly all deviations that the paper prints for averages of ``proapo`` and ``tpb``,
        and stands in where it prints none.
        """
        return max(self.tolerance, number.deviation or 0.0)


class _Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    groups: dict[str, tuple[str, ...]]
    all_datasets: tuple[str, ...]
    entry: tuple[dict[str, Any], ...]


def entries() -> tuple[Entry, ...]:
    """Return the tables and figures of the paper, in its order.

    Examples
    --------
    >>> [entry.name for entry in entries()][:3]
    ['shot-curves', 'main', 'hard-example']
    """
    return tuple(_entries().values())


def groups() -> Mapping[str, tuple[str, ...]]:
    """Return the groups of target encoders that the paper averages over.

    Examples
    --------
    >>> len(groups()["ViT-L"]), len(groups()["ViT-H"])
    (5, 4)
    """
    return MappingProxyType(_listed().groups)


def published(entry: str) -> list[PublishedNumber]:
    """Return the numbers of one table or figure, in the paper's order; of some figures there are none.

    Examples
    --------
    >>> [number] = [
    ...     number for number in published("main")
    ...     if (number.method, number.shots, number.dataset) == ("tpb", 16, "average")
    ... ]
    >>> number.value, number.deviation
    (70.3, 0.51)
    """
    return list(_numbers(find_entry(entry)))


def find_entry(name: str) -> Entry:
    """Return the table or figure of a name; raise a SettingError if there is none.

    Examples
    --------
    >>> find_entry("main").place
    'Table 1'
    >>> find_entry("mian")
    Traceback (most recent call last):
    promptboost.errors.SettingError: the paper has no entry 'mian'; did you mean main?
    """
    known = _entries()
    if name not in known:
        close = get_close_matches(name, known, n=2, cutoff=0.6)
        offer = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
        raise SettingError(f"the paper has no entry {name!r}; {offer}")
    return known[name]


@cache
def _listed() -> _Listed:
    return msgspec.convert(load_toml(_text(_LIST), _LIST), _Listed)


@cache
def _entries() -> dict[str, Entry]:
    listed = _listed()
    found = [
        msgspec.convert({"datasets": listed.all_datasets, **fields}, Entry)
        for fields in listed.entry
    ]
    return {entry.name: entry for entry in found}


@cache
def _numbers(entry: Entry) -> tuple[PublishedNumber, ...]:
    if not entry.in_text:
        return ()
    numbers = tuple(_number(row) for row in csv.DictReader(_text(f"{entry.name}.csv").splitlines()))
    if not entry.deviations_from:
        return numbers
    deviations = {number.key: number.deviation for number in published(entry.deviations_from)}
    return tuple(
        msgspec.structs.replace(number, deviation=deviations.get(number.key)) for number in numbers
    )


def _number(row: dict[str, str]) -> PublishedNumber:
    pairs = _pairs(row["setting"])
    deviation = pairs.pop(_DEVIATION, None)
    return PublishedNumber(
        entry=row["entry"],
        dataset=row["dataset"],
        method=row["method"],
        shots=int(row["shots"]) if row["shots"] else None,
        source=row["source"],
        target=row["target"],
        setting=";".join(f"{key}={value}" for key, value in pairs.items()),
        value=float(row["value"]),
        deviation=None if deviation is None else float(deviation),
    )


def _pairs(setting: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in setting.split(";") if pair)


def _text(name: str) -> str:
    return (resources.files(__package__) / "numbers" / name).read_text(encoding="utf-8")
