"""What a plan needs, measured: each cell once, in one folder that all tables and figures share.

A cell is one fit measured on one encoder. It is kept under everything that decides its number: the digests
of the split, of the prompts and of the encoders' weights, the code of the method, its settings, and the
seed. What has changed is measured again, and nothing else.
"""

import errno
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from promptboost.config import FitConfig
from promptboost.data.benchmarks.registry import BENCHMARKS, find_benchmark
from promptboost.encoders import Encoder, load_encoder
from promptboost.encoders.embedder import Embedder
from promptboost.errors import (
    DataError,
    EncoderError,
    FileFormatError,
    PoolError,
    PromptBoostError,
    RunError,
)
from promptboost.evaluation.cells import CompareRequest, Key, Notebook, Result
from promptboost.evaluation.compare import Cell, carried, figures
from promptboost.evaluation.measures import Count, Positive, Share
from promptboost.evaluation.paper.choice import PaperChoice
from promptboost.evaluation.paper.plans import PaperPlan
from promptboost.evaluation.paper.source_code import code_of
from promptboost.evaluation.world import Draw, World
from promptboost.folders import is_ours
from promptboost.methods import Fitted, Method, load_fitted, make_method, save_fitted

if TYPE_CHECKING:
    from promptboost.encoders.store import EmbeddingStore

T = TypeVar("T")
Say = Callable[[str], None]
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
    seconds: Positive
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
    progress: bool = True
    device: str | None = None

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


