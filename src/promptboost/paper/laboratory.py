"""Where the cells of plans are measured, each once: in this process, or on a cluster."""

import hashlib
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from promptboost.compare.cell_worker import Cell, carried, figures
from promptboost.compare.cells import CompareRequest, Key, Notebook, Result, cell_file
from promptboost.compare.method_code import code_of
from promptboost.compare.world import Draw, World
from promptboost.config import FitConfig
from promptboost.data.benchmarks.registry import BENCHMARKS
from promptboost.distributed.engine import (
    Engine,
    Job,
    Placement,
    Receipt,
    Say,
    UnitError,
    UnitResult,
    WorkUnit,
    run_units,
)
from promptboost.encoders import Encoder, load_encoder
from promptboost.encoders.embedder import Embedder
from promptboost.errors import (
    EncoderError,
    FileFormatError,
    MissingExtraError,
    PromptBoostError,
    RunError,
    count,
)
from promptboost.methods import FittedMethod, Method, load_fitted, make_method, save_fitted
from promptboost.paper.experiment import (
    CELLS,
    KEY,
    PaperCell,
    PaperRequest,
    PlanResults,
    Wanted,
    check_folder,
    find_data,
    find_sentences,
    two_classes,
)
from promptboost.paper.plans import PaperPlan
from promptboost.progress import stage

if TYPE_CHECKING:
    from promptboost.encoders.store import EmbeddingStore

T = TypeVar("T")

_WORKER = "promptboost.paper.laboratory:PaperWorker"


class Ground(Protocol):
    """What a plan decides of a cell, beside what the cell says itself."""

    @property
    def source(self) -> str:
        """The encoder to learn with."""

    @property
    def pair(self) -> tuple[str, str] | None:
        """The two classes that are told apart, where it is not all."""


@dataclass(frozen=True)
class _Told:
    """The ground of a cell, as a worker is told of it."""

    source: str
    pair: tuple[str, str] | None


