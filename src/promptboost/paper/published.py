"""The numbers in the paper's tables and figures.

``numbers/entries.toml`` lists the tables and figures with the paper's settings; ``numbers/NAME.csv`` has
the numbers of one of them, one per line. Encoders have open_clip's names. A group of encoders, such as
``ViT-L``, is the mean over its members, see :class:`Listed`. Figures 1a and 2 have no numbers.
"""

import csv
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

from promptboost.errors import SettingError
from promptboost.io import load_toml

#: The data set of a mean over all data sets of an entry.
AVERAGE = "average"
_LIST = "entries.toml"
# Not a setting, but in the same column of the files.
_DEVIATION = "deviation"


class PrintedPrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A prompt, or a part of one, in the paper."""

    text: str
    class_name: str
    round: int | None = None  # from 1; None if the paper names none


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A setting of TPB that an entry compares with others."""

    title: str
    query: str = ""  # settings of the method
    setting: str = ""  # the same, in the format of the published numbers
    rounds: int | None = None  # measure after this many rounds of the same fit


class PublishedNumber(msgspec.Struct, frozen=True):
    """One number of the paper, an accuracy in percent."""

    entry: str  # name of the table or figure
    dataset: str  # a benchmark, or ``average``: the mean over the data sets of the entry
    method: str  # ``coop+eft`` and ``promptsrc+eft`` are those two, emulated on the target
    shots: int | None  # training images per class; None for zero-shot methods
    source: str  # encoder to fit with; zero-shot methods have none
    target: str  # encoder to measure with
    setting: str  # other settings that the table varies, as ``key=value;key=value``
    value: float
    # Over seeds; of an average, the mean of the data sets' deviations. None if the paper has none.
    deviation: float | None = None

    @property
    def key(self) -> tuple[str, str, int | None, str, str, str]:
        """The key of the number, unique in its entry."""
        return self.dataset, self.method, self.shots, self.source, self.target, self.setting


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table or figure of the paper, with the paper's settings."""

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
    head: tuple[str, ...]  # names of the columns before the numbers
    axis: str = "training images per class"  # of a figure
    variants: tuple[Variant, ...] = ()
    pair: tuple[str, str] | None = None  # two classes, for drawings of images
    in_text: bool = True  # the files of some figures are not part of the paper's text
    rounds: tuple[int, ...] = (50,)
    views: tuple[int, ...] = (4,)  # of each image in a round; 0 is the image itself
    seeds: int = 3  # number of seeds; 0 if unknown
    decimals: int = 2
    tolerance: float = 1.0  # in points
    deviations_from: str = ""  # entry that prints the same numbers with their deviations
    note: str = ""
    prompts: tuple[PrintedPrompt, ...] = ()

    def allowed(self, number: PublishedNumber) -> float:
        """Return the tolerance of a number, in points: the entry's, or the deviation over seeds if larger.

        Two means of three seeds typically differ by 0.8 deviations by chance.
        """
        return max(self.tolerance, number.deviation or 0.0)


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``entries.toml``: the entries, and the paper's names."""

    groups: dict[str, tuple[str, ...]]  # of target encoders that the paper averages over
    datasets: dict[str, str]
    methods: dict[str, str]
    encoders: dict[str, str]  # without those of the groups
    entry: tuple[dict[str, Any], ...]


@cache
def listed() -> Listed:
    """Read the list of entries."""
    return msgspec.convert(load_toml(_text(_LIST), _LIST), Listed)


def entries() -> tuple[Entry, ...]:
    """Return the tables and figures of the paper, in its order."""
    return tuple(_entries().values())


def published(entry: str) -> list[PublishedNumber]:
    """Return the numbers of one table or figure, in the paper's order; some figures have none."""
    record = find_entry(entry)
    if not record.in_text:
        return []
    numbers = [_number(row) for row in csv.DictReader(_text(f"{entry}.csv").splitlines())]
    if not record.deviations_from:
        return numbers
    deviations = {number.key: number.deviation for number in published(record.deviations_from)}
    return [
        msgspec.structs.replace(number, deviation=deviations.get(number.key)) for number in numbers
    ]


def find_entry(name: str) -> Entry:
    """Return the table or figure of a name; raise a SettingError if there is none."""
    by_name = _entries()
    if name not in by_name:
        close = get_close_matches(name, by_name, n=2, cutoff=0.6)
        offer = " or ".join(close)
        offer = f"did you mean {offer}?" if close else f"there are {', '.join(by_name)}"
        raise SettingError(f"the paper has no entry {name!r}; {offer}")
    return by_name[name]


@cache
def _entries() -> dict[str, Entry]:
    records = ({"datasets": [*listed().datasets], **fields} for fields in listed().entry)
    return {entry.name: entry for entry in (msgspec.convert(r, Entry) for r in records)}


def _number(row: dict[str, str]) -> PublishedNumber:
    pairs = dict(pair.split("=", 1) for pair in row["setting"].split(";") if pair)
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


def _text(name: str) -> str:
    return (resources.files(__package__) / "numbers" / name).read_text(encoding="utf-8")