class Laboratory:
    """Data sets, pools and encoders, each read once for all plans, and the folder of cells."""

    def __init__(self, request: PaperRequest, say: Say = lambda _: None) -> None:
        check_folder(request.out)
        self.request = request
        self._say = say
        self.book = Notebook(request.out / CELLS, PaperCell)
        if self.book.damaged:
            say(f"{self.book.damaged} damaged lines in {request.out / CELLS} left aside")
        self._found: dict[str, Any] = {}
        self._failed: dict[str, PromptBoostError] = {}
        self._worlds: dict[tuple[object, ...], World] = {}
        self._digests: dict[tuple[str, int, int, tuple[str, ...]], tuple[str, str]] = {}
        self._sources: dict[str, tuple[Any, Any]] = {}  # data and pool

    def run(self, plan: PaperPlan) -> PlanResults:
        """Measure what is not there yet; what cannot be says why, and the rest goes on."""
        from tqdm import tqdm

        wanted = sorted(plan.cells(), key=lambda cell: plan.encoders.index(cell[-1]))
        lines, reasons, done = {}, {}, 0
        hidden = None if self.request.progress else True
        with tqdm(wanted, unit=" cells", disable=hidden, leave=False) as bar:
            for cell in bar:
                bar.set_description(f"{plan.name}: {cell[0]}, {cell[1]}")
                try:
                    key = self._key(plan, cell)
                    if key not in self.book:
                        for kept, result, seconds in self._measure(plan, cell, key):
                            self.book.keep(kept, [result], seconds)
                        done += 1
                    lines[cell] = self.book.results([key])[0]
                except PromptBoostError as error:
                    reasons[cell] = " ".join(str(error).split())
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    raise RunError(
                        f"{error.strerror}, in {self.request.out} or where embeddings are kept. What "
                        "is done is kept: make room, and the same command goes on"
                    ) from error
                except RuntimeError as error:
                    if "out of memory" not in str(error):
                        raise
                    reasons[cell] = f"the device has too little memory for {cell[-1]}"
        samples = {name for name in plan.datasets if not self._is_benchmark(name)}
        return PlanResults(lines, reasons, done, frozenset(samples))

    def _key(self, plan: PaperPlan, cell: Wanted) -> Key:
        dataset, spelling, shots, seed, on = cell
        method = make_method(spelling)
        home, target = self._encoder(_home(plan, method, on)), self._encoder(on)
        split, prompts = self._digest(plan, dataset, shots, seed)
        return {
            "dataset": dataset,
            "method": spelling,
            "shots": shots,
            "seed": seed,
            "encoder": home.id,
            "on": target.id,
            "split": split,
            "prompts": prompts,
            "weights": home.fingerprint,
            "on_weights": target.fingerprint,
            "code": code_of(type(method)),
            "views": self.request.views_for(spelling),
            "classes": "+".join(self._pair(plan, cell)),
        }

    def _pair(self, plan: PaperPlan, cell: Wanted) -> tuple[str, ...]:
        """Return the two classes that are told apart, where it is not all."""
        dataset, _, shots, seed, _ = cell
        if plan.pair is None:
            return ()
        return self._world(plan, dataset, shots, seed, 0).data.class_names

    def _digest(self, plan: PaperPlan, dataset: str, shots: int, seed: int) -> tuple[str, str]:
        """Return the digests of a draw and of the prompts; of what does not learn, of the test images."""
        pair = plan.pair or ()
        if (dataset, shots, seed, pair) not in self._digests:
            world = self._world(plan, dataset, shots, seed, 0)
            task = world.task(*_draw(shots, seed))
            parts = ([task.learn] if shots else []) + [task.held_out]
            whole = hashlib.blake2b(digest_size=16)
            for part in parts:
                whole.update(part.fingerprint.encode())
            self._digests[dataset, shots, seed, pair] = whole.hexdigest(), world.pool.fingerprint
        return self._digests[dataset, shots, seed, pair]

    def _world(self, plan: PaperPlan, dataset: str, shots: int, seed: int, views: int) -> World:
        """Return one draw of one data set; few of them at a time, for the room their rows take."""
        name = dataset, shots, seed, views, plan.source, plan.pair or ()
        if name not in self._worlds:
            source, prompts = self._place(dataset)
            k, draw = _draw(shots, seed)
            words = FitConfig(prompts=prompts, views=views)
            request = CompareRequest(
                *(source, self.request.out, ("tpb",), (k,), (draw,), plan.source),
                words=words,
                cache=self.request.cache,
                progress=self.request.progress,
                device=self.request.device,
            )
            world = World(request, self._encoder(plan.source))
            if dataset in self._sources:
                world.data, world.pool = self._sources[dataset]
            else:
                self._sources[dataset] = world.data, world.pool
            if plan.pair:
                del world.pool  # it is another one for two classes
                world.data = two_classes(world.data, plan.pair)
            while len(self._worlds) >= 12:
                del self._worlds[next(iter(self._worlds))]
            self._worlds[name] = world
        return self._worlds[name]

    def _place(self, dataset: str) -> tuple[str, str | None]:
        """Return where a data set and its sentences are; raise with what is missing."""
        request = self.request
        return self._once(
            f"data {dataset}",
            lambda: (find_data(dataset, request.data), find_sentences(dataset, request.pools)),
        )

    def _once(self, name: str, work: Callable[[], T]) -> T:
        """Do something at most once, also if it fails: what is missing stays missing."""
        if name in self._failed:
            raise self._failed[name]
        try:
            if name not in self._found:
                self._found[name] = work()
            found: T = self._found[name]
            return found
        except PromptBoostError as error:
            self._failed[name] = error
            raise

    def _is_benchmark(self, dataset: str) -> bool:
        """Tell whether a data set is the paper's own, and whole; one that is missing is not here."""
        try:
            return self._place(dataset)[0].startswith(f"{dataset}:")
        except PromptBoostError:
            return dataset in BENCHMARKS

    def _encoder(self, name: str) -> Encoder:
        """Open an encoder; three at a time, for the memory that they take."""
        device = self.request.device
        encoder = self._once(
            f"encoder {name}", lambda: Embedder(_opened(name, device), self._store, progress=False)
        )
        opened = [key for key in self._found if key.startswith("encoder ")]
        for key in opened[:-3]:
            del self._found[key]
        return encoder

    @property
    def _store(self) -> "EmbeddingStore | None":
        from promptboost.encoders.store import EmbeddingStore

        return EmbeddingStore() if self.request.cache else None

    def _measure(
        self, plan: PaperPlan, wanted: Wanted, key: Key
    ) -> Iterator[tuple[Key, Result, float]]:
        """Fit, or load what was learnt, and measure on one encoder; at home first."""
        dataset, spelling, shots, seed, on = wanted
        world = self._world(plan, dataset, shots, seed, self.request.views_for(spelling))
        cell = Cell(spelling, make_method(spelling), *_draw(shots, seed))
        draw = world.draw(cell.shots, cell.seed)
        home, target = self._encoder(_home(plan, cell.method, on)), self._encoder(on)
        home_key = {**key, "on": home.id, "on_weights": home.fingerprint}
        folder = self.request.out / "fitted" / _digest(home_key)
        cell.method.check(draw.learn, world.pool, home)
        draw.held_out.rows(target)  # embedding is not part of a fit's time
        start = time.perf_counter()
        fitted = self._load(folder, home) if home_key in self.book else None
        if fitted is None:
            if cell.method.learns:
                draw.learn.images.views(home)
                start = time.perf_counter()
            fitted = cell.seeded().fit(draw.learn, world.pool, home)
            seconds = time.perf_counter() - start
            save_fitted(fitted, folder)
            if home_key not in self.book:
                result = _results(fitted, draw, plan)
                yield home_key, result, seconds
        if home_key == key:
            return
        start = time.perf_counter()
        there = carried(fitted, cell.method.carries_over, target)
        result = _results(there, draw, plan, at_home=False)
        yield key, result, time.perf_counter() - start

    @staticmethod
    def _load(folder: Path, home: Encoder) -> Fitted | None:
        try:
            return load_fitted(folder, home)
        except FileFormatError:
            return None  # gone or damaged: learnt again, with the same result