class Laboratory:
    """Data sets, pools and encoders, each read once for all plans, and the folder of cells.

    Parameters
    ----------
    request : PaperRequest
    say : callable, optional
        Called with a line for people now and then.
    place : Placement, optional
        Where fits are done, and which of them; by default all of them, in this process.
    """

    def __init__(
        self,
        request: PaperRequest,
        say: Say = lambda _: None,
        place: Placement | None = None,
    ) -> None:
        check_folder(request.out)
        self.request = request
        self._say = say
        self._place = place or Placement()
        self._engine: Engine | None = None
        self._keys: dict[tuple[object, ...], Key] = {}
        self._found: dict[str, Any] = {}
        self._failed: dict[str, PromptBoostError] = {}
        self._worlds: dict[tuple[object, ...], World] = {}
        self._digests: dict[tuple[str, int, int, tuple[str, ...]], tuple[str, str]] = {}
        self._sources: dict[str, tuple[Any, Any]] = {}  # data and pool
        self._undivided: frozenset[str] = frozenset()  # data sets without test images

    @cached_property
    def book(self) -> Notebook:
        """The cells that are there."""
        book = Notebook(self.request.out / CELLS, PaperCell)
        if book.damaged:
            self._say(f"{count(book.damaged, 'damaged cell')} in {self.request.out} left aside")
            book.drop_damaged()
        return book

    def close(self) -> None:
        """End the processes that were started."""
        if self._engine is not None:
            self._engine.close()

    def run(self, plan: PaperPlan) -> PlanResults:
        """Measure what is not there yet; what cannot be says why, and the rest goes on."""
        wanted = sorted(plan.cells(), key=lambda cell: plan.encoders.index(cell[-1]))
        keys: dict[Wanted, Key] = {}
        reasons: dict[Wanted, str] = {}
        for cell in wanted:
            try:
                keys[cell] = self._key(plan, cell)
            except PromptBoostError as error:
                reasons[cell] = " ".join(str(error).split())
        before = {cell for cell, key in keys.items() if key in self.book}
        if self._place.merge and len(before) < len(keys):
            raise RunError(
                f"{plan.name}: {len(keys) - len(before)} of {count(len(keys), 'cell')} are not in "
                f"{self.request.out} yet; the same command without --merge does them, or says why it "
                "cannot"
            )
        problems = self._fill(plan, keys)
        if self._place.share is None:
            self.book.write()
        lines = {}
        for cell, key in keys.items():
            if key in self.book:
                lines[cell] = self.book.results([key])[0]
            else:
                home = self.book.name(self._key(plan, self._home_of(plan, cell)))
                own = problems.get(self.book.name(key))
                reasons[cell] = own or problems.get(home) or "another part of the work has it"
        samples = {name for name in plan.datasets if not self._is_benchmark(name)}
        reasons = {cell: reasons[cell] for cell in wanted if cell in reasons}
        undivided = self._undivided.intersection(plan.datasets)
        done = len(lines.keys() - before)
        return PlanResults(lines, reasons, done, frozenset(samples), undivided)

    def _fill(self, plan: PaperPlan, keys: Mapping[Wanted, Key]) -> dict[str, str]:
        """Have the missing cells measured, at home first; return why some could not be, by name."""
        home_of = {cell: self._home_of(plan, cell) for cell in keys}
        homes = {self.book.name(self._key(plan, home)): home for home in home_of.values()}
        # A fit and all that is carried from it are in the same part.
        share = self._place.share
        ours = homes if share is None else {name: homes[name] for name in share.of_units(homes)}
        problems: dict[str, str] = {}
        # What is carried elsewhere is learnt at home first, and once.
        self._do(plan, ours, problems)
        learnt = {home for name, home in ours.items() if name not in problems}
        carried_there = {
            self.book.name(key): cell for cell, key in keys.items() if home_of[cell] in learnt
        }
        self._do(plan, carried_there, problems)
        return problems

    def _do(self, plan: PaperPlan, cells: Mapping[str, Wanted], problems: dict[str, str]) -> None:
        units = []
        for name, cell in cells.items():
            key = self._key(plan, cell)
            if key not in self.book:
                order = {"source": plan.source, "pair": plan.pair, "cell": list(cell), "key": key}
                units.append(WorkUnit(name, order))
        if not units:
            return
        request, folder = self.request, Path(CELLS).stem
        out = str(request.out.absolute())
        job = Job(_WORKER, {"request": request.settings()}, out, folder, request.device)
        with stage(request.progress, plan.name, len(units)) as advance:

            def note(receipt: Receipt) -> None:
                problem = receipt.problem
                if problem is None and not self.book.take(receipt.name):
                    problem = "its file cannot be read"
                if problem is not None:
                    problems[receipt.name] = " ".join(problem.split())

            worker = PaperWorker.around(self)
            self._engine = self._engine or self._place.engine(self._say)
            run_units(self._engine, job, units, advance=advance, worker=worker, each=note)

    def measured(self, order: Mapping[str, Any]) -> bytes:
        """Measure one cell that another process has asked for; return the content of its file."""
        pair = order["pair"]
        ground = _Told(order["source"], None if pair is None else (pair[0], pair[1]))
        dataset, spelling, shots, seed, on = order["cell"]
        wanted: Wanted = (dataset, spelling, shots, seed, on)
        key = self._key(ground, wanted)
        if other := [name for name in KEY if key[name] != order["key"][name]]:
            raise RunError(
                f"{', '.join(other)} of {dataset} on {platform.node()} are other than where the command "
                "was typed; give folders that all machines share, and install the same version"
            )
        result, seconds = self._measure(ground, wanted, key)
        times = {"seconds": round(seconds, 3), "measured_at": round(time.time(), 3)}
        return cell_file(key, [result], times)

    def _home_of(self, plan: Ground, cell: Wanted) -> Wanted:
        """Return the cell in which what another one measures was learnt."""
        return (*cell[:4], _home(plan, make_method(cell[1]), cell[4]))

    def _key(self, plan: Ground, cell: Wanted) -> Key:
        """Return all that decides what a cell measures."""
        name = (plan.source, plan.pair, cell)
        if name not in self._keys:
            dataset, spelling, shots, seed, on = cell
            method = make_method(spelling)
            home, target = self._encoder(_home(plan, method, on)), self._encoder(on)
            split, prompts = self._digest(plan, dataset, shots, seed)
            self._keys[name] = {
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
        return self._keys[name]

    def _pair(self, plan: Ground, cell: Wanted) -> tuple[str, ...]:
        """Return the two classes that are told apart, where it is not all."""
        dataset, _, shots, seed, _ = cell
        if plan.pair is None:
            return ()
        return self._world(plan, dataset, shots, seed, 0).data.class_names

    def _digest(self, plan: Ground, dataset: str, shots: int, seed: int) -> tuple[str, str]:
        """Return the digests of a draw and of the prompts; of what does not learn, of the test images."""
        pair = plan.pair or ()
        if (dataset, shots, seed, pair) not in self._digests:
            world = self._world(plan, dataset, shots, seed, 0)
            task = world.task(*_draw(shots, seed))
            self._undivided |= {dataset} if task.kind == "rest" else set()
            parts = ([task.learn] if shots else []) + [task.held_out]
            whole = hashlib.blake2b(digest_size=16)
            for part in parts:
                whole.update(part.fingerprint.encode())
            self._digests[dataset, shots, seed, pair] = whole.hexdigest(), world.pool.fingerprint
        return self._digests[dataset, shots, seed, pair]

    def _world(self, plan: Ground, dataset: str, shots: int, seed: int, views: int) -> World:
        """Return one draw of one data set; few of them at a time, for the room their rows take."""
        name = dataset, shots, seed, views, plan.source, plan.pair or ()
        if name not in self._worlds:
            source, prompts = self._found_at(dataset)
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

    def _found_at(self, dataset: str) -> tuple[str, str | None]:
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
            return self._found_at(dataset)[0].startswith(f"{dataset}:")
        except PromptBoostError:
            return dataset in BENCHMARKS

    def _encoder(self, name: str) -> Encoder:
        """Open an encoder; three at a time, for the memory that they take."""
        device = self.request.device
        encoder = self._once(
            f"encoder {name}", lambda: Embedder(_opened(name, device), self._store)
        )
        opened = [key for key in self._found if key.startswith("encoder ")]
        for key in opened[:-3]:
            del self._found[key]
        return encoder

    @property
    def _store(self) -> "EmbeddingStore | None":
        from promptboost.encoders.store import EmbeddingStore

        return EmbeddingStore() if self.request.cache else None

    def _measure(self, plan: Ground, wanted: Wanted, key: Key) -> tuple[Result, float]:
        """Fit, or load what was learnt at home, and measure on one encoder."""
        dataset, spelling, shots, seed, on = wanted
        world = self._world(plan, dataset, shots, seed, self.request.views_for(spelling))
        cell = Cell(spelling, make_method(spelling), *_draw(shots, seed))
        draw = world.draw(cell.shots, cell.seed)
        home, target = self._encoder(_home(plan, cell.method, on)), self._encoder(on)
        home_key = {**key, "on": home.id, "on_weights": home.fingerprint}
        folder = self.request.out / "fitted" / _digest(home_key)
        at_home = home_key == key
        cell.method.check(draw.learn, world.pool, home)
        draw.held_out.rows(target)  # embedding is not part of a fit's time
        fitted = None if at_home else self._load(folder, home)
        if fitted is None and cell.method.learns:
            draw.learn.images.views(home)
        start = time.perf_counter()
        if fitted is None:
            fitted = cell.seeded().fit(draw.learn, world.pool, home)
        if at_home:
            seconds = time.perf_counter() - start
            save_fitted(fitted, folder)
            return _results(fitted, draw, plan), seconds
        there = carried(fitted, cell.method.carries_over, target)
        result = _results(there, draw, plan, at_home=False)
        return result, time.perf_counter() - start

    @staticmethod
    def _load(folder: Path, home: Encoder) -> FittedMethod | None:
        try:
            return load_fitted(folder, home)
        except FileFormatError:
            return None  # gone or damaged: learnt again, with the same result


class PaperWorker:
    """Measures cells, one after the other, with data sets and encoders that are read once."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._laboratory = Laboratory(PaperRequest.from_settings(request))

    @classmethod
    def around(cls, laboratory: Laboratory) -> "PaperWorker":
        """Make a worker of what is read already."""
        worker = cls.__new__(cls)
        worker._laboratory = laboratory
        return worker

    def do(self, order: Mapping[str, Any]) -> UnitResult:
        """Measure one cell."""
        try:
            return UnitResult(self._laboratory.measured(order))
        except (MissingExtraError, RunError):  # another machine may be as it should
            raise
        except PromptBoostError as error:
            raise UnitError(str(error)) from error
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            on = order["cell"][-1]
            raise UnitError(f"the device has too little memory for {on}") from error


def _results(fitted: FittedMethod, draw: Draw, plan: Ground, *, at_home: bool = True) -> Result:
    from promptboost.paper.scene import by_round, repeated_share, rounds_of, shown

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


def _opened(name: str, device: str | None) -> Encoder:
    try:
        return load_encoder(name, device=device)
    except PromptBoostError:
        raise
    except Exception as error:  # a hub that cannot be reached, a device that is not there
        raise EncoderError(f"{name} cannot be loaded: {error}") from error


def _home(plan: Ground, method: Method, on: str) -> str:
    """Return where a method learns; what does not is at home wherever it is measured."""
    return plan.source if method.learns else on


def _draw(shots: int, seed: int) -> tuple[int, int]:
    """Return the draw whose images held out are measured on; what does not learn needs any."""
    return (shots, seed) if shots else (1, 1)


def _digest(key: Key) -> str:
    text = repr(sorted(key.items())).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()
