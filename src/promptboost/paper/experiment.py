"""What a plan needs, measured: each cell once, in one folder that all tables and figures share.

A cell is one fit measured on one encoder. It is kept under everything that decides its number: the digests
of the split, of the prompts and of the encoders' weights, the code of the method, its settings, and the
seed. What has changed is measured again, and nothing else.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from promptboost.baselines.measures import Count, Positive, Share
from promptboost.compare.cells import Result
from promptboost.data.benchmarks.registry import BENCHMARKS, find_benchmark
from promptboost.errors import DataError, PoolError, RunError
from promptboost.io import is_ours
from promptboost.methods import make_method
from promptboost.paper.choice import PaperChoice
from promptboost.progress import Progress, no_progress

#: Data set, method as typed, shots, seed, encoder it is measured on.
Wanted = tuple[str, str, int, int, str]

CELLS = "cells.jsonl"
#: What a cell is kept under; the columns of the CSV file of cells begin with them.
KEY = (
    *("dataset", "method", "shots", "seed", "encoder", "on"),
    *("split", "prompts", "weights", "on_weights", "code", "views", "classes"),
)
_SUFFIXES = (".jsonl", ".json", "")


class PaperCell(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement, with all that decides it: a line of ``cells.jsonl``."""

    dataset: str
    method: str
    shots: Count
    seed: Count
    encoder: str
    on: str
    split: str
    prompts: str
    weights: str
    on_weights: str
    code: str
    views: Count
    classes: str = ""  # where not all classes are told apart
    seconds: Positive | None = None
    measured_at: Positive | None = None  # seconds since 1970
    accuracy: Share
    learn_accuracy: Share | None = None
    bank_size: Positive | None = None  # prompts of a class, in the mean
    repeated: Share | None = None  # of the chosen prompts, those with several copies in a bank
    by_round: list[tuple[Share, Share]] = []  # on the images learnt from, and on those held out
    example: str = ""  # a prompt, where prompts are made rather than chosen
    picture: dict[str, Any] = {}  # rounds, and images as they are answered


@dataclass(frozen=True)
class PaperRequest:
    """What is asked for, where it is, and where results are kept."""

    out: Path
    data: Path | None = None  # holds a folder for each data set
    pools: Path | None = None  # holds a file or folder of sentences for each data set
    choice: PaperChoice = field(default_factory=PaperChoice)
    cache: bool = True
    progress: Progress = no_progress
    device: str | None = None

    def settings(self) -> dict[str, Any]:
        """Return what a worker has to know, as values that another process can be told."""
        return {
            "out": str(self.out.absolute()),
            "data": None if self.data is None else str(self.data.absolute()),
            "pools": None if self.pools is None else str(self.pools.absolute()),
            "encoder": self.choice.encoder,
            "views": self.choice.views,
            "cache": self.cache,
            "device": self.device,
        }

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "PaperRequest":
        """Make of it what :meth:`settings` has told."""
        out, data, pools = (
            None if settings[name] is None else Path(settings[name])
            for name in ("out", "data", "pools")
        )
        choice = PaperChoice(encoder=settings["encoder"], views=settings["views"])
        cache, device = settings["cache"], settings["device"]
        return cls(out or Path(), data, pools, choice, cache, device=device)

    def views_for(self, spelling: str) -> int:
        """Return how many crops of an image a method draws among."""
        method = make_method(spelling)
        if not method.learns:
            return 0
        return self.choice.views_kept(getattr(method, "views_per_round", 0) or 0)


@dataclass(frozen=True)
class PlanResults:
    """What is there of a plan: results by cell, and why others are not."""

    lines: dict[Wanted, Result] = field(default_factory=dict)
    reasons: dict[Wanted, str] = field(default_factory=dict)
    done: int = 0  # cells that were measured now
    samples: frozenset[str] = frozenset()  # data sets that are not the paper's, whatever their name
    undivided: frozenset[str] = frozenset()  # those without test images: each draw holds others out

    def marks(self) -> dict[str, str]:
        """Return a letter for each reason, by which a table points to it."""
        found = dict.fromkeys(self.reasons.values())
        return {reason: _letters(place) for place, reason in enumerate(found)}

    def reason_lines(self) -> list[str]:
        """Return each reason once, with its letter and how many cells it concerns."""
        counts = Counter(self.reasons.values())
        marks = self.marks().items()
        return [f"[{mark}] {counts[reason]} of the cells: {reason}" for reason, mark in marks]


def _letters(place: int) -> str:
    """Return a, b and so on; after z comes aa."""
    before, last = divmod(place, 26)
    return (_letters(before - 1) if before else "") + chr(ord("a") + last)


def check_folder(out: Path) -> None:
    """Raise if a folder holds something else than cells of the paper."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is no folder; choose another name with -o")
    strange = out.exists() and any(not is_ours(file.name) for file in out.iterdir())
    if strange and not ((out / CELLS).exists() or (out / CELLS).with_suffix("").is_dir()):
        raise RunError(f"{out} is not empty and holds no {CELLS}; choose another folder with -o")


def find_data(dataset: str, data: Path | None) -> str:
    """Return a data set as it is typed elsewhere; raise a DataError that says where to put it."""
    if dataset == "emoji":
        return dataset
    if data is None:
        raise DataError(f"{dataset}: say where the data sets are, with --data DIR")
    if not data.is_dir():
        raise DataError(f"there is no folder {data}; say where the data sets are, with --data DIR")
    benchmark = BENCHMARKS.get(dataset)
    if benchmark is not None:
        from promptboost.data.benchmarks import survey_benchmark

        survey = survey_benchmark(benchmark, data)
        if survey.complete:
            return f"{dataset}:{data}"
        # A folder of classes that bears its name is a sample of it, not the benchmark.
        if not (data / dataset).is_dir() or survey.lists is not None:
            where = data / benchmark.folders[0]
            raise DataError(
                f"{dataset} is not in {where}, or not whole: promptboost data check {dataset} {data} "
                "tells what to get"
            )
    if not (data / dataset).exists():
        raise DataError(f"there is no data set {dataset} in {data}")
    return str(data / dataset)


def find_sentences(dataset: str, pools: Path | None) -> str | None:
    """Return the file or folder of sentences of a data set; None for the emoji, which have their own."""
    if pools is not None and pools.is_dir():
        for path in sorted(pools.iterdir()):
            named = path.stem if path.suffix in _SUFFIXES[:2] else path.name
            benchmark = find_benchmark(named)
            if named == dataset or (benchmark is not None and benchmark.name == dataset):
                return str(path)
    if dataset == "emoji":
        return None
    if pools is None:
        raise PoolError(f"{dataset}: say where the files of sentences are, with --pools DIR")
    raise PoolError(
        f"there are no sentences for {dataset} in {pools}; make them with promptboost pool build … "
        f"-o {pools / dataset}.jsonl"
    )


def two_classes(data: Any, pair: tuple[str, str]) -> Any:
    """Keep the images of two classes; of the first two where these are not there."""
    from promptboost.data import Dataset

    spelled = {name.casefold().replace("_", " "): name for name in data.class_names}
    names = tuple(spelled[name] for name in pair if name in spelled)
    names = names if len(names) == 2 else tuple(data.class_names[:2])
    return Dataset(tuple(image for image in data.images if image.label in names), names)