def _results(fitted: Fitted, draw: Draw, plan: PaperPlan, *, at_home: bool = True) -> Result:
    from promptboost.evaluation.paper.scene import by_round, repeated_share, rounds_of, shown

    measured = figures(fitted, draw, learnt_there=at_home)
    result = {
        "accuracy": measured["accuracy"],
        "learn_accuracy": measured["learn_accuracy"],
        "bank_size": measured["prompts"],
    }
    ensemble = rounds_of(fitted)
    if ensemble is not None and at_home:
        result["by_round"] = by_round(ensemble, fitted.origin.encoder, draw)
        result["repeated"] = repeated_share(ensemble)
        if plan.pair is not None:
            result["picture"] = shown(ensemble, fitted.origin.encoder, draw)
    if fitted.origin.method.partition("?")[0] == "pez" and (words := fitted.words()):
        names = fitted.origin.class_names
        shown_class = names.index("pug") if "pug" in names else 0  # which the paper shows
        result["example"] = next(iter(words[shown_class]))
    return result


def check_folder(out: Path) -> None:
    """Raise if a folder holds something else than cells of the paper."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is no folder; choose another name with -o")
    strange = out.exists() and any(not is_ours(file.name) for file in out.iterdir())
    if strange and not (out / CELLS).exists():
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


def _opened(name: str, device: str | None) -> Encoder:
    try:
        return load_encoder(name, device=device)
    except PromptBoostError:
        raise
    except Exception as error:  # a hub that cannot be reached, a device that is not there
        raise EncoderError(f"{name} cannot be loaded: {error}") from error


def _home(plan: PaperPlan, method: Method, on: str) -> str:
    """Return where a method learns; what does not is at home wherever it is measured."""
    return plan.source if method.learns else on


def _draw(shots: int, seed: int) -> tuple[int, int]:
    """Return the draw whose images held out are measured on; what does not learn needs any."""
    return (shots, seed) if shots else (1, 1)


def _digest(key: Key) -> str:
    text = repr(sorted(key.items())).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()
