"""The runner of plans: measures each cell once, in one folder for all tables and figures.

A cell is one fit measured on one encoder. Its key has everything that its result depends on: the digests of
the split, of the prompts and of the encoders' weights, the code of the method, its settings, and the seed.
"""

import hashlib
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from promptboost.baselines import Count, Positive, Share
from promptboost.compare.cell_worker import Cell, code_of, figures, fit_on
from promptboost.compare.cells import (
    CellRunner,
    CompareRequest,
    Key,
    Result,
    ResultLog,
    cell_file,
    check_folder,
)
from promptboost.compare.comparison import Comparison, FewShotTask
from promptboost.config import FitConfig
from promptboost.data.benchmarks.registry import BENCHMARKS, find_benchmark
from promptboost.distributed.engine import Job, Placement, Say, UnitError, WorkUnit
from promptboost.encoders import Encoder, load_encoder
from promptboost.encoders.embedder import Embedder
from promptboost.errors import (
    DataError,
    EncoderError,
    MissingExtraError,
    PoolError,
    PromptBoostError,
    RunError,
    count,
)
from promptboost.methods import FittedMethod, make_method
from promptboost.paper.plans import CellSpec, PaperChoice, PaperPlan, crop_scale
from promptboost.paper.pools import consists_of
from promptboost.progress import Progress, no_progress
from promptboost.run.fit import paper_pool

if TYPE_CHECKING:
    from promptboost.encoders.store import EmbeddingStore

T = TypeVar("T")

CELLS = "cells.jsonl"
_WORKER = "promptboost.paper.runner:open_worker"
_SUFFIXES = (".jsonl", ".json", "")


class CellKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key of a measurement: everything that it depends on."""

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
    view_scale: Positive
    classes: str = ""  # if not all


#: The first columns of the CSV file of cells.
KEY = CellKey.__struct_fields__


class PaperCell(CellKey, frozen=True, kw_only=True):
    """One measurement and its key: a line of ``cells.jsonl``."""

    seconds: Positive | None = None
    measured_at: Positive | None = None  # seconds since 1970
    accuracy: Share
    learn_accuracy: Share | None = None
    bank_size: Positive | None = None  # mean number of prompts per class
    repeated: Share | None = None  # share of the chosen prompts with several copies
    by_round: list[tuple[Share, Share]] = []  # accuracies on training and test images
    example: str = ""  # a generated prompt
    scene: dict[str, Any] = {}  # content of the drawing: rounds and images


@dataclass(frozen=True)
class PaperRequest:
    """Choice of results, paths of the inputs, and folder of the results."""

    out: Path
    data: Path | None = None  # holds a folder for each data set
    pools: Path | None = None  # holds a file or folder of sentences for each data set
    choice: PaperChoice = field(default_factory=PaperChoice)
    cache: bool = True
    progress: Progress = no_progress
    device: str | None = None

    def settings(self) -> dict[str, Any]:
        """Return JSON-serializable settings for a worker."""
        paths = {"out": self.out, "data": self.data, "pools": self.pools}
        return {
            **{name: path and str(path.absolute()) for name, path in paths.items()},
            "encoder": self.choice.encoder,
            "views": self.choice.views,
            "cache": self.cache,
            "device": self.device,
        }

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "PaperRequest":
        """Make a request from :meth:`settings`."""
        paths: dict[str, Any] = {
            name: settings[name] and Path(settings[name]) for name in ("out", "data", "pools")
        }
        choice = PaperChoice(encoder=settings["encoder"], views=settings["views"])
        return cls(**paths, choice=choice, cache=settings["cache"], device=settings["device"])

    def views_for(self, spelling: str) -> int:
        """Return the number of crops per image that a method draws from."""
        method = make_method(spelling)
        if not method.learns:
            return 0
        return self.choice.views_kept(getattr(method, "views_per_round", 0) or 0)


@dataclass(frozen=True)
class PlanResults:
    """Results of a plan by cell, and why others are missing."""

    lines: dict[CellSpec, Result] = field(default_factory=dict)
    reasons: dict[CellSpec, str] = field(default_factory=dict)
    done: int = 0  # cells that were measured now
    samples: frozenset[str] = frozenset()  # data sets that are not the paper's, whatever their name
    undivided: frozenset[str] = frozenset()  # those without test images: each draw holds others out
    pools: Mapping[str, str] = field(default_factory=dict)  # what they consist of, by data set

    def marks(self) -> dict[str, str]:
        """Return a letter for each reason, by which a table points to it."""
        reasons = dict.fromkeys(self.reasons.values())
        return {reason: _letters(i) for i, reason in enumerate(reasons)}

    def reason_lines(self) -> list[str]:
        """Return each reason once, with its letter and how many cells it concerns."""
        counts = Counter(self.reasons.values())
        marks = self.marks().items()
        return [f"[{mark}] {counts[reason]} of the cells: {reason}" for reason, mark in marks]


def _letters(index: int) -> str:
    """Return a, b and so on; after z comes aa."""
    quotient, last = divmod(index, 26)
    return (_letters(quotient - 1) if quotient else "") + chr(ord("a") + last)


def find_data(dataset: str, data: Path | None) -> str:
    """Return the spelling of a data set; raise a DataError if it is missing."""
    if dataset == "emoji":
        return dataset
    if data is None:
        raise DataError(f"{dataset}: pass the folder of the data sets with --data DIR")
    if not data.is_dir():
        raise DataError(f"there is no folder {data}; pass that of the data sets with --data DIR")
    benchmark = BENCHMARKS.get(dataset)
    if benchmark is not None:
        from promptboost.data.benchmarks import survey_benchmark

        survey = survey_benchmark(benchmark, data)
        if survey.complete:
            return f"{dataset}:{data}"
        # A folder of classes of that name is a sample, not the benchmark.
        if not (data / dataset).is_dir() or survey.lists is not None:
            where = data / benchmark.folders[0]
            raise DataError(
                f"{dataset} is not in {where}, or not whole: promptboost data check {dataset} {data} "
                "prints what is missing"
            )
    if not (data / dataset).exists():
        raise DataError(f"there is no data set {dataset} in {data}")
    return str(data / dataset)


def find_sentences(dataset: str, pools: Path | None) -> str | None:
    """Return the file or folder of sentences of a data set; None for emoji, whose are built in."""
    if pools is not None and pools.is_dir():
        for path in sorted(pools.iterdir()):
            named = path.stem if path.suffix in _SUFFIXES[:2] else path.name
            benchmark = find_benchmark(named)
            if named == dataset or (benchmark is not None and benchmark.name == dataset):
                return str(path)
    if dataset == "emoji":
        return None
    if pools is None:
        raise PoolError(f"{dataset}: pass the folder of sentence files with --pools DIR")
    raise PoolError(
        f"there are no sentences for {dataset} in {pools}; make them with promptboost pool build … "
        f"-o {pools / dataset}.jsonl"
    )


def two_classes(data: Any, pair: tuple[str, str]) -> Any:
    """Return the images of two classes, or of the first two if these are missing."""
    from promptboost.data import Dataset

    spelled = {name.casefold().replace("_", " "): name for name in data.class_names}
    names = tuple(spelled[name] for name in pair if name in spelled)
    names = names if len(names) == 2 else tuple(data.class_names[:2])
    return Dataset(tuple(image for image in data.images if image.label in names), names)


class PlanRunner:
    """Runs plans: reads data sets, pools and encoders once, and writes the folder of cells.

    The `placement` is where fits run, and which of them; by default all, in this process.
    """

    def __init__(
        self, request: PaperRequest, say: Say = lambda _: None, placement: Placement | None = None
    ) -> None:
        check_folder(request.out, CELLS, CELLS, Path(CELLS).stem)
        self.request = request
        self._say = say
        self._placement = placement or Placement()
        self._cells = CellRunner(self._placement, say)
        self._keys: dict[CellSpec, Key] = {}
        self._results: dict[str, Any] = {}
        self._comparisons: dict[tuple[object, ...], Comparison] = {}
        self._sources: dict[str, tuple[Any, Any]] = {}  # data and pool
        self._undivided: set[str] = set()  # data sets without test images

    @cached_property
    def log(self) -> ResultLog:
        """The results so far."""
        log = ResultLog(self.request.out / CELLS, PaperCell)
        log.drop_damaged(self._say)
        return log

    def close(self) -> None:
        """End the processes that were started."""
        self._cells.close()

    def run(self, plan: PaperPlan) -> PlanResults:
        """Measure the missing cells; failed cells have a reason."""
        cells = sorted(plan.cells(), key=lambda cell: plan.encoders.index(cell.on))
        keys: dict[CellSpec, Key] = {}
        reasons: dict[CellSpec, str] = {}
        for cell in cells:
            try:
                keys[cell] = self._key(cell)
            except PromptBoostError as error:
                reasons[cell] = " ".join(str(error).split())
        old = {cell for cell, key in keys.items() if key in self.log}
        if self._placement.merge and len(old) < len(keys):
            raise RunError(
                f"{plan.name}: {len(keys) - len(old)} of {count(len(keys), 'cell')} are not in "
                f"{self.request.out} yet; the same command without --merge runs them, or prints the "
                "reason why it cannot"
            )
        problems = self._fill(plan.name, keys)
        if self._placement.share is None:
            self.log.write()
        lines = {}
        for cell, key in keys.items():
            if key in self.log:
                lines[cell] = self.log.results([key])[0]
            else:
                names = self.log.name(key), self.log.name(self._key(cell.home))
                problem = next((problems[name] for name in names if name in problems), None)
                reasons[cell] = problem or "another part of the work has it"
        return PlanResults(
            lines,
            {cell: reasons[cell] for cell in cells if cell in reasons},
            len(lines.keys() - old),
            frozenset(name for name in plan.datasets if not self._is_benchmark(name)),
            frozenset(self._undivided.intersection(plan.datasets)),
            {
                name: consists_of(self._sources[name][1])
                for name in plan.datasets
                if name in self._sources
            },
        )

    def _fill(self, title: str, keys: Mapping[CellSpec, Key]) -> dict[str, str]:
        """Measure the missing cells, fits before transfers; return the reasons of failures by name."""
        homes = {self.log.name(self._key(cell.home)): cell.home for cell in keys}
        # A fit and its transfers are in the same part.
        share = self._placement.share
        ours = homes if share is None else {name: homes[name] for name in share.of_units(homes)}
        problems: dict[str, str] = {}
        self._do(title, ours, problems)
        learned = {home for name, home in ours.items() if name not in problems}
        transfers = {self.log.name(key): cell for cell, key in keys.items() if cell.home in learned}
        self._do(title, transfers, problems)
        return problems

    def _do(self, title: str, cells: Mapping[str, CellSpec], problems: dict[str, str]) -> None:
        units = [
            WorkUnit(name, {"cell": list(cell), "key": key})
            for name, cell in cells.items()
            if (key := self._key(cell)) not in self.log
        ]
        request, folder = self.request, Path(CELLS).stem
        out = str(request.out.absolute())
        job = Job(_WORKER, {"request": request.settings()}, out, folder, request.device)
        failed = self._cells.run(self.log, job, units, self, title, request.progress)
        problems.update((name, " ".join(problem.split())) for name, problem in failed)

    def do(self, order: Mapping[str, Any]) -> bytes:
        """Measure one cell."""
        cell = CellSpec(*order["cell"])
        if cell.pair is not None:  # JSON has no tuples
            cell = cell._replace(pair=(cell.pair[0], cell.pair[1]))
        try:
            key = self._key(cell)
            if other := [name for name in KEY if key[name] != order["key"][name]]:
                raise RunError(
                    f"{', '.join(other)} of {cell.dataset} on {platform.node()} are other than where the "
                    "command was typed; give folders that all machines share, and install the same version"
                )
            result, seconds = self._measure(cell, key)
        except (MissingExtraError, RunError):  # another machine may be as it should
            raise
        except PromptBoostError as error:
            raise UnitError(str(error)) from error
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            raise UnitError(f"the device has too little memory for {cell.on}") from error
        times = {"seconds": round(seconds, 3), "measured_at": round(time.time(), 3)}
        return cell_file(key, [result], times)

    def _key(self, cell: CellSpec) -> Key:
        """Return the key of a cell."""
        if cell not in self._keys:
            home, target = self._encoder(cell.home.on), self._encoder(cell.on)
            comparison = self._comparison(cell, 0)
            task = comparison.tasks[_draw(cell)]
            if task.kind == "rest":
                self._undivided.add(cell.dataset)
            split = hashlib.blake2b(digest_size=16)
            for images in ([task.learn] if cell.shots else []) + [task.held_out]:
                split.update(images.fingerprint.encode())
            self._keys[cell] = {
                "dataset": cell.dataset,
                "method": cell.method,
                "shots": cell.shots,
                "seed": cell.seed,
                "encoder": home.id,
                "on": target.id,
                "split": split.hexdigest(),
                "prompts": comparison.pool.fingerprint,
                "weights": home.fingerprint,
                "on_weights": target.fingerprint,
                "code": code_of(type(make_method(cell.method))),
                "views": self.request.views_for(cell.method),
                "view_scale": crop_scale(cell.method),
                "classes": "" if cell.pair is None else "+".join(comparison.data.class_names),
            }
        return self._keys[cell]

    def _comparison(self, cell: CellSpec, views: int) -> Comparison:
        """Return the comparison of a draw; only the last few are cached, to save memory."""
        name = (
            cell.dataset,
            cell.shots,
            cell.seed,
            views,
            crop_scale(cell.method),
            cell.source,
            cell.pair,
        )
        if name not in self._comparisons:
            source, prompts = self._paths(cell.dataset)
            k, seed = _draw(cell)
            pool: dict[str, Any] = paper_pool(prompts, source)
            request = CompareRequest(
                *(source, self.request.out, ("tpb",), (k,), (seed,), cell.source),
                words=FitConfig(
                    prompts=prompts, views=views, view_scale=crop_scale(cell.method), **pool
                ),
                cache=self.request.cache,
                progress=self.request.progress,
                device=self.request.device,
            )
            comparison = Comparison(request, self._encoder(cell.source))
            if cell.dataset in self._sources:
                comparison.data, comparison.pool = self._sources[cell.dataset]
            else:
                self._sources[cell.dataset] = comparison.data, comparison.pool
            if cell.pair:
                del comparison.pool  # two classes have their own
                comparison.data = two_classes(comparison.data, cell.pair)
            while len(self._comparisons) >= 12:
                del self._comparisons[next(iter(self._comparisons))]
            self._comparisons[name] = comparison
        return self._comparisons[name]

    def _paths(self, dataset: str) -> tuple[str, str | None]:
        """Return the paths of a data set and its sentences; raise if one is missing."""
        data, pools = self.request.data, self.request.pools
        return self._once(
            f"data {dataset}", lambda: (find_data(dataset, data), find_sentences(dataset, pools))
        )

    def _once(self, name: str, work: Callable[[], T]) -> T:
        """Return the result of the first call of that name, or raise its error again."""
        if name not in self._results:
            try:
                self._results[name] = work()
            except PromptBoostError as error:
                self._results[name] = error
        result: T = self._results[name]
        if isinstance(result, PromptBoostError):
            raise result
        return result

    def _is_benchmark(self, dataset: str) -> bool:
        """Return whether a data set is the complete benchmark, or a missing one."""
        try:
            return self._paths(dataset)[0].startswith(f"{dataset}:")
        except PromptBoostError:
            return dataset in BENCHMARKS

    def _encoder(self, name: str) -> Encoder:
        """Load an encoder; only the last three are cached, to save memory."""
        encoder = self._once(
            f"encoder {name}", lambda: Embedder(_opened(name, self.request.device), self._store)
        )
        opened = [key for key, result in self._results.items() if isinstance(result, Embedder)]
        for key in opened[:-3]:
            del self._results[key]
        return encoder

    @property
    def _store(self) -> "EmbeddingStore | None":
        from promptboost.encoders.store import EmbeddingStore

        return EmbeddingStore() if self.request.cache else None

    def _measure(self, spec: CellSpec, key: Key) -> tuple[Result, float]:
        """Fit, or load the fit, and measure on one encoder."""
        comparison = self._comparison(spec, self.request.views_for(spec.method))
        cell = Cell(spec.method, *_draw(spec))
        draw = comparison.draw(cell.shots, cell.seed)
        home = self._encoder(spec.home.on)
        at_home = spec.home == spec
        target = home if at_home else self._encoder(spec.on)
        home_key = {**key, "on": home.id, "on_weights": home.fingerprint}
        digest = hashlib.blake2b(repr(sorted(home_key.items())).encode(), digest_size=8)
        folder = self.request.out / "fitted" / digest.hexdigest()
        cell.method.check(draw.learn, comparison.pool, home)
        fitted, seconds = fit_on(cell, draw, comparison.pool, home, target, folder)
        return _figures(fitted, draw, spec, at_home=at_home), seconds


def open_worker(request: Mapping[str, Any]) -> PlanRunner:
    """Return the worker of another process."""
    return PlanRunner(PaperRequest.from_settings(request))


def _figures(fitted: FittedMethod, draw: FewShotTask, cell: CellSpec, *, at_home: bool) -> Result:
    from promptboost.paper.scene import by_round, repeated_share, rounds_of, shown

    measured = figures(fitted, draw, at_home=at_home)
    result = {
        "accuracy": measured["accuracy"],
        "learn_accuracy": measured["learn_accuracy"],
        "bank_size": measured["prompts"],
    }
    ensemble = rounds_of(fitted)
    if ensemble is not None and at_home:
        result["by_round"] = by_round(ensemble, fitted.origin.encoder, draw)
        result["repeated"] = repeated_share(ensemble)
        if cell.pair is not None:
            result["scene"] = shown(ensemble, fitted.origin.encoder, draw)
    if fitted.origin.method.partition("?")[0] == "pez" and (words := fitted.words()):
        names = fitted.origin.class_names
        shown_class = names.index("pug") if "pug" in names else 0  # as in the paper
        result["example"] = next(iter(words[shown_class]))
    return result


def _opened(name: str, device: str | None) -> Encoder:
    try:
        return load_encoder(name, device=device)
    except PromptBoostError:
        raise
    except Exception as error:  # such as a hub that is not reachable, or a missing device
        raise EncoderError(f"{name} cannot be loaded: {error}") from error


def _draw(cell: CellSpec) -> tuple[int, int]:
    """Return shots and seed of the draw; zero-shot methods use the first."""
    return (cell.shots, cell.seed) if cell.shots else (1, 1)
